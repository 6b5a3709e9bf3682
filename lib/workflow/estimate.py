"""What a study will cost, and what its seeds can show, before any of it runs.

The cost is that of training steps alone: the dev curve, the suite and the notebooks come on top.
The power of a plan's hypotheses takes the spread of the differences: that of a study that has run,
a pilot, a tuning study or a ladder, or a stated guess.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import ValidationError
from scipy import stats
from torch.nn import functional as F

from lib.analysis.hypotheses import claim, holds
from lib.analysis.power import MAX_SEEDS, expected_power, out_of_reach, spread_of
from lib.analysis.runs import tidy
from lib.analysis.stability import harmed, judge_runs, rule_of, with_stability
from lib.data.text import load_corpus
from lib.record.record import Record, recorded_studies
from lib.results import RunResult
from lib.run.cost import GPUS, disk, flops_per_token, memory
from lib.run.machine import (
    autocast,
    count_devices,
    describe,
    evaluation_windows,
    prepare,
    random_stream,
    recompute_activations,
)
from lib.run.model import GPT, LOGITS_AT_ONCE, count_parameters, optimizer_groups
from lib.study.metrics import MAIN
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.schema import Machine, ModelConfig, RunConfig
from lib.study.study import Study
from lib.study.yaml import ConfigError, suggest

UTILISATION = 0.35
"""Share of a GPU's peak that training is taken to reach. Large models reach 0.3 to 0.5 (Chowdhery
et al. 2022, table 3, report 0.21 to 0.46); small ones, which do not fill a GPU, a tenth of that."""
MARGIN = 1.5
"""How many times what a run holds by formula it is given."""
_CONTEXT = 1e9
"""Bytes of CUDA's context and its libraries' working memory."""
_PER_LOGIT = 32
"""Bytes that an evaluation holds at most for each of `LOGITS_AT_ONCE` logits: 31 were measured, of
fp32 copies and of sums in fp64."""
_STEPS = 3
_AFFORDABLE = {"cpu": 2e11, "cuda": 2e13}
"""Operations of a measured step: about a second of them."""
_UNITS = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class RunCost:
    """One run of an arm, in numbers."""

    config: RunConfig
    vocab_size: int
    parameters: int
    tokens: int
    flops: float


def run_costs(study: Study, vocabulary: int | None) -> list[RunCost]:
    """Count a run of every arm. Raises CorpusError for a vocabulary that cannot be known."""
    result, sizes = [], dict[str, int]()
    for arm in study.arms():
        config = arm.config
        learned = config.corpus.tokenizer.removeprefix("bpe-")
        size = vocabulary or (int(learned) if learned.isdecimal() else None)
        if not size and (corpus := config.corpus.model_dump_json()) not in sizes:
            sizes[corpus] = load_corpus(config.corpus).vocab_size  # of a hundred arms mostly one
        vocab_size = size or sizes[corpus]
        parameters = count_parameters(GPT(config.model, vocab_size, None))
        training = config.training
        tokens = training.iterations * training.batch_size * config.model.block_size
        flops = tokens * flops_per_token(config.model, vocab_size, parameters)
        result.append(RunCost(config, vocab_size, parameters, tokens, flops))
    return result


def prepare_here(config: RunConfig) -> Machine:
    """Prepare this machine for a run. Raises ConfigError for what it lacks, cores too."""
    threads, cores = config.machine.threads, count_devices("cpu")
    if threads > cores:
        raise ConfigError(
            f"machine.threads: {threads} is more than the {cores} cores of this machine; use auto "
            f"or at most {cores}"
        )
    return prepare(config)


def require_memory(config: RunConfig, vocab_size: int, machine: Machine) -> None:
    """Raise ConfigError for a run whose weights, optimizer and activations, by formula, do not fit
    in this machine: on a GPU each process needs them on its own, on a CPU all share."""
    model, sequences = config.model, machine.micro_batch_size
    parameters = count_parameters(GPT(model, vocab_size, None))
    sizes = memory(config, vocab_size, parameters, sequences, machine.device)
    if machine.device == "cuda":
        processes, available = 1, torch.cuda.get_device_properties(machine.device).total_memory
    else:
        processes = machine.processes
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if processes * sum(sizes.values()) > available:
        activations = sizes.pop("activations")
        fewer = "model.n_embd, model.n_layer or the vocabulary"
        if activations > sum(sizes.values()):
            fewer = "model.block_size or machine.micro_batch_size"
        raise ConfigError(
            f"model: with n_embd {model.n_embd}, n_layer {model.n_layer}, block_size "
            f"{model.block_size} and {vocab_size} symbols a run needs "
            f"{_bytes(processes * sum(sizes.values()))} of memory for {parameters:,} parameters "
            f"and their optimizer and {_bytes(processes * activations)} for activations of "
            f"{sequences} sequences, and this machine has {_bytes(available)}; reduce {fewer}"
        )


def peak_bytes(run: RunCost, device: str, processes: int) -> dict[str, float]:
    """Count the bytes that a run holds on each device in its largest moment, by what holds them: in
    a training step (see `memory`), or in a pass of evaluation, which holds in the place of
    activations what a block computes of each token, and the logits at once."""
    model, machine = run.config.model, run.config.machine
    sequences = machine.micro_batch_size or run.config.training.batch_size // processes
    sizes = memory(run.config, run.vocab_size, run.parameters, sequences, device)
    default_windows = evaluation_windows(device, model.block_size)
    tokens = (machine.evaluation_batch_size or default_windows) * model.block_size
    evaluation = tokens * 4.0 * (10 + 2 * model.mlp_ratio) * model.n_embd
    evaluation += _PER_LOGIT * min(tokens * run.vocab_size, LOGITS_AT_ONCE)
    if evaluation > sizes["activations"]:
        del sizes["activations"]
        sizes["evaluation"] = evaluation
    return sizes


def gpu_memory(studies: list[Study]) -> float:
    """Estimate the bytes of a GPU that the largest run of some studies needs: CUDA's context, and
    `MARGIN` times what it holds by formula. Raises CorpusError as `run_costs` does."""
    needed = [
        sum(peak_bytes(run, "cuda", run.config.machine.processes or 1).values())
        for study in studies
        for run in run_costs(study, None)
    ]
    return _CONTEXT + MARGIN * max(needed)


def reduce_to(run: RunCost, sequences: int, affordable: float) -> tuple[ModelConfig, int]:
    """Halve sequences, then layers, then context until a step is affordable; width and vocabulary,
    which decide how fast a machine is, stay."""
    model = run.config.model

    def operations() -> float:
        parameters = count_parameters(GPT(model, run.vocab_size, None))
        per_token = flops_per_token(model, run.vocab_size, parameters)
        return per_token * sequences * model.block_size

    while operations() > affordable:
        if sequences > 1:
            sequences //= 2
        elif model.n_layer > 3:
            model = model.model_copy(update={"n_layer": model.n_layer // 2})
        elif model.block_size > 128:
            model = model.model_copy(update={"block_size": model.block_size // 2})
        else:
            break
    return model, sequences


def measured_seconds(run: RunCost, machine: Machine, processes: int) -> tuple[float, str]:
    """Make a few training steps; return what a run would take at the fastest of them, and what was
    made. Backward passes shrink with the processes, updates of the weights do not."""
    device = machine.device
    config, sequences = reduce_to(run, machine.micro_batch_size, _AFFORDABLE[device])
    model = GPT(config, run.vocab_size, random_stream(0, "estimate")).to(device)
    if machine.activation_checkpointing:
        recompute_activations(model.transformer.h)
    optimizer = torch.optim.AdamW(optimizer_groups(model, 0.1), lr=1e-4, fused=True)
    shape = sequences, config.block_size
    x = torch.randint(run.vocab_size, shape, generator=random_stream(0, "ids")).to(device)
    passes, updates = [], []
    for _ in range(_STEPS):
        start = time.perf_counter()
        with autocast(run.config.training.precision, device):
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        model.transformer.wte.weight.sum().item()  # a number on the CPU ends the clock
        passes.append(time.perf_counter() - start)
        optimizer.step()
        model.transformer.wte.weight.sum().item()
        updates.append(time.perf_counter() - start - passes[-1])
        optimizer.zero_grad(set_to_none=True)
    parameters = count_parameters(model)
    operations = flops_per_token(config, run.vocab_size, parameters) * x.numel()
    update = min(updates) * run.parameters / parameters
    seconds = run.flops / operations * min(passes) / processes
    description = f"{_STEPS} steps of {sequences} × {config.block_size}, {config.n_layer} layers"
    return seconds + run.config.training.iterations * update, description


class StudyCost(NamedTuple):
    """What a study will cost."""

    text: str
    """One table: a run, the largest if they differ, and all."""
    hours: dict[str, float]
    """Of all runs, by what they are hours of."""


def estimate(study: Study, vocabulary: int | None = None, price: float | None = None) -> StudyCost:
    """Count what a study will cost, and measure it where this machine can run it."""
    arms, seeds = run_costs(study, vocabulary), len(study.seeds)
    largest = max(arms, key=lambda run: run.flops)
    config, training = largest.config, largest.config.training
    uncompiled = config.machine.model_copy(update={"compile": False})
    try:
        machine, fault = prepare_here(config.model_copy(update={"machine": uncompiled})), ""
        require_memory(config, largest.vocab_size, machine)
    except ConfigError as error:  # meant for another machine
        machine, fault = None, str(error)
    processes = machine.processes if machine else config.machine.processes or 1
    sequences = config.machine.micro_batch_size or training.batch_size // processes
    device = machine.device if machine else config.machine.device
    sizes = peak_bytes(largest, device, processes)
    flops = sum(run.flops for run in arms) * seeds
    tokens = sum(run.tokens for run in arms) * seeds
    disks = [disk(run.parameters, run.config.training.iterations) for run in arms]
    per_run = disk(largest.parameters, training.iterations)

    hours: dict[str, float] = {}
    rows: list[tuple[str, str, str]] = [
        ("parameters", f"{largest.parameters:,}", ""),
        ("tokens", f"{largest.tokens / 1e6:,.2f} M", f"{tokens / 1e6:,.2f} M"),
        ("FLOPs (6 N + 12 L H Q T per token)", f"{largest.flops:.2e}", f"{flops:.2e}"),
    ]
    title = f"memory of each device, {sequences} sequences at once"
    rows.append((title, _bytes(sum(sizes.values())), ""))
    rows += [(f"  {part}", _bytes(size), "") for part, size in sizes.items()]
    for part, size in per_run.items():
        rows.append((f"disk: {part}", _bytes(size), _bytes(sum(s[part] for s in disks) * seeds)))
    if machine:
        n_devices = min(processes, count_devices(machine.device))
        seconds, steps = measured_seconds(largest, machine, n_devices)
        title = f"{n_devices} × {describe(machine).device_name}, by {steps}"
        total = seconds * n_devices * flops / largest.flops
        rows.append((title, _duration(seconds), f"{total / 3600:,.2f} h"))
        if machine.device == "cpu":
            hours["core-hours here"] = total * machine.threads / 3600
        else:
            hours["GPU-hours here"] = total / 3600
    else:
        rows.append((f"not on this machine: {fault}", "", ""))
    for label, gpu in GPUS.items():
        precision = training.precision if training.precision in gpu.peaks else "fp16"
        peak = gpu.peaks[precision]
        name = f"{processes} × {label}, {precision}: {UTILISATION:.0%} of {peak / 1e12:.0f} TFLOP/s"
        if sum(sizes.values()) > gpu.memory:
            name += f"; needs a smaller micro-batch in {gpu.memory / 1e9:.0f} GB"
        seconds = flops / (peak * UTILISATION)
        hours[f"{label}-hours"] = total = seconds / 3600
        cost = "" if price is None else f", {total * price:,.2f}"
        seconds_of_run = largest.flops / (peak * UTILISATION * processes)
        rows.append((name, _duration(seconds_of_run), f"{total:,.2f} h{cost}"))
    count = f"{len(arms) * seeds} runs"
    cost = "" if price is None else f", cost at {price:g} an hour"
    heading = f"{study.name}: {len(arms)} arms × {seeds} seeds"
    header = (heading, "one run", f"{count} (device-hours{cost})")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(3)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}".rstrip()
        for row in [header, *rows]
    ]
    return StudyCost("\n".join(lines), hours)


def _duration(seconds: float) -> str:
    unit, size = next((u, s) for u, s in _UNITS if seconds >= s or s == 1)
    return f"{seconds / size:,.1f} {unit}"


def _bytes(number: float) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


def usual_hypotheses(study: Study) -> dict[str, dict[str, Any]]:
    """Return the hypothesis of each arm that it differs from its baseline in the main measure."""
    return {
        arm.id: {"test": [arm.id, arm.baseline, MAIN], "direction": "differs"}
        for arm in study.arms()
        if arm.baseline != arm.id
    }


def plan_of(study: Study) -> Plan | None:
    """Load the plan that a study names; where no hypothesis of it has a test, or there is no plan,
    make one of the usual hypotheses. None for a study of one arm."""
    plan = load_plan(study)
    if plan and plan.bound:
        return plan
    hypotheses = {name: {"says": name} | h for name, h in usual_hypotheses(study).items()}
    content: dict[str, Any] = {"title": study.name, "question": study.name}
    content |= {"confirmatory": [study.name], "hypotheses": hypotheses}
    level = {"alpha": plan.alpha, "power": plan.power} if plan else {}
    return Plan.model_validate(content | level) if hypotheses else None


def pilot_runs(name: str, plan: Plan) -> pd.DataFrame:
    """Read the tidy table of a recorded study, its stability judged by a plan; ConfigError where
    there is none."""
    recorded = recorded_studies()
    if name not in recorded:
        raise ConfigError(f"spread: {suggest(name, recorded)}; give a recorded study, or a number")
    try:
        record = Record(name)
        runs = tidy(map(RunResult.model_validate, record.runs))
    except ValidationError:
        raise ConfigError(f"spread: the record of {name} is of an older format") from None
    stability = judge_runs(runs, record.joined("trace"), rule_of(plan))
    return harmed(with_stability(runs, stability), plan)


def power_report(
    study: Study,
    plan: Plan,
    effect: float | None = None,
    spread: str | float | None = None,
    hours: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Write what the seeds of a study can show: exact tests that cannot reach their level, the
    power of each hypothesis, also where few seeds showed too small a spread, the seeds that the
    plan's power takes, and, where the spread is of a ladder, how many these are after each number
    of steps.

    `effect` is the true difference assumed (None: as `expected_power` says), `spread` the sd of
    differences or the name of a recorded study (None: the plan's), `hours` the price of all runs
    by device.
    """
    n, source = len(study.seeds), plan.spread if spread is None else spread
    yield from (f"warning: {text}" for text in out_of_reach(plan, n))
    if source is None:
        yield "Power is unknown: name a pilot study, or guess an sd of differences, as the spread."
        return
    runs, n_pilot, high = pd.DataFrame(), 0, 1.0
    if isinstance(source, str):
        runs = pilot_runs(source, plan)
        sds, basis = spread_of(plan, runs), f"the spread of {source}"
        if (n_pilot := runs["seed"].nunique()) > 1:
            low, high = _sd_ratios(n_pilot)
            basis += f" ({n_pilot} seeds: the true one is {low:.2g} to {high:.2g} times as large)"
    else:
        guess = source if isinstance(source, dict) else dict.fromkeys(plan.primary_measures, source)
        sds = {name: guess[m] for name, (*_, m) in plan.bound.items() if m in guess}
        basis = "the spread stated"
    for name, (h, *_, measure) in plan.bound.items():
        has_effect = h.equivalent_within or measure in plan.smallest_effect_of_interest
        if name not in sds:
            yield f"Power of {name} is unknown: {source} shows no spread of {measure}."
        elif effect is None and not has_effect:
            del sds[name]
            yield f"Power of {name} is unknown: state the effect, the difference that matters."
    if not sds:
        return
    table = expected_power(plan, sds, n, effect)
    per_seed = {name: total / n for name, total in (hours or {}).items()}
    yield f"What {n} seeds can show, with {basis}:"
    yield from _power_tables(table, plan, per_seed)
    largest_sds = {name: high * sd for name, sd in sds.items()}
    least_power = expected_power(plan, largest_sds, n, effect)["power"]
    for row, at_least in zip(table.to_dict("records"), least_power, strict=True):
        if row["power"] < plan.power:
            yield (
                f"warning: {row['hypothesis']}: {n} seeds have a power of {row['power']:.2f}, and "
                f"{plan.power:.2f} is wished for; {_which_seeds(row, plan)}"
            )
        elif at_least < plan.power:
            yield (
                f"warning: {row['hypothesis']}: the power is {at_least:.2f} if the spread is "
                f"{high:.2g} times as large, which {n_pilot} seeds cannot rule out; more seeds of "
                f"{source} would tell"
            )
    designs = designs_by_steps(plan, runs, effect)
    if len(designs) > 1:
        steps = np.mean([arm.config.training.iterations for arm in study.arms()])
        seeds_at_steps = designs["seeds"] * designs["steps"] / steps
        for name, price in per_seed.items():
            designs[name] = (seeds_at_steps * price).map("{:,.2f}".format)
        best = designs.loc[seeds_at_steps.idxmin()]
        yield f"After other numbers of steps, for a power of {plan.power:.0%}:"
        yield designs.to_string(index=False)
        yield (
            f"Cheapest: {best['steps']} steps with {best['seeds']} seeds, if the difference is as "
            "large after as many steps."
        )


