"""What a number of seeds can show, before any of them runs: the power of a plan's hypotheses, and
what it costs.

The spread of the differences is that of a study that has run, a pilot, a tuning study or a ladder,
or a stated guess.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError
from scipy import stats

from lib.analysis.hypotheses import MOST_SEEDS, expected_power, out_of_reach, spread_of
from lib.analysis.runs import tidy
from lib.analysis.stability import harmed, judge_runs, rule_of, with_stability
from lib.record.record import Record, raw_folder, recorded_studies
from lib.study.claim import load_plan
from lib.study.config import Study
from lib.study.errors import ConfigError, unknown
from lib.study.measures import MAIN
from lib.study.plan import Plan
from lib.study.raw import read_raw_file
from lib.study.result import RunResult


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
    hypotheses = {name: {"says": ""} | h for name, h in usual_hypotheses(study).items()}
    content = {"title": "", "question": "", "confirmatory": [study.name], "hypotheses": hypotheses}
    level = {"alpha": plan.alpha, "power": plan.power} if plan else {}
    return Plan.model_validate(content | level) if hypotheses else None


def recorded_runs(name: str, plan: Plan) -> pd.DataFrame:
    """Read the tidy table of a recorded study, its stability judged by a plan; ConfigError where
    there is none."""
    known = recorded_studies()
    if name not in known:
        raise ConfigError(f"spread: {unknown(name, known)}; give a recorded study, or a number")
    try:
        record = Record(name)
        runs = tidy(map(RunResult.model_validate, record.runs))
    except ValidationError:
        raise ConfigError(f"spread: the record of {name} is of an older format") from None
    traces = [
        read_raw_file(raw_folder(record.run_notebook(run)), "trace").assign(
            arm=run["arm"], seed=run["seed"]
        )
        for run in record.runs
    ]
    stability = judge_runs(runs, pd.concat(traces, ignore_index=True), rule_of(plan))
    return harmed(with_stability(runs, stability), plan)


def power_report(
    study: Study,
    plan: Plan,
    effect: float | None = None,
    spread: str | float | None = None,
    hours: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Write what the seeds of a study can show: exact tests that cannot reach their level, the
    power of each hypothesis, the seeds that the plan's power takes, and, where the spread is of a
    ladder, how many these are after each number of steps.

    `effect` is the true difference assumed (None: as `expected_power` says), `spread` the sd of
    differences or the name of a recorded study (None: the plan's), `hours` the price of all runs
    by device.
    """
    n, source = len(study.seeds), plan.spread if spread is None else spread
    yield from (f"warning: {said}" for said in out_of_reach(plan, n))
    if source is None:
        yield "Power is unknown: name a pilot study, or guess an sd of differences, as the spread."
        return
    runs = recorded_runs(source, plan) if isinstance(source, str) else pd.DataFrame()
    if isinstance(source, str):
        sds, said = spread_of(plan, runs), f"the spread of {source}{_uncertainty(runs)}"
    else:
        guess = source if isinstance(source, dict) else dict.fromkeys(plan.primary_measures, source)
        sds = {name: guess[m] for name, (*_, m) in plan.bound.items() if m in guess}
        said = "the spread stated"
    for name, (h, *_, measure) in plan.bound.items():
        matters = h.equivalent_within or measure in plan.smallest_effect_of_interest
        if name not in sds:
            yield f"Power of {name} is unknown: {source} shows no spread of {measure}."
        elif effect is None and not matters:
            del sds[name]
            yield f"Power of {name} is unknown: state the effect, the difference that matters."
    if not sds:
        return
    table = expected_power(plan, sds, n, effect, study.looks)
    per_seed = {name: total / n for name, total in (hours or {}).items()}
    yield f"What {n} seeds can show, with {said}:"
    yield _shown(table, plan, per_seed)
    for row in table.to_dict("records"):
        if row["power"] < plan.power:
            yield (
                f"warning: {row['hypothesis']}: {n} seeds have a power of {row['power']:.2f}, and "
                f"{plan.power:.2f} is wished for; {_many(row['seeds'])} seeds have it"
            )
    designs = designs_by_steps(plan, runs, effect)
    if len(designs) > 1:
        own_steps = np.mean([arm.config.training.iterations for arm in study.arms()])
        of_own = designs["seeds"] * designs["steps"] / own_steps
        for name, price in per_seed.items():
            designs[name] = (of_own * price).map("{:,.2f}".format)
        best = designs.loc[of_own.idxmin()]
        yield f"After other numbers of steps, for a power of {plan.power:.0%}:"
        yield designs.to_string(index=False)
        yield (
            f"Cheapest: {best['steps']} steps with {best['seeds']} seeds, if the difference is as "
            "large after as many steps."
        )


def _uncertainty(runs: pd.DataFrame) -> str:
    """Say how far off an sd of so few seeds may be: its 95 % interval for normal differences."""
    n = runs["seed"].nunique()
    if n < 2:
        return ""
    low, high = ((n - 1) / stats.chi2.ppf([0.975, 0.025], n - 1)) ** 0.5
    return f" ({n} seeds: the true one is {low:.2g} to {high:.2g} times as large)"


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


def _many(seeds: float) -> str:
    return f"{seeds:.0f}" if seeds <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"


def _shown(table: pd.DataFrame, plan: Plan, per_seed: Mapping[str, float]) -> str:
    """Write the table of `expected_power`, and for each device the hours that the seeds take."""
    needed = table["seeds"]
    shown = pd.DataFrame({"hypothesis": table["hypothesis"]})
    shown["of"] = table["arm"] + " - " + table["baseline"]
    shown["measure"] = table["measure"]
    shown["true difference"] = table["difference"].map("{:+.4g}".format)
    shown["sd"] = table["sd"].map("{:.4g}".format)
    shown[f"power of {table['n'].iloc[0]}"] = table["power"].map("{:.2f}".format)
    if "used" in table:
        shown["seeds used"] = table["used"].map("{:.1f}".format)
    shown[f"seeds for {plan.power:.0%}"] = needed.map(_many)
    for name, hours in per_seed.items():
        shown[name] = (needed * hours).map("{:,.2f}".format)
    return shown.to_string(index=False)
