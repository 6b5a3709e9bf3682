"""A study's analysis is rehearsed on made-up results before anything trains, under whatever history
its plan has in git."""

import functools
from pathlib import Path
from typing import Any

import pytest

from lib.analysis import tables
from lib.study import paths
from lib.study.config import Study, load_study
from lib.study.errors import UserError
from lib.study.paths import run_folder
from lib.study.raw import read_raw
from lib.study.record import RunResult
from lib.workflow import sweep
from lib.workflow.made_up import made_up
from lib.workflow.rehearsal import perform, rehearse
from tests.conftest import TINY
from tests.run.samples import finished_study
from tests.study.samples import Parameters
from tests.study.test_history import ONE, TWO, Repository

SMALL = {name: TINY[name] for name in ("model", "training", "machine")} | {
    "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0}
}
SUITE = {"evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 20}}
DRAFT = {"confirmatory": [], "primary": ["perplexity"]}
FAMILY = {
    "contrasts": [["layernorm", "none"]],
    "measures": ["perplexity", "macro_accuracy_zero_shot"],
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A study that is held against a plan, in git."""
    parameters = Parameters(tmp_path, monkeypatch)
    parameters.study(seeds=[0, 1, 2], **SMALL)
    return Repository(parameters)


def freeze(repository: Repository, **changes: Any) -> dict[str, Any]:
    """Have the seeds drawn, commit a plan frozen for that, and return what it holds beside the
    changes."""
    repository.parameters.study(**SMALL)
    held = {"frozen": {"trial": repository.parameters.frozen()}}
    repository.commit(**held | changes)
    return held


@pytest.mark.parametrize(
    "history",
    [
        "uncommitted",
        "draft",
        "lists",
        "nested",
        "frozen",
        "frozen twice",
        "deviations",
        "unreadable",
    ],
)
def test_03_is_executed_under_every_history_of_a_plan(history: str, repository: Repository) -> None:
    if history == "uncommitted":
        repository.parameters.plan()
    elif history == "unreadable":
        (repository.parameters.plans / "p.yaml").write_text("a: [", "utf-8")
        repository.commit_all()
        repository.commit()
    else:
        repository.commit(**DRAFT)
    if history == "lists":
        repository.commit(
            secondary=["ece", "loss"], families={"first": [["layernorm", "none"]] * 2}
        )
    elif history == "nested":
        repository.commit(families={"first": FAMILY}, margins={"perplexity": 0.1})
        repository.commit(families={"first": FAMILY | {"test": "exact"}, "second": FAMILY})
    elif history in ("frozen", "frozen twice", "deviations"):
        held = freeze(repository)
        if history == "frozen twice":
            freeze(repository, frozen={"trial": held["frozen"]["trial"] | {"used_seeds": [7, 8]}})
        if history == "deviations":
            repository.commit(**held, deviations=[ONE])
            repository.parameters.plan(**held, deviations=[ONE, TWO])
    perform(load_study("trial"), trouble=False, figures=False)
