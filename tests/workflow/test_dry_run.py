"""What `-n` says."""

import math
from pathlib import Path

import pytest

from lib.results import live_file
from lib.study import io as paths
from lib.study.io import run_folder, write_json
from lib.study.study import Study
from lib.workflow import dry_run
from lib.workflow.dry_run import print_dry_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    return tmp_path


def done(study: Study, arm: str, seed: int, seconds: float) -> Path:
    """Lay out a run that is done, and took so long; return its result."""
    folder = run_folder(study.name, arm, seed)
    stamp = {"metadata": {"study": {"status": "completed", "seconds": seconds}}}
    write_json(folder / "02_train.ipynb", stamp)
    write_json(folder / "result.json", {})
    return folder / "result.json"


def test_which_runs_why_and_how_long(
    runs: Path, tiny_study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    done(tiny_study, "none", 0, 20.0)
    stale = {done(tiny_study, "none", 1, 40.0): "plan is 'b' and was 'a': trained anew"}
    live = live_file(run_folder("tiny", "layernorm", 1))
    live.parent.mkdir(parents=True)
    live.write_text("1,2.5,1.0,64,0.5\n2,2.2,1.0,128,1.0\n", "utf-8")
    print_dry_run([tiny_study], stale, {"train": 3, "analysis": 1, "paper": 2}, 2)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "tiny: would make 3 of 4 runs",
        "",
        "arm        seeds  why",
        "─" * 56,
        "none       1      plan is 'b' and was 'a': trained anew",
        "layernorm  0      not made yet",
        "layernorm  1      stopped at step 2 of 12: continues",
        "",
        "Then: 03_analysis, paper × 2.",
        # Three runs of 20 s, the last of them alone, 6 s, and twice 10; the stale one took longer.
        "About 1:06 with 2 at once, by runs of tiny that are done.",
    ]


def test_without_a_run_that_is_done_a_few_steps_tell_how_long_it_is_at_least(
    runs: Path,
    tiny_study: Study,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hours = {"core-hours here": 4 * 50.0 / 3600, "H100-hours": 1.0}
    said = type("", (), {"hours": hours})
    monkeypatch.setattr(dry_run, "estimate", lambda study: said)
    print_dry_run([tiny_study], {}, {"train": 2}, 2)  # with --until or the like
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: would make 4 of 4 runs"
    assert lines[-2:] == [
        "The flags ask for 2 runs.",
        "At least 0:50 with 2 at once, by training steps made now, without measuring.",
    ]


@pytest.mark.parametrize(
    ("lengths", "at_once", "seconds"),
    [
        ([2.0, 2.0, 3.0, 2.0, 3.0], 2, 7.0),  # 3 + 2, 3 + 2, then 2
        ([1.0] * 4 + [10.0], 2, 10.0),  # the longest last would end after 12
        ([30.0] * 3, 8, 30.0),
        ([5.0, 6.0], 1, 11.0),
        ([], 2, 0.0),
    ],
)
def test_the_longest_run_begins_first_and_the_last_to_end_tells(
    lengths: list[float], at_once: int, seconds: float
) -> None:
    assert dry_run.makespan(lengths, at_once) == seconds
    assert math.isnan(dry_run.makespan([*lengths, math.nan], at_once))


def test_nothing_is_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_dry_run([], {}, {}, 2)
    assert capsys.readouterr().out == "Nothing to do: everything is up to date.\n"


@pytest.mark.parametrize(
    ("iterations", "at_once", "first"),
    [
        ([12, 120], 1, [120]),
        ([12], 2, []),
        ([10, 50, 60], 3, [50, 60]),  # 60 alone first, and a run of 50 may begin at 130
        ([12, 24, 60], 3, [60]),
    ],
)
def test_a_sweep_begins_with_those_runs_that_end_it_soonest(
    iterations: list[int], at_once: int, first: list[int], runs: Path, tiny_study: Study
) -> None:
    factors = {"training.iterations": iterations, "training.learning_rate": [1e-3, 1.1e-3]}
    study = tiny_study.model_copy(update={"factors": factors, "seeds": [0, 1]})
    study = Study.model_validate(study.model_dump())
    arms = {arm.id: arm.config.training.iterations for arm in study.arms()}
    found = dry_run.longest_runs([study], {}, at_once)
    assert sorted({arms[path.parent.parent.name] for path in found}) == first
    assert len(found) == 4 * len(first)  # a result for each rate and seed


def test_only_runs_that_it_makes_are_begun_with(runs: Path, tiny_study: Study) -> None:
    factors = {"training.iterations": [12, 120]}
    study = Study.model_validate(tiny_study.model_dump() | {"factors": factors})
    stale = done(study, "iterations=120", 0, 1.0)
    done(study, "iterations=120", 1, 1.0)
    assert dry_run.longest_runs([study], {}, 2) == []  # what is left is equally long
    assert dry_run.longest_runs([study], {stale: "its text has changed"}, 2) == [stale]
