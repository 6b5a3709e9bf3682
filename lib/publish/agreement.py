"""Whether a run's raw files are whole and agree with its parameters, with each other and with what
its notebook prints. `lib.publish.recomputed` asks whether its numbers follow from them."""

import itertools
import re
from ast import literal_eval
from collections.abc import Iterator
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from lib.analysis.tables import run_takeaway
from lib.publish.raw_zip import raw_folder
from lib.publish.recomputed import Run, named, place
from lib.study.config import Study
from lib.study.fields import MachineConfig, digest
from lib.study.measures import MEASURES, measures_in
from lib.study.provenance import history
from lib.study.raw import measures_of, read_raw, read_raw_file
from lib.study.record import RunResult, read_json

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
_MACHINE = re.compile(r" (\w+)=('\w+'|\d+|None|True|False)")
_FILE = r"(weights\.safetensors|state\.pt|(trace|curve)\.parquet|(provenance|manifest)\.json)"
_FAULTS = (
    rf"{_FILE} is (missing|not as it was written)",
    r"its state is that of step \d+",
    r"its trace does not hold the steps 1 to \d+, each once",
    r"its curve does not hold every evaluation up to step \d+, each once",
    "its weights are not of this model's shapes",
    r"unreadable: ([A-Z]\w*Error|BadZipFile|ArrowInvalid)",
    "it is no folder",
)
"""What `lib.run.checkpoints` says of a damaged one."""
_CHECKPOINT = (
    r"Checkpoint (?P<name>step-\d{8,}|checkpoints) is ((?P<damaged>damaged) "
    rf"\(({'|'.join(_FAULTS)})\)|foreign \(it belongs to [\w-]+, \S+, seed \d+\))\. "
    r"It is not used, and kept as (?P=name)-(?(damaged)damaged|foreign)(-\d+)?"
)
_SUITE = (
    r"The suite in [\w.-]+-\d+-[\w-]+ is (of other code|damaged( \((suite\.json is missing or "
    r"cannot be read|[\w.-]+ is not as it was written)\))?)\. It is made anew"
)
_TOKENS = r"\d{6}\.bin of [\w.-]+ is damaged\. It is made anew"
_NOTICE = re.compile(rf"^({_CHECKPOINT}|{_SUITE}|{_TOKENS})\.\n", re.MULTILINE)
_DEV = re.compile(
    r"^step (\d+): dev loss (\d+\.\d{4}|nan|inf), embedding norm (\d+\.\d{2}|nan|inf)$",
    re.MULTILINE,
)
_FORMER = {
    "training tokens/s": "training_tokens_per_second",
    "inference tokens/s, batched": "inference_tokens_per_second",
    "inference tokens/s, batch 1": "inference_tokens_per_second_batch_1",
    "cosine between gradients of two parts of dev": "gradient_cosine",
}
"""Titles that measures once had in a printed table."""
_NAMES = {measure.title: name for name, measure in MEASURES.items()} | _FORMER
_OLDEST = 5
"""Fields of section machine that every record prints."""


def wrong_raw_files(study: str, run: Run) -> Iterator[str]:
    """Rows that raw files lack or hold against the run's parameters or each other, a run said to
    have diverged or not against its losses, and measures that nothing supports."""
    raw = read_raw(raw_folder(place(study, run) / "02_train.ipynb"))
    yield from _wrong_course(run, raw["trace"], raw["curve"])
    if run["status"] == "completed":
        yield from _wrong_text(run, raw)
    unsupported = set(run["measures"]) - set(measures_of(raw)) - _WITHOUT_SUMS
    for name in sorted(unsupported if run["status"] == "completed" else run["measures"]):
        if run["measures"][name] is not None:
            yield f"{name} is {run['measures'][name]}, which its raw files do not support"


def _wrong_course(run: Run, trace: pd.DataFrame, curve: pd.DataFrame) -> Iterator[str]:
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


