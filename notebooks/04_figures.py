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
# Every figure for which the study has data. The text above a figure says what to look for and which
# functions draw it. Each figure is also written as PDF, for the paper, and as PNG. A variant has
# the same colour, dashes and marker in all figures, so you can recognise it without colours.

# %%
# Find the checkout: here, one folder up, in embedding-norm/ (Colab), or in ../input (Kaggle).
import glob, sys

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
import shutil

from IPython.display import Markdown, display

from lib.config import load_study, one_line_errors, relative, result_file, write_json
from lib.figures import StudyFigures
from lib.stats import collect

one_line_errors()

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %%
design = load_study(study)
figures = StudyFigures(design, collect(design))
print(figures.verdict["standing"], *figures.verdict["exploratory_because"], sep="; ")
shutil.rmtree(figures.folder, ignore_errors=True)  # figures of an earlier execution

# %% [markdown]
# The functions named below are in `lib/figures`, in `training.py` and `effects.py`. `study.py`
# decides which figures a study has.

# %%
drawn = {}
for figure in figures.applicable():
    display(Markdown(figure.words))
    figure.draw()
    drawn[figure.name] = figure.words

# %%
path = result_file("04_figures", design.name)
write_json(path, drawn)
print(relative(path))
