"""What a run leaves behind: its measures, its provenance, and how they are written."""

import hashlib
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict

from lib.study.errors import UserError
from lib.study.fields import digest
from lib.study.paths import shown
from lib.study.provenance import trained_with


class RunResult(BaseModel):
    """All that is known of one run. `measures` and `tables` repeat exactly on the same machine and
    versions; `seconds` and `throughput` do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str
    study_hash: str
    arm: str
    baseline: str
    levels: dict[str, Any]
    variant: str
    setting: str
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
    references: dict[str, float] = {}
    """Losses of the text itself, in nats: see `lib.data.references`. Older results have none."""
    throughput: dict[str, float]
    seconds: dict[str, float]
    files: dict[str, str] = {}
    """SHA-256 of the raw files that stand beside the result: see `lib.study.raw`."""
    provenance: dict[str, Any]
    """An `Origin`; of results before format 4 a flat list. `origin` reads either."""

    @property
    def origin(self) -> dict[str, Any]:
        """What the run was trained with, by name: see `trained_with`."""
        return trained_with(self.provenance)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show in a notebook which run it is, and keep as JSON the measures and the hash of all."""
        rows = {"run": f"{self.study} / {self.arm} / seed {self.seed}"}
        rows["status"] = self.status + (f" at step {self.diverged_at}" if self.diverged_at else "")
        rows["parameters"], rows["tokens"] = f"{self.parameters:,}", f"{self.tokens:,}"
        table = pd.Series(rows, name="").to_frame()
        return {
            "application/json": attested(self.model_dump(mode="json")),
            "text/html": table.to_html(),
            "text/plain": table.to_string(),
        }


def attested(result: dict[str, Any]) -> dict[str, Any]:
    """What a notebook keeps of a result (as JSON): its measures, and the hash of all of it."""
    return {"measures": result["measures"], "sha256": digest(result)}


def records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Write a table as JSON-ready rows; NaN, which JSON lacks, becomes None."""
    rows = table.to_dict("records")
    return [{key: None if pd.isna(v) else finite(v) for key, v in row.items()} for row in rows]


def finite(value: Any) -> Any:
    """Replace the numbers that JSON lacks, NaN and the infinities, by None, at any depth."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path | zipfile.Path) -> str:
    """Hash a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError, naming it, for one that is damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{shown(path)} cannot be read; restore it, or delete it") from None


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically: it is either whole or not there. Numbers that JSON lacks are
    written as null. Without indent it is a quarter smaller, and all in one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    separators = (",", ":") if indent is None else None
    text = json.dumps(finite(content), indent=indent, separators=separators, allow_nan=False)
    partial.write_text(text + "\n", "utf-8")
    partial.replace(path)


def status_of(output: Path) -> dict[str, Any]:
    """Return an executed notebook's stamp: status (completed, failed, unfinished) and reason."""
    unreadable = {"status": "unfinished", "reason": "no readable notebook"}
    try:
        metadata = read_json(output)["metadata"]
        stamp = metadata.get("study") or {"status": "unfinished", "reason": "killed"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return unreadable
    return stamp if isinstance(stamp, dict) and "status" in stamp else unreadable
