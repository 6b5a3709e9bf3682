"""What would stop a study later is found before anything trains; what it costs is said before it
runs, and what its seeds can show.

The cost is that of training steps alone: the dev curve, the suite and the notebooks come on top.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from lib.analysis.hypotheses import planned_measures
from lib.analysis.power import MAX_SEEDS, expected_power, out_of_reach, spread_of
from lib.analysis.runs import tidy
from lib.data.text import Corpus, load_corpus
from lib.record.archive import Record, require_recorded
from lib.results import RunResult, trained_with
from lib.run.lm_eval import INSTALL, has_harness, require_tasks
from lib.run.machine import PEAK_FLOPS, count_devices, describe, prepare, require_devices
from lib.run.model import GPT, count_parameters, flops_per_token
from lib.run.trainer import Trainer, begin
from lib.study.io import RUNS, read_json, relative, study_folder
from lib.study.metrics import MAIN
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.schema import CODE, Machine, RunConfig
from lib.study.study import Arm, Study, load_study
from lib.study.yaml import ConfigError, UserError
from lib.workflow.code_arms import resolve

UTILISATION = 0.35
"""Share of a GPU's peak that training is taken to reach. Large models reach 0.3 to 0.5 (Chowdhery
et al. 2022, table 3, report 0.21 to 0.46); small ones, which do not fill a GPU, a tenth of that."""
GPU_MEMORY = {"T4": 16e9, "A100": 80e9, "H100": 80e9, "H200": 141e9}
"""Bytes, of the GPUs that an estimate names."""
AFFORDABLE = 2e12
"""Operations of a step that is measured on a CPU: some ten seconds of a core."""
MAX_SHORT = {"training.iterations": 5, "training.warmup_iterations": 1}
"""What a study is shortened to, to be checked."""


def load_and_check(names: list[str], is_local: bool = True) -> list[Study]:
    """Load the studies named and check all that they name: plan, corpora, suite, and, if they are
    to run here, devices, memory and disk. Raises UserError with a line for each thing wrong."""
    faults: list[str] = []
    studies: list[Study] = []
    for name in dict.fromkeys(names):
        with _collecting(faults):
            studies.append(load_study(name))
    for study in studies:
        where = f"{study.name}.yaml: "
        with _collecting(faults, where):
            load_plan(study)
        with _collecting(faults):
            resolve(study)
        with _collecting(faults, where):
            _require_harness(study)
        for arm in {arm.config.model_dump_json(): arm for arm in study.arms()}.values():
            with _collecting(faults, where):
                corpus = load_corpus(arm.config.corpus)  # in sight, should it be downloaded
                corpus.require_length(arm.config.model.block_size)
                if is_local:
                    _require_machine(study, arm.config, corpus)
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))
    return studies


@contextmanager
def _collecting(faults: list[str], where: str = "") -> Iterator[None]:
    """Go on after a UserError, and keep what it says."""
    try:
        yield
    except UserError as error:
        faults.append(f"{where}{error}")


def _require_harness(study: Study) -> None:
    """Raise ConfigError for stock tasks that cannot be asked."""
    if study.evaluation.tasks and not has_harness():
        raise ConfigError(f"evaluation.tasks: need lm_eval; {INSTALL}, or remove them")
    if study.evaluation.tasks:
        plan = load_plan(study)
        planned = planned_measures(plan) if plan else []
        block_size = min(arm.config.model.block_size for arm in study.arms())
        tested = [name for name in study.stock_measures if name in planned]
        require_tasks(study.evaluation, block_size, tested)


def _require_machine(study: Study, config: RunConfig, corpus: Corpus) -> None:
    """Raise ConfigError for what this machine lacks for a run, and where runs of the study were
    made on another kind of device."""
    if config.machine.threads > (cores := count_devices("cpu")):
        raise ConfigError(
            f"machine.threads: {config.machine.threads} is more than the {cores} cores of this "
            f"machine; use auto or at most {cores}"
        )
    machine = prepare(config)
    require_devices(machine)
    needed = sum(memory(config, corpus.vocab_size, machine).values())
    if machine.device == "cuda":
        available = torch.cuda.get_device_properties(machine.device).total_memory
    else:  # all processes share it
        needed *= machine.processes
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    model = config.model
    if needed > available:
        raise ConfigError(
            f"model: with n_embd {model.n_embd}, n_layer {model.n_layer}, block_size "
            f"{model.block_size} and {corpus.vocab_size} symbols a run needs {needed / 1e9:,.2f} GB "
            f"of memory, and this machine has {available / 1e9:,.2f} GB; reduce one of them, or "
            "machine.micro_batch_size"
        )
    free = shutil.disk_usage(RUNS if RUNS.is_dir() else RUNS.parent).free
    checkpoints = 3 * 12 * count_parameters(GPT(model, corpus.vocab_size, None))
    if checkpoints > free:
        raise ConfigError(
            f"the checkpoints of a run take {checkpoints / 1e9:,.2f} GB, and the disk of "
            f"{relative(RUNS)}/ has {free / 1e9:,.2f} GB free; free some space"
        )
    for path in study_folder(study.name).glob("*/seed-*/result.json"):
        with suppress(LookupError, TypeError, UserError):
            if (device := trained_with(read_json(path)["provenance"])["device"]) != machine.device:
                raise ConfigError(
                    f"machine.device: runs of it were made on {device}, and this machine would "
                    f"continue on {machine.device}; runs of two devices are not compared: set "
                    f"machine.device: {device}, or delete {relative(study_folder(study.name))}"
                )


def memory(config: RunConfig, vocab_size: int, machine: Machine) -> dict[str, float]:
    """Count the bytes on each device at the peak of a step: weights, gradients, AdamW's two moments
    and activations, of which a block keeps for each token some 8 C + b (6 + 2 m) C bytes, with C
    features, an MLP m times as wide and b bytes per number, and the head (b + 12) V, with V
    symbols. It is within a tenth of what torch counts."""
    model, parameters = config.model, count_parameters(GPT(config.model, vocab_size, None))
    b = 4 if config.training.precision == "fp32" else 2
    block = (8 + b * (6 + 2 * model.mlp_ratio)) * model.n_embd
    kept = 4 * model.n_embd if machine.activation_checkpointing else block
    per_token = model.n_layer * kept + (b + 12) * vocab_size
    return {
        "weights": (4.0 if b == 4 else 6.0) * parameters,
        "gradients": 4.0 * parameters,
        "AdamW": 8.0 * parameters,
        "activations": float(machine.micro_batch_size * model.block_size * per_token),
    }


def gpus(studies: list[Study]) -> list[str]:
    """Name the GPUs that runs of some studies take turns on; none for studies of the CPU."""
    if all(prepare(study).device == "cpu" for study in studies):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def flops_of(config: RunConfig, vocab_size: int) -> float:
    """Count the operations of a run's training."""
    training, parameters = config.training, count_parameters(GPT(config.model, vocab_size, None))
    tokens = training.iterations * training.batch_size * config.model.block_size
    return tokens * flops_per_token(config.model, vocab_size, parameters)


