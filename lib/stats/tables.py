"""A study's runs as tables for a reader: of a notebook, or at a terminal."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from lib.config.files import read_json
from lib.config.metrics import JUDGED, MEASURES, MeasureGroup, measures_in
from lib.config.yaml import Json
from lib.results import RunResult
from lib.stats.factorial import CHANGES, ENDS, Row, with_signs
from lib.stats.runs import available_measures, is_comparable, own_baselines, seed_differences

REFERENCES = {
    "uniform_loss": "a uniform guess",
    "unigram_loss": "a unigram model",
    "bigram_loss": "a bigram model",
    "source_loss": "the text's own source",
}
"""Reference (see `RunResult.references`) → what it is the held-out loss of."""


def in_markdown(verdict: Json) -> str:
    """Write the answer to each hypothesis and what is decided of each arm, from what is kept of a
    verdict, each with its reason."""
    said = [
        f"**{name}: {of['answer']}.** {of['reason']}" for name, of in verdict["answers"].items()
    ]
    for of in verdict["decisions"]:
        said.append(f"**{of['arm']}: {of['decision']}**, since {of['reason']}.")
    if said:
        return "\n\n".join(said)
    if verdict["tests"]:
        return "The tests of the plan's families stand in 03_analysis."
    return "Nothing is tested: an interval without zero is a hint, to be tested on other seeds."


def mean_and_sd(values: pd.Series, digits: int) -> str:
    """Write a sample as `mean ± sd`; the sd of a single value and the mean of none are n/a."""
    if values.empty:
        return "n/a"
    sd = f"{values.std():,.{digits}f}" if len(values) > 1 else "n/a"
    return f"{values.mean():,.{digits}f} ± {sd}"


def readable(table: pd.DataFrame | None, digits: int = 3) -> pd.DataFrame:
    """Write a table's numbers with `digits` decimals, and missing values as n/a. Of a run that
    diverged, some tables are None: nothing is written then."""
    if table is None or table.empty:
        return pd.DataFrame()

    def text(value: object) -> str:
        if pd.isna(value):  # type: ignore[call-overload]
            return "n/a"
        return f"{value:,.{digits}f}" if isinstance(value, float) else str(value)

    return table.map(text).set_index(table.columns[0])


def result_table(result: RunResult) -> pd.DataFrame:
    """List a run's measures and speeds, a row each."""
    values = result.measures | result.throughput
    rows = {
        MEASURES[name].title: MEASURES[name].text(value)
        for name in measures_in("summary")
        if (value := values.get(name)) is not None
    }
    return pd.Series(rows, name="this run").to_frame()


