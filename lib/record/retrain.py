"""Train recorded runs again, by the code of the commit that they were made by, and compare.

On the machine and with the versions that it names, a run repeats to the bit. On others rounding
moves its numbers, never its labels: `MOVED` says how far, for runs that do not amplify it. A run
that does moves further, in bf16 ten times, at a high learning rate thousands. A twin, the run
trained once more with other rounding, tells how far each number moves here: what is much further
from the record differs, and what is not, or moves anywhere, cannot be judged.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lib.record.notebook import code_cells, differing_cells, source
from lib.record.record import Record, raw_folder
from lib.record.replay import ReplayError, ask, committed, link_inputs, tree_at
from lib.results import RAW, STOCK, Folder, MachineFacts, raw_file, read_raw_file, trained_with
from lib.study.io import read_json, run_folder
from lib.study.study import write_commits
from lib.study.yaml import UsageError, UserError, read_yaml, suggest

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
    **dict.fromkeys(("positions.position_loss", "windows.nll", "windows.brier"), 1e-6),
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
_MAX_LINES = 10
"""Lines about one run."""
_COUNTED = (
    *("items.choice", "items.correct", "stock_items.choice", "stock_items.correct"),
    "trace.skipped",
)
"""Columns whose rows change at once or not at all."""


@dataclass(frozen=True)
class Trained:
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


def judge(recorded: Trained, again: Trained, otherwise: Callable[[], Trained | None]) -> Judgement:
    """Compare a run with its record. `otherwise` trains it once more with other rounding (None: it
    cannot), and is called where a tolerance is exceeded."""
    machine, bits = other_machine(recorded.result, again.result), other_bits(recorded, again)
    if not (bits and machine):
        return Judgement(machine, True, bits)
    verdict = Judgement(machine)
    same_end = _end(recorded) == _end(again)
    exact = ["parameters", *(["batches"] if same_end else [])]
    verdict.differing += [f"{name} differ" for name in exact if f"{name} differ" in bits]
    if same_end:
        labels = sorted(other_labels(recorded, again))
        verdict.differing += [_describe(name, recorded, again, None) for name in labels]
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
        line = f"{_describe(name, recorded, again, twin)}, {far[name]:,.0f} × its tolerance"
        (verdict.differing if far[name] > _limit(name, moved) else unjudged).append(line)
    if unjudged:
        moves = f"moves it by up to {max(moved.values()):,.0f} × a tolerance"
        rounding = f"here, other rounding {moves if twin else 'cannot be tried'}"
        verdict.unjudged += [*unjudged[:_MAX_LINES], rounding]
    del verdict.differing[_MAX_LINES:]
    judged = recorded.weights is not None and again.weights is not None
    hashes = ["initial_weights"] if judged else ["initial_weights", "final_weights"]
    hashes = [name for name in hashes if f"{name} differ" in bits]
    if hashes:
        within = "" if far else " (all else is within tolerance)"
        verdict.unjudged.append(f"{' and '.join(hashes)}, of which only a hash is at hand{within}")
    return verdict


def _limit(name: str, moved: dict[str, float]) -> float:
    """Return how many tolerances rounding may move a number, by how many it moved the twin's."""
    furthest = max(moved.get(each, 0.0) for each in (_END, *_LEADING, name))
    return math.inf if furthest > CHAOTIC else max(1.0, AMPLIFIED * furthest)


def _end(made: Trained) -> list[Any]:
    return [made.result[name] for name in ("status", "steps", "diverged_at")]


def _describe(name: str, recorded: Trained, again: Trained, twin: Trained | None) -> str:
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
    """Name the fields of the machine, and the versions, in which two trainings were not alike. The
    first may have been made on several machines, a stretch of steps on each."""
    now, then = trained_with(again["provenance"]), [trained_with(run["provenance"])]
    if stretches := run.get("stretches"):  # older results have none
        then = [{**each["machine"], "packages": each["packages"]} for each in stretches]
    names = (*MachineFacts.model_fields, "packages")
    return [name for name in names if any(each.get(name) != now.get(name) for each in then)]


def other_bits(one: Trained, other: Trained) -> list[str]:
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


def distances(one: Trained, other: Trained) -> dict[str, float]:
    """Measure how far apart two trainings of a run are in every number, in tolerances: infinitely,
    where one ended otherwise. Numbers that `other_labels` names are left out."""
    if _end(one) != _end(other):
        return {_END: math.inf}
    columns, others = _columns(one), _columns(other)
    by_name = {}
    for name in columns.keys() - other_labels(one, other):
        now, then = columns[name], others[name]
        if name in _COUNTED:
            others_of = (now.to_numpy() != then.to_numpy()).sum()
            by_name[name] = float(others_of / max(3, ANSWERS * len(now)))
        elif _moves(name, now):
            by_name[name] = _distance(name, now.to_numpy(float), then.to_numpy(float), math.inf)
    if one.weights is not None and other.weights is not None:
        name = "final_weights"
        by_name[name] = _distance(name, one.weights, other.weights, 2)
    return by_name


def other_labels(one: Trained, other: Trained) -> set[str]:
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


