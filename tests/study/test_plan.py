import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lib.analysis.rules import Evidence, decide, hypotheses
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError
from lib.study.paths import PARAMS
from lib.study.plan import (
    Plan,
    PreregistrationError,
    load_plan,
    plan_line,
    plan_precedes,
    require_stamps,
    standing,
)

CONTENT = yaml.safe_load((PARAMS / "preregistration.yaml").read_text("utf-8")) | {"deviations": []}


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate(CONTENT)


def evidence(**fields: Any) -> Evidence:
    """An arm of which nothing is significant, beside a stable baseline; but for `fields`."""
    usual: dict[str, Any] = {
        "arm": "layernorm",
        "baseline_stable": True,
        "arm_stable": True,
        "accuracy": {"zero": "none", "few": "none"},
        "accuracy_change": {"zero": 0.0, "few": 0.0},
        "calibration": "none",
        "throughput_change": 0.0,
    }
    return Evidence(**(usual | fields))


@pytest.mark.parametrize(
    ("rule", "decision", "fields"),
    [
        ("R1", "keep the baseline", {"accuracy": {"zero": "regression", "few": "none"}}),
        ("R1", "keep the baseline", {"accuracy": {"zero": "regression", "few": "improvement"}}),
        ("R2", "replicate before adopting", {"accuracy": {"zero": "none", "few": "improvement"}}),
        ("R3", "adopt the arm", {"baseline_stable": False}),
        (
            "R4",
            "keep the baseline",
            {"baseline_stable": False, "accuracy_change": {"zero": -0.006, "few": 0.0}},
        ),
        ("R4", "keep the baseline", {"baseline_stable": False, "throughput_change": -0.06}),
        ("R5", "keep the baseline", {"baseline_stable": False, "arm_stable": False}),
        ("R6", "adopt the arm", {"calibration": "improvement", "throughput_change": -0.5}),
        ("R7", "adopt the arm", {"throughput_change": 0.06}),
        ("R8", "keep the baseline", {}),
        ("R8", "keep the baseline", {"calibration": "regression", "throughput_change": 0.06}),
    ],
)
def test_each_rule_decides_its_case(
    rule: str, decision: str, fields: dict[str, Any], plan: Plan
) -> None:
    found = decide(evidence(**fields), plan)
    assert (found.rule, found.decision) == (rule, decision)


