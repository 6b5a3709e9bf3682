"""What a study may claim, and the reason where it may claim no more."""

from functools import partial
from typing import Any

import pytest

from lib.study.plan import Plan
from lib.study.preregistration import (
    ClaimStatus,
    PreregistrationError,
    claim_status,
    load_plan,
    require_stamps,
)
from lib.study.study import load_study
from lib.study.yaml import ConfigError
from tests.conftest import run_git
from tests.study.samples import CONTENT, LISTED, STUDY, Parameters, runs_as_frozen
from tests.study.test_plan import BOUND


def judged(runs: list[dict[str, Any]] | None = None) -> ClaimStatus:
    study = load_study("trial")
    return claim_status(study, load_plan(study), runs or [])


def test_a_study_made_as_its_plan_froze_it_is_confirmatory(parameters: Parameters) -> None:
    plan = load_plan(load_study("trial"))
    assert plan is not None
    for claim in (judged(), judged(runs_as_frozen())):
        assert (claim.name, claim.reasons) == ("CONFIRMATORY", [])
        assert str(claim) == f"CONFIRMATORY: study 'trial' under plan {plan.hash}"
    assert not judged(runs_as_frozen(status="diverged", suite_hash=None)).reasons


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"corpus_sha256": "e" * 64}, "corpus.tinyshakespeare is eeeeeeeeeeee, frozen was cccc"),
        ({"config": {"corpus": {"source": "a.txt"}}}, "corpus.a.txt is cccccccccccc, frozen was"),
        ({"suite_hash": "e" * 64}, "suite is eeeeeeeeeeee, frozen was dddddddddddd"),
        ({"suite_hash": None}, "suite is none, frozen was dddddddddddd"),
        (
            {"provenance": {"trained": {"training_digest": "e" * 64}, "executed": {}}},
            "training_digest is eeeeeeeeeeee, frozen was ",
        ),
        (
            {"provenance": {"trained": {}, "executed": {"measuring_digest": "e" * 64}}},
            "measuring_digest is eeeeeeeeeeee, frozen was ",
        ),
    ],
)
def test_one_run_not_made_as_frozen_makes_a_study_exploratory_and_is_named(
    run: dict[str, Any], reason: str, parameters: Parameters
) -> None:
    claim = judged([*runs_as_frozen(), *runs_as_frozen(**run)])
    assert claim.name == "EXPLORATORY"
    assert any(named.startswith(reason) for named in claim.reasons), claim.reasons


def test_arms_that_are_commits_are_each_held_against_the_code_of_their_own(
    parameters: Parameters,
) -> None:
    parameters.study(factors={"code": ["main", "mine"]})
    codes = {"main": ("1" * 64, "2" * 64), "mine": ("3" * 64, "4" * 64)}
    commits = {
        level: {"commit": "c" * 40, "training_digest": training, "measuring_digest": measuring}
        for level, (training, measuring) in codes.items()
    }
    frozen = {name: v for name, v in parameters.frozen().items() if name[-6:] != "digest"}
    plan = parameters.plan(frozen={"trial": frozen | {"commits": commits}})
    assert plan.frozen["trial"].training_digest is None

    def run(level: str, training: str, measuring: str) -> dict[str, Any]:
        by = {"trained": {"training_digest": training}, "executed": {"measuring_digest": measuring}}
        return runs_as_frozen(levels={"code": level}, provenance=by)[0]

    made = [run(level, *code) for level, code in codes.items()]
    assert judged().reasons == judged(made).reasons == []  # none is held against that at hand
    swapped = judged([run("main", *codes["mine"]), made[1]]).reasons
    assert swapped == [
        f"{name}_digest of main is {is_ * 12}, frozen was {was * 12}"
        for name, is_, was in (("training", "3", "1"), ("measuring", "4", "2"))
    ]
    assert judged([run("other", *codes["main"])]).reasons[0].endswith("frozen was none")


@pytest.mark.parametrize("digest", ["training_digest", "measuring_digest"])
def test_code_edited_after_freezing_is_named_before_anything_runs(
    digest: str, parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"lib.study.preregistration.{digest}", lambda: "e" * 64)
    (reason,) = judged().reasons
    assert reason.startswith(f"{digest} is eeeeeeeeeeee, frozen was ")
    assert not judged(runs_as_frozen()).reasons  # made before the edit


