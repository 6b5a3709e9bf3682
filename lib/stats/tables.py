"""Tables and sentences about a study's runs, for notebooks and the terminal."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from lib.config.contrasts import short_commits
from lib.config.files import read_json
from lib.config.metrics import JUDGED, MEASURES, MeasureGroup, measures_in
from lib.config.yaml import Json
from lib.results import RunResult
from lib.stats.factorial import CHANGES, ENDS, Row, with_signs
from lib.stats.runs import (
    available_measures,
    by_seed,
    column_by_arm,
    is_comparable,
    own_baselines,
    sides,
)

REFERENCES = {
    "uniform_loss": "a uniform guess",
    "unigram_loss": "a unigram model",
    "bigram_loss": "a bigram model",
    "source_loss": "the text's own source",
}
"""Reference loss (see `RunResult.references`) → the model with this loss on held-out text."""

UNTESTED = "Nothing is tested: an interval that excludes zero is a hint; test it on new seeds."
PAGE = 105
"""Number of characters that fit on a line of a page 1000 pixels wide."""
ACROSS = 6
"""A table with more arms than this has arms as rows; otherwise arms are columns."""


def in_markdown(verdict: Json) -> str:
    """Write the answer to each hypothesis and the decision on each arm, with their reasons, from a
    verdict as JSON."""
    paragraphs = [
        f"**{name}: {result['answer']}.** {result['reason']}"
        for name, result in verdict["answers"].items()
    ]
    paragraphs += decisions_in_words(verdict)
    if paragraphs:
        return "\n\n".join(paragraphs)
    if verdict["tests"]:
        return "03_analysis has the tests of the plan's families."
    return UNTESTED


def decisions_in_words(verdict: Json) -> list[str]:
    """Write the decision on each arm with its reason, from a verdict as JSON."""
    return [
        f"**{decision['arm']}: {decision['decision']}**, because {decision['reason']}."
        for decision in verdict["decisions"]
    ]


def mean_and_sd(values: pd.Series, digits: int) -> str:
    """Write a sample as `mean ± sd`; a single value as `mean ± n/a`, an empty sample as `n/a`."""
    if values.empty:
        return "n/a"
    sd = f"{values.std():,.{digits}f}" if len(values) > 1 else "n/a"
    return f"{values.mean():,.{digits}f} ± {sd}"


def readable(table: pd.DataFrame | None, digits: int = 3) -> pd.DataFrame:
    """Write a table's numbers with `digits` decimals, and its missing values as n/a. The first
    column becomes the index. If `table` is None, return an empty table. (A diverged run lacks
    some tables.)"""
    if table is None or table.empty:
        return pd.DataFrame()

    def text(value: object) -> str:
        if pd.isna(value):  # type: ignore[call-overload]
            return "n/a"
        return f"{value:,.{digits}f}" if isinstance(value, float) else str(value)

    return table.map(text).set_index(table.columns[0])


def section(words: str, *tables: pd.DataFrame) -> None:
    """Show whole tables below `words`, which is Markdown: a heading and what to look for. Show
    nothing if all tables are empty. A table that is wider than a page is continued below, in
    parts."""
    shown = [part for table in tables if not table.empty for part in _parts(table)]
    rows, columns, width = (f"display.max_{of}" for of in ("rows", "columns", "colwidth"))
    if shown:
        with pd.option_context(rows, None, columns, None, width, None):
            display(Markdown(words), *shown)


def _parts(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Split a table by columns into parts of at most `PAGE` characters a line. Names of arms may
    wrap at their commas."""
    table = table.rename(index=_breakable, columns=_breakable)
    rest = PAGE - _width(table.index)
    parts, used = [list[int]()], 0
    for i, column in enumerate(table):
        width = max(_width(str(column).split()), _width(table.iloc[:, i]))
        if parts[-1] and used + width > rest:
            parts.append([])
            used = 0
        parts[-1].append(i)
        used += width
    return [table.iloc[:, part] for part in parts]


def _width(cells: Iterable[object]) -> int:
    """Return the number of characters that a column takes. Cells of more than 32 characters
    wrap."""
    return min(32, max((len(str(cell)) for cell in cells), default=0)) + 3


def _breakable(name: object) -> object:
    return short_commits(name).replace(",", ", ") if isinstance(name, str) else name


