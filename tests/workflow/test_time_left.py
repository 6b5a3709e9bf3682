"""What is left of a sweep, foretold from its jobs."""

import math
import re

import pytest

from lib.study.study import Study
from lib.workflow.time_left import USUAL, Job, JobKey, TimeLeft, clock, work, workloads

JOBS = {"train": 4, "data": 1, "analysis": 1}


WORKS = {("s", "a", str(seed)): 1.0 for seed in range(12)}


def run(since: float, seconds: float | None = None, has_failed: bool = False, seed: int = 0) -> Job:
    return Job("train", f"s/a/seed-{seed}/02_train.ipynb", since, seconds, has_failed)


def ahead(*each: tuple[float, float]) -> dict[JobKey, tuple[float, float]]:
    return {("s", "a", str(seed)): seconds for seed, seconds in enumerate(each)}


DATA = Job("data", "s/01_data.ipynb", 0.0, 3.0)


@pytest.mark.parametrize(
    ("running", "ended", "in_training", "said"),
    [
        ([], [], {}, "no estimate yet"),
        ([run(0.0), run(0.0, seed=1)], [DATA], {}, "no estimate yet"),  # neither has two steps
        # Of two in training 30 and 20 s are left; the other two take (40 + 20) / 2: 110 / 2 + 6.
        (
            [run(0.0), run(0.0, seed=1)],
            [DATA],
            ahead((30.0, 40.0), (20.0, 20.0)),
            "at least 1:01 left",
        ),
        # Runs take 30 s, of two 20 are left, one waits: 70 / 2 + 6.
        (
            [run(10.0), run(10.0, seed=1)],
            [DATA, run(0.0, 30.0, seed=2)],
            ahead((1.0, 1.0), (1.0, 1.0)),
            "about 0:41 left",
        ),
        # The last run, which takes longer than usual, and the analysis.
        ([run(-90.0), DATA], [run(0.0, 30.0, seed=s) for s in (1, 2, 3)], {}, "about 0:06 left"),
        # One that failed after a second does not tell how long others take.
        (
            [run(10.0)],
            [DATA, run(0.0, 30.0, seed=1), run(0.0, 1.0, True, seed=2)],
            {},
            "about 0:56 left",
        ),
    ],
)
def test_each_kind_of_job_takes_what_those_took_that_ended(
    running: list[Job],
    ended: list[Job],
    in_training: dict[JobKey, tuple[float, float]],
    said: str,
) -> None:
    assert TimeLeft(WORKS).update(JOBS, running, ended, in_training, 20.0) == said


def test_a_run_of_half_the_steps_takes_half_as_long(tiny_study: Study) -> None:
    """Of two arms, one has four times the steps of the other: 40 s and 10 s at the pace seen."""
    fields = tiny_study.model_dump(exclude_defaults=True)
    fields["factors"] = fields["factors"] | {"training.iterations": [4, 16]}
    of_all = workloads([Study.model_validate(fields)])
    short, long = (place for place in of_all if place[::2] == ("tiny", "0") and "none" in place[1])
    assert of_all[long] == 4 * of_all[short]
    left = TimeLeft(of_all)

    def job(place: JobKey, since: float, seconds: float | None = None) -> Job:
        return Job("train", f"{place[0]}/{place[1]}/seed-{place[2]}/x.ipynb", since, seconds)

    # Of 8 runs the short one took 10 s; the long one has 30 of 40 s to go; three and three wait.
    said = left.update({"train": 8}, [job(long, 10.0)], [job(short, 0.0, 10.0)], {}, 20.0)
    assert said == "about 3:00 left"
    # Before one has ended, steps tell: the short one takes 8 s, so each unit a fourth of it.
    told = TimeLeft(of_all).update({"train": 8}, [job(short, 0.0)], [], {short: (6.0, 8.0)}, 2.0)
    assert told == f"at least {clock(6 + 3 * 8 + 4 * 32)} left"


def test_work_is_what_the_blocks_need(tiny_study: Study) -> None:
    """Six operations per weight of the matrices, twelve per pair of positions and width."""
    config = next(iter(tiny_study.arms())).config
    model, training = config.model, config.training
    C, m = model.n_embd, model.mlp_ratio
    matrices = C * 3 * C + C * C + 2 * (m * C * C)
    per_token = model.n_layer * (6 * matrices + 12 * C * model.block_size)
    assert work(config) == training.iterations * training.batch_size * model.block_size * per_token


def test_runs_that_are_done_foretell_the_first() -> None:
    before = {("s", "a", "2"): 10.0, ("s", "a", "3"): 20.0}
    left, jobs = TimeLeft(WORKS, before, before), [run(0.0), run(0.0, seed=1)]
    assert left.update({"train": 2}, jobs, [], {}, 5.0) == "about 0:10 left"
    assert left.update({"paper": 1}, [], [], {}, 5.0) == f"about {clock(USUAL['paper'])} left"


def test_it_falls_as_long_as_no_job_ends() -> None:
    """Twelve runs on two cores, of 20 to 26 s, at a pace that changes; then what follows."""
    left, took = TimeLeft(WORKS), [20.0 + 7 * number % 13 / 2 for number in range(12)]
    free, waiting, now = 2, list(took), 0.0
    running: list[tuple[float, float, int]] = []
    ended: list[Job] = []
    before, rises = math.inf, 0
    while len(ended) < len(took):
        done = [each for each in running if now >= each[1]]
        running = [each for each in running if now < each[1]]
        ended += [run(since, until - since, seed=seed) for since, until, seed in done]
        while len(running) < free and waiting:
            running.append((now, now + waiting.pop(0), 11 - len(waiting)))
        pace = 1 + 0.3 * math.sin(now)
        steps = {("s", "a", str(s)): ((until - now) * pace, 23 * pace) for _, until, s in running}
        jobs = [run(since, seed=seed) for since, _, seed in running]
        said = left.update({"train": 12, "figures": 1}, jobs, ended, steps, now)
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