def test_runs_analysed_by_other_code_than_frozen_confirm_nothing(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.study.preregistration.analysing_digest", lambda: "e" * 64)
    for runs in ([], runs_as_frozen()):
        (reason,) = judged(runs).reasons
        assert reason.startswith("analysing_digest is eeeeeeeeeeee, frozen was ")
    frozen = parameters.frozen()
    del frozen["analysing_digest"]  # as plans were frozen before
    parameters.plan(frozen={"trial": frozen})
    assert not judged(runs_as_frozen()).reasons


def test_a_plan_not_committed_before_the_runs_makes_a_study_exploratory(
    parameters: Parameters,
) -> None:
    git = partial(run_git, parameters.folder.parent)

    def commit() -> str:
        git("add", "--all")
        git("commit", "--allow-empty", "--message", "work")
        return git("rev-parse", "HEAD")

    def made_at(commit: str) -> list[dict[str, Any]]:
        (run,) = runs_as_frozen()
        trained = run["provenance"]["trained"] | {"commit": commit}
        return [run | {"provenance": run["provenance"] | {"trained": trained}}]

    git("init", "--quiet")
    path = parameters.plans / "p.yaml"
    text = path.read_text("utf-8")
    parameters.plan()  # not frozen
    before = commit()
    path.write_text(text, "utf-8")
    for runs in ([], made_at(before)):
        assert judged(runs).reasons == ["the plan is not committed as it stands"]
    fixed = commit()
    assert judged().reasons == judged(made_at(fixed)).reasons == []
    assert (
        judged(made_at(before)).reasons
        == [  # committed afterwards, and still to be told
            f"run at commit {before[:12]}, plan fixed at {fixed[:12]}"
        ]
    )


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"iterations": 301}},
        {"evaluation": {"items_per_task": 10}},
        {"factors": {"model.embedding_norm": ["layernorm", "none"]}},  # another baseline
        {"factors": {"model.embedding_norm": ["none", "rmsnorm"]}},
    ],
)
def test_parameters_changed_after_freezing_are_named(
    change: dict[str, Any], parameters: Parameters
) -> None:
    before = load_study("trial").seeds
    parameters.study(**change)
    assert load_study("trial").seeds == before
    (reason,) = judged().reasons
    assert reason.startswith("parameters is ")


def test_neither_machine_nor_reading_order_is_a_parameter(parameters: Parameters) -> None:
    parameters.study(machine={"threads": 2}, training={"iterations": 300})  # the default
    assert not judged().reasons


@pytest.mark.parametrize("count", [2, 4])
def test_more_or_fewer_seeds_than_frozen_are_named(count: int, parameters: Parameters) -> None:
    """Seeds added until a result is found would be optional stopping."""
    parameters.study(seeds={"count": count})
    assert judged().reasons == ["its seeds are not those drawn from the plan"]


def test_chosen_seeds_are_exploratory(parameters: Parameters) -> None:
    drawn = load_study("trial").seeds
    parameters.study(seeds=[1, 2, 3])
    assert judged(runs_as_frozen()).reasons == ["its seeds are not those drawn from the plan"]
    parameters.study(seeds=drawn)
    assert not judged(runs_as_frozen()).reasons


def test_a_plan_that_is_not_frozen_leaves_a_study_exploratory(parameters: Parameters) -> None:
    parameters.study(seeds=[1, 2, 3])
    parameters.plan()
    (reason,) = judged(runs_as_frozen()).reasons
    assert reason.startswith("the plan was not frozen for it")


def test_only_a_study_that_the_plan_names_is_confirmatory(parameters: Parameters) -> None:
    parameters.study(name="other", seeds=[0])
    other = load_study("other")
    named = claim_status(other, load_plan(other))
    assert named.reasons == ["the plan does not name it as confirmatory"]
    assert claim_status(other, None).reasons == ["it names no plan"]
    assert str(claim_status(other, None)) == "EXPLORATORY: study 'other'; it names no plan"


def test_a_plan_that_is_not_frozen_confirms_nothing() -> None:
    study, plan = load_study("confirmatory"), Plan.model_validate(LISTED)
    assert study.seeds == plan.seeds
    (reason,) = claim_status(study, plan, runs_as_frozen()).reasons
    assert reason.startswith("the plan was not frozen for it")


