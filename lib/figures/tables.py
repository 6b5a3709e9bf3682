"""A study's runs and what the analysis made of them, as tables to draw; and one laid-out figure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lib.analysis.planned import margins_of
from lib.analysis.references import NAMES
from lib.analysis.runs import ResultError, other_settings, read_parquet, tidy
from lib.figures.style import facets, spread
from lib.study.config import Study
from lib.study.fields import Level, digest
from lib.study.paths import shown, study_folder
from lib.study.plan import Plan
from lib.study.record import RunResult, read_json
from lib.study.standing import load_plan

MOST_VARIANTS = 6
"""Lines that one panel can hold."""
MOST_COLUMNS = 4

Row = tuple[pd.DataFrame, Callable[..., Axes]]
"""A table, and what draws a part of it on an `ax`."""


@dataclass(frozen=True)
class StudyFigure:
    """A figure that applies to a study: title and what to look for, data, and how to show it."""

    name: str
    words: str
    tables: list[pd.DataFrame]
    draw: Callable[[], None]

    @property
    def data_hash(self) -> str:
        """SHA-256 of the tables that are drawn."""
        return digest([table.to_json(orient="split", double_precision=12) for table in self.tables])


@dataclass(frozen=True)
class StudyTables:
    """A study's runs and what the analysis made of them, ready to be drawn."""

    study: Study
    results: list[RunResult]

    @property
    def folder(self) -> Path:
        """Where the figures are written."""
        return study_folder(self.study.name) / "figures"

    @cached_property
    def plan(self) -> Plan | None:
        return load_plan(self.study)

    @cached_property
    def runs(self) -> pd.DataFrame:
        return tidy(self.results)

    @cached_property
    def trace(self) -> pd.DataFrame:
        return self._of_runs(read_parquet(self.study, "trace"))

    @cached_property
    def curve(self) -> pd.DataFrame:
        return self._of_runs(read_parquet(self.study, "curve"))

    def _of_runs(self, table: pd.DataFrame) -> pd.DataFrame:
        """Give each row its run's baseline and status, and the losses of its text."""
        known = [name for name in NAMES if name in self.runs]
        return table.merge(self.runs[["arm", "seed", "baseline", "status", *known]])

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """What 03_analysis wrote."""
        path = study_folder(self.study.name) / "verdict.json"
        if not path.is_file():
            raise ResultError(f"there is no {shown(path)}: execute 03_analysis first")
        content: dict[str, Any] = read_json(path)
        return content

    def found(self, key: str) -> pd.DataFrame:
        """One of the tables of 03_analysis; empty where it does not apply."""
        table = pd.DataFrame(self.verdict.get(key) or [])
        empty = table.columns[table.isna().all()]  # JSON has None for NaN
        return table.astype(dict.fromkeys(empty, float))

    @cached_property
    def contrasts(self) -> pd.DataFrame:
        """The analysis' contrasts, with what `placed` adds."""
        return self.placed(self.found("contrasts"))

    @cached_property
    def tests(self) -> pd.DataFrame:
        """The tests of the plan's families, with what `placed` adds, the `margin` of those of
        equivalence (NaN of others), and whether they `decided` anything."""
        table = self.placed(self.found("tests"))
        if self.plan is None or table.empty:
            return table
        margins = table["measure"].map(margins_of(self.plan))
        decided = ~table["answer"].isin(["undecided", "not tested"])
        margins = margins.where(table["test"] == "equivalence")
        return table.assign(margin=margins.astype(float), decided=decided)

    def placed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Give differences each arm's variant, setting and levels, the variant that it is held
        against (`reference`), and whether that is its own baseline (`own`)."""
        if table.empty:
            return table.reindex(columns=["arm", "measure", "mean_delta", "own", "setting"])
        arms = self.runs.drop_duplicates("arm").set_index("arm")
        table = table.join(arms[["variant", "setting", *self.study.factors]], on="arm")
        own = table["baseline"] == table["arm"].map(arms["baseline"])
        return table.assign(reference=table["baseline"].map(arms["variant"]), own=own)

    def within(self, table: pd.DataFrame, factor: str) -> pd.DataFrame:
        """Add the levels of all factors but the first and `factor`, as `within`."""
        return table.assign(within=other_settings(table, self.study, factor))

    def levels(self, factor: str) -> list[Level]:
        """List the levels of a factor over all arms, those beside the grid too."""
        return list(dict.fromkeys(arm.levels[factor] for arm in self.study.arms()))

    def _figure(
        self, name: str, title: str, words: str, rows: dict[str, Row], by: str = "setting", *,
        at_most: int = MOST_COLUMNS, most_variants: int = MOST_VARIANTS, **layout: Any,
    ) -> StudyFigure:  # fmt: skip
        """Lay out a figure with a row per table and a column per value of `by`. Of more than
        `at_most` columns, or `most_variants`, those shown are evenly spread from the first to the
        last, and the words say so."""
        every = {
            "settings": list(dict.fromkeys(next(iter(rows.values()))[0][by])),
            "variants": list(dict.fromkeys(arm.variant for arm in self.study.arms())),
        }
        shown = {
            "settings": spread(every["settings"], at_most),
            "variants": spread(every["variants"], most_variants),
        }
        tables = {
            row: table[table["variant"].isin(shown["variants"])] if "variant" in table else table
            for row, (table, _) in rows.items()
        }

        def draw() -> None:
            with facets(name, self.folder, list(rows), shown["settings"], **layout) as axes:
                for (row, column), ax in axes.items():
                    rows[row][1](tables[row][tables[row][by] == column], ax=ax)

        said = [f"{self.verdict['standing']}: {self.study.name}, n = {len(self.study.seeds)} seeds"]
        said += [
            f"{len(shown[what])} of {len(every[what])} {what}"
            for what in every
            if len(shown[what]) < len(every[what])
        ]
        text = f"## {title}\n\n{words} *{', '.join(said)}.*"
        return StudyFigure(name, text, list(tables.values()), draw)
