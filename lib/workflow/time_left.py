"""When a sweep will end, foretold from what each kind of job takes."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lib.study.config import Study
from lib.study.paths import study_folder
from lib.study.result import status_of

RUN = "train"
"""The rule of a job that is a run."""
BESIDE = (RUN, "data")
"""Rules of jobs that run side by side; others wait for all of these."""
USUAL = {
    "data": 9.0,
    "analysis": 6.0,
    "figures": 15.0,
    "archive": 4.0,
    "paper": 10.0,
    "record": 8.0,
}
"""Seconds that a job of each other rule takes, until one has ended: medians of the recorded
studies, and of a smoke sweep, on an EPYC."""
ENOUGH = 20
"""Runs of a study by which the time of another is foretold."""
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
    def place(self) -> tuple[str, str, str]:
        """Its study, its arm or else its name, and of a run its seed."""
        if self.rule == RUN:
            study, arm, seed = self.folder.parts[-3:]
            return study, arm, seed.removeprefix("seed-")
        return self.folder.name, Path(self.log).stem, ""


def taken(studies: Iterable[Study], stale: Collection[Path] = ()) -> list[float]:
    """Return the seconds that runs of some studies took that are done, but for those whose results
    are stale; of each study a few."""
    found = []
    for study in studies:
        there = study_folder(study.name).glob("*/seed-*/result.json")
        results = (path for path in there if path not in stale)
        for path in itertools.islice(results, ENOUGH):
            stamp = status_of(path.with_name("02_train.ipynb"))
            found += [stamp["seconds"]] if "seconds" in stamp else []
    return found


@dataclass
class TimeLeft:
    """What is left of a sweep: it falls as time goes by, and rises only when a job ended and showed
    that it was `WRONG`."""

    earlier: Sequence[float] = ()
    """Seconds of runs that are done, by which the first are foretold."""
    _seconds: float = math.inf
    _ended: int = 0
    _at_once: int = 1

    def update(
        self,
        jobs: dict[str, int],
        running: Sequence[Job],
        ended: Sequence[Job],
        ahead: Sequence[tuple[float, float]],
        now: float,
    ) -> str:
        """Say what is left of so many jobs by rule. Until a run has ended, its measuring is not
        known: of each in training, `ahead` says in seconds how long its steps still take, and how
        long all of them."""
        self._at_once = max(self._at_once, len(running))
        took: dict[str, list[float]] = {rule: [] for rule in jobs}
        for job in ended:
            if job.seconds and not job.has_failed:
                took[job.rule].append(job.seconds)
        known = took.get(RUN) or self.earlier
        beside, after, number_ended = [0.0], 0.0, Counter(job.rule for job in ended)
        for rule, number in jobs.items():
            spent = [now - job.since for job in running if job.rule == rule]
            if rule == RUN and not known:
                usual = fmean(whole for _, whole in ahead) if ahead else math.inf
                left = [rest for rest, _ in ahead] + [usual] * (len(spent) - len(ahead))
            else:
                usual = fmean(known if rule == RUN else took[rule] or [USUAL.get(rule, 0.0)])
                left = [max(usual - seconds, 0.0) for seconds in spent]
            left += [usual] * (number - number_ended[rule] - len(spent))
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
        return f"{'about' if known or RUN not in jobs else 'at least'} {clock(self._seconds)} left"


def clock(seconds: float) -> str:
    """Write seconds as 4:05 or 1:04:05; an unknown number as –."""
    if math.isnan(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
