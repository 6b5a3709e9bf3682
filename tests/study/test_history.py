"""The versions of a plan, as git holds them."""

import json

import pytest
import yaml
from lib.study.history import (
    dated_deviations,
    plan_changes,
    plan_history,
    plan_precedes,
    plan_provenance,
)

from lib.analysis.tables import plan_tables
from lib.study.plan import Plan
from lib.study.preregistration import other_versions
from lib.study.study import load_study
from tests.study.samples import CONTENT, Parameters, Repository

ONE, TWO = ({"date": "2026-12-01", "what": what, "why": "time"} for what in ("a", "b"))


@pytest.fixture
def repository(parameters: Parameters) -> Repository:
    return Repository(parameters)


def test_the_plan_must_be_committed_before_the_runs(repository: Repository) -> None:
    def answer(plan: Plan, *runs: str | None) -> str:
        return plan_precedes("p.yaml", plan, runs)

    plan = repository.parameters.plan()
    assert answer(plan).startswith("no: the plan is not committed")
    first, _ = repository.commit()
    run, _ = repository.commit()  # later work, the plan as before
    assert answer(plan, run, first) == f"yes: plan fixed at {first[:12]}"
    assert answer(plan, None).startswith("unknown: a run was made outside git")

    assert answer(plan, "a" * 40).startswith("unknown: the history here does not hold commit aaaa")
    (repository.top / ".git" / "shallow").write_text(f"{first}\n", "utf-8")
    assert answer(plan, run).startswith("unknown: this clone is shallow")
    (repository.top / ".git" / "shallow").unlink()
    _, deviating = repository.commit(deviations=[ONE])
    assert answer(deviating, run) == f"yes: plan fixed at {first[:12]}"  # appended: as fixed before
    _, folded = repository.commit(deviations=[ONE | {"why": "time\n"}])
    assert answer(folded, run) == f"yes: plan fixed at {first[:12]}"  # YAML written otherwise
    _, rewritten = repository.commit(deviations=[TWO])
    assert answer(rewritten, run).startswith("no: deviations were rewritten")

    changed_at, changed = repository.commit(alpha=0.01)
    assert answer(changed, changed_at, run) == (
        f"no: run at commit {run[:12]}, plan fixed at {changed_at[:12]}"
    )
    assert answer(changed, None, "a" * 40, run).startswith(f"no: run at commit {run[:12]}")
    assert answer(plan, run).startswith("no: the plan is not committed as it stands")
    _, restored = repository.commit(deviations=[TWO])
    _, restored = repository.commit(alpha=0.01)
    assert answer(restored, changed_at) == f"yes: plan fixed at {changed_at[:12]}"


@pytest.mark.parametrize("named", [{"rules": "embedding-norm"}, {}], ids=["named", "by default"])
def test_the_rules_of_a_plan_are_those_that_its_runs_were_begun_under(
    named: dict[str, str], repository: Repository
) -> None:
    """They decide, stand in a file of their own, and are in no plan's file."""
    rules = repository.parameters.plans / "rules" / "embedding-norm.yaml"
    first, plan = repository.commit(**named)
    assert plan_precedes("p.yaml", plan, [first]) == f"yes: plan fixed at {first[:12]}"
    text = rules.read_text("utf-8")
    rules.write_text(text.replace("decision: keep the baseline", "decision: adopt", 1), "utf-8")
    said = plan_precedes("p.yaml", plan, [])
    assert said == "no: the plan is not committed as it stands"
    later = repository.commit_all()
    said = plan_precedes("p.yaml", plan, [later, first])
    assert said == f"no: run at commit {first[:12]}, where the rules of its plan were others"
    assert plan_precedes("p.yaml", plan, [later]) == f"yes: plan fixed at {first[:12]}"
    rules.write_text(f"# A comment is no rule.\n{text}", "utf-8")
    repository.commit_all()
    assert plan_precedes("p.yaml", plan, [first]).startswith("yes: ")


