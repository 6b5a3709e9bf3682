"""Made-up studies of any shape: their runs and traces, without training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lib.analysis.runs import tidy
from lib.results import RunResult
from lib.study.study import Arm, Study
from lib.workflow.rehearsal import REFERENCES, made_up
from tests.conftest import TINY


def design(**content: Any) -> Study:
    """A study of the tiny model, of 100 steps."""
    training = {"iterations": 100} | content.pop("training", {})
    content = {"name": "made-up", "seeds": [0, 1, 2]} | content
    return Study.model_validate(TINY | {"training": TINY["training"] | training} | content)


def runs_of(
    study: Study,
    loss: Callable[[Arm, int], float],
    references: dict[str, float] = REFERENCES,
    **measures: Callable[[Arm, int], float],
) -> pd.DataFrame:
    """The tidy table of runs with these validation losses (nats) and further measures."""
    return tidy(results_of(study, loss, references, **measures))


_MADE_UP: dict[str, list[RunResult]] = {}
"""Runs by their study's JSON: many tests ask for those of the same study."""


def results_of(
    study: Study,
    loss: Callable[[Arm, int], float],
    references: dict[str, float] = REFERENCES,
    **measures: Callable[[Arm, int], float],
) -> list[RunResult]:
    """Runs with these validation losses (nats) and further measures."""
    arms, key = {arm.id: arm for arm in study.arms()}, study.model_dump_json()
    if key not in _MADE_UP:
        _MADE_UP[key] = [run for run, _ in made_up(study)]
    runs = []
    for run in _MADE_UP[key]:
        arm, value = arms[run.arm], loss(arms[run.arm], run.seed)
        own = {"loss": value, "perplexity": float(np.exp(value))}
        own |= {"perplexity_test": own["perplexity"] + 1}
        own |= {name: of(arm, run.seed) for name, of in measures.items()}
        runs.append(run.model_copy(update={"measures": own, "references": references}))
    return runs


def trace_of(
    runs: pd.DataFrame, rise: Callable[[str, int], float] = lambda *_: 0.0
) -> pd.DataFrame:
    """Training losses that fall from 4.2 to the run's own, but for a rise at step 30."""
    parts = []
    for run in runs.to_dict("records"):
        loss = np.linspace(4.2, run["loss"], 100)
        loss[29] = loss[28] + rise(run["arm"], run["seed"])
        parts.append(_placed(run, step=np.arange(1, 101), loss=loss, seconds=0.1))
    return pd.concat(parts, ignore_index=True)


def _placed(run: dict[Any, Any], **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns).assign(
        arm=run["arm"], seed=run["seed"], variant=run["variant"], setting=run["setting"]
    )


def noise(*key: int) -> float:
    """A number of the standard normal distribution that belongs to a key."""
    return float(np.random.default_rng(key).normal())
