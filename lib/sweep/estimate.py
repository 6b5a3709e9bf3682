"""What a study costs (parameters, arithmetic, memory, time), and the power of its seeds."""

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

if TYPE_CHECKING:  # torch takes a second to import, so it is imported only where it is needed
    from lib.train.model import GPT

AFFORDABLE = 2e12
"""Most operations of a step that a CPU measures: about ten seconds of a core."""
CONTEXT = 1e9
"""Bytes that CUDA itself takes on the GPU, in each process."""
PROCESS = 6e8
"""Bytes that a run's processes take in addition to its model. The sweep itself takes as many."""
SPEED = {"cpu": 5e10, "cuda": 5e12}
"""Operations per second that a small model reaches on a core and on a GPU."""
REST = 10.0
"""Seconds that a small run takes in addition to its steps: notebook start, suite, figures."""
_SHORT = {"iterations": 5, "warmup_iterations": 1}
"""Training of the short sweep that checks a study."""


def data_of(study: Study) -> tuple[dict[str, str], list[str]]:
    """Return the hashes that a plan freezes: each text's, by its source, and the task suites'."""
    configs = [arm.config for arm in study.arms()]
    corpora = {config.corpus.source: corpus_of(config.corpus).sha256 for config in configs}
    if (n := study.evaluation.items_per_task) == 0:
        return corpora, []
    pairs = {(config.corpus, config.model.block_size) for config in configs}
    return corpora, sorted({prepare_suite(corpus_of(c), n, size)[1]["hash"] for c, size in pairs})


def begin_again(config: RunConfig, seed: int, steps: int) -> tuple[str, str] | None:
    """Make a run's initial weights and batches again; return their hashes, or None if its text is
    not on this machine."""
    from lib.train.trainer import initial_hashes

    corpus = _corpus_here(config.corpus)
    return initial_hashes(config, corpus, seed, steps) if corpus else None


@cache
def _corpus_here(corpus: CorpusConfig) -> Corpus | None:
    """Load a corpus; None if it is not here and cannot be downloaded. The cache tries only once."""
    with suppress(CorpusError):
        return corpus_of(corpus)
    return None


def machine_of(config: RunConfig) -> Machine:
    """Resolve the settings of this machine for a run. If there is no GPU, use the CPU. torch is
    imported only if NVIDIA's driver is installed."""
    if config.machine.device == "cpu" or not shutil.which("nvidia-smi"):
        return config.machine_on("cpu")
    from lib.train.machine import prepare

    return prepare(config)


class Size(NamedTuple):
    """The size of a run."""

    symbols: int
    parameters: int
    """Weights in matrices. Biases and gains, about a hundredth, are left out."""
    flops: float
    """Operations per step."""


def symbols_of(config: CorpusConfig) -> int:
    """Count the symbols of a corpus by its tokenizer. Only `characters` needs the text. Raises
    CorpusError."""
    if config.tokenizer == "characters":
        return corpus_of(config).vocab_size
    if config.tokenizer.endswith(".json"):
        return len(BytePairs(read_tokenizer(config.tokenizer), config.tokenizer).symbols)
    return MIN_BPE if config.tokenizer == "bytes" else int(config.tokenizer.removeprefix("bpe-"))


def size_of(config: RunConfig) -> Size:
    """Count the symbols, parameters and operations of a run. A step takes 6 N + 12 L C T operations
    per token (Chowdhery et al. 2022, arXiv 2204.02311, appendix B): L layers, C features, T tokens
    of context. N leaves out embeddings that are only looked up, because nothing is multiplied by
    them. Raises CorpusError."""
    model, symbols = config.model, symbols_of(config.corpus)
    blocks = model.n_layer * (4 + 2 * model.mlp_ratio) * model.n_embd**2
    multiplied = blocks + symbols * model.n_embd
    looked_up = 0 if model.tied else symbols * model.n_embd
    looked_up += model.block_size * model.n_embd if model.positions == "learned" else 0
    each = 6 * multiplied + 12 * model.n_layer * model.n_embd * model.block_size
    tokens = config.training.batch_size * model.block_size
    return Size(symbols, multiplied + looked_up, tokens * each)


