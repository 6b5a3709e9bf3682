"""Read a study's runs, check that they may be compared, and make one table of them."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lib.config.claim import load_plan, require_same_plan
from lib.config.errors import UserError
from lib.config.files import nan_to_none, read_json
from lib.config.metrics import MAIN, MEASURES, PER_TOKEN
from lib.config.paths import run_folder
from lib.config.plan import Plan
from lib.config.schema import CODE, OF_WEIGHTS, ModelConfig, recorded_config, vocabulary
from lib.config.study import Study
from lib.results import RAW, RunResult, has_stock, read_raw_file


class ResultError(UserError):
    """Runs that cannot be analysed together. The message names them, the fault and the remedy."""


def collect(study: Study) -> list[RunResult]:
    """Read all runs of a study from `runs/`, arm by arm in the study's order, and check them.

    Raises ResultError if runs are missing; the message names each. Also raises what `check` raises.
    """
    files = {
        f"{arm.id} seed {seed}": run_folder(study.name, arm.id, seed) / "result.json"
        for arm, seed in product(study.arms(), study.seeds)
    }
    if missing := [run for run, path in files.items() if not path.is_file()]:
        raise ResultError(
            f"study '{study.name}' is incomplete: no result of {'; '.join(missing)}. "
            f"Run ./run_all.sh params/{study.name}.yaml: it makes only the missing runs"
        )
    results = [RunResult.model_validate(read_json(path)) for path in files.values()]
    check(study, results)
    return results


_NO_WEIGHTS = (
    "embedding_norm",
    "embedding_rms",
    "branch_multiplier",
    "embedding_roll",
    "backout",
)
"""Fields of the model that do not change `initial_weights`. That hash leaves out the weights of the
embedding normalization."""
_OTHER_MODEL_FIELDS = [
    f"model.{field}" for field in ModelConfig.model_fields if field not in _NO_WEIGHTS
]
_BATCH = ("training.batch_size", "model.block_size")
_TOKENS = ("training.iterations", *_BATCH)
"""Their product is the number of tokens that a run trains on."""
_VOCABULARY = ("corpus.source", "corpus.tokenizer")
_CORPUS = (*_VOCABULARY, "corpus.fraction")
_LEARNING_RATE = (
    "training.optimizer",
    "training.learning_rate",
    "training.muon_learning_rate_ratio",
)
_NOT_TOKENS = (*_CORPUS, "training.precision")
BUDGET = (*_TOKENS, *_NOT_TOKENS)
"""Fields that decide an arm's budget: the number of tokens, their text, and the precision."""
_MEASURING_SETTINGS = "settings of the machine that measured it"
MOST_NAMED = 8
"""A message names at most this many runs, and counts the others."""


def check(study: Study, runs: list[RunResult]) -> None:
    """Raise ResultError unless the runs belong to this study and may be compared.

    All runs must have the study's hash. Runs on the same text must agree on the hash of the text.
    All runs with the same level of `code` must have been made by the same code. Runs of one seed
    must have the same initial weights and batches, and machines that round in the same way. Arms
    with the same budget in their parameters must have had the same steps, tokens and batches.

    Raises UserError for runs that were made under another plan.
    """
    for run in runs:
        _require_own_parameters(study, run)
    completed = [run for run in runs if run.status == "completed"]
    _require_equal(CODE, runs, CODE, value=code_of)
    _require_equal("settings of the machine", runs, "seed", value=machine_settings)
    # Some settings, such as the micro-batch size, may change with the size of a batch.
    all_settings = partial(machine_settings, also=OF_WEIGHTS)
    _require_equal("settings of the machine", runs, "seed", *_BATCH, value=all_settings)
    _require_equal(_MEASURING_SETTINGS, completed, "seed", value=measuring_settings)
    _require_equal("corpus_sha256", runs, "corpus.source")
    _require_equal("tokenizer_sha256", runs, *_VOCABULARY, value=_tokenizer_sha256)
    _require_equal("tasks_hash", runs)
    _require_equal("suite_hash", completed, "model.block_size", *_VOCABULARY)
    _require_equal("measures", completed, value=lambda run: ", ".join(sorted(run.measures)))
    # The vocabulary decides the shape of the embedding, and so the weights.
    same_weights = ("seed", *_VOCABULARY, *_OTHER_MODEL_FIELDS)
    _require_equal("initial_weights", runs, CODE, *same_weights)
    # Across commits, weights can be equal only if the models have the same number of parameters.
    _require_equal("initial_weights", runs, "parameters", *same_weights)
    _require_equal("steps", completed, "training.iterations")
    _require_equal("tokens", completed, *_TOKENS)
    _require_equal("batches", completed, "seed", *_TOKENS, *_CORPUS)
    plans = {f"{run.arm} seed {run.seed}": run.origin["plan"] for run in runs}
    require_same_plan(load_plan(study), plans)


