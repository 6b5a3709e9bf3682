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
# What a study's runs show: first the answer, then the details. All runs must have the same corpus,
# budget and precision. Runs of one seed must also have the same initial weights, batches, device
# and versions. If a run is missing, or differs in one of these, an error names it.

# %%
# Find the checkout: here, one folder up, in embedding-norm/ (Colab), or in ../input (Kaggle).
import glob, sys

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from IPython.display import Markdown, display
from pandas import DataFrame

from lib import config, stats
from lib.figures import StudyFigures

config.one_line_errors()

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = config.load_study(study)
plan = config.load_plan(design)
results = stats.collect(design)
runs = stats.tidy(results)
trace, items, stock = (stats.read_parquet(design, n) for n in ("trace", "items", "stock_items"))
claim = config.claim_status(design, plan, [run.model_dump() for run in results])
verdict = stats.analyse(design, plan, claim, runs, trace, items, stock)
found = verdict.as_json()
config.write_json(config.study_folder(design.name) / "verdict.json", found)
config.write_json(
    config.result_file("03_analysis", design.name), stats.study_results(design, results)
)

# %%
numbers = stats.seed_numbers(design)
display(Markdown(f"## {stats.question(design, plan) or design.name}"))
display(Markdown(stats.answer_sentences(found, plan, runs, numbers)))
next(StudyFigures(design, results).applicable()).draw()
stats.section("", stats.arm_table(design))
print(claim)
print(stats.repetitions(config.result_file("01_data", design.name)), end="")

# %% [markdown]
# ## Details
# In the figure above, red is worse, blue is better, and a hollow mark is undecided. `04_figures`
# draws the other figures. Differences are paired: an arm minus its baseline, seed by seed, with the
# same initial weights and batches. Intervals are *t* intervals with a nominal level of 95 %. They
# are not adjusted for the number of comparisons.

# %%
if verdict.answers:
    display(Markdown("### The answers in full"), verdict)
if design.plan:
    words = "### Commits of the plan\nCheck that none is later than the first run."
    display(Markdown(f"{words}\n```text\n{config.plan_log(design.plan)}\n```"))
if design.drawn:
    names = DataFrame({"drawn seed": numbers.keys()}, [f"seed {n}" for n in numbers.values()])
    stats.section("### Seeds\nTables number the seeds in the order they were drawn.", names)

# %%
first = stats.loss_first(runs, plan)
named = verdict.runs.assign(seed=runs["seed"].map(numbers))
stats.section(
    "### Every arm\nMean ± standard deviation over seeds. Look first at how many runs diverged or "
    "are unstable. Diverged runs are counted here; no average includes them.",
    stats.summary_table(verdict.runs, first=first),
)
stats.section(
    "### Seed by seed\nArm - baseline. Look for the same sign in every seed.",
    *stats.seed_tables(named, first),
)

# %%
stats.section(
    "### Paired differences\nMean difference with its interval. Look for intervals that exclude "
    "zero. In a confirmatory study, what you may claim depends on the adjusted p, further down. "
    "In an exploratory one, such an interval is a hint: test it on new seeds.",
    stats.contrast_overview(verdict.tables["contrasts"]),
)
stats.section(
    "### Every factor\nEach level minus its factor's first level, averaged over all settings of "
    "the other factors. If the difference changes sign between settings, each setting has its own "
    "row. `a × b` is the interaction: how much the effect of one factor depends on the other. If "
    "an interaction is far from zero, a mean over settings says little.",
    stats.contrast_overview(DataFrame(stats.by_setting(found["effects"]))),
)

# %%
asked = verdict.tables["hypothesis_tests"].drop(
    columns=["says", "sentence", "settings", "needed_seeds"], errors="ignore"
)
stats.section(
    "### Tests\nFirst every hypothesis that has a test, then every test of the plan's families. p "
    "is adjusted within a family. A small `refuted_p` shows that the hypothesis is false; a small "
    "`negligible_p` shows that the difference is smaller than the smallest effect of interest. "
    "`seeds` is how many would decide an undecided hypothesis. A contrast may be in two families: "
    "one tests whether the arms differ, the other whether they differ by less than a margin.",
    stats.readable(asked, 4).T,
    stats.readable(verdict.tables["tests"], 4),
)
stats.section(
    "### Every statistic of each contrast\nCheck whether the tests that assume less than the t "
    "test agree with it. With few seeds the bootstrap interval is too narrow. Holm-adjusted p are "
    "n/a outside a family. `minimum_detectable_effect` is the smallest true effect that this many "
    "seeds would detect with the plan's alpha and power, given the spread measured here.",
    *stats.statistics(verdict.tables["contrasts"], first),
)

# %% [markdown]
# ### What else the runs show
# These tables go beyond the plan, so they are exploratory. A run with a higher loss than the bigram
# model gains nothing from longer context. Doubt a difference if its sign changes when one seed or
# one task is left out. Questions that only one paper asks are answered in that paper's notebook.

# %%
for name, table in verdict.beyond.items():
    stats.section(f"#### {name.replace('_', ' ').capitalize()}", stats.readable(table))

# %%
tasks, of_stock = (stats.read_table(results, name) for name in ("tasks", "stock_tasks"))
stats.section(
    "### Tasks\nAccuracy per task and that of guessing (`chance`), mean ± standard deviation over "
    "seeds. A task near chance cannot tell arms apart yet.",
    stats.by_arm(tasks, ["task", "shots", "n", "chance"], "accuracy", 3),
)
stats.section(
    "### Stock tasks\nEvery metric of each task, mean ± standard deviation over seeds.",
    stats.by_arm(of_stock, ["task", "shots", "metric"], "value", 4),
)

# %%
stats.section(
    "### Calibration\nOn all held-out characters. An error that is no larger than that of a "
    "perfectly calibrated model is noise.",
    stats.summary_table(runs, "calibration"),
)
stats.section(
    "### Loss by length of context\nThe loss falls as the context grows if the model uses it.",
    stats.by_arm(stats.read_table(results, "lengths"), ["length"], "loss", 4),
)

# %%
curve = stats.read_parquet(design, "curve")
own = stats.melt_columns(curve, "norm_", "own mean")
stats.section(
    "### Inside the model\nNorms at the input of block 1 by class of character, then gain and "
    "bias of the embedding norm. Look at how much the arms' residual streams differ in length. "
    "`04_figures` draws the rest.",
    stats.by_arm(stats.read_table(results, "token_classes"), ["token_class"], "mean", 3),
    stats.by_arm(own, ["own mean"], "value", 4),
)

# %%
seconds = DataFrame([run.seconds for run in results]).describe()
stats.section(
    "### What the runs were made with\nIf a row has more than one value, the runs differ in it. "
    "The second table says where the time went, in seconds.",
    stats.provenance_table(results),
    stats.readable(seconds.reset_index(names="seconds"), 1),
)
