"""A folder of parameters with a plan that is frozen for one study."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lib.study.config import load_study
from lib.study.digests import analysing_digest, measuring_digest, training_digest
from lib.study.paths import PLANS
from lib.study.plan import Plan
from lib.study.standing import parameters_digest

LISTED: dict[str, Any] = yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8"))
"""The plan in the repository, which lists its seeds."""
CONTENT = {name: value for name, value in LISTED.items() if name != "seeds"} | {
    "confirmatory": ["trial"],
    "deviations": [],
}
"""A plan whose study's seeds are drawn."""
STUDY: dict[str, Any] = {
    "name": "trial",
    "factors": {"model.embedding_norm": ["none", "layernorm"]},
    "seeds": {"count": 3},
    "plan": "p.yaml",
}
TEXT, SUITE = "c" * 64, "d" * 64


class Parameters:
    """A folder in place of `params/`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "params"
        self.plans = self.folder / "plans"
        self.plans.mkdir(parents=True)
        for module in ("config", "standing"):
            monkeypatch.setattr(f"lib.study.{module}.PARAMS", self.folder)
        for module in ("plan", "history"):
            monkeypatch.setattr(f"lib.study.{module}.PLANS", self.plans)
        monkeypatch.setattr("lib.study.git.ROOT", folder)

    def study(self, **changes: Any) -> None:
        content = STUDY | changes
        path = self.folder / f"{content['name']}.yaml"
        path.write_text(yaml.safe_dump(content), "utf-8")

    def plan(self, file: str = "p.yaml", **changes: Any) -> Plan:
        content = CONTENT | changes
        (self.plans / file).write_text(yaml.safe_dump(content), "utf-8")
        return Plan.model_validate(content)

    def frozen(self) -> dict[str, Any]:
        """What freezing the study as it stands writes into its plan."""
        return {
            "seeds": 3,
            "used_seeds": [0, 1],
            "parameters": parameters_digest(load_study("trial", undrawn=True)),
            "corpus": {"tinyshakespeare": TEXT},
            "suite": [SUITE],
            "training_digest": training_digest(),
            "measuring_digest": measuring_digest(),
            "analysing_digest": analysing_digest(),
        }


def runs_as_frozen(**changes: Any) -> list[dict[str, Any]]:
    """One run, as its result says what it was made from."""
    run = {
        "status": "completed",
        "config": {"corpus": {"source": "tinyshakespeare"}},
        "corpus_sha256": TEXT,
        "suite_hash": SUITE,
        "provenance": {
            "trained": {"training_digest": training_digest()},
            "executed": {"measuring_digest": measuring_digest()},
        },
    }
    return [run | changes]
