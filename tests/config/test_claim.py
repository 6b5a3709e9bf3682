"""A plan is drafted and frozen once. Git then decides what a study may claim under it."""

import json
import os
import re
import shutil

import pytest

from lib.config.claim import claim_status, load_plan, require_same_plan
from lib.config.errors import ConfigError, UsageError, UserError
from lib.config.files import sha256
from lib.config.freeze import draft_plan
from lib.config.plan import Plan, read_plan
from lib.config.study import load_study
from tests.config.samples import BOUND, FAMILY, PLAN, STUDY, SUITE, TEXT, run_at
from tests.conftest import refused, run_git

CHANGED = "its parameters are not those"
OTHER_SEEDS = "its seeds are not those drawn from the plan"


@pytest.fixture
def frozen(parameters):
    """A study whose plan is frozen for it."""
    parameters.study()
    parameters.plan()
    parameters.freeze()
    return parameters


def judged(*runs):
    study = load_study("trial")
    return claim_status(study, load_plan(study), runs)


def test_a_study_made_as_its_committed_plan_froze_it_is_confirmatory(frozen):
    fixed = frozen.commit()
    later = frozen.commit()
    for runs in ((), (run_at(fixed), run_at(later))):
        claim = judged(*runs)
        assert (claim.name, claim.reasons) == ("CONFIRMATORY", [])
        assert str(claim) == f"CONFIRMATORY: study 'trial' under plan {read_plan('plän.yaml').hash}"
    assert not judged(run_at(fixed, status="diverged", suite_hash=None)).reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"corpus_sha256": "e" * 64}, "corpus.tinyshakespeare is not the text"),
        ({"config": {"corpus": {"source": "a.txt"}}}, "corpus.a.txt is not the text"),
        ({"suite_hash": "e" * 64}, "its task suite is not the one"),
        ({"suite_hash": None}, "its task suite is not the one"),
        ({"tasks_hash": "e" * 64}, "the tasks of evaluation.include_path are not those"),
        ({"trained": {"training_digest": "e" * 64}}, "its runs were made by more than one code"),
        ({"executed": {"measuring_digest": "e" * 64}}, "its runs were made by more than one code"),
        ({"trained": {"clean": False}}, "a run was made by code or parameters that were not comm"),
        ({"executed": {"clean": False}}, "a run was made by code or parameters that were not comm"),
    ],
)
def test_one_run_not_made_as_frozen_is_named_and_the_study_exploratory(change, reason, frozen):
    commit = frozen.commit()
    claim = judged(run_at(commit), run_at(commit, **change))
    assert claim.name == "EXPLORATORY"
    (said,) = claim.reasons
    assert said.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"training": {"iterations": 301}}, CHANGED),
        ({"evaluation": {"items_per_task": 10}}, CHANGED),
        ({"factors": {"model.embedding_norm": ["layernorm", "none"]}}, CHANGED),
        ({"factors": {"model.embedding_norm": ["none", "rmsnorm", "layernorm"]}}, CHANGED),
        # Adding seeds until there is a result would be optional stopping.
        ({"seeds": {"count": 4}}, OTHER_SEEDS),
        ({"seeds": [1, 2, 3]}, OTHER_SEEDS),
        ({"machine": {"threads": 2}, "training": {"iterations": 300}}, ""),  # as by default
    ],
)
def test_a_study_changed_after_freezing_is_exploratory(change, reason, frozen):
    frozen.write("trial.yaml", STUDY | change)
    frozen.commit()
    claim = judged()
    assert claim.name == ("EXPLORATORY" if reason else "CONFIRMATORY")
    assert [said[: len(reason)] for said in claim.reasons] == [reason] * bool(reason)


def test_older_frozen_plans_need_no_committed_code(frozen):
    """Their hashes, seeds and published answers stay the same."""
    path = frozen.plans / "plän.yaml"
    text = path.read_text("utf-8")
    assert "\n    committed_code: true\n" in text
    path.write_text(text.replace("    committed_code: true\n", ""), "utf-8")
    commit = frozen.commit()
    dirty = {"clean": False}
    assert judged(run_at(commit, trained=dirty, executed=dirty)).name == "CONFIRMATORY"


