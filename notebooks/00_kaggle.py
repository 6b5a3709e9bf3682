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
# Attach this repository as a dataset (and the corpus, unless it is `synthetic`), choose two T4s,
# and run all cells. The study runs on all GPUs, as with `./run_all.sh`. At the end there is a zip,
# which `./run_all.sh import` takes into the record at home.
#
# To run your own study, write it to a file beside this notebook, in a cell that begins with
# `%%writefile mine.yaml`, and give its path below: `study = "./mine.yaml"`.
#
# Without internet, also attach a dataset of the packages (`pip download -r requirements.lock`), and
# name its folder in a cell above the rest: `%env PIP_NO_INDEX=1` and
# `%env PIP_FIND_LINKS=/kaggle/input/NAME`.
#
# To continue an earlier session, attach its output. On Colab, clone the repository into a folder of
# your Drive and open this notebook from there, so that the runs are kept there. Or clone it under
# `/content`, and download the zip at the end.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from lib.config import load_study, one_line_errors
from lib.sweep import pack, resume_from_inputs, run_study, show

one_line_errors()

# %% tags=["parameters"]
study: str = "smoke"  # a name in params/, or the path of a YAML, such as "./mine.yaml"
hours: float = 11.0  # a session ends after 12, and what runs then is lost

# %% [markdown]
# ## The study
# Runs of earlier sessions are taken up first. `smoke` shows in minutes that everything works. Look
# at the time left: a study that does not fit into one session continues in the next.

# %%
name = load_study(study).name
print(resume_from_inputs(name))
status = run_study(name, hours)

# %% [markdown]
# ## What it found
# The verdict first, as 03_analysis says it, then the figures of 04_figures.

# %%
show(name, "03_analysis")

# %%
show(name, "04_figures")

# %% [markdown]
# ## To take home

# %%
pack(name, status)
