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
# The text that the models read: its length, its symbols, how much of its held-out part also occurs
# in the training part, and how often a run passes over it.

# %%
# Find the checkout: here, one folder up, in embedding-norm/ (Colab), or in ../input (Kaggle).
import glob, sys

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from lib.config import load_study, one_line_errors, relative, result_file, study_folder, write_json
from lib.data import corpora_of, corpus_summary, suites_of
from lib.stats import repetitions

one_line_errors()

# %% tags=["parameters"]
study: str = "final"  # a name in params/

# %% [markdown]
# ## The corpora
# There is one corpus. If the corpus is a factor, each corpus that an arm trains on is shown. Known
# texts are verified by hash. About 90 % is the training part; `corpus.fraction` says how much of it
# is used. The rest is held out, in two parts: *dev*, for making choices, and *test*.
#
# - One text: its end, cut at a blank line into dev and test.
# - Documents: about every tenth, alternately for dev and test.
# - A folder read in characters: the end of each file.
#
# Held-out loss and perplexity are over dev and test together; those of test alone are also given.

# %%
design = load_study(study)
corpora = corpora_of(design)
summaries = {name: corpus_summary(corpus) for name, corpus in corpora.items()}
suites = suites_of(design, corpora, study_folder(design.name) / "suite")
result = result_file("01_data", design.name)
write_json(result, {"corpora": summaries, "suites": suites})
print(relative(result))

# %%
import pandas as pd
from IPython.display import display

from lib.config import claim_status, load_plan
from lib.data import sampling_table, token_class_table
from lib.figures import show_symbols

print(claim_status(design, load_plan(design)))
texts = {corpus.sha256: corpus for corpus in corpora.values()}  # whatever their fractions
for sha256, text in texts.items():
    print(f"{text.name}, SHA-256 {sha256}; held out: {text.held_out}")
parts = ["characters", "train", "heldout", "dev", "test"]
sizes = pd.DataFrame(summaries).loc[parts].rename({"characters": "whole text"})
sizes.map("{:,}".format).rename_axis("characters")

# %% [markdown]
# ## A sample
# The beginning of the test part, which the models will be asked to predict.

# %%
for text in texts.values():
    print(text.decode(text.test[:400]), end="\n\n")

# %% [markdown]
# ## Symbols
# The vocabulary is every symbol of the training part. The figure shows how often each symbol occurs
# in the whole text. The tables show how often each class of symbols occurs in each part; n/a means
# that no symbol of the class occurs there.

# %%
for text in texts.values():
    print(f"{text.name}, {text.vocab_size} symbols: {text.symbols!r:.3000}")
    show_symbols(text.training_text + text.decode(text.heldout))
for name, corpus in corpora.items():
    table = token_class_table(corpus).rename_axis(name)
    shares = [column for column in table if column.endswith("share")]
    display(table.style.format("{:,}", na_rep="n/a").format("{:.2%}", subset=shares, na_rep="n/a"))

# %% [markdown]
# ## Duplication
# How much of the held-out text could a model have seen word for word? Short lines, such as
# speakers' names, recur by nature; long lines and long windows should not. There is a warning here,
# and before anything trains, in two cases: a passage (the text between two blank lines, or a
# document) is in both parts; or the symbols of the held-out text are much rarer in the training
# part, as they would be if it were in another language.

# %%
print(repetitions(result), end="")
shares = {name: summary["duplication"] for name, summary in summaries.items()}
pd.DataFrame(shares).astype(float).style.format("{:.2%}", na_rep="n/a")

# %% [markdown]
# ## Sampling
# Batches are windows at random places, drawn with replacement. Arms with the same corpus, budget
# and seed draw the same batches. If `passes` is well above 1, the models see the training part
# again and again.

# %%
sampling_table(design, corpora).style.format("{:,}").format("{:.3f}", subset=["passes"])

# %% [markdown]
# ## The task suite
# Multiple-choice questions made from the test part, with solved examples from dev. A question shows
# one continuation and asks which of several places in the text it follows. Within a set of
# questions each place is right once, and the likelihoods of one continuation are compared. So a
# model gains nothing if it looks at the places alone, or if it prefers some continuation. Tasks for
# which the corpus or the context is too small are left out and named.
#
# Why 500 questions? Suppose that two arms answer a share *d* of each task's *N* questions
# differently. Then their difference in macro accuracy over *T* tasks varies from seed to seed by at
# least √(Σ *d* / *N*) / *T*. In a measurement *d* was 0.2, for two arms of one seed after 300
# steps. With that, eight seeds detect a difference of 0.01; with 250 questions they detect 0.013.
# Asking 500 questions takes as long as about 60 training steps, so ask fewer in shorter runs.

# %%
for name, suite in suites.items():
    print(f"{name}, suite {suite['hash']}")
    for task, reason in suite["left_out"].items():
        print(f"left out: {task}: {reason}")
    display(pd.DataFrame(suite["tasks"]).style.hide(axis="index").format(precision=3))