def seconds_of(runs: list[tuple[Study, Arm, int]]) -> float:
    """Estimate how long some runs train here, one after the other, by a step of the largest."""
    flops = {}
    for study, arm, seed in runs:
        size = load_corpus(arm.config.corpus).vocab_size
        flops[study.name, arm.id, seed] = flops_of(arm.config, size)
    if not flops:
        return 0.0
    largest = max(runs, key=lambda run: flops[run[0].name, run[1].id, run[2]])
    per_flop = step_seconds(*largest) * largest[1].config.training.iterations / max(flops.values())
    return sum(flops.values()) * per_flop


def step_seconds(study: Study, arm: Arm, seed: int) -> float:
    """Time a training step of a run on this machine; infinite for one that takes too long here."""
    corpus = load_corpus(arm.config.corpus)
    per_step = flops_of(arm.config, corpus.vocab_size) / arm.config.training.iterations
    if prepare(arm.config).device == "cpu" and per_step > AFFORDABLE:
        return float("inf")
    provenance = begin(study, arm, seed, corpus)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(arm.config, corpus, provenance, Path(folder))
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            trainer.train_step()
            seconds.append(time.perf_counter() - start)
    return min(seconds)


def shortened(study: Study) -> Study:
    """Return a study of the first levels of each factor, two of the last that has more, with two
    seeds and five steps and under no plan: it goes through all that the study goes through."""
    content: dict[str, Any] = study.model_dump(exclude={"commits"})
    first = list(study.arms())[:2]
    levels = {f: list(dict.fromkeys(arm.levels[f] for arm in first)) for f in study.factors}
    for name, most in MAX_SHORT.items():
        section, _, field = name.partition(".")
        content[section][field] = min(content[section][field], most)
        if name in levels:
            levels[name] = [most + i for i in range(len(levels[name]))]
    kept = [e for e in study.exclude if all(level in levels[f] for f, level in e.items())]
    content |= {"factors": levels, "exclude": kept, "seeds": study.seeds[:2], "plan": None}
    content["include"] = [] if study.factors else content["include"][:1]
    return Study.model_validate(content)


