"""Every plan with its versions, changes and deviations, in the paper and on the site."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lib.publish import plans
from lib.publish.plans import FILE, missing_beside, plan_accounts, standing_shown, write_accounts
from lib.publish.sources import Sources
from tests.study import samples
from tests.study.samples import CONTENT

NOTED = {"date": "2026-12-01", "what": "a | pipe", "why": "time"}
CHANGE = {"what": "Eight seeds.", "why": "Six cannot decide."}


class Repository(samples.Repository):
    """A repository with plans, beside whose paper git's account of them is kept."""

    def __init__(self, parameters: samples.Parameters) -> None:
        super().__init__(parameters)
        self.plans, self.paper = parameters.plans, self.top / "paper"
        (self.paper / "results").mkdir(parents=True)

    def commit_as(self, file: str, **changes: Any) -> str:
        self.parameters.plan(file, **changes)
        return self.commit_all()[:12]

    def ran(self, commit: str) -> None:
        """Leave results of a run of `trial`, made at a commit."""
        run = {"provenance": {"git_commit": self.git("rev-parse", commit)}}
        path = self.paper / "results" / "trial.json"
        path.write_text(json.dumps({"runs": [run]}), "utf-8")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository(samples.Parameters(tmp_path, monkeypatch))
    monkeypatch.setattr(plans, "PLANS", repository.plans)
    monkeypatch.setattr(plans, "PARAMS", repository.plans.parent)
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    monkeypatch.setattr("lib.record.archive.PAPERS", repository.paper.parent)
    monkeypatch.setattr("lib.record.archive.PAPER", repository.paper)
    for name in ("load_study", "load_plan"):  # of the plan that paper.md quotes
        monkeypatch.setattr(f"lib.publish.sources.{name}", lambda *_: None)
    return repository


def test_every_plan_is_accounted_for_from_its_history(repository: Repository) -> None:
    first = repository.commit_as("z.yaml")
    second = repository.commit_as("z.yaml", alpha=0.01)
    third = repository.commit_as("z.yaml", alpha=0.01, deviations=[NOTED])
    newest = repository.commit_as("a.yaml", changes=[CHANGE], confirmatory=["later"])
    repository.ran(second)
    one, two = plan_accounts(repository.paper)
    assert [one["file"], two["file"]] == ["z.yaml", "a.yaml"]  # as they were committed
    assert [version["commit"] for version in one["versions"]] == [first, second, third]
    assert one["versions"][1]["hash"] == one["versions"][2]["hash"] == one["hash"]
    assert one["plan_precedes"] == f"yes: plan fixed at {second}"
    changed = one["plan_changes"][0]
    assert (changed["commit"], changed["field"], changed["before"]) == (second, "alpha", 0.05)
    (deviation,) = one["deviations"]
    assert deviation["when"] == "after the first run"
    assert (two["changes"], two["versions"][0]["commit"]) == ([CHANGE], newest)
    assert two["plan_precedes"] == "there are no recorded runs yet"
    repository.ran(first)
    assert plan_accounts(repository.paper)[0]["plan_precedes"].startswith(
        f"no: run at commit {first}"
    )


def test_without_all_of_git_it_is_what_git_told_when_the_paper_was_built(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit_as("a.yaml", deviations=[NOTED])
    told = plan_accounts(repository.paper)
    write_accounts(repository.paper)
    monkeypatch.setattr(plans, "has_history", lambda: False)
    assert plan_accounts(repository.paper) == told
    write_accounts(repository.paper)
    assert json.loads((repository.paper / FILE).read_text("utf-8")) == told
    (repository.paper / FILE).unlink()
    assert plan_accounts(repository.paper) == []


def test_a_verdict_is_shown_with_the_studies_of_its_plan_that_have_no_record(
    repository: Repository,
) -> None:
    """Of two confirmatory studies, the one with the nicer result could be published alone."""
    paper = repository.paper
    two = {"confirmatory": ["trial", "second"]}

    def record(study: str, **changes: Any) -> None:
        kept = paper / "record" / study / "plan.yaml"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(yaml.safe_dump(CONTENT | two | changes), "utf-8")
        verdict = json.dumps({"standing": "CONFIRMATORY"})
        (paper / "results" / f"{study}.verdict.json").write_text(verdict, "utf-8")
        (paper / "results" / f"{study}.json").write_text("{}", "utf-8")
        kept.with_name("MANIFEST.sha256").write_text("", "utf-8")

    def quoted(study: str) -> str:
        text = "{{ recorded[name].verdict.standing | lower }}"
        (paper / "text.md").write_text(text.replace("name", f'"{study}"'), "utf-8")
        return Sources(paper).render("text.md")

    record("trial")
    said = "its plan also names 'second', of which there is no record under it"
    assert missing_beside("trial") == [said]
    assert standing_shown("trial", {"standing": "CONFIRMATORY"}) == f"CONFIRMATORY ({said})"
    assert quoted("trial") == f"confirmatory ({said})"
    record("second", alpha=0.01)  # under another version of the plan
    assert missing_beside("trial") == [said]
    record("second")
    assert (missing_beside("trial"), missing_beside("second")) == ([], [])
    assert quoted("trial") == "confirmatory"
    results, second = paper / "results", paper / "record" / "second"
    for part in (
        results / "second.json",
        results / "second.verdict.json",
        second / "plan.yaml",
        second / "MANIFEST.sha256",
    ):
        part.unlink()  # vanished
        assert missing_beside("trial") == [said], part.name
        record("second")
        assert missing_beside("trial") == []
    (results / "second.verdict.json").unlink()
    assert missing_beside("third") == []  # exploratory under the plan, or of none


def test_before_it_is_recorded_a_study_is_held_against_the_plan_that_it_names(
    repository: Repository,
) -> None:
    repository.commit_as("p.yaml", confirmatory=["trial", "second"])
    (repository.plans.parent / "trial.yaml").write_text("{name: trial, plan: p.yaml}", "utf-8")
    assert len(missing_beside("trial")) == 1
    (repository.plans.parent / "trial.yaml").write_text("{name: trial}", "utf-8")
    assert missing_beside("trial") == []
