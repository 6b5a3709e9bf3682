"""The files that a run writes, and how measures are computed from them.

`result.json` is a `RunResult`. It contains the run's `Provenance`, which is written before the
first step of training, is in every checkpoint, and never changes.

In the same folder are six raw tables as Parquet. `measures_of` computes measures from them:

- `trace`: a row per training step;
- `curve`: a row per evaluation on dev;
- `windows`, `bins`: sums over the held-out text;
- `positions`: held-out loss by length of context;
- `items`: a row per question of the suite. With stock tasks there is also `stock_items`.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from operator import not_
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from lib.config.files import nan_to_none, read_json, sha256, write_json
from lib.config.paths import run_folder
from lib.config.provenance import tasks_hash
from lib.config.schema import Machine, digest, stock_measures
from lib.config.study import Arm, Study
from lib.config.yaml import Json

STEP_FILE = "step.txt"
"""File in the folder of a run in training: the number of steps made so far."""
STEPS_FILE = "steps.jsonl"
"""File in the folder of a run in training: its trace and curve so far. A line is a row of `trace`
and its point of `curve`, or null."""
PROVENANCE = "provenance.json"
"""File in the folder of a run: its `Provenance`, written before the first step."""


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


class MachineFacts(Machine):
    """Everything about a machine that may change a number: its settings, and its hardware."""

    checkpoint_interval: int = Field(default=100, exclude=True)
    device_name: str
    vector_level: str
    """Instructions that the CPU's arithmetic uses, e.g. AVX512."""
    cores: int | None
    platform: str
    variables: dict[str, str] = Field({}, exclude_if=not_)
    """Environment variables that may change bits and differ from those of a sweep. Paths are
    hashed."""
    start_up: list[str] = Field([], exclude_if=not_)
    """Files that Python and IPython executed before the first cell of the notebook."""


class Environment(_Facts):
    """Code, machine and package versions of an execution."""

    commit: str | None
    """None without git."""
    clean: bool | None
    """Whether code, notebooks and parameters were as committed. None if git could not tell."""
    code: str | None = Field(None, exclude_if=not_)
    """If code is a factor, the commit of the executed code and notebook. Then `commit` and `clean`
    are about the parameters."""
    measuring_digest: str
    machine: MachineFacts
    packages: dict[str, str | None]
    """Package → version; None if it is missing."""


class Stretch(_Facts):
    """Consecutive steps of a run on one machine, with the same package versions."""

    start: int
    """Number of steps before this stretch."""
    end: int
    machine: MachineFacts
    packages: dict[str, str | None]


class Provenance(Environment):
    """The conditions under which training began. Later stretches may be on other machines."""

    started: str = Field(default_factory=_now)
    study: str
    arm: str
    seed: int
    plan: str | None
    """Hash of the study's plan when training started."""
    training_digest: str
    corpus_sha256: str
    tokenizer_sha256: str | None = None
    """Hash of the tokenizer's file; None for characters and bytes."""
    parameters: dict[str, Json]
    """All fields of all sections, except those of the machine."""

    @property
    def identity(self) -> str:
        """SHA-256 of the plan, and of everything that decides the weights and the dev curve: code,
        text (its hash, not its path), seed, parameters. The machine is left out, because it only
        changes rounding. So a run may resume from its checkpoint on another machine."""
        corpus = {name: v for name, v in self.parameters["corpus"].items() if name != "source"}
        curve = [self.parameters["evaluation"][name] for name in ("interval", "dev_windows")]
        code = [self.training_digest, self.corpus_sha256, self.seed]
        others = [self.parameters["model"], self.parameters["training"], curve]
        return digest([*code, corpus, self.tokenizer_sha256, *others, self.plan])


class Execution(Environment):
    """The conditions under which a run was measured, by the notebook that wrote its result."""

    finished: str = Field(default_factory=_now)
    from_checkpoint: bool
    """Whether training was complete before the notebook began."""


