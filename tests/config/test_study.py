"""Studies load strictly, expand to their arms, and are identified by their common parameters."""

from pathlib import Path
from typing import get_args

import pytest

from lib.config.contrasts import Grid, arm_id
from lib.config.errors import ConfigError
from lib.config.files import read_json
from lib.config.schema import (
    FIELDS,
    MachineConfig,
    RunConfig,
    TrainingConfig,
    digest,
    recorded_config,
)
from lib.config.study import COPY, PARAMS, IncludedArm, Study, load_study, scratch
from tests.conftest import refused

MINIMAL = "name: little\nseeds: [0]\n"
LITTLE = {"name": "little", "seeds": [0]}
TWO_FACTORS = """
factors:
  model.embedding_norm: [none, layernorm]
  model.embedding_std: [0.02, 1.0]
"""
STUDIES = sorted(path.stem for path in PARAMS.glob("*.yaml"))


# Not `none`, with which embedding_rms may not change.
LITTLE_NORM = LITTLE | {"model": {"embedding_norm": "rmsnorm"}}
DECIDING = [name for name in FIELDS if not name.startswith("machine.")]
OTHER_TEXTS = {"corpus.source": "own.txt", "corpus.tokenizer": "bytes"}
LISTS = {"evaluation.tasks": ["piqa"], "evaluation.shots": [2], "evaluation.include_path": "tasks"}
"""Fields of several values, or of stock tasks, which no level of a factor can be."""
STOCK = {"corpus": {"tokenizer": "bytes"}, "evaluation": {"tasks": ["arc_easy"]}}
"""What these fields ask of the others."""


def around(name):
    """Return a study in which this field may have another value; some need an untied output."""
    untied = {"model": LITTLE_NORM["model"] | {"tied": False}}
    return LITTLE_NORM | (untied if name.startswith("model.head_") else {})


def another_value(name):
    """Split a dotted field into section and field; return both with an allowed value that is not
    the default."""
    section, _, field = name.partition(".")
    of_section = getattr(RunConfig.model_validate({"model": LITTLE_NORM["model"]}), section)
    default = getattr(of_section, field)
    if name in LISTS:
        return section, field, LISTS[name]
    if isinstance(default, str):
        allowed = get_args(type(of_section).model_fields[field].annotation)
        others = [value for value in allowed if value != default]
        return section, field, (others or [OTHER_TEXTS[name]])[0]
    if isinstance(default, bool):
        return section, field, not default
    if isinstance(default, int):
        return section, field, 2 * default or 1
    return section, field, 4 if default is None else default / 2 or 0.1


@pytest.mark.parametrize("study", ["final", "final.yaml", "params/final.yaml", Path("final.yaml")])
def test_a_study_is_loaded_by_name_or_path(study):
    assert load_study(study).name == "final"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("model: {n_layer: 2, n_embd: 64}\ncorpus: {fraction: 0.5}",
         "corpus: {fraction: 0.5}\nmodel: {n_embd: 64, n_layer: 2}"),
        ("", "training: {iterations: 300, beta2: 0.95}"),  # the defaults
        ("corpus: tinyshakespeare", "corpus: {source: tinyshakespeare}"),
        ("training: {learning_rate: 1}", "training: {learning_rate: 1.0}"),
        ("factors: {model.embedding_norm: [none, layernorm]}",
         "factors: {model.embedding_norm: [none, layernorm, rmsnorm]}"),
        ("factors: {model.n_layer: [1, 2]}",
         "model: {n_layer: 4}\nfactors: {model.n_layer: [1, 2]}"),
        ("", "paper: own"),
        ("", "seeds: [0, 7]"),
    ],
)  # fmt: skip
def test_changes_that_affect_no_run_keep_the_hash(load, one, other):
    minimal = MINIMAL.replace("seeds: [0]\n", "") if "seeds" in other else MINIMAL
    before, after = load(MINIMAL + one), load(minimal + other)
    assert before.hash == after.hash