def test_each_level_of_code_may_have_its_own_code(parameters):
    parameters.study(factors={"code": ["base", "case"]})
    parameters.plan(hypotheses={"cost": BOUND | {"test": ["case", "base", "loss"]}})
    assert not parameters.freeze().frozen["trial"].committed_code  # older arms know no such field
    commit = parameters.commit()
    runs = [
        run_at(commit, levels={"code": level}, trained={"training_digest": level * 16})
        for level in ("base", "case", "case")
    ]
    assert judged(*runs).name == "CONFIRMATORY"
    (reason,) = judged(*runs, runs[0] | {"levels": {"code": "case"}}).reasons
    assert reason == "its runs were made by more than one code"


def test_a_plan_is_older_than_a_run_whose_commit_holds_it(frozen):
    before = frozen.commit()
    path = frozen.plans / "plän.yaml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("A trial", "Another"), "utf-8")
    fixed = frozen.commit()
    said = [f"the plan as it is now is not in commit {before[:12]}, which made runs"]
    assert (judged(run_at(before)).reasons, judged(run_at(fixed)).reasons) == (said, [])
    path.write_text(f"# Restored.\n{text}", "utf-8")
    assert judged(run_at(before)).name == "CONFIRMATORY"  # other commits do not matter
    restored = frozen.commit()
    assert judged(run_at(before), run_at(restored)).name == "CONFIRMATORY"
    assert judged(run_at(before), run_at(fixed)).name == "EXPLORATORY"
    path.write_text(f"{text}deviations: [{{date: '2026-12-01', what: a, why: b}}]\n", "utf-8")
    frozen.commit()
    assert judged(run_at(before)).name == "CONFIRMATORY"  # a deviation does not make another plan
    frozen.git("mv", "params/plans/plän.yaml", "params/plans/q.yaml")
    frozen.write("trial.yaml", STUDY | {"plan": "q.yaml"})
    frozen.commit()
    assert judged(run_at(before)).name == "CONFIRMATORY"  # under its old name


@pytest.mark.parametrize("rewritten", ["amended", "rebased", "squashed"])
def test_rewritten_history_keeps_the_claim_status(rewritten, frozen):
    plan = frozen.plans / "plän.yaml"
    text = plan.read_text("utf-8")
    plan.unlink()
    first = frozen.commit()
    plan.write_text(text, "utf-8")
    made_at = frozen.commit()
    if rewritten == "amended":
        frozen.git("commit", "-q", "--amend", "-m", "in other words")
    elif rewritten == "rebased":
        frozen.git("checkout", "-q", "-b", "other", first)
        (frozen.top / "beside.txt").write_text("", "utf-8")
        frozen.commit()
        frozen.git("rebase", "-q", "other", "main")
    else:
        frozen.git("reset", "-q", "--soft", first)
        frozen.git("commit", "-q", "-m", "as one")
    assert frozen.git("rev-parse", "HEAD") != made_at
    assert judged(run_at(made_at)).name == "CONFIRMATORY"
    frozen.git("reflog", "expire", "--expire=now", "--all")
    frozen.git("gc", "-q", "--prune=now")
    claim = judged(run_at(made_at))
    said = [f"commit {made_at[:12]} is not here: git fetch --tags"]
    assert (claim.name, claim.reasons) == ("UNVERIFIED", said)
    # If it was committed only after a run, it did not come first.
    assert judged(run_at(first)).name == "EXPLORATORY"


