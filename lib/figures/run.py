"""The two figures that a training notebook shows of its one run."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from lib.analysis.runs import last_point, variant_and_setting
from lib.figures.style import STYLE, show
from lib.figures.training import group_values, reliability_diagram, residual_norms, trend
from lib.study.config import Arm


def show_training(trace: pd.DataFrame, curve: pd.DataFrame, arm: Arm) -> None:
    """Show how training went: loss, gradient norm, second moment, embeddings, logits over steps."""
    variant = variant_and_setting(arm.levels)["variant"]
    trace, curve = (table.assign(variant=variant) for table in (trace, curve))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 4, figsize=(9, 3.8))
        for y, ax in zip(("loss", "grad_norm", "second_moment_mean"), axes[0], strict=False):
            trend(trace, y, ax)
        columns = ("embedding_cosine", "input_cosine", "embedding_norm", "logit_sd")
        for y, ax in zip(("dev_loss", *columns), [axes[0, 3], *axes[1]], strict=True):
            trend(curve, y, ax)
        _show_one_run(figure)


def show_measurement(tables: dict[str, pd.DataFrame], curve: pd.DataFrame, arm: Arm) -> None:
    """Show what was measured of the trained model: calibration, temperature, loss by context, the
    residual stream and second moments; of a diverged one, only the last two."""
    variant = variant_and_setting(arm.levels)["variant"]
    tables = {name: table.assign(variant=variant) for name, table in tables.items()}
    last = curve.assign(variant=variant, arm=variant, setting="", seed=0)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 5, figsize=(10, 2.1))
        if "reliability" in tables:
            reliability_diagram(tables["reliability"], axes[0])
            trend(tables["temperatures"], "nll", axes[1], x="temperature")
            trend(tables["positions"], "position_loss", axes[2], x="context")
        residual_norms(last, axes[3])
        group_values(last_point(last, "second_moment_", "group"), "second moment", axes[4])
        _show_one_run(figure)


def _show_one_run(figure: Figure) -> None:
    """Show a figure without legends: there is but one line to each panel."""
    for ax in figure.axes:
        if ax.get_legend():
            ax.get_legend().remove()  # type: ignore[union-attr]
    show(figure)
