# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Analysis
# All runs of a study in one table. A study with a run missing, or with runs that differ in what
# must be equal (corpus, budget, precision, device, versions, paired weights and batches), is
# refused by name.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/study/../..", recursive=True)]

# %%
import numpy as np
from IPython.display import Markdown, display

from lib.analysis import tables as report
from lib.analysis.findings import findings
from lib.analysis.runs import collect, read_parquet, read_table, study_results, tidy
from lib.analysis.verdict import in_words, reach_verdict, suite_contrasts, taken
from lib.study.config import load_study
from lib.study.measures import MEASURES
from lib.study.paths import result_file, shown, study_folder
from lib.study.plan import load_plan, plan_line, plan_precedes, standing
from lib.study.record import records, write_json

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = load_study(study)
preregistration = load_plan(design)
results = collect(design)
runs = tidy(results)
title = f"## {plan_line(design, preregistration)}"
display(Markdown(f"{title}\n\n{len(runs)} runs, study hash {design.hash}"))
report.provenance_table(results)

# %% [markdown]
# ## Every arm
# Mean ± standard deviation over seeds. Diverged runs are counted, never averaged in.

# %%
report.oriented(report.summary_table(runs))

# %% [markdown]
# ## Paired differences
# Arm - baseline, seed by seed: same initial weights, same batches.

# %%
for measure in taken(["perplexity", "accuracy", "macro_accuracy_zero_shot"], runs):
    table = report.delta_table(runs, measure).rename_axis(
        f"{MEASURES[measure].label}: arm - baseline"
    )
    display(report.readable(table.reset_index(), MEASURES[measure].digits))

# %%
print(report.takeaway(runs))

# %% [markdown]
# ## Statistics
# Mean paired differences with their t intervals, which are primary: at few seeds only their
# coverage is what it says. Then, for a study with one setting, all that is said of each: every
# interval's own coverage at this n stands in brackets, and beside the exact sign-flip p the
# smallest it can be.

# %%
rng = np.random.default_rng(int(design.hash[:8], 16))
trace, curve = read_parquet(design, "trace"), read_parquet(design, "curve")
verdict = reach_verdict(runs, trace, preregistration, rng)
display(report.contrast_overview(verdict.contrasts))
if runs["setting"].nunique() == 1:
    for contrast, part in report.contrast_summary(verdict.contrasts).groupby(level=0, sort=False):
        display(part.droplevel(0).T.rename_axis(contrast))

# %% [markdown]
# Where runs diverged, the same with each of them counted as the plan says:

# %%
report.contrast_overview(verdict.imputed)

# %% [markdown]
# The task suite in two further ways: interquartile mean over tasks with seeds resampled whole, and
# all questions with seeds and questions resampled.

# %%
tasks = read_table(results, "tasks")
report.readable(suite_contrasts(runs, tasks, read_parquet(design, "items"), rng), digits=4)

# %% [markdown]
# ## What the factors show

# %%
found = findings(design, preregistration, runs, curve, verdict)
for finding in found:
    display(Markdown(f"### {finding.title}\n\n" + "\n".join(f"- {w}" for w in finding.words)))
    display(report.readable(finding.table))

# %% [markdown]
# ## What this many seeds can show
# The smallest true effect that a number of seeds would detect at 80 % power, given the spread of
# the differences measured here. Claims below it are not this study's to make.

# %%
report.power_summary(verdict.contrasts, alpha=0.05, power=0.8)

# %% [markdown]
# ## Tasks
# Accuracy per task, mean ± standard deviation over seeds. *Near chance* is said of the first arm;
# such a task tells nothing yet.

# %%
report.task_table(tasks)

# %% [markdown]
# ## Calibration and length
# Calibration on all held-out characters. ECE of a perfectly calibrated model at this many
# characters stands beside it; below it there is nothing to explain.

# %%
display(report.calibration_table(runs))
display(report.by_arm(read_table(results, "lengths"), ["length"], "loss", 4).T)

# %% [markdown]
# ## Inside
# Norms at the input of block 1 by class of character; residual norms; AdamW's second moment by part
# of the model at the last step; the embedding normalization's own gain and bias.

# %%
for table in report.inside_tables(read_table(results, "token_classes"), curve):
    display(table)

# %% [markdown]
# ## Where the time went

# %%
report.time_table(results)

# %% [markdown]
# ## Verdict
# By the rules of the plan, for each arm, with the numbers they used; then what deviated from it.

# %%
kind = standing(design, preregistration)
display(Markdown(f"{title}\n\n{in_words(verdict, runs, kind)}"))
deviations = report.deviation_table(preregistration)
display(report.readable(deviations))
precedes = plan_precedes(preregistration, [run.provenance["git_commit"] for run in results])
print(f"plan committed before the runs: {precedes}")

# %%
tables = {finding.key: records(finding.table) for finding in found}
content = {"standing": kind, "deviations": records(deviations), **verdict.as_json(), **tables}
write_json(study_folder(design.name) / "verdict.json", content)
path = result_file("03_analysis", design.name)
write_json(path, study_results(design, results))
print(shown(path))