def test_the_final_study_is_exploratory_under_the_plan_in_the_repository() -> None:
    final = load_study("final")
    plan = load_plan(final)
    assert plan is not None
    assert claim_status(final, plan).name == "EXPLORATORY"
    tried = {seed for name in ("pilot", "final") for seed in load_study(name).seeds}
    assert not set(plan.seeds or []) & tried


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
        ({"confirmatory": ["tiral"]}, "confirmatory: 'tiral' is unknown; did you mean 'trial'"),
        ({"confirmatory": []}, "frozen: 'trial' is unknown"),
        ({"primary": ["grad_norm"]}, "primary: of grad_norm neither lower nor higher is better"),
        (
            {"hypotheses": {"a": BOUND | {"test": ["layernrom", "none", "loss"]}}},
            "hypotheses.a.test: 'layernrom' is unknown; did you mean 'layernorm'?",
        ),
        (
            {"hypotheses": {"a": BOUND | {"test": ["layernorm", "none", "los"]}}},
            "hypotheses.a.test: 'los' is unknown; did you mean 'loss'?",
        ),
        (
            {"rules": "embeding-norm"},
            "rules: 'embeding-norm' is unknown; did you mean 'embedding-norm'?",
        ),
        ({"rules": "none"}, "hypotheses: nothing answers H0, H1a, H1b; give each its test"),
        ({"smallest_effect_of_interest": {"los": 0.1}}, "smallest_effect_of_interest: 'los' is"),
    ],
)
def test_a_name_that_names_nothing_is_an_error(
    change: dict[str, Any], named: str, parameters: Parameters
) -> None:
    """Accepted, it would drop out: of a loss of .02, and a rule R1, nothing would be left."""
    study = load_study("trial")
    assert load_plan(study) is not None
    parameters.plan(frozen={"trial": parameters.frozen()}, **change)
    with pytest.raises(ConfigError) as error:
        load_plan(study)
    assert named in str(error.value)


def test_a_hypothesis_names_one_arm_of_several_settings(parameters: Parameters) -> None:
    factors = STUDY["factors"] | {"training.learning_rate": [1e-3, 1e-2]}
    parameters.study(factors=factors)
    for arm, fault in (("layernorm", "'layernorm' is 2 arms; write one of layernorm,learning"),
                       ("layernorm,learning_rate=0.01", "")):  # fmt: skip
        test = [arm, "none,learning_rate=0.01", "loss"]
        parameters.plan(hypotheses={"a": BOUND | {"test": test}})
        study = load_study("trial", undrawn=True)
        if fault:
            with pytest.raises(ConfigError, match=fault):
                load_plan(study)
        else:
            assert load_plan(study) is not None


def test_a_study_whose_seeds_cannot_be_drawn_hides_no_other(parameters: Parameters) -> None:
    parameters.plan()
    parameters.study(name="other", seeds=[0])
    assert load_plan(load_study("other")) == Plan.model_validate(CONTENT)


def test_runs_of_another_plan_are_refused_naming_both_hashes() -> None:
    plan = Plan.model_validate(LISTED)
    changed = plan.model_copy(update={"alpha": 0.1})
    require_stamps(plan, {"none seed 0": plan.hash, "none seed 1": plan.hash})
    with pytest.raises(PreregistrationError) as error:
        require_stamps(changed, {"none seed 0": changed.hash, "none seed 1": plan.hash})
    assert "run none seed 1" in str(error.value)
    assert plan.hash in str(error.value)
    assert changed.hash in str(error.value)


def test_a_run_without_a_stamp_is_refused_under_a_plan_and_the_other_way_round() -> None:
    plan = Plan.model_validate(LISTED)
    with pytest.raises(PreregistrationError, match="under plan None"):
        require_stamps(plan, {"none seed 0": None})
    with pytest.raises(PreregistrationError, match="hash is None"):
        require_stamps(None, {"none seed 0": plan.hash})


HYPOTHESIS = {
    "says": "It lowers perplexity.",
    "test": ["layernorm", "none", "perplexity"],
    "direction": "less",
}
ASKED: dict[str, Any] = {"hypotheses": {"lower": HYPOTHESIS}, "families": {}, "rules": "none"}


def test_the_looks_of_a_confirmatory_study_are_those_that_were_frozen(
    parameters: Parameters,
) -> None:
    parameters.study(seeds={"count": 3, "looks": [2, 3]})
    frozen = parameters.frozen()
    parameters.plan(**ASKED, frozen={"trial": frozen | {"looks": [2, 3]}})
    study = load_study("trial")
    assert (study.looks, len(study.seeds)) == ([2, 3], 3)
    assert judged().name == "CONFIRMATORY"
    parameters.plan(**ASKED, frozen={"trial": frozen})
    assert judged().reasons == ["its looks are not those of the plan"]


def test_what_is_looked_at_once_goes_with_no_looks(parameters: Parameters) -> None:
    parameters.study(seeds={"count": 3, "looks": [2, 3]})
    families = {"families": {"all": [["layernorm", "none"]]}}
    for change in (families, {"rules": "embedding-norm"}):
        parameters.plan(**ASKED | change)
        with pytest.raises(ConfigError, match="families, rules: are looked at once"):
            load_plan(load_study("trial", undrawn=True))
    parameters.plan(**ASKED)
    assert load_plan(load_study("trial", undrawn=True))
