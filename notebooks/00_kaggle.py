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
# Attach this repository as a dataset (and the corpus, unless it is `synthetic`), choose two
# T4s, and run all. The study runs over all GPUs as `./run_all.sh` runs it anywhere, and this
# notebook leaves a zip that `./run_all.sh import` takes into the record at home.
#
# To ask a question of your own, write its study into the cell of parameters: between three quotes
# what a file of `params/` holds, and its plan, if it has one, below a line `---`. Or give the path
# of such a file, say beside this notebook.
#
# Without internet, also attach the folder that `./run_all.sh wheels` makes. To continue what an
# earlier session left, attach the output of that session. On Colab, clone the repository into a
# folder of your Drive and open this notebook from there: what is done then stays there. Or clone it
# under `/content`, and download the zip at the end.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/study/../..", recursive=True)]

# %%
from lib.study.study import load_study
from lib.study.yaml import one_line_errors
from lib.study.inputs import resume_from_inputs
from lib.workflow.kaggle import cost_of_full, environment, pack, show, sweep

one_line_errors()

# %% tags=["parameters"]
study: str = "smoke"  # a name in params/, or a study of your own: """name: mine …"""
hours: float = 11.0  # a session ends after 12, and what runs then is lost

# %% [markdown]
# `smoke` shows in minutes that everything works. A study of full size takes longer here:

# %%
print(cost_of_full())

# %% [markdown]
# ## The study
# What earlier sessions left is taken up first. The lock's packages go to an environment beside the
# image's; torch stays the image's. Look at the estimate of the time left: what does not fit into
# one session continues in the next.

# %%
name = load_study(study).name
print("\n".join(resume_from_inputs(name)) or "nothing to take up")
status = sweep(name, hours, environment())

# %% [markdown]
# ## Verdict
# As 03_analysis says it.

# %%
show(name, "03_analysis", "Verdict")

# %% [markdown]
# ## Every arm

# %%
show(name, "03_analysis", "Every arm")

# %% [markdown]
# ## Figures

# %%
show(name, "04_figures")

# %% [markdown]
# ## To take home

# %%
pack(name, status)
