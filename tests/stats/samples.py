"""Made-up studies of any shape: their runs and traces, without training."""

import numpy as np
import pandas as pd

from lib.config.plan import Plan
from lib.config.study import Study
from lib.stats.runs import tidy
from tests.conftest import TINY
from tests.samples import REFERENCES, made_up


def design(**content):
    """Return a study of the tiny model with 100 steps."""
    training = {"iterations": 100} | content.pop("training", {})
    content = {"name": "made-up", "seeds": [0, 1, 2]} | content
    return Study.model_validate(TINY | {"training": TINY["training"] | training} | content)


NORMS = {"model.embedding_norm": ["none", "layernorm"]}


def two_arms(n):
    """Return a study of no layer and LayerNorm, with n seeds."""
    return design(factors=NORMS, seeds=list(range(n)))


def runs_of(study, loss, references=REFERENCES, **measures):
    """Return the tidy table of runs with these held-out losses (nats) and further measures."""
    runs = []
    for arm in study.arms():
        for seed in study.seeds:
            own = {"loss": loss(arm, seed), "perplexity": float(np.exp(loss(arm, seed)))}
            own |= {name: of(arm, seed) for name, of in measures.items()}
            update = {"measures": own, "references": references}
            runs.append(made_up(study, arm, seed).model_copy(update=update))
    return tidy(runs)


def trace_of(runs, rise=lambda *_: 0.0):
    """Return training losses that fall from 4.2 to the run's final loss, with a rise at step 30."""
    parts = []
    for run in runs.to_dict("records"):
        loss = np.linspace(4.2, run["loss"], 100)
        loss[29] = loss[28] + rise(run["arm"], run["seed"])
        part = pd.DataFrame({"step": np.arange(1, 101), "loss": loss})
        parts.append(part.assign(arm=run["arm"], seed=run["seed"]))
    return pd.concat(parts, ignore_index=True)


def noise(*key):
    """Return a standard normal number that depends only on a key."""
    return float(np.random.default_rng(key).normal())


def plan_of(**content):
    """Return a plan with the given fields and little else."""
    least = {"title": "t", "question": "q", "confirmatory": ["s"], "hypotheses": {"h": "says"}}
    return Plan.model_validate(least | content)


NORM = "embedding_norm=layernorm - embedding_norm=none"
BY_SETTING = {
    ("adamw", True): -0.24,
    ("adamw", False): -0.21,
    ("muon", True): 0.5,
    ("muon", False): 0.07,
}
"""By how much LayerNorm changes the loss for an optimizer and a tied or an untied head: +0.03 on
average."""


def crossed(n):
    """Return a study of three factors and its runs; the first's effect depends on the others."""
    optimizers = {"training.optimizer": ["adamw", "muon"]}
    study = design(factors=NORMS | optimizers | {"model.tied": [True, False]}, seeds=list(range(n)))

    def loss(arm, seed):
        _, *setting = arm.levels.values()
        effect = BY_SETTING[tuple(setting)] if arm.variant == "layernorm" else 0.0
        return 2 + effect + 0.3 * noise(seed, 7) + 0.005 * noise(seed, *arm.id.encode())

    return study, runs_of(study, loss)
