"""The raw files of a run, and the measures that follow from them: the one route to these numbers.

Six tables stand beside a result. `trace` has a row per step and `curve` one per evaluation;
`windows` and `bins` hold sums over the held-out text, `positions` its loss by length of context,
`items` a row per question of the suite. Where stock tasks are asked, `stock_items` has one per
question of theirs.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from lib.study.fields import stock_measures

RAW = ("trace", "curve", "windows", "bins", "positions", "items")
STOCK = "stock_items"
MAX_WINDOWS = 128
"""Rows of `windows`, roughly: more would tell more about where in the text a model fails, in larger
files."""


Folder = Path | zipfile.Path
"""A run's folder, on disk or in an archive."""
_AnyFolder = TypeVar("_AnyFolder", Path, zipfile.Path, Folder)


def raw_file(folder: _AnyFolder, name: str) -> _AnyFolder:
    """Return where a run's folder keeps one of its raw files."""
    return folder / f"{name}.parquet"


def write_raw(folder: Path, name: str, table: pd.DataFrame) -> Path:
    """Write a raw file as small as it goes without losing a bit."""
    encodings = {"f": "BYTE_STREAM_SPLIT", "i": "DELTA_BINARY_PACKED"}  # by numpy's kind
    kinds = {str(column): dtype.kind for column, dtype in table.dtypes.items()}
    path = raw_file(folder, name)
    pq.write_table(
        pa.Table.from_pandas(table, preserve_index=False),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[column for column, kind in kinds.items() if kind == "O"],
        column_encoding={c: encodings[kind] for c, kind in kinds.items() if kind in encodings},
        write_statistics=False,
        store_schema=False,
    )
    return path


def read_raw_file(folder: Folder, name: str) -> pd.DataFrame:
    """Read one raw file of a run, in a third of the time that `pandas.read_parquet` takes.
    ValueError for a column that stands twice."""
    content = pa.BufferReader((folder / f"{name}.parquet").read_bytes())
    table = pq.ParquetFile(content).read(use_threads=False)  # it is small
    if len({*table.column_names}) < table.num_columns:
        raise ValueError(f"{name}.parquet holds a column twice")
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame


def raw_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the raw files of a run, from the `config` in its result; older ones kept no answers to
    stock tasks."""
    evaluation = config["evaluation"]
    return (*RAW, STOCK) if evaluation.get("tasks") and "include_path" in evaluation else RAW


def read_raw(folder: Folder) -> dict[str, pd.DataFrame]:
    """Read the raw files of a run."""
    names = (*RAW, STOCK) if raw_file(folder, STOCK).is_file() else RAW
    return {name: read_raw_file(folder, name) for name in names}


def to_single_precision(table: pd.DataFrame) -> pd.DataFrame:
    """Round numbers to single precision, which halves a file; not the column `loss`: it stays as
    the optimiser saw it. They remain of the type float64, so that their sums are exact."""
    rounded = table.select_dtypes("float64").drop(columns="loss", errors="ignore")
    return table.assign(**rounded.astype(np.float32).astype(np.float64))


def window_table(columns: Mapping[str, NDArray[np.generic]], dev: int, length: int) -> pd.DataFrame:
    """Sum per-character scores (N,) over windows of a multiple of `length` characters.

    Columns: start (of the window, counted in scores), n, the sum of each of `columns`, and test,
    whether it lies in the test part: no window reaches over its first score, number `dev`.
    """
    total = len(next(iter(columns.values())))
    size = length * math.ceil(total / length / MAX_WINDOWS)
    starts = np.array([*range(0, dev, size), *range(dev, total, size)])
    sums = {
        name: np.add.reduceat(np.asarray(values, np.result_type(values, np.int64)), starts)
        for name, values in columns.items()
    }
    n = np.diff(np.append(starts, total))
    return pd.DataFrame({"start": starts, "n": n, **sums, "test": starts >= dev})


def mean(sums: pd.Series, n: pd.Series) -> float:
    """Mean of what was summed over parts of n, without rounding in between, whatever the machine.
    NaN of nothing; infinite when a part is."""
    total = n.sum()
    return math.fsum(sums) / int(total) if total else math.nan


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """ECE (Guo et al. 2017, eq. 3): |accuracy - confidence| of the bins, weighted by their n, from
    the columns n, confidence and correct, the latter two being sums."""
    return mean((bins["correct"] - bins["confidence"]).abs(), bins["n"])


BINNINGS = ("equal_mass", "equal_width", "test", "test_tempered")
"""Column `binning` of `bins`: all held-out characters in bins of equal mass and of equal width, and
test's in bins of equal mass, before and after the fitted temperature."""


