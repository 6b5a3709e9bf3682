"""Many runs: collect their results, compare them, decide by the plan.

Imports only `lib.study`, and no torch. Start reading at `runs`, then `verdict`.
"""
