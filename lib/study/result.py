"""What a run leaves behind: its result, and while it trains the steps so far.

`live.csv` grows by a row per step, for those who watch. The trace that counts is in the run's
checkpoints, and then its raw file.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict

from lib.study.config import Arm, Study
from lib.study.fields import digest
from lib.study.files import nan_to_none, read_json
from lib.study.inputs import tasks_hash
from lib.study.provenance import Stretch, trained_with


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
    tasks_hash: str | None = None
    """Of the files in `evaluation.include_path`; None without it."""
    status: Literal["completed", "diverged"]
    diverged_at: int | None
    resumed_at: list[int]
    stretches: list[Stretch] = []
    """Which steps were made on which machine, in order. Older results have none."""
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


def identity_fields(study: Study, arm: Arm, seed: int) -> dict[str, Any]:
    """Name the run that a result is of and what it was asked, by the fields of `RunResult`."""
    return {
        **{"study": study.name, "study_hash": study.hash, "arm": arm.id, "seed": seed},
        **{name: getattr(arm, name) for name in ("baseline", "levels", "variant", "setting")},
        "config": arm.config.model_dump(exclude={"machine"}),
        "tasks_hash": tasks_hash(arm.config.evaluation.include_path),
    }


def attested(result: dict[str, Any]) -> dict[str, Any]:
    """Take what a notebook keeps of a result (as JSON): its measures, and the hash of all of it."""
    return {"measures": result["measures"], "sha256": digest(result)}


def json_rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Write a table as JSON-ready rows; NaN, which JSON lacks, becomes None."""
    rows = table.to_dict("records")
    return [{key: None if pd.isna(v) else nan_to_none(v) for key, v in row.items()} for row in rows]


def status_of(output: Path) -> dict[str, Any]:
    """Return an executed notebook's stamp: status (completed, failed, unfinished) and reason."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        unfinished = {"status": "unfinished", "reason": "killed"}
        stamp = dict(read_json(output)["metadata"].get("study") or unfinished)
        if "status" in stamp:
            return stamp
    return {"status": "unfinished", "reason": "no readable notebook"}


COLUMNS = ("step", "loss", "grad_norm", "tokens", "elapsed", "dev_loss")
"""As in trace and curve; `elapsed`: seconds since training began or was taken up again."""


def live_file(folder: Path) -> Path:
    """Return where the run in a folder writes its steps while it trains."""
    return folder / "live.csv"


def read_live(folder: Path) -> pd.DataFrame:
    """Read the steps of the run in a folder; empty where there are none. What came after the step
    at which a killed run was taken up again is left out."""
    names, path = list(COLUMNS), live_file(folder)
    try:
        data = pd.read_csv(path, names=names, on_bad_lines="skip", float_precision="round_trip")
    except FileNotFoundError:  # before the first step; a run that ends removes it
        return pd.DataFrame(columns=names, dtype=float)
    # The last line may be cut off, or all of it: columns of a table without rows are no numbers.
    rows: pd.DataFrame = data.apply(pd.to_numeric, errors="coerce").astype(float)
    rows = rows.dropna(subset="elapsed")
    last = rows["step"][::-1].cummin()[::-1]
    return rows.loc[(rows["step"] == last) & ~rows["step"].duplicated(keep="last")]