def _require_own_parameters(study: Study, run: RunResult) -> None:
    """Raise ResultError if a run's parameters differ from the parameters of its arm in the
    study."""
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
        raise _error_about([run], f"was made with other parameters: {reason}")


def _require_equal(
    field: str,
    runs: list[RunResult],
    *same: str,
    value: Callable[[RunResult], Any] | None = None,
) -> None:
    """Raise ResultError unless runs that agree in all of `same` also agree in `field`.

    `same` lists dotted names of parameters, or fields of the result. `value` reads the value to
    compare from a run; without it, `field` is a field of the result. Within a group of runs, the
    most frequent value counts as right, and the error names the runs with another value.
    """
    value_of = value or attrgetter(field)
    groups = defaultdict(list)
    for run in runs:
        groups[json.dumps([_parameter(run, name) for name in same])].append(run)
    odd_runs = []
    odd_values: dict[str, None] = {}  # used as a set that keeps its order
    usual_values: dict[str, None] = {}
    for group in groups.values():
        usual, _ = Counter(map(value_of, group)).most_common(1)[0]
        for run in group:
            if (own := value_of(run)) != usual:
                odd_runs.append(run)
                odd_values[_write_value(own, usual)] = None
                usual_values[_write_value(usual, own)] = None
    if odd_runs:
        has = "has" if len(odd_runs) == 1 else "have"
        reason = (
            f"{has} {field} {' or '.join(odd_values)} "
            f"and the others have {' or '.join(usual_values)}"
        )
        raise _error_about(odd_runs, reason, field)


def _write_value(value: Any, other: Any) -> str:
    """Write a value for a message. If it is a tuple, write only the parts that `other` lacks."""
    if isinstance(value, tuple):
        return ", ".join(part for part in value if part not in other) or "none"
    return repr(value)


def _parameter(run: RunResult, name: str) -> Any:
    """Return a run's dotted parameter, its level of `code`, or a field of its result."""
    section, _, field = name.partition(".")
    if field:
        return run.config[section].get(field)
    return run.levels.get(CODE) if name == CODE else getattr(run, name)


def _error_about(runs: list[RunResult], reason: str, field: str = "") -> ResultError:
    """Return an error that names the runs, what is wrong with them, and what to do about it."""
    first, *others = runs
    commit = first.origin.get("code")  # None unless commits are levels of a factor
    names = [f"{run.arm} seed {run.seed}" for run in runs[:MOST_NAMED]]
    if len(runs) > MOST_NAMED:
        names.append(f"{len(runs) - MOST_NAMED} more")
    place = f"runs/{first.study}/{first.arm}/seed-{first.seed}"
    if others:
        place = f"their folders in runs/{first.study}/"
    remedy = f"To train it again, delete {place} and rerun ./run_all.sh"
    if field == _MEASURING_SETTINGS:
        remedy = f"To measure it again, delete result.json in {place} and rerun ./run_all.sh"
    elif commit and field != CODE:
        remedy = f"If the code of commit {commit[:12]} causes this, the arms cannot be paired"
    elif field == CODE and not commit:
        remedy = f"./run_all.sh {first.study} repeats the runs that other code made"
    return ResultError(f"run{'s' * bool(others)} {'; '.join(names)} {reason}. {remedy}")


