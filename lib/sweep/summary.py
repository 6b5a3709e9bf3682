"""What a sweep says at its end of a study: its arms and what they measured, the verdict on its
plan, and where to read more."""

import sys
from math import nan
from typing import Any

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
from lib.stats.runs import available_measures, main_measures, tidy
from lib.stats.tables import mean_and_sd, not_compared

WIDTH = 28
"""Characters that a measure takes."""
_ENDS = ("mean_delta", "t_low", "t_high")


def summarise(study: Study) -> None:
    """Print a finished study's table, its verdict, and where to read more."""
    analysed, folder = result_file("03_analysis", study.name), study_folder(study.name)
    if not analysed.is_file():  # --until and the like
        print(f"{study.name}: not analysed, as the flags ask for a part only")
        return
    runs = tidy(RunResult.model_validate(run) for run in read_json(analysed)["runs"])
    verdict, plan = read_json(folder / "verdict.json"), load_plan(study)
    # Asked of the output itself: with FORCE_COLOR, as kernels set it, rich would colour a pipe.
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False, markup=False)
    arms, seeds = runs["arm"].nunique(), runs["seed"].nunique()
    console.print(f"\n{study.name}: {len(runs)} runs, of {arms} arms × {seeds} seeds\n")
    first = main_measures(runs, plan)
    measures = available_measures([*first, *measures_in("headline")], runs)
    measures = measures[: max(1, (console.width - 20) // WIDTH)]
    console.print(_table(runs, verdict["contrasts"], measures))
    console.print(
        "Mean ± sd over seeds; below it the paired difference from the arm's baseline, and its "
        f"interval. All measures: {relative(folder)}/03_analysis.ipynb {not_compared(runs)}"
    )
    effects = [row for row in verdict["effects"] if row["measure"] in first[:1]]
    if effects := [row for row in effects if row["kind"] != "simple"]:
        title = MEASURES[first[0]].title
        console.print(f"\nEvery factor, over the levels of the others, in {title}:")
        widest = max(len(row["effect"]) for row in effects)
        for row in effects:
            budget = f" ({row['budget']} differs)" if row["budget"] else ""
            console.print(f"  {row['effect']:{widest}}  {_estimate(row)}{budget}")
    if plan:
        from lib.stats.verdict import for_terminal  # loads scipy: a second

        print("", *for_terminal(verdict, console.width), sep="\n")
    record = Record(study.name)
    place = record.place if is_replaceable(study.name) else folder
    print(f"\nExecuted notebooks  {relative(place)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def _table(runs: pd.DataFrame, contrasts: list[dict[str, Any]], measures: list[str]) -> Table:
    """Lay out arms down and measures across; a diverged run is counted and averaged in nowhere."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    for name in measures:
        table.add_column(MEASURES[name].title, justify="right", no_wrap=True)
    own = {(row["arm"], row["baseline"], row["measure"]): row for row in contrasts}
    for (arm, baseline), rows in runs.groupby(["arm", "baseline"], sort=False):
        completed = rows[rows["status"] == "completed"]
        n_diverged = len(rows) - len(completed)
        cells = [f"{arm}\n{n_diverged} of {len(rows)} diverged" if n_diverged else str(arm)]
        for name in measures:
            cells.append(mean_and_sd(completed[name].dropna(), MEASURES[name].digits))
            if row := own.get((arm, baseline, name)):
                cells[-1] += f"\n{_estimate(row)}"
        table.add_row(*cells)
    return table


def _estimate(row: dict[str, Any]) -> str:
    """Write a difference with its interval; one seed has none, which JSON writes as null."""
    numbers = {name: nan if row[name] is None else row[name] for name in _ENDS}
    return MEASURES[row["measure"]].estimate(numbers)
