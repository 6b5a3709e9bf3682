"""Train a study with some fields changed: `./run_all.sh params/x.yaml training.iterations=600`.

These are scratch runs, like those that 02_train makes with `changes`. They are in `runs/.scratch/`,
and no study or record includes them. All arms and seeds are trained with the changes, and compared
with each other.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from lib.config.claim import ClaimStatus
from lib.config.environment import PARENT, environment
from lib.config.errors import ConfigError
from lib.config.files import read_json
from lib.config.paths import OUTPUT, RUNS, output_root, relative, result_file
from lib.config.schema import CODE
from lib.config.study import SCRATCH, Study, load_study, scratch, with_fields
from lib.config.yaml import Json, parse_yaml
from lib.results import RunResult
from lib.stats.runs import read_parquet, tidy
from lib.sweep import estimate
from lib.sweep.code import copy_code
from lib.sweep.execute import GPUS, corpus_of
from lib.sweep.preflight import print_texts, require_executable
from lib.sweep.summary import print_study
from lib.sweep.sweep import (
    Runs,
    follow,
    only_sweep,
    print_failures,
    why_stale,
)


def read_changes(words: Iterable[str]) -> Json:
    """Read words such as `training.iterations=600`, whose values are YAML. Raises ConfigError."""
    changes: Json = {}
    for word in words:
        name, _, value = word.partition("=")
        changes |= parse_yaml(f"{name}: {value}".encode(), word)
    return changes


def run_scratch(name: str, changes: Json, jobs: int | None, *, dry_run: bool) -> int:
    """Train all runs of a study with changes, print their table, and return the exit status. Runs
    that are done and not stale stay. Raises UserError for anything that would stop them later."""
    study = load_study(name)
    changed = with_changes(study, changes)
    # Seed by seed, so that whatever is done is pairs. Its baseline is the unchanged arm.
    made = [(*scratch(study, arm, changes), seed) for seed in study.seeds for arm in study.arms()]
    runs: Runs = {result_file("02_train", SCRATCH, run[1].id, run[2]): run for run in made}
    for _, arm, _ in made:
        corpus_of(arm.config.corpus).require_length(arm.config.model.block_size)
    due = {path: run for path, run in runs.items() if not path.is_file() or why_stale(*run)}
    gpus = estimate.gpus([changed], jobs)
    jobs = jobs or len(gpus) or estimate.side_by_side([changed])
    print_texts([changed])
    print(f"{study.name}: {len(due)} of {len(runs)} scratch runs to train")
    if dry_run:
        each = estimate.seconds_of(changed)
        total = sum(each[arm.baseline] for _, arm, _ in due.values()) / min(jobs, len(runs))
        print(f"About {estimate.clock(total)}, {jobs} at once (roughly)")
        print("Nothing was run: leave out -n to start")
        return 0
    require_executable([changed], is_local=True)
    if due:
        with only_sweep() as log:
            asked = {
                result: [study.name, arm.baseline, str(seed)]
                for result, (_, arm, seed) in due.items()
            }
            queue = _Queue(asked, json.dumps(changes), jobs, copy_code([study]), gpus, log)
            try:
                follow(queue, due, {}, len(runs), None, Path(log.name))
            finally:
                queue.kill()
        if queue.failed:
            print_failures(Path(log.name))
            return 1
    print_scratch(changed, runs)
    return 0


def with_changes(study: Study, changes: Json) -> Study:
    """Return a study with fields changed for all its arms, without its plan. Raises ConfigError for
    a field that does not exist or is a factor, and for a value that is not allowed."""
    for arm in study.arms():
        scratch(study, arm, changes)
    for field in changes.keys() & study.factors.keys():
        raise ConfigError(f"{field}: is a factor; change its levels in params/{study.name}.yaml")
    if CODE in study.factors:
        raise ConfigError(f"factors.code: commits run as they are; copy params/{study.name}.yaml")
    content: Json = study.model_dump(exclude={"commits"}) | {"plan": None}
    return with_fields(content, changes, "changes", Study)


def print_scratch(study: Study, runs: Runs) -> None:
    """Print the table of scratch runs, by the names of the study's arms, and where they are."""
    from lib.stats.verdict import analyse

    folders = {(arm.baseline, seed): path.parent for path, (_, arm, seed) in runs.items()}
    results = [
        RunResult.model_validate(read_json(folders[arm.id, seed] / "result.json")).model_copy(
            update={"arm": arm.id, "baseline": arm.baseline}
        )
        for arm in study.arms()
        for seed in study.seeds
    ]
    table = tidy(results)
    raw = [
        read_parquet(study, name, lambda *run: folders[run])
        for name in ("trace", "items", "stock_items")
    ]
    claim = ClaimStatus(study.name, None, "EXPLORATORY", ["scratch runs are in no record"])
    print_study(study.name, table, analyse(study, None, claim, table, *raw).as_json(), None)
    print(f"Executed notebooks  {relative(RUNS / SCRATCH)}/{study.name},*/")
    print("In a browser        ./run_all.sh site")
    print(f"To keep a change, write it into params/{study.name}.yaml, or a copy of it.")


class _Queue:
    """Executions of 02_train, so many at once, which are polled like one process. `asked` has the
    result of each, and what 02 is asked for it."""

    def __init__(
        self,
        asked: dict[Path, list[str]],
        changes: str,
        jobs: int,
        code: Path,
        gpus: list[str],
        log: IO[bytes],
    ) -> None:
        self.waiting, self.changes, self.jobs = [*asked.items()], changes, jobs
        self.code, self.log = code, log
        told = {GPUS: ";".join(gpus), OUTPUT: str(output_root()), PARENT: str(os.getpid())}
        self.variables = environment(PYTHONPATH=str(code), **told)
        self.running: list[subprocess.Popen[bytes]] = []
        self.failed = False

    def poll(self) -> int | None:
        """Start what there is room for. Return None until all have ended."""
        self.failed |= any(process.poll() for process in self.running)
        self.running = [process for process in self.running if process.poll() is None]
        while self.waiting and len(self.running) < self.jobs:
            result, asked = self.waiting.pop(0)
            self.log.write(f"    output: {result}\n".encode())  # as Snakemake's: `follow` reads it
            self.log.flush()
            words = ["lib.sweep.execute", "02_train", *asked, self.changes]
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self.code,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
            )
            self.running.append(process)
        return None if self.running else int(self.failed)

    def kill(self) -> None:
        """End what still runs; the kernels end with it."""
        for process in self.running:
            process.kill()
