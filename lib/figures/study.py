"""The figures of a study in 04_figures, each laid out over the study's settings.

The levels of the first factor are compared. The levels of the other factors make the settings.

To add a figure, write a method that yields a `Layout` if the study has the data for it, and add it
to `StudyFigures.applicable`. Its docstring is shown above the figure, so say what to look for.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config.claim import load_plan
from lib.config.contrasts import spoken
from lib.config.files import read_json
from lib.config.metrics import MEASURES, measures_in
from lib.config.paths import relative, study_folder
from lib.config.study import Study
from lib.figures import effects, training
from lib.figures.style import facets, in_order
from lib.results import RunResult
from lib.stats import runs as of_runs
from lib.stats.factorial import CHANGES, ENDS, Row
from lib.stats.opening import compared, loss_first
from lib.stats.tables import REFERENCES

Rows = dict[str, tuple[pd.DataFrame, Callable[..., Axes]]]
"""Row of panels → its table, and the function that draws part of the table on an `ax`."""


@dataclass(frozen=True)
class Layout:
    """The content of a figure, and how its panels are arranged."""

    name: str
    rows: Rows
    height: float = 1.6
    """Height of a row, in inches."""
    by: str = "setting"
    """The tables are split by this column, with a column of panels for each of its values."""
    stacked: bool = False
    """Whether the rows of a single column are below each other, as wide as a page."""


Layouts = Iterator[Layout]


@dataclass(frozen=True)
class StudyFigure:
    """A figure of a study, and the words above it."""

    name: str
    words: str
    """Title, what to look for, which functions draw it, and how many seeds and settings it has."""
    draw: Callable[[], None]


class StudyFigures:
    """A study's runs and verdict, and every figure of them."""

    def __init__(self, study: Study, results: list[RunResult]) -> None:
        """Read the verdict that 03_analysis wrote. Raises ResultError if it was not executed."""
        path = study_folder(study.name) / "verdict.json"
        if not path.is_file():
            raise of_runs.ResultError(f"there is no {relative(path)}: execute 03_analysis first")
        self.study = study
        self.results = results
        self.verdict = read_json(path)
        self.folder = path.with_name("figures")
        self.plan = load_plan(study)
        self.runs = of_runs.tidy(results)
        self.main = loss_first(self.runs, self.plan)[0]
        self.trace = self.raw("trace")
        self.curve = self.raw("curve")

    def raw(self, name: str) -> pd.DataFrame:
        """Concatenate a raw file of all runs. Add to each row the baseline and status of its run,
        and the reference losses of its text."""
        of_run = self.runs.filter(["arm", "seed", "baseline", "status", *REFERENCES])
        return of_runs.read_parquet(self.study, name).merge(of_run)

    def contrasts(self, measure: str) -> pd.DataFrame:
        """Return the contrasts between each arm and its own baseline from 03_analysis. Add the
        arm's variant and levels."""
        columns = ["arm", "baseline", "measure", *ENDS, "n_dropped"]
        table = pd.DataFrame(self.verdict["contrasts"], columns=columns).astype(ENDS)
        arms = self.runs.drop_duplicates("arm")[["arm", "variant", *self.study.factors, "baseline"]]
        return table[table["measure"] == measure].merge(arms, on=["arm", "baseline"])

    def _comparable(self, measures: list[str]) -> list[str]:
        """Return the measures in which all arms may be compared."""
        vocabularies = of_runs.column_by_arm(self.runs, "vocabulary")
        return [
            name for name in measures if of_runs.is_comparable(vocabularies, name, vocabularies)
        ]

    def applicable(self) -> Iterator[StudyFigure]:
        """Yield every figure that the study has data for, the effects first."""
        for make in (
            self._effects,
            self._comparison,
            self._interactions,
            self._loss,
            self._smoothness,
            self._trends,
            self._inside,
            self._calibration,
            self._tasks,
        ):
            for layout in make():
                yield self._figure(layout, inspect.getdoc(make))

    def _effects(self) -> Layouts:
        """By how much do arms differ? Each row is a mean paired difference with its 95 % *t*
        interval, not adjusted for the number of rows. Red is worse, blue is better. The rows are
        the hypotheses of the plan; without a plan, the main effects and interactions of a grid;
        without a grid, each arm and its baseline. A hollow mark is undecided, or it is the mean of
        an effect that changes sign: then read its settings below it. Drawn by `forest` from the
        tables of 03_analysis."""
        table = pd.DataFrame(map(self._forest_row, compared(self.verdict, self.main)))
        if table.empty:  # a single arm
            return
        rows: Rows = {
            measure: (table[table["measure"] == measure], partial(effects.forest, measure=measure))
            for measure in sorted(table["measure"].unique(), key=lambda name: name != self.main)
        }
        lines = table["label"].str.count("\n").max() + 1
        most = table["measure"].value_counts().max()
        height = 0.5 + (0.12 + 0.12 * max(2, lines)) * most
        yield Layout("effects", rows, height=height, stacked=True)

    def _forest_row(self, row: Row) -> Row:
        """Add to a row of `compared` the other columns that `forest` needs."""
        row = row | {end: np.nan if row[end] is None else row[end] for end in ENDS}
        measure, answer = MEASURES[row["measure"]], row.get("answer", "")
        value = f"{measure.estimate(row)}\n{answer}".strip()
        is_clear = not row["changes_sign"] and (row["t_low"] > 0 or row["t_high"] < 0)
        interacts = row["kind"] == "interaction" or " - " in row.get("baseline", "")
        return row | {
            "label": textwrap.fill(row.get("says", "").rstrip(".") or spoken(row["name"]), 50),
            "value": CHANGES if row["changes_sign"] else value,
            "decided": is_clear
            if not answer
            else answer != "undecided" and not row["changes_sign"],
            "gain": measure.gain(row["mean_delta"]) if is_clear and not interacts else np.nan,
            "variant": "",
            "setting": "",
        }

    def _loss(self) -> Layouts:
        """Does the loss fall smoothly, and when do variants separate? First the dev loss. Dotted
        lines are the losses of a unigram and of a bigram model. Then the difference between each
        run and its baseline's run with the same seed. Lines are means over seeds. Bands reach from
        the lowest to the highest seed. A diverged run ends in a cross. Drawn by `trajectory` and
        `difference` from the dev curves of all runs."""
        yield from self._course("loss", "dev_loss")

    def _smoothness(self) -> Layouts:
        """Is training smooth? First the cosine between the gradients of two parts of dev: at 1, a
        step that helps one part also helps the other. Then the difference between each run and its
        baseline's run with the same seed. Lines are means over seeds. Bands reach from the lowest
        to the highest seed. Drawn by `trajectory` and `difference` from the dev curves of all
        runs."""
        yield from self._course("smoothness", "gradient_cosine")

    def _course(self, name: str, y: str) -> Layouts:
        """Lay out a column of the dev curves, and below it the difference from the baseline."""
        if of_runs.available_measures([y], self.curve):
            rows: Rows = {y: (self.curve, partial(training.trajectory, y=y))}
            if self._comparable(["loss"]) and (self.curve["arm"] != self.curve["baseline"]).any():
                rows["difference"] = (self.curve, partial(training.difference, y=y))
            yield Layout(name, rows, height=1.9)

    def _trends(self) -> Layouts:
        """Do gradients settle? The gradient norm, and AdamW's second moment. Lines are means over
        seeds. Bands reach from the lowest to the highest seed. A diverged run ends in a cross.
        Drawn by `trajectory` from the traces of all runs."""
        rows: Rows = {}
        for y in of_runs.available_measures(("grad_norm", "second_moment_mean"), self.trace):
            rows[y] = self.trace, partial(training.trajectory, y=y)
        yield Layout("trend", rows)

    def _comparison(self) -> Layouts:
        """Do the lines of all seeds slope the same way? A thin line joins the runs of one seed. A
        bar is the mean of a variant. Drawn by `paired_seeds` from the measures of all runs."""
        planned = of_runs.planned_measures(self.runs, self.plan)
        names = of_runs.available_measures([*planned, *measures_in("comparison")], self.runs)
        rows: Rows = {
            name: (self.runs, partial(effects.paired_seeds, measure=name))
            for name in self._comparable(names)
        }
        few = 1 < self.runs["variant"].nunique() <= 6
        if rows and few and self.runs["setting"].nunique() <= 2:  # else the interaction says more
            yield Layout("comparison", rows)

    def _interactions(self) -> Layouts:
        """Does the effect depend on this factor? First the main measure at each level of the
        factor. Then the paired difference from the baseline, with its 95 % *t* interval: look for
        one that crosses zero. Lines are means over seeds. Bands reach from the lowest to the
        highest seed. Diverged runs are not in the lines: a cross at the top counts them. Drawn by
        `interaction` from the measures of all runs, and by `differences` from the contrasts of
        03_analysis."""
        deltas = self.contrasts(self.main)
        for factor in list(self.study.factors)[1:]:
            levels = list(dict.fromkeys(arm.levels[factor] for arm in self.study.arms()))
            if len(levels) > 1 and self.runs[self.main].notna().any():
                how: Any = {"measure": self.main, "factor": factor, "levels": levels}
                within = of_runs.other_settings(self.study, factor)
                values = self.runs.assign(within=self.runs["arm"].map(within))
                rows: Rows = {"values": (values, partial(effects.interaction, **how))}
                if len(deltas):
                    deltas = deltas.assign(within=deltas["arm"].map(within))
                    rows["differences"] = (deltas, partial(effects.differences, **how))
                name = factor.rpartition(".")[2]
                yield Layout(f"interaction-{name}", rows, by="within")

    def _inside(self) -> Layouts:
        """What differs inside the models? If a factor concerns the embeddings: their norm and their
        similarity during training (at 1 all point the same way). Then the norm of the residual
        stream after each block (thin and pale: before training), and AdamW's second moment in each
        part of the model at the last step. Drawn by `trajectory`, `residual_norms` and
        `second_moments` from the dev curves of all runs."""
        fields = {field for arm in self.study.arms() for field in arm.levels}
        names = ("embedding_norm", "embedding_cosine") if training.of_embeddings(fields) else ()
        rows: Rows = {y: (self.curve, partial(training.trajectory, y=y)) for y in names}
        rows["residual_norm"] = self.curve, training.residual_norms
        rows["second_moment"] = self.curve, training.second_moments
        yield Layout("inside", rows)

    def _calibration(self) -> Layouts:
        """Are predicted probabilities right, and does a longer context help? First the reliability
        over all held-out characters. Then loss and calibration error on test by softmax
        temperature. Last the loss by the number of characters that a prediction could see. Drawn by
        `reliability_diagram` and `trend` from the raw files and results of all runs."""
        temperatures = of_runs.read_table(self.results, "temperatures")
        if len(temperatures):  # not every run diverged
            runs_at = temperatures.groupby("temperature")["nll"].transform("size")
            shared = temperatures[runs_at == runs_at.max()]  # not each run's own best
            by_temperature = partial(training.trend, x="temperature")
            by_context = partial(training.trend, y="position_loss", x="context")
            rows: Rows = {
                "reliability": (self.raw("bins"), training.reliability_diagram),
                "nll": (shared, partial(by_temperature, y="nll")),
                "ece": (shared, partial(by_temperature, y="ece")),
                "position_loss": (self.raw("positions"), by_context),
            }
            yield Layout("calibration", rows)

    def _tasks(self) -> Layouts:
        """In which tasks of the suite (multiple-choice questions about the held-out text) do
        variants differ by more than seeds do? 0 is guessing, 1 is all correct. Drawn by
        `task_accuracies` from the results of all runs."""
        tasks = of_runs.read_table(self.results, "tasks")
        if len(tasks):  # some studies leave the suite out
            yield Layout("tasks", {"": (tasks, effects.task_accuracies)}, height=5.5)

    def _figure(self, layout: Layout, says: str | None) -> StudyFigure:
        """Make a figure from a layout, with a row of panels per table and a column per value of
        `by`. If there are more than four values, show four of them, evenly spread from the first to
        the last; the words above the figure say so. `says` is the docstring of the figure's
        method."""
        name, rows, by = layout.name, layout.rows, layout.by
        # Variant → level of the first factor. A study without factors has one arm without levels.
        levels = {arm.variant: next(iter(arm.levels.values()), "") for arm in self.study.arms()}
        tables = {row: in_order(table, levels) for row, (table, _) in rows.items()}
        settings = list(dict.fromkeys(next(iter(tables.values()))[by]))
        places = np.linspace(0, len(settings) - 1, min(4, len(settings)))
        columns = [settings[i] for i in places.round().astype(int)]

        def draw() -> None:
            with facets(
                name, self.folder, list(rows), columns, layout.height, stacked=layout.stacked
            ) as axes:
                for (row, column), ax in axes.items():
                    table = tables[row]
                    _, draw_panel = rows[row]
                    draw_panel(table[table[by] == column], ax=ax)

        title = name.replace("-", ": ").replace("_", " ").capitalize()
        of = f"{self.study.name}, {self.runs['seed'].nunique()} seeds"
        if len(columns) < len(settings):
            of += f", {len(columns)} of {len(settings)} settings"
        return StudyFigure(name, f"## {title}\n\n{says} *{of}.*", draw)
