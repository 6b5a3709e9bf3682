"""One contrast over all the studies that hold it."""

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from lib.analysis.paired import t_test
from lib.study.fields import RunConfig
from lib.study.files import finite
from lib.study.measures import MEASURES
from lib.study.plan import ALPHA

Runs = list[dict[str, Any]]
"""A study's results, as JSON."""


def pooled_contrasts(
    studies: Mapping[str, Runs], measures: Collection[str]
) -> list[dict[str, Any]]:
    """Test the seeds of several studies together, wherever these hold one contrast: an arm and its
    own baseline of the same model, training, text and (for tasks) suite in each.

    One row per contrast and measure that at least two studies hold: variant, reference, measure,
    the studies, n pairs, their mean difference, the paired t interval and p. A seed of two studies
    is one pair, that of the first: it draws the same weights and batches in both. Rows to which a
    second study adds no seed are left out. Nothing here allows for a difference between studies
    beyond their seeds.
    """
    rows = []
    for study, runs in studies.items():
        completed = {(run["arm"], run["seed"]): run for run in runs if run["status"] == "completed"}
        for (arm, seed), run in completed.items():
            baseline = completed.get((run["baseline"], seed))
            if baseline and arm != run["baseline"]:
                rows += [_pair(study, run, baseline, name) for name in measures]
    pairs = pd.DataFrame([row for row in rows if row["delta"] is not None])
    contrasts = []
    for _, part in pairs.groupby("contrast", sort=False) if len(pairs) else ():
        test = t_test(part.drop_duplicates("seed")["delta"], ALPHA)
        if test.n > part.groupby("study")["seed"].nunique().max():
            names = {key: part[key].iloc[0] for key in ("variant", "reference", "measure")}
            numbers = {name: finite(value) for name, value in test._asdict().items()}
            contrasts.append(names | {"studies": list(part["study"].unique())} | numbers)
    return contrasts


def _pair(study: str, run: dict[str, Any], base: dict[str, Any], measure: str) -> dict[str, Any]:
    """Describe a run beside its baseline: what is compared, and how far apart they are in a
    measure."""
    values = [each["measures"].get(measure) for each in (run, base)]
    return {
        "study": study,
        "contrast": repr((measure, _recipe(run, measure), _recipe(base, measure))),
        "variant": _variant(run),
        "reference": _variant(base),
        "measure": measure,
        "delta": None if None in values else values[0] - values[1],
        "seed": run["seed"],
    }


def _variant(run: dict[str, Any]) -> str:
    """Return the level of the first factor, which older results do not name apart."""
    return str(run.get("variant") or next(iter(run["levels"].values())))


def _recipe(run: dict[str, Any], measure: str) -> tuple[Any, ...]:
    """Return all that decides a measure but the seed; fields that an older schema lacks have the
    defaults that were then fixed."""
    config = RunConfig.model_validate(run["config"])
    suite = run["suite_hash"] if MEASURES[measure].raw == "items.correct" else None
    return config.corpus, run["corpus_sha256"], config.model, config.training, suite
