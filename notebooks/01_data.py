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
# What the models read: how long the text is, which symbols it holds, how much of the held-out part
# also occurs in the training part, and how often a run passes over the text.

# %%
import glob, sys  # find the checkout: here, above, on Colab below, on Kaggle among the inputs

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
# One, unless the corpus is a factor; then each that an arm trains on. Known ones are verified by
# hash. About 90 % is the training part, of which `corpus.fraction` is used. The rest is held out:
# of one text its end, cut at a blank line into *dev*, by which choices are made, and *test*; of
# documents about every tenth, by turns for dev and test; of files read in characters the end of
# each. Validation perplexity is over dev and test; test perplexity stands beside it.

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
texts = {corpus.sha256: corpus for corpus in corpora.values()}  # whatever fraction of them
for sha256, text in texts.items():
    print(f"{text.name}, SHA-256 {sha256}; held out: {text.held_out}")
parts = ["characters", "train", "heldout", "dev", "test"]
sizes = pd.DataFrame(summaries).loc[parts].rename({"characters": "whole text"})
sizes.map("{:,}".format).rename_axis("characters")

# %% [markdown]
# ## A sample
# The beginning of the test part, as the models will be asked to predict it.

# %%
for text in texts.values():
    print(text.decode(text.test[:400]), end="\n\n")

# %% [markdown]
# ## Symbols
# The vocabulary is every symbol of the training part. How often each occurs in the whole text, then
# how often each class does in its parts; a class with no symbol in a part is n/a.

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
# How much held-out text a model could have seen word for word. Short lines (speakers' names, above
# all) recur by nature; long lines and long windows should not. A passage (between blank lines, as a
# document is) that stands in both parts is warned of here, and before anything trains. So is
# held-out text whose symbols are much rarer in the training part, as of another language.

# %%
print(repetitions(result))
shares = {name: summary["duplication"] for name, summary in summaries.items()}
pd.DataFrame(shares).astype(float).style.format("{:.2%}", na_rep="n/a")

# %% [markdown]
# ## Sampling
# Batches are windows at random places, drawn with replacement; for one seed, arms of one corpus and
# budget draw the same ones. Well above one pass, the training part is seen again and again.

# %%
sampling_table(design, corpora).style.format("{:,}").format("{:.3f}", subset=["passes"])

# %% [markdown]
# ## The task suite
# Multiple-choice questions made of the test part, with solved examples from dev: which of some
# places in the text does a continuation follow? Each of a set of places is right once, and the same
# continuation is compared, so that neither a look at the places alone nor a model's bias for some
# continuation pays. Tasks for which the corpus or the context is too small are left out and named.
#
# Why 500 questions: two arms that answer a share *d* of each task's *N* questions differently
# differ in macro accuracy over *T* tasks by at least √(Σ *d* / *N*) / *T* from seed to seed. At
# *d* = 0.2 (measured for two arms of one seed after 300 steps) eight seeds detect 0.01; with 250
# questions 0.013. 500 take as long as some 60 steps: shorter runs are better asked fewer.

# %%
for name, suite in suites.items():
    print(f"{name}, suite {suite['hash']}")
    for task, reason in suite["left_out"].items():
        print(f"left out: {task}: {reason}")
    display(pd.DataFrame(suite["tasks"]).style.hide(axis="index").format(precision=3))
