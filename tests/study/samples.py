"""A folder of parameters with a plan that is frozen for one study."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.study.digests import analysing_digest, measuring_digest, training_digest

from lib.study.io import PLANS
from lib.study.plan import Plan
from lib.study.preregistration import parameters_digest
from lib.study.study import load_study
from tests.conftest import run_git

LISTED: dict[str, Any] = yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8"))
"""The plan in the repository, which lists its seeds."""
CONTENT = {name: value for name, value in LISTED.items() if name != "seeds"} | {
    "confirmatory": ["trial"],
    "deviations": [],
    "instability": {"noise": {"times": 12.0, "window": 50}},
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
        shutil.copytree(PLANS / "rules", self.plans / "rules")
        for module in ("config", "claim", "inputs"):
            monkeypatch.setattr(f"lib.study.{module}.PARAMS", self.folder)
        for module in ("plan", "history"):
            monkeypatch.setattr(f"lib.study.{module}.PLANS", self.plans)
        for name in ("PAPERS", "RUNS"):
            monkeypatch.setattr(f"lib.study.preregistration.{name}", folder / name.lower())
        monkeypatch.setattr("lib.study.code.ROOT", folder)

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


class Repository:
    """A git repository of such parameters, whose every commit is made a minute after the last."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.top = parameters, parameters.folder.parent
        self.minutes = 0
        self.git("init", "-q", "-b", "main")

    def now(self) -> str:
        self.minutes += 1
        return f"2026-12-01 10:{self.minutes:02}:00"

    def git(self, *words: str) -> str:
        return run_git(self.top, *words, GIT_COMMITTER_DATE=f"{self.now()} +0000")

    def commit(self, **changes: Any) -> tuple[str, Plan]:
        plan = self.parameters.plan(**changes)
        return self.commit_all(), plan

    def commit_all(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--allow-empty", "-m", "work")
        return self.git("rev-parse", "HEAD")


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
