"""Recorded studies analysed and drawn again by the code at hand, from the runs in their record.

    ./run_all.sh analyse NAME …

Runs and their notebooks stay as they are; 03_analysis and 04_figures are executed again.
"""

import json
import shutil
import sys

from lib.publish.archive import archive, record_folder, results_file
from lib.study.config import load_study
from lib.study.errors import ConfigError, unknown
from lib.study.paths import PAPERS, shown, study_folder
from lib.study.record import write_json
from lib.workflow.execution import ExecutionError, execute


def analyse_again(name: str) -> None:
    """Execute 03 and 04 of a recorded study again, and archive it.

    Raises ConfigError for a study without a record, or with runs beside it, and ExecutionError when
    a notebook fails; the record then stays as it was.
    """
    study = load_study(name)
    record, runs = record_folder(name), study_folder(name)
    if not record.is_dir() or not results_file(name).is_file():
        recorded = [path.name for path in PAPERS.glob("*/record/*") if path.is_dir()]
        raise ConfigError(f"study: no record: {unknown(name, sorted(recorded))}")
    if any(runs.glob("*/seed-*/*")):
        raise ConfigError(
            f"{shown(runs)} holds runs: ./run_all.sh params/{name}.yaml analyses these runs; "
            "to analyse the record again, move them elsewhere"
        )
    try:
        shutil.copytree(record, runs, dirs_exist_ok=True)
        for run in json.loads(results_file(name).read_text("utf-8"))["runs"]:
            write_json(runs / run["arm"] / f"seed-{run['seed']}" / "result.json", run)
        for notebook in ("03_analysis", "04_figures"):
            print(f"{name}: {notebook}")
            execute(notebook, study)
        archive(study)
    finally:
        shutil.rmtree(runs, ignore_errors=True)


def main(names: list[str]) -> int:
    """Analyse the studies named again."""
    try:
        if not names or any(name.startswith("-") for name in names):
            raise ConfigError("name the studies to analyse again: ./run_all.sh analyse NAME …")
        for name in names:
            analyse_again(name)
    except (ValueError, ExecutionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
