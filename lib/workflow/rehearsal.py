"""A study's analysis, rehearsed before anything trains: 03 and 04 are executed on made-up results
of its own design, so that no error of theirs waits until all training is over.

    python -m lib.workflow.rehearsal STUDY …

It has a process and a folder of its own, and touches neither runs/ nor the record.
"""

import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from lib.analysis import resampling
from lib.figures import style
from lib.study import config, paths
from lib.study.claim import load_plan
from lib.study.config import Study, load_study
from lib.study.errors import UserError, exit_status
from lib.study.files import read_json
from lib.study.paths import HEADLESS, NOTEBOOKS, ROOT
from lib.workflow.made_up import lay_out

SEEDS = 3
"""With two, nothing is interpolated: quartiles and medians of three are not ends of the range."""


class _Shell(InteractiveShell):
    """Executes cells as a kernel does, and keeps the first error, also of what a cell shows."""

    error: BaseException | None = None

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        self.error = self.error or (exc_tuple or sys.exc_info())[1]


def rehearse(study: Study) -> None:
    """Execute 03 as if every run had completed, then with an unstable run and a diverged one, then
    with none that completed; and 04 after the last, which has few figures, and after the one of
    the others that has more to show. Of a study under no plan that names its seeds, a few suffice:
    no code depends on how many more there are."""
    plan = load_plan(study)
    if not plan or study.name not in plan.confirmatory:
        study = study.model_copy(update={"seeds": study.seeds[:SEEDS]})
    runs = len(list(study.arms())) * len(study.seeds)
    for diverged in sorted({0, 1, runs}):
        perform(study, diverged, figures=diverged in (runs, int(len(study.seeds) > 2)))


def perform(study: Study, diverged: int, figures: bool) -> None:
    """Execute 03, and perhaps 04, on made-up results, of which some diverged. Raises UserError,
    which says in one line where an analysis fails and why."""
    with (
        tempfile.TemporaryDirectory(prefix="rehearsal-") as folder,
        patch.multiple(paths, RUNS=Path(folder)),
        patch.multiple(config, load_study=lambda _: study),  # for the notebooks' cells
        # What takes the time, and depends on no design: many resamples, and files of figures.
        patch.multiple(resampling, RESAMPLES=99),
        patch.multiple(style, save=_lay_out, show=plt.close),
    ):
        lay_out(study, load_plan(study), diverged)
        for notebook in ["03_analysis"] + ["04_figures"] * figures:
            if error := _execute(notebook):
                how = {0: "all completed", 1: "one of them diverged"}.get(diverged, "all diverged")
                raise UserError(
                    f"{study.name}: {notebook} fails on made-up runs of this study, {how}: "
                    f"{_told(error)}; nothing was trained"
                )


def _lay_out(figure: Any, folder: Path, name: str) -> None:
    """Do all that drawing a figure does, but write none."""
    figure.draw_without_rendering()


def _execute(notebook: str) -> BaseException | None:
    """Execute a notebook's cells, whatever study its parameters name; return the first error."""
    quiet = Config({"HistoryManager": {"enabled": False}})
    shell: Any = _Shell.instance(config=quiet, user_module=ModuleType("rehearsed"))
    try:
        with capture_output():
            for cell in read_json(NOTEBOOKS / f"{notebook}.ipynb")["cells"]:
                if cell["cell_type"] == "code" and not shell.error:
                    shell.run_cell("".join(cell["source"]))
    finally:
        _Shell.clear_instance()
    error: BaseException | None = shell.error
    return error


def _told(error: BaseException) -> str:
    """Write an error in one line, with the place in this repository that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(ROOT / "lib")]
    place = f" ({paths.shown(Path(own[-1].filename))}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


@exit_status
def main(names: list[str]) -> None:
    """Rehearse the analysis of the studies named."""
    os.environ[HEADLESS] = "1"
    for name in names:
        rehearse(load_study(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