def _tokenizer_sha256(run: RunResult) -> Any:
    """Return the hash of the tokenizer that a run used; its file may have changed between runs."""
    return run.origin.get("tokenizer_sha256")


def code_of(run: RunResult) -> tuple[str, str]:
    """Return the code that trained a run and the code that measured it, each by its short
    hash."""
    trained = run.provenance["trained"]["training_digest"]
    measured = run.provenance["executed"]["measuring_digest"]
    return f"trained by {trained[:12]}", f"measured by {measured[:12]}"


def machine_settings(run: RunResult, also: Collection[str] = ()) -> tuple[str, ...]:
    """Return everything that decided how numbers were rounded in training: packages, device, chip,
    and the settings in `also`.

    If the run moved to another machine, a setting that changed has several values. Then list each
    value with the last step that was made with it.
    """
    stretches = [(s.end, s.machine.model_dump(), s.packages) for s in run.stretches]
    if not stretches:  # older results have none
        stretches = [(run.steps, run.origin, run.origin["packages"])]
    by_end = {
        # Training does not use lm_eval, which may be installed between training and measuring.
        end: rounding(machine, {**packages, "lm_eval": None})
        | {name: machine.get(name) for name in also}
        for end, machine, packages in stretches
    }
    settings: list[str] = []
    for name in next(iter(by_end.values())):
        # The last step made with each value; a later stretch replaces an earlier one.
        last_step = {f"{name} {values.get(name)}": end for end, values in by_end.items()}
        if len(last_step) == 1:
            settings += last_step
        else:
            changes = (f"{value} up to step {end}" for value, end in last_step.items())
            settings.append(", then ".join(changes))
    return tuple(settings)


def measuring_settings(run: RunResult) -> tuple[str, ...]:
    """Return everything that decided how numbers were rounded when the run was measured: packages,
    device and chip."""
    executed = run.provenance["executed"]
    packages = dict(executed["packages"])
    if run.suite_hash is None and not run.config["evaluation"].get("tasks"):
        packages.pop("lm_eval", None)  # it measured nothing
    settings = rounding(executed["machine"], packages)
    return tuple(f"{name} {value}" for name, value in settings.items())


def rounding(machine: Mapping[str, Any], packages: Mapping[str, str | None]) -> dict[str, Any]:
    """Return everything that decides how numbers are rounded: versions of packages, device, and
    chip (the model of a GPU, the vector instructions of a CPU)."""
    chip = "device_name" if machine["device"] == "cuda" else "vector_level"
    return {**packages, "device": machine["device"], chip: machine.get(chip)}


def tidy(results: Iterable[RunResult]) -> pd.DataFrame:
    """Return one row per run.

    Columns: arm, baseline (an arm), levels (a dict, field → level), variant (level of the first
    factor), setting (levels of the other factors), seed, status, diverged_at (a step),
    final_weights (a hash), vocabulary, the fields of `BUDGET`, the optimizer and its learning
    rates, a column per factor, and a column per measure (NaN if the run diverged).
    """
    names = {"arm", "baseline", "levels", "variant", "setting", "seed", "status", "diverged_at"}
    rows = [
        run.model_dump(include=names)
        | {"vocabulary": vocabulary(run.config["corpus"])}
        | {name: _parameter(run, name) for name in (*BUDGET, *_LEARNING_RATE)}
        | run.levels
        | dict.fromkeys(MEASURES, np.nan)
        | run.measures
        | run.throughput
        | run.references
        | {"final_weights": run.final_weights}
        for run in results
    ]
    return pd.DataFrame(rows)