def means(runs: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Write mean ± standard deviation (n - 1) over completed runs, arms down and measures across.
    Diverged runs are counted, never averaged in; only in shares of runs they count as one."""
    rows = {}
    for arm, part in runs.groupby("arm", sort=False):
        completed = part[part["status"] == "completed"]
        row = {"runs": str(len(part)), "diverged": str(len(part) - len(completed))}
        for name in names:
            measure = MEASURES[name]
            row[measure.title] = mean_and_sd(completed[name].dropna(), measure.digits)
            if name in JUDGED and part[name].notna().any():
                row[measure.title] = measure.text(part[name].mean())
        rows[arm] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def summary_table(
    runs: pd.DataFrame, group: MeasureGroup = "summary", first: Iterable[str] = ()
) -> pd.DataFrame:
    """Lay out the `means` of some measures that are shown first, and of those of a group; a measure
    that no run has is left out. `runs` is the table of `lib.stats.runs.tidy`. Few arms stand side
    by side, many below each other."""
    table = means(runs, available_measures([*first, *measures_in(group)], runs))
    return table.T if len(table) <= 6 else table


def seed_tables(runs: pd.DataFrame, first: Iterable[str] = ()) -> list[pd.DataFrame]:
    """Write the differences arm - baseline of every seed (rows arms, columns seeds), with mean and
    standard deviation, one table per measure: those that are shown first, then those of the
    comparison. NaN where either run diverged."""
    tables = []
    for name in available_measures([*first, *measures_in("comparison")], runs):
        deltas = {}
        for arm, baseline in own_baselines(runs).items():
            if is_comparable(runs, name, (arm, baseline)):
                deltas[arm] = seed_differences(runs, name, arm, baseline)
        if deltas:
            table = pd.DataFrame(deltas).T.add_prefix("seed ")
            table = table.assign(mean=table.mean(axis=1), sd=table.std(axis=1))
            table = table.rename_axis(f"{MEASURES[name].label}: arm - baseline").reset_index()
            tables.append(readable(table, MEASURES[name].digits))
    return tables


def contrast_overview(contrasts: pd.DataFrame) -> pd.DataFrame:
    """Lay out all contrasts, or effects of factors (rows), in all measures (columns): difference
    and t interval; and which part of its budget differs where that is itself a factor. An effect
    that changes its sign over settings has these words in place of its mean. Empty for an empty
    table."""
    cells: dict[str, dict[str, str]] = {}
    if contrasts.empty:
        return pd.DataFrame()
    rows = contrasts.astype(ENDS).to_dict("records")
    if "effect" in contrasts:
        rows = with_signs(rows)
    for row in rows:
        name = row["effect"] if "effect" in row else f"{row['arm']} - {row['baseline']}"
        if row["budget"]:
            name += f" ({row['budget']} differs)"
        measure = MEASURES[row["measure"]]
        cell = CHANGES if row.get("changes_sign") else measure.estimate(row)
        cells.setdefault(measure.title, {})[name] = cell
    return pd.DataFrame(cells)


def cautions(rows: Iterable[Row], runs: pd.DataFrame | None = None) -> str:
    """Write what a reader of contrasts and effects must know before one of them counts as found, a
    line each: how many intervals there are, whether an effect changes its sign, whether there are
    only one or two seeds; and with the runs which arms ended alike, whether a rate was tuned for
    each optimizer, and what is not compared."""
    rows = [row for row in rows if not pd.isna(row["mean_delta"])]
    shown = [row for row in rows if not row.get("changes_sign")]
    intervals = sum(not pd.isna(row["t_low"]) for row in shown)
    n_seeds = {row["n"] for row in rows}
    lines = []
    if intervals > 1:
        lines.append(f"{intervals} intervals; none is adjusted for their number.")
    if len(shown) < len(rows):
        lines.append(
            "Changes sign: the estimates lie on both sides of zero over the settings of the other "
            "factors, so their mean is not shown. If no setting's interval excludes zero, that may "
            "be chance."
        )
    if 2 in n_seeds:
        lines.append(
            "Two seeds show no spread: an interval over two differences says next to nothing; add "
            "seeds."
        )
    if 1 in n_seeds:
        lines.append("One seed shows no spread: its differences have no interval; add seeds.")
    if runs is not None:
        lines += [equal_at_the_end(runs), untuned(runs), not_compared(runs)]
    return "\n".join(line for line in lines if line)


def equal_at_the_end(runs: pd.DataFrame) -> str:
    """Name the arms whose runs ended at the same weights in every seed: what sets them apart did
    nothing in training. A line for each such set of arms; "" without any."""
    arms_of: dict[tuple[str, ...], list[str]] = {}
    for arm, part in runs.groupby("arm", sort=False):
        weights = tuple(part.sort_values("seed")["final_weights"])
        arms_of.setdefault(weights, []).append(str(arm))
    return "\n".join(
        f"{' and '.join(arms)} ended at equal weights: what sets them apart changed no training."
        for arms in arms_of.values()
        if len(arms) > 1
    )


def untuned(runs: pd.DataFrame) -> str:
    """Warn of optimizers that were compared at one learning rate, which is also another's; "" if
    there are none. Muon's own rate is `muon_learning_rate_ratio` times as high."""
    optimizer, rate = runs["training.optimizer"], runs["training.learning_rate"]
    ratio = runs["training.muon_learning_rate_ratio"].astype(float)  # None of an old run
    rate = rate.where(optimizer != "muon", rate * ratio)
    rates = rate.groupby(optimizer, sort=False).agg(set)
    names = [
        name
        for name, own in rates.items()
        if len(own) == 1 and any(own <= others for others in rates.drop(name))
    ]
    if not names:
        return ""
    which = "either optimizer" if len(names) == 2 else names[0]
    return (
        f"No rate was tuned for {which}: {' and '.join(rates.index)} are compared at the same "
        "learning rate, which may suit one of them better."
    )


def repetitions(file: Path) -> str:
    """Warn, by what 01 found and wrote, of held-out passages that the training part has too, and of
    held-out text that is unlike it; "" where 01 was not executed."""
    if not file.is_file():
        return ""
    said = set()
    for summary in read_json(file)["corpora"].values():
        said |= {summary.get("repetition"), summary.get("unlikeness")}
    return "\n".join(f"warning: {found}" for found in sorted(filter(None, said)))


def not_compared(runs: pd.DataFrame) -> str:
    """Return why arms are compared in no measure per token, where their vocabularies differ."""
    if runs["vocabulary"].nunique() == 1:
        return ""
    return (
        "The arms' tokenizers differ, so that a token of one is another amount of text in another: "
        "loss, perplexity and accuracy per token are not compared; bits per character are."
    )


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per text and reference: nats per held-out character, perplexity, and how many
    of the arms on this text have a higher mean loss. Empty for runs that know none.

    A run above the unigram loss has not learnt how often characters occur; one above the bigram
    loss uses no context that counting pairs does not.
    """
    rows = []
    for text, part in runs.groupby("corpus.source", sort=False):
        losses = part.groupby("arm")["loss"].mean().dropna()
        for reference, name in REFERENCES.items():
            nats = part[reference].mean() if reference in part else np.nan
            if not np.isnan(nats):
                rows.append(
                    {
                        "text": text,
                        "reference": name,
                        "nats": nats,
                        "perplexity": np.exp(nats),
                        "arms_above": int((losses > nats).sum()),
                        "arms": len(losses),
                    }
                )
    return pd.DataFrame(rows)


def by_arm(table: pd.DataFrame, rows: list[str], value: str, digits: int) -> pd.DataFrame:
    """Lay a tidy table out with `rows` down and arms across, each cell mean ± sd over seeds.
    Cells without any number (a token class that the corpus lacks) are n/a."""
    if table.empty:
        return table
    groups = table.groupby([*rows, "arm"], sort=False, dropna=False)[value]
    cells = groups.apply(lambda values: mean_and_sd(values.dropna(), digits))
    return pd.DataFrame(cells.unstack("arm"), columns=list(dict.fromkeys(table["arm"])))


def provenance_table(results: list[RunResult]) -> pd.DataFrame:
    """List what the runs were made with. More than one value in a row is worth a look."""
    machine = ("device", "device_name", "precision", "threads", "platform", "commit", "clean")
    rows = [
        {
            **{name: run.origin.get(name) for name in machine},
            **run.origin["packages"],
            "corpus": run.corpus_sha256[:12],
            "tokens per run": f"{run.tokens:,}",
            "parameters": f"{run.parameters:,}",
            "resumed after a stop": bool(run.resumed_at),
        }
        for run in results
    ]
    values = {
        name: ", ".join(map(str, column.unique())) for name, column in pd.DataFrame(rows).items()
    }
    return pd.Series(values, name="").to_frame()