def test_the_rules_cover_every_case(plan: Plan) -> None:
    directions = ("improvement", "regression", "none")
    fired = set()
    for stable, arm_stable, zero, few, calibration, change, speed in itertools.product(
        (True, False), (True, False), *(directions,) * 3, (-0.01, 0.0, 0.01), (-0.1, 0.0, 0.1)
    ):
        case = evidence(
            baseline_stable=stable,
            arm_stable=arm_stable,
            accuracy={"zero": zero, "few": few},
            accuracy_change={"zero": change, "few": 0.0},
            calibration=calibration,
            throughput_change=speed,
        )
        fired.add(decide(case, plan).rule)
        assert set(hypotheses(case)) == set(plan.hypotheses)
    assert fired == {f"R{k}" for k in range(1, 9)}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("not rejected", "not supported", "not tested")),
        ({"accuracy": {"zero": "regression"}}, ("rejected", "supported", "not tested")),
        ({"accuracy": {"zero": "improvement"}}, ("rejected", "not supported", "not tested")),
        ({"baseline_stable": False}, ("not tested", "not tested", "supported")),
        (
            {"baseline_stable": False, "arm_stable": False},
            ("not tested", "not tested", "not supported"),
        ),
    ],
)
def test_hypotheses_are_answered_one_by_one(
    fields: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = hypotheses(evidence(**fields))
    for name, answer in zip(("H0", "H1a", "H1b"), expected, strict=True):
        assert found[name].partition(":")[0] == answer


def test_one_character_of_the_plan_changes_its_hash_and_a_deviation_does_not(plan: Plan) -> None:
    changed = plan.model_copy(update={"estimand": plan.estimand.replace("M", "m", 1)})
    assert changed.hash != plan.hash
    deviation = {"date": "2026-11-30", "what": "fewer seeds", "why": "time"}
    assert Plan.model_validate(CONTENT | {"deviations": [deviation]}).hash == plan.hash


def test_runs_of_another_plan_are_refused_naming_both_hashes(plan: Plan) -> None:
    changed = plan.model_copy(update={"alpha": 0.1})
    require_stamps(plan, {"none seed 0": plan.hash, "none seed 1": plan.hash})
    with pytest.raises(PreregistrationError) as error:
        require_stamps(changed, {"none seed 0": changed.hash, "none seed 1": plan.hash})
    assert "run none seed 1" in str(error.value)
    assert plan.hash in str(error.value)
    assert changed.hash in str(error.value)


def test_a_run_without_a_stamp_is_refused_under_a_plan_and_the_other_way_round(plan: Plan) -> None:
    with pytest.raises(PreregistrationError, match="under pre-registration None"):
        require_stamps(plan, {"none seed 0": None})
    with pytest.raises(PreregistrationError, match="hash is None"):
        require_stamps(None, {"none seed 0": plan.hash})


def study(plan: Plan, **fields: Any) -> Study:
    content = {"name": "confirmatory", "seeds": plan.seeds, "preregistration": "p.yaml"}
    return Study.model_validate(content | fields)


def test_only_the_named_study_with_the_planned_seeds_is_confirmatory(plan: Plan) -> None:
    assert standing(study(plan), plan) == "CONFIRMATORY"
    assert standing(study(plan, seeds=plan.seeds[:5]), plan) == "EXPLORATORY"
    assert standing(study(plan, name="final"), plan) == "EXPLORATORY"
    assert standing(study(plan), None) == "EXPLORATORY"
    assert plan.hash in plan_line(study(plan), plan)
    assert plan_line(study(plan), None).startswith("EXPLORATORY")


def test_the_final_study_is_exploratory_under_the_plan_in_the_repository() -> None:
    final = load_study("final")
    assert standing(final, load_plan(final)) == "EXPLORATORY"
    assert not set(load_plan(final).seeds) & {s for n in ("pilot", "final") for s in load_study(n).seeds}  # type: ignore[union-attr]  # noqa: E501  # fmt: skip


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 5}, "alpha: 5 is not allowed"),
        ({"alhpa": 0.05}, "did you mean 'alpha'"),
        ({"cost": {"accuracy": 0.1}}, "cost.throughput: is missing"),
    ],
)
def test_a_faulty_plan_names_the_field(
    change: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    monkeypatch.setattr("lib.study.plan.PARAMS", tmp_path)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(CONTENT | change), "utf-8")
    with pytest.raises(ConfigError) as error:
        load_plan(study(plan))
    assert named in str(error.value)


def test_a_plan_that_is_not_there_is_named(plan: Plan) -> None:
    with pytest.raises(ConfigError, match=r"there is no params/p\.yaml"):
        load_plan(study(plan))


def test_the_plan_must_be_committed_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    monkeypatch.setattr("lib.study.plan.ROOT", tmp_path)

    def git(*words: str) -> str:
        user = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *user, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(**changes: Any) -> tuple[str, Plan]:
        content = CONTENT | changes
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
        git("add", "plan.yaml")
        git("commit", "--allow-empty", "-m", "work")
        return git("rev-parse", "HEAD"), Plan.model_validate(content)

    def answer(plan: Plan | None, *runs: str | None) -> str:
        return plan_precedes(plan, list(runs), "plan.yaml")

    git("init", "-q")
    assert answer(plan).startswith("unknown: the plan is not committed")
    assert answer(None).startswith("unknown: no plan")
    first, _ = commit()
    run, _ = commit()  # later work, the plan as before
    assert answer(plan, run, first) == f"yes: plan fixed at {first[:12]}"
    assert answer(plan, None).startswith("unknown: a run was made outside git")

    one, two = ({"date": "2026-12-01", "what": w, "why": "time"} for w in ("a", "b"))
    _, deviating = commit(deviations=[one])
    assert answer(deviating, run) == f"yes: plan fixed at {first[:12]}"  # appended: as fixed before
    _, folded = commit(deviations=[one | {"why": "time\n"}])
    assert answer(folded, run) == f"yes: plan fixed at {first[:12]}"  # YAML written otherwise
    _, rewritten = commit(deviations=[two])
    assert answer(rewritten, run).startswith("no: deviations were rewritten")

    changed_at, changed = commit(alpha=0.01)
    assert answer(changed, changed_at, run) == (
        f"no: run at commit {run[:12]}, plan fixed at {changed_at[:12]}"
    )
    assert answer(plan, run).startswith("unknown: the plan is not committed as it stands")