@pytest.mark.parametrize(
    ("case", "remedy"),
    [
        ("no git", "take a clone"),
        ("a zip", "take a clone"),
        ("never committed", "commit it before the runs"),
        ("changed and not committed", "commit it before the runs"),
        ("a run outside git", "a run was made outside git"),
        ("a run of a packed tree", "make runs in a clone"),
        ("a commit that is not here", "commit 111111111111 is not here: git fetch"),
        ("a shallow clone", "git fetch --unshallow"),
        ("a lost plan", "git fetch --tags"),
        ("lost objects", "git fsck"),
        ("another user's folder", 'git config --global --add safe.directory "$PWD"'),
    ],
)
def test_unverified_if_git_cannot_tell(case, remedy, frozen, tmp_path_factory, monkeypatch):
    path, commit = frozen.plans / "plän.yaml", "1" * 40
    if case == "a zip":
        (frozen.top / "lib").mkdir()
        (frozen.top / "lib" / "VERSION").write_text("1" * 40, "utf-8")
    elif case != "no git":
        text = path.read_text("utf-8")
        if case == "never committed":
            path.unlink()
        commit = frozen.commit()
        path.write_text(text, "utf-8")
    if case == "changed and not committed":
        path.write_text(text.replace("A trial", "Another"), "utf-8")
    if case == "a shallow clone":
        frozen.commit()
        clone = tmp_path_factory.mktemp("shallow") / "clone"
        run_git(frozen.top, "clone", "-q", "--depth=1", f"file://{frozen.top}", str(clone))
        for module in ("provenance", "claim"):
            monkeypatch.setattr(f"lib.config.{module}.CHECKOUT", clone, raising=False)
    if case == "a lost plan":  # as in a partial clone without a network
        blob = frozen.git("rev-parse", "HEAD:params/plans/plän.yaml")
        path.write_text(text + "# A word.\n", "utf-8")
        frozen.commit()
        (frozen.top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    if case == "lost objects":
        shutil.rmtree(frozen.top / ".git" / "objects")
        (frozen.top / ".git" / "objects").mkdir()
    if case.startswith("another user"):
        if os.getuid() != 0:
            pytest.skip("only root may give a folder away")
        os.chown(frozen.top, 65534, 65534)
    made_at = {"a run outside git": None, "a commit that is not here": "1" * 40}
    told = {"clean": None if case == "a run of a packed tree" else True}
    claim = judged(run_at(made_at.get(case, commit), trained=told))
    assert claim.name == "UNVERIFIED"
    (reason,) = claim.reasons
    assert remedy in reason


def test_only_a_study_that_a_frozen_plan_names_is_confirmatory(parameters):
    parameters.study(seeds=[1, 2, 3])
    parameters.study(name="other", seeds=[0])
    parameters.plan()
    commit = parameters.commit()
    (reason,) = judged(run_at(commit)).reasons
    assert reason.startswith("the plan was not frozen for it")
    other = load_study("other")
    named = claim_status(other, load_plan(other))
    assert named.reasons == ["the plan does not name it as confirmatory"]
    assert str(claim_status(other, None)) == "EXPLORATORY: study 'other'; it names no plan"


MISSPELT = FAMILY | {"contrasts": [["layernrom", "none"]]}
MARGINLESS = FAMILY | {"measures": ["ece"], "test": "equivalence"}


def asked_of(*test):
    return {"hypotheses": {"a": BOUND | {"test": list(test)}}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"primary": ["lss"]}, "primary: 'lss' is unknown; did you mean 'loss'?"),
        ({"secondary": ["perplexty"]}, "secondary: 'perplexty' is unknown; did you mean 'perpl"),
        ({"families": {"f": MISSPELT}}, "families.f: 'layernrom' is unknown; did you mean 'layer"),
        ({"confirmatory": ["tiral"]}, "confirmatory: 'tiral' is unknown; did you mean 'trial'"),
        (asked_of("layernrom", "none", "loss"), "hypotheses.a.test: 'layernrom' is unknown; did"),
        (asked_of("layernorm", "none", "los"), "hypotheses.a.test: 'los' is unknown; did you mean"),
        ({"hypotheses": {"a": "Words."}}, "hypotheses: no test for a; give each hypothesis one"),
        ({"smallest_effect_of_interest": {"los": 0.1}}, "smallest_effect_of_interest: 'los' is"),
        ({"families": {"f": MARGINLESS}}, "smallest_effect_of_interest: has no value for ece;"),
    ],
)
def test_unknown_names_in_a_plan_are_errors(change, named, frozen):
    """If it were accepted, the analysis would silently skip it."""
    study = load_study("trial")
    fixed = read_plan("plän.yaml").frozen["trial"].model_dump()
    frozen.plan(**{"frozen": {"trial": fixed}} | change)
    assert named in refused(load_plan, study)


