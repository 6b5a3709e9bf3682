"""The whole analysis of a study: the verdict by its plan, then tables beyond the planned contrasts,
each made where the study has what it needs.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from lib.analysis.efficiency import budget_table, efficiency_table
from lib.analysis.learning_rate import RATE, best_rate_table, final_losses, sensitivity_table
from lib.analysis.mechanism import mechanism_table
from lib.analysis.resampling import suite_contrasts
from lib.analysis.rules import Answer
from lib.analysis.runs import other_settings, taken
from lib.analysis.tables import mean_and_sd
from lib.analysis.verdict import Verdict, answer_hypotheses, in_words, reach_verdict
from lib.study.config import Study
from lib.study.errors import ConfigError, explain, read_yaml, unknown
from lib.study.fields import Section
from lib.study.measures import MEASURES, measures_in
from lib.study.paths import ROOT
from lib.study.plan import ALPHA, Plan
from lib.study.record import records
from lib.study.standing import Standing


@dataclass(frozen=True)
class Finding:
    """A table, under a key in the results, with what it shows in words."""

    key: str
    title: str
    table: pd.DataFrame
    words: list[str]

    def _repr_markdown_(self) -> str:
        return f"### {self.title}\n\n" + "\n".join(f"- {sentence}" for sentence in self.words)


@dataclass(frozen=True)
class Analysis:
    """What 03_analysis shows of a study and keeps."""

    standing: Standing
    runs: pd.DataFrame
    verdict: Verdict
    answers: dict[str, Answer]
    findings: list[Finding]

    def _repr_markdown_(self) -> str:
        return in_words(self.verdict, self.answers, self.runs, self.standing.name)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, each finding's table under its key; NaN becomes None."""
        return {
            "standing": self.standing.name,
            "exploratory_because": self.standing.reasons,
            "answers": {name: asdict(answer) for name, answer in self.answers.items()},
            **self.verdict.as_json(),
            **{finding.key: records(finding.table) for finding in self.findings},
        }


def analyse(
    design: Study,
    plan: Plan | None,
    standing: Standing,
    runs: pd.DataFrame,
    trace: pd.DataFrame,
    curve: pd.DataFrame,
    items: pd.DataFrame,
) -> Analysis:
    """Judge a study by its plan and make every table that applies, from the tables of
    `lib.analysis.runs`. What is drawn at random follows from the study's hash, so that the same
    runs always give the same numbers."""
    rng = np.random.default_rng(int(design.hash[:8], 16))
    verdict = reach_verdict(runs, trace, plan, rng)
    found = findings(design, plan, runs, curve, verdict.stability)
    if len(suite := suite_contrasts(runs, items, rng)):
        found.insert(0, Finding("suite", "The suite, seeds and questions resampled", suite, []))
    sensitivity = next((f.table for f in found if f.key == "sensitivity"), None)
    answers = answer_hypotheses(verdict, runs, plan, sensitivity)
    return Analysis(standing, runs, verdict, answers, found)


def findings(
    design: Study,
    plan: Plan | None,
    runs: pd.DataFrame,
    curve: pd.DataFrame,
    stability: pd.DataFrame,
) -> list[Finding]:
    """Make every table that applies to a study; the functions called say which columns each has.
    `stability` is the table of `lib.analysis.stability.unstable_runs`."""
    alpha = plan.alpha if plan else ALPHA
    table = mechanism_table(runs, taken(measures_in("mechanism"), runs), alpha)
    found = [_in_words("mechanism", "Which ingredient accounts for how much", table)]
    if RATE in design.factors and plan:
        losses = final_losses(runs, curve)
        losses["within"] = other_settings(losses, design, RATE)
        table = sensitivity_table(losses, stability, plan)
        found.append(_in_words("sensitivity", "Sensitivity to the learning rate", table))
        table = best_rate_table(losses, alpha)
        found.append(_in_words("best_rate", "Each variant at its own best learning rate", table))
    # A point of a curve is the end of a shorter budget only where the rate does not depend on it.
    constant = {arm.id for arm in design.arms() if arm.config.training.schedule == "constant"}
    steady = runs[runs["arm"].isin(constant) & runs["baseline"].isin(constant)]
    if len(steady):
        table = efficiency_table(steady, curve, alpha)
        found.append(_in_words("efficiency", "Tokens for the same loss", table))
        budgets = budget_table(steady, curve, alpha)
        found.append(Finding("budgets", "Difference in dev loss at shorter budgets", budgets, []))
    if reported := load_reported(design):
        table = reported_table(reported, runs)
        notes = [f"{MEASURES[m].label}: {c.note.strip()}." for m, c in reported.measures.items()]
        found.append(Finding("reported", f"Beside the {reported.source}", table, notes))
    return [finding for finding in found if not finding.table.empty]