def _sd_ratios(n: int) -> tuple[float, float]:
    """Return how many times the sd of `n` values the true one may be: its 95 % interval for normal
    differences."""
    low, high = ((n - 1) / stats.chi2.ppf([0.975, 0.025], n - 1)) ** 0.5
    return float(low), float(high)


def designs_by_steps(plan: Plan, runs: pd.DataFrame, effect: float | None) -> pd.DataFrame:
    """Say how many seeds the plan's power takes after each number of steps that the runs of a
    ladder were trained for: steps, the hypothesis that takes the most, its sd, and the seeds."""
    rows = []
    for steps, part in runs.groupby("training.iterations") if len(runs) else ():
        table = expected_power(plan, spread_of(plan, part), 2, effect)
        if len(table) and np.isfinite(table["seeds"]).all():
            hardest = table.to_dict("records")[table["seeds"].argmax()]
            row = {name: hardest[name] for name in ("hypothesis", "sd")}
            rows.append({"steps": steps} | row | {"seeds": int(hardest["seeds"])})
    return pd.DataFrame(rows)


def _which_seeds(row: Mapping[Any, Any], plan: Plan) -> str:
    """Say how many seeds have the plan's power to support a hypothesis, or why none."""
    h, difference = plan.hypotheses[row["hypothesis"]], row["difference"]
    if not holds(h, difference):
        return f"no number of them has: a true difference of {difference:+.4g} is not {claim(h)}"
    return f"{_seed_count(row['seeds'])} seeds have it"