def measures_of(raw: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Compute every measure that raw files suffice for; none of them of a diverged run, which has
    no `windows`. Those of the suite and of stock tasks are left out where these were not asked."""
    windows, bins, items, trace, curve = (
        raw[name] for name in ("windows", "bins", "items", "trace", "curve")
    )
    if windows.empty:
        return {}
    bins_by = {name: bins[bins["binning"] == name] for name in BINNINGS}
    dev, test = windows[~windows["test"]], windows[windows["test"]]
    gradients = trace["grad_norm"].dropna()  # NaN: an update that fp16 skipped
    measures = {
        "loss": mean(windows["nll"], windows["n"]),
        "loss_test": mean(test["nll"], test["n"]),
        # A token is a character unless the column `characters` counts them.
        "bits_per_character": mean(windows["nll"], windows.get("characters", windows["n"]))
        / math.log(2),
        "perplexity": _perplexity(windows),
        "perplexity_dev": _perplexity(dev),
        "perplexity_test": _perplexity(test),
        "accuracy": mean(windows["correct"], windows["n"]),
        "accuracy_test": mean(test["correct"], test["n"]),
        "embedding_norm": mean(windows["embedding_norm"], windows["n"]),
        "severity": largest_rise(trace["loss"]),
        "grad_norm": float(gradients.iloc[-1]) if len(gradients) else math.nan,
        "grad_norm_last_tenth": float(gradients[-max(1, len(gradients) // 10) :].mean()),
        "ece": expected_calibration_error(bins_by["equal_mass"]),
        "ece_equal_width": expected_calibration_error(bins_by["equal_width"]),
        "brier": mean(windows["brier"], windows["n"]),
        "ece_test": expected_calibration_error(bins_by["test"]),
        "ece_test_tempered": expected_calibration_error(bins_by["test_tempered"]),
    }
    if "gradient_cosine" in curve:  # dev has enough windows for it
        measures["gradient_cosine"] = float(curve.loc[curve["step"] > 0, "gradient_cosine"].mean())
    return measures | _macro_accuracies(items) | _accuracies(raw.get(STOCK, pd.DataFrame()))


def largest_rise(loss: ArrayLike) -> float:
    """Measure how far a loss (steps,) rises above its running minimum at the most; NaN without a
    finite loss."""
    values = np.asarray(loss, dtype=float)
    values = values[np.isfinite(values)]
    return float((values - np.minimum.accumulate(values)).max()) if len(values) else math.nan


def _perplexity(windows: pd.DataFrame) -> float:
    """Exponential of the mean negative log-likelihood per character; infinite when that is."""
    with np.errstate(over="ignore"):
        return float(np.exp(mean(windows["nll"], windows["n"])))


def _macro_accuracies(items: pd.DataFrame) -> dict[str, float]:
    """Mean accuracy over the tasks of the suite: without solved examples, and each with the most
    that it was asked with."""
    if items.empty:
        return {}
    tasks = items.groupby(["task", "shots"])["correct"].mean().reset_index()
    zero, few = tasks[tasks["shots"] == 0], tasks[tasks["shots"] > 0]
    few = few.loc[few.groupby("task")["shots"].idxmax()]
    named = {"macro_accuracy_zero_shot": zero, "macro_accuracy_few_shot": few}
    return {name: float(table["correct"].mean()) for name, table in named.items() if len(table)}


def _accuracies(items: pd.DataFrame) -> dict[str, float]:
    """Accuracy in each stock task and number of shots."""
    accuracies: dict[str, float] = {}
    for task, rows in items.groupby("task") if len(items) else ():
        means = rows.groupby("shots")["correct"].mean()
        accuracies |= zip(stock_measures(str(task), means.index), means.tolist(), strict=True)
    return accuracies