SENTENCES = {
    "mechanism": "{label}: {ingredient} ({contrast}) accounts for {share:.0%} "
    "[{low:.0%}, {high:.0%}] of the whole effect{at}.",
    "sensitivity": "{variant}{at}: sensitivity {sensitivity:.3f} nats, {mean_delta:+.3f} "
    "[{t_low:+.3f}, {t_high:+.3f}] to the baseline, all runs stable at {stable_rates} of {rates} "
    "rates, of which {made_stable} where the baseline's are not.",
    "best_rate": "{variant}{at}: best at {best_rate:g} (chosen on dev), test perplexity "
    "{perplexity_test:.3f}, {mean_delta:+.3f} [{t_low:+.3f}, {t_high:+.3f}] to the baseline at its "
    "own best rate.",
    "efficiency": "{arm} needs {token_ratio:.2f} [{t_low:.2f}, {t_high:.2f}] times the tokens of "
    "{baseline} for the same dev loss; it reached the baseline's final loss in {reached} of {n} "
    "seeds.",
}
"""A finding's key → what it says of a row of its table; `at` is the setting, if there are several.
"""


def _in_words(key: str, title: str, table: pd.DataFrame) -> Finding:
    """Say each row of a table but the sensitivity of the baseline itself."""
    words = []
    for row in table.to_dict("records"):
        setting = row.get("setting") or row.get("within")
        if row.get("H1b") != "baseline":
            at = f" at {setting}" if setting else ""
            words.append(SENTENCES[key].format_map(row | {"at": at}))
    return Finding(key, title, table, words)


class Value(Section):
    mean: float
    sd: float | None = None


class ReportedMeasure(Section):
    values: dict[str, Value]
    """Variant → what was reported of it; the first is the baseline."""
    note: str
    """What to know when comparing."""


class Reported(Section):
    """See papers/embedding-norm/preliminary.yaml."""

    source: str
    measures: Annotated[dict[str, ReportedMeasure], Field(min_length=1)]


def load_reported(study: Study) -> Reported | None:
    """Load the reported numbers that a study names; None when it names none.

    Raises ConfigError for a missing or faulty file, or an unknown measure.
    """
    if study.reported is None:
        return None
    path = ROOT / "papers" / "embedding-norm" / study.reported
    if not path.is_file():
        raise ConfigError(
            f"reported: there is no papers/embedding-norm/{study.reported}; name an existing file, "
            "or leave the field out"
        )
    try:
        reported = Reported.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error, Reported)}") from None
    for measure in reported.measures:
        if measure not in MEASURES:
            raise ConfigError(f"{path.name}: measures: {unknown(measure, list(MEASURES))}")
    return reported


def reported_table(reported: Reported, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per setting, measure and variant: mean ± sd here and as reported; whether the mean
    here lies within two reported sds; and whether the difference to the baseline has the reported
    sign."""
    rows = []
    for setting, part in runs.groupby("setting", sort=False):
        for measure, content in reported.measures.items():
            digits = MEASURES[measure].digits
            samples = {v: part.loc[part["variant"] == v, measure].dropna() for v in content.values}
            baseline, *_ = content.values
            for variant, value in content.values.items():
                here = samples[variant].mean()
                within = same = "n/a"
                if value.sd is not None:
                    within = _yes(abs(here - value.mean) <= 2 * value.sd)
                if variant != baseline:
                    change = here - samples[baseline].mean()
                    same = _yes(change * (value.mean - content.values[baseline].mean) > 0)
                said = f"{value.mean:.{digits}f}"
                said += "" if value.sd is None else f" ± {value.sd:.{digits}f}"
                rows.append(
                    {"setting": setting, "measure": measure, "variant": variant}
                    | {"here": mean_and_sd(samples[variant], digits), "reported": said}
                    | {"within_two_sd": within, "same_direction": same}
                )
    return pd.DataFrame(rows)


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
