"""What a plan may say, its hash, and the seeds that are drawn from it."""

import hashlib
import json
import re
import subprocess

import pytest

from lib.config.errors import ConfigError
from lib.config.files import read_json
from lib.config.plan import PLANS, Plan, read_plan
from lib.config.study import Study, load_study
from tests.config.samples import BOUND, FAMILY, PLAN, STUDY, TEXT
from tests.conftest import refused

PUBLISHED = read_json(PLANS / "published.json")["plans"]
WITHIN = {"says": "…", "test": ["layernorm", "none", "loss"], "equivalent_within": 0.1}


@pytest.mark.parametrize("file", sorted(PUBLISHED))
def test_a_published_plan_has_its_hash_and_its_seeds(file):
    """Their files have fields of earlier schemas. Verdicts and runs carry their hashes, and the
    seeds of a frozen plan follow from its hash."""
    plan, published = read_plan(file), PUBLISHED[file]
    assert plan.hash == published["hash"]
    for study, fixed in plan.frozen.items():
        typed = published["studies"][study]
        assert plan.draw(study, fixed.seeds) == typed["seeds"]
        assert fixed.used_seeds == typed["skipped"]


def test_margins_of_the_first_plans_are_smallest_effects_of_interest():
    second, stability = (read_plan(f"{name}.yaml") for name in ("second", "stability"))
    accuracies = ("accuracy", "macro_accuracy_zero_shot", "macro_accuracy_few_shot")
    assert stability.smallest_effect_of_interest == dict.fromkeys(accuracies, 0.01)
    of_second = stability.smallest_effect_of_interest | {"perplexity": 0.1}
    assert second.smallest_effect_of_interest == of_second


def test_plan_hash_ignores_deviations_and_blanks(parameters):
    """The schema plays no part in the hash: a default that changes later changes no seed."""
    text = json.dumps(PLAN, sort_keys=True, separators=(",", ":"))
    expected = hashlib.sha256(text.encode()).hexdigest()
    deviation = {"date": "2026-11-30", "what": "a", "why": "b"}
    for change in ({}, {"deviations": [deviation]}, {"spread": " ", "primary": None}):
        parameters.plan(**change)
        assert read_plan("plän.yaml").hash == Plan.model_validate(PLAN | change).hash == expected
    assert Plan.model_validate(PLAN | {"alpha": 0.01}).hash != expected


def test_plan_fields_have_defaults():
    plan = Plan.model_validate(PLAN)
    assert (plan.alpha, plan.power, plan.primary_measures) == (0.05, 0.8, ["loss"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alpha": 5}, "alpha: 5 is not allowed"),
        ({"alhpa": 0.05}, "alhpa: 'alhpa' is unknown; did you mean 'alpha'"),
        ({"title": " "}, "title: is missing; add it"),
        ({"confirmatory": []}, "confirmatory: [] is not allowed. List should have at least 1"),
        ({"hypotheses": {}}, "hypotheses: {} is not allowed. Dictionary should have at least 1"),
        ({"hypotheses": {"a": BOUND | {"test": ["a", "b"]}}}, "hypotheses.a.test: ['a', 'b'] is"),
        ({"hypotheses": {"a": BOUND | {"equivalent_within": 1}}}, "hypotheses.a: give either dir"),
        ({"hypotheses": {"a": {"says": "…", "test": BOUND["test"]}}}, "hypotheses.a: give either"),
        ({"hypotheses": {"a": {"says": "…", "beyond": 1}}}, "hypotheses.a: test: is missing"),
        ({"hypotheses": {"a": WITHIN | {"beyond": 1}}}, "hypotheses.a: beyond goes with direction"),
        ({"spread": {"loss": 0}}, "spread.str: {'loss': 0} is not allowed"),
        ({"families": {"a": FAMILY | {"contrasts": [["x"]]}}}, "families.a.contrasts.0: ['x'] is"),
        ({"families": {"a": FAMILY | {"tset": "t"}}}, "families.a.tset: 'tset' is unknown; did"),
        ({"families": {"a": FAMILY | {"test": "tt"}}}, "families.a.test: 'tt' is not allowed. Inp"),
        ({"deviations": [3]}, "deviations.0: 3 holds no fields; write them below it"),
        ({"instability": {"nois": {}}}, "instability.nois: 'nois' is unknown; did you mean 'noi"),
        ({"instability": {"rise": 0.5}}, "instability: give one definition: noise; or rise, last"),
        ({"frozen": {"trial": {"seeds": 0}}}, "frozen.trial.seeds: 0 is not allowed"),
    ],
)  # fmt: skip
def test_wrong_plan_field_is_one_line_with_the_remedy(change, said, parameters):
    parameters.plan(**change)
    with pytest.raises(ConfigError) as error:
        read_plan("plän.yaml")
    assert f"plän.yaml: {said}" in str(error.value).split("\nerror: ")[0]


