"""Whether the numbers of a run follow from its raw files, and its notebook prints these numbers."""

import itertools
import json
import math
import re
import zipfile
from ast import literal_eval
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from lib.analysis.tables import run_takeaway
from lib.record.notebook import data, source
from lib.record.record import RAW_ZIP, Record, Run, raw_folder, run_name
from lib.results import STOCK, RunResult, history, measures_of, raw_file, raw_names
from lib.study.io import nan_to_none, sha256
from lib.study.metrics import MEASURES, measures_in
from lib.study.schema import MachineConfig, digest

close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)
"""Equal up to the last digits, in which machines may differ."""
Raw = dict[str, pd.DataFrame]
_WITHOUT_SUMS = {"ece_null", "temperature", "nll_test_tempered", "suite_overflows"}
"""Measures that no raw file holds the parts of."""
_SINGLE = 1e-6
"""Relative difference within which numbers of single precision agree."""
_ROW = re.compile(r"<th>([^<]+)</th>\s*<td>([^<]*)</td>")
_TABLE = re.compile(
    r'<t[hd]( (col|row)span="\d+"| [hv]?align="\w+")*>[^<]*</t[hd]>|</?(div|thead|tbody|table|tr)'
    r'( border="1"| class="dataframe"| style="text-align: right;")*>|\s+'
)
"""What pandas' HTML of a table consists of."""
_CELL = re.compile(r"<t[hd][^>]*>([^<]*)</t[hd]>")
_UNDRAWN = re.compile(r"The curve (appears here\.|could not be drawn: .*)")
"""What stands in a notebook run by hand where the picture of its training should."""
_MACHINE = re.compile(r" (\w+)=('\w+'|\d+|None|True|False)")
_DEV = ("step", "dev_loss", "embedding_norm")
"""Columns of the dev curve that a training prints."""
_FORMER = {
    "cosine between gradients of two parts of dev": "gradient_cosine",
}
"""Titles that measures once had in a printed table."""
_NAMES = {measure.title: name for name, measure in MEASURES.items()} | _FORMER
_OLDEST = 5
"""Fields of section machine that every record prints."""


def check_runs(record: Record) -> Iterator[str]:
    """Yield what a run's result, parameters or notebook say otherwise than its raw files and the
    suite that it was asked, and what these say otherwise than each other."""
    answers = cache(lambda: {suite["hash"]: suite["gold"] for suite in recorded_suites(record)})
    for run in record.runs:
        raw = record.raw(run)
        faults = [*_wrong_numbers(run, raw), *_wrong_tables(run, raw)]
        if len(raw["items"]):
            faults += _wrong_items(run, raw["items"], answers())
        if not faults:
            faults = [*_wrong_course(run, raw), *_wrong_text(run, raw), *_wrong_print(record, run)]
        yield from (f"{run_name(run)}: {fault}" for fault in faults)


def check_windows(record: Record) -> Iterator[str]:
    """Yield runs whose windows of held-out text are not those of the others that read the same."""
    seen: dict[str, tuple[str, str]] = {}
    for run in record.runs:
        if run["status"] != "completed":
            continue
        cut = record.raw(run)["windows"][["start", "n", "test"]].to_numpy(int).tolist()
        same = digest([run["corpus_sha256"], run["config"]["model"]["block_size"]])
        first, its_cut = seen.setdefault(same, (run_name(run), digest(cut)))
        if digest(cut) != its_cut:
            yield f"{run_name(run)} was scored on other windows of the same text than {first}"


def check_raw_files(record: Record) -> Iterator[str]:
    """Yield raw files that are not those that a result was written with."""
    for run in record.runs:
        folder, label = raw_folder(record.run_notebook(run)), run_name(run)
        for path in (raw_file(folder, name) for name in raw_names(run["config"])):
            if not path.is_file() or sha256(path) != run["files"].get(path.name):
                yield f"{label}: {path.name} is not the file that the result was written with"


