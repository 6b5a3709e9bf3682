"""How far a sweep is, as Snakemake itself tells it, and what its runs write while they train."""

import io
import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lib.study.config import Study
from lib.study.paths import ROOT
from lib.study.result import live_file, read_live
from lib.workflow import progress
from lib.workflow.progress import RECENT, Board, Recorder, cells, clock, follow, trouble

SNAKEFILE = """
import logging
from pathlib import Path
from lib.workflow.progress import Recorder

logging.getLogger("snakemake.logging").addHandler(Recorder(Path("progress.json")))

rule all:
    input: "good", "bad"

rule good:
    output: "good"
    shell: "touch {output}"

rule bad:
    output: "bad"
    log: "bad.log"
    shell: "echo why > {log}; test -e mended && touch {output}"
"""


def sweep(folder: Path) -> "subprocess.Popen[bytes]":
    (folder / "Snakefile").write_text(SNAKEFILE, "utf-8")
    (folder / "progress.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going", "--quiet", "all"]
    return subprocess.Popen(command, cwd=folder, env={"PATH": "/bin", "PYTHONPATH": str(ROOT)})


@pytest.mark.slow
def test_snakemakes_events_are_followed_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = follow(sweep(tmp_path), tmp_path / "progress.json")
    assert failed == ({"bad.log": ""}, False)
    assert "\n1/3 steps done in 0:" in capsys.readouterr().out
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "done": 1,
        "total": 3,
        "failed": {"bad.log": ""},  # once, though Snakemake repeats its errors at its end
        "running": {},
    }

    (tmp_path / "mended").touch()
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert "\n2/2 steps done in 0:" in capsys.readouterr().out
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert capsys.readouterr().out.endswith("Nothing to do: everything is up to date.\n")


def test_jobs_are_listed_from_their_beginning_to_their_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "progress.json")
    seen = []
    for event in (
        {"event": "job_info", "jobid": 1, "log": ["a.ipynb"]},
        {"event": "job_info", "jobid": 2, "log": []},
        {"event": "job_info", "jobid": 3, "log": ["b.ipynb"]},
        {"event": "job_finished", "job_id": 1},
        {"event": "job_error", "jobid": 3, "log": ["b.ipynb", None, "no/such/slurm.log"]},
    ):
        recorder.emit(logging.makeLogRecord(event))
        progress = json.loads((tmp_path / "progress.json").read_text())
        seen.append(list(progress["running"].values()))
    assert seen == [["a.ipynb"], ["a.ipynb"], ["a.ipynb", "b.ipynb"], ["b.ipynb"], []]
    assert progress["failed"] == {"b.ipynb": ""}


