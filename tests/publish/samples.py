"""Made-up records of the studies that the paper has a place for, analysed as real ones are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from lib.analysis.findings import analyse
from lib.analysis.runs import study_results, tidy
from lib.study.claim import ClaimStatus, load_plan
from lib.study.config import Arm, load_study
from lib.study.files import write_json
from lib.study.measures import ACCURACIES
from tests.analysis.samples import REFERENCES, noise, results_of, trace_of

PLANNED = ("start-or-speed", "turn", "when", "trained")
Effect = Callable[[Arm, int], float]
"""What an arm changes of a seed's loss (nats)."""


def write(name: str, paper: Path, effect: Effect, rise: Effect) -> None:
    """Write results and verdict of a made-up study into the folder of a paper."""
    design = load_study(name)
    plan = load_plan(design)
    assert plan
    own = {arm.id: arm for arm in design.arms()}

    def loss(arm: Arm, seed: int) -> float:
        return 2.4 + 0.01 * noise(seed) + effect(arm, seed)

    accuracies = {measure: lambda arm, seed: 0.5 - effect(arm, seed) / 10 for measure in ACCURACIES}
    smooth = {"gradient_cosine": lambda arm, seed: 0.3 + effect(arm, seed)}
    known = {"source_loss": 1.5} if design.corpus.source == "synthetic" else {}
    results = results_of(design, loss, REFERENCES | known, **accuracies, **smooth)
    runs = tidy(results)
    trace = trace_of(runs, lambda arm, seed: rise(own[arm], seed))
    claim = ClaimStatus(name, plan.hash, [] if name in plan.confirmatory else ["made up"])
    found = analyse(design, plan, claim, runs, trace, pd.DataFrame(), pd.DataFrame())
    content = study_results(design, results)
    write_json(paper / "results" / f"{name}.json", json.loads(json.dumps(content)))
    verdict: dict[str, Any] = found.as_json()
    write_json(paper / "results" / f"{name}.verdict.json", verdict)
    for figure in ("loss", "stability"):
        path = paper / "figures" / name / f"{figure}.pdf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