def _wrong_text(run: Run, raw: dict[str, pd.DataFrame]) -> Iterator[str]:
    windows, bins = raw["windows"], raw["bins"]
    ends = windows["start"] + windows["n"]
    if windows["start"].tolist() != [0, *ends[:-1]]:
        yield "windows.parquet leaves out a part of the text, or holds one twice"
    for name in bins["binning"].unique().tolist():
        rows = bins[bins["binning"] == name]
        counted = windows[windows["test"]] if str(name).startswith("test") else windows
        if (rows[["n", "correct"]].sum() != counted[["n", "correct"]].sum()).any():
            yield f"bins.parquet ({name}) counts other characters than windows.parquet"
    for row in run["tables"].get("temperatures", []):
        for name in ("nll", "ece") if row["temperature"] == 1 else ():
            stated = run["measures"][{"nll": "loss_test", "ece": "ece_test"}[name]]
            if not np.isclose(row[name], stated, rtol=_SINGLE, atol=0):
                yield f"{name} at temperature 1 is {row[name]}, and the measure is {stated}"


def unlike_texts(study: str, runs: list[Run]) -> Iterator[str]:
    """Runs whose windows of held-out text are not those of the others that read the same."""
    seen: dict[str, tuple[Run, str]] = {}
    for run in runs:
        if run["status"] != "completed":
            continue
        folder = raw_folder(place(study, run) / "02_train.ipynb")
        cut = read_raw_file(folder, "windows")[["start", "n", "test"]].to_numpy(int).tolist()
        same = digest([run["corpus_sha256"], run["config"]["model"]["block_size"]])
        first, its_cut = seen.setdefault(same, (run, digest(cut)))
        if digest(cut) != its_cut:
            yield f"{named(run)} was scored on other windows of the same text than {named(first)}"


def tell_uncommitted(study: str, runs: list[Run]) -> None:
    """Print how many runs name no committed code, which nothing can compare theirs with."""
    number = sum(not run["provenance"]["trained"].get("clean") for run in runs)
    if number:
        print(f"{study}: the code of {number} of {len(runs)} runs was not committed; their digests "
              "are not compared with any", flush=True)  # fmt: skip


def mixed_code(runs: list[Run]) -> Iterator[str]:
    """Runs of one study that were trained, or measured, by different code."""
    for name, account in (("training_digest", "trained"), ("measuring_digest", "executed")):
        made_by: dict[str, Run] = {}
        for run in runs:
            made_by.setdefault(run["provenance"][account][name], run)
        if len(made_by) > 1:
            yield f"its runs have different {name}s: {', '.join(map(named, made_by.values()))}"


def wrong_labels(study: Study, runs: list[Run]) -> Iterator[str]:
    """What runs say otherwise of their arms than the study: levels, variant, setting and baseline
    decide what a run is compared with."""
    for run in runs:
        arm = study.arm(run["arm"])
        for name in ("levels", "variant", "setting", "baseline"):
            if run[name] != (own := getattr(arm, name)):
                yield f"{named(run)}: its {name} is {run[name]!r}, and of its arm {own!r}"


