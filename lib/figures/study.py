"""The figures that a study's notebook shows, each laid out over the study's settings.

The first factor is what is compared; the others make the settings. To add a figure, write a method
that yields a `StudyFigure` where the study has what it needs, whose docstring tells a reader what
to look for, and name it in `StudyFigures.applicable`.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lib.analysis import runs as of_runs
from lib.analysis.findings import REFERENCES
from lib.analysis.planned import margins_of, planned_measures
from lib.analysis.runs import read_parquet
from lib.figures import effects, training
from lib.figures.style import facets, in_lines, level_text, spread, variant
from lib.results import RunResult
from lib.study.io import read_json, relative, study_folder
from lib.study.metrics import MAIN, measures_in
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.schema import Level, digest
from lib.study.study import Study, load_study

MAX_VARIANTS = 6
"""Lines that one panel can hold."""
MAX_COLUMNS = 4

Row = tuple[pd.DataFrame, Callable[..., Axes]]
"""A table, and what draws a part of it on an `ax`."""


@dataclass(frozen=True)
class StudyFigure:
    """A figure that applies to a study: title and what to look for, data, and how to show it."""

    name: str
    title: str
    tables: list[pd.DataFrame]
    draw: Callable[[], None]
    words: str
    """What to look for, how it is drawn, and of which runs."""

    @property
    def data_hash(self) -> str:
        """SHA-256 of the tables that are drawn."""
        return digest([table.to_json(orient="split", double_precision=12) for table in self.tables])


@dataclass(frozen=True)
class StudyFigures:
    """A study's runs, what the analysis made of them, and every figure of both."""

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
        return of_runs.tidy(self.results)

    @cached_property
    def trace(self) -> pd.DataFrame:
        return self._of_runs(read_parquet(self.study, "trace"))

    @cached_property
    def curve(self) -> pd.DataFrame:
        return self._of_runs(read_parquet(self.study, "curve"))

    def _of_runs(self, table: pd.DataFrame) -> pd.DataFrame:
        """Give each row its run's baseline and status, and the losses of its text."""
        references = [name for name in REFERENCES if name in self.runs]
        return table.merge(self.runs[["arm", "seed", "baseline", "status", *references]])

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """What 03_analysis wrote."""
        path = study_folder(self.study.name) / "verdict.json"
        if not path.is_file():
            raise of_runs.ResultError(f"there is no {relative(path)}: execute 03_analysis first")
        return dict(read_json(path))

    def table(self, key: str) -> pd.DataFrame:
        """One of the tables of 03_analysis; empty where it does not apply."""
        table = pd.DataFrame(self.verdict.get(key) or [])
        empty = table.columns[table.isna().all()]  # JSON has None for NaN
        return table.astype(dict.fromkeys(empty, float))

    @cached_property
    def contrasts(self) -> pd.DataFrame:
        """The analysis' contrasts, with what `placed` adds."""
        return self.placed(self.table("contrasts"))

    @cached_property
    def tests(self) -> pd.DataFrame:
        """The tests of the plan's families, with what `placed` adds, the `margin` of those of
        equivalence (NaN of others), and whether they `decided` anything."""
        table = self.placed(self.table("tests"))
        if self.plan is None or table.empty:
            return table
        margins = table["measure"].map(margins_of(self.plan)).where(table["test"] == "equivalence")
        decided = ~table["answer"].isin(["undecided", "not tested"])
        return table.assign(margin=margins.astype(float), decided=decided)

    def placed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Give differences each arm's variant, setting and levels, the variant that it is held
        against (`reference`), and whether that is its own baseline (`own`)."""
        if table.empty:
            table = pd.DataFrame(columns=["arm", "baseline", "measure", "mean_delta"])
        arms = self.runs.drop_duplicates("arm").set_index("arm")
        table = table.join(arms[["variant", "setting", *self.study.factors]], on="arm")
        is_own = table["baseline"] == table["arm"].map(arms["baseline"])
        return table.assign(reference=table["baseline"].map(arms["variant"]), own=is_own)

    def within(self, table: pd.DataFrame, factor: str) -> pd.DataFrame:
        """Add the levels of all factors but the first and `factor`, as `within`."""
        return table.assign(within=of_runs.other_settings(table, self.study, factor))

    def _ordered(self, table: pd.DataFrame) -> pd.DataFrame:
        """Where compared levels are numbers, order them: the baseline, then the others by size."""
        first = next(iter(self.study.factors), "")
        levels: Any = {arm.variant: arm.levels.get(first) for arm in self.study.arms()}
        if {type(level) for level in levels.values()} <= {int, float}:
            baseline, *others = levels
            names = [baseline, *sorted(others, key=levels.get)]
            return table.assign(variant=pd.Categorical(table["variant"], names))
        return table

    def levels(self, factor: str) -> list[Level]:
        """List the levels of a factor over all arms, those beside the grid too."""
        return list(dict.fromkeys(arm.levels[factor] for arm in self.study.arms()))

    def applicable(self) -> Iterator[StudyFigure]:
        """Give every figure for which the study has something to show, in order. ResultError when
        the study has not been analysed."""
        makers = [self._effects, self._losses, self._smoothness, self._trends, self._comparison]
        makers += [self._interactions, self._stability, self._inside, self._calibration]
        return iter([self._about(f, make) for make in [*makers, self._tasks] for f in make()])

    def _about(self, figure: StudyFigure, maker: Callable[[], Any]) -> StudyFigure:
        """Begin the words with the title and what the docstring of its maker says."""
        description = inspect.cleandoc(maker.__doc__ or "")
        return replace(figure, words=f"## {figure.title}\n\n{description} *{figure.words}.*")

    def _effects(self) -> Iterator[StudyFigure]:
        """What differs from what, and by how much? Each row is one variant held against
        another: its mean paired difference with the 95 % *t* interval. Hollow marks are
        undecided; a grey band is the margin within which two variants count as equivalent.
        Drawn by `forest` from the tests of the plan's families in 03, or without any from
        its contrasts."""
        if self.runs["setting"].nunique() > 2:
            return  # of many settings, other figures say more
        table, variants = self.tests, self.runs["variant"].nunique()
        if table.empty:
            if variants <= 3 or variants > MAX_VARIANTS:
                return  # few, the comparison shows
            table = self.contrasts.assign(family="", margin=float("nan"), decided=True)
            table = table[table["measure"].isin(measures_in("mechanism"))]
        rows: dict[str, Row] = {
            str(name): (part, partial(effects.forest, measure=str(name)))
            for name, part in table.groupby("measure", sort=False)
            if part["mean_delta"].notna().any()
        }
        heights = [0.45 + 0.16 * (len(t) + t["family"].nunique()) for t, _ in rows.values()]
        if rows:
            yield self._figure("effects", "Effects", rows, most_variants=99, height=heights)

    def _losses(self) -> Iterator[StudyFigure]:
        """Does the loss fall smoothly, and when do variants part? First the dev loss,
        beside what counting characters and pairs of them reaches on the held-out text
        (dotted); then how far each run is from its baseline's with the same seed. Lines are
        means over seeds, bands reach from the lowest to the highest. A diverged run ends in
        a cross; a loss far above its initial value is cut off. Drawn by `trajectory` and
        `difference` from the dev curves of all runs."""
        yield self._figure("loss", "Loss", self._course("dev_loss"), height=1.9)

    def _smoothness(self) -> Iterator[StudyFigure]:
        """Is training smooth? The cosine between the gradients of two parts of dev: 1 means
        that a step that helps one helps the other. Then how far each run is from its
        baseline's with the same seed. Lines are means over seeds, bands reach from the
        lowest to the highest. Drawn by `trajectory` and `difference` from the dev curves of
        all runs."""
        y = "gradient_cosine"
        if y in self.curve and self.curve[y].notna().any():
            yield self._figure("smoothness", "Smoothness", self._course(y), height=1.9)

    def _course(self, y: str) -> dict[str, Row]:
        """Lay out a column of the dev curves, and its difference from that of the baseline."""
        rows: dict[str, Row] = {y: (self.curve, partial(training.trajectory, y=y))}
        if (self.curve["arm"] != self.curve["baseline"]).any():
            rows["difference"] = (self.curve, partial(training.difference, y=y))
        return rows

    def _trends(self) -> Iterator[StudyFigure]:
        """Do gradients settle? Their norm, that of the embeddings, and AdamW's second
        moment. Lines are means over seeds, bands reach from the lowest to the highest. A
        diverged run ends in a cross. Drawn by `trajectory` from the traces and dev curves
        of all runs."""
        names = {"grad_norm": self.trace, "embedding_norm": self.curve}
        names |= {"second_moment_mean": self.trace}
        rows: dict[str, Row] = {
            y: (table, partial(training.trajectory, y=y))
            for y, table in names.items()
            if y in table and table[y].notna().any()
        }
        yield self._figure("trend", "Gradients", rows)

    def _comparison(self) -> Iterator[StudyFigure]:
        """Do the lines of all seeds slope the same way? A thin line joins the runs of one
        seed; a bar is a variant's mean. Drawn by `paired_seeds` from the runs' measures."""
        planned = planned_measures(self.plan) if self.plan else []
        of_tasks = [name for name in self.study.stock_measures if name in planned]
        rows: dict[str, Row] = {
            name: (self.runs, partial(effects.paired_seeds, measure=name))
            for name in of_runs.available_measures(
                [*measures_in("comparison"), *of_tasks], self.runs
            )
        }
        many = self.runs["variant"].nunique() > MAX_VARIANTS
        # Of many settings, the interaction says more.
        if rows and not many and self.runs["setting"].nunique() <= 2:
            yield self._figure("comparison", "Comparison", rows)

    def _interactions(self) -> Iterator[StudyFigure]:
        """Does the effect depend on this factor? The main measure at each of its levels,
        and the paired difference to the baseline, with its 95 % *t* interval: where that
        changes its side of zero, the effect flips. Lines are means over seeds, bands reach
        from the lowest to the highest. Diverged runs are crosses at the top with their
        number; lines leave them out. Drawn by `interaction` from the runs' measures and by
        `differences` from the contrasts of 03."""
        deltas = self.contrasts.query("own and measure == @MAIN")
        for factor in list(self.study.factors)[1:]:
            levels = self.levels(factor)
            if len(levels) < 2 or self.runs[MAIN].isna().all():
                continue
            how: Any = {"measure": MAIN, "factor": factor, "levels": levels}
            rows: dict[str, Row] = {
                "values": (self.within(self.runs, factor), partial(effects.interaction, **how))
            }
            if len(deltas):
                draw = partial(effects.differences, **how)
                rows["differences"] = (self.within(deltas, factor), draw)
            name = factor.rpartition(".")[2]
            title = f"Interaction with {name.replace('_', ' ')}"
            yield self._figure(f"interaction-{name}", title, rows, "within")

    def _stability(self) -> Iterator[StudyFigure]:
        """Where is training unstable, and what cures it? In each cell, how many of how many
        runs are unstable, and below it the median of their largest rises in nats; the
        darker, the larger the share. A dash: not judged. Drawn by `stability_cells` from
        the table of 03."""
        table = self.table("stability_map")
        if table.empty or self.runs["setting"].nunique() == 1 or not table["unstable"].sum():
            return
        factor = max(list(self.study.factors)[1:], key=lambda name: len(self.levels(name)))
        levels = self.runs.drop_duplicates("arm")[["arm", factor]]
        table = self.within(table.merge(levels), factor)
        labels = table["variant"].map(lambda name: variant(name).label)
        alone = table["within"].nunique() == 1
        table = table.assign(
            column=table[factor].map(level_text),
            row=labels if alone else table["within"].map(in_lines),
            panel="" if alone else labels,
        )
        draw = partial(effects.stability_cells, x=factor.rpartition(".")[2].replace("_", " "))
        height = 0.5 + 0.38 * table["row"].nunique()
        yield self._figure("stability", "Stability", {"": (table, draw)}, "panel",
                           height=height)  # fmt: skip

    def _inside(self) -> Iterator[StudyFigure]:
        """What does the layer change inside? The norm of the embeddings and their
        similarity through training (1: all point one way); the residual stream's norm from
        block to block, thin and pale before training; AdamW's second moment by part of the
        model at the last step. Drawn by `trajectory`, `residual_norms` and `second_moments`
        from the dev curves."""
        rows: dict[str, Row] = {
            "embedding_norm": (self.curve, partial(training.trajectory, y="embedding_norm")),
            "embedding_cosine": (self.curve, partial(training.trajectory, y="embedding_cosine")),
            "residual_norm": (self.curve, training.residual_norms),
            "second_moment": (self.curve, training.second_moments),
        }
        yield self._figure("inside", "Inside", rows, at_most=2)

    def _calibration(self) -> Iterator[StudyFigure]:
        """Are predicted probabilities right, and does a longer context help? Reliability
        over all held-out characters, loss and calibration error on test by softmax
        temperature, loss by how many characters a prediction could see. Drawn by
        `reliability_diagram` and `trend` from the runs' raw files and the tables in their
        results."""
        temperatures = of_runs.read_table(self.results, "temperatures")
        if temperatures.empty:
            return  # every run diverged
        bins, positions = (read_parquet(self.study, name) for name in ("bins", "positions"))
        runs_at = temperatures.groupby("temperature")["nll"].transform("size")
        shared = temperatures[runs_at == runs_at.max()]  # not each run's own best
        rows: dict[str, Row] = {
            "reliability": (bins, training.reliability_diagram),
            "nll": (shared, partial(training.trend, y="nll", x="temperature")),
            "ece": (shared, partial(training.trend, y="ece", x="temperature")),
            "position_loss": (positions, partial(training.trend, y="position_loss", x="context")),
        }
        yield self._figure("calibration", "Calibration and length", rows, at_most=2)

    def _tasks(self) -> Iterator[StudyFigure]:
        """In which tasks of the suite do variants differ by more than seeds do? 0 is
        guessing, 1 is all right. Drawn by `task_accuracies` from the tables in the runs'
        results."""
        tasks = of_runs.read_table(self.results, "tasks")
        if len(tasks):  # some studies leave the suite out
            rows: dict[str, Row] = {"tasks": (tasks, effects.task_accuracies)}
            yield self._figure("tasks", "Tasks", rows, at_most=2, height=5.5)

    def _figure(
        self, name: str, title: str, rows: dict[str, Row], by: str = "setting", *,
        at_most: int = MAX_COLUMNS, most_variants: int = MAX_VARIANTS, **layout: Any,
    ) -> StudyFigure:  # fmt: skip
        """Lay out a figure with a row per table and a column per value of `by`. Of more than
        `at_most` columns, or `most_variants`, those shown are evenly spread from the first to the
        last, and the words say so."""
        settings = list(dict.fromkeys(next(iter(rows.values()))[0][by]))
        variants = list(dict.fromkeys(arm.variant for arm in self.study.arms()))
        columns, drawn = spread(settings, at_most), spread(variants, most_variants)
        tables = {
            row: self._ordered(table[table["variant"].isin(drawn)])
            for row, (table, _) in rows.items()
        }

        def draw() -> None:
            with facets(name, self.folder, list(rows), columns, **layout) as axes:
                for (row, column), ax in axes.items():
                    rows[row][1](tables[row][tables[row][by] == column], ax=ax)

        n = self.runs["seed"].nunique()
        parts = [f"{self.verdict['standing']}: {self.study.name}, n = {n} seeds"]
        for some, every, what in ((columns, settings, "settings"), (drawn, variants, "variants")):
            parts += [f"{len(some)} of {len(every)} {what}"] if len(some) < len(every) else []
        return StudyFigure(name, title, list(tables.values()), draw, ", ".join(parts))


def drawn(study: str) -> dict[str, dict[str, str]]:
    """Per figure of a study, not drawn: the hash of its data, and its words."""
    figures = StudyFigures(design := load_study(study), of_runs.collect(design))
    return {f.name: {"data": f.data_hash, "words": f.words} for f in figures.applicable()}
