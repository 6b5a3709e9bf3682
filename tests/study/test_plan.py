import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"primary": ["macro_accuracy_zero_shto"]},
            "primary: 'macro_accuracy_zero_shto' is unknown; did you mean "
            "'macro_accuracy_zero_shot'?",
        ),
        ({"secondary": ["perplexty"]}, "secondary: 'perplexty' is unknown; did you mean 'perpl"),
        ({"imputation": {"perplexty": 65.0}}, "imputation: 'perplexty' is unknown"),
        (
            {"families": {"primary": [["layernrom", "none"]]}},
            "families.primary: 'layernrom' is unknown; did you mean 'layernorm'?",
        ),
        ({"confirmatory": ["confirmatroy"]}, "confirmatory: 'confirmatroy' is unknown; did you"),
        ({"primary": ["grad_norm"]}, "primary: of grad_norm neither lower nor higher is better"),
    ],
)
def test_a_name_that_names_nothing_is_an_error(
    change: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    """Accepted, it would drop out: of a loss of .02, and a rule R1, nothing would be left."""
    monkeypatch.setattr("lib.study.plan.PARAMS", tmp_path)
    (tmp_path / "confirmatory.yaml").touch()
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(CONTENT), "utf-8")
    assert load_plan(study(plan)) == Plan.model_validate(CONTENT)
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
