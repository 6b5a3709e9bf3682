"""What a study costs (parameters, arithmetic, memory, time here), and the power of its seeds."""

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lib.config.claim import load_plan
from lib.config.contrasts import arm_weights
from lib.config.environment import cores, total_memory
from lib.config.errors import ConfigError, UsageError, suggest
from lib.config.files import write_json
from lib.config.freeze import proposed_plan
from lib.config.metrics import MEASURES
from lib.config.paths import output_root
from lib.config.plan import Plan
from lib.config.schema import MIN_BPE, CorpusConfig, Machine, RunConfig
from lib.config.study import Arm, Study
from lib.data.suite import prepare_suite
from lib.data.text import Corpus, CorpusError
from lib.data.tokens import BytePairs, learn, read_tokenizer
from lib.record.archive import Record, require_recorded
from lib.results import RunResult
from lib.stats.runs import tidy
from lib.sweep.execute import corpus_of, train_apart

if TYPE_CHECKING:  # torch takes a second to import: only what needs it does
    from lib.train.model import GPT

AFFORDABLE = 2e12
"""Operations of a step that is measured on a CPU: some ten seconds of a core."""
CONTEXT = 1e9
"""Bytes of a GPU that each process takes for CUDA itself."""
PROCESS = 6e8
"""Bytes of a run's processes beside what its model takes, and of the sweep's own."""
SPEED = {"cpu": 5e10, "cuda": 5e12}
"""Operations a second that a small model reaches, on a core and on a GPU."""
REST = 10.0
"""Seconds that a small run takes beside its steps: its notebook's start, the suite, pictures."""
_SHORT = {"iterations": 5, "warmup_iterations": 1}
"""What a study's training is shortened to, to be checked."""


def data_of(study: Study) -> tuple[dict[str, str], list[str]]:
    """Hash the texts of a study, by their sources, and its task suites, as a plan fixes them."""
    configs = [arm.config for arm in study.arms()]
    corpora = {config.corpus.source: corpus_of(config.corpus).sha256 for config in configs}
    if (n := study.evaluation.items_per_task) == 0:
        return corpora, []
    asked = {(config.corpus, config.model.block_size) for config in configs}
    return corpora, sorted({prepare_suite(corpus_of(c), n, size)[1]["hash"] for c, size in asked})


def begin_again(config: RunConfig, seed: int, steps: int) -> tuple[str, str] | None:
    """Return the hashes of a run's initial weights and batches; None if its text is not here."""
    from lib.train.trainer import initial_hashes

    corpus = _corpus_here(config.corpus)
    return initial_hashes(config, corpus, seed, steps) if corpus else None


@cache
def _corpus_here(corpus: CorpusConfig) -> Corpus | None:
    """Load a corpus; None if it cannot be had, which is asked of the internet once."""
    with suppress(CorpusError):
        return corpus_of(corpus)
    return None


def machine_of(config: RunConfig) -> Machine:
    """Resolve the settings of this machine for a run. A GPU that is not here counts as a CPU; torch
    is asked only if NVIDIA's driver is here."""
    if config.machine.device == "cpu" or not shutil.which("nvidia-smi"):
        return config.machine_on("cpu")
    from lib.train.machine import prepare

    return prepare(config)


class Size(NamedTuple):
    """How large a run is."""

    symbols: int
    parameters: int
    """Without biases and gains, about a hundredth."""
    flops: float
    """Operations of a step."""


def symbols_of(config: CorpusConfig) -> int:
    """Count the symbols of a corpus. They follow from its tokenizer; only for characters is the
    text read. Raises CorpusError."""
    if config.tokenizer == "characters":
        return corpus_of(config).vocab_size
    if config.tokenizer.endswith(".json"):
        return len(BytePairs(read_tokenizer(config.tokenizer), config.tokenizer).symbols)
    return MIN_BPE if config.tokenizer == "bytes" else int(config.tokenizer.removeprefix("bpe-"))


def size_of(config: RunConfig) -> Size:
    """Count symbols, parameters and operations of a run. A step takes 6 N + 12 L C T operations
    for each token (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), with L layers, C features
    and T tokens of context. N leaves out embeddings that are only looked up: nothing is multiplied
    with them. Raises CorpusError."""
    model, symbols = config.model, symbols_of(config.corpus)
    blocks = model.n_layer * (4 + 2 * model.mlp_ratio) * model.n_embd**2
    multiplied = blocks + symbols * model.n_embd
    looked_up = 0 if model.tied else symbols * model.n_embd
    looked_up += model.block_size * model.n_embd if model.positions == "learned" else 0
    each = 6 * multiplied + 12 * model.n_layer * model.n_embd * model.block_size
    tokens = config.training.batch_size * model.block_size
    return Size(symbols, multiplied + looked_up, tokens * each)


