"""When a sweep will end, foretold from what each kind of job takes."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from lib.analysis.stability import RECENT
from lib.results import status_of
from lib.study.io import run_folder
from lib.study.schema import RunConfig
from lib.study.study import Study

RUN = "train"
"""The rule of a job that is a run."""
PARALLEL = (RUN, "data")
"""Rules of jobs that run side by side; others wait for all of these."""
USUAL = {"data": 9, "analysis": 6, "figures": 15, "archive": 4, "paper": 10, "record": 8}
"""Seconds that a job of each other rule takes, until one has ended: medians of the recorded
studies, and of a smoke sweep, on an EPYC."""
SAMPLE = 20
"""Runs that are done, by which the time of others is foretold."""
JobKey = tuple[str, str, str]
"""Of a run its study, arm and seed; of another job its study, name and ""."""
TOLERANCE = 1.1
"""How many times the estimate a new one must be to replace it."""


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
    def key(self) -> JobKey:
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


def workloads(studies: Iterable[Study]) -> dict[JobKey, float]:
    """Return the `work` of each run of some studies."""
    return {
        (study.name, arm.id, str(seed)): work(arm.config)
        for study in studies
        for arm in study.arms()
        for seed in study.seeds
    }


def finished_results(runs: Iterable[JobKey], stale: Collection[Path] = ()) -> dict[JobKey, Path]:
    """Return the results of those runs that are done, by run; not of those that are stale."""
    results = {run: run_folder(*run[:2], int(run[2])) / "result.json" for run in runs}
    return {run: file for run, file in results.items() if file not in stale and file.is_file()}


def durations(finished: Mapping[JobKey, Path]) -> dict[JobKey, float]:
    """Return the seconds that some of the runs took whose results are given, spread over all."""
    sample = list(finished.items())[:: 1 + len(finished) // SAMPLE]
    stamps = {run: status_of(file.with_name("02_train.ipynb")) for run, file in sample}
    return {run: stamp["seconds"] for run, stamp in stamps.items() if "seconds" in stamp}


def pace(seconds_of: Mapping[JobKey, float], work_of: Mapping[JobKey, float]) -> float | None:
    """Return the seconds that a unit of work took in some runs; None of no run."""
    known = {run: seconds for run, seconds in seconds_of.items() if run in work_of}
    return sum(known.values()) / sum(work_of[run] for run in known) if known else None


@dataclass
class TimeLeft:
    """What is left of a sweep: it falls as time goes by, and rises only when a job ended and showed
    that it was wrong by `TOLERANCE`."""

    work_of: Mapping[JobKey, float] = field(default_factory=dict)
    """The work of each run of the sweep's studies."""
    earlier: Mapping[JobKey, float] = field(default_factory=dict)
    """Seconds of runs that were done before, by which the first are foretold."""
    finished: Collection[JobKey] = ()
    """All runs that were done before."""
    _seconds: float = math.inf
    _ended: int = 0
    _at_once: int = 1

    def update(
        self,
        jobs: dict[str, int],
        running: Sequence[Job],
        ended: Sequence[Job],
        ahead: Mapping[JobKey, tuple[float, float]],
        now: float,
    ) -> str:
        """Say what is left of so many jobs by rule. Until a run has ended, its measuring is not
        known: of each in training, `ahead` says in seconds how long its steps still take, and how
        long all of them."""
        self._at_once = max(self._at_once, len(running))
        seconds_by_rule: dict[str, list[float]] = {rule: [] for rule in jobs}
        seconds_of_runs: dict[JobKey, float] = {}
        for job in ended:
            if job.seconds and not job.has_failed:
                seconds_by_rule[job.rule].append(job.seconds)
                if job.rule == RUN:
                    seconds_of_runs[job.key] = job.seconds
        run_pace = pace(seconds_of_runs or self.earlier, self.work_of)
        step_pace = pace({run: total for run, (_, total) in ahead.items()}, self.work_of)
        per_unit, has_pace = run_pace or step_pace or math.inf, run_pace is not None
        begun = {job.key for job in [*running, *ended] if job.rule == RUN} | {*self.finished}
        waiting = [work for run, work in self.work_of.items() if run not in begun]
        seconds_of_waiting = per_unit * fmean(waiting or self.work_of.values() or [1.0])
        parallel, serial, number_ended = [0.0], 0.0, Counter(job.rule for job in ended)
        for rule, number in jobs.items():
            active = [job for job in running if job.rule == rule]
            if rule == RUN:
                left = [self._run_left(job, per_unit, has_pace, ahead, now) for job in active]
                typical = seconds_of_waiting
            else:
                typical = fmean(seconds_by_rule[rule] or [USUAL.get(rule, 0.0)])
                left = [max(typical - (now - job.since), 0.0) for job in active]
            left += [typical] * (number - number_ended[rule] - len(active))
            if rule in PARALLEL:
                parallel += left
            else:
                serial += sum(left)
        seconds = max(*parallel, sum(parallel) / self._at_once) + serial
        is_new, self._ended = len(ended) > self._ended, len(ended)
        if seconds < self._seconds or (is_new and seconds > TOLERANCE * self._seconds):
            self._seconds = seconds
        if math.isinf(self._seconds):
            return "no estimate yet"
        is_known = has_pace or RUN not in jobs
        return f"{'about' if is_known else 'at least'} {clock(self._seconds)} left"

    def _run_left(
        self,
        job: Job,
        per_unit: float,
        has_pace: bool,
        ahead: Mapping[JobKey, tuple[float, float]],
        now: float,
    ) -> float:
        """Return the seconds left of a run in training, at so many `per_unit` of work."""
        if not has_pace and job.key in ahead:
            return ahead[job.key][0]
        total = per_unit * self.work_of.get(job.key, math.inf)
        return max(total - (now - job.since), 0.0) if has_pace else total


def seconds_per_step(steps: pd.DataFrame) -> float:
    """Return what a step of a run (see `read_live`) took lately, since it was taken up again; NaN
    of steps that all came at once."""
    segment = (steps["elapsed"].diff() < 0).cumsum()
    recent = steps[segment == segment.iloc[-1]].tail(RECENT)
    last_at_once = recent.drop_duplicates("elapsed", keep="last")
    difference = (recent.iloc[-1] - last_at_once.iloc[0]).replace(0, math.nan)
    return float(difference["elapsed"] / difference["step"])


def clock(seconds: float) -> str:
    """Write seconds as 4:05 or 1:04:05; an unknown number as –."""
    if math.isnan(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
