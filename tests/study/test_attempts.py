"""A plan that was written when its study had runs under another version of it."""

import json
import os
import shutil
import zipfile
from typing import Any

import pytest

from lib.study.code import contents
from lib.study.plan import Plan, read_plan
from lib.study.preregistration import ATTEMPTS, claim_status, load_plan, write_other_versions
from lib.study.study import load_study
from tests.study.samples import Parameters, Repository, runs_as_frozen

Run = dict[str, Any]


class Lab(Repository):
    """Where a plan is frozen, runs are made and recorded, and another plan is written by hand."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        (self.top / ".gitignore").write_text("runs/\n", "utf-8")

    def freeze(self, name: str = "trial", **changes: Any) -> Plan:
        """Write a plan that is frozen for a study, and commit it."""
        changes = {"confirmatory": [name]} | changes
        self.parameters.plan(frozen={name: self.parameters.frozen()}, **changes)
        self.commit_all()
        return read_plan("p.yaml")

    def train(self, name: str = "trial", *, commit: str | None = None, **changes: Any) -> list[Run]:
        """Leave a run in `runs/` as the plan in use draws it."""
        self.parameters.study(name=name, **changes)
        study = load_study(name)
        plan = load_plan(study)
        (run,) = runs_as_frozen()
        made = {
            "study": name,
            "seed": study.seeds[0],
            "started": f"{self.now()} UTC",
            "commit": commit or self.git("rev-parse", "HEAD"),
            "plan": plan.hash if plan else None,
            "parameters": {"training": {"precision": "fp32"}},
            "machine": {},
        }
        run["provenance"]["trained"] |= made
        self.write(f"runs/{name}/none/seed-{study.seeds[0]}/result.json", run)
        return [run]

    def write(self, place: str, content: Any) -> None:
        path = self.top / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), "utf-8")

    def archive(self, runs: list[Run], name: str = "trial", *places: str) -> str:
        """Put runs into the record, all of it or some, and commit."""
        seed = runs[0]["provenance"]["trained"]["seed"]
        held = {
            f"results/{name}.json": {"runs": runs},
            f"record/{name}/none/seed-{seed}/02_train.ipynb": notebook(runs[0]),
            "record/index.json": {name: {"seeds": {"none": [seed]}}},
        }
        for place, content in held.items():
            if not places or place.startswith(places):
                self.write(f"papers/one/{place}", content)
        return self.commit_all()

    def forget(self, *folders: str) -> None:
        for folder in folders:
            shutil.rmtree(self.top / folder)

    def reasons(self, runs: list[Run], name: str = "trial") -> list[str]:
        study = load_study(name)
        return claim_status(study, load_plan(study), runs).reasons

    def require_named(self, seen: Plan, study: str = "trial") -> None:
        """Under another version of the plan, runs are exploratory, and the reason names this."""
        self.freeze(study, alpha=0.01)
        (reason,) = self.reasons(self.train(study), study)
        assert reason.startswith(named(seen))


@pytest.fixture
def lab(parameters: Parameters) -> Lab:
    return Lab(parameters)


def notebook(run: Run) -> dict[str, Any]:
    """What the executed notebook of a run says of it."""
    trained = run["provenance"]["trained"]
    stamp = {"preregistration": trained["plan"], "commit": trained["commit"]}
    times = {"start_time": trained["started"].replace(" UTC", "+00:00")}
    return {"metadata": {"study": stamp, "papermill": times}}


def named(plan: Plan, study: str = "trial") -> str:
    return f"there were runs of '{study}' under another version of its plan, {plan.hash[:12]} ("


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.01},
        {"primary": ["perplexity"]},
        {"deviations": [{"date": "2026-12-02", "what": "a", "why": "b"}], "title": "Another"},
    ],
)
def test_a_plan_rewritten_after_a_look_at_runs_makes_a_study_exploratory(
    change: dict[str, Any], lab: Lab
) -> None:
    """Three seeds, a look, other rules and as many seeds again: optional stopping."""
    seen = lab.freeze()
    first = lab.git("rev-parse", "HEAD")
    assert lab.reasons(lab.train()) == []
    lab.freeze(**change)
    (reason,) = lab.reasons([])  # told before anything runs
    assert reason == named(seen) + f"committed 2026-12-01 at {first[:12]})"
    assert lab.reasons(lab.train()) == [reason]


def test_a_version_that_was_never_committed_is_named_as_well(lab: Lab) -> None:
    lab.commit_all()
    seen = lab.parameters.plan(frozen={"trial": lab.parameters.frozen()}, alpha=0.01)
    lab.train()
    lab.freeze()
    assert lab.reasons(lab.train()) == [named(seen) + "never committed in its history)"]


@pytest.mark.parametrize(
    "place",
    [
        *("results/trial.json", "results/trial.verdict.json"),
        *("record/trial/03_analysis.ipynb", "record/trial/04_figures.ipynb"),
    ],
)
def test_what_is_made_of_runs_tells_without_them_under_which_plan_they_were(
    place: str, lab: Lab
) -> None:
    """Seeds that results or a verdict name were drawn by a version of the plan; notebooks are
    stamped."""
    seen = lab.freeze()
    (run,) = lab.train()
    of_runs = {"stability": [{"arm": "none", "seed": seed} for seed in load_study("trial").seeds]}
    results = {"study": {"seeds": load_study("trial").seeds}, "summary": {}}
    results = of_runs if "verdict" in place else results
    lab.write(f"papers/one/{place}", results if "results" in place else notebook(run))
    lab.commit_all()
    lab.forget("papers", "runs")
    lab.require_named(seen)


@pytest.mark.parametrize("place", ["results", "record/trial", "record/index.json"])
@pytest.mark.parametrize("where", ["an earlier commit", "another branch", "a dropped branch"])
def test_runs_that_only_git_still_holds_are_found(where: str, place: str, lab: Lab) -> None:
    seen = lab.freeze()
    if where != "an earlier commit":
        lab.git("switch", "-q", "-c", "aside")
    lab.archive(lab.train(), "trial", place)
    if where == "an earlier commit":
        lab.forget("papers")
    else:
        lab.git("switch", "-q", "main")
    lab.commit_all()
    if where == "a dropped branch":
        lab.git("merge", "-q", "-s", "ours", "aside")
        lab.git("branch", "-D", "aside")
    lab.forget("runs")
    assert not (lab.top / "papers").exists()
    lab.require_named(seen)


def test_a_study_renamed_in_its_plan_is_the_study_that_it_was(lab: Lab) -> None:
    seen = lab.freeze()
    lab.train()
    lab.parameters.study(name="renamed")
    lab.require_named(seen, "renamed")


def test_a_plan_under_another_name_is_another_version(lab: Lab) -> None:
    seen = lab.freeze()
    lab.train()
    plans = lab.parameters.plans
    lab.parameters.plan("q.yaml", frozen={"trial": lab.parameters.frozen()}, alpha=0.01)
    (plans / "p.yaml").unlink()
    lab.commit_all()
    (reason,) = lab.reasons(lab.train(plan="q.yaml"))
    assert reason.startswith(named(seen))


def test_a_version_without_runs_takes_nothing_and_a_deviation_is_no_version(lab: Lab) -> None:
    lab.freeze(alpha=0.01)
    plan = lab.freeze()
    runs = lab.train()
    lab.freeze(alpha=0.01)  # and back
    noted = {"date": "2026-12-02", "what": "a", "why": "b"}
    assert lab.freeze(deviations=[noted]).hash == plan.hash
    assert lab.reasons(runs) == []
    lab.train("other", seeds=[0], plan="p.yaml")  # exploratory, and under no rule
    lab.train(seeds=[0], plan=None)  # before there was a plan
    lab.parameters.study()
    assert lab.reasons(runs) == []


@pytest.mark.parametrize("commit", [None, "a" * 40])  # a commit that this history does not hold
def test_a_version_tried_and_dropped_is_named_where_the_plan_was_restored(
    commit: str | None, lab: Lab
) -> None:
    """Of two versions that both had runs, the one with the nicer results could be kept."""
    lab.freeze()
    runs = lab.train()
    dropped = lab.freeze(alpha=0.01)
    lab.train(commit=commit)
    lab.freeze()
    (reason,) = lab.reasons(runs)
    assert reason.startswith(named(dropped))


def test_a_version_that_was_tried_later_elsewhere_takes_nothing_from_a_record(lab: Lab) -> None:
    lab.freeze()
    runs = lab.train()
    lab.archive(runs)
    lab.git("switch", "-q", "-c", "aside")
    lab.freeze(alpha=0.01)
    lab.archive(lab.train())
    assert len(lab.reasons(lab.train())) == 1  # there
    lab.git("switch", "-q", "main")
    assert lab.reasons(runs) == []


def test_a_commit_dated_back_precedes_nothing(lab: Lab) -> None:
    seen = lab.freeze()
    lab.archive(lab.train())
    lab.minutes, now = 0, lab.minutes
    lab.freeze(alpha=0.01)
    runs = lab.train()
    lab.minutes = now
    (reason,) = lab.reasons(runs)
    assert reason.startswith(named(seen))


def test_what_a_record_keeps_of_other_versions_tells_of_runs_that_are_gone(lab: Lab) -> None:
    seen = lab.freeze()
    lab.train()
    lab.parameters.study(name="other", seeds=[0], plan=None)
    lab.freeze(alpha=0.01)
    runs = lab.train()
    (told,) = lab.reasons(runs)
    record = lab.top / "papers" / "one" / "record" / "trial"
    write_other_versions(load_study("trial"), record)
    kept = (record / ATTEMPTS).read_text("utf-8")
    assert kept == json.dumps(json.loads(kept), separators=(",", ":")) + "\n"  # as `verify` asks
    lab.forget("runs")
    assert lab.reasons(runs) == [told]
    lab.commit_all()
    (record / ATTEMPTS).rename(lab.top / ATTEMPTS)
    assert lab.reasons(runs) == [told]  # as git has it
    lab.forget(".git")
    lab.git("init", "-q")
    assert lab.reasons(runs) != [told]
    (lab.top / "runs" / "trial").mkdir(parents=True)
    (lab.top / ATTEMPTS).rename(
        lab.top / "runs" / "trial" / ATTEMPTS
    )  # as where its analysis is repeated
    (reason,) = [each for each in lab.reasons(runs) if "another version" in each]
    assert seen.hash[:12] in reason
    write_other_versions(load_study("other"), lab.top)  # of no plan
    assert not (lab.top / ATTEMPTS).exists()


@pytest.mark.parametrize("damage", ["lost", "garbled", "no git"])
def test_what_git_cannot_tell_makes_a_study_exploratory(
    damage: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.freeze()
    runs = lab.train()
    assert lab.reasons(runs) == []
    if damage == "no git":  # of a checkout
        monkeypatch.setenv("PATH", "")
    else:
        text = "1" * 40 if damage == "lost" else "nothing"
        (lab.top / ".git" / "refs" / "heads" / "broken").write_text(f"{text}\n", "utf-8")
    reason = lab.reasons(runs)[-1]
    assert reason.startswith("git cannot tell whether another version of its plan had runs: ")
    assert str(lab.top) not in reason


def test_a_lost_object_of_the_record_or_of_a_plan_is_told(lab: Lab) -> None:
    lab.freeze()
    lab.archive(lab.train(), "trial", "results")
    for name in ("papers/one/results/trial.json", "params/plans/p.yaml"):
        blob = lab.git("rev-parse", f"HEAD:{name}")
        lab.freeze(alpha=0.01)
        assert len(runs := lab.train()) == 1
        (lab.top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        contents.cache_clear()
        assert any("git cannot tell whether" in each for each in lab.reasons(runs)), name


def test_a_name_that_is_no_text_hides_no_runs(lab: Lab) -> None:
    seen = lab.freeze()
    lab.write(os.fsdecode(b"papers/one/record/trial/\xff/02_train.ipynb"), {})
    lab.archive(lab.train(), "trial", "results")
    lab.forget("papers", "runs")
    lab.commit_all()
    lab.require_named(seen)


def test_a_plan_renamed_on_another_branch_has_the_names_that_it_had_there(lab: Lab) -> None:
    lab.commit_all()
    lab.git("switch", "-q", "-c", "side")
    seen = lab.freeze(alpha=0.03)
    lab.archive(lab.train())
    lab.git("switch", "-q", "main")
    lab.forget("runs")
    lab.parameters.study(name="renamed")
    lab.require_named(seen, "renamed")


@pytest.mark.parametrize("place", ["trial.old", "link", "arm"])
def test_runs_are_found_wherever_they_lie_in_the_folder_of_runs(place: str, lab: Lab) -> None:
    seen = lab.freeze()
    lab.train()
    runs, aside = lab.top / "runs", lab.top / "aside"
    if place == "trial.old":
        (runs / "trial").rename(runs / place)
    else:
        moved = runs / "trial" if place == "link" else runs / "trial" / "none"
        moved.rename(aside)
        moved.symlink_to(aside)
    (runs / "again").symlink_to(runs)  # without end
    (lab.top / ".gitignore").write_text("runs/\naside\n", "utf-8")
    lab.require_named(seen)


@pytest.mark.parametrize("damaged", [None, {"provenance": None}, {"provenance": {"trained": 3}}])
def test_a_damaged_run_hides_none_beside_it(damaged: Any, lab: Lab) -> None:
    seen = lab.freeze()
    (run,) = lab.train()
    run["provenance"]["trained"].pop("parameters")
    lab.write("papers/one/results/trial.json", {"runs": [damaged, run]})
    lab.forget("runs")
    lab.require_named(seen)


@pytest.mark.parametrize("arms", [("none", "other"), ("none", "none")])
def test_every_notebook_of_a_commit_is_read(arms: tuple[str, str], lab: Lab) -> None:
    lab.commit_all()
    seen = lab.parameters.plan(frozen={"trial": lab.parameters.frozen()}, alpha=0.03)
    first = lab.train()
    lab.forget("runs")
    lab.freeze(alpha=0.01)
    runs = lab.train()
    for arm, (run,) in zip(arms, (first, runs), strict=True):
        seed = run["provenance"]["trained"]["seed"]
        lab.write(f"papers/one/record/trial/{arm}/seed-{seed}/02_train.ipynb", notebook(run))
    lab.commit_all()
    (reason,) = lab.reasons(runs)
    assert reason.startswith(named(seen))


def test_a_version_that_a_merge_dropped_is_named_if_it_had_runs(lab: Lab) -> None:
    lab.freeze()
    runs = lab.train()
    lab.git("switch", "-q", "-c", "side")
    dropped = lab.freeze(alpha=0.01)
    lab.git("switch", "-q", "main")
    lab.git("merge", "-q", "-s", "ours", "side")
    assert lab.reasons(runs) == []
    lab.git("switch", "-q", "side")
    lab.train()
    lab.git("switch", "-q", "main")
    (reason,) = lab.reasons(runs)
    assert reason.startswith(named(dropped))


@pytest.mark.parametrize("content", ["{", "3", '{"runs": 3}', '{"provenance": []}', '[{"a": 1}]'])
def test_a_damaged_file_is_no_run(content: str, lab: Lab) -> None:
    lab.freeze()
    for name in ("none/seed-1/result.json", "none/seed-1/a/provenance.json", ATTEMPTS):
        path = lab.top / "runs" / "trial" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    assert lab.reasons([]) == []


def test_the_other_confirmatory_studies_of_a_plan_are_named_beside_it(lab: Lab) -> None:
    lab.parameters.study(name="second", seeds=[0], plan=None)
    plan = lab.freeze(confirmatory=["trial", "second"])
    study = load_study("trial")
    said = f"CONFIRMATORY: study 'trial' under plan {plan.hash}, which also names 'second'"
    assert str(claim_status(study, plan)) == said


@pytest.mark.parametrize("as_a_whole", [True, False])
@pytest.mark.parametrize("where", ["the record", "an earlier commit"])
def test_a_sealed_record_tells_of_its_runs(where: str, as_a_whole: bool, lab: Lab) -> None:
    lab.commit_all()
    version = lab.parameters.plan(frozen={"trial": lab.parameters.frozen()}, alpha=0.03)
    lab.archive(lab.train(), "trial", "record/trial")
    lab.git("reset", "-q", "--soft", "HEAD~1")  # no commit holds the version, nor what was unsealed
    record = lab.top / "papers" / "one" / "record"
    with zipfile.ZipFile(record / "trial.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in (record / "trial").rglob("*.ipynb"):
            packed.write(path, path.relative_to(record / "trial"))
    if as_a_whole:
        (record / "trial.zip").rename(record / "record.zip")
        with zipfile.ZipFile(record / "trial.zip", "w", zipfile.ZIP_LZMA) as packed:
            packed.write(record / "record.zip", "record.zip")
        (record / "record.zip").unlink()
    lab.forget("papers/one/record/trial", "runs")
    lab.freeze(alpha=0.02)
    if where == "an earlier commit":
        lab.forget("papers")
        lab.commit_all()
    lab.require_named(version)
    record.mkdir(parents=True, exist_ok=True)
    (record / "trial.zip").write_bytes(b"PK damaged")
    lab.require_named(version)  # as git has it


def test_runs_that_were_committed_as_they_lay_are_found(lab: Lab) -> None:
    seen = lab.freeze()
    lab.train()
    lab.git("add", "--force", "runs")
    lab.commit_all()
    lab.git("rm", "-q", "-r", "runs")
    lab.commit_all()
    lab.require_named(seen)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_plan_copied_and_then_deleted_was_renamed(is_kept: bool, lab: Lab) -> None:
    """Plan and study bear other names; that a copy is another plan needs the first to stand."""
    seen = lab.freeze()
    lab.train()
    lab.parameters.study(name="renamed", plan="q.yaml", seeds=[0])
    changes = {"frozen": {"renamed": lab.parameters.frozen()}, "confirmatory": ["renamed"]}
    lab.parameters.plan("q.yaml", alpha=0.01, **changes)
    lab.commit_all()
    if not is_kept:
        (lab.parameters.plans / "p.yaml").unlink()
        lab.commit_all()
    reasons = lab.reasons(lab.train("renamed", plan="q.yaml"), "renamed")
    assert [reason.startswith(named(seen)) for reason in reasons] == [] if is_kept else [True]


@pytest.mark.parametrize("by", ["a replacement", "a graft", "a setting", "the environment"])
def test_git_is_asked_what_it_holds_whatever_it_is_told_to_show(
    by: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = lab.parameters.plan(frozen={"trial": lab.parameters.frozen()})
    if by != "a setting":
        lab.git("commit", "-q", "--allow-empty", "-m", "first")
    lab.archive(lab.train(commit="a" * 40))
    lab.forget("runs", "papers")
    last = lab.commit_all()
    first = lab.git("rev-list", "--max-parents=0", "HEAD")
    if by == "a replacement":
        lab.git("replace", "--graft", last, first)
    elif by == "a graft":
        (lab.top / ".git" / "info").mkdir(exist_ok=True)
        (lab.top / ".git" / "info" / "grafts").write_text(f"{last} {first}\n", "utf-8")
    elif by == "a setting":
        lab.git("config", "log.showRoot", "false")
    else:
        monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    lab.require_named(seen)
