"""Recorded studies analysed and drawn again by the code at hand, from the runs in their record.

    ./run_all.sh analyse NAME …

Runs and their notebooks stay as they are; 03_analysis and 04_figures are executed again.
"""

import argparse
import shutil
import sys

from lib.publish.archive import archive, read_runs, record_folder, results_file
from lib.study.config import load_study
from lib.study.errors import ConfigError, exit_status
from lib.study.paths import PAPERS, shown, study_folder
from lib.study.record import write_json
from lib.workflow.execution import execute


def analyse_again(name: str) -> None:
    """Execute 03 and 04 of a recorded study again, and archive it.

    Raises ConfigError for a study without a record, or with runs beside it, and ExecutionError when
    a notebook fails; the record then stays as it was.
    """
    study = load_study(name)
    record, runs = record_folder(name), study_folder(name)
    if not record.is_dir() or not results_file(name).is_file():
        recorded = [path.name for path in PAPERS.glob("*/record/*") if path.is_dir()]
        raise ConfigError(f"study: '{name}' has no record; there are {', '.join(sorted(recorded))}")
    if any(runs.glob("*/seed-*/*")):
        raise ConfigError(
            f"{shown(runs)} holds runs: ./run_all.sh params/{name}.yaml analyses these runs; "
            "to analyse the record again, move them elsewhere"
        )
    try:
        shutil.copytree(record, runs, dirs_exist_ok=True)
        for run in read_runs(name):
            write_json(runs / run["arm"] / f"seed-{run['seed']}" / "result.json", run)
        for notebook in ("03_analysis", "04_figures"):
            print(f"{name}: {notebook}")
            execute(notebook, study)
        archive(study)
    finally:
        shutil.rmtree(runs, ignore_errors=True)


@exit_status
def main(words: list[str]) -> None:
    """Analyse the studies named again."""
    parser = argparse.ArgumentParser(prog="./run_all.sh analyse", description=__doc__)
    parser.add_argument("studies", nargs="+", help="names of recorded studies")
    for name in parser.parse_args(words).studies:
        analyse_again(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