def test_a_hypothesis_names_one_arm_of_several_settings(parameters):
    parameters.study(factors=STUDY["factors"] | {"training.learning_rate": [1e-3, 1e-2]})
    parameters.plan(hypotheses={"a": BOUND | {"test": ["layernorm", "none", "loss"]}})
    study = load_study("trial", undrawn=True)
    with pytest.raises(ConfigError, match=r"layernorm and none are not two arms .* of none,l"):
        load_plan(study)
    arms = ["layernorm,learning_rate=0.01", "none,learning_rate=0.01"]
    parameters.plan(hypotheses={"a": BOUND | {"test": [*arms, "loss"]}})
    assert load_plan(study)


def test_a_plan_is_read_once_for_a_study_that_is_loaded(parameters):
    study = parameters.study()
    parameters.plan(smallest_effect_of_interest={})
    with pytest.raises(ConfigError, match="write the smallest difference that matters"):
        load_plan(study)
    parameters.plan()  # a corrected plan is read without loading the study again
    plan = load_plan(study)
    parameters.plan(alpha=0.01)
    assert load_plan(study) is plan
    assert load_plan(study.model_copy(update={"plan": None})) is None
    assert load_plan(load_study("trial", undrawn=True)).alpha == 0.01


@pytest.mark.parametrize("content", [json.dumps(PLAN), f"{json.dumps(PLAN, indent=1)}\n"])
def test_freeze_refuses_a_plan_it_cannot_append_to(content, parameters):
    """A flow mapping is valid YAML; with a block below it, it no longer is."""
    parameters.study()
    path = parameters.plan()
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=r"^plans/plän.yaml: nothing can be added below its last"):
        parameters.freeze()
    assert path.read_text("utf-8") == content


def test_a_new_plan_asks_only_for_what_its_user_knows_and_can_then_be_frozen(parameters, capsys):
    factors = {"training.weight_decay": [0.0, 0.1, 0.3]}
    parameters.study(name="decay", factors=factors, seeds=[5, 6], plan=None)
    draft_plan("decay.yaml", "decay")
    template = parameters.plans / "decay.yaml"
    said, text = capsys.readouterr().out, template.read_text("utf-8")
    assert "params/plans/decay.yaml is written: fill in the empty fields" in said
    assert "In params/decay.yaml write:\n  plan: decay.yaml\n  seeds: {count: 2}\n" in said
    assert "weight_decay=0; weight_decay=0.1; weight_decay=0.3" in text
    assert max(map(len, text.splitlines())) <= 100
    draft_plan("decay.yaml", "decay")  # as after a kill
    assert capsys.readouterr().out == said
    template.write_text(text.replace("title:", "title: mine"), "utf-8")
    with pytest.raises(UserError, match="exists, and nothing is replaced"):
        draft_plan("decay.yaml", "decay")  # the user's entries are not lost
    assert "title: mine" in template.read_text("utf-8")
    template.write_text(text, "utf-8")
    with pytest.raises(UsageError, match="name the study of the plan, --study NAME"):
        draft_plan("another.yaml", None)

    def faults():
        with pytest.raises(UserError) as error:
            parameters.freeze("decay.yaml")
        return str(error.value).split("\nerror: ")

    assert faults() == [
        "plans/decay.yaml: title: is missing; add it",
        "plans/decay.yaml: question: is missing; add it",
        "plans/decay.yaml: hypotheses.weight_decay=0.1.says: is missing; add it",
        "plans/decay.yaml: hypotheses.weight_decay=0.3.says: is missing; add it",
        "plans/decay.yaml: smallest_effect_of_interest: write the smallest difference that matters",
    ]
    text = re.sub(r"(title|question|says):$", r"\1: As said.", text, flags=re.MULTILINE)
    template.write_text(text, "utf-8")
    assert faults() == [
        "decay.yaml: write plan: decay.yaml",
        "decay.yaml: write seeds: {count: 2}",
        "plans/decay.yaml: smallest_effect_of_interest: has no value for loss; write the smallest "
        "difference that matters",
    ]
    assert template.read_text("utf-8") == text  # nothing is frozen
    template.write_text(text.replace("  loss:", "  loss: 0.02"), "utf-8")
    decay = {"name": "decay", "factors": factors, "seeds": {"count": 2}, "plan": "decay.yaml"}
    parameters.write("decay.yaml", decay)
    parameters.write("listed.yaml", {"name": "listed", "seeds": [7, 5]})
    fixed = parameters.freeze("decay.yaml").frozen["decay"]
    assert (fixed.seeds, fixed.used_seeds, fixed.suite) == (2, [5, 7], [SUITE])
    assert fixed.corpus == {"tinyshakespeare": TEXT}
    assert len(load_study("decay").seeds) == 2
    before = sha256(template)
    assert parameters.freeze("decay.yaml").frozen["decay"] == fixed
    assert sha256(template) == before  # trying again draws no other seeds
    assert text.splitlines()[0] in template.read_text("utf-8")  # comments stay
    assert template.read_text("utf-8").count("small_effects: negligible") == 1


