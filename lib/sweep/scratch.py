"""Train a study with some fields changed: `./run_all.sh params/x.yaml training.iterations=600`.

These are scratch runs, like those that 02_train makes with `changes`. They are in `runs/.scratch/`,
and no study or record includes them. All arms and seeds are trained with the changes, and compared
with each other.
"""

from collections.abc import Iterable

from lib.config.claim import ClaimStatus
from lib.config.errors import ConfigError
from lib.config.files import read_json
from lib.config.paths import RUNS, relative, result_file
from lib.config.schema import CODE
from lib.config.study import SCRATCH, Study, load_study, scratch, with_fields
from lib.config.yaml import Json, parse_yaml
from lib.results import RunResult
from lib.stats.runs import read_parquet, tidy
from lib.sweep import estimate
from lib.sweep.code import copy_code
from lib.sweep.execute import corpus_of
from lib.sweep.preflight import print_texts, require_executable
from lib.sweep.summary import print_study
from lib.sweep.sweep import (
    Runs,
    Sweep,
    only_sweep,
    run_snakemake,
    snakemake_command,
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
    # The baseline of a scratch run is its unchanged arm.
    made = [(*scratch(study, arm, changes), seed) for seed in study.seeds for arm in study.arms()]
    runs: Runs = {result_file("02_train", SCRATCH, run[1].id, run[2]): run for run in made}
    for _, arm, _ in made:
        corpus_of(arm.config.corpus).require_length(arm.config.model.block_size)
    stale = {path: why for path, run in runs.items() if path.is_file() and (why := why_stale(*run))}
    due = {path: run for path, run in runs.items() if path in stale or not path.is_file()}
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
            copy, sweep = copy_code([study]), Sweep([name])
            asks = [estimate.asks(changed, tries=False)]
            command = snakemake_command(copy, [study], sweep, stale, jobs, asks, changes)
            if status := run_snakemake(command, copy, sweep, gpus, due, {}, len(runs), log):
                return status
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

    # Scratch runs are named STUDY,ARM,CHANGES: give them their arms' names for the analysis.
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
