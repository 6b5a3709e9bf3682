"""A study's runs as one table: read them, and refuse by name what may not be compared."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lib.config.claim import load_plan, require_stamps
from lib.config.errors import UserError
from lib.config.files import nan_to_none, read_json
from lib.config.metrics import MAIN, MEASURES, PER_TOKEN
from lib.config.paths import run_folder
from lib.config.plan import Plan
from lib.config.schema import CODE, OF_WEIGHTS, ModelConfig, recorded_config, vocabulary
from lib.config.study import Study
from lib.results import RAW, RunResult, has_stock, read_raw_file


class ResultError(UserError):
    """Runs that cannot be analysed together; the message names the offender and the remedy."""


def collect(study: Study) -> list[RunResult]:
    """Read all runs of a study from `runs/`, in the order of the design.

    Raises ResultError naming every missing run, or the first that does not fit the others, and
    UserError for a run made under another plan.
    """
    files = {
        f"{arm.id} seed {seed}": run_folder(study.name, arm.id, seed) / "result.json"
        for arm, seed in product(study.arms(), study.seeds)
    }
    if missing := [run for run, path in files.items() if not path.is_file()]:
        raise ResultError(
            f"study '{study.name}' is incomplete: no result of {'; '.join(missing)}. "
            f"Run ./run_all.sh params/{study.name}.yaml, which runs only what is not done"
        )
    results = [RunResult.model_validate(read_json(path)) for path in files.values()]
    check(study, results)
    return results


_LAYER = ("embedding_norm", "embedding_rms", "branch_multiplier")
_OUTSIDE_THE_LAYER = [f"model.{field}" for field in ModelConfig.model_fields if field not in _LAYER]
_BATCH = ("training.batch_size", "model.block_size")
_TOKENS = ("training.iterations", *_BATCH)
_VOCABULARY = ("corpus.source", "corpus.tokenizer")
_CORPUS = (*_VOCABULARY, "corpus.fraction")
_RATES = ("training.optimizer", "training.learning_rate", "training.muon_learning_rate_ratio")
_CODE = "code"
_MEASURED_ON = "settings of the machine that measured it"
MOST_NAMED = 8
"""Runs that a message names; of more it gives the number."""
BUDGET = (*_TOKENS, *_CORPUS, "training.precision")
"""Parameters that decide how much of what an arm is trained on, and how precisely."""


def check(study: Study, runs: list[RunResult]) -> None:
    """Raise ResultError unless the runs belong to this study and may be compared: equal study
    and corpus hash; one code for each level of `code`; paired by seed, and there rounded alike; and
    wherever the parameters ask for the same budget, the same tokens, steps and batches. UserError
    for runs of another plan."""
    for run in runs:
        _require_own_parameters(study, run)
    completed = [run for run in runs if run.status == "completed"]
    _require_equal(_CODE, runs, CODE, value=code_of)
    _require_equal("settings of the machine", runs, "seed", value=machine_settings)
    settings = partial(machine_settings, also=OF_WEIGHTS)  # some of which follow from the batch
    _require_equal("settings of the machine", runs, "seed", *_BATCH, value=settings)
    _require_equal(_MEASURED_ON, completed, "seed", value=measuring_settings)
    _require_equal("corpus_sha256", runs, "corpus.source")
    _require_equal("tokenizer_sha256", runs, *_VOCABULARY, value=_tokenizer)
    _require_equal("tasks_hash", runs)
    _require_equal("suite_hash", completed, "model.block_size", *_VOCABULARY)
    _require_equal("measures", completed, value=lambda run: ", ".join(sorted(run.measures)))
    # A text's vocabulary decides the shape of the weights.
    outside = ("seed", *_VOCABULARY, *_OUTSIDE_THE_LAYER)
    _require_equal("initial_weights", runs, CODE, *outside)
    # Between commits only as far as they have the same parameters.
    _require_equal("initial_weights", runs, "parameters", *outside)
    _require_equal("steps", completed, "training.iterations")
    _require_equal("tokens", completed, *_TOKENS)
    _require_equal("batches", completed, "seed", *_TOKENS, *_CORPUS)
    plans = {f"{run.arm} seed {run.seed}": run.origin["plan"] for run in runs}
    require_stamps(load_plan(study), plans)


def _require_own_parameters(study: Study, run: RunResult) -> None:
    expected = study.arm(run.arm).config.model_dump()
    found = recorded_config(run.config).model_dump(exclude={"machine"})
    differing = [
        f"{section}.{field} is {value!r}, the study says {expected[section][field]!r}"
        for section, fields in found.items()
        for field, value in fields.items()
        if expected[section][field] != value
    ]
    if differing or run.study_hash != study.hash:
        reason = "; ".join(differing) or f"its study hash is {run.study_hash[:12]}"
        raise _offence([run], f"was made with other parameters: {reason}")


def _require_equal(
    field: str, runs: list[RunResult], *within: str, value: Callable[[RunResult], Any] | None = None
) -> None:
    """Refuse all runs whose value (their field, unless said otherwise) is not the usual one among
    the runs with the same `within`: dotted parameters, or the seed. Of a value with several parts
    the message says those that differ."""
    value = value or attrgetter(field)
    groups = defaultdict(list)
    for run in runs:
        groups[json.dumps([_parameter(run, name) for name in within])].append(run)
    odd = []
    said: list[tuple[str, str]] = []
    for members in groups.values():
        usual, _ = Counter(map(value, members)).most_common(1)[0]
        for run in members:
            if (own := value(run)) != usual:
                odd.append(run)
                said.append((_without(own, usual), _without(usual, own)))
    if odd:
        found, expected = (" or ".join(dict.fromkeys(texts)) for texts in zip(*said, strict=True))
        has = "has" if len(odd) == 1 else "have"
        raise _offence(odd, f"{has} {field} {found} and the others have {expected}", field)


def _without(value: Any, other: Any) -> str:
    """Write a value for a message; of one with several parts those that another lacks."""
    if isinstance(value, tuple):
        return ", ".join(part for part in value if part not in other) or "none"
    return repr(value)


def _parameter(run: RunResult, name: str) -> Any:
    """Return a dotted parameter of a run, its level of `code`, or a field of its result."""
    section, _, field = name.partition(".")
    if field:
        return run.config[section].get(field)
    return run.levels.get(CODE) if name == CODE else getattr(run, name)


def _offence(runs: list[RunResult], reason: str, field: str = "") -> ResultError:
    """Return an error that names the runs, what is wrong with them, and what to do about it."""
    first, *others = runs
    commit = first.origin.get("code")
    names = [f"{run.arm} seed {run.seed}" for run in runs[:MOST_NAMED]]
    if len(runs) > MOST_NAMED:
        names.append(f"{len(runs) - MOST_NAMED} more")
    place = f"runs/{first.study}/{first.arm}/seed-{first.seed}"
    if others:
        place = f"their folders in runs/{first.study}/"
    remedy = f"To train it anew, delete {place} and rerun ./run_all.sh"
    if field == _MEASURED_ON:
        remedy = f"To measure it anew, delete result.json in {place} and rerun ./run_all.sh"
    elif commit and field != _CODE:
        remedy = f"If its code, commit {commit[:12]}, makes it so, the arms are no pair"
    elif field == _CODE and not commit:
        remedy = f"./run_all.sh {first.study} makes again what is not by today's code"
    return ResultError(f"run{'s' * bool(others)} {'; '.join(names)} {reason}. {remedy}")


def _tokenizer(run: RunResult) -> Any:
    """Return the hash of what wrote a run's text as ids: a file may have changed meanwhile."""
    return run.origin.get("tokenizer_sha256")