def test_seeds_are_31_bits_of_the_hash_of_plan_study_and_place(parameters):
    parameters.study()
    parameters.plan()
    plan = parameters.freeze()
    study = load_study("trial")
    assert study.seeds == [
        int(hashlib.sha256(f"{plan.hash}/trial/{i}".encode()).hexdigest()[:8], 16) // 2
        for i in range(3)
    ]
    assert study.hash == Study.model_validate(study.model_dump() | {"seeds": [0]}).hash


def test_used_seeds_are_skipped(monkeypatch):
    """The hash is fixed here, because listing another used seed would change all draws."""
    monkeypatch.setattr(Plan, "hash", "h")

    def draw(n, used):
        frozen = {"seeds": n, "used_seeds": used, "parameters": TEXT, "corpus": {}, "suite": []}
        return Plan.model_validate(PLAN | {"frozen": {"trial": frozen}}).draw("trial", n)

    first, second, third = draw(3, [])
    assert draw(2, [second]) == [first, third]


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.01},
        {"title": "Another"},
        {"frozen": {"used_seeds": [7]}},
        {"frozen": {"parameters": TEXT}},
        {"frozen": {"suite": []}},
    ],
)
def test_a_plan_edited_after_its_runs_has_other_seeds(change, parameters):
    """So hypotheses written after seeing results have no runs: existing runs have other seeds."""
    parameters.study()
    parameters.plan()
    frozen = parameters.freeze().frozen["trial"].model_dump()
    before = load_study("trial").seeds
    frozen |= change.pop("frozen", {})
    parameters.plan(frozen={"trial": frozen}, **change)
    assert not set(before) & set(load_study("trial").seeds)


def test_a_plan_that_was_deleted_can_be_restored(parameters):
    parameters.plan()
    parameters.study()
    parameters.commit()
    (parameters.plans / "plän.yaml").unlink()
    for _ in range(2):  # at first not committed
        fault = refused(load_study, "trial")
        assert fault.startswith("trial.yaml: plan: there is no params/plans/plän.yaml")
        (command,) = re.findall("`(.*)` restores it$", fault)
        subprocess.run(command, cwd=parameters.top, shell=True, check=True)
        assert "seeds: a count" in refused(load_study, "trial")  # because it is not frozen
        (parameters.plans / "plän.yaml").unlink()
        parameters.commit()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, r"seeds: a count .* \./run_all\.sh freeze plän\.yaml$"),
        ({"plan": None}, r"seeds: a count .* freeze PLAN, and name it here$"),
        ({"plan": "pl.yaml"}, r"plan: there is no params/plans/pl\.yaml .* mean 'plän'.* --new"),
        ({"seeds": {"count": 0}}, r"seeds: write a list, or {count: 8} to draw so many"),
        ({"seeds": {"count": 10**9}}, r"seeds: write a list, or {count: 8} to draw so many"),
    ],
)
def test_seeds_that_cannot_be_drawn_say_what_to_do(change, said, parameters):
    parameters.plan()  # not frozen
    parameters.write("trial.yaml", STUDY | change)
    with pytest.raises(ConfigError, match=rf"^trial\.yaml: {said}"):
        load_study("trial")