def _seed_count(seeds: float) -> str:
    return f"{seeds:.0f}" if seeds <= MAX_SEEDS else f"more than {MAX_SEEDS:,}"


def _power_tables(table: pd.DataFrame, plan: Plan, per_seed: Mapping[str, float]) -> Iterator[str]:
    """Write the table of `expected_power`, then one of the hours that the seeds take, by device.
    Both fit a terminal of 80 columns; what a hypothesis compares stands in the plan."""
    needed, columns = table["seeds"], table[["hypothesis", "measure"]].copy()
    columns["true difference"] = table["difference"].map("{:+.4g}".format)
    columns["sd"] = table["sd"].map("{:.4g}".format)
    columns[f"power (n = {table['n'].iloc[0]})"] = table["power"].map("{:.2f}".format)
    if "used" in table:
        columns["seeds used"] = table["used"].map("{:.1f}".format)
    columns[f"seeds for {plan.power:.0%}"] = needed.map(_seed_count)
    yield columns.to_string(index=False)
    if per_seed:
        price = pd.DataFrame({"hypothesis": table["hypothesis"]})
        for name, hours in per_seed.items():
            price[name] = (needed * hours).map("{:,.2f}".format)
        yield f"What the seeds for {plan.power:.0%} take:"
        yield price.to_string(index=False)