def _wrong_numbers(run: Run, raw: Raw) -> Iterator[str]:
    """Yield measures and other numbers that do not follow, and measures that nothing supports."""
    trace, curve, computed = raw["trace"], raw["curve"], measures_of(raw)
    for name, value in computed.items():
        stated, value = run["measures"].get(name), nan_to_none(value)
        if stated is None and name == "bits_per_character":  # made before it was measured
            continue
        if stated != value and (stated is None or value is None or not close(stated, value)):
            yield f"{name} is {stated}, and {value} by its raw files"
    completed = run["status"] == "completed"
    for name in sorted(
        set(run["measures"]) - (set(computed) | _WITHOUT_SUMS if completed else set())
    ):
        if run["measures"][name] is not None:
            yield f"{name} is {run['measures'][name]}, which its raw files do not support"
    training, tokens = float(trace["seconds"].sum()), int(trace["tokens"].iloc[-1])
    speed = run["throughput"]["training_tokens_per_second"]
    for name, stated, value in (
        ("training", run["seconds"]["training"], training),
        ("snapshots", run["seconds"]["snapshots"], float(curve["seconds"].sum())),
        ("training speed", speed, tokens / training),
        ("tokens", run["tokens"], tokens),
        ("steps", run["steps"], len(trace)),
        ("windows", len(raw["windows"]) > 0, completed),
    ):
        if not close(stated, value):
            yield f"{name} is {stated}, and {value} by its raw files"
    if list(trace["step"]) != list(range(1, len(trace) + 1)):
        yield "the steps of trace.parquet are not 1, 2, 3, …"
    steps = run["config"]["training"]["iterations"]
    if run["diverged_at"] != (len(trace) if run["status"] == "diverged" else None) or (
        completed and len(trace) != steps
    ):
        yield f"{len(trace)} of {steps} steps, {run['status']}, diverged at {run['diverged_at']}"


def _wrong_tables(run: Run, raw: Raw) -> Iterator[str]:
    tables, measures = run["tables"], run["measures"]
    for row in tables.get("lengths", []):
        loss = raw["positions"]["position_loss"][: row["length"]].mean()
        if not (close(row["loss"], loss) and close(row["perplexity"], math.exp(loss))):
            yield f"the loss at length {row['length']} does not follow from that by position"
    stock = [row for row in tables.get("stock_tasks", []) if row["metric"] == "acc"]
    judged = set(raw[STOCK]["task"]) if len(raw.get(STOCK, ())) else set()
    accuracies = [("items", row, row["accuracy"]) for row in tables.get("tasks", [])]
    accuracies += [(STOCK, row, row["value"]) for row in stock if row["task"] in judged]
    for name, row, accuracy in accuracies:
        items = raw[name]
        in_task = (items["task"] == row["task"]) & (items["shots"] == row["shots"])
        right = items.loc[in_task, "correct"].astype(float)
        recomputed = [len(right), right.mean(), right.sem()]
        if not all(map(close, [row["n"], accuracy, row["stderr"]], recomputed)):
            yield f"accuracy in {row['task']} ({row['shots']} shots) is not that of {name}.parquet"
    values = list[float]()
    for row in stock:
        if row["n"]:
            values.append(row["value"])
        elif row["task"] == "all tasks":
            if not close(row["value"], sum(values) / len(values)):
                yield f"accuracy in all tasks ({row['shots']} shots) is not the mean of theirs"
            values.clear()
    for row in tables.get("temperatures", []):
        fitted = row["temperature"] == measures["temperature"]
        for name in ("nll", "ece") if fitted else ():
            if not close(row[name], measures[f"{name}_test_tempered"]):
                yield f"{name} at the fitted temperature is not {name}_test_tempered"
        for name in ("nll", "ece") if row["temperature"] == 1 else ():
            stated = measures[{"nll": "loss_test", "ece": "ece_test"}[name]]
            if not np.isclose(row[name], stated, rtol=_SINGLE, atol=0):
                yield f"{name} at temperature 1 is {row[name]}, and the measure is {stated}"


def _wrong_items(run: Run, items: pd.DataFrame, answers: dict[str, Any]) -> Iterator[str]:
    """Yield questions that the recorded suite does not hold, and answers it judges otherwise."""
    if run["suite_hash"] not in answers:
        yield f"the record holds no suite {str(run['suite_hash'])[:12]}, which it was asked"
        return
    for (task, shots), rows in items.groupby(["task", "shots"]):
        gold = answers[run["suite_hash"]].get(task, [])
        if rows["item"].tolist() != list(range(len(gold))):
            yield f"the questions of {task} ({shots} shots) are not those of the suite"
        elif ((rows["choice"] == gold) != rows["correct"]).any():
            yield f"items.parquet counts as right in {task} ({shots} shots) what the suite does not"


def _wrong_course(run: Run, raw: Raw) -> Iterator[str]:
    trace, curve = raw["trace"], raw["curve"]
    tokens = run["config"]["training"]["batch_size"] * run["config"]["model"]["block_size"]
    if (trace["tokens"] != trace["step"] * tokens).any():
        yield f"tokens in trace.parquet are not {tokens:,} a step"
    every, last = run["config"]["evaluation"]["interval"], len(trace)
    if curve["step"].tolist() != sorted({*range(0, last + 1, every), last}):
        yield f"curve.parquet does not hold step 0, every {every}th and the last"
    end = [*trace[["loss", "grad_norm"]].iloc[-1], curve["dev_loss"].iloc[-1]]
    skipped = "skipped" in trace and bool(trace["skipped"].iloc[-1])
    lost = not np.isfinite(end[:1] if skipped else end).all() or not np.isfinite(end[2])
    if lost != (run["status"] == "diverged"):
        yield f"it is {run['status']}, and its last losses and gradient norm are {end}"