def code_of(run: RunResult) -> tuple[str, str]:
    """Return the code that trained a run and the code that measured it, by their keys."""
    trained = run.provenance["trained"]["training_digest"]
    measured = run.provenance["executed"]["measuring_digest"]
    return f"trained by {trained[:12]}", f"measured by {measured[:12]}"


def machine_settings(run: RunResult, also: Collection[str] = ()) -> tuple[str, ...]:
    """Return how training was rounded: by which packages, device and chip, and `also` by which
    settings; where one changed on the way, up to which step each was used."""
    parts = [(s.end, s.machine.model_dump(), s.packages) for s in run.stretches]
    ways = {
        # lm_eval trains nothing, and may be installed between training and measuring.
        end: rounding(machine, {**packages, "lm_eval": None})
        | {name: machine.get(name) for name in also}
        for end, machine, packages in parts or [(run.steps, run.origin, run.origin["packages"])]
    }
    settings = []
    for name in next(iter(ways.values())):
        until = {f"{name} {way.get(name)}": f" up to step {end}" for end, way in ways.items()}
        changed = len(until) > 1
        settings.append(", then ".join(used + end * changed for used, end in until.items()))
    return tuple(settings)


def measuring_settings(run: RunResult) -> tuple[str, ...]:
    """Return how measuring was rounded: by which packages, device and chip."""
    executed = run.provenance["executed"]
    packages = dict(executed["packages"])
    if run.suite_hash is None and not run.config["evaluation"].get("tasks"):
        packages.pop("lm_eval", None)  # it was not asked
    ways = rounding(executed["machine"], packages)
    return tuple(f"{name} {value}" for name, value in ways.items())


