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
# The verdict on a study, then the tables behind it. If a run is missing, or if runs differ in what
# must be equal, an error names them: all runs need the same corpus, budget and precision, and the
# runs of a seed the same initial weights, batches, device and versions.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from IPython.display import Markdown, display
from pandas import DataFrame

from lib import stats
from lib.config import (
    claim_status,
    load_plan,
    load_study,
    one_line_errors,
    plan_log,
    relative,
    result_file,
    study_folder,
    write_json,
)
from lib.figures import StudyFigures
from lib.stats import (
    analyse,
    collect,
    main_measures,
    melt_columns,
    read_parquet,
    read_table,
    study_results,
    tidy,
    with_signs,
)

one_line_errors()

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = load_study(study)
plan = load_plan(design)
results = collect(design)
runs = tidy(results)
trace, items, stock = (read_parquet(design, n) for n in ("trace", "items", "stock_items"))
claim = claim_status(design, plan, [run.model_dump() for run in results])
verdict = analyse(design, plan, claim, runs, trace, items, stock)
write_json(study_folder(design.name) / "verdict.json", verdict.as_json())
path = result_file("03_analysis", design.name)
write_json(path, study_results(design, results))
print(relative(path))

# %% [markdown]
# ## Verdict
# For a confirmatory study: the answer to each hypothesis of its plan, with what was found, and a
# decision on each arm if the plan tests how many runs are unstable. An exploratory study tests and
# decides nothing. The figure shows by how much arms differ (hollow marks are undecided), or how the
# loss of a single arm fell; 04 draws the other figures. Below it are the commits of the plan. Check
# that none is later than the first run.

# %%
display(Markdown(f"**{claim}**"), verdict)
next(StudyFigures(design, results).applicable()).draw()
print(plan_log(design.plan) if design.plan else "No plan.")
print(stats.repetitions(result_file("01_data", design.name)))

# %% [markdown]
# ## Every arm
# Mean ± standard deviation over seeds. Look first at how many runs diverged or are unstable.
# Diverged runs are counted here, and are in no average.

# %%
first = main_measures(runs, plan)
stats.summary_table(verdict.runs, first=first)

# %% [markdown]
# ## Seed by seed
# Arm - baseline: two runs with the same initial weights and the same batches. Look for the same
# sign in every seed.

# %%
display(*stats.seed_tables(runs, first))

# %% [markdown]
# ## Paired differences
# Mean difference with its *t* interval, nominally 95 %. Look for intervals that exclude zero. In a
# confirmatory study, what you may claim depends on the adjusted p, further down. In an exploratory
# one, such an interval is a hint: test it on new seeds.

# %%
print(stats.cautions(verdict.tables["contrasts"].to_dict("records"), runs))
stats.contrast_overview(verdict.tables["contrasts"])

# %% [markdown]
# ## Every factor
# For a grid: each level minus its factor's first level, averaged over all settings of the other
# factors, then in each setting. For each pair of factors (`a × b`), the interaction: how far the
# difference that one makes depends on the other. Look first at the interactions: if one is far from
# zero, a mean over settings says little. An effect that changes sign has no mean here: read its
# settings.

# %%
print(stats.cautions(with_signs(verdict.tables["effects"].to_dict("records"))))
stats.contrast_overview(verdict.tables["effects"])

# %% [markdown]
# Every hypothesis that has a test, then every test of the plan's families, with p adjusted within
# the family. An exploratory study has none. `refuted_p` is the p of the test that the hypothesis is
# false, `negligible_p` that of the test that the difference is smaller than the smallest of
# interest; `seeds` is how many would decide an undecided one. A contrast may be in two families:
# one tests whether the arms differ, the other whether they differ by less than a margin.

# %%
asked = verdict.tables["hypothesis_tests"].drop(
    columns=["says", "sentence", "settings", "needed_seeds"], errors="ignore"
)
display(stats.readable(asked, 4), stats.readable(verdict.tables["tests"], 4))

# %% [markdown]
# Every statistic of each contrast. Look at the Holm-adjusted p (n/a outside a family, so everywhere
# in an exploratory study). Then see whether the tests that assume less agree; with few seeds the
# bootstrap interval is too narrow. `minimum_detectable_effect` is the smallest true effect that
# this many seeds would detect with the plan's alpha and power, given the spread measured here.

# %%
stats.readable(verdict.tables["contrasts"], 4)

# %% [markdown]
# ## What else the runs show
# Beyond the plan, so exploratory: simple models of the same text (a run with a higher loss than the
# bigram model gains nothing from longer context); stability from the first step on; each task of
# the suite and each stock task; and the contrasts without one seed or one task, where a sign that
# changes is a reason to doubt. A paper's own questions are in its own notebook.

# %%
for name, table in verdict.beyond.items():
    display(Markdown(f"### {name.replace('_', ' ').capitalize()}"), stats.readable(table))

# %% [markdown]
# ## Tasks
# Accuracy per task, mean ± standard deviation over seeds, beside chance. A task near chance cannot
# tell arms apart yet. Then every metric of the stock tasks.

# %%
tasks, of_stock = (read_table(results, name) for name in ("tasks", "stock_tasks"))
display(stats.by_arm(tasks, ["task", "shots", "n", "chance"], "accuracy", 3))
display(stats.by_arm(of_stock, ["task", "shots", "metric"], "value", 4))

# %% [markdown]
# ## Calibration and length
# Calibration on all held-out characters. An error no larger than that of a perfectly calibrated
# model is noise. Then the loss by length of context: it falls from row to row if the model uses its
# context.

# %%
display(stats.summary_table(runs, "calibration"))
display(stats.by_arm(read_table(results, "lengths"), ["length"], "loss", 4).T)

# %% [markdown]
# ## Inside
# Norms at the input of block 1 by class of character, then gain and bias of the embedding
# normalization. Look at how much the arms' residual streams differ in length. 04 draws the rest.

# %%
own = melt_columns(read_parquet(design, "curve"), "norm_", "own mean")
display(stats.by_arm(read_table(results, "token_classes"), ["token_class"], "mean", 3).T)
display(stats.by_arm(own, ["own mean"], "value", 4).T)

# %% [markdown]
# ## What the runs were made with
# If a row has more than one value, the runs differ in it. Then where the time went, in seconds.

# %%
display(stats.provenance_table(results))
display(stats.readable(DataFrame([run.seconds for run in results]).describe(), 1))