@pytest.mark.parametrize("field", list(MachineConfig.model_fields))
def test_the_machine_is_outside_the_hash(load, field):
    values = {"device": "cpu", "compile": True, "activation_checkpointing": True, "graph": False}
    value = values.get(field, 4)
    study = load(MINIMAL + f"machine: {{{field}: {str(value).lower()}}}")
    assert getattr(study.machine, field) == value
    assert study.hash == load(MINIMAL).hash


def test_included_arms_are_added_to_the_grid(load):
    study = load(
        MINIMAL
        + """
factors: {model.embedding_norm: [none, layernorm]}
include:
  - levels: {model.embedding_norm: layernorm, training.learning_rate: 1.0e-3}
    name: faster
  - levels: {model.embedding_norm: scale, training.learning_rate: 3.0e-3}
    baseline: faster
"""
    )
    arms = {arm.id: arm for arm in study.arms()}
    assert list(arms) == ["none", "layernorm", "faster", "scale,learning_rate=0.003"]
    last = arms["scale,learning_rate=0.003"]
    assert (arms["faster"].variant, arms["faster"].baseline) == ("faster", "none")
    assert (last.variant, last.setting, last.baseline) == ("scale", "", "faster")
    assert last.config.training.learning_rate == 3e-3
    assert arms["none"].config.training.learning_rate == 3e-4


def test_arms_are_made_once(load):
    study = load(MINIMAL + TWO_FACTORS)
    assert study.arms()[0] is study.arms()[0] is study.arm("none,embedding_std=0.02")


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"name": "other"},
        {"seeds": [3, 4]},
        {"commits": {"main": "a" * 40}},
        {"plan": "other.yaml"},
        {"factors": {"model.embedding_norm": ["none", "rmsnorm"]}},
        {"factors": {"corpus.source": ["a/x.txt", "b/x.txt"]}},
        {"exclude": [{"model.embedding_norm": "layernorm"}]},
        {"include": [IncludedArm(levels={"model.n_layer": 3}, name="deep")], "factors": {}},
        {"machine": MachineConfig(threads=3)},
        {"training": TrainingConfig(iterations=7)},
    ],
    ids=",".join,
)
@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_has_the_arms_and_the_hash_of_its_own_fields(update, deep, load):
    copied = load(MINIMAL + TWO_FACTORS).model_copy(update=update, deep=deep)
    made = Study.model_validate(copied.model_dump())
    assert (copied.arms(), copied.hash, copied.paths) == (made.arms(), made.hash, made.paths)
    assert copied == made


def test_a_study_of_name_and_seeds_has_one_arm_of_defaults(load):
    (arm,) = load(MINIMAL).arms()
    assert arm.id == arm.baseline == "baseline"
    assert (arm.levels, arm.config) == ({}, RunConfig())


def test_a_grid_is_every_combination_each_beside_its_baseline(load):
    """The baseline has the first level of the first factor, and the same levels of the others."""
    arms = list(load(MINIMAL + TWO_FACTORS).arms())
    assert [(arm.id, arm.variant, arm.setting, arm.baseline) for arm in arms] == [
        (f"{norm},{std}", norm, std, f"none,{std}")
        for norm in ("none", "layernorm")
        for std in ("embedding_std=0.02", "embedding_std=1")
    ]
    models = [arm.config.model for arm in arms]
    assert [model.embedding_norm for model in models] == ["none", "none", "layernorm", "layernorm"]
    assert [model.embedding_std for model in models] == [0.02, 1.0, 0.02, 1.0]
    out = "exclude: [{model.embedding_norm: layernorm, model.embedding_std: 1.0}]"
    left = load(MINIMAL + TWO_FACTORS + out)
    assert list(left.arms()) == arms[:3]
    assert left.hash == load(MINIMAL + TWO_FACTORS).hash