def model_of(config: RunConfig) -> "GPT":
    """Return a run's model with uninitialised weights."""
    from lib.train.model import GPT

    return GPT(config.model, symbols_of(config.corpus), None)


def memory(config: RunConfig, size: Size) -> dict[str, float]:
    """Count the bytes on each device at the peak of a step: weights, gradients, optimizer moments
    and activations. AdamW keeps two moments; Muon keeps one for the matrices in blocks. Activations
    per token: each block keeps about 8 C + b (6 + 2 m) C bytes (C features, an MLP m times as wide,
    b bytes per number), the head (b + 12) V (V symbols). This is within a tenth of torch's count.
    """
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
    """Return the GPU of each run that trains at the same time; [] if studies train on the CPU.

    Runs share a GPU, because a small run spends most of its time outside it: `jobs` runs, or as
    many as cores and memory allow. A run with several processes gets all GPUs (`0,1`)."""
    if all(machine_of(study).device == "cpu" for study in studies):
        return []
    import torch

    names = ",".join(map(str, range(torch.cuda.device_count())))
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or names
    if any(study.machine.processes != 1 for study in studies):
        return [names]
    each = names.split(",")
    # GPUs take turns in the list: 0, 1, 0, 1.
    needed = CONTEXT + 2 * _most_memory(studies)
    fitting = int(torch.cuda.get_device_properties(0).total_memory / needed)
    wanted = jobs or min(cores(), fitting * len(each))
    return [each[i % len(each)] for i in range(max(wanted, len(each)))]


def side_by_side(studies: list[Study]) -> int:
    """Return how many runs can train on the CPU at the same time, by cores and memory."""
    needed = PROCESS + 2 * _most_memory(studies)
    return max(1, min(cores(), int((total_memory() - PROCESS) / needed)))


def _most_memory(studies: list[Study]) -> float:
    """Return the bytes that the largest run of the studies takes."""
    configs = [arm.config for study in studies for arm in study.arms()]
    return max(sum(memory(config, size_of(config)).values()) for config in configs)


class Trial(NamedTuple):
    """Measured seconds of the parts of a run."""

    step: float
    point: float
    """One point of the dev curve."""
    rest: float
    """Everything else."""


def trial(arm: Arm) -> Trial:
    """Train an arm for a few steps in a temporary folder, and measure the time.

    If something is missing here, something similar is timed: the CPU instead of a GPU; one process
    with its share of the batch if there are too few devices; another text with as many symbols.
    Raises UserError if the run fails.
    """
    from lib.train.machine import require_devices

    fields: Any = arm.config.model_dump()
    fields["evaluation"]["interval"] = 1  # so that the few steps also time the dev curve
    machine = machine_of(arm.config)
    fields["machine"]["device"] = machine.device
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
    """Return a corpus that is on this machine and has as many symbols as one that is not. Byte
    pairs would have to be learned from the missing text; tokens that never occur replace them."""
    tokenizer = corpus.tokenizer
    if tokenizer.startswith("bpe-"):
        content = json.loads(learn("bytes", []))
        vocabulary = content["model"]["vocab"]
        n = symbols_of(corpus) - len(vocabulary) - 1  # without bytes and the end of a document
        vocabulary |= {f"<{i}>": len(vocabulary) + 1 + i for i in range(n)}
        tokenizer = str(folder / "tokenizer.json")
        write_json(Path(tokenizer), content)
    return CorpusConfig(source="synthetic", tokenizer=tokenizer)


def try_largest(study: Study) -> Trial | None:
    """Time the largest arm of a study; None if one step would take too long on a CPU."""
    largest = largest_arm(study)
    work = size_of(largest.config).flops
    is_long = machine_of(largest.config).device == "cpu" and work > AFFORDABLE
    return None if is_long else trial(largest)