def result_table(result: RunResult) -> pd.DataFrame:
    """Return a run's measures and speeds, one per row, with their units."""
    values = result.measures | result.throughput
    rows = {
        MEASURES[name].title: MEASURES[name].text(value)
        for name in measures_in("summary")
        if (value := values.get(name)) is not None
    }
    return pd.Series(rows, name="this run").to_frame()


def means(runs: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Write mean ± sd (n - 1) over completed runs, with arms as rows and measures as columns.
    Diverged runs are counted but not averaged. Shares of runs, such as the share of unstable runs,
    are the exception: there, a diverged run counts as 1."""
    rows = {}
    for arm, of_arm in runs.groupby("arm", sort=False):
        completed = of_arm[of_arm["status"] == "completed"]
        row = {"runs": str(len(of_arm)), "diverged": str(len(of_arm) - len(completed))}
        for name in names:
            measure = MEASURES[name]
            row[measure.title] = mean_and_sd(completed[name].dropna(), measure.digits)
            if name in JUDGED and of_arm[name].notna().any():
                row[measure.title] = measure.text(of_arm[name].mean())
        rows[arm] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def summary_table(
    runs: pd.DataFrame, group: MeasureGroup = "summary", first: Iterable[str] = ()
) -> pd.DataFrame:
    """Return the `means` of the measures in `first`, then of the measures of a group. Leave out
    measures that no run has. `runs` is the table of `lib.stats.runs.tidy`."""
    table = means(runs, available_measures([*first, *measures_in(group)], runs))
    return _few_across(table)


def _few_across(table: pd.DataFrame) -> pd.DataFrame:
    """Transpose a table with few rows, so that its rows become columns."""
    return table.T if len(table) <= ACROSS else table


def seed_tables(runs: pd.DataFrame, first: Iterable[str] = ()) -> list[pd.DataFrame]:
    """Write the differences arm - baseline of every seed, then their mean and sd, in one table per
    measure: the measures in `first`, then those of the comparison group. Up to six arms are the
    columns of a table. A difference is n/a if either run diverged."""
    vocabularies = column_by_arm(runs, "vocabulary")
    tables = []
    for name in available_measures([*first, *measures_in("comparison")], runs):
        values = by_seed(runs, name)
        deltas = {}
        for arm, baseline in own_baselines(runs).items():
            if is_comparable(vocabularies, name, (arm, baseline)):
                both = sides(values, {arm: 1.0, baseline: -1.0})
                deltas[arm] = both["arm"] - both["baseline"]
        if deltas:
            table = pd.DataFrame(deltas).T.add_prefix("seed ")
            table = table.assign(mean=table.mean(axis=1), sd=table.std(axis=1))
            table = table.rename_axis(f"{MEASURES[name].label}: arm - baseline").reset_index()
            tables.append(_few_across(readable(table, MEASURES[name].digits)))
    return tables


def contrast_overview(contrasts: pd.DataFrame) -> pd.DataFrame:
    """Write contrasts, or the effects of `factor_effects`, as rows, with measures as columns. Each
    cell is a mean difference with its t interval, or "changes sign" for an effect that does. The
    name of a row says if the two sides had different budgets. Empty for an empty table."""
    if contrasts.empty:
        return pd.DataFrame()
    cells: dict[str, dict[str, str]] = {}
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
    loss = MEASURES["loss"].title
    return pd.DataFrame(cells)[sorted(cells, key=lambda title: title != loss)]


def statistics(contrasts: pd.DataFrame, measures: Iterable[str]) -> list[pd.DataFrame]:
    """Write every statistic of the contrasts in `measures`, with a table for each measure."""
    tables = []
    for measure in measures:
        rows = contrasts[contrasts["measure"] == measure]
        names = rows["arm"] + " - " + rows["baseline"]
        rows = rows.drop(columns=["arm", "baseline", "measure"])
        rows = rows.replace("", np.nan).dropna(axis="columns", how="all")
        rows.insert(0, MEASURES[measure].title, names)
        tables.append(_few_across(readable(rows, 4)))
    return tables


def cautions(rows: Iterable[Row], runs: pd.DataFrame | None = None) -> str:
    """Write cautions about contrasts or effects, a line each. Say how many unadjusted intervals
    there are. Warn if an effect changes sign, or if there are only one or two seeds. With `runs`,
    also name the arms that ended with equal weights and the measures that are not compared, and
    warn if learning rates were not tuned for each optimizer."""
    rows = [row for row in rows if not pd.isna(row["mean_delta"])]
    shown = [row for row in rows if not row.get("changes_sign")]
    n_intervals = sum(not pd.isna(row["t_low"]) for row in shown)
    n_seeds = {row["n"] for row in rows}
    lines = []
    if n_intervals > 1:
        lines.append(f"{n_intervals} intervals; none is adjusted for their number.")
    if len(shown) < len(rows):
        lines.append(
            "Changes sign: the estimates lie on both sides of zero over the settings of the other "
            "factors, so their mean is not shown. If no setting's interval excludes zero, that may "
            "be chance."
        )
    if 2 in n_seeds:
        lines.append(
            "Two seeds show no spread: an interval over two differences says almost nothing; add "
            "seeds."
        )
    if 1 in n_seeds:
        lines.append("One seed shows no spread: its differences have no interval; add seeds.")
    if runs is not None:
        lines += [equal_at_the_end(runs), untuned(runs), not_compared(runs)]
    return "\n".join(line for line in lines if line)


def equal_at_the_end(runs: pd.DataFrame) -> str:
    """Name the arms that ended with the same weights in every seed: their difference had no effect
    on training. Write a line for each such group of arms; "" if there is none."""
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
    """Return a warning if an optimizer was run at only one learning rate, and another optimizer was
    also run at that rate; else "". Muon's own rate is `muon_learning_rate_ratio` times the learning
    rate."""
    optimizer, rate = runs["training.optimizer"], runs["training.learning_rate"]
    ratio = runs["training.muon_learning_rate_ratio"].astype(float)  # None in old runs
    rate = rate.where(optimizer != "muon", rate * ratio)
    rates = rate.groupby(optimizer, sort=False).agg(set)
    names = [
        name
        for name, own_rates in rates.items()
        if len(own_rates) == 1 and any(own_rates <= others for others in rates.drop(name))
    ]
    if not names:
        return ""
    which = "either optimizer" if len(names) == 2 else names[0]
    return (
        f"No rate was tuned for {which}: {' and '.join(rates.index)} are compared at the same "
        "learning rate, which may suit one of them better."
    )


def repetitions(file: Path) -> str:
    """Repeat the warnings that 01_data wrote to `file`, about held-out passages that are also in
    the training part, and about held-out text that is unlike it. "" if 01_data was not executed."""
    if not file.is_file():
        return ""
    warnings = set()
    for summary in read_json(file)["corpora"].values():
        warnings |= {summary.get("repetition"), summary.get("unlikeness")}
    return "".join(f"warning: {warning}\n" for warning in sorted(filter(None, warnings)))


def not_compared(runs: pd.DataFrame) -> str:
    """If the arms' vocabularies differ, return a sentence that no measure per token is compared;
    otherwise return ""."""
    if runs["vocabulary"].nunique() == 1:
        return ""
    return (
        "The arms' tokenizers differ, so a token is not the same amount of text in all arms: loss, "
        "perplexity and accuracy per token are not compared; bits per character are."
    )


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare the arms on each text with simple models of it (`REFERENCES`).

    Return a row per text and reference model: its loss in nats per held-out character, its
    perplexity, and `arms_above`, how many of the `arms` have a higher mean loss. An arm above the
    unigram model has not even learned how often characters occur; one above the bigram model gains
    nothing from context beyond the previous character. Empty if the runs have no references.
    """
    rows = []
    for text, on_text in runs.groupby("corpus.source", sort=False):
        losses = on_text.groupby("arm")["loss"].mean().dropna()
        for reference, name in REFERENCES.items():
            nats = on_text[reference].mean() if reference in on_text else np.nan
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
    """Write a column of a tidy table as mean ± sd over seeds, by arm and the columns `rows`. A cell
    without any number, such as a token class that the corpus lacks, is n/a."""
    if table.empty:
        return table
    groups = table.groupby(["arm", *rows], sort=False, dropna=False)[value]
    cells = groups.apply(lambda values: mean_and_sd(values.dropna(), digits))
    return _few_across(cells.unstack(rows, sort=False).reindex(table["arm"].unique()))


def provenance_table(results: list[RunResult]) -> pd.DataFrame:
    """Return machine, packages, corpus and budget of the runs, a row each. If a row has more than
    one value, the runs differ in it."""
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
