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
# # 02 · Train one run
# One arm, one seed. For one seed all arms start from the same weights outside the embedding norm
# and see the same batches, so what differs between two of these notebooks is the arm.

# %%
# Find the repository: here or above; on Kaggle among the inputs, on Colab under /content.
import sys
from pathlib import Path

here = Path.cwd()
tops = (here.parent / "input", Path("/content"))
found = [file.parents[1] for top in tops for file in top.glob("**/lib/paths.py")]
root = next((p for p in [here, *here.parents, *found] if (p / "lib/paths.py").is_file()), None)
if root is None:
    raise FileNotFoundError("the repository is not here: clone it, or attach it as a Kaggle input")
sys.path.insert(0, str(root))

# %%
import matplotlib.pyplot as plt

from lib.compute import random_stream
from lib.config import load_study
from lib.corpus import load_corpus
from lib.evaluation import score
from lib.figures import STYLE, run_curve
from lib.paths import run_folder, shown
from lib.progress import training_progress
from lib.results import run_result, write_result
from lib.training import train

# %% tags=["parameters"]
study: str = "final"  # a name in params/
arm: str = "none"  # an arm of that study
seed: int = 0  # a seed of that study

# %%
plan = load_study(study)
this = plan.arm(arm)
plan.require_seed(seed)
corpus = load_corpus(this.config.corpus)
for section, fields in this.config:
    print(f"{section}: {fields}")

# %% [markdown]
# ## Training
# Killed at any moment, this cell continues from its last checkpoint to the same weights.

# %%
folder = run_folder(plan.name, this.id, seed)
with training_progress(this.config.training.iterations) as progress:
    trained = train(this.config, corpus, seed, folder, progress)
if trained.diverged_at:
    print(f"DIVERGED at step {trained.diverged_at}: its loss or gradient is not finite")

# %%
with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.3))
    run_curve(trained.trace, "loss", axes[0])
    run_curve(trained.curve, "dev_loss", axes[1])
    run_curve(trained.trace, "grad_norm", axes[2])
    run_curve(trained.curve, "embedding_norm", axes[3])
    plt.show()

# %% [markdown]
# ## Evaluation
# Every held-out character, in adjacent windows of the context length.

# %%
scores = score(trained.model, corpus.heldout, this.config.evaluation.batch_size)
print(f"{len(scores.nll):,} characters scored in {scores.seconds:.1f} s")

# %% [markdown]
# What this model writes, at temperature 1:

# %%
if trained.diverged_at is None:
    prompt = corpus.encode("\n")[None].to(trained.device)
    text = trained.model.generate(prompt, 200, random_stream(seed, "sample"))
    print(corpus.decode(text[0]))
else:
    print("nothing: the weights of a diverged model give no probabilities")

# %% [markdown]
# ## Result

# %%
result = run_result(plan, this, seed, corpus, trained, scores)
path = write_result(result, trained.trace, trained.curve)
print(shown(path))
result