def test_rules_that_were_never_committed_are_no_part_of_a_committed_plan(
    repository: Repository,
) -> None:
    rules = repository.parameters.plans / "rules"
    (repository.top / ".gitignore").write_text("own.yaml\n", "utf-8")
    (rules / "own.yaml").write_text((rules / "embedding-norm.yaml").read_text("utf-8"), "utf-8")
    _, plan = repository.commit(rules="own")
    assert plan_precedes("p.yaml", plan, []) == "no: the plan is not committed as it stands"


def test_the_history_of_a_plan_is_followed_through_a_rename(repository: Repository) -> None:
    first, plan = repository.commit()
    old = repository.top / "params" / "old.yaml"
    (repository.parameters.plans / "p.yaml").rename(old)
    second = repository.commit_all()
    old.rename(repository.parameters.plans / "p.yaml")
    third = repository.commit_all()
    versions = plan_history("p.yaml")
    assert [version.commit for version in versions] == [third, second, first]
    assert {version.hash for version in versions} == {plan.hash}
    assert plan_precedes("p.yaml", plan, [first]) == f"yes: plan fixed at {first[:12]}"
    assert versions[0].date.startswith("20")


def test_a_plan_copied_from_another_has_a_history_of_its_own(repository: Repository) -> None:
    repository.commit()
    (repository.parameters.plans / "q.yaml").write_text(
        (repository.parameters.plans / "p.yaml").read_text("utf-8"), "utf-8"
    )
    repository.commit(alpha=0.01)
    copied = repository.git("rev-parse", "HEAD")
    assert [version.commit for version in plan_history("q.yaml")] == [copied]
    assert plan_changes("q.yaml") == []


def test_versions_that_are_merged_stand_as_they_were_merged(repository: Repository) -> None:
    git, path = repository.git, repository.parameters.plans / "p.yaml"
    first, plan = repository.commit()
    git("switch", "-q", "-c", "dropped")
    repository.commit(alpha=0.01)
    git("switch", "-q", "main")
    git("merge", "-q", "-s", "ours", "dropped")
    assert plan_precedes("p.yaml", plan, [first]) == f"yes: plan fixed at {first[:12]}"
    git("switch", "-q", "-c", "side")
    repository.commit(alpha=0.01)
    git("switch", "-q", "main")
    before, _ = repository.commit(title="Another")
    git("merge", "-q", "side")  # each changed a line of its own
    merged, both = git("rev-parse", "HEAD"), Plan.model_validate(yaml.safe_load(path.read_text()))
    assert (both.alpha, both.title) == (0.01, "Another")
    assert plan_precedes("p.yaml", both, [merged]) == f"yes: plan fixed at {merged[:12]}"
    assert plan_precedes("p.yaml", both, [before]).startswith("no: run at commit")
    assert plan_history("p.yaml")[0].hash == both.hash


def test_deviations_of_two_branches_are_kept_by_a_merge(repository: Repository) -> None:
    first, _ = repository.commit()
    repository.git("switch", "-q", "-c", "side")
    repository.commit(deviations=[ONE])
    repository.git("switch", "-q", "main")
    repository.commit(deviations=[TWO])
    repository.git("merge", "-q", "-s", "ours", "--no-commit", "side")
    _, merged = repository.commit(deviations=[TWO, ONE])
    assert plan_precedes("p.yaml", merged, [first]) == f"yes: plan fixed at {first[:12]}"
    _, dropped = repository.commit(deviations=[TWO])
    assert plan_precedes("p.yaml", dropped, [first]).startswith("no: deviations were rewritten")


def test_every_field_that_changed_is_listed_with_both_values(repository: Repository) -> None:
    repository.commit()
    changed_at, _ = repository.commit(alpha=0.01, cost=CONTENT["cost"] | {"accuracy": 0.25})
    longer_at, _ = repository.commit(alpha=0.01, deviations=[ONE])
    repository.parameters.plan(alpha=0.05, deviations=[ONE])
    rows = plan_changes("p.yaml")
    assert [(row["commit"], row["field"], row["before"], row["after"]) for row in rows] == [
        (changed_at[:12], "alpha", 0.05, 0.01),
        (changed_at[:12], "cost.accuracy", 0.005, 0.25),
        (longer_at[:12], "cost.accuracy", 0.25, 0.005),
        (longer_at[:12], "deviations.0.date", None, "2026-12-01"),
        (longer_at[:12], "deviations.0.what", None, "a"),
        (longer_at[:12], "deviations.0.why", None, "time"),
        ("uncommitted", "alpha", 0.01, 0.05),
    ]


