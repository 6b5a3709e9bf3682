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
# **02 · Train one run**: one arm with one seed. All arms of a seed start from the same weights
# outside the embedding norm and see the same batches. So two of these notebooks with the same seed
# differ only in their arm.
#
# To play, write some `changes` into the parameters cell and run all cells. That trains a scratch
# run, which enters no record, and shows it together with the unchanged run. It takes minutes for
# `final`, and half a minute for the arm `none,tied=true` of `example`. Errors are one line that
# says what to fix; `%tb Context` in a new cell shows where they came from.

# %%
# Find the checkout: here, one folder up, in embedding-norm/ (Colab), or in ../input (Kaggle).
import glob, sys

sys.path += [".", "..", "embedding-norm", *glob.glob("../input/**/lib/data/../..", recursive=True)]

# %%
from IPython.display import Markdown, display

from lib.config import load_study, one_line_errors, run_folder, scratch
from lib.data import load_corpus
from lib.sweep import LiveCurve
from lib.train import train

one_line_errors()

# %% tags=["parameters"]
study: str = "final"  # a name in params/
arm: str = "none"  # an arm of that study
seed: int = 0  # a seed of that study
changes: dict = {}  # to play, say {"training.learning_rate": 1.0e-2}

# %%
asked = load_study(study)
asked.require_seed(seed)
design, this = scratch(asked, asked.arm(arm), changes)
corpus = load_corpus(this.config.corpus)
live = LiveCurve(asked, design, this, seed)
changed = this.config.changes_from(asked.arm(this.baseline).config)
display(Markdown(f"# {asked.name} / {this.id} / seed {seed}"))
print(f"Changed from {this.baseline}:", *changed or ["nothing"], sep="\n  ")
print("Other than the defaults:")
for section, fields in this.config.changed().items():
    print(f"  {section}: {fields}")

# %% [markdown]
# ## Training
# Does the loss fall as the baseline's does? The first sign of trouble is a gradient norm that
# jumps. If this cell is stopped or killed, run it again: it continues from its last checkpoint and
# ends with the same weights. The provenance of the weights is written before the first step and
# never changes.

# %%
folder = run_folder(design.name, this.id, seed)
with live:
    trained = train(design, this, seed, corpus, folder, live)
if trained.diverged_at:
    print(f"DIVERGED at step {trained.diverged_at}: its loss or gradient is not finite")

# %% [markdown]
# ## Evaluation
# This measures likelihood, calibration, loss by length of context, and norms, over the held-out
# text in adjacent windows of the context length. Then the LM-Eval harness asks the task suite.

# %%
from lib.config import relative
from lib.results import history, write_result
from lib.train import facts_of, measure

measured = measure(trained)
print("\n".join(measured.notes) or "everything was measured")

# %% [markdown]
# ## Result
# All numbers are computed above. The cells below only display them, so editing that code does not
# make a run stale.

# %%
result = write_result(design, this, seed, measured.raw, facts_of(this, trained, measured))
print(history(result.provenance), relative(folder / "result.json"), sep="\n")
result

# %%
from lib.stats import readable, result_table

result_table(result)

# %% [markdown]
# ## How it trained

# %%
from lib.figures import show_measurement, show_training

show_training(trained.trace, trained.curve, this)

# %% [markdown]
# Before and after training. `norm_gain` and `norm_bias` are the means of the embedding norm's gain
# and bias, if it has them.

# %%
own = ("step", "dev_loss", "embedding_norm", "norm_gain", "norm_bias")
readable(trained.curve[[name for name in own if name in trained.curve]].iloc[[0, -1]], digits=4)

# %% [markdown]
# ## What was measured

# %%
suites_asked = [name for name in ("tasks", "stock_tasks") if name in measured.tables]
display(*[readable(measured.tables[name]) for name in suites_asked])

# %%
show_measurement(measured.tables | measured.raw, this)

# %% [markdown]
# Norms at the input of block 1 by class of character, the loss at shorter contexts, and the
# distribution of logits:

# %%
for name in ("token_classes", "lengths", "logits"):
    display(readable(measured.tables.get(name)))

# %% [markdown]
# ## What it writes
# Change prompt, length and temperature, and run this cell again. At a low temperature the model
# writes what is likely; at a high one it varies more.

# %%
from lib.train import random_stream

prompt, length, temperature = "", 200, 1.0
if not trained.diverged_at:
    start = corpus.encode(prompt) if prompt else corpus.beginning
    stream = random_stream(seed, "sample")
    written = trained.model.generate(start[None], length, stream, temperature)
    print(corpus.decode(written[0]))

# %% [markdown]
# Where the time went, in seconds:

# %%
import pandas as pd

pd.Series(measured.seconds, name="seconds").round(2).to_frame().T
