"""The figures that a study's notebook shows, each laid out over the study's settings.

The first factor is what is compared; the others make the settings. To add a figure, write a method
that yields a `StudyFigure` where the study has what it needs, and name it in
`StudyFigures.applicable`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from lib.analysis.course import COSINE
from lib.analysis.learning_rate import RATE
from lib.analysis.runs import collect, read_parquet, read_table, taken
from lib.analysis.tied import TIED
from lib.figures.effects import forest
from lib.figures.factors import (
    differences,
    efficiency,
    interaction,
    paired_seeds,
    scale_of,
    task_accuracies,
)
from lib.figures.found import FoundFigures
from lib.figures.tables import Row, StudyFigure
from lib.figures.training import (
    difference,
    reliability_diagram,
    residual_norms,
    second_moments,
    trajectory,
    trend,
)
from lib.study.config import load_study
from lib.study.measures import MAIN, measures_in

BAND = "Lines are means over seeds, bands reach from the lowest to the highest."


class StudyFigures(FoundFigures):
    """Every figure of a study."""

    def applicable(self) -> Iterator[StudyFigure]:
        """Give every figure for which the study has something to show, in order. ResultError when
        the study has not been analysed."""
        makers = (
            self._effects,
            self._losses,
            self._smoothness,
            self._trends,
            self._comparison,
            self._interactions,
            self._learning_rates,
            self._dose,
            self._ladder,
            self._tied,
            self._stability,
            self._early,
            self._trade_off,
            self._efficiency,
            self._inside,
            self._calibration,
            self._tasks,
        )
        return iter([figure for make in makers for figure in make()])

    def _effects(self) -> Iterator[StudyFigure]:
        if self.runs["setting"].nunique() > 2:
            return  # of many settings, other figures say more
        table, made = self.tests, "the tests of the plan's families in 03"
        if table.empty:
            table = self.contrasts.assign(family="", margin=float("nan"), decided=True)
            named = measures_in("mechanism")
            table, made = table[table["measure"].isin(named)], "the contrasts of 03"
        counts = table.groupby("measure", sort=False)["mean_delta"].count()
        rows: dict[str, Row] = {
            str(name): (table[table["measure"] == name], partial(forest, measure=str(name)))
            for name, n in counts.items()
            if n
        }
        few = self.runs["variant"].nunique() <= 3  # the comparison shows them
        if not rows or (self.tests.empty and (few or self._many)):
            return
        words = f"""What differs from what, and by how much? Each row is one variant held against
another: its mean paired difference with the 95 % *t* interval. Hollow marks are undecided; a grey
band is the margin within which two variants count as equivalent. Drawn by `forest` from {made}."""
        heights = [0.45 + 0.16 * (len(t) + t["family"].nunique()) for t, _ in rows.values()]
        yield self._figure("effects", "Effects", words, rows, most_variants=99, height=heights)

    def _losses(self) -> Iterator[StudyFigure]:
        rows: dict[str, Row] = {"dev_loss": (self.curve, partial(trajectory, y="dev_loss"))}
        if (self.curve["arm"] != self.curve["baseline"]).any():
            rows["difference"] = (self.curve, partial(difference, y="dev_loss"))
        words = f"""Does the loss fall smoothly, and when do variants part? First the dev loss,
beside what counting characters and pairs of them reaches on the held-out text (dotted); then how
far each run is from its baseline's with the same seed. {BAND} A diverged run ends in a cross; a
loss far above its initial value is cut off. Drawn by `trajectory` and `difference` from
the dev curves of all runs."""
        yield self._figure("loss", "Loss", words, rows, height=1.9)

    def _smoothness(self) -> Iterator[StudyFigure]:
        if COSINE not in self.curve or self.curve[COSINE].isna().all():
            return
        rows: dict[str, Row] = {COSINE: (self.curve, partial(trajectory, y=COSINE))}
        if (self.curve["arm"] != self.curve["baseline"]).any():
            rows["difference"] = (self.curve, partial(difference, y=COSINE))
        words = f"""Is training smooth? The cosine between the gradients of two parts of dev: 1
