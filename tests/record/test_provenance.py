"""Whether runs come from what they name."""

import json
from collections.abc import Callable
from datetime import datetime
from math import hypot
from typing import Any

import pytest

from lib.record import provenance
from lib.record.provenance import (
    check_commits,
    check_copies,
    check_end,
    check_origins,
    check_times,
    check_versions,
)
from lib.record.record import Record, run_name
from lib.record.runs import printed_parameters
from lib.study.plan import Commit
from lib.study.schema import ModelConfig

Runs = list[dict[str, Any]]
STUDY = "example"
DESIGN = Record(STUDY).parameters


def wrong_account(run: dict[str, Any]) -> list[str]:
    """The faults of one run's account, without its name."""
    record = Record(STUDY)
    record.runs = [run]
    return [fault.partition(": ")[2] for fault in check_origins(record)]


def read_runs(study: str) -> Runs:
    return Record(study).runs


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """A record of which all runs but the last seed's name commit `early`, without that seed."""
    record, last = Record(STUDY), DESIGN.seeds[-1]
    for run in record.runs:
        for account in run["provenance"].values():
            account["commit"] = "late" if run["seed"] == last else "early"
    first = json.loads(json.dumps(record.runs[0]["provenance"]["trained"]))
    standing = printed_parameters(record.read(record.run_notebook(record.runs[0])))[0]

    def state(account: dict[str, Any], command: str, _: Record) -> dict[str, Any]:
        assert command == "state"
        early = {"seeds": DESIGN.seeds[:-1]} if account["commit"] == "early" else {}
        there = DESIGN.model_copy(update=early)
        return first | {
            "standing": standing,
            "parameters": there.model_dump(mode="json", exclude_defaults=True),
            "runs": [[arm.id, seed] for arm in there.arms() for seed in there.seeds],
        }

    monkeypatch.setattr(provenance, "committed", lambda account: account["commit"])
    monkeypatch.setattr(provenance, "ask_code_of", state)
    return record


def test_a_seed_may_be_added_after_the_first_runs(record: Record) -> None:
    assert list(check_commits(record)) == []


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
        (
            lambda runs: runs[0]["provenance"]["trained"].update(training_digest="0" * 64),
            [
                "names a training_digest (trained) that is not that of commit early",
                "its runs have different training_digests: {}, {}",
            ],
        ),
    ],
    ids=["a run left out", "a run that nobody asked for", "a plan of later", "other code"],
)
def test_runs_are_those_that_their_commits_ask_for(
    change: Callable[[Runs], object], words: list[str], record: Record
) -> None:
    words = [word.format(*map(run_name, record.runs[:2])) for word in words]
    change(record.runs)
    faults = list(check_commits(record))
    assert len(faults) == len(words)
    assert all(fault.endswith(end) for fault, end in zip(faults, words, strict=True)), faults


def test_a_notebook_says_the_standing_that_its_commit_gives(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        provenance, "printed_parameters", lambda notebook: ["CONFIRMATORY: study 'example'"]
    )
    faults = list(check_commits(record))
    assert len(faults) == len(record.runs)
    assert all("its notebook says another standing than commit" in fault for fault in faults)


