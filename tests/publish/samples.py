"""Made-up records of the studies that the paper has a place for, analysed as real ones are."""

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from lib.analysis.runs import study_results, tidy
from lib.analysis.verdict import analyse
from lib.publish.findings import TABLES, RecordedStudy
from lib.record.archive import Record
from lib.results import json_rows
from lib.study.io import PAPER, read_json, write_json
from lib.study.metrics import ACCURACIES
from lib.study.preregistration import ClaimStatus, load_plan
from lib.study.study import Arm, load_study
from tests.analysis.samples import REFERENCES, noise, results_of, trace_of

PLANNED = ("start-or-speed", "turn", "when", "trained")
EXPLORED = ("where", "ladder-2", "ladder-2-wide", "modern-gpu")
"""Without a plan: the paper quotes what its notebook finds of them."""
Effect = Callable[[Arm, int], float]
"""What an arm changes of a seed's loss (nats)."""


def write(name: str, paper: Path, effect: Effect, rise: Effect) -> None:
    """Write results and verdict of a made-up study into the folder of a paper."""
    design = load_study(name)
    plan = load_plan(design)
    own = {arm.id: arm for arm in design.arms()}

    def loss(arm: Arm, seed: int) -> float:
        return 2.4 + 0.01 * noise(seed) + effect(arm, seed)

    accuracies = {measure: lambda arm, seed: 0.5 - effect(arm, seed) / 10 for measure in ACCURACIES}
    smooth = {"gradient_cosine": lambda arm, seed: 0.3 + effect(arm, seed)}
    known = {"source_loss": 1.5} if design.corpus.source == "synthetic" else {}
    results = results_of(design, loss, REFERENCES | known, **accuracies, **smooth)
    runs = tidy(results)
    trace = trace_of(runs, lambda arm, seed: rise(own[arm], seed))
    tested = plan is not None and name in plan.confirmatory
    claim = ClaimStatus(name, plan and plan.hash, [] if tested else ["made up"])
    found = analyse(design, plan, claim, runs, trace, pd.DataFrame(), pd.DataFrame())
    content = study_results(design, results)
    write_json(paper / "results" / f"{name}.json", json.loads(json.dumps(content)))
    verdict: dict[str, Any] = found.as_json()
    write_json(paper / "results" / f"{name}.verdict.json", verdict)
    for figure in ("loss", "stability"):
        path = paper / "figures" / name / f"{figure}.pdf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


class MadeUp(Record):
    """The record of a made-up study, as far as the paper's notebook reads it."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def joined(self, name: str) -> pd.DataFrame:
        """Return dev curves of two points, which end at the validation loss."""
        assert name == "curve"
        ends = self.table[["arm", "seed", "loss"]].rename(columns={"loss": "dev_loss"})
        first = ends.assign(dev_loss=4.2)
        return pd.concat([first.assign(step=0), ends.assign(step=100)], ignore_index=True)


def made_up(name: str, effect: Effect) -> RecordedStudy:
    """Make up a study in which nothing is unstable; `effect` is the loss of each run (nats)."""
    design = load_study(name)
    runs = tidy(results_of(design, effect))
    calm = runs[["arm", "seed"]].assign(transient=False, collapsed=False, diverged=False)
    verdict = {"stability": json_rows(calm)}
    return RecordedStudy(MadeUp(runs), design, load_plan(design), runs, verdict)


@cache
def notebook() -> SimpleNamespace:
    """Return the constants and functions of the paper's notebook, without what its cells do."""

    def defines(node: ast.stmt) -> bool:
        if not isinstance(node, ast.Assign):
            return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        stored = [each.id for each in names if isinstance(each.ctx, ast.Store)]
        return bool(stored) and all(map(str.isupper, stored))

    tree = ast.parse((PAPER / "findings.py").read_text("utf-8"))
    tree.body = [node for node in tree.body if defines(node)]
    names: dict[str, Any] = {}
    exec(compile(tree, "findings.py", "exec"), names)
    return SimpleNamespace(**names)


def explore(paper: Path, effect: Effect) -> None:
    """Write the studies without a plan into the folder of a paper, and what its notebook finds of
    them."""
    for name in EXPLORED:
        write(name, paper, effect, rise=lambda *_: 0.0)
    own, found = notebook(), read_json(paper / TABLES)
    places, *crossed, larger = (
        made_up(name, lambda arm, seed: 2.4 + 0.01 * noise(seed) + effect(arm, seed))
        for name in EXPLORED
    )
    by_place, by_cell = own.place_effects(places), [*map(own.effects_at_best, crossed)]
    by_width = map(own.by_more_steps, by_cell, crossed)
    found |= {"where": json_rows(by_place), "ladder_2": json_rows(pd.concat(by_cell))}
    found |= {"where_apart": json_rows(own.against_sum(by_place, places))}
    found |= {"ladder_2_steps": json_rows(pd.concat(by_width))}
    ends = larger.runs[["arm", "seed"]].assign(step=5000, dev_loss=larger.runs["loss"] - 0.05)
    curves = pd.concat([ends, ends.assign(step=1500, dev_loss=ends["dev_loss"] - 0.2)])
    found |= {"larger": json_rows(own.at_end_and_lowest(larger, curves.reset_index(drop=True)))}
    write_json(paper / TABLES, found)
