"""How far a sweep is, as Snakemake itself tells it, and what its runs write while they train."""

import io
import json
import logging
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table

from lib.analysis.stability import RECENT, WARNING_RULE, training_warnings
from lib.results import live_file, read_live
from lib.study.io import ROOT, write_text
from lib.study.plan import INSTABILITY, Instability
from lib.study.study import Study
from lib.workflow import progress
from lib.workflow.progress import (
    LIVE,
    JobTable,
    Progress,
    ProgressDisplay,
    Recorder,
    cells,
    fitting,
    follow,
    in_words,
    read_progress,
)
from lib.workflow.rehearsal import made_up
from lib.workflow.time_left import Job

SNAKEFILE = """
import logging
from pathlib import Path
from lib.workflow.progress import Recorder

logging.getLogger("snakemake.logging").addHandler(Recorder(Path("progress.json")))

rule all:
    input: "good", "bad"

rule good:
    output: "good"
    log: "good.log"
    shell: "touch {output} {log}"

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
    said = capsys.readouterr().out
    assert "\ngood: done, time 0:0" in said
    assert "\nbad: failed, time 0:0" in said
    assert "\n1/2 jobs done in 0:" in said
    assert "\x1b" not in said
    progress = read_progress(tmp_path / "progress.json")
    assert (progress.jobs, progress.running) == ({"good": 1, "bad": 1}, {})
    has_failed = {job.log: job.has_failed for job in progress.ended}
    assert has_failed == {"good.log": False, "bad.log": True}
    assert progress.failed == {
        "bad.log": ""
    }  # once, though Snakemake repeats its errors at its end

    (tmp_path / "mended").touch()
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert "\n1/1 jobs done in 0:" in capsys.readouterr().out
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert capsys.readouterr().out.endswith("Nothing to do: everything is up to date.\n")


@pytest.mark.parametrize(("planned", "is_stopped"), [({"run": 1}, True), ({}, False)])
def test_a_sweep_told_to_end_before_its_first_job_is_stopped(
    planned: dict[str, int], is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "CLOSING", 0.5)
    file = tmp_path / "progress.json"
    file.write_text(json.dumps(["run_info", planned]) + "\n", "utf-8")
    ends_well = "import signal, sys; signal.sigwait([signal.SIGTERM])"
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # the process inherits it
    process = subprocess.Popen([sys.executable, "-c", ends_well])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    assert follow(process, file, hours=4 / 3600) == ({}, is_stopped)
    assert process.returncode == 0


def test_jobs_are_listed_from_their_beginning_to_their_end(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    recorder, seen = Recorder(file), list[list[tuple[str, str, str]]]()
    for event in (
        {"event": "run_info", "stats": {"all": 1, "train": 2, "data": 1, "total": 4}},
        {"event": "job_info", "jobid": 1, "rule_name": "data", "log": ["a.ipynb"]},
        {"event": "job_info", "jobid": 2, "rule_name": "all", "log": []},
        {"event": "job_info", "jobid": 3, "rule_name": "train", "log": ["s/x/seed-0/b.ipynb"]},
        {"event": "job_finished", "job_id": 1},
        {"event": "job_error", "jobid": 3, "log": ["s/x/seed-0/b.ipynb", None, "no/slurm.log"]},
    ):
        recorder.emit(logging.makeLogRecord(event | {"created": 10.0 + len(seen)}))
        seen.append([job.key for job in read_progress(file).running.values()])
    a, b = ("", "a", ""), ("s", "x", "0")
    assert seen == [[], [a], [a], [a, b], [b], []]
    progress = read_progress(file)
    assert progress.failed == {"s/x/seed-0/b.ipynb": ""}
    assert [(job.rule, job.seconds, job.has_failed) for job in progress.ended] == [
        ("data", 3.0, False),
        ("train", 2.0, True),
    ]
    assert str(progress) == "0/2 runs, 1/3 jobs done"
    again = {"event": "job_info", "jobid": 3, "rule_name": "train", "log": ["s/x/seed-0/b.ipynb"]}
    for event in (again, {"event": "job_finished", "job_id": 3}):
        recorder.emit(logging.makeLogRecord(event | {"created": 20.0}))
    progress = read_progress(file)
    assert progress.failed == {}
    assert str(progress) == "1/2 runs, 2/3 jobs done"
    with file.open("a", encoding="utf-8") as lines:
        lines.write('\n["job_finished", 3')  # a line that is being written, or cut off
    assert read_progress(file) == progress
    recorder.emit(logging.makeLogRecord(again | {"created": 30.0}))
    assert [job.key for job in read_progress(file).running.values()] == [b]


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
    return cells(steps, 200), list(training_warnings(steps, INSTABILITY).values())


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
def board(tiny_study: Study) -> JobTable:
    return JobTable([tiny_study])


def shown(table: Table, width: int) -> list[str]:
    """What a terminal of a width shows."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_board_shows_a_line_per_job_in_execution(board: JobTable, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "tiny"
    run = place / "layernorm" / "seed-1"
    append(live_file(run), *steps(1, 4))
    logs = {"train": run / "02_train.ipynb", "data": place / "01_data.ipynb", "paper": "paper.log"}
    jobs = [Job(rule, str(log), 0.0) for rule, log in logs.items()]
    assert board.update(jobs) == []
    assert [in_words(row, LIVE) for row in board.rows] == [
        "layernorm · seed 1: step 4/12, loss 2.000, gradient 1, tokens/s 128, left 0:04",
        "01_data: runs",
        "paper: runs",
    ]
    assert board.ahead == {("tiny", "layernorm", "1"): (8 * 0.5, 12 * 0.5)}
    append(live_file(run), *steps(5, 11), *steps(12, 12, loss=2.6))
    (warning,) = board.update(jobs)
    assert warning.startswith("Warning: layernorm · seed 1: its loss is 2.60, 0.60 nats")
    assert board.update(jobs) == []
    lines = shown(board.table(board.rows, LIVE, 80), 80)
    assert lines[0].split() == ["seed", "step", "loss", "gradient", "tokens/s", "left"]
    assert lines[1].split() == ["layernorm", "1", "12/12", "2.600", "1", "128", "measures"]
    assert all(len(line) <= 80 for line in lines)
    assert (board.update([]), board.rows, board.ahead) == ([], [], {})