def wrong_print(study: str, run: Run) -> Iterator[str]:
    """What its notebook prints of the result and the dev curve otherwise than they are."""
    path = place(study, run) / "02_train.ipynb"
    cells = [c for c in read_json(path)["cells"] if c["cell_type"] == "code"]
    result = RunResult.model_validate(run)
    shown = [c for c in cells if any("application/json" in _data(o) for o in c["outputs"])]
    if len(shown) != 1:
        yield "its notebook does not show its result once"
        return
    told = [run_takeaway(result), history(result.provenance)]
    lines = _printed(shown[0]).splitlines()
    if len(lines) == 2:  # the sentence and the measures stand in the next cell
        shown += cells[cells.index(shown[0]) + 1 :][:1]
        lines = _printed(shown[-1]).splitlines() + lines
    if lines != [*told, f"runs/{study}/{run['arm']}/seed-{run['seed']}/result.json"]:
        yield "the sentence about its result in its notebook is not that of the result"
    for output in itertools.chain(*(cell["outputs"] for cell in cells)):
        if _TABLE.sub("", "".join(_data(output).get("text/html", ""))):
            yield "its notebook shows more than tables in HTML"
    for cell in shown:
        yield from _wrong_table([o for o in cell["outputs"] if _data(o)], result)
    there = {label for cell in shown for label, _ in _ROW.findall(_html(cell["outputs"]))}
    for name in sorted(_wanted(result) - {_NAMES.get(label, label) for label in there}):
        yield f"the table of its result in its notebook leaves out {name}"
    curve = read_raw_file(raw_folder(path), "curve")
    measured = zip(curve["dev_loss"], curve["embedding_norm"], strict=True)
    points = dict(zip(curve["step"], measured, strict=True))
    trained = next((c for c in cells if "train(this.config" in _source(c)), None)
    course = _printed(trained) if trained else ""
    printed: list[tuple[str, str, str]] = _DEV.findall(course)
    lost = f"DIVERGED at step {result.diverged_at}: its loss or gradient is not finite"
    if _DEV.sub("", course).strip() != (lost if result.diverged_at else ""):
        yield "its notebook prints something beside the dev losses of its training"
    _, *given, machine = begun(path) or [""] * 2
    if given != list(map(_fields, run["config"].items())) or not _is_machine(machine, run):
        yield "its notebook prints other parameters than its result says"
    for step, *texts in printed:
        if not all(map(_rounds, points.get(int(step), (nan, nan)), texts)):
            yield f"the dev loss printed at step {step} is not that of curve.parquet"
    first = max(result.resumed_at, default=0)
    anew = run["provenance"]["executed"]["from_checkpoint"]
    if [int(step) for step, *_ in printed] != [s for s in points if s > first and not anew]:
        yield "its notebook does not print the dev loss of each step of curve.parquet, in order"


def begun(path: Path) -> list[str]:
    """What a training notebook prints of its standing and, in that cell or one before it, of its
    parameters: the standing, then the parameters."""
    cells = [c for c in read_json(path)["cells"] if c["cell_type"] == "code"]
    told = [c for c in cells if "print(standing(" in _source(c)]
    told += [c for c in cells if "in this.config:" in _source(c) and c not in told]
    return "".join(map(_printed, told)).splitlines()


def _is_machine(line: str, run: Run) -> bool:
    """Whether a line gives settings of the machine that came to what the run's account says. The
    first fields of the section are the oldest; records of before have no more."""
    given = dict(_MACHINE.findall(line))
    names = list(MachineConfig.model_fields)
    if line != "machine:" + "".join(f" {name}={text}" for name, text in given.items()):
        return False
    if len(given) < _OLDEST or list(given) != names[: len(given)]:
        return False
    try:
        asked = MachineConfig(**{name: literal_eval(text) for name, text in given.items()})
    except ValidationError:
        return False
    used = run["provenance"]["executed"]["machine"]
    stated = asked.model_dump().items()
    return all(v in (None, "auto", used[name]) for name, v in stated if name in used)


def _fields(section: tuple[str, dict[str, Any]]) -> str:
    return f"{section[0]}: {' '.join(f'{name}={value!r}' for name, value in section[1].items())}"


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _data(output: dict[str, Any]) -> dict[str, Any]:
    return dict(output.get("data", {}))


def _printed(cell: dict[str, Any]) -> str:
    """What a cell prints, without notices that a file was damaged."""
    said = "".join("".join(output.get("text", "")) for output in cell["outputs"])
    return _NOTICE.sub("", said)


def _wrong_table(outputs: list[dict[str, Any]], result: RunResult) -> Iterator[str]:
    """What the table of a result says otherwise."""
    if len(outputs) != 1 or not {*_data(outputs[0])} <= {"application/json", "text/html"}:
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


def _wanted(result: RunResult) -> set[str]:
    """What the table of a result has a row for: what it is of, and each measure of the summary."""
    values = result.measures | result.throughput
    measured = {name for name in measures_in("summary") if values.get(name) is not None}
    return measured | {"run", "status", "parameters", "tokens"}


def _html(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(_data(output).get("text/html", "")) for output in outputs)


def _bare(html: str) -> str:
    return re.sub(r"<[^>]*>|\s+", "", html)


def _rounds(value: float, text: str) -> bool:
    """Tell whether a printed number is a value rounded, but for what single precision took."""
    if not isfinite(value):
        return text == str(value)
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return bool(abs(value - float(text)) <= half + _SINGLE * abs(value))