def rounding(machine: Mapping[str, Any], packages: Mapping[str, str | None]) -> dict[str, Any]:
    """Return packages, device and chip: a GPU by its model, a CPU by its instructions."""
    chip = "device_name" if machine["device"] == "cuda" else "vector_level"
    return {**packages, "device": machine["device"], chip: machine.get(chip)}


def tidy(results: Iterable[RunResult]) -> pd.DataFrame:
    """Return one row per run: arm, its baseline, variant (level of the first factor) and setting
    (the other factors), seed, status, `levels` (field → level), vocabulary, what decides budget and
    rate, each factor's level, then every measure (NaN if diverged)."""
    names = {"arm", "baseline", "levels", "variant", "setting", "seed", "status", "diverged_at"}
    rows = [
        run.model_dump(include=names)
        | {"vocabulary": vocabulary(run.config["corpus"])}
        | {name: _parameter(run, name) for name in (*BUDGET, *_RATES)}
        | run.levels
        | dict.fromkeys(MEASURES, np.nan)
        | run.measures
        | run.throughput
        | run.references
        | {"final_weights": run.final_weights}
        for run in results
    ]
    return pd.DataFrame(rows)


def of_arms(runs: pd.DataFrame, column: str) -> dict[str, Any]:
    """Map every arm to what a column of the tidy table says of it."""
    return dict(zip(runs["arm"], runs[column], strict=True))


def own_baselines(runs: pd.DataFrame) -> dict[str, str]:
    """Map every arm that is not its own baseline to it, from the tidy table."""
    return {arm: own for arm, own in of_arms(runs, "baseline").items() if arm != own}


def sides(runs: pd.DataFrame, measure: str, weights: Mapping[str, float]) -> pd.DataFrame:
    """Return both sides of a difference in a measure, by seed: what its arms of negative weight sum
    to (`baseline`), and those of positive (`arm`); NaN where a run has none."""
    weighed = pd.Series(weights)
    values = runs.pivot(index="seed", columns="arm", values=measure)[weighed.index].astype(float)
    below, above = -weighed.clip(upper=0), weighed.clip(lower=0)
    return pd.DataFrame({"baseline": values @ below, "arm": values @ above})


def seed_differences(runs: pd.DataFrame, measure: str, arm: str, baseline: str) -> pd.Series:
    """Return arm - baseline in a measure, by seed; NaN where either run has none."""
    both = sides(runs, measure, {arm: 1.0, baseline: -1.0})
    return both["arm"] - both["baseline"]


def budget_factors(runs: pd.DataFrame, weights: Mapping[str, float]) -> str:
    """Return the factors that give the two sides of a difference (see `sides`) different budgets,
    from the tidy table. Without one, `check` has made sure that their budgets are equal."""
    of = runs.drop_duplicates("arm").set_index("arm").loc[list(weights)]

    def differs(values: pd.Series) -> bool:
        return bool((pd.Series(weights).groupby(values).sum().abs() > 1e-9).any())

    tokens = of[list(_TOKENS)].prod(axis=1)
    names = BUDGET if differs(tokens) else BUDGET[len(_TOKENS) :]
    return ", ".join(name for name in names if differs(of[name]))


def is_comparable(runs: pd.DataFrame, measure: str, arms: Iterable[str]) -> bool:
    """Return whether arms may be compared in a measure: per token, only those of one vocabulary."""
    if measure not in PER_TOKEN:
        return True
    compared = runs[runs["arm"].isin([*arms])]
    return bool(compared["vocabulary"].nunique() == 1)