def test_runs_of_code_that_was_not_committed_are_told(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    list(check_commits(record))
    assert capsys.readouterr().out == ""
    record.runs[0]["provenance"]["trained"]["clean"] = False
    list(check_commits(record))
    said = f"example: the code of 1 of {len(record.runs)} runs was not committed"
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize("name", ["variant", "baseline", "setting", "levels"])
def test_a_run_has_the_labels_of_its_arm(name: str) -> None:
    run = read_runs(STUDY)[0]
    run[name] = "better"
    (fault,) = wrong_account(run)
    assert fault.startswith(f"its {name} is 'better', and of its arm ")


def test_finished_weights_may_be_measured_anew_with_another_suite_and_no_other_training() -> None:
    run = read_runs(STUDY)[0]
    executed = run["provenance"]["executed"]
    assert wrong_account(run) == []
    run["config"]["evaluation"]["items_per_task"] += 1
    run["suite_hash"] = "0" * 64
    assert wrong_account(run) == [
        "it was trained with other parameters than its result says",
        "it was asked another suite than was prepared for it",
    ]
    executed["from_checkpoint"] = True
    assert wrong_account(run) == []
    run["config"]["training"]["iterations"] += 1
    assert wrong_account(run) == ["it was trained with other parameters than its result says"]


@pytest.mark.parametrize("standing", ["CONFIRMATORY", "EXPLORATORY"])
def test_a_verdict_that_keeps_quiet_about_another_version_of_its_plan_is_a_fault(
    standing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was reached by code that did not look for one."""
    record = Record(STUDY)
    assert list(check_versions(record)) == []  # it has no plan
    monkeypatch.setattr(provenance, "load_plan", lambda study: "a plan")
    monkeypatch.setattr(provenance, "other_versions", lambda *_: iter(["there were runs"]))
    record.verdict["standing"] = standing
    said = "its verdict stands as confirmatory, but there were runs"
    assert list(check_versions(record)) == ([said] if standing == "CONFIRMATORY" else [])


def test_a_run_takes_no_longer_than_from_its_start_to_its_end() -> None:
    run = read_runs(STUDY)[0]
    run["seconds"]["training"] += 1e6
    assert wrong_account(run) == ["it says that it took longer than from its start to its end"]


@pytest.mark.parametrize("committed", ["2020-01-01", "2100-01-01"])
def test_runs_and_notebooks_are_dated_after_their_commit(
    committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, date = Record(STUDY), datetime.fromisoformat(f"{committed}T00:00:00+00:00")
    monkeypatch.setattr(provenance, "git", lambda *words: str(date.timestamp()))
    monkeypatch.setattr(provenance, "is_checkout", lambda: True)
    faults = list(check_times(record))
    later = committed == "2100-01-01"
    assert len(faults) == (2 * len(record.runs) + 3 if later else 0)  # of runs two; 01, 03, 04
    assert all("is dated before commit" in fault for fault in faults)


@pytest.mark.parametrize("name", ["02_train", "03_analysis"])
def test_what_is_made_of_something_is_dated_after_it(name: str) -> None:
    record = Record(STUDY)
    run = name == "02_train"
    path = record.run_notebook(record.runs[0]) if run else record.notebook(name)
    record.read(path)["metadata"]["papermill"]["end_time"] = "2100-01-01T00:00:00+00:00"
    late = {"02_train": "03_analysis", "03_analysis": "04_figures"}[name]
    faults = list(check_times(record))
    assert f"{late}.ipynb is dated before what it was made from was there" in faults


def test_no_two_recorded_runs_are_copies() -> None:
    assert list(check_copies(Record(STUDY))) == []


@pytest.mark.parametrize(
    ("table", "column"), [(n, c) for n, cs in provenance._OWN.items() for c in cs]
)
def test_a_run_with_the_numbers_of_another_seed_is_named(table: str, column: str) -> None:
    record = Record(STUDY)
    one = record.runs[0]
    other = next(run for run in record.runs if run["seed"] != one["seed"])
    own = record.raw(one)[table][column]
    copied = record.raw(other)[table].reindex(range(len(own))).assign(**{column: own})
    record.raw(other)[table] = copied
    assert list(check_copies(record)) == [f"{run_name(other)} has the {column} of {run_name(one)}"]


def weights_of(record: Record, change: Callable[[dict[str, Any]], object]) -> list[str]:
    """Give the second arm the first one's weights, and both parameters that differ in one thing."""
    one = record.runs[0]
    other = next(run for run in record.runs if run["arm"] != one["arm"])
    other.update(final_weights=one["final_weights"], config=json.loads(json.dumps(one["config"])))
    change(other["config"])
    record.runs = [one, other]
    return list(check_copies(record))


def test_multipliers_and_norms_that_come_to_the_same_are_one_training() -> None:
    def alike(one: dict[str, Any], other: dict[str, Any], **both: Any) -> bool:
        made = (provenance._multiplied(ModelConfig(**both, **own)) for own in (one, other))
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
    (fault,) = wrong_account(run)
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
    change: Callable[[dict[str, Any]], object] | None, alike: bool
) -> None:
    record = Record(STUDY)
    if change is not None:  # the rates of both arms are those of the first
        for run in record.runs:
            record.raw(run)["trace"]["learning_rate"] = 1e-3
    faults = weights_of(record, change or (lambda config: None))
    assert bool(faults) is not alike
    assert all(" has the final weights of run " in fault for fault in faults)


def test_a_study_does_not_end_before_its_looks_decide() -> None:
    """Who leaves out the runs of a later look leaves a verdict that asks for them."""
    record = Record(STUDY)
    n = len(DESIGN.seeds)
    assert list(check_end(record)) == []
    more = {"seeds": [*DESIGN.seeds, 90, 91], "looks": [n, n + 2]}
    record.parameters = DESIGN.model_copy(update=more)
    record.verdict["hypothesis_tests"] = []
    said = f"it ended undecided after {n} seeds, and is looked at again after {n + 2}; rerun it"
    assert list(check_end(record)) == [said]  # an exploratory one runs to its end
    record.verdict["hypothesis_tests"] = [{"answer": "refuted"}, {"answer": "undecided"}]
    assert list(check_end(record)) == [said]
    record.verdict["hypothesis_tests"] = [{"answer": "refuted"}]
    assert list(check_end(record)) == []


def test_a_run_of_a_commit_was_made_by_the_code_of_that_commit() -> None:
    accounts: dict[str, dict[str, Any]] = {
        part: {"code": "c" * 40, "training_digest": "1" * 64, "measuring_digest": "2" * 64}
        for part in ("trained", "executed")
    }
    run = {"arm": "patch", "seed": 0, "provenance": accounts}
    by = Commit(commit="c" * 40, training_digest="1" * 64, measuring_digest="2" * 64)
    assert not list(provenance._other_code(run, by))
    accounts["trained"]["training_digest"] = "3" * 64
    accounts["executed"]["code"] = None
    told = " ".join(provenance._other_code(run, by))
    assert "was trained by other code" in told
    assert "was executed by other code" in told
