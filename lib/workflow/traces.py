"""Ways out: what the runs of a recorded study left by step, for TensorBoard or as tables.

Every column of `trace` and `curve` keeps its name, after that of its file: `trace/loss`,
`curve/dev_loss`. A run is named STUDY/ARM/SEED.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from lib.record.record import Record, Run, raw_folder, require_recorded
from lib.record.retrain import recorded_runs
from lib.study.errors import ConfigError, UserError
from lib.study.files import replacing
from lib.study.paths import RUNS, shown
from lib.study.provenance import trained_with
from lib.study.raw import read_raw_file


def export_traces(study: str, to: str, out: Path | None) -> Path:
    """Write the traces of a study, given by name or path, to a new folder of its name in `out`
    (None: in `runs/`); return that folder. `to` is a name in `WRITERS`.

    Raises UsageError for a study that is not recorded, ConfigError for a folder that is there, and
    UserError for a study of which no traces are kept, or where TensorBoard is not installed.
    """
    (study,) = require_recorded([study])
    runs = recorded_runs([study])
    if not runs:
        raise UserError(f"{study}: only its results are kept, and no traces")
    folder = (out or RUNS / "traces" / to) / study
    if folder.exists():
        raise ConfigError(f"--out: {shown(folder)} exists, and nothing is replaced; delete it")
    with replacing(folder) as temporary:
        temporary.mkdir()
        WRITERS[to](runs, temporary)
    return folder


def by_step(run: Run) -> pd.DataFrame:
    """Read all that a recorded run left by step, a row per step: NaN where there is nothing."""
    folder = raw_folder(Record(run["study"]).run_notebook(run))
    trace, curve = (
        read_raw_file(folder, name).set_index("step").add_prefix(f"{name}/")
        for name in ("trace", "curve")
    )
    return trace.join(curve, how="outer")


def hyperparameters(run: Run) -> dict[str, Any]:
    """Name what a run was asked and how it ended: arm, seed, status, each field of its
    configuration, as in `training.learning_rate`, and the levels of its factors."""
    about = {name: run[name] for name in ("arm", "seed", "status")}
    fields = pd.json_normalize(run["config"])
    return {**about, **dict(zip(fields, fields.to_numpy(object)[0], strict=True)), **run["levels"]}


def measures(run: Run) -> dict[str, float]:
    """Name the measures that a run has."""
    return {f"measure/{name}": v for name, v in run["measures"].items() if v is not None}


def _tensorboard(runs: dict[str, Run], folder: Path) -> None:
    """Write a folder of events for each run. A step has the time at which it was made, so that
    TensorBoard's axis of time is that of the training."""
    try:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ModuleNotFoundError as error:
        raise UserError(f"--to tensorboard: {error}; pip install tensorboard") from None
    for run in runs.values():
        table, end = by_step(run), measures(run)
        started = pd.Timestamp(trained_with(run["provenance"])["started"]).timestamp()
        times = started + table["trace/seconds"].fillna(0).cumsum()
        asked = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in hyperparameters(run).items()
        }
        with SummaryWriter(folder / run["arm"] / str(run["seed"])) as writer:
            for name in table:
                kept = table[name].dropna()
                for step, value, at in zip(kept.index, kept, times[kept.index], strict=True):
                    writer.add_scalar(name, value, step, at)
            for name, value in end.items():
                writer.add_scalar(name, value, run["steps"], times.iloc[-1])
            for summary in hparams(asked, end):
                writer.file_writer.add_summary(summary)


def _csv(runs: dict[str, Run], folder: Path) -> None:
    """Write every digit to `traces.csv`, a row per run and step, and `runs.csv`, a row per run."""
    steps = pd.concat({name: by_step(run) for name, run in runs.items()}, names=["run"])
    steps.to_csv(folder / "traces.csv")
    rows = {name: hyperparameters(run) | measures(run) for name, run in runs.items()}
    pd.DataFrame.from_dict(rows, "index").to_csv(folder / "runs.csv", index_label="run")


WRITERS: dict[str, Callable[[dict[str, Run], Path], None]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
}
