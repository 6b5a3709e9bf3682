"""Whether an effect belongs to the output that shares its weights with the token embeddings."""

import pandas as pd

from lib.analysis.finding import Finding, numbers, where
from lib.analysis.paired import t_test
from lib.analysis.runs import other_settings
from lib.study.config import Study

TIED = "model.tied"


def tied_table(design: Study, runs: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per variant but the first and setting of the other factors: n, its effect on the loss
    (nats, paired with its own baseline) with a tied and with an untied output, and the paired
    difference of the two, each with its t interval; and `below_floor`: which of the arms end, on
    average, above the loss of a unigram model, whose differences say little."""
    placed = runs.assign(within=other_settings(runs, design, TIED))
    rows = []
    for within, part in placed.groupby("within", sort=False):
        losses = part.pivot(index="seed", columns="arm", values="loss")
        floor = part["unigram_loss"].mean() if "unigram_loss" in part else float("nan")
        arms = part.drop_duplicates("arm").set_index(["variant", TIED])
        for variant in list(dict.fromkeys(part["variant"]))[1:]:
            found, compared = {}, []
            if not {(variant, True), (variant, False)} <= set(arms.index):
                continue
            for tied, name in ((True, "tied"), (False, "untied")):
                arm, baseline = arms.loc[(variant, tied), ["arm", "baseline"]]
                found[name] = losses[arm] - losses[baseline]
                compared += [baseline, arm]
            found["difference"] = found["tied"] - found["untied"]
            row: dict[str, object] = {"variant": variant, "within": within}
            for name, deltas in found.items():
                test = t_test(deltas.dropna(), alpha)
                row |= {name: test.mean_delta, f"{name}_low": test.t_low}
                row |= {f"{name}_high": test.t_high, "n": test.n}
            high = [arm for arm in compared if losses[arm].mean() > floor]
            rows.append(row | {"below_floor": ", ".join(map(str, high))})
    return pd.DataFrame(rows)


def tied_finding(design: Study, runs: pd.DataFrame, alpha: float) -> Finding:
    """The table, and in words how far the effect changes with the output."""
    table = tied_table(design, runs, alpha)
    words = []
    for row in table.to_dict("records"):
        tied, untied, difference = (
            numbers(row[name], row[f"{name}_low"], row[f"{name}_high"])
            for name in ("tied", "untied", "difference")
        )
        floor = row["below_floor"]
        note = f" Below the floor of a unigram model: {floor}." if floor else ""
        words.append(
            f"{row['variant']}{where(row['within'])}: {tied} nats with a tied output, {untied} "
            f"untied; tied - untied {difference} (n = {row['n']}).{note}"
        )
    return Finding("tied", "Tied against untied output", table, words)
