"""A ladder of widths: the effect of a layer against the width of the model, at equal rates and with
each arm at its own best. The runs that choose a rate are those reported at it, which flatters both
sides. Nothing is fitted to the few points."""

from math import inf, isfinite

import pandas as pd

from lib.analysis.finding import Finding, numbers
from lib.analysis.learning_rate import RATE
from lib.analysis.paired import t_test
from lib.study.config import Study, arm_id
from lib.study.fields import Level

WIDTH = "model.n_embd"
BEST = "each at its own best rate"


def ladder_table(design: Study, runs: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per variant but the first, rate and width, the last of the rates being `BEST`, at
    which each variant takes the rate with its lowest mean loss at that width (a rate at which a run
    diverged is not taken): tokens; the paired difference in loss (nats) to the first variant with
    its t interval, n and p; how many pairs were lost to divergence; the rates of both sides."""
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    arms = runs.drop_duplicates("arm").set_index(["variant", WIDTH, RATE])["arm"].to_dict()
    tokens = runs.groupby(WIDTH)[
        ["training.iterations", "training.batch_size", "model.block_size"]
    ].first().prod(axis=1).to_dict()  # fmt: skip
    first, *others = dict.fromkeys(runs["variant"])
    rates = list(design.factors[RATE])

    def best(variant: str, width: Level) -> Level:
        means = {rate: losses[arms[variant, width, rate]].mean(skipna=False) for rate in rates}
        return min(rates, key=lambda rate: means[rate] if isfinite(means[rate]) else inf)

    rows = []
    for variant in others:
        for rate in [*rates, None]:
            for width in design.factors[WIDTH]:
                own, of_first = (rate or best(name, width) for name in (variant, first))
                delta = losses[arms[variant, width, own]] - losses[arms[first, width, of_first]]
                test = t_test(delta.dropna(), alpha)._asdict()
                rows.append(
                    {"variant": variant, "rate": arm_id({RATE: rate}) if rate else BEST}
                    | {
                        WIDTH: width,
                        "tokens": int(tokens[width]),
                        "n_dropped": int(delta.isna().sum()),
                    }
                    | {"own_rate": own, "rate_of_first": of_first, **test}
                )
    return pd.DataFrame(rows)


def ladder_findings(design: Study, runs: pd.DataFrame, alpha: float) -> list[Finding]:
    """The table with its sentences; none unless every variant has one arm at each of several widths
    and rates."""
    variants, steps = runs["variant"].nunique(), [design.factors.get(f, []) for f in (WIDTH, RATE)]
    widths, rates = map(len, steps)
    if min(widths, rates, variants) < 2 or runs["arm"].nunique() != variants * widths * rates:
        return []
    table = ladder_table(design, runs, alpha)
    words = []
    for (variant, rate), part in table.groupby(["variant", "rate"], sort=False):
        points = ", ".join(
            f"{numbers(row['mean_delta'], row['t_low'], row['t_high'])} at {row[WIDTH]}"
            for row in part.to_dict("records")
        )
        words.append(f"{variant}, {rate}: difference in loss (nats) by width: {points}.")
    words.append(
        f"{BEST.capitalize()}: the runs that chose a rate are those reported at it, on the same "
        "seeds, which flatters both sides: a comparison needs seeds that chose nothing."
    )
    best = table.loc[table["rate"] == BEST, ["own_rate", "rate_of_first"]]
    edges = min(design.factors[RATE]), max(design.factors[RATE])  # type: ignore[type-var]
    words.append(
        f"{best.isin(edges).to_numpy().sum()} of these {best.size} rates lie at the edge of the "
        "grid: beyond it losses may be lower. Widths of unlike numbers of steps differ in both."
    )
    return [Finding("ladder", "Effect by width", table, words)]
