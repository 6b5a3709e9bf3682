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
# # 00 · A whole study on Kaggle or Colab
# 1. **Add Input**: your dataset of this repository. If **Internet** is off, also add the text as
#    `tinyshakespeare.txt`, unless the study reads `synthetic`.
# 2. **Settings → Accelerator → GPU T4 x2**.
# 3. Set `study` and `hours` below, then **Run All**. Try `smoke` first: it takes minutes and shows
#    that everything works.
# 4. **Save Version → Save & Run All** runs for up to 12 hours. You can close this page.
# 5. If the study needs longer: in the next session, **Add Input** the output of this notebook and
#    **Run All** again. It continues.
# 6. **Output**: download `STUDY.zip`. At home, `./run_all.sh import STUDY.zip` checks it and takes
#    it into the record.
#
# To run your own study, write it to a file in a cell that begins with `%%writefile mine.yaml`, and
# set `study = "./mine.yaml"`.

# %% tags=["parameters"]
study: str = "smoke"  # a name in params/, or the path of a YAML, such as "./mine.yaml"
hours: float = 11.0  # a session ends after 12; whatever still runs then is lost

# %% [markdown]
# On Colab, clone the repository into a folder of your Drive and open this notebook from there. Then
# the runs are kept in that folder. Or clone it under `/content`, and download the zip at the end.
#
# If Internet is off and a package is missing, also add a dataset of the packages
# (`pip download -r requirements.lock`). Name its folder in a cell above: `%env PIP_NO_INDEX=1` and
# `%env PIP_FIND_LINKS=/kaggle/input/NAME`.

# %%
# Find the checkout: here, one folder up, in embedding-norm/ (Colab), or in ../input (Kaggle).
import glob, sys

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from importlib.util import find_spec

from IPython import get_ipython

if find_spec("lib") is None:
    get_ipython().InteractiveTB.set_mode("Minimal")  # one line in place of a traceback
    raise FileNotFoundError("this repository is not attached: Add Input → your dataset of it")

# %%
from lib.config import load_study, one_line_errors
from lib.sweep import pack, resume_from_inputs, run_study, show

one_line_errors()

# %% [markdown]
# ## The study
# Runs of earlier sessions are copied from the inputs and continue. Watch the time left.

# %%
name = load_study(study).name
print(resume_from_inputs(name))
status = run_study(name, hours)

# %% [markdown]
# ## What it found
# First the answers, from `03_analysis`; then the figures, from `04_figures`.

# %%
show(name, "03_analysis")

# %%
show(name, "04_figures")

# %% [markdown]
# ## Download

# %%
pack(name, status)