def _wrong_text(run: Run, raw: Raw) -> Iterator[str]:
    if run["status"] != "completed":
        return
    windows, bins = raw["windows"], raw["bins"]
    ends = windows["start"] + windows["n"]
    if windows["start"].tolist() != [0, *ends[:-1]]:
        yield "windows.parquet leaves out a part of the text, or holds one twice"
    loss, total = raw["positions"]["position_loss"], int(windows["n"].sum())
    covered = total // len(loss) * len(loss)  # by whole windows of the context
    least, most = math.fsum(windows["nll"][ends <= covered]), math.fsum(windows["nll"])
    if not least * (1 - _SINGLE) <= loss.mean() * covered <= most * (1 + _SINGLE):
        yield "the losses of positions.parquet are not those of windows.parquet"
    counts = ["n", "correct"]
    whole, test = windows[counts].sum(), windows[windows["test"]][counts].sum()
    for name in bins["binning"].unique().tolist():
        expected = test if str(name).startswith("test") else whole
        if (bins[bins["binning"] == name][counts].sum() != expected).any():
            yield f"bins.parquet ({name}) counts other characters than windows.parquet"


def _wrong_print(record: Record, run: Run) -> Iterator[str]:
    """Yield what its notebook prints of the result and the dev curve otherwise than they are."""
    notebook = record.read(record.run_notebook(run))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    result = RunResult.model_validate(run)
    result_cells = [c for c in cells if any("application/json" in data(o) for o in c["outputs"])]
    if len(result_cells) != 1:
        yield "its notebook does not show its result once"
        return
    sentences = [run_takeaway(result), history(result.provenance)]
    lines = _printed(result_cells[0]).splitlines()
    if len(lines) == 2:  # the sentence and the measures stand in the next cell
        result_cells += cells[cells.index(result_cells[0]) + 1 :][:1]
        lines = _printed(result_cells[-1]).splitlines() + lines
    if lines != [*sentences, f"runs/{record.study}/{run['arm']}/seed-{run['seed']}/result.json"]:
        yield "the sentence about its result in its notebook is not that of the result"
    for output in itertools.chain(*(cell["outputs"] for cell in cells)):
        if _TABLE.sub("", data(output).get("text/html", "")):
            yield "its notebook shows more than tables in HTML"
        if "text/markdown" in data(output):
            yield "its notebook shows a text in Markdown"
    yield from _wrong_times(notebook, cells, run)
    for cell in result_cells:
        yield from _wrong_table([o for o in cell["outputs"] if data(o)], result)
    labels = {label for cell in result_cells for label, _ in _ROW.findall(_html(cell["outputs"]))}
    for name in sorted(_required_rows(result) - {_NAMES.get(label, label) for label in labels}):
        yield f"the table of its result in its notebook leaves out {name}"
    first, diverged_at = max(result.resumed_at, default=0), result.diverged_at
    # Nothing is printed where nothing is trained, and a bar shown to whoever runs it by hand.
    silent = run["provenance"]["executed"]["from_checkpoint"]
    silent |= "by_hand" in notebook["metadata"]["study"]
    course = [
        f"step {step}: dev loss {loss:.4f}, embedding norm {norm:.2f}"
        for step, loss, norm in zip(*(record.raw(run)["curve"][name] for name in _DEV), strict=True)
        if step > first and not silent
    ]
    if diverged_at:
        course.append(f"DIVERGED at step {diverged_at}: its loss or gradient is not finite")
    trained = next((c for c in cells if "train(this.config" in source(c)), None)
    if (_printed(trained) if trained else "").splitlines() != course:
        yield "its notebook prints something else of its training than the losses of curve.parquet"
    _, *printed_config, machine = printed_parameters(notebook) or [""] * 2
    if printed_config != list(map(_fields, run["config"].items())) or not _is_machine(machine, run):
        yield "its notebook prints other parameters than its result says"


