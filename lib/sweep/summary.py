"""What a sweep prints when a study is finished: a table of its arms, its answers in words, and
where to read more."""

import re
import sys
import textwrap

import pandas as pd
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from lib.config.claim import load_plan
from lib.config.contrasts import short_commits
from lib.config.files import read_json
from lib.config.metrics import MEASURES, measures_in
from lib.config.paths import relative, result_file, study_folder
from lib.config.plan import ALPHA, Plan
from lib.config.study import Study
from lib.config.yaml import Json
from lib.record.archive import Record, is_replaceable
from lib.results import RunResult
from lib.stats.opening import answer_sentences
from lib.stats.runs import available_measures, main_measures, tidy
from lib.stats.tables import cautions, contrast_overview, means

WIDTH = 28
"""Width of a measure's column, in characters."""


def summarise(study: Study) -> None:
    """Print a finished study's table and answers."""
    analysed, folder = result_file("03_analysis", study.name), study_folder(study.name)
    if not analysed.is_file():  # --until and the like
        print(f"{study.name}: not analysed, as the flags ask for a part only")
        return
    runs = tidy(RunResult.model_validate(run) for run in read_json(analysed)["runs"])
    print_study(study.name, runs, read_json(folder / "verdict.json"), load_plan(study))


def print_study(name: str, runs: pd.DataFrame, verdict: Json, plan: Plan | None) -> None:
    """Print a table of arms and their differences, then the answers as 03 opens with them. `runs`
    is the tidy table."""
    # Ask the output itself: with FORCE_COLOR, which kernels set, rich would colour a pipe.
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False, markup=False)
    arms, seeds = runs["arm"].nunique(), runs["seed"].nunique()
    console.print(f"\n{name}: {len(runs)} runs, {arms} arms × {seeds} seeds\n")
    measures = [*main_measures(runs, plan), *measures_in("headline")]
    longest = max(len(short_commits(arm)) for arm in runs["arm"])
    measures = available_measures(measures, runs)[: max(1, (console.width - longest) // WIDTH)]
    contrasts = [row for row in verdict["contrasts"] if row["measure"] in measures]
    diverged = runs.loc[runs["status"] == "diverged", "arm"].value_counts()
    parts = [
        means(runs, measures).rename({arm: f"{arm} ({n} diverged)" for arm, n in diverged.items()}),
        contrast_overview(pd.DataFrame(contrasts)),
    ]
    console.print(_table(parts, measures, console.width - WIDTH * len(measures)))
    level = f"{1 - (plan.alpha if plan else ALPHA):.0%}"
    shown = f"Mean ± sd over seeds; then differences, seed by seed, with their {level} intervals."
    if verdict["hypothesis_tests"]:  # without hypotheses, the answers end with the cautions
        shown += f"\n{cautions(contrasts, runs)}"
    console.print(f"\n{shown.rstrip()}\n")
    because = "; ".join(verdict["exploratory_because"])
    claim = f"{verdict['standing']}: {because}" if because else verdict["standing"]
    answers = answer_sentences(verdict, plan, runs, {seed: seed for seed in runs["seed"]})
    console.print(Markdown(f"**{claim}**\n\n{answers}"))
    print()


def print_places(study: Study) -> None:
    """Print where the analysis, notebooks and numbers of a study's own runs are. Leave out a record
    that was made from other runs."""
    folder, record = study_folder(study.name), Record(study.name)
    if not result_file("03_analysis", study.name).is_file():
        return
    print(f"Analysis            {relative(folder)}/03_analysis.ipynb")
    print(f"Executed notebooks  {relative(folder)}/")
    print("To play with a run  notebooks/02_train.ipynb (open in VS Code or JupyterLab)")
    if not is_replaceable(study.name):
        print(f"Numbers             {relative(folder)}/verdict.json")
        return
    print(f"Record              {relative(record.folder)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def _wrapped(name: str, width: int) -> str:
    """Wrap a name at spaces; what is still too long after commas; and the rest anywhere. "−", "×"
    and "at" start a line and never end one. Lines after the first are indented."""
    name = short_commits(name.replace(" - ", " − "))
    name = re.sub(r"(?<!\S)(−|×|at) ", "\\1\xa0", name)
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
    lines = [name]
    for comma, wrapper.break_long_words in ((",", False), (", ", False), (",", True)):
        lines = [
            part.replace(", ", ",")
            for line in lines
            for part in (wrapper.wrap(line.replace(",", comma)) if len(line) > width else [line])
        ]
    return "\n".join(lines).replace("\xa0", " ")


def _table(parts: list[pd.DataFrame], measures: list[str], width: int) -> Table:
    """Stack several tables into one. Names longer than `width` are wrapped, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(overflow="fold")
    for name in measures:
        title = textwrap.fill(MEASURES[name].title, WIDTH - 2)
        table.add_column(title, justify="right", no_wrap=True)
    for part in parts:
        cells = part.reindex(columns=[MEASURES[name].title for name in measures])
        for name, *row in cells.fillna("n/a").itertuples():
            table.add_row(_wrapped(str(name), width), *row)
        table.add_section()
    return table
