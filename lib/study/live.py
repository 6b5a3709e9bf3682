"""What a run in training has done so far: a row per step, in a file that grows while it trains.

It is for those who watch. The trace that counts is in the run's checkpoints, and then its raw file.
"""

from pathlib import Path

import pandas as pd

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that `lib.workflow.execution` sets: nobody watches, so no bars."""
COLUMNS = ("step", "loss", "grad_norm", "tokens", "elapsed")
"""As in the trace; `elapsed`: seconds since training began or was taken up again."""


def live_file(folder: Path) -> Path:
    """Where the run in a folder writes its steps while it trains."""
    return folder / "live.csv"


def read_live(folder: Path) -> pd.DataFrame:
    """Read the steps of the run in a folder; empty where there are none. What came after the step
    at which a killed run was taken up again is left out."""
    path = live_file(folder)
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS), dtype=float)
    read = pd.read_csv(path, names=list(COLUMNS), on_bad_lines="skip", float_precision="round_trip")
    # The last line may be cut off.
    rows: pd.DataFrame = read.apply(pd.to_numeric, errors="coerce").dropna(subset="elapsed")
    last = rows["step"][::-1].cummin()[::-1]
    return rows.loc[(rows["step"] == last) & ~rows["step"].duplicated(keep="last")]