def _wrong_times(notebook: dict[str, Any], cells: list[dict[str, Any]], run: Run) -> Iterator[str]:
    """Yield what cells show that `verify --retrain` leaves out, as they show times: of training
    more than it prints, or more than one picture if run by hand; and another table of seconds."""
    true = {"", "seconds", *run["seconds"]}
    true |= {text for n in run["seconds"].values() for text in (str(round(n, 2)), f"{n:.2f}")}
    for cell in cells:
        shown, code = [data(each) for each in cell["outputs"] if data(each)], source(cell)
        if "train(this.config" in code and shown:
            told = "".join(shown[0].get("text/plain", ""))
            drawn = shown[0].keys() == {"image/png"} or _UNDRAWN.fullmatch(told)
            if "by_hand" not in notebook["metadata"]["study"] or len(shown) > 1 or not drawn:
                yield "its notebook shows something of its training beside what it prints"
        if "Series(measured.seconds" in code:
            texts = _CELL.findall(_html(cell["outputs"]))
            if [each.keys() for each in shown] != [{"text/html"}] or _printed(cell):
                yield "its notebook shows something beside the table of its seconds"
            elif not true.issuperset(texts):
                yield "the table of its seconds in its notebook is not that of the result"


def recorded_suites(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the hash of every recorded suite, from its questions, and the right answer of each."""
    for folder in zipfile.Path(record.folder / RAW_ZIP, "suite/").iterdir():
        groups = json.loads((folder / "suite.json").read_text("utf-8"))["groups"]
        tasks, gold = [], {}
        names = itertools.chain(*groups.values())
        pairs = [name.removesuffix("_shot").rsplit("_", 1) for name in names]
        for name in dict.fromkeys(task for task, _ in pairs):
            parts = {
                part: [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
                for part, lines in (
                    ("items", folder / f"{name}.test.jsonl"),
                    ("exemplars", folder / f"{name}.dev.jsonl"),
                )
            }
            shots = sorted({int(n) for task, n in pairs if task == name})
            tasks.append({"name": name, **parts, "shots": shots})
            gold[name] = [item["gold"] for item in parts["items"]]
        yield {"hash": digest(tasks), "gold": gold}


def printed_parameters(notebook: dict[str, Any]) -> list[str]:
    """Return the lines that a training notebook prints of its standing and then, in that cell or
    one before it, of its parameters."""
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    printing = [c for c in cells if re.search(r"print\((standing|claim_status)\(", source(c))]
    printing += [c for c in cells if "in this.config:" in source(c) and c not in printing]
    return "".join(map(_printed, printing)).splitlines()


def _is_machine(line: str, run: Run) -> bool:
    """Tell whether a line gives settings of the machine that came to what the run's origin says.
    The first fields of the section are the oldest; records of before have no more."""
    fields = dict(_MACHINE.findall(line))
    names = list(MachineConfig.model_fields)
    if line != "machine:" + "".join(f" {name}={text}" for name, text in fields.items()):
        return False
    if len(fields) < _OLDEST or list(fields) != names[: len(fields)]:
        return False
    try:
        machine = MachineConfig(**{name: literal_eval(text) for name, text in fields.items()})
    except ValidationError:
        return False
    used = run["provenance"]["executed"]["machine"]
    stated = machine.model_dump().items()
    return all(v in (None, "auto", used[name]) for name, v in stated if name in used)


def _fields(section: tuple[str, dict[str, Any]]) -> str:
    return f"{section[0]}: {' '.join(f'{name}={value!r}' for name, value in section[1].items())}"


def _printed(cell: dict[str, Any]) -> str:
    """Return what a cell prints."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def _wrong_table(outputs: list[dict[str, Any]], result: RunResult) -> Iterator[str]:
    """Yield what the table of a result in the notebook says otherwise than the result."""
    if len(outputs) != 1 or not {*data(outputs[0])} <= {"application/json", "text/html"}:
        yield "its notebook shows something beside the table of its result"
        return
    html = _html(outputs)
    rows = _ROW.findall(html)
    if _bare(html) != _bare("".join(label + text for label, text in rows)):
        yield "the table of its result in its notebook holds more than rows"
    values = result.measures | result.throughput
    texts = {
        name: MEASURES[name].text(v)
        for name, v in values.items()
        if name in MEASURES and v is not None
    }
    true = {label: texts.get(name, "n/a") for label, name in _NAMES.items()}
    true |= {"run": f"{result.study} / {result.arm} / seed {result.seed}"}
    true |= {"parameters": f"{result.parameters:,}", "tokens": f"{result.tokens:,}"}
    end = f" at step {result.diverged_at}" if result.diverged_at else ""
    true["status"] = f"{result.status}{end}"
    for label, text in rows:
        if text != true.get(label):
            yield f"the table of its result in its notebook says {label}: {text}"


def _required_rows(result: RunResult) -> set[str]:
    """List the rows that the table of a result must have: what it is of, and each measure of the
    summary."""
    values = result.measures | result.throughput
    measured = {name for name in measures_in("summary") if values.get(name) is not None}
    return measured | {"run", "status", "parameters", "tokens"}


def _html(outputs: list[dict[str, Any]]) -> str:
    return "".join(data(output).get("text/html", "") for output in outputs)


def _bare(html: str) -> str:
    return re.sub(r"<[^>]*>|\s+", "", html)
