"""Numbers reported elsewhere, beside a study's own."""

from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field, ValidationError

from lib.analysis.finding import Finding
from lib.analysis.tables import mean_and_sd
from lib.study.config import Study
from lib.study.errors import ConfigError, explain, read_yaml, unknown
from lib.study.fields import Section
from lib.study.measures import MEASURES
from lib.study.paths import ROOT


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


def reported_file(study: Study) -> Path | None:
    """Where the numbers lie that a study names; None when it names none."""
    return ROOT / "papers" / study.paper / study.reported if study.reported else None


def load_reported(study: Study) -> Reported | None:
    """Load the reported numbers that a study names; None when it names none.

    Raises ConfigError for a missing or faulty file, or an unknown measure.
    """
    path = reported_file(study)
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(
            f"reported: there is no papers/{study.paper}/{study.reported}; name an existing file, "
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


def reported_finding(reported: Reported, runs: pd.DataFrame) -> Finding:
    """The table, and what to know when comparing."""
    notes = [f"{MEASURES[m].label}: {c.note.strip()}." for m, c in reported.measures.items()]
    title = f"Beside the {reported.source}"
    return Finding("reported", title, reported_table(reported, runs), notes)


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