def test_a_job_that_ended_leaves_its_last_line(tiny_study: Study, tmp_path: Path) -> None:
    other = tiny_study.model_copy(update={"name": "other"})
    board, (first, second) = (
        JobTable([tiny_study, other]),
        [result for result, _ in made_up(tiny_study)][:2],
    )
    jobs = []
    for result in (first, second.model_copy(update={"status": "diverged", "diverged_at": 7})):
        run = tmp_path / "tiny" / result.arm / f"seed-{result.seed}"
        write_text(run / "result.json", result.model_dump_json())
        jobs.append(Job("train", str(run / "02_train.ipynb"), 5.0, 65.4))
    jobs.append(Job("train", str(tmp_path / "tiny/none/seed-9/02_train.ipynb"), 5.0, 1.0, True))
    jobs.append(Job("archive", str(tmp_path / "tiny" / "archive.log"), 5.0, 2.0))
    assert board.end(jobs[:1]) + board.end(jobs) == [
        [
            f"tiny · {first.arm}",
            str(first.seed),
            f"{first.steps}/12",
            f"{first.measures['loss']:.3f}",
            f"{first.measures['grad_norm']:.3g}",
            f"{first.throughput['training_tokens_per_second']:,.0f}",
            "1:05",
        ],
        [f"tiny · {second.arm}", str(second.seed), "7/12", "diverged", "", "", "1:05"],
        ["tiny · none", "9", "failed", "", "", "", "0:01"],
        ["tiny · archive", "", "done", "", "", "", "0:02"],
    ]
    assert board.end(jobs) == []


