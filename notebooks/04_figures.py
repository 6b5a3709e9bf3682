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
# # 04 · Figures
# The study in pictures, each written as PDF (for the paper) and PNG. Colours, dashes and markers
# belong to a variant throughout the project and can be told apart in grey.

# %%
# Find the repository: here or above; on Kaggle among the inputs, on Colab under /content.
import sys
from pathlib import Path

here = Path.cwd()
tops = (here.parent / "input", Path("/content"))
found = [file.parents[1] for top in tops for file in top.glob("**/lib/paths.py")]
root = next((p for p in [here, *here.parents, *found] if (p / "lib/paths.py").is_file()), None)
if root is None:
    raise FileNotFoundError("the repository is not here: clone it, or attach it as a Kaggle input")
sys.path.insert(0, str(root))

# %%
import shutil

from lib.calibration import TEMPERATURES
from lib.collection import collect, last_point, read_parquet, read_table, tidy
from lib.config import load_study
from lib.figures import (
    group_values,
    paired_seeds,
    panels,
    reliability_diagram,
    task_accuracies,
    trend,
)
from lib.paths import result_file, shown, study_folder
from lib.preregistration import load_plan, plan_line
from lib.results import write_json

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = load_study(study)
print(plan_line(design, load_plan(design)))
results = collect(design)
runs = tidy(results)
trace, curve = read_parquet(design, "trace"), read_parquet(design, "curve")
folder = study_folder(design.name) / "figures"
shutil.rmtree(folder, ignore_errors=True)  # figures of an earlier execution

# %% [markdown]
# ## Trends
# Lines are means over seeds, bands reach from the lowest to the highest seed.

# %%
for setting, part in curve.groupby("setting", sort=False):
    steps = trace[trace["setting"] == setting]
    with panels("trend", design, setting, folder) as axes:
        trend(part, "dev_loss", axes[0])
        trend(steps, "grad_norm", axes[1])
        trend(part, "embedding_norm", axes[2])
        trend(steps, "second_moment_mean", axes[3]).set_yscale("log")

# %% [markdown]
# ## Comparison
# A thin line joins the runs of one seed; a bar is a variant's mean.

# %%
for setting, part in runs.groupby("setting", sort=False):
    with panels("comparison", design, setting, folder) as axes:
        measures = ("perplexity", "accuracy", "grad_norm", "embedding_norm")
        for measure, ax in zip(measures, axes, strict=True):
            paired_seeds(part, measure, ax)

# %% [markdown]
# ## Calibration and length
# Reliability over all held-out characters, loss on test by softmax temperature, loss by how many
# characters a prediction could see.

# %%
tables = {name: read_table(results, name) for name in ("reliability", "temperatures", "positions")}
for setting in dict.fromkeys(tables["reliability"].get("setting", [])):
    parts = [table[table["setting"] == setting] for table in tables.values()]
    parts[1] = parts[1][parts[1]["temperature"].isin(TEMPERATURES)]  # not each run's own
    with panels("calibration", design, setting, folder) as axes:
        reliability_diagram(parts[0], axes[0])
        trend(parts[1], "nll", axes[1], x="temperature")
        trend(parts[1], "ece", axes[2], x="temperature")
        trend(parts[2], "position_loss", axes[3], x="context")

# %% [markdown]
# ## Tasks
# The character task suite: 0 is guessing, 1 is all right.

# %%
tasks = read_table(results, "tasks")
for setting in dict.fromkeys(tasks.get("setting", [])):
    with panels("tasks", design, setting, folder, n=1, size=(7, 4.2)) as axes:
        task_accuracies(tasks[tasks["setting"] == setting], axes[0])

# %% [markdown]
# ## Inside
# Similarity among embeddings through training (1: all point one way), the residual stream's norm
# from block to block, and AdamW's second moment by part of the model, both at the last step.

# %%
for setting, part in curve.groupby("setting", sort=False):
    residual = last_point(part, "residual_norm_", "block")
    with panels("inside", design, setting, folder) as axes:
        trend(part, "embedding_cosine", axes[0])
        trend(part, "input_cosine", axes[1])
        residual = residual.rename(columns={"value": "residual_norm"})
        trend(residual, "residual_norm", axes[2], x="block").set_yscale("log")
        group_values(last_point(part, "second_moment_", "group"), "second moment", axes[3])

# %%
path = result_file("04_figures", design.name)
write_json(path, sorted(shown(file) for file in folder.iterdir()))
print(shown(path))