def column_by_arm(runs: pd.DataFrame, column: str) -> dict[str, Any]:
    """Map every arm to its value in a column of the tidy table. The column must be equal for all
    seeds of an arm."""
    by_arm: dict[str, Any] = nan_to_none(dict(zip(runs["arm"], runs[column], strict=True)))
    return by_arm


def own_baselines(runs: pd.DataFrame) -> dict[str, str]:
    """Map every arm to its baseline, except arms that are their own baseline."""
    baselines = column_by_arm(runs, "baseline")
    return {arm: baseline for arm, baseline in baselines.items() if arm != baseline}


def by_seed(runs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure as a table with seeds as rows and arms as columns; NaN if a run lacks it."""
    return runs.pivot(index="seed", columns="arm", values=measure).astype(float)


def sides(values: pd.DataFrame, weights: Mapping[str, float]) -> pd.DataFrame:
    """Split a weighted sum of arms into the two sides of a difference, one row per seed.

    `values` is a table of `by_seed`. `weights` maps arms to their weights, which sum to 0. Column
    `arm` sums the arms with positive weights, and `baseline` those with negative weights (times
    -1). So the weighted sum is arm - baseline. NaN if any of these runs has no value.
    """
    of_arms = values[list(weights)].to_numpy()  # (seeds, arms)
    weight = np.array([*weights.values()])  # (arms,)
    baseline = of_arms @ np.maximum(-weight, 0)
    arm = of_arms @ np.maximum(weight, 0)
    return pd.DataFrame({"baseline": baseline, "arm": arm}, index=values.index)


def seed_differences(runs: pd.DataFrame, measure: str, arm: str, baseline: str) -> pd.Series:
    """Return arm - baseline in a measure, by seed; NaN if either run lacks the measure."""
    both = sides(by_seed(runs, measure), {arm: 1.0, baseline: -1.0})
    return both["arm"] - both["baseline"]


def budgets(runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Map every field of `BUDGET` to its value in each arm, for `budget_factors`."""
    return {field: column_by_arm(runs, field) for field in BUDGET}


def budget_factors(budget: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]) -> str:
    """Return the factors that give the two sides of a difference (see `sides`) different budgets.

    `budget` comes from `budgets`. If no field of `BUDGET` differs, the budgets were equal: `check`
    made sure of that.
    """

    def differs(value_of: Mapping[str, Any]) -> bool:
        """Return whether the sides differ. Weights on the baseline's side are negative. So if a
        value has equal weight on both sides, its weights sum to 0."""
        total: dict[Any, float] = defaultdict(float)
        for arm, weight in weights.items():
            total[value_of[arm]] += weight
        return any(abs(weight) > 1e-9 for weight in total.values())

    tokens = {arm: math.prod(budget[field][arm] for field in _TOKENS) for arm in weights}
    # Twice as many steps with half the batch size give the same number of tokens, so the budget is
    # the same.
    fields = BUDGET if differs(tokens) else _NOT_TOKENS
    return ", ".join(field for field in fields if differs(budget[field]))


def is_comparable(vocabularies: Mapping[str, str], measure: str, arms: Iterable[str]) -> bool:
    """Return whether arms may be compared in a measure. If the measure is per token, the arms must
    have the same vocabulary. `vocabularies` maps arms to their vocabularies."""
    return measure not in PER_TOKEN or len({vocabularies[arm] for arm in arms}) == 1


def main_measures(runs: pd.DataFrame, plan: Plan | None) -> list[str]:
    """Return the measures to show first: the plan's primary measures. Without a plan, these are
    loss and perplexity, or bits per character if the arms have different vocabularies."""
    if plan:
        return available_measures(plan.primary_measures, runs)
    one_vocabulary = runs["vocabulary"].nunique() == 1
    return available_measures(MAIN if one_vocabulary else ["bits_per_character"], runs)


