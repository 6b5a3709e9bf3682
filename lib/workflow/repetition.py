"""Whether a run that was trained again is the run that was recorded.

On the machine and with the versions that it names, a run repeats to the bit. On others rounding
moves it: `MOVED` says how far, for runs that do not amplify it. A run that does, at a high learning
rate, moves thousands of times further; training it once more, with batches summed in other parts,
tells. Of such a run, what lies beyond a tolerance cannot be judged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lib.study.provenance import MachineAccount, trained_with

EQUAL, WITHIN = "equal to the bit", "within tolerance"
UNJUDGED, DIFFERS = "cannot be judged", "differs"
SAFETY = 100
"""How many times further than was measured a run may move."""
MOVED = {
    **dict.fromkeys(("perplexity", "perplexity_dev", "perplexity_test"), 4e-7),
    **dict.fromkeys(("loss", "loss_test", "bits_per_character", "nll_test_tempered"), 2e-7),
    **dict.fromkeys(("accuracy", "accuracy_test"), 1e-6),
    **dict.fromkeys(("macro_accuracy_zero_shot", "macro_accuracy_few_shot"), 1e-5),
    **dict.fromkeys(("ece", "ece_equal_width", "ece_test", "ece_test_tempered"), 1e-6),
    **{"ece_null": 2e-6, "brier": 1e-7, "temperature": 2e-7, "embedding_norm": 2e-7},
    **{"grad_norm": 5e-6, "grad_norm_last_tenth": 2e-6, "gradient_cosine": 2e-6, "severity": 3e-6},
    **{"trace.loss": 1e-6, "curve.dev_loss": 1e-6, "final_weights": 3e-6, "windows.correct": 2e-4},
}
"""The furthest that stable runs moved between two vector levels of one CPU, as a share of a number
or of 1 if that is larger: `./run_all.sh test -m benchmark tests/benchmarks/test_rounding.py -s`
measures it again. Of answers, which change one by one or not at all, and then none did, it leaves
room for a few."""
COLUMN = 5e-5
"""As `MOVED`, for any column of the raw files and tables, as a share of its largest number."""
_REPEATING = (
    *("status", "steps", "diverged_at", "parameters", "initial_weights", "batches"),
    *("final_weights", "measures", "tables"),
)
"""What of a result repeats to the bit."""
_END = "the end"
_MOST = 10
"""Lines about one run."""
_COUNTED = ("items", "bins")
"""Raw files whose rows change at once or not at all; measures say what follows from them."""


@dataclass(frozen=True)
class Made:
    """What one training of a run left."""

    result: dict[str, Any]
    raw: dict[str, pd.DataFrame]
    """Older runs lack some."""
    weights: NDArray[np.float64] | None = None
    """All in one row; None where only their hash is at hand."""


@dataclass
class Judgement:
    """How a run that was trained again compares with its record, with a line for every reason."""

    machine: list[str]
    """What of machine and versions is another than was recorded."""
    bits: bool = False
    """Whether all was compared to the bit."""
    differing: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """Say which of four it is."""
        if self.differing or self.unjudged:
            return DIFFERS if self.differing else UNJUDGED
        return EQUAL if self.bits else WITHIN

    @property
    def words(self) -> str:
        """Say it with what makes it so: the other machine, and what cannot be judged there."""
        elsewhere = f" (another CPU or versions: {', '.join(self.machine)})" if self.machine else ""
        reasons = f": {'; '.join(self.unjudged)}" if self.unjudged else ""
        return self.outcome + elsewhere + reasons


def judge(recorded: Made, again: Made, otherwise: Callable[[], Made | None]) -> Judgement:
    """Compare a run with its record. `otherwise` trains it once more with other rounding (None: it
    cannot), and is called where a tolerance is exceeded."""
    machine, bits = other_machine(recorded.result, again.result), other_bits(recorded, again)
    if not (bits and machine):
        return Judgement(machine, True, bits)
    found = Judgement(machine)
    if "batches differ" in bits and recorded.result["steps"] == again.result["steps"]:
        found.differing.append("batches differ")
    far = {name: d for name, d in distances(recorded, again).items() if d > 1}
    twin, reach = None, 0.0  # of rounding, where weights are equal to the bit
    if far and "final_weights differ" in bits:
        twin = otherwise()
        reach = max(distances(again, twin).values()) if twin else math.inf
    # Measures before columns, the furthest first.
    for name in sorted(far, key=lambda name: ("." in name, -far[name]))[:_MOST]:
        line = f"{_told(name, recorded, again, twin)}, {far[name]:,.0f} × its tolerance"
        (found.unjudged if reach > 1 else found.differing).append(line)
    if far and reach > 1:
        moves = f"moves it by up to {reach:,.0f} × a tolerance" if twin else "cannot be tried"
        found.unjudged.append(f"here, other rounding {moves}")
    judged = recorded.weights is not None and again.weights is not None
    hashes = ["initial_weights"] if judged else ["initial_weights", "final_weights"]
    hashes = [name for name in hashes if f"{name} differ" in bits]
    if hashes:
        within = "" if far else " (all else is within tolerance)"
        found.unjudged.append(f"{' and '.join(hashes)}, of which only a hash is at hand{within}")
    return found


def _told(name: str, recorded: Made, again: Made, twin: Made | None) -> str:
    """Name a number that differs, with its values if it is one alone."""
    if name == _END:
        now, then = (f"{m.result['status']} at step {m.result['steps']}" for m in (again, recorded))
        return f"it {now}, and the record says {then}"
    made = [again, *([twin] if twin else []), recorded]
    values = [each.result["measures"].get(name) for each in made]
    if values[0] is None and values[-1] is None:
        return f"{name} is another"
    now, *other, then = (f"{v:.7g}" if isinstance(v, float) else v for v in values)
    return f"{name} is {now}{f', with other rounding {other[0]}' if other else ''}, and was {then}"


def other_machine(run: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """Name the fields of the machine, and the versions, in which two trainings were not alike."""
    one, other = trained_with(run["provenance"]), trained_with(again["provenance"])
    names = (*MachineAccount.model_fields, "packages")
    return [name for name in names if one.get(name) != other.get(name)]


def other_bits(one: Made, other: Made) -> list[str]:
    """Name what is not equal to the bit, of raw files those that both have; seconds never are."""
    fields = [name for name in _REPEATING if one.result.get(name) != other.result.get(name)]
    tables = [
        f"{name}.parquet differs"
        for name in one.raw
        if name in other.raw and not _timeless(one.raw[name]).equals(_timeless(other.raw[name]))
    ]
    return [f"{name} differ" for name in fields] + tables


def _timeless(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="seconds", errors="ignore")


def distances(one: Made, other: Made) -> dict[str, float]:
    """How far apart two trainings of a run are in every number, in tolerances: infinitely, where
    one has what the other has not."""
    ends = [(made.result["status"], made.result["steps"]) for made in (one, other)]
    if ends[0] != ends[1]:
        return {_END: math.inf}
    numbers, others = _numbers(one), _numbers(other)
    nothing = np.array([math.nan])
    found = {
        name: _distance(name, numbers.get(name, nothing), others.get(name, nothing), _largest)
        for name in numbers | others
    }
    if one.weights is not None and other.weights is not None:
        name = "final_weights"
        found[name] = _distance(name, one.weights, other.weights, _length)
    return found


def _numbers(made: Made) -> dict[str, NDArray[np.float64]]:
    """Every measure, and every column of raw files and tables."""
    tables = {name: pd.DataFrame(rows) for name, rows in made.result["tables"].items()}
    raw = {name: _timeless(table) for name, table in made.raw.items() if name not in _COUNTED}
    columns = {
        f"{name}.{column}": table[column]
        for name, table in (raw | tables).items()
        for column in table
    }
    measures = {name: [value] for name, value in made.result["measures"].items()}
    return {
        name: pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(float)
        for name, values in (measures | columns).items()
    }


def _distance(
    name: str,
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    size: Callable[[NDArray[np.float64]], float],
) -> float:
    """The size of what they differ by, as a share of theirs or of 1, in tolerances."""
    if one.shape != other.shape or (np.isfinite(one) != np.isfinite(other)).any():
        return math.inf
    one, other = one[np.isfinite(one)], other[np.isfinite(other)]
    scale = max(1.0, min(size(one), size(other)))
    return size(one - other) / scale / (SAFETY * MOVED.get(name, COLUMN))


def _largest(numbers: NDArray[np.float64]) -> float:
    return float(np.abs(numbers).max(initial=0))


def _length(numbers: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(numbers))
