"""What is left of a sweep, foretold from its jobs."""

import math
import re

import pytest

from lib.workflow.time_left import USUAL, Job, TimeLeft, clock

JOBS = {"train": 4, "data": 1, "analysis": 1}


def run(since: float, seconds: float | None = None, has_failed: bool = False) -> Job:
    return Job("train", "s/a/seed-0/02_train.ipynb", since, seconds, has_failed)


DATA = Job("data", "s/01_data.ipynb", 0.0, 3.0)


@pytest.mark.parametrize(
    ("running", "ended", "ahead", "said"),
    [
        ([], [], [], "no estimate yet"),
        ([run(0.0), run(0.0)], [DATA], [], "no estimate yet"),  # neither has two steps
        # Of two in training 30 and 20 s are left; the other two take (40 + 20) / 2: 110 / 2 + 6.
        ([run(0.0), run(0.0)], [DATA], [(30.0, 40.0), (20.0, 20.0)], "at least 1:01 left"),
        # Runs take 30 s, of two 20 are left, one waits: 70 / 2 + 6.
        ([run(10.0), run(10.0)], [DATA, run(0.0, 30.0)], [(1.0, 1.0)] * 2, "about 0:41 left"),
        # The last run, which takes longer than usual, and the analysis.
        ([run(-90.0), DATA], [run(0.0, 30.0)] * 3, [], "about 0:06 left"),
        # One that failed after a second does not tell how long others take.
        ([run(10.0)], [DATA, run(0.0, 30.0), run(0.0, 1.0, True)], [], "about 0:56 left"),
    ],
)
def test_each_kind_of_job_takes_what_those_took_that_ended(
    running: list[Job], ended: list[Job], ahead: list[tuple[float, float]], said: str
) -> None:
    assert TimeLeft().update(JOBS, running, ended, ahead, 20.0) == said


def test_runs_that_are_done_foretell_the_first() -> None:
    left = TimeLeft(earlier=[10.0, 20.0])
    assert left.update({"train": 2}, [run(0.0), run(0.0)], [], [], 5.0) == "about 0:10 left"
    assert left.update({"paper": 1}, [], [], [], 5.0) == f"about {clock(USUAL['paper'])} left"


def test_it_falls_as_long_as_no_job_ends() -> None:
    """Twelve runs on two cores, of 20 to 26 s, at a pace that changes; then what follows."""
    left, took = TimeLeft(), [20.0 + 7 * number % 13 / 2 for number in range(12)]
    free, waiting, now = 2, list(took), 0.0
    running: list[tuple[float, float]] = []
    ended: list[Job] = []
    before, rises = math.inf, 0
    while len(ended) < len(took):
        done = [each for each in running if now >= each[1]]
        running = [each for each in running if now < each[1]]
        ended += [run(since, until - since) for since, until in done]
        while len(running) < free and waiting:
            running.append((now, now + waiting.pop(0)))
        pace = 1 + 0.3 * math.sin(now)
        ahead = [((until - now) * pace, 23 * pace) for _, until in running]
        jobs = [run(since) for since, _ in running]
        said = left.update({"train": 12, "figures": 1}, jobs, ended, ahead, now)
        minutes, seconds = map(int, re.findall(r"\d+", said))
        shown = 60 * minutes + seconds
        assert shown <= before or done
        rises += shown > before
        truth = sum(took) / 2 + USUAL["figures"] - now
        assert said.startswith("about" if ended else "at least")
        assert abs(shown - truth) < (20 if ended else 60)
        before, now = shown, now + 1.0
    assert rises <= 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3661, "1:01:01"), (math.nan, "–")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