def model_of(config: RunConfig) -> "GPT":
    """Return a run's model, without weights."""
    from lib.train.model import GPT

    return GPT(config.model, symbols_of(config.corpus), None)


def memory(config: RunConfig, size: Size) -> dict[str, float]:
    """Count the bytes on each device at the peak of a step: weights, gradients, AdamW's two moments
    or Muon's one of the matrices in blocks, and activations. Of these a block keeps some
    8 C + b (6 + 2 m) C bytes for each token, with C features, an MLP m times as wide and b bytes
    per number, and the head (b + 12) V, with V symbols: within a tenth of what torch counts."""
    model, machine = config.model, machine_of(config)
    b = 4 if config.training.precision in ("fp32", "tf32") else 2
    block = (8 + b * (6 + 2 * model.mlp_ratio)) * model.n_embd
    matrices = model.n_layer * (4 + 2 * model.mlp_ratio) * model.n_embd**2
    saved = 4.0 * matrices if config.training.optimizer == "muon" else 0.0
    kept = 4 * model.n_embd if machine.activation_checkpointing else block
    per_token = model.n_layer * kept + (b + 12) * size.symbols
    return {
        "weights": (4.0 if b == 4 else 6.0) * size.parameters,
        "gradients": 4.0 * size.parameters,
        "optimizer": 8.0 * size.parameters - saved,
        "activations": float(machine.micro_batch_size * model.block_size * per_token),
    }


def gpus(studies: list[Study], jobs: int | None) -> list[str]:
    """Return the GPU of each run that trains at the same time; none if studies train on the CPU.
    Runs share a GPU, because a run spends most of its time outside it: as many as cores and memory
    allow, or as `jobs` says. A run that takes several GPUs has all of them (`0,1`)."""
    if all(machine_of(study).device == "cpu" for study in studies):
        return []
    import torch

    names = ",".join(map(str, range(torch.cuda.device_count())))
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or names
    if any(study.machine.processes != 1 for study in studies):
        return [names]
    each = names.split(",")
    needed = CONTEXT + 2 * _most_memory(studies)
    fitting = int(torch.cuda.get_device_properties(0).total_memory / needed)
    wanted = jobs or min(cores(), fitting * len(each))
    return [each[i % len(each)] for i in range(max(wanted, len(each)))]


def side_by_side(studies: list[Study]) -> int:
    """Return how many runs on a CPU can train at the same time, by its cores and memory."""
    needed = PROCESS + 2 * _most_memory(studies)
    return max(1, min(cores(), int((total_memory() - PROCESS) / needed)))


def _most_memory(studies: list[Study]) -> float:
    """Return the bytes that the largest run of some studies takes."""
    configs = [arm.config for study in studies for arm in study.arms()]
    return max(sum(memory(config, size_of(config)).values()) for config in configs)


class Trial(NamedTuple):
    """Seconds of the parts of a run, measured."""

    step: float
    point: float
    """Of the dev curve."""
    rest: float


def trial(arm: Arm) -> Trial:
    """Train an arm for a few steps, as a sweep would, in a folder of its own. If fewer devices are
    here than its processes, one of them takes its share of the batch alone; if its text is not
    here, a text of as many symbols stands in. Raises UserError if it fails."""
    from lib.train.machine import require_devices

    fields: Any = arm.config.model_dump()
    fields["evaluation"]["interval"] = 1
    machine = machine_of(arm.config)
    try:
        require_devices(machine)
    except ConfigError:
        fields["training"]["batch_size"] //= machine.processes
        fields["machine"]["processes"] = 1
    with tempfile.TemporaryDirectory() as folder:
        if _corpus_here(arm.config.corpus) is None:
            fields["corpus"] = stand_in(arm.config.corpus, Path(folder)).model_dump()
        study = shortened(Study.model_validate({"name": "trial", "seeds": [0], **fields}))
        start, steps = time.perf_counter(), study.training.iterations
        parts = train_apart(study, study.arms()[0].id, 0)["seconds"]
        rest = time.perf_counter() - start - parts["training"] - parts["snapshots"]
    return Trial(parts["training"] / steps, parts["snapshots"] / (steps + 1), rest)


