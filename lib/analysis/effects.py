"""Effects beyond a plan's contrasts: paired rows, shares of an effect, the suite task by task, and
attempts to explain a result away by leaving a seed or a task out; differences through training, the
tokens needed for one loss, and one contrast over all the studies that hold it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from lib.analysis.paired import TTest, holm, t_test, t_tests
from lib.analysis.runs import own_baselines
from lib.analysis.tables import Finding
from lib.study.io import nan_to_none
from lib.study.metrics import MEASURES
from lib.study.plan import ALPHA
from lib.study.schema import RunConfig

ZERO_SHOT, FEW_SHOT = "macro_accuracy_zero_shot", "macro_accuracy_few_shot"


def seed_differences(runs: pd.DataFrame, measure: str, arm: str, baseline: str) -> pd.Series:
    """Return arm - baseline in a measure, by seed; NaN where either run has none."""
    values = runs.pivot(index="seed", columns="arm", values=measure).astype(float)
    return values[arm] - values[baseline]


def paired_rows(
    pairs: pd.DataFrame, runs: pd.DataFrame, measure: str, alpha: float = ALPHA
) -> pd.DataFrame:
    """Join to each row, which names an `arm` and a `baseline`, their paired difference in a measure
    over the seeds that both completed: n, mean_delta, t interval and p."""
    tests = [
        t_test(seed_differences(runs, measure, arm, baseline).dropna(), alpha)._asdict()
        for arm, baseline in zip(pairs["arm"], pairs["baseline"], strict=True)
    ]
    return pairs.join(pd.DataFrame(tests, index=pairs.index))


def ratio_interval(part: ArrayLike, whole: ArrayLike, alpha: float = ALPHA) -> tuple[float, float]:
    """Compute the 1 - alpha interval for mean(part) / mean(whole), paired values (n,) (Fieller
    1954): the ratios r for which a t test of part - r · whole against zero is not significant.

    NaN when n < 2, or when the whole itself does not differ significantly from zero: the interval
    is then unbounded.
    """
    x, y = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    n = len(x)
    if n < 2:
        return np.nan, np.nan
    t = scipy.stats.t.ppf(1 - alpha / 2, n - 1)
    covariance = np.cov(x, y) / n
    # (mean x - r mean y)² ≤ t² var(x - r y) / n is a quadratic in r: a r² - 2 b r + c ≤ 0.
    a = y.mean() ** 2 - t**2 * covariance[1, 1]
    b = x.mean() * y.mean() - t**2 * covariance[0, 1]
    c = x.mean() ** 2 - t**2 * covariance[0, 0]
    if a <= 0:
        return np.nan, np.nan
    half = np.sqrt(max(b * b - a * c, 0.0))
    return float((b - half) / a), float((b + half) / a)


def leave_one_out(runs: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure): n, mean difference, lowest and
    highest mean when one seed is left out, whether the sign of the mean ever changes, and the
    largest p then. Where the contrasts are a family of tests, p is adjusted by Holm's method over
    the family without that seed. Contrasts of fewer than three pairs are left out."""
    rows, p = [], []
    for row in contrasts.to_dict("records"):
        values = seed_differences(runs, row["measure"], row["arm"], row["baseline"])
        deltas = values.dropna()
        if len(deltas) > 2:
            without = {seed: t_test(deltas.drop(seed, errors="ignore")) for seed in values.index}
            key = {name: row[name] for name in ("arm", "baseline", "measure")}
            rows.append(key | {"n": len(deltas)} | _spread(deltas.mean(), without.values()))
            p.append({seed: test.t_p for seed, test in without.items()})
    by_seed = pd.DataFrame(p)  # a column per seed that is left out
    if rows and "family" in contrasts and contrasts["family"].all():
        by_seed = by_seed.apply(holm)
    return pd.DataFrame(rows).assign(largest_p=by_seed.max(axis=1).to_numpy())


def _spread(mean: float, without: Iterable[TTest]) -> dict[str, float | bool]:
    """Say how far a mean moves to those with a part left out, and whether past zero."""
    means = [test.mean_delta for test in without]
    moved = {"mean_delta": mean, "lowest": min(means), "highest": max(means)}
    return moved | {"sign_changes": bool((np.sign(means) != np.sign(mean)).any())}