def append(file: Path, *rows: tuple[object, ...]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as text:
        text.writelines(",".join(map(str, row)) + "\n" for row in rows)


def steps(first: int, last: int, loss: float = 2.0, norm: object = 1.0) -> list[tuple[object, ...]]:
    """One step each half second, of 64 tokens."""
    return [(step, loss, norm, 64 * step, 0.5 * step) for step in range(first, last + 1)]


def read(file: Path) -> tuple[list[str], list[str]]:
    """What is shown of the run, of 200 steps, that writes a live file, and what is warned of."""
    steps = read_live(file.parent)
    return cells(steps, 200), list(trouble(steps, 0.5).values())


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return live_file(tmp_path)


def test_speed_and_time_left_are_those_of_the_last_steps(live: Path) -> None:
    assert read(live) == (["starts"], [])
    append(live, *steps(1, 1))
    assert read(live) == (["1/200", "2.000", "1", "–", "–"], [])
    append(live, *steps(2, 80))
    assert read(live) == (["80/200", "2.000", "1", "128", "1:00"], [])
    append(live, *steps(81, 200))
    assert read(live)[0][-1] == "measures"


def test_a_line_is_read_once_it_is_whole(live: Path) -> None:
    live.write_text("1,2.5,1.0,64,0.5\n2,2.2", "utf-8")
    assert read(live)[0][:2] == ["1/200", "2.500"]
    live.write_text("1,2.5,1.0,64,0.5\n2,2.25,1.0,128,1.0\n", "utf-8")
    assert read(live)[0][:2] == ["2/200", "2.250"]


CALM = steps(1, 60)
RISES = "its loss is {}, {} nats above its lowest so far at step {}"
EXPLODES = "its gradient norm is {0}, {0} times the usual at step 61"
NOT_FINITE = "its loss or gradient is not finite at step 4"


@pytest.mark.parametrize(
    ("rows", "warnings"),
    [
        (CALM + steps(61, 62, loss=2.5), []),  # not above the threshold
        (CALM + steps(61, 62, loss=2.51), [RISES.format("2.51", "0.51", 61)]),
        (steps(1, 9) + steps(10, 10, loss=3.0), [RISES.format("3.00", "1.00", 10)]),
        (steps(1, 9, loss=4.0) + steps(10, 10, loss=3.0), []),
        (CALM + steps(61, 61, norm=10.0), []),
        (CALM + steps(61, 61, norm=12.0), [EXPLODES.format(12)]),
        (steps(1, RECENT - 1) + steps(RECENT, RECENT, norm=99.0), []),  # what is usual?
        (steps(1, 3) + steps(4, 4, loss=math.nan), [NOT_FINITE]),
        (steps(1, 3) + steps(4, 4, norm=math.inf), [NOT_FINITE]),
        (steps(1, 3) + steps(4, 4, norm=""), []),  # a step that fp16 skipped
        (
            CALM + steps(61, 70, loss=9.0, norm=50.0),
            [RISES.format("9.00", "7.00", 61), EXPLODES.format(50)],
        ),
    ],
)
def test_each_kind_of_trouble_is_found_at_its_first_step(
    live: Path, rows: list[tuple[object, ...]], warnings: list[str]
) -> None:
    found: list[str] = []
    for row in rows:  # as they come
        append(live, row)
        before, found = found, read(live)[1]
        assert set(before) <= set(found)
    assert found == warnings


def test_a_run_taken_up_again_is_timed_anew(live: Path) -> None:
    append(live, *steps(1, 60))
    append(live, *((step, 2.0, 1.0, 64 * step, 2.0 * (step - 50)) for step in range(51, 61)))
    assert read(live)[0][-2:] == ["32", "4:40"]


@pytest.fixture
def board(tiny_study: Study) -> Board:
    return Board([tiny_study])


def test_a_board_shows_a_line_per_notebook_in_execution(board: Board, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "tiny"
    run = place / "layernorm" / "seed-1"
    append(live_file(run), *steps(1, 4))
    notebooks = [str(run / "02_train.ipynb"), str(place / "01_data.ipynb"), "runs/paper.log"]
    assert board.update(notebooks) == []
    assert board.lines() == [
        "tiny · layernorm · seed 1: "
        "step 4/12, loss 2.000, gradient norm 1, tokens/s 128, left 0:04",
        "tiny · 01_data: runs",
    ]
    append(live_file(run), *steps(5, 5, loss=2.6))
    (warning,) = board.update(notebooks)
    assert warning.startswith("Warning: tiny · layernorm · seed 1: its loss is 2.60, 0.60 nats")
    assert board.update(notebooks) == []
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(board.table())
    shown = console.file.getvalue().splitlines()
    assert shown[0].split() == ["step", "loss", "gradient", "tokens/s", "left"]
    assert " ".join(shown[1].split()) == "tiny · layernorm · seed 1 5/12 2.600 1 128 0:04"
    assert all(len(line) <= 80 for line in shown)
    assert board.update([]) == []
    assert board.lines() == []


def test_the_threshold_is_that_of_the_studys_plan(
    tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Board([tiny_study]).rises == {"tiny": 0.5}
    monkeypatch.setattr(progress, "load_plan", lambda study: None)
    assert Board([tiny_study]).rises == {"tiny": 0.5}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3661, "1:01:01"), (math.nan, "–")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
