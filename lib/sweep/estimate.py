"""What a study costs (parameters, arithmetic, memory, time here), and the power of its seeds."""

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch

from lib.config.claim import load_plan
from lib.config.contrasts import arm_weights
from lib.config.environment import cores, total_memory
from lib.config.errors import ConfigError, UsageError, suggest
from lib.config.freeze import proposed_plan
from lib.config.metrics import MEASURES
from lib.config.plan import Plan
from lib.config.schema import CorpusConfig, RunConfig
from lib.config.study import Arm, Study
from lib.data.suite import prepare_suite
from lib.data.text import Corpus, CorpusError, load_corpus
from lib.record.archive import Record, require_recorded
from lib.results import RunResult
from lib.stats.runs import tidy
from lib.sweep.execute import train_apart
from lib.train.machine import describe, prepare
from lib.train.model import GPT, count_parameters, flops_per_token
from lib.train.trainer import initial_hashes

AFFORDABLE = 2e12
"""Operations of a step that is measured on a CPU: some ten seconds of a core."""
CONTEXT = 1e9
"""Bytes of a GPU that each process takes for CUDA itself."""
PROCESS = 6e8
"""Bytes of a run's processes beside what its model takes, and of the sweep's own."""
SPEED = {"cpu": 5e10, "cuda": 5e12}
"""Operations a second that a small model reaches, on a core and on a GPU."""
_SHORT = {"iterations": 5, "warmup_iterations": 1}
"""What a study's training is shortened to, to be checked."""


@cache
def corpus_of(config: CorpusConfig) -> Corpus:
    """Load a corpus, once. Raises CorpusError."""
    return load_corpus(config)


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
    corpus = _corpus_here(config.corpus)
    return initial_hashes(config, corpus, seed, steps) if corpus else None


@cache
def _corpus_here(corpus: CorpusConfig) -> Corpus | None:
    """Load a corpus; None if it cannot be had, which is asked of the internet once."""
    with suppress(CorpusError):
        return corpus_of(corpus)
    return None


class Size(NamedTuple):
    """How large a run is."""

    symbols: int
    parameters: int
    flops: float
    """Operations of its training."""


def model_of(config: RunConfig) -> GPT:
    """Return a run's model, without weights."""
    return GPT(config.model, corpus_of(config.corpus).vocab_size, None)


def size_of(config: RunConfig) -> Size:
    """Count symbols, parameters and operations of a run. Raises CorpusError."""
    symbols, parameters = corpus_of(config.corpus).vocab_size, count_parameters(model_of(config))
    each = flops_per_token(config.model, symbols, parameters)
    return Size(symbols, parameters, config.tokens * each)


def memory(config: RunConfig, size: Size) -> dict[str, float]:
    """Count the bytes on each device at the peak of a step: weights, gradients, AdamW's two moments
    or Muon's one of the matrices in blocks, and activations. Of these a block keeps some
    8 C + b (6 + 2 m) C bytes for each token, with C features, an MLP m times as wide and b bytes
    per number, and the head (b + 12) V, with V symbols: within a tenth of what torch counts."""
    model, machine = config.model, prepare(config)
    b = 4 if config.training.precision == "fp32" else 2
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
    if all(prepare(study).device == "cpu" for study in studies):
        return []
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


def seconds_of(runs: Collection[tuple[Study, Arm, int]]) -> float:
    """Return how many seconds some runs train one after another, roughly, by their arithmetic."""
    arms = {(study.name, arm.id): arm.config for study, arm, _ in runs}
    seconds = {k: size_of(c).flops / SPEED[prepare(c).device] for k, c in arms.items()}
    return sum(seconds[study.name, arm.id] for study, arm, _ in runs)


def trial(arm: Arm) -> tuple[float, float, float]:
    """Train an arm for a few steps, as a sweep would, in a folder of its own; return the seconds of
    a step, of a point of the dev curve, and of all else in its notebook. Raises UserError if it
    fails."""
    fields: Any = arm.config.model_dump()
    fields["evaluation"]["interval"] = 1
    study = shortened(Study.model_validate({"name": "trial", "seeds": [0], **fields}))
    start, steps = time.perf_counter(), study.training.iterations
    parts = train_apart(study, study.arms()[0].id, 0)["seconds"]
    rest = time.perf_counter() - start - parts["training"] - parts["snapshots"]
    return parts["training"] / steps, parts["snapshots"] / (steps + 1), rest


def time_of(study: Study) -> Iterator[str]:
    """Yield lines that say how long a study takes here, by a trial of its largest arm. There is no
    trial if one step would take a CPU long."""
    arms = list(study.arms())
    work = {arm.id: size_of(arm.config).flops / arm.config.training.iterations for arm in arms}
    largest = max(arms, key=lambda arm: work[arm.id])
    if prepare(study).device == "cpu" and work[largest.id] > AFFORDABLE:
        yield "  time        not tried: a step of it would take a core more than ten seconds"
        return
    step, point, rest = trial(largest)
    runs = []
    for arm in arms:
        steps = arm.config.training.iterations
        seconds = step * steps + point * (steps // study.evaluation.interval + 1)
        runs.append(rest + work[arm.id] / work[largest.id] * seconds)
    jobs = len(gpus([study], None)) or side_by_side([study])
    total = max(max(runs), len(study.seeds) * sum(runs) / jobs)
    here = describe(prepare(study)).device_name
    yield f"  time        on {here}: {1000 * step:,.1f} ms a step, {clock(max(runs))} a run,"
    yield f"              {clock(total)} in all, {jobs} side by side; the analysis comes on top"


def clock(seconds: float) -> str:
    """Write a time: seconds below a minute, else h:mm:ss."""
    return f"{seconds:.0f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


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
    largest = max(arms, key=lambda arm: size_of(arm.config).flops)
    config, size = largest.config, size_of(largest.config)
    total = n * sum(size_of(arm.config).flops for arm in arms)
    yield f"{study.name}: {len(arms)} arms × {n} seeds; of the largest run:"
    yield f"  parameters  {size.parameters:,}"
    yield f"  arithmetic  {size.flops:.2e} FLOP, of all runs {total:.2e}"
    needed = memory(config, size)
    megabytes = {part: number / 1e6 for part, number in needed.items()}
    parts = ", ".join(f"{part} {number:,.1f}" for part, number in megabytes.items())
    yield f"  memory      {sum(megabytes.values()):,.1f} MB: {parts}"
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
                sds[name] = sd * independent(h, arm_weights(h.pairs, variants, levels))
    if not sds:
        yield "Power is unknown: name a pilot study, or guess an sd of differences, by --spread"
        return
    table = expected_power(plan, sds, n, effect)
    yield f"Power of {n} seeds, and the seeds for a power of {plan.power:.0%}:"
    columns = ["hypothesis", "measure", "difference", "sd", "power", "seeds"]
    yield table[columns].to_string(index=False, float_format="{:.4g}".format)
    few = table.loc[table["power"] < plan.power, "hypothesis"]
    if len(few):
        yield f"warning: {n} seeds are too few for {', '.join(few)}"
