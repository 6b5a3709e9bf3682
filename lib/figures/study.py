"""The figures that a study's notebook shows, each laid out over the study's settings.

Whatever the factors are, the first is what is compared; the others make the settings. A figure that
a study has nothing for says so instead.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from lib.analysis.learning_rate import RATE
from lib.analysis.runs import last_point, other_settings, read_parquet, read_table, tidy
from lib.analysis.stability import unstable_runs
from lib.analysis.verdict import taken
from lib.figures.factors import (
    differences,
    efficiency,
    forest,
    interaction,
    learning_rates,
    unstable_shares,
)
from lib.figures.levels import baseline_contrasts, capped_losses, forest_table, scale_of
from lib.figures.style import facets
from lib.figures.training import (
    group_values,
    paired_seeds,
    reliability_diagram,
    residual_norms,
    task_accuracies,
    trajectory,
    trend,
)
from lib.study.config import Study
from lib.study.measures import MEASURES
from lib.study.paths import study_folder
from lib.study.plan import Plan
from lib.study.record import RunResult

COMPARED = ("perplexity", "accuracy", "ece", "macro_accuracy_zero_shot")
CONTRASTED = ("perplexity", "ece", "macro_accuracy_zero_shot", "macro_accuracy_few_shot")
BAND = "Line: mean over seeds; band: lowest to highest."


@dataclass(frozen=True)
class StudyFigures:
    """A study's runs, ready to be drawn."""

    study: Study
    plan: Plan | None
    results: list[RunResult]

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
    def settings(self) -> list[str]:
        return list(dict.fromkeys(self.runs["setting"]))

    @property
    def folder(self) -> Path:
        """Where the figures are written."""
        return study_folder(self.study.name) / "figures"

    def _with_status(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.merge(self.runs[["arm", "seed", "status"]], on=["arm", "seed"])

    def trends(self) -> None:
        """Loss, gradient norm, embedding norm and second moment over the steps of training."""
        tables = {"dev_loss": self.curve, "grad_norm": self.trace}
        tables |= {"embedding_norm": self.curve, "second_moment_mean": self.trace}
        note = f"{BAND} ×: a run diverged."
        with facets(
            "trend", self.study, self.folder, list(tables), self.settings, note=note
        ) as axes:
            for (y, setting), ax in axes.items():
                trajectory(_of(tables[y], setting), y, ax)

    def comparison(self) -> None:
        """Each seed's runs side by side; of a study of many settings, the interaction says more."""
        measures = taken(COMPARED, self.runs)
        if len(self.settings) > 2 or not measures:
            return print(f"Not drawn: {len(self.settings)} settings. See the interaction.")
        note = "Thin line: one seed; bar: mean over seeds."
        with facets(
            "comparison", self.study, self.folder, measures, self.settings, note=note
        ) as axes:
            for (measure, setting), ax in axes.items():
                paired_seeds(_of(self.runs, setting), measure, ax)

    def interactions(self) -> None:
        """Perplexity against each further factor, and the paired difference to the baseline."""
        runs = self.runs
        factors = {f: levels for f, levels in list(self.study.factors.items())[1:] if levels[1:]}
        if not factors:
            print("Not drawn: the study has no second factor.")
        for factor, levels in factors.items():
            scale, others = scale_of(factor, levels), other_settings(runs, self.study, factor)
            with facets(
                f"interaction-{factor.rpartition('.')[2]}",
                self.study,
                self.folder,
                ["values", "differences"],
                list(dict.fromkeys(others)),
                note=f"{BAND} Δ: mean, 95 % t interval. ×: runs or pairs that diverged.",
            ) as axes:
                for (row, other), ax in axes.items():
                    if row == "values":
                        interaction(runs[others == other], "perplexity", scale, ax)
                    else:
                        deltas = baseline_contrasts(self.study, runs, "perplexity")
                        part = deltas[other_settings(deltas, self.study, factor) == other]
                        differences(part, "perplexity", scale, ax)

    def learning_rates(self) -> None:
        """Final loss and share of unstable runs against the learning rate."""
        if RATE not in self.study.factors or self.plan is None:
            return print("Not drawn: the learning rate is no factor, or there is no plan.")
        rule = self.plan.instability
        judged = unstable_runs(self.runs, self.trace, rule.window, rule.threshold)
        losses = capped_losses(self.runs, self.curve).merge(judged, on=["arm", "seed"])
        scale = scale_of(RATE, self.study.factors[RATE])
        others = other_settings(losses, self.study, RATE)
        with facets(
            "learning-rate",
            self.study,
            self.folder,
            ["loss", "unstable"],
            list(dict.fromkeys(others)),
            note="Line: mean over seeds; points: seeds. S: sensitivity to the rate, in nats.",
            common_legend=False,
            height=2.6,
        ) as axes:
            for (row, other), ax in axes.items():
                draw = learning_rates if row == "loss" else unstable_shares
                draw(losses[others == other], scale, ax)

    def mechanism(self) -> None:
        """Contrasts among more than three variants, as the analysis computed them."""
        if self.runs["variant"].nunique() <= 3:
            return print("Not drawn: the comparison shows so few variants.")
        table = forest_table(self.study, self.runs)
        rows = [name for name in CONTRASTED if table["mean_delta"][table["measure"] == name].any()]
        note = "Mark: mean paired difference; bar: its 95 % t interval."
        with facets(
            "mechanism", self.study, self.folder, rows, self.settings, at_most=2, note=note
        ) as axes:
            for (measure, setting), ax in axes.items():
                part = _of(table[table["measure"] == measure], setting)
                forest(part, ax).set_xlabel(f"Δ {MEASURES[measure].label}")

    def efficiency(self) -> None:
        """Tokens that each variant needs to reach the baseline's final loss."""
        tokens = self.trace[["arm", "seed", "step", "tokens"]]
        curve = self.curve.merge(tokens, how="left").fillna({"tokens": 0})
        with facets(
            "efficiency",
            self.study,
            self.folder,
            ["dev_loss"],
            self.settings,
            at_most=2,
            note=BAND,
            common_legend=False,
            height=2.6,
        ) as axes:
            for (_, setting), ax in axes.items():
                efficiency(_of(curve, setting), ax)

    def inside(self) -> None:
        """Embeddings and their similarity, the residual stream's norm, second moments by part."""
        rows = ["embedding_norm", "embedding_cosine", "residual_norm", "second_moment"]
        with facets(
            "inside", self.study, self.folder, rows, self.settings, at_most=2, note=BAND
        ) as axes:
            for (row, setting), ax in axes.items():
                curve = _of(self.curve, setting)
                if row == "residual_norm":
                    residual_norms(curve, ax)
                elif row == "second_moment":
                    group_values(last_point(curve, "second_moment_", "group"), "second moment", ax)
                else:
                    trajectory(curve, row, ax)

    def calibration(self) -> None:
        """Reliability, loss and calibration error by softmax temperature, loss by context."""
        names = ("reliability", "temperatures", "positions")
        reliability, temperatures, positions = (read_table(self.results, name) for name in names)
        if reliability.empty:
            return print("Not drawn: every run diverged.")
        runs_at = temperatures.groupby("temperature")["nll"].transform("size")
        shared = temperatures[runs_at == runs_at.max()]  # not each run's own best
        tables = {"nll": shared, "ece": shared, "position_loss": positions}
        x = {"nll": "temperature", "ece": "temperature", "position_loss": "context"}
        rows = ["reliability", *tables]
        settings = list(dict.fromkeys(reliability["setting"]))
        with facets(
            "calibration", self.study, self.folder, rows, settings, at_most=2, note=BAND
        ) as axes:
            for (row, setting), ax in axes.items():
                if row == "reliability":
                    reliability_diagram(_of(reliability, setting), ax)
                else:
                    trend(_of(tables[row], setting), row, ax, x=x[row])

    def tasks(self) -> None:
        """Accuracy above chance in each task of the suite."""
        tasks = read_table(self.results, "tasks")
        if tasks.empty:
            return print("Not drawn: the study leaves the task suite out.")
        settings = list(dict.fromkeys(tasks["setting"]))
        note = "Mark: mean over seeds; bar: lowest to highest."
        with facets(
            "tasks", self.study, self.folder, ["tasks"], settings, at_most=2, note=note, height=5.5
        ) as axes:
            for (_, setting), ax in axes.items():
                task_accuracies(_of(tasks, setting), ax)


def _of(table: pd.DataFrame, setting: str) -> pd.DataFrame:
    return table[table["setting"] == setting]
