"""Whether a run that was trained again is the run that was recorded.

On the machine and with the versions that it names, a run repeats to the bit. On others rounding
moves its numbers, never its labels: `MOVED` says how far, for runs that do not amplify it. A run
that does moves further, in bf16 ten times, at a high learning rate thousands. A twin, the run
trained once more with other rounding, tells how far each number moves here: what is much further
from the record differs, and what is not, or moves anywhere, cannot be judged.
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
AMPLIFIED = 20
"""How many times further than other rounding moves a number, or what leads it, that number may lie
from the record. Between three vector levels, in bf16, fp16 or at a learning rate of 0.01, no honest
one lay 11 times further; than its own movement alone, which may be little by chance, 100 times."""
CHAOTIC = 100
"""Tolerances by which what rounding amplifies without a bound has moved, and may move anywhere."""
_LEADING = ("final_weights", "trace.loss", "curve.dev_loss")
"""What leads all other numbers."""
ANSWERS = 1e-3
"""The share of answers that a near tie may turn, and three at least."""
_REPEATING = (
    *("status", "steps", "diverged_at", "parameters", "initial_weights", "batches"),
    *("final_weights", "measures", "tables"),
)
"""What of a result repeats to the bit."""
_END = "the end"
_MOST = 10
"""Lines about one run."""
_COUNTED = ("items.choice", "items.correct", "trace.skipped")
"""Columns whose rows change at once or not at all."""


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
    alike = _end(recorded) == _end(again)
    exact = ["parameters", *(["batches"] if alike else [])]
    found.differing += [f"{name} differ" for name in exact if f"{name} differ" in bits]
    if alike:
        labels = sorted(other_labels(recorded, again))
        found.differing += [_told(name, recorded, again, None) for name in labels]
    far = {name: d for name, d in distances(recorded, again).items() if d > 1}
    twin, moved = None, dict[str, float]()  # by rounding, where weights are equal to the bit
    if far and "final_weights differ" in bits:
        twin = otherwise()
        if twin and "final_weights differ" not in other_bits(again, twin):
            twin = None  # it says nothing of rounding
        moved = distances(again, twin) if twin else {_END: math.inf}
    unjudged = list[str]()
    # Measures before columns, the furthest first.
    for name in sorted(far, key=lambda name: ("." in name, -far[name])):
        line = f"{_told(name, recorded, again, twin)}, {far[name]:,.0f} × its tolerance"
        (found.differing if far[name] > _limit(name, moved) else unjudged).append(line)
    if unjudged:
        moves = f"moves it by up to {max(moved.values()):,.0f} × a tolerance"
        here = f"here, other rounding {moves if twin else 'cannot be tried'}"
        found.unjudged += [*unjudged[:_MOST], here]
    del found.differing[_MOST:]
    judged = recorded.weights is not None and again.weights is not None
    hashes = ["initial_weights"] if judged else ["initial_weights", "final_weights"]
    hashes = [name for name in hashes if f"{name} differ" in bits]
    if hashes:
        within = "" if far else " (all else is within tolerance)"
        found.unjudged.append(f"{' and '.join(hashes)}, of which only a hash is at hand{within}")
    return found


def _limit(name: str, moved: dict[str, float]) -> float:
    """How many tolerances rounding may move a number, by how many it moved the twin's."""
    furthest = max(moved.get(each, 0.0) for each in (_END, *_LEADING, name))
    return math.inf if furthest > CHAOTIC else max(1.0, AMPLIFIED * furthest)


def _end(made: Made) -> list[Any]:
    return [made.result[name] for name in ("status", "steps", "diverged_at")]


def _told(name: str, recorded: Made, again: Made, twin: Made | None) -> str:
    """Name a number that differs, with its values if it is one alone."""
    if name == _END:
        now, then = (
            f"{status} at step {steps}" + ("" if at in (None, steps) else f" (diverged_at {at})")
            for status, steps, at in (_end(again), _end(recorded))
        )
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
    one ended otherwise. Numbers that `other_labels` names are left out."""
    if _end(one) != _end(other):
        return {_END: math.inf}
    columns, others = _columns(one), _columns(other)
    found = {}
    for name in columns.keys() - other_labels(one, other):
        now, then = columns[name], others[name]
        if name in _COUNTED:
            others_of = (now.to_numpy() != then.to_numpy()).sum()
            found[name] = float(others_of / max(3, ANSWERS * len(now)))
        elif _moves(name, now):
            found[name] = _distance(name, now.to_numpy(float), then.to_numpy(float), _largest)
    if one.weights is not None and other.weights is not None:
        name = "final_weights"
        found[name] = _distance(name, one.weights, other.weights, _length)
    return found


def other_labels(one: Made, other: Made) -> set[str]:
    """Name what only one of two trainings has, measure or column, columns of other rows or types,
    and those of names and whole numbers that are not the same: rounding changes none of it."""
    columns, others = _columns(one), _columns(other)
    return (columns.keys() ^ others.keys()) | {
        name
        for name in columns.keys() & others.keys()
        if len(columns[name]) != len(others[name])
        or _moves(name, columns[name]) != _moves(name, others[name])
        or not (_moves(name, columns[name]) or columns[name].equals(others[name]))
    }


def _moves(name: str, column: pd.Series) -> bool:
    """Tell whether a column is one of numbers that rounding moves."""
    return name in _COUNTED or column.dtype.kind in ("fiu" if name in MOVED else "f")


def _columns(made: Made) -> dict[str, pd.Series]:
    """Every measure, and every column of raw files and tables; of `bins`, whose edges move,
    measures say what follows."""
    tables = {name: pd.DataFrame(rows) for name, rows in made.result["tables"].items()}
    raw = {name: _timeless(table) for name, table in made.raw.items() if name != "bins"}
    columns = {
        f"{name}.{column}": table[column]
        for name, table in (raw | tables).items()
        for column in table
    }
    return {name: pd.Series([value]) for name, value in made.result["measures"].items()} | columns


def _distance(
    name: str,
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    size: Callable[[NDArray[np.float64]], float],
) -> float:
    """The size of what they differ by, as a share of theirs or of 1, in tolerances."""
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not np.isfinite(other).all():
        return math.inf
    scale = max(1.0, min(size(one), size(other)))
    return size(one - other) / scale / (SAFETY * MOVED.get(name, COLUMN))


def _largest(numbers: NDArray[np.float64]) -> float:
    return float(np.abs(numbers).max(initial=0))


def _length(numbers: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(numbers))