def largest_arm(study: Study) -> Arm:
    """Return the arm whose step takes the most operations."""
    return max(study.arms(), key=lambda arm: size_of(arm.config).flops)


def device_of(study: Study) -> str:
    """Return the type of device that a study runs on, here or elsewhere: cpu or cuda."""
    return "cuda" if study.machine.device == "cuda" else machine_of(study).device


def seconds_of(study: Study, tried: Trial | None = None) -> dict[str, float]:
    """Return how many seconds a run of each arm takes: from a trial of the largest arm, or else
    from a rough count of operations."""
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
    """Return what each run of a study requests from a cluster at its first attempt, as
    `minutes:megabytes`: three times what the largest run takes, plus ten minutes. If `tries` is
    true and the device is here, the time is measured, otherwise estimated from operations."""
    is_here = study.machine.device != "cuda" or machine_of(study).device == "cuda"
    tried = try_largest(study) if tries and is_here else None
    minutes = math.ceil(10 + 3 * max(seconds_of(study, tried).values()) / 60)
    kept = PROCESS + (CONTEXT if study.machine.device == "cuda" else 0.0)
    return f"{minutes}:{3 * (kept + _most_memory([study])) / 1e6:.0f}"


def time_of(study: Study) -> Iterator[str]:
    """Yield lines that say how long a study takes here, from a trial of its largest arm."""
    from lib.train.machine import describe

    tried = try_largest(study)
    if tried is None:
        yield "  time        not measured: one step would take a core more than ten seconds"
        return
    seconds = seconds_of(study, tried).values()
    jobs = len(gpus([study], None)) or side_by_side([study])
    total = max(max(seconds), len(study.seeds) * sum(seconds) / jobs)  # at least the longest run
    name = describe(machine_of(study)).device_name
    daily = 86_400 / tried.step
    yield f"  time        on {name}: {1000 * tried.step:,.1f} ms a step, {daily:,.0f} steps a day,"
    yield f"              {clock(max(seconds))} a run, {clock(total)} in all, {jobs} at once,"
    yield "              plus the analysis"