means that a step that helps one helps the other. Then how far each run is from its baseline's with
the same seed. {BAND} Drawn by `trajectory` and `difference` from the dev curves of all runs."""
        yield self._figure("smoothness", "Smoothness", words, rows, height=1.9)

    def _trends(self) -> Iterator[StudyFigure]:
        tables = {"grad_norm": self.trace, "embedding_norm": self.curve}
        tables |= {"second_moment_mean": self.trace}
        rows: dict[str, Row] = {
            y: (table, partial(trajectory, y=y))
            for y, table in tables.items()
            if y in table and table[y].notna().any()
        }
        words = f"""Do gradients settle? Their norm, that of the embeddings, and AdamW's second
moment. {BAND} A diverged run ends in a cross. Drawn by `trajectory` from the traces and dev curves
of all runs."""
        yield self._figure("trend", "Gradients", words, rows)

    def _comparison(self) -> Iterator[StudyFigure]:
        measures = taken(measures_in("comparison"), self.runs)
        if self.runs["setting"].nunique() > 2 or self._many or not measures:
            return  # of many settings, the interaction says more
        rows: dict[str, Row] = {m: (self.runs, partial(paired_seeds, measure=m)) for m in measures}
        words = """Do the lines of all seeds slope the same way? A thin line joins the runs of one
seed; a bar is a variant's mean. Drawn by `paired_seeds` from the runs' measures."""
        yield self._figure("comparison", "Comparison", words, rows)

    def _interactions(self) -> Iterator[StudyFigure]:
        deltas = self.contrasts.query("own and measure == @MAIN")
        words = f"""Does the effect depend on this factor? The main measure at each of its levels,
and the paired difference to the baseline, with its 95 % *t* interval: where that changes its side
of zero, the effect flips. {BAND} Diverged runs are crosses at the top with their number; lines
leave them out. Drawn by `interaction` from the runs' measures and by `differences` from the
contrasts of 03."""
        others = list(self.study.factors)[1:]
        if TIED in others or RATE in others or self.runs[MAIN].isna().all():
            return  # these have figures of their own
        for factor in others:
            levels = self.levels(factor)
            if len(levels) < 2:
                continue
            how: Any = {"measure": MAIN, "scale": scale_of(factor, levels)}
            rows: dict[str, Row] = {
                "values": (self.within(self.runs, factor), partial(interaction, **how)),
                "differences": (self.within(deltas, factor), partial(differences, **how)),
            }
            name = factor.rpartition(".")[2]
            title = f"Interaction with {name.replace('_', ' ')}"
            yield self._figure(f"interaction-{name}", title, words, rows, "within")

    def _efficiency(self) -> Iterator[StudyFigure]:
        if self.found("efficiency").empty:
            return  # under a schedule, a point of a curve is not the end of a shorter budget
        tokens = self.trace[["arm", "seed", "step", "tokens"]]
        curve = self.curve.merge(tokens, how="left").fillna({"tokens": 0})
        words = """How many training tokens does each variant need to reach the baseline's final
loss (dashed)? A mark is where a variant's mean curve meets the line; the ratios of 03 are taken
seed by seed. Drawn by `efficiency` from the dev curves."""
        yield self._figure(
            "efficiency", "Tokens", words, {"dev_loss": (curve, efficiency)},
            at_most=2, common_legend=False, height=2.6,
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
        yield self._figure("inside", "Inside", words, rows, at_most=2)

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
        yield self._figure("calibration", title, words, rows, at_most=2)

    def _tasks(self) -> Iterator[StudyFigure]:
        tasks = read_table(self.results, "tasks")
        if tasks.empty:
            return  # the study leaves the suite out
        words = """In which tasks of the suite do variants differ by more than seeds do? 0 is
guessing, 1 is all right. Drawn by `task_accuracies` from the tables in the runs' results."""
        yield self._figure(
            "tasks", "Tasks", words, {"tasks": (tasks, task_accuracies)},
            at_most=2, height=5.5,
        )  # fmt: skip


def drawn(study: str) -> dict[str, dict[str, str]]:
    """Per figure of a study, not drawn: the hash of its data, and its words."""
    figures = StudyFigures(design := load_study(study), collect(design))
    return {f.name: {"data": f.data_hash, "words": f.words} for f in figures.applicable()}
