"""The figures of what only some studies ask: rates, doses, tied outputs and stability.

Each stands on a table that 03_analysis found, and is laid out where there is one.
"""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from lib.analysis.ladder import WIDTH
from lib.analysis.learning_rate import RATE, counted_losses, final_losses
from lib.analysis.runs import taken
from lib.analysis.stability import rule_of
from lib.analysis.tied import TIED
from lib.figures.effects import dose_response, tied_effects
from lib.figures.factors import differences, scale_of, tuning_curves
from lib.figures.stability import early_losses, stability_cells, trade_off
from lib.figures.style import in_lines, level_text
from lib.figures.tables import MOST_COLUMNS, MOST_VARIANTS, Row, StudyFigure, StudyTables
from lib.study.measures import ACCURACIES, MAIN
from lib.study.variants import variant


class FoundFigures(StudyTables):
    """Figures of findings."""

    @property
    def _one_setting(self) -> bool:
        return bool(self.runs["setting"].nunique() == 1)

    @property
    def _many(self) -> bool:
        """Whether there are more variants than a panel can hold."""
        return bool(self.runs["variant"].nunique() > MOST_VARIANTS)

    def _learning_rates(self) -> Iterator[StudyFigure]:
        best = self.found("best_rate")
        if best.empty:
            return
        judged = counted_losses(final_losses(self.runs, self.curve), self.found("stability"))
        means = self.found("rates").rename(columns={"dev_loss": "mean"})
        losses = self.within(judged, RATE)
        losses = losses.merge(means[["variant", "within", RATE, "mean"]])
        losses = losses.merge(best[["variant", "within", "best_rate", "bracketed"]])
        scale = scale_of(RATE, self.levels(RATE))
        rows: dict[str, Row] = {"loss": (losses, partial(tuning_curves, scale=scale))}
        measure = "loss" if (self.contrasts["measure"] == "loss").any() else MAIN
        deltas = self.within(self.contrasts.query("own and measure == @measure"), RATE)
        if len(deltas):
            rows["differences"] = (deltas, partial(differences, measure=measure, scale=scale))
        words = """Which rate does each variant want, and what is left of the effect there? A star
is the rate with the lowest mean, hollow at the edge of the grid. Small marks are runs, hollow after
a transient; one that collapsed or diverged counts as its initial loss, and is a cross at the top,
where lines may be cut. Then the
paired difference to the baseline at the same rate, with its 95 % *t* interval. Drawn by
`tuning_curves` from the dev curves and by `differences`; means, choice and stability are those of
03."""
        yield self._figure("learning-rate", "Learning rate", words, rows, "within", height=2.2)

    def _dose(self) -> Iterator[StudyFigure]:
        dose = self.found("dose")
        if dose.empty or dose.loc[dose["branch_multiplier"] == 1, "rms"].nunique() < 3:
            return
        start = self.curve[(self.curve["step"] == 0) & (self.curve["arm"] == dose["baseline"][0])]
        width = self.study.arm(dose["baseline"][0]).config.model.n_embd
        none = {"layer": "none", "setting": dose["setting"][0], "branch_multiplier": 1.0}
        none |= {"relative_rms": start["embedding_norm"].mean() / width**0.5, "mean_delta": 0.0}
        table = pd.concat([pd.DataFrame([none]), dose], ignore_index=True)
        words = """Is the effect one curve in the length that the stream starts with? The paired
difference in loss to no layer, with its 95 % *t* interval; hollow, layers whose branches are
multiplied by what the layer multiplies the embeddings by. Drawn by `dose_response` from the table
of 03."""
        yield self._figure("dose", "Dose and response", words, {"dose": (table, dose_response)},
                           height=2.4)  # fmt: skip

    def _ladder(self) -> Iterator[StudyFigure]:
        table = self.found("ladder")
        if table.empty:
            return
        scale = scale_of(WIDTH, self.levels(WIDTH))
        words = """Does the effect change with the width? The paired difference in loss to the first
variant at each width, with its 95 % *t* interval, at equal rates and, last, each variant at the
rate that is best for it there, which the same runs chose: that flatters both. No curve is fitted to
so few widths. Drawn by `differences` from the table of 03."""
        rows: dict[str, Row] = {"": (table, partial(differences, measure="loss", scale=scale))}
        yield self._figure("ladder", "Ladder of widths", words, rows, "rate", height=2.2)

    def _tied(self) -> Iterator[StudyFigure]:
        table = self.found("tied")
        if table.empty:
            return
        placed = self.within(self.runs.drop_duplicates("arm"), TIED)
        arms = placed.set_index(["variant", "within", TIED])["arm"]
        first = self.runs["variant"].iloc[0]
        for kind, tied in (("tied", True), ("untied", False)):
            table[f"{kind}_floor"] = [
                bool(
                    {arms[first, row["within"], tied], arms[row["variant"], row["within"], tied]}
                    & set(row["below_floor"].split(", "))
                )
                for row in table.to_dict("records")
            ]
        labels = table["variant"].map(lambda name: variant(name).label)
        words = """Does the effect belong to an output that shares its weights with the embeddings?
The paired difference in loss to the baseline with the same output, with its 95 % *t* interval. A
grey square marks a difference in which an arm is no better than a unigram model: it says little.
Drawn by `tied_effects` from the table of 03."""
        rows: dict[str, Row] = {"effect": (table.assign(panel=labels), tied_effects)}
        yield self._figure("tied", "Tied and untied output", words, rows, "panel", height=2.2)

    def _stability(self) -> Iterator[StudyFigure]:
        table = self.found("stability_map")
        if table.empty or self._one_setting:
            return
        if RATE not in self.study.factors and not table["unstable"].sum():
            return
        factor = RATE if RATE in self.study.factors else list(self.study.factors)[1]
        table = self.within(table, factor).drop(columns=["variant", "setting"])
        table = self.runs.drop_duplicates("arm")[["arm", "variant", factor]].merge(table)
        labels = table["variant"].map(lambda name: variant(name).label)
        together = table["within"].nunique() == 1
        table = table.assign(
            column=table[factor].map(level_text),
            row=labels if together else table["within"].map(in_lines),
            panel="" if together else labels,
        )
        words = """Where is training unstable, and what cures it? In each cell, how many of how many
runs are unstable, and below it the median of their largest rises in nats; the darker, the larger
the share. A dash: not judged. Drawn by `stability_cells` from the table of 03."""
        name = factor.rpartition(".")[2].replace("_", " ")

        rows: dict[str, Row] = {"": (table, partial(stability_cells, x=name))}
        yield self._figure("stability", "Stability", words, rows, "panel",
                           height=0.5 + 0.38 * table["row"].nunique())  # fmt: skip

    def _early(self) -> Iterator[StudyFigure]:
        judged = self.found("stability")
        rise = rule_of(self.plan).rise
        if judged.empty or rise is None or not judged["unstable"].sum():
            return
        draw = partial(early_losses, rise=rise)
        rows: dict[str, Row] = {}
        if self._one_setting:
            labels = self.trace["variant"].map(lambda name: variant(name).label)
            rows, by = {"": (self.trace.assign(column=labels), draw)}, "column"
        elif RATE in self.study.factors:
            rates = self.runs.drop_duplicates("arm").set_index("arm")[RATE].map(level_text)
            column = "learning rate=" + self.trace["arm"].map(rates)
            trace, by = self.within(self.trace.assign(column=column), RATE), "column"
            for within, part in trace.groupby("within", sort=False):
                rows[str(within)] = part, partial(draw, of=in_lines(str(within)))
        else:
            rows, by = {"": (self.trace, draw)}, "setting"
        words = f"""What does a transient look like? The training loss of every run over its first
steps; a mark stands where it is first more than {rise:g} nats above its running minimum. Drawn by
`early_losses` from the runs' traces."""
        yield self._figure(
            "early", "First steps", words, rows, by, height=1.5,
            at_most=MOST_VARIANTS if self._one_setting else MOST_COLUMNS,
        )  # fmt: skip

    def _trade_off(self) -> Iterator[StudyFigure]:
        table = self.found("trade_off")
        shown = taken([MAIN, *ACCURACIES[1:]], table)
        if len(table) < 2 or self._many or not shown:
            return
        shares = self.runs["setting"].nunique() <= 2 and table["unstable"].sum()
        y = "share" if shares else "median_severity"
        rows: dict[str, Row] = {
            name: (table.assign(all=""), partial(trade_off, measure=name, y=y)) for name in shown
        }
        words = """What does stability cost? Each mark is an arm, hollow where no run of it is
unstable; a thin line leads from a setting's baseline to its other arms. Down is calmer. Drawn by
`trade_off` from the table of 03."""
        yield self._figure("trade-off", "Stability against quality", words, rows, "all", height=2.2)
