"""What a run leaves behind: its measures, its provenance, and how they are written."""

import json
import os
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict

from lib.compute import describe
from lib.config import Arm, Study
from lib.corpus import Corpus
from lib.measurement import Measurement
from lib.model import count_parameters
from lib.paths import ROOT, run_folder
from lib.preregistration import load_plan
from lib.training import Trained, weights_digest


@dataclass(frozen=True)
class Measure:
    """How a measure is called, read and printed."""

    label: str
    lower_is_better: bool | None
    digits: int


MEASURES = {
    "perplexity": Measure("validation perplexity", True, 3),
    "perplexity_test": Measure("test perplexity", True, 3),
    "accuracy": Measure("next-token accuracy", False, 4),
    "macro_accuracy_zero_shot": Measure("macro accuracy, zero-shot", False, 4),
    "macro_accuracy_few_shot": Measure("macro accuracy, few-shot", False, 4),
    "ece": Measure("expected calibration error", True, 4),
    "brier": Measure("Brier score", True, 4),
    "temperature": Measure("best temperature (dev)", None, 3),
    "grad_norm": Measure("final gradient norm", None, 4),
    "grad_norm_last_tenth": Measure("gradient norm, mean of last tenth", None, 4),
    "embedding_norm": Measure("mean embedding norm", None, 3),
    "training_tokens_per_second": Measure("training tokens/s", False, 0),
    "inference_tokens_per_second": Measure("inference tokens/s, batched", False, 0),
    "inference_tokens_per_second_batch_1": Measure("inference tokens/s, batch 1", False, 0),
}
"""Measures in the order in which tables show them."""


class RunResult(BaseModel):
    """All that is known of one run. `measures` and `tables` repeat exactly on the same machine and
    versions; `seconds` and `throughput` do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str
    study_hash: str
    arm: str
    baseline: str
    levels: dict[str, Any]
    seed: int
    config: dict[str, Any]
    corpus_sha256: str
    suite_hash: str | None
    status: Literal["completed", "diverged"]
    diverged_at: int | None
    resumed_at: list[int]
    steps: int
    tokens: int
    parameters: int
    initial_weights: str
    batches: str
    final_weights: str
    measures: dict[str, float | None]
    tables: dict[str, list[dict[str, Any]]]
    throughput: dict[str, float]
    seconds: dict[str, float]
    provenance: dict[str, Any]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show as a table in a notebook, and keep the whole result in it as JSON."""
        rows: dict[str, str] = {"run": f"{self.study} / {self.arm} / seed {self.seed}"}
        rows["status"] = self.status + (f" at step {self.diverged_at}" if self.diverged_at else "")
        rows["parameters"], rows["tokens"] = f"{self.parameters:,}", f"{self.tokens:,}"
        for name, measure in MEASURES.items():
            value = (self.measures | self.throughput).get(name)
            rows[measure.label] = "n/a" if value is None else f"{value:,.{measure.digits}f}"
        table = pd.Series(rows, name="").to_frame()
        return {
            "application/json": self.model_dump(mode="json"),
            "text/html": table.to_html(),
            "text/plain": table.to_string(),
        }


def run_result(
    study: Study, arm: Arm, seed: int, corpus: Corpus, trained: Trained, measured: Measurement
) -> RunResult:
    """Put together the result of a run, stamped with the hash of the plan that its study names."""
    plan = load_plan(study)
    return RunResult(
        study=study.name,
        study_hash=study.hash,
        arm=arm.id,
        baseline=arm.baseline,
        levels=arm.levels,
        seed=seed,
        config=arm.config.model_dump(),
        corpus_sha256=corpus.sha256,
        suite_hash=measured.suite_hash,
        status="completed" if trained.diverged_at is None else "diverged",
        diverged_at=trained.diverged_at,
        resumed_at=trained.resumed_at,
        steps=len(trained.trace),
        tokens=int(trained.trace["tokens"].iloc[-1]),
        parameters=count_parameters(trained.model),
        initial_weights=trained.initial_weights,
        batches=trained.batches,
        final_weights=weights_digest(trained.model),
        measures=measured.measures,
        tables={name: records(table) for name, table in measured.tables.items()},
        throughput=measured.throughput,
        seconds=measured.seconds,
        provenance=describe(arm.config.training, trained.device)
        | git_state()
        | {"preregistration": plan.hash if plan else None},
    )


def records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Write a table as JSON-ready rows; NaN, which JSON lacks, becomes None."""
    rows = table.to_dict("records")
    return [{key: None if pd.isna(v) else v for key, v in row.items()} for row in rows]


@lru_cache(maxsize=1)
def git_state() -> dict[str, object]:
    """Name the commit, and whether the working tree was clean, apart from the record that studies
    write; None where there is no git."""

    def git(*words: str) -> str | None:
        try:
            command = ["git", "-C", str(ROOT), *words]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None

    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ":!papers")
    return {
        "git_commit": commit.strip() if commit else None,
        "git_clean": None if changes is None else not changes.strip(),
    }


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically: it is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    partial.replace(path)


def write_result(result: RunResult, trained: Trained, measured: Measurement) -> Path:
    """Write a run's trace, curve and suite items, and then, last, its result; return its path."""
    folder = run_folder(result.study, result.arm, result.seed)
    tables = {"trace": trained.trace, "curve": trained.curve, "items": measured.items}
    for name, table in tables.items():
        # Of numbers that hardly repeat, a dictionary only adds to the file.
        path = folder / f"{name}.parquet"
        table.to_parquet(path, compression="zstd", use_dictionary=False)
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return folder / "result.json"