def trained_with(provenance: Json) -> Json:
    """Return the conditions of a run's training as one flat dict: plan, commit, clean, device,
    precision, threads, packages and so on."""
    trained: Json = provenance["trained"]
    precision = trained["parameters"]["training"]["precision"]
    return {**trained, **trained["machine"], "precision": precision}


def commit_of(part: Json) -> str:
    """Return in words the commit in a part of a run's provenance, and whether files had changes."""
    code = f"commit {(part.get('code') or part['commit'] or 'unknown')[:12]}"
    return code + (" and changes not committed" if part["clean"] is False else "")


def history(provenance: Json) -> str:
    """Return a sentence: when and by which commit a run was trained, and whether its notebook was
    executed again from finished weights."""
    trained, executed = provenance["trained"], provenance["executed"]
    text = f"trained {trained['started']} by {commit_of(trained)}"
    if executed["from_checkpoint"]:
        text += f"; executed again from its weights {executed['finished']} by {commit_of(executed)}"
    return text


class RunResult(BaseModel):
    """The result of one run. `measures` and `tables` repeat exactly on the same machine with the
    same versions; `seconds` and `throughput` do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str
    study_hash: str
    arm: str
    baseline: str
    levels: Json
    variant: str
    setting: str
    seed: int
    config: Json
    corpus_sha256: str
    suite_hash: str | None
    tasks_hash: str | None = None
    """Hash of the files in `evaluation.include_path`; None if there is none."""
    status: Literal["completed", "diverged"]
    diverged_at: int | None
    resumed_at: list[int]
    stretches: list[Stretch] = []
    """The steps that each machine made, in order. Older results have none."""
    steps: int
    tokens: int
    parameters: int
    initial_weights: str
    batches: str
    final_weights: str
    measures: dict[str, float | None]
    tables: dict[str, list[Json]]
    references: dict[str, float]
    """Losses of simple models of the text, in nats: see `lib.data.describe`."""
    throughput: dict[str, float]
    seconds: dict[str, float]
    files: dict[str, str] = {}
    """SHA-256 of each raw table: see the top of `lib.results`."""
    provenance: Json
    """`trained`: a `Provenance`; `executed`: the `Execution` of its notebook."""

    @property
    def origin(self) -> Json:
        """The conditions of training as one flat dict: see `trained_with`."""
        return trained_with(self.provenance)

    def _repr_mimebundle_(self, **_: Any) -> Json:
        """Show the run's name and status in a notebook, and keep `attested` as JSON."""
        end = f" at step {self.diverged_at}" if self.diverged_at else f", {self.tokens:,} tokens"
        text = f"{self.study} / {self.arm} / seed {self.seed}: {self.status}{end}"
        return {"application/json": attested(self.model_dump(mode="json")), "text/plain": text}


def identity_fields(study: Study, arm: Arm, seed: int) -> Json:
    """Return the fields of `RunResult` that identify the run and its parameters."""
    return {
        "study": study.name,
        "study_hash": study.hash,
        "arm": arm.id,
        "seed": seed,
        "baseline": arm.baseline,
        "levels": arm.levels,
        "variant": arm.variant,
        "setting": arm.setting,
        "config": arm.config.model_dump(exclude={"machine"}),
        "tasks_hash": tasks_hash(arm.config.evaluation.include_path),
    }


def attested(result: Json) -> Json:
    """Return the part of a result (as JSON) that a notebook keeps: the measures, and the hash of
    the whole result."""
    return {"measures": result["measures"], "sha256": digest(result)}


def json_rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a table, ready for JSON, with None for NaN."""
    rows: list[dict[Any, Any]] = nan_to_none(table.to_dict("records"))
    return rows


def status_of(output: Path) -> Json:
    """Return an executed notebook's stamp: status (completed, failed, unfinished) and reason."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        unfinished = {"status": "unfinished", "reason": "killed"}
        stamp = dict(read_json(output)["metadata"].get("study") or unfinished)
        if "status" in stamp:
            return stamp
    return {"status": "unfinished", "reason": "no readable notebook"}


