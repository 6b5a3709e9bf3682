"""What a sweep shows of its runs, from the files that these write while they train."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from lib.study.config import Study
from lib.study.live import live_file
from lib.workflow import watch
from lib.workflow.watch import RECENT, Board, WatchedRun, clock


def append(file: Path, *rows: tuple[object, ...]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as text:
        text.writelines(",".join(map(str, row)) + "\n" for row in rows)


def steps(first: int, last: int, loss: float = 2.0, norm: object = 1.0) -> list[tuple[object, ...]]:
    """One step each half second, of 64 tokens."""
    return [(step, loss, norm, 64 * step, 0.5 * step) for step in range(first, last + 1)]


@pytest.fixture
def run(tmp_path: Path) -> WatchedRun:
    return WatchedRun(tmp_path / "live.csv", 200, rise=0.5)


def test_speed_and_time_left_are_those_of_the_last_steps(run: WatchedRun) -> None:
    assert run.read() == []
    assert run.cells()[0] == "starts"
    append(run.file, *steps(1, 1))
    assert run.read() == []
    assert run.cells() == ["1/200", "2.000", "1", "–", "–"]
    append(run.file, *steps(2, 80))
    assert run.read() == []
    assert run.speed == 128.0
    assert run.left == 60.0
    assert run.cells() == ["80/200", "2.000", "1", "128", "1:00"]
    append(run.file, *steps(81, 200))
    run.read()
    assert run.cells()[-1] == "measures"


def test_a_line_is_read_once_it_is_whole(run: WatchedRun) -> None:
    run.file.write_text("1,2.5,1.0,64,0.5\n2,2.2", "utf-8")
    run.read()
    assert run.step == 1
    run.file.write_text("1,2.5,1.0,64,0.5\n2,2.25,1.0,128,1.0\n", "utf-8")
    run.read()
    assert (run.step, run.loss) == (2, 2.25)


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
def test_each_kind_of_trouble_is_told_once_and_at_its_first_step(
    run: WatchedRun, rows: list[tuple[object, ...]], warnings: list[str]
) -> None:
    found = []
    for row in rows:  # as they come
        append(run.file, row)
        found += run.read()
    assert found == warnings
    at_once = WatchedRun(run.file, 200, rise=0.5)
    assert sorted(at_once.read()) == sorted(warnings)


def test_a_run_taken_up_again_is_timed_anew(run: WatchedRun) -> None:
    append(run.file, *steps(1, 60))
    append(run.file, *((step, 2.0, 1.0, 64 * step, 2.0 * (step - 50)) for step in range(51, 61)))
    run.read()
    assert run.speed == 32.0
    assert run.left == 280.0


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
    monkeypatch.setattr(watch, "load_plan", lambda study: None)
    assert Board([tiny_study]).rises == {"tiny": 0.5}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3661, "1:01:01"), (math.nan, "–")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
