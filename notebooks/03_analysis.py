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
# What a study's runs say: the verdict first, then how it came about. A study with a run missing, or
# with runs that differ in what must be equal (corpus, budget, precision, paired weights and
# batches, and within a seed device and versions), is refused with a message that names it.

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
# Of a confirmatory study: one answer to each hypothesis of its plan, in one word, with what was
# found; and the decision on each arm, where the plan tests how many runs are unstable. An
# exploratory study tests and decides nothing. The figure: by how much arms differ (hollow marks are
# undecided), or of a single arm how its loss fell; 04 draws the others. Below: the commits of the
# plan. Look for one that came after the first run.

# %%
display(Markdown(f"**{claim}**"), verdict)
next(StudyFigures(design, results).applicable()).draw()
print(plan_log(design.plan) if design.plan else "No plan.")
print(stats.repetitions(result_file("01_data", design.name)))

# %% [markdown]
# ## Every arm
# Mean ± standard deviation over seeds. Look first at how many runs diverged or are unstable: they
# are counted here, and diverged ones averaged in nowhere.

# %%
first = main_measures(runs, plan)
stats.summary_table(verdict.runs, first=first)

# %% [markdown]
# ## Seed by seed
# Arm - baseline, two runs with the same initial weights and the same batches. Look for a sign that
# is the same in every seed.

# %%
display(*stats.seed_tables(runs, first))

# %% [markdown]
# ## Paired differences
# Mean difference with its *t* interval, nominally 95 %. Look for intervals without zero. What one
# may claim depends on the adjusted p of its family, further down; in an exploratory study, it
# suggests what to test on other seeds.

# %%
print(stats.cautions(verdict.tables["contrasts"].to_dict("records"), runs))
stats.contrast_overview(verdict.tables["contrasts"])

# %% [markdown]
# ## Every factor
# Of a grid: a level minus its factor's first level, over all settings of the other factors, then in
# each setting; and for each pair of factors (`a × b`) how far the difference of one depends on the
# other, and at each level of a third. Look first at the interactions: where one is far from zero, a
# mean over settings says little. An effect that changes sign has no mean here: read its settings.

# %%
print(stats.cautions(with_signs(verdict.tables["effects"].to_dict("records"))))
stats.contrast_overview(verdict.tables["effects"])

# %% [markdown]
# Every hypothesis that has a test, and every test of the plan's families, p adjusted within the
# family; none in an exploratory study. `refuted_p` is that of the test that the hypothesis is
# false; `seeds` would decide an undecided one. A contrast may be in two families: one tests whether
# the arms differ, the other whether they are equivalent, that is, differ by less than the margin.

# %%
asked = verdict.tables["hypothesis_tests"].drop(
    columns=["says", "sentence", "settings"], errors="ignore"
)
display(stats.readable(asked, 4), stats.readable(verdict.tables["tests"], 4))

# %% [markdown]
# Every statistic of each contrast. Look at the Holm p (n/a outside a family, so everywhere in an
# exploratory study), then whether the tests that assume less agree; with few seeds the bootstrap's
# interval is too narrow. `minimum_detectable_effect` is the smallest true effect that so many seeds
# would detect at the plan's level and power, given the spread measured here: the study cannot claim
# a smaller one.

# %%
stats.readable(verdict.tables["contrasts"], 4)

# %% [markdown]
# ## What else the runs show
# Beyond the plan, and exploratory: what the text itself allows (a run above the bigram model uses
# no context that counting pairs does not); stability, judged from the first step on; the suite and
# stock tasks one by one; and attempts to explain the results away: look for a sign that changes.
# Questions of one paper stand in its own notebook.

# %%
for name, table in verdict.beyond.items():
    display(Markdown(f"### {name.replace('_', ' ').capitalize()}"), stats.readable(table))

# %% [markdown]
# ## Tasks
# Accuracy per task, mean ± standard deviation over seeds, beside chance: a task near it cannot tell
# arms apart yet. Then stock tasks, every metric.

# %%
tasks, of_stock = (read_table(results, name) for name in ("tasks", "stock_tasks"))
display(stats.by_arm(tasks, ["task", "shots", "n", "chance"], "accuracy", 3))
display(stats.by_arm(of_stock, ["task", "shots", "metric"], "value", 4))

# %% [markdown]
# ## Calibration and length
# Calibration on all held-out characters. An error no larger than that of a perfectly calibrated
# model at this many characters is noise. Then the loss by length of context: a model that uses its
# context gains with each row.

# %%
display(stats.summary_table(runs, "calibration"))
display(stats.by_arm(read_table(results, "lengths"), ["length"], "loss", 4).T)

# %% [markdown]
# ## Inside
# Norms at the input of block 1 by class of character, then the embedding normalization's own gain
# and bias. Look for how far the arms' residual streams differ in length; 04 draws the rest.

# %%
own = melt_columns(read_parquet(design, "curve"), "norm_", "own mean")
display(stats.by_arm(read_table(results, "token_classes"), ["token_class"], "mean", 3).T)
display(stats.by_arm(own, ["own mean"], "value", 4).T)

# %% [markdown]
# ## What the runs were made with
# More than one value in a row is worth a look. Then where the time went.

# %%
display(stats.provenance_table(results))
display(stats.readable(DataFrame([run.seconds for run in results]).describe(), 1))
