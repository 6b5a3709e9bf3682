"""The figures that a study's notebook shows, each laid out over the study's settings.

The first factor is what is compared; the others make the settings. To add a figure, write a method
that yields a `StudyFigure` where the study has what it needs, and name it in
`StudyFigures.applicable`.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lib.analysis.learning_rate import RATE, final_losses
from lib.analysis.runs import (
    ResultError,
    collect,
    other_settings,
    read_parquet,
    read_table,
    taken,
    tidy,
)
from lib.figures.factors import (
    differences,
    efficiency,
    forest,
    interaction,
    learning_rates,
    paired_seeds,
    scale_of,
    task_accuracies,
    unstable_shares,
)
from lib.figures.style import facets
from lib.figures.training import (
    reliability_diagram,
    residual_norms,
    second_moments,
    trajectory,
    trend,
)
from lib.study.config import Study, load_study
from lib.study.fields import Level, digest
from lib.study.measures import MAIN, measures_in
from lib.study.paths import shown, study_folder
from lib.study.record import RunResult

BAND = "Line: mean over seeds; band: lowest to highest."

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
class StudyFigures:
    """A study's runs and what the analysis made of them, ready to be drawn."""

    study: Study
    results: list[RunResult]

    def applicable(self) -> Iterator[StudyFigure]:
        """Give every figure for which the study has something to show, in order. ResultError when
        the study has not been analysed."""
        makers = (
            self._trends,
            self._comparison,
            self._interactions,
            self._learning_rates,
            self._mechanism,
            self._efficiency,
            self._inside,
            self._calibration,
            self._tasks,
        )
        return iter([figure for make in makers for figure in make()])

    @property
    def folder(self) -> Path:
        """Where the figures are written."""
        return study_folder(self.study.name) / "figures"

    @cached_property
    def runs(self) -> pd.DataFrame:
        return tidy(self.results)

    @cached_property
    def trace(self) -> pd.DataFrame:
        return self._with_status(read_parquet(self.study, "trace"))

    @cached_property
    def curve(self) -> pd.DataFrame:
        return self._with_status(read_parquet(self.study, "curve"))

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """What 03_analysis wrote."""
        path = study_folder(self.study.name) / "verdict.json"
        if not path.is_file():
            raise ResultError(f"there is no {shown(path)}: execute 03_analysis first")
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return content

    @cached_property
    def contrasts(self) -> pd.DataFrame:
        """The analysis' contrasts with each arm's variant, setting and levels, the variant that it
        is held against (`reference`), and whether that is its own baseline (`own`)."""
        arms = self.runs.drop_duplicates("arm").set_index("arm")
        needed = ["arm", "baseline", "measure", "mean_delta", "t_low", "t_high"]
        table = pd.DataFrame(self.verdict["contrasts"] or {name: [] for name in needed})
        table = table.join(arms[["variant", "setting", *self.study.factors]], on="arm")
        numbers = table[["mean_delta", "t_low", "t_high"]].astype(float)  # None becomes NaN
        own = table["baseline"] == table["arm"].map(arms["baseline"])
        return table.assign(reference=table["baseline"].map(arms["variant"]), own=own, **numbers)

    def _with_status(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.merge(self.runs[["arm", "seed", "status"]], on=["arm", "seed"])

    def _within(self, table: pd.DataFrame, factor: str) -> pd.DataFrame:
        """Add the levels of all factors but the first and `factor`, as `within`."""
        return table.assign(within=other_settings(table, self.study, factor))

    def _levels(self, factor: str) -> list[Level]:
        """List the levels of a factor over all arms, those beside the grid too."""
        return list(dict.fromkeys(arm.levels[factor] for arm in self.study.arms()))

    def _figure(
        self, name: str, title: str, words: str, rows: dict[str, Row], by: str = "setting",
        **layout: Any,
    ) -> StudyFigure:  # fmt: skip
        """Lay out a figure with a row per table and a column per value of `by`."""

        def draw() -> None:
            columns = dict.fromkeys(next(iter(rows.values()))[0][by])
            claim = self.verdict["standing"]
            sheet = facets(name, self.study, claim, self.folder, list(rows), columns, **layout)
            with sheet as axes:
                for (row, column), ax in axes.items():
                    table, panel = rows[row]
                    panel(table[table[by] == column], ax=ax)

        tables = [table for table, _ in rows.values()]
        return StudyFigure(name, f"## {title}\n\n{words}", tables, draw)

    def _trends(self) -> Iterator[StudyFigure]:
        tables = {"dev_loss": self.curve, "grad_norm": self.trace}
        tables |= {"embedding_norm": self.curve, "second_moment_mean": self.trace}
        rows: dict[str, Row] = {y: (table, partial(trajectory, y=y)) for y, table in tables.items()}
        words = """Does the loss fall smoothly, and do gradients settle? One column per setting.
A line is the mean of the runs still training; a diverged run ends in a cross. A loss far above its
initial value is cut off. Drawn by `trajectory` from the traces and dev curves of all runs."""
        yield self._figure("trend", "Trends", words, rows, note=f"{BAND} ×: a run diverged.")

    def _comparison(self) -> Iterator[StudyFigure]:
        measures = taken(measures_in("comparison"), self.runs)
        if self.runs["setting"].nunique() > 2 or not measures:
            return  # of many settings, the interaction says more
        rows: dict[str, Row] = {m: (self.runs, partial(paired_seeds, measure=m)) for m in measures}
        words = """Do the lines of all seeds slope the same way? A thin line joins the runs of one
seed; a bar is a variant's mean. Drawn by `paired_seeds` from the runs' measures."""
        note = "Thin line: one seed; bar: mean over seeds."
        yield self._figure("comparison", "Comparison", words, rows, note=note)

    def _interactions(self) -> Iterator[StudyFigure]:
        deltas = self.contrasts.query("own and measure == @MAIN")
        words = """Does the effect depend on this factor? The main measure at each of its levels,
and the paired difference to the baseline: where that changes its side of zero, the effect flips.
Diverged runs are crosses at the top with their number; lines leave them out. Drawn by `interaction`
from the runs' measures and by `differences` from the contrasts of 03."""
        note = f"{BAND} Δ: mean, 95 % t interval. ×: runs or pairs that diverged."
        for factor in list(self.study.factors)[1:]:
            levels = self._levels(factor)
            if len(levels) < 2 or self.runs[MAIN].isna().all():
                continue
            how: Any = {"measure": MAIN, "scale": scale_of(factor, levels)}
            rows: dict[str, Row] = {
                "values": (self._within(self.runs, factor), partial(interaction, **how)),
                "differences": (self._within(deltas, factor), partial(differences, **how)),
            }
            name = factor.rpartition(".")[2]
            title = f"Interaction with {name.replace('_', ' ')}"
            yield self._figure(f"interaction-{name}", title, words, rows, "within", note=note)

    def _learning_rates(self) -> Iterator[StudyFigure]:
        if RATE not in self.study.factors or not self.verdict.get("sensitivity"):
            return
        losses = self._within(final_losses(self.runs, self.curve), RATE)
        losses = losses.merge(pd.DataFrame(self.verdict["stability"]), on=["arm", "seed"])
        found = pd.DataFrame(self.verdict["sensitivity"])[["variant", "within", "sensitivity"]]
        losses = losses.merge(found, on=["variant", "within"])
        scale = scale_of(RATE, self._levels(RATE))
        rows: dict[str, Row] = {
            "loss": (losses, partial(learning_rates, scale=scale)),
            "unstable": (losses, partial(unstable_shares, scale=scale)),
        }
        words = """Over how wide a range of rates does a variant train well? A run counts at most as
its initial loss, a diverged run as just that. S, the sensitivity to the rate, is how much worse
than at its best rate a variant is on average over all rates: 0 is best. Drawn by `learning_rates`
from the dev curves and by `unstable_shares`; S, and which runs are unstable, come from 03."""
        yield self._figure(
            "learning-rate", "Learning rate", words, rows, "within",
            note="Line: mean over seeds; points: seeds. S: sensitivity to the rate, in nats.",
            common_legend=False, height=2.6,
        )  # fmt: skip

    def _mechanism(self) -> Iterator[StudyFigure]:
        if self.runs["variant"].nunique() <= 3:
            return  # the comparison shows so few
        known = self.contrasts.groupby("measure")["mean_delta"].count()
        rows: dict[str, Row] = {
            name: (self.contrasts[self.contrasts["measure"] == name], partial(forest, measure=name))
            for name in measures_in("mechanism")
            if known.get(name, 0)
        }
        words = """Which ingredient of the layer has the effect? Each row is one variant held
against another, beside the line of no difference. Drawn by `forest` from the contrasts of 03."""
        note = "Mark: mean paired difference; bar: its 95 % t interval."
        yield self._figure("mechanism", "Mechanism", words, rows, at_most=2, note=note)

    def _efficiency(self) -> Iterator[StudyFigure]:
        tokens = self.trace[["arm", "seed", "step", "tokens"]]
        curve = self.curve.merge(tokens, how="left").fillna({"tokens": 0})
        words = """How many training tokens does each variant need to reach the baseline's final
loss (dashed)? A mark is where a variant's mean curve meets the line; the ratios of 03 are taken
seed by seed. Drawn by `efficiency` from the dev curves."""
        yield self._figure(
            "efficiency", "Tokens", words, {"dev_loss": (curve, efficiency)},
            at_most=2, note=BAND, common_legend=False, height=2.6,
        )  # fmt: skip

    def _inside(self) -> Iterator[StudyFigure]:
        rows: dict[str, Row] = {
            "embedding_norm": (self.curve, partial(trajectory, y="embedding_norm")),
            "embedding_cosine": (self.curve, partial(trajectory, y="embedding_cosine")),
            "residual_norm": (self.curve, residual_norms),
            "second_moment": (self.curve, second_moments),
        }
        words = """What does the layer change inside? The norm of the embeddings and their
similarity through training (1: all point one way); the residual stream's norm from block to block,
thin and pale before training; AdamW's second moment by part of the model at the last step. Drawn by
`trajectory`, `residual_norms` and `second_moments` from the dev curves."""
        yield self._figure("inside", "Inside", words, rows, at_most=2, note=BAND)

    def _calibration(self) -> Iterator[StudyFigure]:
        temperatures = read_table(self.results, "temperatures")
        if temperatures.empty:
            return  # every run diverged
        bins, positions = (read_parquet(self.study, name) for name in ("bins", "positions"))
        runs_at = temperatures.groupby("temperature")["nll"].transform("size")
        shared = temperatures[runs_at == runs_at.max()]  # not each run's own best
        rows: dict[str, Row] = {
            "reliability": (bins, reliability_diagram),
            "nll": (shared, partial(trend, y="nll", x="temperature")),
            "ece": (shared, partial(trend, y="ece", x="temperature")),
            "position_loss": (positions, partial(trend, y="position_loss", x="context")),
        }
        words = """Are predicted probabilities right, and does a longer context help? Reliability
over all held-out characters, loss and calibration error on test by softmax temperature, loss by how
many characters a prediction could see. Drawn by `reliability_diagram` and `trend` from the runs'
raw files and the tables in their results."""
        title = "Calibration and length"
        yield self._figure("calibration", title, words, rows, at_most=2, note=BAND)

    def _tasks(self) -> Iterator[StudyFigure]:
        tasks = read_table(self.results, "tasks")
        if tasks.empty:
            return  # the study leaves the suite out
        words = """In which tasks of the suite do variants differ by more than seeds do? 0 is
guessing, 1 is all right. Drawn by `task_accuracies` from the tables in the runs' results."""
        note = "Mark: mean over seeds; bar: lowest to highest."
        yield self._figure(
            "tasks", "Tasks", words, {"tasks": (tasks, task_accuracies)},
            at_most=2, note=note, height=5.5,
        )  # fmt: skip


def drawn(study: str) -> dict[str, dict[str, str]]:
    """Per figure of a study, not drawn: the hash of its data, and its words."""
    figures = StudyFigures(design := load_study(study), collect(design))
    return {f.name: {"data": f.data_hash, "words": f.words} for f in figures.applicable()}
