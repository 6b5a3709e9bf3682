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
# # 01 · Data
# What the models read. A study stands or falls with its text: how long it is, which symbols it
# holds, how much of the held-out part already stands in the training part, and how often a run's
# budget passes over it.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/study/../..", recursive=True)]

# %%
import matplotlib.pyplot as plt
import pandas as pd

from lib.data.corpus import (
    corpus_summary,
    duplication_report,
    load_corpus,
    sampling_table,
    token_class_table,
)
from lib.data.suite import prepare_suite, read_suite
from lib.figures.style import STYLE, show
from lib.figures.training import symbol_counts
from lib.study.config import load_study
from lib.study.paths import result_file, shown, study_folder
from lib.study.plan import load_plan, plan_line
from lib.study.record import write_json

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %% [markdown]
# ## The corpus
# Verified by hash before use. The first 90 % is for training; the rest is held out and cut at a
# blank line into *dev*, where choices are made, and *test*, where results are reported.

# %%
design = load_study(study)
print(plan_line(design, load_plan(design)))
corpus = load_corpus(design.corpus)
summary = corpus_summary(corpus)
parts = ("characters", "train", "heldout", "dev", "test")
print(f"{corpus.name}, SHA-256 {corpus.sha256}")
pd.Series({part: f"{summary[part]:,}" for part in parts}, name="characters").to_frame()

# %% [markdown]
# ## A sample
# The beginning of the test part, as the models will be asked to predict it.

# %%
print(corpus.decode(corpus.test[:400]))

# %% [markdown]
# ## Symbols
# The vocabulary is every symbol of the training part. A class with no symbol in a part is n/a.

# %%
print(f"{corpus.vocab_size} symbols: {corpus.symbols!r}")
with plt.rc_context(STYLE):
    figure, ax = plt.subplots(figsize=(9, 2.4))
    symbol_counts(pd.Series(list(corpus.text)).value_counts(), ax)
    show(figure)
table = token_class_table(corpus)
shares = [column for column in table if column.endswith("share")]
table.style.format("{:,}", na_rep="n/a").format("{:.2%}", subset=shares, na_rep="n/a")

# %% [markdown]
# ## Duplication
# How much held-out text a model could have seen word for word. Short lines (speakers' names, above
# all) recur by nature; long lines and long windows should not.

# %%
duplication_report(corpus).to_frame().style.format("{:.2%}", na_rep="n/a")

# %% [markdown]
# ## Sampling
# Batches are windows at random places, drawn with replacement; for one seed every arm draws the
# same ones.

# %%
budget = design.training.iterations * design.training.batch_size * design.model.block_size
sampling_table(corpus, budget).to_frame()

# %% [markdown]
# ## The task suite
# Multiple-choice questions made of the test part, with solved examples from dev. What the corpus or
# the context length does not carry is left out by name.

# %%
items, block_size = design.evaluation.items_per_task, design.model.block_size
folder = prepare_suite(corpus, items, block_size, study_folder(design.name) / "suite")
suite = read_suite(folder)
summary["suite"] = {"hash": suite["hash"], "left_out": suite["left_out"]}
print(f"suite {suite['hash']}")
for name, reason in suite["left_out"].items():
    print(f"left out: {name}: {reason}")
pd.DataFrame(suite["tasks"]).style.hide(axis="index").format({"chance": "{:.2f}"})

# %%
result = result_file("01_data", design.name)
write_json(result, summary)
print(shown(result))