RAW = ("trace", "curve", "windows", "bins", "positions", "items")
STOCK = "stock_items"
MAX_WINDOWS = 128
"""`windows` has about this many rows. With more rows, it would show more precisely where in the
text a model fails, but the files would be larger."""


def raw_file(folder: Path, name: str) -> Path:
    """Return the path of a raw table in a run's folder."""
    return folder / f"{name}.parquet"


def write_raw(folder: Path, name: str, table: pd.DataFrame) -> Path:
    """Write a raw table as a file that is as small as possible, without losing a bit."""
    path = raw_file(folder, name)
    table.to_parquet(
        path,
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    return path


def write_result(
    study: Study, arm: Arm, seed: int, raw: Mapping[str, pd.DataFrame], facts: Json
) -> RunResult:
    """Write a run's raw tables, then its `result.json` with their hashes. Return the result.
    `facts` are the fields from `lib.train`."""
    folder = run_folder(study.name, arm.id, seed)
    files = [write_raw(folder, name, table) for name, table in raw.items()]
    hashes = {path.name: sha256(path) for path in files}
    result = RunResult.model_validate(identity_fields(study, arm, seed) | facts | {"files": hashes})
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return result


def read_raw_file(folder: Path, name: str) -> pd.DataFrame:
    """Read one raw table of a run, in a third of the time that `pandas.read_parquet` takes."""
    content = pa.BufferReader(raw_file(folder, name).read_bytes())
    table = pq.ParquetFile(content).read(use_threads=False)  # it is small
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame


def read_raw(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the raw tables of a run."""
    names = (*RAW, STOCK) if has_stock(folder) else RAW
    return {name: read_raw_file(folder, name) for name in names}


def has_stock(folder: Path) -> bool:
    """Return whether a run's result lists answers to stock tasks. If it does not, such a file in
    the run's folder comes from other weights."""
    result = folder / "result.json"
    return result.is_file() and raw_file(folder, STOCK).name in read_json(result)["files"]


def to_single_precision(table: pd.DataFrame) -> pd.DataFrame:
    """Round all numbers except `loss` to single precision, which halves the file. The dtype stays
    float64, so that sums are exact."""
    rounded = table.select_dtypes("float64").drop(columns="loss", errors="ignore")
    return table.assign(**rounded.astype(np.float32).astype(np.float64))


def window_table(scores: pd.DataFrame, dev: int, length: int) -> pd.DataFrame:
    """Sum per-character scores over windows. The size of a window is a multiple of `length`
    characters. The first `dev` scores are from dev, the others from test, and no window has scores
    from both.

    Columns: start (index of the window's first score), n, the sum of each column, and test (whether
    the window is in the test part).
    """
    total = len(scores)
    size = length * math.ceil(total / length / MAX_WINDOWS)
    starts = np.array([*range(0, dev, size), *range(dev, total, size)])
    sums = {
        name: np.add.reduceat(column.to_numpy(np.result_type(column, np.int64)), starts)
        for name, column in scores.items()
    }
    n = np.diff(np.append(starts, total))
    return pd.DataFrame({"start": starts, "n": n, **sums, "test": starts >= dev})


def mean(sums: pd.Series, n: pd.Series) -> float:
    """Return the mean, given the sum over each part and the size n of each part. It is the same on
    every machine, because `fsum` rounds only once. NaN if all n are 0; infinite if a sum is."""
    total = n.sum()
    return math.fsum(sums) / int(total) if total else math.nan


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """Return the ECE (Guo et al. 2017, eq. 3): the mean of |accuracy - confidence| over bins,
    weighted by their size. `bins` has the columns n, and the sums `confidence` and `correct`."""
    return mean((bins["correct"] - bins["confidence"]).abs(), bins["n"])


BINNINGS = ("equal_mass", "equal_width", "test", "test_tempered")
"""Values of the column `binning` of `bins`: all held-out characters in bins of equal mass, and in
bins of equal width; and the characters of test in bins of equal mass, at temperature 1 and at the
fitted temperature."""

EARLY_STEPS = (50, 100)
"""From the first of these steps to the last, the length of the residual stream shows how a model
starts to learn."""


def measures_of(raw: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Compute every measure that follows from raw tables. A diverged run has none, because its
    `windows` are empty. Without a suite or stock tasks, their measures are left out."""
    windows, bins, items, trace, curve = (
        raw[name] for name in ("windows", "bins", "items", "trace", "curve")
    )
    if windows.empty:
        return {}
    ece = {name: expected_calibration_error(of) for name, of in bins.groupby("binning")}
    dev, test = windows[~windows["test"]], windows[windows["test"]]
    losses = [mean(part["nll"], part["n"]) for part in (windows, dev, test)]
    with np.errstate(over="ignore"):
        perplexities = np.exp(losses).tolist()  # infinite if the loss is
    gradients = trace["grad_norm"].dropna()  # NaN: an update that fp16 skipped
    measures = {
        "loss": losses[0],
        "loss_test": losses[2],
        # Per Unicode character, never per byte. A token is one character, unless there is a column
        # `characters`. It counts the characters that begin in tokens; the end of a document has 0.
        "bits_per_character": mean(windows["nll"], windows.get("characters", windows["n"]))
        / math.log(2),
        "perplexity": perplexities[0],
        "perplexity_dev": perplexities[1],
        "perplexity_test": perplexities[2],
        "accuracy": mean(windows["correct"], windows["n"]),
        "accuracy_test": mean(test["correct"], test["n"]),
        "embedding_norm": mean(windows["embedding_norm"], windows["n"]),
        "severity": largest_rise(trace["loss"]),
        "grad_norm": float(gradients.tail(1).mean()),
        "grad_norm_last_tenth": float(gradients[-max(1, len(gradients) // 10) :].mean()),
        "ece": ece["equal_mass"],
        "ece_equal_width": ece["equal_width"],
        "brier": mean(windows["brier"], windows["n"]),
        "ece_test": ece["test"],
        "ece_test_tempered": ece["test_tempered"],
    }
    if "gradient_cosine" in curve:  # dev has enough windows for it
        measures["gradient_cosine"] = float(curve.loc[curve["step"] > 0, "gradient_cosine"].mean())
    early = curve[curve["step"].between(*EARLY_STEPS)]
    if "residual_norm_1" in curve and len(early):
        measures["log_residual_norm_1"] = float(np.log(early["residual_norm_1"]).mean())
    if "embedding_angle" in curve:  # older runs have none
        measures["embedding_angle"] = float(curve["embedding_angle"].mean())
    for task, rows in raw[STOCK].groupby("task") if len(raw.get(STOCK, ())) else ():
        means = rows.groupby("shots")["correct"].mean()
        measures |= zip(stock_measures(str(task), means.index), means.tolist(), strict=True)
    return measures | _macro_accuracies(items)


def largest_rise(loss: ArrayLike) -> float:
    """Return the largest rise of a loss (steps,) above its running minimum. NaN if no value is
    finite."""
    values = np.asarray(loss, dtype=float)
    values = values[np.isfinite(values)]
    return float((values - np.minimum.accumulate(values)).max()) if len(values) else math.nan


def _macro_accuracies(items: pd.DataFrame) -> dict[str, float]:
    """Return the mean accuracy over the tasks of the suite: zero-shot, and few-shot. For few-shot,
    each task counts with its largest number of solved examples."""
    if items.empty:
        return {}
    tasks = items.groupby(["task", "shots"])["correct"].mean().reset_index("shots")
    zero = tasks[tasks["shots"] == 0]
    few = tasks[tasks["shots"] > 0].groupby("task").last()
    named = {"macro_accuracy_zero_shot": zero, "macro_accuracy_few_shot": few}
    return {name: float(table["correct"].mean()) for name, table in named.items() if len(table)}
