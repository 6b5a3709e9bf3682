"""Many runs: read their results, compare them, decide by the plan.

Imports only `lib.config` and `lib.results`, and no torch. Start reading at `runs`, then `paired`,
`hypotheses` and `verdict`.
"""