def estimate(study: Study, effect: float | None, spread: float | str | None) -> Iterator[str]:
    """Say what a study takes (parameters, arithmetic, memory, time here and on GPUs), and the power
    of its plan's hypotheses: `effect` is the true difference assumed (None: as `expected_power`
    says), `spread` the sd of differences, or a recorded study that shows it (None: the plan's)."""
    arms, n = list(study.arms()), len(study.seeds)
    sizes = {arm.id: load_corpus(arm.config.corpus).vocab_size for arm in arms}
    flops = {arm.id: flops_of(arm.config, sizes[arm.id]) for arm in arms}
    largest = max(arms, key=lambda arm: flops[arm.id])
    config, machine = largest.config, prepare(largest.config)
    needed = memory(config, sizes[largest.id], machine)
    yield f"{study.name}: {len(arms)} arms × {n} seeds; of the largest run:"
    yield f"  parameters  {count_parameters(GPT(config.model, sizes[largest.id], None)):,}"
    yield f"  arithmetic  {flops[largest.id]:.2e} FLOP, of all runs {n * sum(flops.values()):.2e}"
    parts = ", ".join(f"{part} {size / 1e6:,.1f}" for part, size in needed.items())
    yield f"  memory      {sum(needed.values()) / 1e6:,.1f} MB: {parts}"
    seconds = step_seconds(study, largest, study.seeds[0])
    hours = seconds * config.training.iterations / flops[largest.id] * n * sum(flops.values()) / 3600
    name = describe(machine).device_name
    yield f"  {name}: {1000 * seconds:,.1f} ms a step; all runs {hours:,.2f} h, one at a time"
    for gpu, size in GPU_MEMORY.items():
        peaks = next(peaks for part, peaks in PEAK_FLOPS.items() if gpu in part)
        peak = peaks.get(config.training.precision, peaks["fp16"])
        hours = n * sum(flops.values()) / (peak * UTILISATION) / 3600
        small = "" if sum(needed.values()) < size else "; needs a smaller machine.micro_batch_size"
        yield f"  {gpu} at {UTILISATION:.0%} of {peak / 1e12:.0f} TFLOP/s: all runs {hours:,.2f} h{small}"
    if plan := _plan_of(study):
        yield from power(plan, n, effect, spread)


def _plan_of(study: Study) -> Plan | None:
    """Load the study's plan; where none has a hypothesis, that each arm differs from its baseline in
    the main measure. None for a study of one arm."""
    plan = load_plan(study)
    if plan and plan.bound:
        return plan
    hypotheses = {
        a.id: {"says": a.id, "test": [a.id, a.baseline, MAIN], "direction": "differs"}
        for a in study.arms()
        if a.baseline != a.id
    }
    content = {"title": study.name, "question": study.name, "confirmatory": [study.name]}
    return Plan.model_validate(content | {"hypotheses": hypotheses}) if hypotheses else None


def power(
    plan: Plan, n: int, effect: float | None, spread: float | str | None
) -> Iterator[str]:
    """Say what `n` seeds can show of each hypothesis: its power, and the seeds that the plan's power
    takes; and which exact tests cannot reach their level."""
    yield from (f"warning: {text}" for text in out_of_reach(plan, n))
    source: Any = plan.spread if spread is None else spread
    if source is None:
        yield "Power is unknown: name a pilot study, or guess an sd of differences, by --spread"
        return
    if isinstance(source, str):
        (name,) = require_recorded([source])
        runs = tidy(RunResult.model_validate(run) for run in Record(name).runs)
        sds = spread_of(plan, runs)
    else:
        guess = source if isinstance(source, dict) else dict.fromkeys(plan.primary_measures, source)
        sds = {name: guess[m] for name, (*_, m) in plan.bound.items() if m in guess}
    if not sds:
        yield f"Power is unknown: {source} shows no spread of what the hypotheses are about"
        return
    table = expected_power(plan, sds, n, effect)
    short = table["power"] < plan.power
    table["seeds"] = table["seeds"].map(lambda k: f"{k:.0f}" if k <= MAX_SEEDS else f"> {MAX_SEEDS}")
    columns = ["hypothesis", "measure", "difference", "sd", "power", "seeds"]
    yield f"Power of {n} seeds, and the seeds for a power of {plan.power:.0%}:"
    yield table[columns].to_string(index=False, float_format="{:.4g}".format)
    if short.any():
        yield f"warning: {', '.join(table['hypothesis'][short])}: {n} seeds are too few"