def test_versions_of_another_schema_and_unreadable_ones_stay_in_the_history(
    repository: Repository,
) -> None:
    path = repository.parameters.plans / "p.yaml"
    former = {name: value for name, value in CONTENT.items() if name != "instability"}
    path.write_text(yaml.safe_dump(former | {"stopping": "never"}), "utf-8")
    repository.commit_all()
    path.write_text("a: [", "utf-8")
    repository.commit_all()
    _, plan = repository.commit()
    newest, broken, oldest = plan_history("p.yaml")
    assert newest.hash == plan.hash
    assert broken.plan == {}
    assert oldest.plan["stopping"] == "never"
    assert len({newest.hash, broken.hash, oldest.hash}) == 3
    assert {row["field"] for row in plan_changes("p.yaml")} >= {
        "stopping",
        "instability.noise.window",
    }


@pytest.mark.parametrize(
    "draft",
    [
        "deviations: none yet\n",
        "deviations: [later]\n",
        "deviations: {first: later}\n",
        "alpha: .nan\n",
        "alpha: -.inf\n",
        f"title: {'[' * 3000}{']' * 3000}\n",
        'title: "\\uD800"\n',
        "title: &a [*a]\n",
        "? [a, b]\n: 1\n",
        "frozen: [1, {trial: 2}]\n",
        "confirmatory: ['**', \"a\\0\", /etc, '']\n",
    ],
)
def test_whatever_a_draft_holds_what_became_of_it_can_be_told(
    draft: str, repository: Repository
) -> None:
    path = repository.parameters.plans / "p.yaml"
    path.write_text(draft, "utf-8")
    repository.commit_all()
    last, plan = repository.commit(deviations=[ONE])
    known = plan_provenance("p.yaml", plan, [last])
    assert known["plan_precedes"] == f"yes: plan fixed at {last[:12]}"
    assert [each["what"] for each in known["deviations"]] == [ONE["what"]]
    assert json.dumps(known, allow_nan=False, ensure_ascii=False).encode()
    assert [str(table.to_html()) for table in plan_tables(known)]
    assert list(other_versions(load_study("trial", undrawn=True), plan, [])) == []
    changed = [row for row in known["plan_changes"] if row["field"] == "alpha"]
    before = {"alpha: .nan\n": "NaN", "alpha: -.inf\n": "-Infinity"}
    assert [row["before"] for row in changed] == [before.get(draft)]


def test_deviations_are_dated_by_the_commit_that_they_first_stand_in(
    repository: Repository,
) -> None:
    repository.commit()
    noted, _ = repository.commit(deviations=[ONE])
    first_run, _ = repository.commit(deviations=[ONE])
    later, _ = repository.commit(deviations=[ONE, TWO])
    three = ONE | {"what": "c"}
    repository.parameters.plan(deviations=[ONE, TWO, three])

    def when(*runs: str | None) -> list[str]:
        return [row["when"] for row in dated_deviations("p.yaml", runs)]

    before, after = "before the first run", "after the first run"
    assert when(first_run, later) == [before, after, "not committed"]
    assert when(noted) == [before, after, "not committed"]
    assert when(later) == [before, before, "not committed"]
    assert when(None)[0] == "unknown: a run was made outside git"
    rows = dated_deviations("p.yaml", [later])
    assert rows[0]["committed"] == repository.git("show", "-s", "--format=%cI", noted)
    assert rows[0]["date"] == "2026-12-01"  # as typed


def test_without_git_or_plan_nothing_is_known(parameters: Parameters) -> None:
    plan = parameters.plan(deviations=[ONE])
    known = plan_provenance("p.yaml", plan, ["a" * 40])
    assert known["plan_precedes"] == "unknown: there is no git"
    assert [row["when"] for row in known["deviations"]] == ["not committed"]
    assert known["plan_changes"] == []
    assert plan_provenance(None, None, [])["plan_precedes"] == "unknown: no plan is named"
