"""What a sweep says at its end of a study: its arms and what they measured, the verdict on its
plan, and where to read more."""

import sys

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from lib.analysis.runs import available_measures, tidy
from lib.analysis.tables import mean_and_sd, numbers
from lib.analysis.verdict import for_terminal
<<<<<<< HEAD
from lib.record.archive import Record, is_replaceable
=======
from lib.publish.template import mean_sd
from lib.record.archive import is_replaceable
from lib.record.record import Record
>>>>>>> eb3eaabc (The paper is written; its numbers and claims are looked up and checked when it is built)
from lib.results import RunResult
from lib.study.io import read_json, relative, result_file, study_folder
from lib.study.metrics import MEASURES, measures_in
from lib.study.preregistration import load_plan
from lib.study.study import Study

MAX_MEASURES = 4
"""Measures that are shown."""


def summarise(study: Study) -> None:
    """Print a finished study's table, its verdict, and where to read more."""
    analysed, folder, plan = (
        result_file("03_analysis", study.name), study_folder(study.name), load_plan(study),
    )  # fmt: skip
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
    console.print(_table(runs, contrasts, list(dict.fromkeys(measures))[:MAX_MEASURES]))
    console.print(
        "Mean ± sd over seeds; below it the paired difference from the arm's baseline, and its "
        f"interval. All measures: {relative(folder)}/03_analysis.ipynb"
    )
    if plan:
        print("", *for_terminal(verdict, console.width), sep="\n")
    record = Record(study.name)
    if not is_replaceable(study.name):
        print(f"\nExecuted notebooks  {relative(folder)}/, and figures/ beside them")
        print(f"The record          {relative(record.place)}/ came from elsewhere and is as it was")
        print(f"To replace it       ./run_all.sh params/{study.name}.yaml --replace")
        return
    print(f"\nExecuted notebooks  {relative(record.place)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")


<<<<<<< HEAD
=======
def _both(new: Mapping[str, Any], recorded: Mapping[str, Any]) -> Table:
    table = plain_table("arm", "here", "in the record")
    for arm in dict.fromkeys([*new["summary"], *recorded["summary"]]):
        rows = (results["summary"].get(arm) for results in (new, recorded))
        form = f".{MEASURES[MAIN].digits}f"
        table.add_row(arm, *(mean_sd(row[MAIN], form) if row else "" for row in rows))
    return table


def described(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Describe the arms of a study, a row each, in blocks that begin with their baseline: the
    levels of its factors; and where there are any, names of arms that are beside the grid,
    baselines that begin no block, and the number of `runs` (see `lib.analysis.runs.tidy`) that
    diverged."""
    arms = {arm.id: arm for arm in study.arms()}
    rows: dict[str, dict[str, str]] = {}
    for arm in sorted(arms.values(), key=lambda arm: list(arms).index(arm.baseline)):
        levels = {factor: arm.levels[factor] for factor in study.factors}
        row = {name: arm_id({name: level}).rpartition("=")[2] for name, level in levels.items()}
        if arm.id != arm_id(levels) or not levels:
            row["arm"] = arm.id
        if arms[arm.baseline].baseline != arm.baseline:
            row["baseline"] = arm.baseline
        diverged = runs.loc[runs["arm"] == arm.id, "status"] == "diverged"
        if diverged.any():
            row["diverged"] = f"{sum(diverged)} of {len(diverged)}"
        rows[arm.id] = row
    columns = ("arm", *study.factors, "baseline", "diverged")
    table = pd.DataFrame([*rows.values()], [*rows], columns).dropna(axis="columns", how="all")
    return table.fillna("").rename(columns=lambda name: name.rpartition(".")[2].replace("_", " "))


def tables(
    arms: pd.DataFrame,
    runs: pd.DataFrame,
    contrasts: Sequence[Mapping[str, Any]],
    measures: Sequence[str],
    console: Console,
) -> Iterator[Table]:
    """Lay out what described `arms` measured: mean ± sd, and below it the difference from their
    baseline. Measures for which the console has no room follow in a further table.

    `runs` is the table of `lib.analysis.runs.tidy`, `contrasts` are those of a verdict.
    """
    while measures:
        for number in range(len(measures), 0, -1):
            table = _table(arms, runs, contrasts, measures[:number])
            without_limit = console.options.update(max_width=10**4)
            if Measurement.get(console, without_limit, table).maximum <= console.width:
                break
        yield table
        measures = measures[number:]


>>>>>>> eb3eaabc (The paper is written; its numbers and claims are looked up and checked when it is built)
def _table(
    runs: pd.DataFrame, contrasts: dict[tuple[str, str], dict[str, float]], measures: list[str]
) -> Table:
    """Lay out arms down and measures across; a diverged run is counted and averaged in nowhere."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("arm", *(MEASURES[name].title for name in measures)):
        table.add_column(title, justify="left" if title == "arm" else "right", overflow="fold")
    for arm, own in runs.groupby("arm", sort=False):
        completed = own[own["status"] == "completed"]
        n_diverged = len(own) - len(completed)
        cells = [f"{arm}\n{n_diverged} of {len(own)} diverged" if n_diverged else str(arm)]
        for name in measures:
            digits = MEASURES[name].digits
            cells.append(mean_and_sd(completed[name].dropna(), digits))
            if row := contrasts.get((str(arm), name)):
                interval = (row["mean_delta"], row["t_low"], row["t_high"])
                cells[-1] += "\n" + numbers(*interval, f"+,.{digits}f")
        table.add_row(*cells)
    return table
