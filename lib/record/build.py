"""Build again, by the code that each artefact names, how runs begin, suites, the analysis and
figures, and compare."""

import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.record.notebook import cell_outputs, differing_cells, slim
from lib.record.record import Record, run_name
from lib.record.replay import ask_code_of, environment_of, executed_again, made_by
from lib.record.runs import close
from lib.results import status_of
from lib.study.io import read_json, sha256


def check_beginnings(record: Record) -> Iterator[str]:
    """Yield every run whose initial weights, batches, learning rates, number of parameters, text,
    or losses of the text are not those of its seed and parameters: little work, which finds a seed
    under another's name without training. Print how many could not be looked at."""
    of = {(run["arm"], run["seed"]): run for run in record.runs}
    unseen = set(of)
    first: dict[Any, dict[str, Any]] = {}  # an environment for each code that trained some
    for run in record.runs if _has_torch() else ():
        environment = run["provenance"]["trained"]
        first.setdefault(made_by(environment), environment)
    for code, environment in first.items():
        for beginning in ask_code_of(environment, "begin", record):
            run = of[key := (beginning.pop("arm"), beginning.pop("seed"))]
            if made_by(run["provenance"]["trained"]) != code:
                continue
            unseen.discard(key)
            label, stated = run_name(run), run["references"]
            for name, value in beginning.pop("references").items():
                if not close(stated.get(name, 0.0), value):
                    yield f"{label}: {name} is {stated.get(name)}, and the text's is {value}"
            rates = record.raw(run)["trace"]["learning_rate"]
            if not np.allclose(rates, beginning.pop("rates"), rtol=1e-6, atol=0):
                yield f"{label}: learning rates in trace.parquet are not those of its schedule"
            for name, value in beginning.items():
                if run[name] != value:
                    yield f"{label}: {name} are not those of its seed and parameters"
    _print_unseen(record, "beginnings", "made", len(unseen), len(of))


def check_suites(record: Record) -> Iterator[str]:
    """Yield every run whose questions are not those that its text gives. Print how many could not
    be looked at."""
    runs = [run for run in record.runs if run["suite_hash"]]
    built: dict[Any, dict[str, str | None]] = {}  # by the code that asked
    unseen = 0 if _has_torch() else len(runs)
    for run in runs if _has_torch() else ():
        environment = run["provenance"]["executed"]
        if (code := made_by(environment)) not in built:
            built[code] = ask_code_of(environment, "suite", record)
        built_hash = built[code].get(run["arm"])
        unseen += built_hash is None
        if built_hash not in (None, run["suite_hash"]):
            yield f"{run_name(run)} was asked other questions than its text gives"
    _print_unseen(record, "suites", "built", unseen, len(runs))


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _print_unseen(record: Record, what: str, done: str, unseen: int, of: int) -> None:
    if unseen:
        record.is_whole = False
        print(f"{record.study}: {what} of {unseen} of {of} runs not {done} again: torch or their "
              "text is not here", flush=True)  # fmt: skip


def check_analysis(record: Record) -> Iterator[str]:
    """Yield what 03_analysis says otherwise when it is executed again from the record."""
    written = ask_code_of(environment_of(record, "03_analysis"), "analysis", record)
    for name, stated, file in (
        ("result", record.results, record.results_file),
        ("verdict", record.verdict, record.verdict_file),
    ):
        again = written[name]
        for key in sorted({*again, *stated} - {"runs"}):  # of which it was made
            in_both = key in again and key in stated
            if not in_both or not same_json(again[key], stated[key]):
                yield f"{key} in {file.name} is not what the analysis says of the record"
    slim(written["notebook"])
    yield from _other_outputs(record, "03_analysis", written["notebook"])


def same_json(one: Any, other: Any) -> bool:
    """Compare JSON, numbers up to the last digits, which differ between machines."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        return close(one, other)
    return bool(one == other)


def _other_outputs(
    record: Record, notebook: str, written: dict[str, Any], *, pictures: bool = False
) -> Iterator[str]:
    contents = record.read(record.notebook(notebook)), written
    for number in differing_cells(*contents, pictures=pictures):
        yield f"code cell {number} of {notebook}.ipynb shows what executing it does not"


def check_figures(record: Record) -> Iterator[str]:
    """Yield figures whose data, or words, are not those of the record."""
    notebook = record.notebook("04_figures")
    again = ask_code_of(status_of(notebook), "figures", record)
    stated = record.read(record.folder / "04_figures.json")
    for name in sorted({*again, *stated}):
        if again.get(name, {}).get("data") != stated.get(name):
            yield f"figure {name} was drawn from other data than the record holds"
    folder = record.figures
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    drawn = {f"{name}.{kind}" for name in stated for kind in ("pdf", "png")}
    yield from (f"figure {file} is not drawn by 04_figures" for file in sorted(files - drawn))
    if not record.is_sealed:
        yield from (f"figure {file} is missing" for file in sorted(drawn - files))
    outputs = [*itertools.chain(*cell_outputs(record.read(notebook)))]
    expected = [({"text/markdown": each["words"]}, {"image/png": None}) for each in again.values()]
    if [out for out in outputs if not isinstance(out, str)] != list(itertools.chain(*expected)):
        yield "04_figures.ipynb says of its figures what the record does not"
    standing = "; ".join([record.verdict["standing"], *record.verdict["exploratory_because"]])
    printed = "".join(out for out in outputs if isinstance(out, str))
    if printed != f"{standing}\nruns/{record.study}/04_figures.json\n":
        yield "04_figures.ipynb prints something else than the standing and its result's place"


def check_pictures(record: Record) -> Iterator[str]:
    """Yield what 01_data and 04_figures show otherwise, pictures too, when executed again."""
    for notebook in ("01_data", "04_figures"):
        with executed_again(record, notebook) as written:
            again = read_json(written["notebook"])
            yield from _other_outputs(record, notebook, again, pictures=True)
            for path in sorted(written["figures"].glob("*")) if "figures" in written else ():
                recorded_hash = record.manifest.get(f"../../figures/{record.study}/{path.name}")
                if sha256(path) != recorded_hash:
                    yield f"figure {path.name} is not what 04_figures draws"