def stand_in(corpus: CorpusConfig, folder: Path) -> CorpusConfig:
    """Return a corpus that is here, with the symbols of one that is not. Byte pairs have to be
    learned from the text: in their place stand tokens that never occur."""
    tokenizer = corpus.tokenizer
    if tokenizer.startswith("bpe-"):
        content = json.loads(learn("bytes", []))
        vocabulary = content["model"]["vocab"]
        n = symbols_of(corpus) - len(vocabulary) - 1  # beside bytes and the end of a document
        vocabulary |= {f"<{i}>": len(vocabulary) + 1 + i for i in range(n)}
        tokenizer = str(folder / "tokenizer.json")
        write_json(Path(tokenizer), content)
    return CorpusConfig(source="synthetic", tokenizer=tokenizer)


def try_largest(study: Study) -> Trial | None:
    """Try the largest arm of a study; return None if one of its steps would take a CPU long."""
    largest = largest_arm(study)
    work = size_of(largest.config).flops
    is_long = machine_of(largest.config).device == "cpu" and work > AFFORDABLE
    return None if is_long else trial(largest)


def largest_arm(study: Study) -> Arm:
    """Return the arm whose step takes the most operations."""
    return max(study.arms(), key=lambda arm: size_of(arm.config).flops)


def device_of(study: Study) -> str:
    """Return the kind of device that a study runs on, here or elsewhere: cpu or cuda."""
    return "cuda" if study.machine.device == "cuda" else machine_of(study).device


def seconds_of(study: Study, tried: Trial | None = None) -> dict[str, float]:
    """Return how many seconds a run of each arm takes: by a trial of the largest one, or else
    roughly, by arithmetic."""
    most = size_of(largest_arm(study).config).flops
    speed = SPEED[device_of(study)] * machine_of(study).processes
    seconds = {}
    for arm in study.arms():
        steps, work = arm.config.training.iterations, size_of(arm.config).flops
        if tried is None:
            seconds[arm.id] = REST + steps * work / speed
            continue
        points = steps // arm.config.evaluation.interval + 1
        seconds[arm.id] = tried.rest + work / most * (tried.step * steps + tried.point * points)
    return seconds


def asks(study: Study, *, tries: bool) -> str:
    """Return the minutes and megabytes that each run of a study asks a cluster for at its first
    attempt, `minutes:megabytes`: three times what its largest run takes, and ten minutes more. The
    time is measured if it `tries` and the device is here, else it follows from arithmetic."""
    is_here = study.machine.device != "cuda" or machine_of(study).device == "cuda"
    tried = try_largest(study) if tries and is_here else None
    minutes = math.ceil(10 + 3 * max(seconds_of(study, tried).values()) / 60)
    kept = PROCESS + (CONTEXT if study.machine.device == "cuda" else 0.0)
    return f"{minutes}:{3 * (kept + _most_memory([study])) / 1e6:.0f}"


def time_of(study: Study) -> Iterator[str]:
    """Yield lines that say how long a study takes here, by a trial of its largest arm."""
    from lib.train.machine import describe

    tried = try_largest(study)
    if tried is None:
        yield "  time        not tried: a step of it would take a core more than ten seconds"
        return
    seconds = seconds_of(study, tried).values()
    jobs = len(gpus([study], None)) or side_by_side([study])
    total = max(max(seconds), len(study.seeds) * sum(seconds) / jobs)
    here = describe(machine_of(study)).device_name
    daily = 86_400 / tried.step
    yield f"  time        on {here}: {1000 * tried.step:,.1f} ms a step, {daily:,.0f} steps a day,"
    yield f"              {clock(max(seconds))} a run, {clock(total)} in all, {jobs} side by side;"
    yield "              the analysis comes on top"