def planned_measures(runs: pd.DataFrame, plan: Plan | None) -> list[str]:
    """Return every measure that the plan names; without a plan, the `main_measures`."""
    measures = main_measures(runs, plan)
    if plan:
        tested = [h.measure for h in plan.bound.values()]
        families = chain.from_iterable(family.measures for family in plan.families.values())
        measures += [*plan.secondary, *tested, *families]
    return available_measures(measures, runs)


def other_settings(study: Study, factor: str) -> dict[str, str]:
    """Map each arm to its levels of all factors except the first and `factor`; "" if there are no
    others."""
    others = [name for name in list(study.factors)[1:] if name != factor]
    levels = {arm.id: {name: arm.levels[name] for name in others} for arm in study.arms()}
    return {arm: study.arm_id(of) if of else "" for arm, of in levels.items()}


def available_measures(measures: Iterable[str], runs: pd.DataFrame) -> list[str]:
    """Return the measures that at least one run has, each once."""
    return [name for name in dict.fromkeys(measures) if name in runs and runs[name].notna().any()]


def read_table(results: Iterable[RunResult], name: str) -> pd.DataFrame:
    """Concatenate one of the `tables` of all results, with columns arm, variant, setting and seed.
    Leave out runs that lack the table because they diverged."""
    return _joined(
        (run.arm, run.seed, run.variant, run.setting, pd.DataFrame(run.tables[name]))
        for run in results
        if name in run.tables
    )


def read_parquet(
    study: Study, name: str, folder_of: Callable[[str, int], Path] | None = None
) -> pd.DataFrame:
    """Concatenate one of the raw tables (see `lib.results`) of all runs, with columns arm, variant,
    setting and seed. Empty if no run has the table, which can happen for stock tasks. `folder_of`
    maps arm and seed to the run's folder, by default the one in `runs/`."""
    parts = []
    for arm, seed in product(study.arms(), study.seeds):
        folder = folder_of(arm.id, seed) if folder_of else run_folder(study.name, arm.id, seed)
        if name in RAW or has_stock(folder):
            parts.append((arm.id, seed, arm.variant, arm.setting, read_raw_file(folder, name)))
    return _joined(parts)


def _joined(parts: Iterable[tuple[str, int, str, str, pd.DataFrame]]) -> pd.DataFrame:
    """Concatenate tables. Each comes with the arm, seed, variant and setting of its run."""
    tables = {tuple(run): table for *run, table in parts}
    if not tables:
        return pd.DataFrame()
    names = ["arm", "seed", "variant", "setting"]
    return pd.concat(tables, names=names).reset_index(names).reset_index(drop=True)


def melt_columns(
    curve: pd.DataFrame, prefix: str, name: str, end: Literal["min", "max"] = "max"
) -> pd.DataFrame:
    """Melt the columns with names that start with `prefix`, at the last step of every run's curve
    (or at the first, with `end="min"`). In the result, column `name` has the rest of the old
    column's name, and `value` the number in it."""
    at_end = curve[curve["step"] == curve.groupby(["arm", "seed"])["step"].transform(end)]
    columns = list(curve.filter(regex=f"^{prefix}"))
    rows = at_end.melt(["arm", "variant", "setting", "seed"], columns, var_name=name)
    rows[name] = rows[name].str.removeprefix(prefix)
    return rows.dropna(subset="value")


def study_results(study: Study, results: list[RunResult]) -> dict[str, Any]:
    """Return a whole study, ready for JSON: its parameters, all runs, and a summary. The summary
    has, for each arm and measure, the number of completed runs, their mean and their sd (n - 1)."""
    of_arm = defaultdict(list)
    for run in results:
        of_arm[run.arm].append(run)
    summary = {}
    for arm in study.arms():
        values = pd.DataFrame(
            {**run.measures, **run.throughput}
            for run in of_arm[arm.id]
            if run.status == "completed"
        )
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