def test_a_grid_of_a_million_arms_is_refused_before_one_is_made(load, monkeypatch):
    monkeypatch.setattr(Study, "arms", None)
    levels = "[" + ", ".join(map(str, range(1, 1001))) + "]"
    factors = f"factors: {{model.n_layer: {levels}, training.iterations: {levels}}}"
    with pytest.raises(ConfigError, match=r"1,000,000 runs; a study holds 10,000 at the most"):
        load(MINIMAL + factors)


@pytest.mark.parametrize("name", DECIDING)
def test_every_field_changes_the_hash(name):
    section, field, value = another_value(name)
    little = LITTLE_NORM | STOCK if name in LISTS else around(name)
    fields = little.get(section, {}) | {field: value}
    changed = Study.model_validate(little | {section: fields})
    assert changed.hash != Study.model_validate(little).hash


@pytest.mark.parametrize(
    "name", [n for n in DECIDING if n not in LISTS and not n.startswith("evaluation.")]
)
def test_every_field_of_what_is_trained_can_be_a_factor_and_changes_that_field_alone(name):
    section, field, value = another_value(name)
    study = Study.model_validate(around(name) | {"factors": {name: [value]}})
    (arm,) = study.arms()
    expected = study.model_dump(include=set(RunConfig.model_fields))
    expected[section][field] = value
    assert arm.config.model_dump() == expected


def test_an_arm_is_named_after_its_levels():
    levels = {"model.embedding_norm": "center", "training.learning_rate": 3e-4}
    levels |= {"training.gradient_clip": None, "corpus.source": "texts/own.txt"}
    assert arm_id(levels) == "center,learning_rate=0.0003,gradient_clip=none,source=own.txt"


def test_published_studies_keep_their_hashes():
    """The hash identifies a study's runs. It covers only values that differ from the defaults, so a
    field that is added later changes no hash."""
    published = read_json(PARAMS / "plans" / "published.json")["studies"]
    hashes = {name: load_study(name, undrawn=True).hash for name in STUDIES if name in published}
    assert hashes == {name: published[name] for name in hashes}
    assert len(hashes) > 15


def test_no_default_moves_under_older_studies():
    """A hash covers only values that differ from the defaults, so a changed default would change a
    study but not its hash. Adding or dropping a field changes this digest, but no study."""
    expected = "5e7ac40480934fbffc52c5d8908e9744af7bf382e0b088014d3c6d8e3de7ef15"
    assert digest(RunConfig().model_dump()) == expected


def test_accuracies_of_stock_tasks_are_named_by_task_and_shots():
    def named(*shots):
        asked = {"tasks": ["sciq", "piqa"], "shots": list(shots)}
        return Study.model_validate(LITTLE | STOCK | {"evaluation": asked}).stock_measures

    assert named() == named(5) == ["sciq.acc", "piqa.acc"]
    assert named(0, 5) == ["sciq.acc@0", "sciq.acc@5", "piqa.acc@0", "piqa.acc@5"]


def test_a_record_is_read_without_the_fields_that_were_dropped():
    corpus = {"source": "a.txt", "sources": {}, "deduplicate": False}
    content = {"corpus": corpus, "model": {"n_layer": 2}, "training": {"threads": 1}}
    config = recorded_config(content)
    assert (config.corpus.source, config.model.n_layer) == ("a.txt", 2)
    former = {"name": "old", "seeds": {"count": 3, "looks": [2, 3]}, "reported": "x.yaml"}
    study = Study.model_validate(content | former, extra="ignore")
    assert (study.seeds, study.arm("baseline").config) == ([0, 1, 2], config)


MINE = "name: mine\ncorpus: synthetic\nseeds: [0, 1]\n"


@pytest.fixture
def mine(parameters):
    """A user's study outside `params/`."""
    file = parameters.top / "work" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(MINE, "utf-8")
    return file


