"""What a sweep says at its end of a study: its arms and what they measured, the verdict on its
plan, and where to read more."""

import sys

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from lib.config.io import read_json, relative, result_file, study_folder
from lib.config.metrics import MEASURES, measures_in
from lib.config.preregistration import load_plan
from lib.config.study import Study
from lib.record.archive import Record, is_replaceable
from lib.results import RunResult
from lib.stats.runs import available_measures, tidy
from lib.stats.tables import mean_and_sd, numbers

WIDTH = 28
"""Characters that a measure takes."""


def summarise(study: Study) -> None:
    """Print a finished study's table, its verdict, and where to read more."""
    analysed, folder, plan = (
        result_file("03_analysis", study.name),
        study_folder(study.name),
        load_plan(study),
    )
    if not analysed.is_file():  # --until and the like
        print(f"{study.name}: not analysed, as the flags ask for a part only")
        return
    runs = tidy(RunResult.model_validate(run) for run in read_json(analysed)["runs"])
    verdict = read_json(folder / "verdict.json")
    # Asked of the output itself: with FORCE_COLOR, as kernels set it, rich would colour a pipe.
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False, markup=False)
    arms, seeds = runs["arm"].nunique(), runs["seed"].nunique()
    console.print(f"\n{study.name}: {len(runs)} runs, of {arms} arms × {seeds} seeds\n")
    contrasts = {(row["arm"], row["measure"]): row for row in verdict["contrasts"]}
    measures = available_measures(
        [*(plan.primary_measures if plan else ()), *measures_in("headline")], runs
    )
    console.print(
        _table(
            runs, contrasts, list(dict.fromkeys(measures))[: max(1, (console.width - 20) // WIDTH)]
        )
    )
    console.print(
        "Mean ± sd over seeds; below it the paired difference from the arm's baseline, and its "
        f"interval. All measures: {relative(folder)}/03_analysis.ipynb"
    )
    if plan:
        from lib.stats.verdict import for_terminal  # loads scipy: a second

        print("", *for_terminal(verdict, console.width), sep="\n")
    record = Record(study.name)
    place = record.place if is_replaceable(study.name) else folder
    print(f"\nExecuted notebooks  {relative(place)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def _table(
    runs: pd.DataFrame, contrasts: dict[tuple[str, str], dict[str, float]], measures: list[str]
) -> Table:
    """Lay out arms down and measures across; a diverged run is counted and averaged in nowhere."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("arm", *(MEASURES[name].title for name in measures)):
        table.add_column(title, justify="left" if title == "arm" else "right", no_wrap=True)
    for arm, own in runs.groupby("arm", sort=False):
        completed = own[own["status"] == "completed"]
        n_diverged = len(own) - len(completed)
        cells = [f"{arm}\n{n_diverged} of {len(own)} diverged" if n_diverged else str(arm)]
        for name in measures:
            digits = MEASURES[name].digits
            cells.append(mean_and_sd(completed[name].dropna(), digits))
            if row := contrasts.get((str(arm), name)):
                # One seed has no interval, which JSON writes as null.
                mean, low, high = pd.Series(row)[["mean_delta", "t_low", "t_high"]].astype(float)
                cells[-1] += "\n" + numbers(mean, low, high, f"+,.{digits}f")
        table.add_row(*cells)
    return table
