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
found = [file.parents[2] for top in tops for file in top.glob("**/lib/study/paths.py")]
root = next(
    (p for p in [here, *here.parents, *found] if (p / "lib/study/paths.py").is_file()), None
)
if root is None:
    raise FileNotFoundError("the repository is not here: clone it, or attach it as a Kaggle input")
sys.path.insert(0, str(root))

# %%
import shutil

from lib.analysis.runs import collect
from lib.figures.study import StudyFigures
from lib.study.config import load_study
from lib.study.paths import result_file, shown
from lib.study.plan import load_plan, plan_line
from lib.study.record import write_json

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = load_study(study)
plan = load_plan(design)
print(plan_line(design, plan))
figures = StudyFigures(design, plan, collect(design))
shutil.rmtree(figures.folder, ignore_errors=True)  # those of an earlier execution

# %% [markdown]
# ## Trends
# One column per setting. A line is the mean of the runs still training; a diverged run ends in a
# cross. A loss far above its initial value is cut off.

# %%
figures.trends()

# %% [markdown]
# ## Comparison
# A thin line joins the runs of one seed; a bar is a variant's mean.

# %%
figures.comparison()

# %% [markdown]
# ## Interaction
# Does the effect depend on another factor? Perplexity against its levels, and the paired difference
# to the baseline: on the other side of zero the effect has flipped. Runs that diverged are crosses
# at the top with their number; lines leave them out.

# %%
figures.interactions()

# %% [markdown]
# ## Learning rate
# A run counts at most as its initial loss, a diverged run as just that. S, the sensitivity to the
# rate, is how much worse than at its best rate a variant is on average over all rates: 0 is best.

# %%
figures.learning_rates()

# %% [markdown]
# ## Mechanism
# Contrasts among more than three variants, as the analysis computed them.

# %%
figures.mechanism()

# %% [markdown]
# ## Tokens
# How many training tokens each variant needs to reach the baseline's final loss (dashed).

# %%
figures.efficiency()

# %% [markdown]
# ## Inside
# The norm of the embeddings and their similarity through training (1: all point one way); the
# residual stream's norm from block to block, thin and pale before training; AdamW's second moment
# by part of the model at the last step.

# %%
figures.inside()

# %% [markdown]
# ## Calibration and length
# Reliability over all held-out characters, loss on test by softmax temperature, loss by how many
# characters a prediction could see.

# %%
figures.calibration()

# %% [markdown]
# ## Tasks
# The character task suite: 0 is guessing, 1 is all right.

# %%
figures.tasks()

# %%
path = result_file("04_figures", design.name)
write_json(path, sorted(shown(file) for file in figures.folder.iterdir()))
print(shown(path))
