"""Whether runs come from what they name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.publish import archive, replay
from lib.publish.archive import read_runs, record_folder
from lib.publish.origins import untold_versions, wrong_code, wrong_provenance
from lib.study.config import Study
from lib.study.errors import read_yaml
from tests.study.samples import Parameters
from tests.study.test_attempts import Lab, named

Runs = list[dict[str, Any]]
STUDY = "example"
DESIGN = Study.model_validate(read_yaml(record_folder(STUDY) / "parameters.yaml"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Recorded runs, of which all but the last seed's name commit `early`, without that seed."""
    recorded, last = read_runs(STUDY), DESIGN.seeds[-1]
    for run in recorded:
        for account in run["provenance"].values():
            account["commit"] = "late" if run["seed"] == last else "early"

    def asked(study: str, account: dict[str, Any], script: str) -> dict[str, Any]:
        early = {"seeds": DESIGN.seeds[:-1]} if account["commit"] == "early" else {}
        there = DESIGN.model_copy(update=early)
        return recorded[0]["provenance"]["trained"] | {
            "parameters": there.model_dump(mode="json", exclude_defaults=True),
            "runs": [[arm.id, seed] for arm in there.arms() for seed in there.seeds],
        }

    monkeypatch.setattr(replay, "committed", lambda account: account["commit"])
    monkeypatch.setattr(replay, "asked", asked)
    return recorded


def test_a_seed_may_be_added_after_the_first_runs(runs: Runs) -> None:
    assert list(wrong_code(STUDY, runs)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs.pop(0), ["is left out"] * 3),  # of either commit, and the analysis'
        (
            lambda runs: [a.update(commit="early") for a in runs[-1]["provenance"].values()],
            ["seed 3 names commit early, which does not ask for it"] * 2,
        ),
    ],
    ids=["a run left out", "a run that nobody asked for"],
)
def test_runs_are_those_that_their_commits_ask_for(
    change: Callable[[Runs], object], words: list[str], runs: Runs
) -> None:
    change(runs)
    faults = list(wrong_code(STUDY, runs))
    assert len(faults) == len(words)
    assert all(fault.endswith(end) for fault, end in zip(faults, words, strict=True)), faults


def test_finished_weights_may_be_measured_anew_with_another_suite_and_no_other_training() -> None:
    run = read_runs(STUDY)[0]
    executed = run["provenance"]["executed"]
    assert list(wrong_provenance(STUDY, run)) == []
    run["config"]["evaluation"]["items_per_task"] += 1
    run["suite_hash"] = "0" * 64
    assert list(wrong_provenance(STUDY, run)) == [
        "it was trained with other parameters than its result says",
        "it was asked another suite than was prepared for it",
    ]
    executed["from_checkpoint"] = True
    assert list(wrong_provenance(STUDY, run)) == []
    run["config"]["training"]["iterations"] += 1
    assert list(wrong_provenance(STUDY, run)) == [
        "it was trained with other parameters than its result says"
    ]


def test_a_verdict_that_keeps_quiet_about_another_version_of_its_plan_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was reached by code that did not look for one."""
    parameters = Parameters(tmp_path, monkeypatch)
    parameters.study(paper="one")
    lab, papers = Lab(parameters), tmp_path / "papers"
    monkeypatch.setattr(archive, "PAPERS", papers)
    monkeypatch.setattr(archive, "PARAMS", parameters.folder)
    seen = lab.freeze()
    first = lab.train(paper="one")
    lab.archive(first)
    lab.write("papers/one/results/trial.verdict.json", {"standing": "CONFIRMATORY"})
    assert list(untold_versions("trial", first)) == []
    lab.freeze(alpha=0.01)
    runs = lab.train(paper="one")
    (fault,) = untold_versions("trial", runs)
    assert fault.startswith(f"its verdict stands as confirmatory, but {named(seen)}")
    lab.write("papers/one/results/trial.verdict.json", {"standing": "EXPLORATORY"})
    assert list(untold_versions("trial", runs)) == []
