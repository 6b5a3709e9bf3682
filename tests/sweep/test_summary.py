"""The table at a sweep's end: arms down, measures across, differences below."""

import io

import pandas as pd
from rich.console import Console

from lib.config.metrics import MEASURES
from lib.sweep.summary import _table


def test_an_arm_has_mean_and_sd_and_below_it_its_paired_difference() -> None:
    rows = [
        {"arm": arm, "seed": seed, "status": status, "loss": loss}
        for arm, seed, status, loss in (
            ("none", 0, "completed", 2.0),
            ("none", 1, "completed", 4.0),
            ("wild", 0, "completed", 1.0),
            ("wild", 1, "diverged", float("nan")),
        )
    ]
    contrasts = {("wild", "loss"): {"mean_delta": -1.0, "t_low": -3.5, "t_high": 1.5}}
    console = Console(file=io.StringIO(), width=60, force_terminal=False, markup=False)
    console.print(_table(pd.DataFrame(rows), contrasts, ["loss"]))
    assert isinstance(console.file, io.StringIO)
    heading, _, none, wild, below = console.file.getvalue().splitlines()[:5]
    digits = MEASURES["loss"].digits
    assert heading.split() == ["arm", *MEASURES["loss"].title.split()]
    assert none.split() == ["none", f"{3:.{digits}f}", "±", f"{2**0.5:.{digits}f}"]
    assert wild.split()[:2] == ["wild", f"{1:.{digits}f}"]
    assert below.startswith("1 of 2 diverged")
    assert f"{-1:+.{digits}f} [{-3.5:+.{digits}f}, {1.5:+.{digits}f}]" in below