def test_freezing_a_plan_fixes_in_words_how_it_is_answered(parameters):
    parameters.study()
    path = parameters.plan()
    assert read_plan("plän.yaml").small_effects is None  # as in older plans
    plan = parameters.freeze()
    assert (plan.small_effects, "two-sided" in plan.tests) == ("negligible", True)
    before = sha256(path)
    assert parameters.freeze() == plan
    assert sha256(path) == before
    path.write_text(path.read_text("utf-8").replace("two-sided", "one-sided"), "utf-8")
    assert read_plan("plän.yaml").hash != plan.hash


@pytest.mark.parametrize(
    "name", [".#plän.yaml", "._plän.yaml", ".abcd.plän.yaml", ".abcd/plän.yaml"]
)
@pytest.mark.parametrize("folder", ["plans", "."])
def test_hidden_files_are_neither_plans_nor_studies(folder, name, frozen):
    """Such files are left by a killed `freeze`, an editor or macOS."""
    fixed, drawn = frozen.freeze("plän.yaml").frozen, load_study("trial").seeds
    left = frozen.plans.parent / folder / name
    left.parent.mkdir(exist_ok=True)
    left.write_bytes((frozen.plans / "plän.yaml").read_bytes())
    assert frozen.freeze("plän.yaml").frozen == fixed
    assert load_study("trial").seeds == drawn
    left.write_text("no YAML: [", "utf-8")
    assert frozen.freeze("plän.yaml").frozen == fixed


def test_seeds_of_other_plans_are_not_drawn_again(frozen):
    drawn = load_study("trial").seeds
    frozen.study(name="next", plan="q.yaml")
    frozen.write("plans/q.yaml", PLAN | {"confirmatory": ["next"]})
    assert frozen.freeze("q.yaml").frozen["next"].used_seeds == sorted(drawn)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("runs/trial/none/seed-1/provenance.json", "runs/trial/none/seed-1/provenance.json"),
        ("papers/one/results/trial.json", "papers/one/results/trial.json"),
        ("papers/one/record/trial/plan.yaml", "papers/one/record/trial"),
    ],
)
def test_freeze_refuses_a_study_that_has_run(place, named, frozen, monkeypatch):
    """Otherwise one could look at results and freeze again until some seeds please."""
    (frozen.top / place).parent.mkdir(parents=True)
    (frozen.top / place).write_text("{}", "utf-8")
    monkeypatch.setattr("lib.config.paths.output_root", lambda: frozen.top)
    with pytest.raises(UserError, match=rf"trial has run \({named}\): write a new plan"):
        frozen.freeze()


def test_runs_of_another_plan_are_refused_naming_both_hashes():
    plan, other = (Plan.model_validate(PLAN | {"alpha": alpha}) for alpha in (0.05, 0.1))
    require_same_plan(plan, {"none seed 0": plan.hash, "none seed 1": plan.hash})
    for asked, stamp in ((other, plan.hash), (plan, None), (None, plan.hash)):
        with pytest.raises(UserError, match="run none seed 1 was made under") as error:
            require_same_plan(asked, {"none seed 0": asked and asked.hash, "none seed 1": stamp})
        assert f"under plan {stamp}, and" in str(error.value)
        assert f"hash is {asked and asked.hash}:" in str(error.value)
