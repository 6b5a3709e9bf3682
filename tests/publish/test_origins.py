"""Whether runs come from what they name."""

import json
from collections.abc import Callable
from datetime import datetime
from math import hypot
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lib.publish import archive, origins, replay
from lib.publish.agreement import begun
from lib.publish.archive import read_runs, record_folder
from lib.publish.origins import (
    copied,
    untold_versions,
    wrong_code,
    wrong_dates,
    wrong_provenance,
)
from lib.publish.recomputed import named, place
from lib.study.config import Study
from lib.study.errors import read_yaml
from lib.study.fields import ModelConfig
from lib.study.raw import Folder
from tests.study.samples import Parameters
from tests.study.test_attempts import Lab
from tests.study.test_attempts import named as version

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
        notebook = place(STUDY, recorded[0]) / "02_train.ipynb"
        return recorded[0]["provenance"]["trained"] | {
            "standing": begun(notebook)[0],
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
        (
            lambda runs: runs[1]["provenance"]["trained"].update(plan="0" * 64),
            ["names a plan that is not that of commit early"],
        ),
    ],
    ids=["a run left out", "a run that nobody asked for", "a plan of later"],
)
def test_runs_are_those_that_their_commits_ask_for(
    change: Callable[[Runs], object], words: list[str], runs: Runs
) -> None:
    change(runs)
    faults = list(wrong_code(STUDY, runs))
    assert len(faults) == len(words)
    assert all(fault.endswith(end) for fault, end in zip(faults, words, strict=True)), faults


def test_a_notebook_says_the_standing_that_its_commit_gives(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "begun", lambda path: ["CONFIRMATORY: study 'example'"])
    faults = list(wrong_code(STUDY, runs))
    assert len(faults) == len(runs)
    assert all("its notebook says another standing than commit" in fault for fault in faults)


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
    assert fault.startswith(f"its verdict stands as confirmatory, but {version(seen)}")
    lab.write("papers/one/results/trial.verdict.json", {"standing": "EXPLORATORY"})
    assert list(untold_versions("trial", runs)) == []


def test_a_run_takes_no_longer_than_from_its_start_to_its_end() -> None:
    run = read_runs(STUDY)[0]
    run["seconds"]["training"] += 1e6
    assert list(wrong_provenance(STUDY, run)) == [
        "it says that it took longer than from its start to its end"
    ]