def _columns(made: Trained) -> dict[str, pd.Series]:
    """Return every measure, and every column of raw files and tables; of `bins`, whose edges move,
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
    name: str, one: NDArray[np.float64], other: NDArray[np.float64], order: float
) -> float:
    """Return the norm of the difference of two columns, as a share of theirs or of 1, in
    tolerances."""
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not np.isfinite(other).all():
        return math.inf
    # A zero beside them, for columns in which no number is finite.
    sizes = [float(np.linalg.norm(np.append(n, 0.0), order)) for n in (one - other, one, other)]
    return sizes[0] / max(1.0, min(sizes[1:])) / (SAFETY * MOVED.get(name, COLUMN))


_TIMES = ("train(", "write_result(", "result_table(", "measured.seconds")
"""What the cells of 02_train hold that show times."""


def recorded_runs(studies: list[str]) -> dict[str, dict[str, Any]]:
    """Return the runs of some studies by `study/arm/seed`; a study of which only results are kept
    has none. Raises UserError, naming the study, where they cannot be read."""
    runs = []
    for study in studies:
        try:
            record = Record(study)
            runs += record.runs if record.folder.is_dir() else []
        except Exception:  # a file can be broken in any way, and a check says in which
            said = f"its runs cannot be read; ./run_all.sh verify {study} says why"
            raise UserError(f"{study}: {said}") from None
    return {f"{run['study']}/{run['arm']}/{run['seed']}": run for run in runs}


def retrain(run: dict[str, Any]) -> Judgement:
    """Train a recorded run again, and compare.

    Raises ReplayError, in a line, for one that cannot be trained again.
    """
    try:
        other_machine(run, run)
        distances(Trained(run, {}), Trained(run, {}))
    except (LookupError, TypeError, ValueError, AttributeError):
        said = f"its result is none that a run leaves; ./run_all.sh verify {run['study']} says why"
        raise ReplayError(said) from None
    notebook = Record(run["study"]).run_notebook(run)
    again, differing_cells = train_again(run)

    def otherwise() -> Trained | None:
        machine = trained_with(again.result["provenance"])
        share = again.result["config"]["training"]["batch_size"] // machine.get("processes", 1)
        other = other_rounding(share, machine)
        try:
            return train_again(run, *other)[0] if other else None
        except ReplayError:  # code before machines had a section
            return None

    weights = kept_weights(run_folder(run["study"], run["arm"], run["seed"]), run["final_weights"])
    recorded = Trained(run, _raw(raw_folder(notebook)), weights)
    verdict = judge(recorded, again, otherwise)
    if verdict.bits and differing_cells:
        (verdict.unjudged if verdict.machine else verdict.differing).extend(differing_cells)
    return verdict


def train_again(
    run: dict[str, Any], settings: dict[str, int] | None = None, level: str = ""
) -> tuple[Trained, list[str]]:
    """Train a recorded run again; return what it left, and the code cells that show something else.
    `settings` of the machine and the vector `level` of the CPU may be other ones."""
    origin = trained_with(run["provenance"])
    if committed(origin) is None:
        raise ReplayError("its code was not committed, or this folder is outside git")
    with tree_at(origin) as tree:
        if settings:
            path = tree / "params" / f"{run['study']}.yaml"
            fields = read_yaml(path)
            machine = (fields.get("machine") or {}) | settings
            path.write_text(yaml.safe_dump(fields | {"machine": machine}), "utf-8")
        link_inputs(tree, [run["config"]])
        write_commits(Record(run["study"]).parameters.commits, tree / "runs" / run["study"])
        arguments = ("02_train", run["arm"], str(run["seed"]))
        environment = {"ATEN_CPU_CAPABILITY": level} if level else {}
        written = ask(tree, "execute", run["study"], *arguments, **environment)
        result = read_json(tree / written["result"])
        recorded, folder = Record(run["study"]).run_notebook(run), (tree / written["result"]).parent
        cells = list(other_outputs(read_json(recorded), read_json(tree / written["notebook"])))
        made = Trained(result, _raw(folder), kept_weights(folder, result["final_weights"]))
    return made, cells


def other_rounding(share: int, machine: dict[str, Any]) -> tuple[dict[str, int], str] | None:
    """Choose settings of the machine, and a vector level, by which a process' share of a batch is
    summed otherwise; None where one sequence is trained on a GPU."""
    if size := other_parts(share, machine["micro_batch_size"]):
        return {"micro_batch_size": size}, ""
    return ({"threads": machine["threads"] + 1}, "default") if machine["device"] == "cpu" else None


def other_parts(share: int, micro_batch_size: int) -> int | None:
    """Choose another size of the parts in which a process' share of a batch is summed; None for a
    share of one sequence."""
    sizes = (micro_batch_size // 2, 1, share)
    return next((n for n in sizes if n not in (0, micro_batch_size) and share % n == 0), None)


def kept_weights(folder: Path, digest: str) -> NDArray[np.float64] | None:
    """Read the weights with this hash from a run's checkpoints, in one row; None without any."""
    for path in folder.glob("checkpoints/*/*/weights.safetensors"):
        weights = sorted(load_file(path).items())
        content = b"".join(name.encode() + tensor.tobytes() for name, tensor in weights)
        if hashlib.sha256(content).hexdigest() == digest:
            return np.concatenate([tensor.ravel() for _, tensor in weights]).astype(float)
    return None


def _raw(folder: Folder) -> dict[str, pd.DataFrame]:
    """Read the raw files that a run has; older ones lack some."""
    names = [name for name in (*RAW, STOCK) if raw_file(folder, name).is_file()]
    return {name: read_raw_file(folder, name) for name in names}


def other_outputs(notebook: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
    """Name the code cells of a 02_train that show something else, but for those with times."""
    codes = list(map(source, code_cells(notebook)))  # which verifying it compares
    for number in differing_cells(notebook, again, pictures=True):
        if not any(word in code for code in codes[number - 1 : number] for word in _TIMES):
            yield f"code cell {number} of 02_train.ipynb shows something else"


def require_run(name: str, known: list[str]) -> None:
    """Raise UsageError for a run that the record does not hold."""
    study = name.partition("/")[0]
    runs = [run for run in known if run.startswith(f"{study}/")]
    if not runs:
        raise UsageError(f"run: the record keeps no run of '{study}'")
    if name not in runs:
        raise UsageError(f"run: {suggest(name, runs)}")
