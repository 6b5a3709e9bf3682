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
import matplotlib.pyplot as plt

from lib.collection import collect, read_curves, tidy
from lib.config import load_study
from lib.figures import STYLE, figure_title, paired_seeds, save, trend
from lib.paths import result_file, shown, study_folder
from lib.results import write_json

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
plan = load_study(study)
runs = tidy(collect(plan))
trace, curve = read_curves(plan, "trace"), read_curves(plan, "curve")
folder = study_folder(plan.name) / "figures"
files = []

# %% [markdown]
# ## Trends
# Lines are means over seeds, bands reach from the lowest to the highest seed.

# %%
for setting, part in curve.groupby("setting", sort=False):
    steps = trace[trace["setting"] == setting]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 4, figsize=(11, 2.6))
        trend(part, "dev_loss", axes[0])
        trend(steps, "grad_norm", axes[1])
        trend(part, "embedding_norm", axes[2])
        trend(steps, "second_moment_mean", axes[3]).set_yscale("log")
        figure.suptitle(figure_title(plan, setting))
        files += save(figure, folder, f"trend,{setting}".rstrip(","))
        plt.show()

# %% [markdown]
# ## Comparison
# A thin line joins the runs of one seed; a bar is a variant's mean.

# %%
for setting, part in runs.groupby("setting", sort=False):
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 4, figsize=(11, 2.6))
        measures = ("perplexity", "accuracy", "grad_norm", "embedding_norm")
        for measure, ax in zip(measures, axes, strict=True):
            paired_seeds(part, measure, ax)
        figure.suptitle(figure_title(plan, setting))
        files += save(figure, folder, f"comparison,{setting}".rstrip(","))
        plt.show()

# %%
path = result_file("04_figures", plan.name)
write_json(path, [shown(file) for file in files])
print(shown(path))
