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
# Without internet, also attach the folder that `./run_all.sh wheels` makes. To continue what an
# earlier session left, attach the output of that session. On Colab, clone the repository into a
# folder of your Drive and open this notebook from there: what is done then stays there. Or clone it
# under `/content`, and download the zip at the end.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/study/../..", recursive=True)]

# %%
from lib.study.inputs import take_up
from lib.workflow.kaggle import environment, pack, show, sweep

# %% tags=["parameters"]
study: str = "final-gpu"  # a name in params/
hours: float = 11.0  # a session ends after 12, and what runs then is lost

# %% [markdown]
# ## The study
# What earlier sessions left is taken up first. The lock's packages go to an environment beside the
# image's; torch stays the image's. Look at the estimate of the time left: what does not fit into
# one session continues in the next.

# %%
print("\n".join(take_up(study)) or "nothing to take up")
status = sweep(study, hours, environment())

# %% [markdown]
# ## Verdict
# As 03_analysis says it.

# %%
show(study, "03_analysis", "Verdict")

# %% [markdown]
# ## Every arm

# %%
show(study, "03_analysis", "Every arm")

# %% [markdown]
# ## Figures

# %%
show(study, "04_figures")

# %% [markdown]
# ## To take home

# %%
pack(study, status)
