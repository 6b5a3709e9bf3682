"""The beginning of a study's analysis: its question, its answers in words, and what each arm
changes. `./run_all.sh` prints the same answers when the study is finished."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from lib.config.contrasts import short_commits, spoken
from lib.config.metrics import MEASURES
from lib.config.paths import PARAMS
from lib.config.plan import Plan
from lib.config.schema import CODE
from lib.config.study import COPY, Arm, Study
from lib.config.yaml import Json
from lib.stats.answers import outcome
from lib.stats.factorial import CHANGES, ENDS, Row, by_setting
from lib.stats.runs import available_measures, main_measures
from lib.stats.tables import UNTESTED, cautions, decisions_in_words


def question(study: Study, plan: Plan | None) -> str:
    """Return the question in the study's plan. Without a plan, return the comment at the top of the
    study's file, or "" if there is no such comment."""
    if plan:
        return " ".join(plan.question.split())
    text = (PARAMS / f"{study.name}.yaml").read_text("utf-8").removeprefix(COPY)
    lines = text.splitlines()
    n = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").strip() for line in lines[:n]).strip()


def loss_first(runs: pd.DataFrame, plan: Plan | None) -> list[str]:
    """Return the measures to show first: the loss, if all arms can be compared in it, then the
    `main_measures`."""
    is_comparable = runs["vocabulary"].nunique() == 1
    names = ["loss"] * is_comparable + main_measures(runs, plan)
    return available_measures(names, runs) or ["loss"]  # if every run diverged


def seed_numbers(study: Study) -> dict[int, int]:
    """Map each seed to its name in tables. Drawn seeds have many digits, so they are numbered from
    1."""
    return {
        seed: number if study.drawn else seed for number, seed in enumerate(study.seeds, start=1)
    }


def compared(verdict: Json, measure: str) -> Iterator[Row]:
    """Yield the rows of a verdict that answer the study's question, each with its `name`. These are
    the hypotheses. If there are none, they are the effects of the grid in `measure`; if there is no
    grid, the contrasts in `measure`. An effect that changes sign is followed by its settings."""
    plain = {"changes_sign": False, "kind": ""}
    effects = [row for row in verdict["effects"] if row["measure"] == measure]
    if tests := verdict["hypothesis_tests"]:
        for test in tests:
            yield plain | test | {"name": test["hypothesis"]}
            for setting, of in test.get("settings", {}).items():
                yield plain | of | {"measure": test["measure"], "name": f"at {setting}"}
    elif effects:
        for row in by_setting(effects):
            yield row | {"name": row.get("setting") or row["effect"]}
    else:
        for row in verdict["contrasts"]:
            if row["measure"] == measure:
                yield plain | row | {"name": f"{row['arm']} - {row['baseline']}"}


def answer_sentences(
    verdict: Json, plan: Plan | None, runs: pd.DataFrame, numbers: Mapping[int, int]
) -> str:
    """Write one sentence, in Markdown, for each hypothesis of a plan and each decision. Without
    hypotheses, write a sentence for each effect or contrast in the measure that is shown first, and
    then the `cautions`. `numbers` maps seeds to their numbers, as `seed_numbers` does."""
    table = pd.DataFrame(compared(verdict, loss_first(runs, plan)[0]))
    if table.empty:
        return "One arm: there is nothing to compare."
    rows = table.astype(ENDS).to_dict("records")
    if plan and verdict["hypothesis_tests"]:
        lines = [f"- {_answer(row, plan, numbers)}" for row in rows if "answer" in row]
        closing = ""
    else:
        lines = ["  " * row["name"].startswith("at ") + f"- {_finding(row)}" for row in rows]
        closing = cautions(rows, runs)
        if not verdict["tests"]:
            closing += f"\n{UNTESTED}"
    lines += [f"- {decision}" for decision in decisions_in_words(verdict)]
    return "\n".join([*lines, "", closing]).rstrip()


def _answer(row: Row, plan: Plan, numbers: Mapping[int, int]) -> str:
    needed = [numbers[seed] for seed in row["needed_seeds"] or ()]
    measure, told = MEASURES[row["measure"]], outcome(row | {"needed_seeds": needed}, plan)
    found = f"{measure.label} {measure.estimate(row)} {measure.unit}".rstrip()
    return f"**{row['name']}: {told}.** {row['says']} ({found})"


def _finding(row: Row) -> str:
    """Write the size of a difference, and its direction if the interval excludes zero."""
    name, measure = spoken(row["name"]), MEASURES[row["measure"]]
    if row["changes_sign"]:
        return f"{name}: **{CHANGES}**"
    rises, falls = row["t_low"] > 0, row["t_high"] < 0
    told = "raises" if rises else "lowers" if falls else "does not detectably change"
    if np.isnan(row["t_low"]):
        told = "may change"
    elif row["kind"] == "interaction":
        told = "shows in" if rises or falls else "does not detectably show in"
    return (
        f"{name}: **{told}** the {measure.label} ({measure.estimate(row)} {measure.unit}".rstrip()
        + ")"
    )


def arm_table(study: Study) -> pd.DataFrame:
    """Return how each arm differs from the study's first arm, and the arm that it is compared
    with."""
    arms = study.arms()
    rows = {
        arm.id: {
            "changes": short_commits(", ".join(_changes(arm, arms[0])))
            or "nothing: it is the baseline",
            "compared with": "" if arm.baseline == arm.id else short_commits(arm.baseline),
        }
        for arm in arms
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def _changes(arm: Arm, first: Arm) -> Iterator[str]:
    if arm.levels.get(CODE) != first.levels.get(CODE):
        yield f"{CODE}: {first.levels.get(CODE)} → {arm.levels[CODE]}"
    yield from arm.config.changes_from(first.config)
