"""Recorded studies analysed and drawn again by the code at hand, from the runs in their record.

    ./run_all.sh analyse NAME …

Runs and their notebooks stay as they are; 03_analysis and 04_figures are executed again, on a copy
of the record in `runs/`.
"""

import argparse
import shutil
import sys

from lib.publish import first_rules, raw_zip
from lib.publish.archive import MANIFEST, archive, read_runs, record_folder, results_file
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError, exit_status
from lib.study.paths import PAPERS, executed_notebook, shown, study_folder
from lib.study.record import sha256, write_json
from lib.workflow.execution import ExecutionError, execute
from lib.workflow.sweep import only_sweep

_COPY = ".copy"
"""What marks a folder of `runs/` as a copy of the record, should it be left behind."""


def analyse_again(name: str) -> None:
    """Execute 03 and 04 of a recorded study again, and archive it.

    Raises ConfigError for a study without a record, of the first rules or with runs beside it,
    UserError while a sweep runs, and ExecutionError when a notebook fails; the record then stays as
    it was.
    """
    study = load_study(name)
    record, runs = record_folder(name), study_folder(name)
    if not record.is_dir() or not results_file(name).is_file():
        recorded = [path.name for path in PAPERS.glob("*/record/*") if path.is_dir()]
        raise ConfigError(f"study: '{name}' has no record; there are {', '.join(sorted(recorded))}")
    if sha256(record / MANIFEST) == first_rules.MANIFESTS.get(name):
        raise ConfigError(
            f"study: '{name}' was recorded under the first rules, which this code does not follow; "
            "its record stays as it is"
        )
    with only_sweep():
        # A sweep that found a copy may have trained in it: then there are checkpoints.
        own = "checkpoints" if (runs / _COPY).is_file() else "*"
        if any(runs.glob(f"*/seed-*/{own}")):
            raise ConfigError(
                f"{shown(runs)} holds runs: ./run_all.sh params/{name}.yaml analyses these runs; "
                "to analyse the record again, move them elsewhere"
            )
        shutil.rmtree(runs, ignore_errors=True)
        try:
            runs.mkdir()
            (runs / _COPY).touch()
            shutil.copytree(record, runs, dirs_exist_ok=True)
            raw_zip.restore(record, runs)
            for run in read_runs(name):
                write_json(runs / run["arm"] / f"seed-{run['seed']}" / "result.json", run)
            for notebook in ("03_analysis", "04_figures"):
                print(f"{name}: {notebook}")
                _execute(notebook, study)
            archive(study)
        finally:
            shutil.rmtree(runs, ignore_errors=True)


def _execute(notebook: str, study: Study) -> None:
    """Execute a notebook; one that fails is kept beside the copy, which is deleted."""
    try:
        execute(notebook, study)
    except ExecutionError as error:
        failed = executed_notebook(notebook, study.name)
        kept = failed.parent.with_name(f"{study.name}.failed.ipynb")
        failed.replace(kept)
        raise ExecutionError(str(error).replace(shown(failed), shown(kept))) from None


@exit_status
def main(words: list[str]) -> None:
    """Analyse the studies named again."""
    parser = argparse.ArgumentParser(prog="./run_all.sh analyse", description=__doc__)
    parser.add_argument("studies", nargs="+", help="names of recorded studies")
    for name in parser.parse_args(words).studies:
        analyse_again(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