@pytest.mark.parametrize("committed", ["2020-01-01", "2100-01-01"])
def test_runs_and_notebooks_are_dated_after_their_commit(
    committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, date = read_runs(STUDY), datetime.fromisoformat(f"{committed}T00:00:00+00:00")
    monkeypatch.setattr(origins, "git", lambda *words: str(date.timestamp()))
    monkeypatch.setattr(origins, "is_checkout", lambda: True)
    faults = list(wrong_dates(STUDY, runs))
    later = committed == "2100-01-01"
    assert len(faults) == (2 * len(runs) + 3 if later else 0)  # trained, measured; 01, 03, 04
    assert all("is dated before commit" in fault for fault in faults)


@pytest.mark.parametrize("name", ["02_train", "03_analysis"])
def test_what_is_made_of_something_is_dated_after_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = origins._times

    def later(path: Path) -> tuple[float, float]:
        start, end = times(path)
        return start, end + (1e9 if path.stem == name else 0)

    monkeypatch.setattr(origins, "_times", later)
    faults = list(wrong_dates(STUDY, read_runs(STUDY)))
    late = {"02_train": "03_analysis", "03_analysis": "04_figures"}[name]
    assert faults[0] == f"{late}.ipynb is dated before what it was made from was there"


def test_no_two_recorded_runs_are_copies() -> None:
    assert list(copied(STUDY, read_runs(STUDY))) == []


@pytest.mark.parametrize(
    ("table", "column"), [(n, c) for n, cs in origins._OWN.items() for c in cs]
)
def test_a_run_with_the_numbers_of_another_seed_is_named(
    table: str, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, read = read_runs(STUDY), origins.read_raw_file
    one, other = runs[0], next(run for run in runs if run["seed"] != runs[0]["seed"])
    own = read(origins.raw_folder(place(STUDY, one) / "02_train.ipynb"), table)[column]

    def forged(folder: Folder, name: str) -> pd.DataFrame:
        found = read(folder, name)
        mine = str(folder).rstrip("/").endswith(f"{other['arm']}/seed-{other['seed']}")
        if not mine or name != table:
            return found
        return found.reindex(range(len(own))).assign(**{column: own})

    monkeypatch.setattr(origins, "read_raw_file", forged)
    assert list(copied(STUDY, runs)) == [f"{named(other)} has the {column} of {named(one)}"]


def weights_of(runs: Runs, change: Callable[[dict[str, Any]], object]) -> list[str]:
    """Give the second arm the first one's weights, and both parameters that differ in one thing."""
    one, other = runs[0], next(r for r in runs if r["arm"] != runs[0]["arm"])
    other.update(final_weights=one["final_weights"], config=json.loads(json.dumps(one["config"])))
    change(other["config"])
    return list(copied(STUDY, [one, other]))


def test_multipliers_and_norms_that_come_to_the_same_are_one_training() -> None:
    def alike(one: dict[str, Any], other: dict[str, Any], **both: Any) -> bool:
        made = (origins._multiplied(ModelConfig(**both, **own)) for own in (one, other))
        return next(made) == next(made)

    layernorm: dict[str, Any] = {"embedding_norm": "layernorm"}
    token = {"embedding_norm_on": "token"}
    assert alike(layernorm, layernorm | token, positions="rotary")
    assert not alike(layernorm, layernorm | token)
    for rms, both in (
        (hypot(0.02, 0.5), {"position_std": 0.5}),
        (0.02, {"positions": "rotary"}),
        (hypot(0.02, 0.02), {}),
    ):
        scale = {"embedding_norm": "scale", "embedding_rms": rms}
        assert alike({}, scale, **both)
        assert not alike({}, scale | {"embedding_rms": 2 * rms}, **both)


@pytest.mark.parametrize(
    "started", ["2026-11-21T00:00:00+14:00", "2026-11-21 00:00:00", "20261121 00:00:00 UTC", None]
)
def test_a_time_has_the_form_in_which_it_is_written(started: str | None) -> None:
    run = read_runs(STUDY)[0]
    run["provenance"]["trained"]["started"] = started
    (fault,) = wrong_provenance(STUDY, run)
    assert fault == f"started is {started!r}, and no time like 2026-01-31 23:59:59 UTC"


@pytest.mark.parametrize(
    ("change", "alike"),
    {
        "evaluated otherwise": (lambda c: c["evaluation"].update(items_per_task=7), True),
        "a clip above every norm": (lambda c: c["training"].update(gradient_clip=1e9), True),
        "a clip below them": (lambda c: c["training"].update(gradient_clip=1e-3), False),
        "a warm-up that gives other rates": (None, False),
        "another decay": (lambda c: c["training"].update(weight_decay=0.0), False),
        "another width": (lambda c: c["model"].update(n_embd=32), False),
        "a layer": (lambda c: c["model"].update(embedding_norm="layernorm"), False),
        "a multiplier": (lambda c: c["model"].update(embedding_norm="scale"), False),
        "a multiplier of stream and branches": (
            lambda c: c["model"].update(
                embedding_norm="scale", embedding_rms=32 * hypot(0.02, 0.02), branch_multiplier=32.0
            ),
            True,
        ),
        "what no norm reads": (lambda c: c["model"].update(embedding_norm_on="token"), True),
        "a scale of 1 of the tokens": (
            lambda c: c["model"].update(
                embedding_norm="scale", embedding_rms=0.02, embedding_norm_on="token"
            ),
            True,
        ),
        "a scale of tokens alone": (
            lambda c: c["model"].update(
                embedding_norm="scale", embedding_rms=0.64, embedding_norm_on="token",
                branch_multiplier=32.0,
            ),
            False,
        ),
        "branches multiplied alone": (
            lambda c: c["model"].update(branch_multiplier=32.0), False
        ),
    }.values(),
)  # fmt: skip
def test_arms_of_a_seed_have_equal_weights_only_where_they_are_one_training(
    change: Callable[[dict[str, Any]], object] | None, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = origins.read_raw_file
    if change is not None:  # the rates of both arms are those of the first

        def constant(folder: Folder, name: str) -> pd.DataFrame:
            found = read(folder, name)
            return found.assign(learning_rate=1e-3) if name == "trace" else found

        monkeypatch.setattr(origins, "read_raw_file", constant)
    faults = weights_of(read_runs(STUDY), change or (lambda config: None))
    assert bool(faults) is not alike
    assert all(" has the final weights of run " in fault for fault in faults)