@pytest.mark.parametrize("width", [84, 100])
def test_arms_of_four_factors_are_told_apart_by_their_levels(tiny_study: Study, width: int) -> None:
    factors = {"model.embedding_norm": ["none"], "training.learning_rate": [1e-4, 3e-4]}
    factors |= {"training.schedule": ["constant"], "training.gradient_clip": [None, 1.0]}
    study = Study.model_validate(tiny_study.model_dump() | {"factors": factors})
    board, numbers = JobTable([study]), ["910", "40/150", "2.500", "0.5", "5,120", "0:44"]
    rows = [[arm.id, *numbers] for arm in study.arms()]
    rows[1][2:] = ["starts"]
    lines = shown(board.table(rows, LIVE, width), width)
    assert all(len(line) <= width for line in lines)
    names = [line.split()[0] for line in lines[1:]]
    levels = [re.findall(r"([^=,]+)(?:,|$)", name) for name in names]
    assert levels == [
        ["none", rate, "constant", clip] for rate in ("0.0001", "0.0003") for clip in ("none", "1")
    ]
    arms = ["none,learning_rate=0.01", "none,learning_rate=0.001"]
    assert fitting(arms, 24) == arms
    assert fitting(arms, 23) == ["none,learning_ra…=0.01", "none,learning_ra…=0.001"]
    assert fitting(arms, 0) == ["none,…=0.01", "none,…=0.001"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_rows_of_both_kinds_stand_below_each_other_and_fit(tiny_study: Study, width: int) -> None:
    factors = {"model.embedding_norm": ["layernorm"], "training.learning_rate": [0.003]}
    factors |= {"training.gradient_clip": [None], "training.weight_decay": [0.1234567]}
    longest = Study.model_validate(tiny_study.model_dump() | {"factors": factors})
    (name,) = (arm.id for arm in longest.arms())
    ended = [name, "100", "12/12", "3.883", "1.1", "132,290", "1:02:03"]
    live = [name, "3", "5/12", "12.883", "0.0123", "8,323", "measures"]
    board = JobTable([longest])
    above = shown(board.table([ended], [""] * 7, width), width)
    below = shown(board.table([live], LIVE, width), width)
    (length,) = {len(line) for line in above + below}
    assert length <= width
    ends = [
        [match.end() for match in re.finditer(r"\S+", line)][1:] for line in (*above, *below[1:])
    ]
    assert ends[0] == ends[1]


def data(number: int, seconds: float | None = None) -> Job:
    return Job("data", f"study-{number}/01_data.ipynb", time.time(), seconds)


def test_a_terminal_keeps_the_lines_of_jobs_that_ended_above_those_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")  # of a dumb one rich moves no cursor
    screen = Console(file=out, width=80, height=7, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "terminal", lambda: screen)
    view, seen = ProgressDisplay([]), []
    with view.live:
        for n_ended in (0, 1, 3):
            running = {str(n): data(n) for n in range(n_ended, 6)}
            ended = [data(n, 3.0) for n in range(n_ended)]
            view.show(Progress({"data": 6}, running, ended, {}), 65.0)
            seen.append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", out.getvalue()).splitlines())
            out.seek(0)
            out.truncate()
    assert all(len(line) <= 80 for lines in seen for line in lines)
    rows = [[line.split() for line in lines if line.strip()] for lines in seen]
    drawn = [each[max(n for n, row in enumerate(each) if row[-1] == "left") :] for each in rows]
    assert [sum("runs" in row for row in each) for each in drawn] == [3, 3, 3]
    assert [row[1] for each in drawn for row in each if row[0] == "and"] == ["3", "2"]
    assert [sum("done" in row[1:2] for row in each) for each in rows] == [0, 1, 2]
    assert [sum("time" in row for row in each) for each in rows] == [0, 1, 0]  # headed once
    assert rows[2][-1][:3] == ["3/6", "jobs", "done,"]
    assert rows[2][-1][-2:] == ["1:05", "elapsed"]


def test_a_log_has_a_line_for_each_job_that_ended_and_each_minute_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = ProgressDisplay([])
    for elapsed, n_ended in ((0.0, 0), (2.0, 0), (4.0, 1), (6.0, 1), (62.0, 1)):
        running, ended = {"1": data(1), "2": data(2)}, [data(0, 3.0)] * n_ended
        view.show(Progress({"data": 3}, running, ended, {}), elapsed)
    said = re.sub(r"about \d+:\d+ left", "TIME", capsys.readouterr().out).splitlines()
    assert said == [
        *("0/3 jobs done, TIME, 0:00 elapsed", "01_data: runs", "01_data: runs"),
        *("01_data: done, time 0:03", "1/3 jobs done, TIME, 0:04 elapsed"),
        *("1/3 jobs done, TIME, 1:02 elapsed", "01_data: runs", "01_data: runs"),
    ]


def test_the_threshold_is_that_of_the_studys_plan(
    tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert JobTable([tiny_study]).rules == {"tiny": Instability()}
    plan = SimpleNamespace(instability=INSTABILITY)
    monkeypatch.setattr(progress, "load_plan", lambda study: plan)
    assert JobTable([tiny_study]).rules == {"tiny": INSTABILITY}


def test_where_no_plan_says_when_a_run_is_unstable_the_usual_rises_are_warned_of(
    live: Path,
) -> None:
    wave = [(step, 2 + 0.01 * math.sin(step), 1.0, 64 * step, 0.5 * step) for step in range(1, 101)]
    append(live, *wave, (101, 2.6, 1.0, 6464, 50.5))
    found = training_warnings(read_live(live.parent), Instability())
    assert found == training_warnings(read_live(live.parent), WARNING_RULE)
    assert list(found) == ["rise"]