def test_a_study_elsewhere_is_copied_and_may_be_changed(mine, parameters, monkeypatch):
    monkeypatch.chdir(mine.parent)
    assert load_study("./mine.yaml") == load_study(mine) == load_study("mine")
    mine.write_text(MINE.replace("[0, 1]", "[5]"), "utf-8")
    assert load_study("mine.yaml").seeds == load_study("mine").seeds == [5]
    copy = parameters.folder / "mine.yaml"
    assert copy.read_text("utf-8") == COPY + mine.read_text("utf-8")
    with pytest.raises(ConfigError, match=r"'other/x.yaml' is unknown"):
        load_study("other/x.yaml")


def test_a_study_of_a_read_only_checkout_is_read_from_a_copy(tmp_path, monkeypatch):
    params = tmp_path / "working" / "params"
    for module in ("files", "study"):
        monkeypatch.setattr(f"lib.config.{module}.PARAMS", params)
    assert load_study("smoke").name == "smoke"
    assert (params / "smoke.yaml").read_bytes() == (PARAMS / "smoke.yaml").read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINE.replace("seeds", "seed"), "mine.yaml: seeds: is missing; add it; seed: 'seed' is"),
        (MINE.replace("mine", "other"), "mine.yaml: name: 'other' is not the file's name;"),
        ("name: [mine", "mine.yaml, line 1 is not valid YAML"),
        (MINE, "mine.yaml: there is another params/mine.yaml; give yours another name"),
    ],
)
def test_wrong_study_elsewhere_is_refused_and_replaces_nothing(text, said, mine, parameters):
    (parameters.folder / "mine.yaml").write_text("name: mine\nseeds: [7]\n", "utf-8")
    mine.write_text(text, "utf-8")
    assert refused(load_study, mine).startswith(said)
    assert load_study("mine").seeds == [7]


@pytest.mark.parametrize("plan", ["v1.2", "v1.2.yaml"])
def test_a_plan_is_named_with_and_without_its_suffix(plan):
    study = Study.model_validate({"name": "little", "seeds": [0], "plan": plan})
    assert study.plan == "v1.2.yaml"


def test_changes_make_a_scratch_run_that_no_study_sees():
    study = load_study("final")
    arm = study.arm("layernorm")
    play, changed = scratch(study, arm, {"training.learning_rate": 0.01})
    assert (play.name, play.plan, changed.baseline) == (".scratch", None, "layernorm")
    assert changed.id == "final,layernorm,learning_rate=0.01"
    assert changed.config.training.learning_rate == 0.01
    assert changed.config.model == arm.config.model
    assert len(scratch(study, arm, {"corpus.source": "x" * 200})[1].id) <= 120
    assert scratch(study, arm, {}) == (study, arm)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["data/a/input.txt", "data/b/input.txt"], ["a-input.txt", "b-input.txt"]),
        (["data/a.txt", "data/b.txt"], ["a.txt", "b.txt"]),
        (["x/de/input.txt", "y/de/input.txt", "own.txt"], ["x-de-input.txt", "y-de-input.txt", 0]),
        (["b/x.txt", "a/b/x.txt", "x.txt"], ["b-x.txt", "a-b-x.txt", "x.txt"]),
        (["synthetic", "data/synthetic"], ["synthetic", "data-synthetic"]),
        (["/top/a", "/a"], ["top-a", "root-a"]),
    ],
)
def test_texts_of_one_file_name_are_told_apart_by_as_much_of_their_paths_as_it_takes(
    sources, names
):
    names = [name or Path(source).name for name, source in zip(names, sources, strict=True)]
    for other in ({}, {"model.tied": [True, False]}):
        study = Study.model_validate(LITTLE | {"factors": {"corpus.source": sources} | other})
        arms = list(study.arms())
        assert [*dict.fromkeys(arm.variant for arm in arms)] == [f"source={n}" for n in names]
        levels = Grid({arm.id: arm.levels for arm in arms}).level_names()
        assert [name for name in levels if "source" in name] == [f"source={n}" for n in names]