def main_measures(runs: pd.DataFrame, plan: Plan | None) -> list[str]:
    """Return what is shown first: the plan's primary measures; else the loss with its perplexity,
    or bits per character where arms differ in their vocabulary."""
    if plan:
        return available_measures(plan.primary_measures, runs)
    per_token = runs["vocabulary"].nunique() == 1
    return available_measures(MAIN if per_token else ["bits_per_character"], runs)


def planned_measures(runs: pd.DataFrame, plan: Plan | None) -> list[str]:
    """Return the measures that a plan asks for; without one, what is shown first."""
    measures = main_measures(runs, plan)
    if plan:
        tested = [h.measure for h in plan.bound.values()]
        families = chain.from_iterable(family.measures for family in plan.families.values())
        measures += [*plan.secondary, *tested, *families]
    return available_measures(measures, runs)


def other_settings(study: Study, factor: str) -> dict[str, str]:
    """Return for each arm the levels of all factors but the compared one and `factor`; "" when
    there are none."""
    others = [name for name in list(study.factors)[1:] if name != factor]
    levels = {arm.id: {name: arm.levels[name] for name in others} for arm in study.arms()}
    return {arm: study.arm_id(of) if of else "" for arm, of in levels.items()}


def available_measures(measures: Iterable[str], runs: pd.DataFrame) -> list[str]:
    """Keep the measures that at least one run has, each once."""
    return [name for name in dict.fromkeys(measures) if name in runs and runs[name].notna().any()]


def read_table(results: Iterable[RunResult], name: str) -> pd.DataFrame:
    """Join one of the tables that results hold, with arm, variant, setting and seed; a run that
    diverged has none."""
    return _joined(
        (run.arm, run.seed, run.variant, run.setting, pd.DataFrame(run.tables[name]))
        for run in results
        if name in run.tables
    )


def read_parquet(
    study: Study, name: str, folder_of: Callable[[str, int], Path] | None = None
) -> pd.DataFrame:
    """Join one of the raw files (see `lib.results`) of all runs, with arm, variant, setting and
    seed; empty where no run has answers to stock tasks. The folder of an arm and seed is that in
    `runs/`, unless said otherwise."""
    parts = []
    for arm, seed in product(study.arms(), study.seeds):
        folder = folder_of(arm.id, seed) if folder_of else run_folder(study.name, arm.id, seed)
        if name in RAW or has_stock(folder):
            parts.append((arm.id, seed, arm.variant, arm.setting, read_raw_file(folder, name)))
    return _joined(parts)


def _joined(parts: Iterable[tuple[str, int, str, str, pd.DataFrame]]) -> pd.DataFrame:
    """Join tables of runs, which arm, seed, variant and setting name."""
    tables = {(arm, seed, variant, setting): t for arm, seed, variant, setting, t in parts}
    if not tables:
        return pd.DataFrame()
    names = ["arm", "seed", "variant", "setting"]
    return pd.concat(tables, names=names).reset_index(names).reset_index(drop=True)


def melt_columns(
    curve: pd.DataFrame, prefix: str, name: str, end: Literal["min", "max"] = "max"
) -> pd.DataFrame:
    """Gather the columns that begin with `prefix` into rows, from the last step of every run's
    curve ("min": the first): `name` is the rest of the column's name, `value` its number."""
    chosen = curve[curve["step"] == curve.groupby(["arm", "seed"])["step"].transform(end)]
    columns = list(curve.filter(regex=f"^{prefix}"))
    rows = chosen.melt(["arm", "variant", "setting", "seed"], columns, var_name=name)
    rows[name] = rows[name].str.removeprefix(prefix)
    return rows.dropna(subset="value")


def study_results(study: Study, results: list[RunResult]) -> dict[str, Any]:
    """Return a whole study as plain values: parameters, every run, and of the completed runs of
    each arm the number, mean and sd (n - 1) of every measure."""
    summary = {}
    for arm in study.arms():
        runs = [run for run in results if run.arm == arm.id and run.status == "completed"]
        values = pd.DataFrame({**run.measures, **run.throughput} for run in runs)
        values = values.reindex(columns=[*MEASURES, *study.stock_measures]).astype(float)
        summary[arm.id] = {
            name: {"n": int(of.count()), "mean": of.mean(), "sd": of.std()}
            for name, of in values.items()
        }
    return {
        "study": study.model_dump(),
        "study_hash": study.hash,
        "runs": [run.model_dump(mode="json") for run in results],
        "summary": nan_to_none(summary),
    }