def clock(seconds: float) -> str:
    """Write a duration: in seconds below a minute, else h:mm:ss."""
    return f"{seconds:.0f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def amount(size: float) -> str:
    """Write a number of bytes."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def seconds_to_write(size: float) -> float:
    """Measure how long it takes to hash a checkpoint and to write it to the disk of `runs/`."""
    sample = bytes(min(int(size), 2**26))  # a part of it, at most 67 MB
    with tempfile.TemporaryFile(dir=output_root()) as file:
        start = time.perf_counter()
        hashlib.sha256(sample)
        file.write(sample)
        os.fsync(file.fileno())
        return (time.perf_counter() - start) * size / len(sample)


def shortened(study: Study) -> Study:
    """Return a study of the first two arms and two seeds, with five steps and without a plan. It
    goes through everything that the full study goes through."""
    content: dict[str, Any] = study.model_dump(exclude={"commits"})
    first = list(study.arms())[:2]
    levels = {f: list(dict.fromkeys(arm.levels[f] for arm in first)) for f in study.factors}
    for field, most in _SHORT.items():
        content["training"][field] = min(content["training"][field], most)
        if (factor := f"training.{field}") in levels:
            # The arms must still differ.
            levels[factor] = [most + i for i in range(len(levels[factor]))]
    kept = [e for e in study.exclude if all(level in levels[f] for f, level in e.items())]
    content |= {"factors": levels, "exclude": kept, "seeds": study.seeds[:2], "plan": None}
    content["include"] = [] if study.factors else content["include"][:1]
    return Study.model_validate(content)


def estimate(
    study: Study, effect: float | None, spread: str | None, measure: str | None = None
) -> Iterator[str]:
    """Yield lines that say what a study costs (parameters, arithmetic, memory, time here), and the
    power of its plan's hypotheses on a measure (None: on all). Without a plan, use the hypotheses
    that `freeze --new` would write.

    `effect` is the true difference (None: see `expected_power`). `spread` is the sd of differences,
    or a recorded study to take it from (None: the plan's).
    """
    arms, n = list(study.arms()), len(study.seeds)
    config = largest_arm(study).config
    size = size_of(config)
    work = [arm.config.training.iterations * size_of(arm.config).flops for arm in arms]
    parameters = sum(weights.numel() for weights in model_of(config).parameters())
    yield f"{study.name}: {len(arms)} arms × {n} seeds; the largest run has:"
    yield f"  parameters  {parameters:,}"
    yield f"  tokens      {config.tokens:,}"
    yield f"  arithmetic  {max(work):.2e} FLOP ({n * sum(work):.2e} in all runs)"
    needed = memory(config, size)
    parts = ", ".join(f"{part} {amount(number)}" for part, number in needed.items())
    yield f"  memory      {amount(sum(needed.values()))} per process: {parts}"
    yield f"              and about {amount(PROCESS)} for Python and torch"
    checkpoint = needed["optimizer"] + 4.0 * parameters
    seconds = seconds_to_write(checkpoint)
    yield f"  checkpoint  {amount(checkpoint)}, written here in {seconds:.1f} s"
    if config.corpus.tokenizer != "characters":
        yield f"  on disk     {amount(4 * config.tokens)} of token ids, if each token is read once"
    yield from time_of(study)
    try:
        plan = load_plan(study)
    except ConfigError as error:
        lacks = str(error).replace("\nerror: ", "\n  ")
        yield f"Power: fill in the plan first:\n  {lacks}"
        return
    if plan is None and (effect is None or spread is None):
        yield "Power: write a plan (./run_all.sh freeze --new PLAN --study NAME), or pass --effect"
        yield "(the difference that you expect) and --spread (its sd over seeds, or a pilot study)"
        return
    known = [h.measure for h in plan.bound.values()] if plan else [*MEASURES]
    if measure and measure not in known:
        raise UsageError(f"--measure: {suggest(measure, known)}")
    plan = plan or Plan.model_validate(proposed_plan(study, measure))
    chosen = {name: h for name, h in plan.bound.items() if measure in (None, h.measure)}
    yield from power(plan.model_copy(update={"hypotheses": chosen}), study, effect, spread)


def power(plan: Plan, study: Study, effect: float | None, spread: str | None) -> Iterator[str]:
    """Yield lines with the power of each hypothesis at a study's seeds, the seeds that the plan's
    power needs, and a warning for each exact test that cannot reach its level."""
    from lib.stats.power import expected_power, independent, out_of_reach, spread_of  # scipy

    n = len(study.seeds)
    yield from (f"warning: {text}" for text in out_of_reach(plan, n))
    source: Any = plan.spread if spread is None else spread
    with suppress(TypeError, ValueError):
        source = float(source)
    if isinstance(source, float) and not 0 < source < float("inf"):
        raise UsageError(
            f"--spread: {source} is not an sd; give a number above 0, or the name of a study"
        )
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
        yield "Power: unknown; write `spread` into the plan, or pass --spread to `estimate`"
        return
    table = expected_power(plan, sds, n, effect)
    yield f"Power of {n} seeds, and the seeds for a power of {plan.power:.0%}:"
    # pandas aligns an index on the left, which is easier to read for names.
    shown = table.set_index("hypothesis").rename_axis(index=None, columns="hypothesis")
    shown = shown.dropna(axis="columns", how="all")
    yield shown.to_string(float_format="{:.4g}".format)
    if "negligible" in shown:
        yield "negligible: the power to show that a difference is negligible if it is truly 0"
    few = table.loc[table["power"] < plan.power, "hypothesis"]
    if len(few):
        yield f"warning: {n} seeds are too few for {', '.join(few)}"
