"""What a sweep says at its end of a study: a table no wider than the terminal, arms down, factors
and measures across; the verdict on its plan; and where to read more."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import Any

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lib.analysis.runs import available_measures, tidy
from lib.analysis.tables import mean_and_sd, numbers
from lib.analysis.verdict import for_terminal
from lib.publish.wording import mean_sd
from lib.record.archive import is_replaceable
from lib.record.record import Record
from lib.results import RunResult
from lib.study.io import read_json, relative, result_file, study_folder
from lib.study.metrics import MAIN, MEASURES, measures_in
from lib.study.plan import ALPHA
from lib.study.preregistration import load_plan
from lib.study.study import Study, arm_id
from lib.workflow.progress import plain_table, terminal

MAX_MEASURES = 5
"""Measures that are shown."""


def summarise(study: Study) -> None:
    """Print a finished study's table, its verdict, and where to read more; where the record came
    from elsewhere, the main measure of both."""
    record, folder, plan = Record(study.name), study_folder(study.name), load_plan(study)
    analysed, archived = (result_file(name, study.name) for name in ("03_analysis", "archive"))
    if not analysed.is_file() or not archived.is_file():  # --until and the like
        print(f"{study.name}: not archived, as the flags ask for a part only")
        return
    console, results = terminal(), read_json(analysed)
    verdict = read_json(folder / "verdict.json")
    runs = tidy(map(RunResult.model_validate, results["runs"]))
    contrasted = {row["measure"] for row in verdict["contrasts"]}
    headline = sorted(measures_in("headline"), key=lambda name: name not in contrasted)
    measures = available_measures([*(plan.primary_measures if plan else ()), *headline], runs)[
        :MAX_MEASURES
    ]
    arms, seeds = runs["arm"].nunique(), runs["seed"].nunique()
    console.print(f"\n{study.name}: {len(runs)} runs, of {arms} arms × {seeds} seeds\n")
    for table in tables(described(study, runs), runs, verdict["contrasts"], measures, console):
        console.print(table, "")
    notebooks = record.place if is_replaceable(record) else folder
    note = "Mean ± sd over seeds."
    if contrasted:
        level = f"{1 - (plan.alpha if plan else ALPHA):.0%}"
        note += (
            " Below it the paired difference from the baseline, which is the first arm of each "
            f"block, and its {level} interval."
        )
    n_seeds = runs.groupby("arm")["seed"].nunique()
    if any(row["n"] < n_seeds.get(row["arm"], 0) for row in verdict.get("hypothesis_tests", [])):
        note += " The table is over all seeds; a hypothesis below says how many its test is over."
    console.print(f"{note} All measures: {relative(notebooks)}/03_analysis.ipynb")
    if plan:
        print("", *for_terminal(verdict, console.width), sep="\n")
    if not is_replaceable(record):
        console.print(f"\n{MEASURES[MAIN].title}\n", _both(results, record.results))
        print(f"\nExecuted notebooks  {relative(folder)}/, and figures/ beside them")
        print(f"The record          {relative(record.place)}/ came from elsewhere and is as it was")
        print(f"To replace it       ./run_all.sh params/{study.name}.yaml --replace")
        return
    print(f"\nExecuted notebooks  {relative(record.place)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def _both(new: Mapping[str, Any], recorded: Mapping[str, Any]) -> Table:
    table = plain_table("arm", "here", "in the record")
    for arm in dict.fromkeys([*new["summary"], *recorded["summary"]]):
        rows = (results["summary"].get(arm) for results in (new, recorded))
        table.add_row(arm, *(mean_sd(row[MAIN], MAIN) if row else "" for row in rows))
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


def _table(
    arms: pd.DataFrame,
    runs: pd.DataFrame,
    contrasts: Sequence[Mapping[str, Any]],
    measures: Sequence[str],
) -> Table:
    table = plain_table(*(textwrap.fill(name, 10) for name in arms.columns))
    for name in measures:
        title = textwrap.fill(MEASURES[name].title, 20, break_on_hyphens=False)
        table.add_column(title, justify="right", no_wrap=True)
    baselines = dict(zip(runs["arm"], runs["baseline"], strict=True))
    differences = {(row["arm"], row["baseline"], row["measure"]): row for row in contrasts}
    for arm, levels in zip(arms.index, arms.itertuples(index=False), strict=True):
        if arm == baselines[arm] and differences:
            table.add_section()
        completed = runs[(runs["arm"] == arm) & (runs["status"] == "completed")]
        cells = []
        for name in measures:
            measure = MEASURES[name]
            cells.append(mean_and_sd(completed[name].dropna(), measure.digits))
            if row := differences.get((arm, baselines[arm], name)):
                interval = [row[key] for key in ("mean_delta", "t_low", "t_high")]
                mean, low, high = (nan if number is None else number for number in interval)
                cells[-1] += "\n" + numbers(mean, low, high, f"+,.{measure.digits}f")
        table.add_row(*levels, *cells)
    return table