def leave_one_task_out(items: pd.DataFrame, contrasts: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure) in a macro accuracy: n, mean
    difference, lowest and highest mean when one task is left out, whether the sign of the mean ever
    changes; then `task`, without which the mean moves most, and the t interval and p of what is
    left. Only tasks that both were asked count. `items` are the joined answers of all runs."""
    rows = []
    for row in contrasts.to_dict("records") if len(items) else []:
        answers = items[(items["shots"] > 0) == (row["measure"] == FEW_SHOT)]
        has_both = {row["arm"], row["baseline"]} <= set(answers["arm"])
        if row["measure"] not in (ZERO_SHOT, FEW_SHOT) or not has_both:
            continue
        accuracy = answers.groupby(["arm", "seed", "task"])["correct"].mean().unstack("task")
        deltas = accuracy.loc[row["arm"]] - accuracy.loc[row["baseline"]]
        deltas = deltas.dropna(how="all").dropna(axis=1)
        if deltas.size and deltas.shape[1] > 1:
            without = {t: t_test(deltas.drop(columns=t).mean(axis=1), alpha) for t in deltas}
            mean = float(deltas.mean(axis=1).mean())
            task = max(without, key=lambda t: abs(without[t].mean_delta - mean))
            rows.append(
                {key: row[key] for key in ("arm", "baseline", "measure")}
                | {"n": len(deltas), "tasks": deltas.shape[1]}
                | _spread(mean, without.values())
                | {"task": task, "without": without[task].mean_delta}
                | {key: getattr(without[task], key) for key in ("t_low", "t_high", "t_p")}
            )
    return pd.DataFrame(rows)


def leave_one_out_finding(table: pd.DataFrame) -> Finding:
    """Say of each row of `leave_one_out` how far its mean moves."""
    words = [
        f"{row.arm} - {row.baseline}, {MEASURES[str(row.measure)].label}: "
        f"{row.mean_delta:+.4g}, between {row.lowest:+.4g} and {row.highest:+.4g} with one of "
        f"{row.n} seeds left out; its sign {'changes' if row.sign_changes else 'never changes'}."
        for row in table.itertuples()
    ]
    return Finding("leave_one_out", "With one seed left out", table, words)


def task_contrasts(runs: pd.DataFrame, items: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per arm beside its baseline, task and number of shots: mean paired difference
    in accuracy with its t interval and p, and that p adjusted by Holm's method over all tasks and
    shots of the contrast. `items` are the joined answers of all runs, to the suite or to stock
    tasks; empty without any."""
    keys = ["arm", "task", "shots", "seed"]
    if items.empty:
        return pd.DataFrame(columns=["arm", "baseline"])
    accuracy = items.groupby(keys)["correct"].mean().unstack("seed")
    table = t_tests(accuracy, own_baselines(runs), alpha)
    return table.assign(p_holm=table.groupby(["arm", "baseline"])["t_p"].transform(holm))


def task_finding(
    table: pd.DataFrame, alpha: float, key: str = "task_contrasts", of: str = "Task by task"
) -> Finding:
    """Say in how many tasks each arm differs after adjustment."""
    words = ["The adjusted p rests on t alone: with so many tests no exact test could survive."]
    for (arm, baseline), part in table.groupby(["arm", "baseline"], sort=False):
        differ = part[part["p_holm"] < alpha]
        lower = int((differ["mean_delta"] < 0).sum())
        tested = int(np.isfinite(part["p_holm"]).sum())
        words.append(
            f"{arm} - {baseline}: lower in {lower}, higher in {len(differ) - lower} of "
            f"{len(part)} tasks × shots; {tested - len(differ)} undecided, "
            f"{len(part) - tested} without a test."
        )
    return Finding(key, f"{of}, adjusted over tasks", table, words)


PER_STEP = ["training.batch_size", "model.block_size"]
"""Whose product is the tokens of a step."""


def course_table(
    baselines: dict[str, str], curve: pd.DataFrame, column: str, alpha: float
) -> pd.DataFrame:
    """Return one row per arm beside its baseline and step at which both were evaluated: steps, n,
    mean paired difference in `column` of the joined curves, with its t interval and p."""
    if column not in curve:
        return pd.DataFrame()
    values = curve.dropna(subset=column).pivot(index=["arm", "step"], columns="seed", values=column)
    table = t_tests(values, baselines, alpha).rename(columns={"step": "steps"})
    return table[table["n"] > 0].reset_index(drop=True)  # a seed reached the step in both


def first_reached(loss: pd.Series, target: float) -> float:
    """Find where a loss (nats, indexed by steps or tokens, in order) first is `target`,
    interpolated linearly between evaluations; NaN when it never is."""
    values, positions = loss.to_numpy(float), loss.index.to_numpy(float)
    if not (values <= target).any():
        return np.nan
    i = int((values <= target).argmax())
    before = max(i - 1, 0)
    return float(np.interp(target, values[[i, before]], positions[[i, before]]))


def token_ratios(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per arm beside its baseline: the tokens that it needs, relative to the
    baseline, for the loss that both reach in a seed. That is the worse of their two final ones.
    Below 1: the arm saves tokens. Geometric mean over seeds with its t interval (on logarithms) and
    p; and in how many seeds the arm reached the baseline's final loss at all. Pairs with a diverged
    run drop out, and those in which the untrained model has that loss already."""
    losses = curve.set_index(["arm", "seed", "step"])["dev_loss"].sort_index()
    per_step = runs.drop_duplicates("arm").set_index("arm")[PER_STEP].prod(axis=1)
    completed = set(
        runs.loc[runs["status"] == "completed", ["arm", "seed"]].itertuples(index=False)
    )
    rows = []
    for arm, baseline in own_baselines(runs).items():
        logs, reached = [], 0
        for seed in runs.loc[runs["arm"] == arm, "seed"]:
            if not {(arm, seed), (baseline, seed)} <= completed:
                continue
            arm_loss, baseline_loss = losses[arm, seed], losses[baseline, seed]
            common = max(arm_loss.iloc[-1], baseline_loss.iloc[-1])
            needed = first_reached(arm_loss, common), first_reached(baseline_loss, common)
            if min(needed) == 0:  # training that only made it worse has no ratio
                continue
            logs.append(np.log(needed[0] * per_step[arm] / (needed[1] * per_step[baseline])))
            reached += int(arm_loss.min() <= baseline_loss.iloc[-1])
        test = t_test(logs, alpha)
        rows.append(
            {"arm": arm, "baseline": baseline, "n": test.n}
            | {"token_ratio": np.exp(test.mean_delta), "t_low": np.exp(test.t_low)}
            | {"t_high": np.exp(test.t_high), "t_p": test.t_p, "reached": reached}
        )
    return pd.DataFrame(rows)


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
            numbers = {name: nan_to_none(value) for name, value in test._asdict().items()}
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
