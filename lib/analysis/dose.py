"""Dose and response: the effect against the initial length of the residual stream.

Every reader of the stream normalizes it, so its length counts only relative to what the branches
add: multiplying the embeddings by s is dividing every branch by s.
"""

import pandas as pd

from lib.analysis.finding import Finding, numbers
from lib.analysis.paired import t_test
from lib.study.config import Study


def stream_table(design: Study) -> pd.DataFrame:
    """One row per arm whose layer sets the stream's initial RMS: arm, baseline, layer, setting, rms
    (that RMS), branch_multiplier, and relative_rms = rms / branch_multiplier."""
    rows = []
    for arm in design.arms():
        model = arm.config.model
        if arm.id != arm.baseline and model.embedding_norm in ("layernorm", "rmsnorm", "scale"):
            rows.append(
                {"arm": arm.id, "baseline": arm.baseline, "layer": model.embedding_norm}
                | {"setting": arm.setting, "rms": model.embedding_rms}
                | {"branch_multiplier": model.branch_multiplier}
                | {"relative_rms": model.embedding_rms / model.branch_multiplier}
            )
    return pd.DataFrame(rows)


def dose_table(streams: pd.DataFrame, runs: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """The rows of `stream_table`, in the order of layer and relative RMS, each with its paired
    difference in loss (nats) to its baseline: n, mean_delta, t interval and p."""
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    tests = [
        t_test((losses[row.arm] - losses[row.baseline]).dropna(), alpha)._asdict()
        for row in streams.itertuples()
    ]
    return streams.join(pd.DataFrame(tests)).sort_values(
        ["layer", "relative_rms"], ignore_index=True
    )


def layers_apart(streams: pd.DataFrame, runs: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per RMS at which RMSNorm and a fixed multiplier start the stream alike: the paired
    difference in loss (nats) RMSNorm - scale, with its t interval and p."""
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    keys = ["setting", "rms", "branch_multiplier", "relative_rms"]
    of = dict(list(streams[["layer", "arm", *keys]].groupby("layer")))
    if not {"rmsnorm", "scale"} <= set(of):
        return pd.DataFrame()
    pairs = of["rmsnorm"].merge(of["scale"], on=keys, suffixes=("", "_scale"))
    tests = [
        t_test((losses[row.arm] - losses[row.arm_scale]).dropna(), alpha)._asdict()
        for row in pairs.itertuples()
    ]
    table = pairs[["arm", "arm_scale", *keys]].rename(columns={"arm_scale": "baseline"})
    return table.join(pd.DataFrame(tests)).sort_values("relative_rms", ignore_index=True)


def dose_findings(design: Study, runs: pd.DataFrame, alpha: float) -> list[Finding]:
    """Both tables with their sentences; none where all arms start the stream alike."""
    streams = stream_table(design)
    if streams.empty or streams["relative_rms"].nunique() < 2:
        return []
    table, apart = dose_table(streams, runs, alpha), layers_apart(streams, runs, alpha)
    words = [_curve(str(layer), part) for layer, part in table.groupby("layer", sort=False)]
    zero = int(((apart["t_low"] <= 0) & (apart["t_high"] >= 0)).sum()) if len(apart) else 0
    sentences = [
        f"RMSNorm - scale at equal initial RMS, {row.rms:g}: "
        f"{numbers(row.mean_delta, row.t_low, row.t_high)} nats (n = {row.n})."
        for row in apart.itertuples()
    ] + [f"The interval holds zero at {zero} of {len(apart)} lengths."]
    return [
        Finding("dose", "Effect in nats by initial length of the stream", table, words),
        Finding("layers_apart", "RMSNorm against a fixed multiplier", apart, sentences),
    ]


def _curve(layer: str, part: pd.DataFrame) -> str:
    """Say how the effect of a layer goes with the length that it gives the stream; arms whose
    branches are multiplied too stand beside the curve."""
    own = part[part["branch_multiplier"] == 1]
    effects = own.groupby("rms")["mean_delta"].mean()
    shape = "no curve"
    if len(effects) > 1:
        shape = "not monotone"
        if effects.is_monotonic_increasing:
            shape = "rising with the length"
        elif effects.is_monotonic_decreasing:
            shape = "falling with the length"
    points = ", ".join(
        f"{numbers(row.mean_delta, row.t_low, row.t_high)} at {row.rms:g}"
        + ("" if row.branch_multiplier == 1 else f" with branches × {row.branch_multiplier:g}")
        for row in part.itertuples()
    )
    return f"{layer}, nats to no layer by initial RMS of the stream: {points} ({shape})."
