"""When a sweep will end, foretold from what each kind of job takes."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lib.study.config import Study
from lib.study.fields import RunConfig
from lib.study.paths import run_folder
from lib.study.result import status_of

RUN = "train"
"""The rule of a job that is a run."""
BESIDE = (RUN, "data")
"""Rules of jobs that run side by side; others wait for all of these."""
USUAL = {"data": 9, "analysis": 6, "figures": 15, "archive": 4, "paper": 10, "record": 8}
"""Seconds that a job of each other rule takes, until one has ended: medians of the recorded
studies, and of a smoke sweep, on an EPYC."""
ENOUGH = 20
"""Runs that are done, by which the time of others is foretold."""
Place = tuple[str, str, str]
"""Of a run its study, arm and seed; of another job its study, name and ""."""
WRONG = 1.1
"""How many times what was foretold is too long to stay with it."""


class Job(NamedTuple):
    """A job of a sweep: a notebook in execution, or what is made of them."""

    rule: str
    log: str
    """The executed notebook, if it is one."""
    since: float
    """When it began, in seconds since the epoch."""
    seconds: float | None = None
    """What it took; None: it runs."""
    has_failed: bool = False

    @property
    def folder(self) -> Path:
        """Where it works: of a run that of its seed, in that of its arm, in that of its study."""
        return Path(self.log).parent

    @property
    def place(self) -> Place:
        if self.rule == RUN:
            study, arm, seed = self.folder.parts[-3:]
            return study, arm, seed.removeprefix("seed-")
        return self.folder.name, Path(self.log).stem, ""


def work(config: RunConfig) -> float:
    """Return the operations that training a run takes in its blocks, as in
    `lib.run.cost.flops_per_token`. What of them a machine does in a second is measured; arms of
    unequal length or size differ by them."""
    model, training = config.model, config.training
    weights = model.n_layer * (4 + 2 * model.mlp_ratio) * model.n_embd**2
    per_token = 6 * weights + 12 * model.n_layer * model.n_embd * model.block_size
    return training.iterations * training.batch_size * model.block_size * per_token


def works(studies: Iterable[Study]) -> dict[Place, float]:
    """Return the `work` of each run of some studies."""
    return {
        (study.name, arm.id, str(seed)): work(arm.config)
        for study in studies
        for arm in study.arms()
        for seed in study.seeds
    }


def done(works: Iterable[Place], stale: Collection[Path] = ()) -> dict[Place, Path]:
    """Return the results of those runs that are done, by run; not of those that are stale."""
    places = {run_folder(study, arm, int(seed)): (study, arm, seed) for study, arm, seed in works}
    results = {place: folder / "result.json" for folder, place in places.items()}
    return {p: result for p, result in results.items() if result not in stale and result.is_file()}


def taken(done: Mapping[Place, Path]) -> dict[Place, float]:
    """Return the seconds that some of the runs took whose results are given, spread over all."""
    few = list(done.items())[:: 1 + len(done) // ENOUGH]
    stamps = {place: status_of(result.with_name("02_train.ipynb")) for place, result in few}
    return {place: stamp["seconds"] for place, stamp in stamps.items() if "seconds" in stamp}


def pace(took: Mapping[Place, float], works: Mapping[Place, float]) -> float | None:
    """Return the seconds that a unit of work took in some runs; None of no run."""
    known = {place: seconds for place, seconds in took.items() if place in works}
    return sum(known.values()) / sum(works[place] for place in known) if known else None


@dataclass
class TimeLeft:
    """What is left of a sweep: it falls as time goes by, and rises only when a job ended and showed
    that it was `WRONG`."""

    works: Mapping[Place, float] = field(default_factory=dict)
    """The work of each run of the sweep's studies."""
    earlier: Mapping[Place, float] = field(default_factory=dict)
    """Seconds of runs that were done before, by which the first are foretold."""
    done: Collection[Place] = ()
    """All runs that were done before."""
    _seconds: float = math.inf
    _ended: int = 0
    _at_once: int = 1

    def update(
        self,
        jobs: dict[str, int],
        running: Sequence[Job],
        ended: Sequence[Job],
        ahead: Mapping[Place, tuple[float, float]],
        now: float,
    ) -> str:
        """Say what is left of so many jobs by rule. Until a run has ended, its measuring is not
        known: of each in training, `ahead` says in seconds how long its steps still take, and how
        long all of them."""
        self._at_once = max(self._at_once, len(running))
        took: dict[str, list[float]] = {rule: [] for rule in jobs}
        of_runs: dict[Place, float] = {}
        for job in ended:
            if job.seconds and not job.has_failed:
                took[job.rule].append(job.seconds)
                if job.rule == RUN:
                    of_runs[job.place] = job.seconds
        known = pace(of_runs or self.earlier, self.works)
        of_steps = pace({place: whole for place, (_, whole) in ahead.items()}, self.works)
        each = known or of_steps or math.inf
        begun = {job.place for job in [*running, *ended] if job.rule == RUN}
        waiting = [w for p, w in self.works.items() if p not in begun and p not in self.done]
        of_waiting = each * fmean(waiting or self.works.values() or [1.0])
        beside, after, number_ended = [0.0], 0.0, Counter(job.rule for job in ended)
        for rule, number in jobs.items():
            at_work = [job for job in running if job.rule == rule]
            if rule == RUN:
                left = [self._of_run(job, each, known is not None, ahead, now) for job in at_work]
                usual = of_waiting
            else:
                usual = fmean(took[rule] or [USUAL.get(rule, 0.0)])
                left = [max(usual - (now - job.since), 0.0) for job in at_work]
            left += [usual] * (number - number_ended[rule] - len(at_work))
            if rule in BESIDE:
                beside += left
            else:
                after += sum(left)
        seconds = max(*beside, sum(beside) / self._at_once) + after
        is_new, self._ended = len(ended) > self._ended, len(ended)
        if seconds < self._seconds or (is_new and seconds > WRONG * self._seconds):
            self._seconds = seconds
        if math.isinf(self._seconds):
            return "no estimate yet"
        is_known = known is not None or RUN not in jobs
        return f"{'about' if is_known else 'at least'} {clock(self._seconds)} left"

    def _of_run(
        self,
        job: Job,
        each: float,
        is_known: bool,
        ahead: Mapping[Place, tuple[float, float]],
        now: float,
    ) -> float:
        """Return the seconds left of a run in training, at so many `each` unit of work."""
        if not is_known and job.place in ahead:
            return ahead[job.place][0]
        whole = each * self.works.get(job.place, math.inf)
        return max(whole - (now - job.since), 0.0) if is_known else whole


def clock(seconds: float) -> str:
    """Write seconds as 4:05 or 1:04:05; an unknown number as –."""
    if math.isnan(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