def clock(seconds: float) -> str:
    """Write a time: seconds below a minute, else h:mm:ss."""
    return f"{seconds:.0f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def amount(size: float) -> str:
    """Write a number of bytes."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def seconds_to_write(size: float) -> float:
    """Measure how long a checkpoint takes to hash and to write to the disk that keeps runs."""
    sample = bytes(min(int(size), 2**26))
    with tempfile.TemporaryFile(dir=output_root()) as file:
        start = time.perf_counter()
        hashlib.sha256(sample)
        file.write(sample)
        os.fsync(file.fileno())
        return (time.perf_counter() - start) * size / len(sample)


def shortened(study: Study) -> Study:
    """Return a study of its first two arms and two seeds, with five steps and under no plan, which
    goes through all that the study goes through."""
    content: dict[str, Any] = study.model_dump(exclude={"commits"})
    first = list(study.arms())[:2]
    levels = {f: list(dict.fromkeys(arm.levels[f] for arm in first)) for f in study.factors}
    for field, most in _SHORT.items():
        content["training"][field] = min(content["training"][field], most)
        if (factor := f"training.{field}") in levels:
            levels[factor] = [most + i for i in range(len(levels[factor]))]
    kept = [e for e in study.exclude if all(level in levels[f] for f, level in e.items())]
    content |= {"factors": levels, "exclude": kept, "seeds": study.seeds[:2], "plan": None}
    content["include"] = [] if study.factors else content["include"][:1]
    return Study.model_validate(content)


def estimate(
    study: Study, effect: float | None, spread: str | None, measure: str | None = None
) -> Iterator[str]:
    """Yield lines that say what a study costs (parameters, arithmetic, memory, time here), and the
    power of its plan's hypotheses in a measure (None: in all). Without a plan, these are the
    hypotheses that `freeze --new` would write.

    `effect` is the true difference (None: see `expected_power`). `spread` is the sd of differences,
    or a recorded study that shows it (None: the plan's).
    """
    arms, n = list(study.arms()), len(study.seeds)
    config = largest_arm(study).config
    size = size_of(config)
    work = [arm.config.training.iterations * size_of(arm.config).flops for arm in arms]
    parameters = sum(weights.numel() for weights in model_of(config).parameters())
    yield f"{study.name}: {len(arms)} arms × {n} seeds; of the largest run:"
    yield f"  parameters  {parameters:,}"
    yield f"  tokens      {config.tokens:,}"
    yield f"  arithmetic  {max(work):.2e} FLOP, of all runs {n * sum(work):.2e}"
    needed = memory(config, size)
    parts = ", ".join(f"{part} {amount(number)}" for part, number in needed.items())
    yield f"  memory      {amount(sum(needed.values()))} a process: {parts}"
    checkpoint = needed["optimizer"] + 4.0 * parameters
    seconds = seconds_to_write(checkpoint)
    yield f"  checkpoint  {amount(checkpoint)}, written here in {seconds:.1f} s"
    if config.corpus.tokenizer != "characters":
        yield f"  on disk     {amount(4 * config.tokens)} of ids, for a text of as many tokens"
    yield from time_of(study)
    try:
        plan = load_plan(study)
    except ConfigError as error:
        lacks = str(error).replace("\nerror: ", "\n  ")
        yield f"Power takes a plan that is filled in:\n  {lacks}"
        return
    if plan is None and (effect is None or spread is None):
        yield "Power takes a plan (./run_all.sh freeze --new PLAN --study NAME), or --effect and"
        yield "--spread: the difference that you expect, and its sd over seeds or a pilot study"
        return
    known = [h.measure for h in plan.bound.values()] if plan else [*MEASURES]
    if measure and measure not in known:
        raise UsageError(f"--measure: {suggest(measure, known)}")
    plan = plan or Plan.model_validate(proposed_plan(study, measure))
    asked = {name: h for name, h in plan.bound.items() if measure in (None, h.measure)}
    yield from power(plan.model_copy(update={"hypotheses": asked}), study, effect, spread)


def power(plan: Plan, study: Study, effect: float | None, spread: str | None) -> Iterator[str]:
    """Yield lines that say the power of each hypothesis with a study's seeds, how many seeds the
    plan's power needs, and which exact tests cannot reach their level."""
    from lib.stats.power import expected_power, independent, out_of_reach, spread_of  # scipy

    n = len(study.seeds)
    yield from (f"warning: {text}" for text in out_of_reach(plan, n))
    source: Any = plan.spread if spread is None else spread
    with suppress(TypeError, ValueError):
        source = float(source)
    if isinstance(source, float) and not 0 < source < float("inf"):
        raise UsageError(f"--spread: {source} is no sd; give one above 0, or the name of a study")
    if isinstance(source, str):
        (name,) = require_recorded([source])
        sds = spread_of(plan, tidy(RunResult.model_validate(run) for run in Record(name).runs))
    else:
        sds, variants = {}, {arm.id: arm.variant for arm in study.arms()}
        levels = {arm.id: arm.levels for arm in study.arms()}
        for name, h in plan.bound.items():
            if sd := source.get(h.measure) if isinstance(source, dict) else source:
                sds[name] = sd * independent(
                    h, arm_weights(h.pairs, variants, levels, h.minus_share)
                )
    if not sds:
        yield "Power is unknown: name a pilot study, or guess an sd of differences, by --spread"
        return
    table = expected_power(plan, sds, n, effect)
    yield f"Power of {n} seeds, and the seeds for a power of {plan.power:.0%}:"
    shown = table.dropna(axis="columns", how="all")
    yield shown.to_string(index=False, float_format="{:.4g}".format)
    if "negligible" in shown:
        yield "negligible: the power to show that a true difference of 0 is too small to matter"
    few = table.loc[table["power"] < plan.power, "hypothesis"]
    if len(few):
        yield f"warning: {n} seeds are too few for {', '.join(few)}"
