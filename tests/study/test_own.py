"""A study of one's own, the text in a cell or a file elsewhere, runs as one of params/ does."""

from pathlib import Path

import pytest
import yaml

from lib.study import inputs
from lib.study.inputs import MARK, is_copy, prepare_params, write_copy
from lib.study.preregistration import claim_status, load_plan
from lib.study.study import load_study
from lib.study.yaml import ConfigError
from tests.study.samples import CONTENT, Parameters

TEXT = """
name: mine
corpus: {source: synthetic, fraction: 0.05}
factors: {model.embedding_norm: [none, layernorm]}
seeds: [0, 1]
"""
PLAN = yaml.safe_dump(CONTENT | {"confirmatory": ["mine"]})


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = Parameters(tmp_path, monkeypatch)
    monkeypatch.setattr("lib.study.study.PLANS", place.plans)
    return place.folder


def test_a_text_is_found_by_its_name_and_may_be_changed(params: Path) -> None:
    first = load_study(TEXT)
    assert load_study("mine") == load_study(TEXT) == first
    assert (first.name, first.seeds) == ("mine", [0, 1])
    assert load_study(TEXT.replace("[0, 1]", "[5]")).seeds == load_study("mine").seeds == [5]


def test_a_line_may_begin_it_as_in_any_yaml(params: Path) -> None:
    assert load_study(f"# mine\n---\n{TEXT}") == load_study(f"---{TEXT}") == load_study(TEXT)


def test_a_file_beside_the_notebook_is_taken_too(
    params: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "anything.yaml").write_text(TEXT, "utf-8")
    monkeypatch.chdir(tmp_path / "work")
    assert load_study("anything.yaml") == load_study("mine")
    assert is_copy(params / "mine.yaml")
    with pytest.raises(ConfigError, match="there is no other"):
        load_study("other/x.yaml")


def test_a_plan_stands_below_it(params: Path) -> None:
    study = load_study(f"{TEXT}plan: own-plan.yaml\n---\n{PLAN}")
    assert load_plan(study) == load_plan(load_study("mine"))
    assert load_plan(study) is not None
    assert "EXPLORATORY" in str(claim_status(study, load_plan(study)))
    with pytest.raises(ConfigError, match=r"^study: plan: .* name it"):
        load_study(f"{TEXT}\n---\n{PLAN}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("seeds", "seed"), "study: seeds: is missing; add it; seed: .* did you mean"),
        (TEXT.replace("mine", "../mine"), "study: name: '../mine' is not allowed"),
        ("name: [mine\nseeds: [0]\n", "study, line 2 is not valid YAML"),
        (TEXT + "plan: ../p.yaml\n---\nx: 1\n", "study: plan: '../p.yaml' is not allowed"),
        (TEXT + "---", "study: nothing stands below the line ---; write a plan there, or"),
        (f"---{TEXT}plan: p.yaml\n--- \n\n", "study: nothing stands below the line ---"),
        (
            TEXT + "plan: p.yaml\n---\ntitle: x\n---\n",
            "study: p.yaml, line 2 is not valid YAML: a ",
        ),
        (TEXT + "plan: p.yaml\n---\nx: 1\n", "study: p.yaml: title: is missing; add it; "),
        (TEXT.replace("mine", "there"), "study: there is another params/there.yaml"),
    ],
)
def test_a_wrong_one_is_named_in_one_line_and_leaves_nothing(
    text: str, said: str, params: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (params / "there.yaml").write_text("name: there\nseeds: [0]\n", "utf-8")
    monkeypatch.setattr(inputs, "relative", lambda path: f"params/{path.name}")
    before = sorted(params.rglob("*.yaml"))
    with pytest.raises(ConfigError, match=said) as caught:
        load_study(text)
    assert "\n" not in str(caught.value)
    assert sorted(params.rglob("*.yaml")) == before


def test_what_somebody_wrote_is_not_replaced_and_an_equal_text_is_it(params: Path) -> None:
    (params / "mine.yaml").write_text(TEXT, "utf-8")
    assert load_study(TEXT).name == "mine"
    assert (params / "mine.yaml").read_text("utf-8") == TEXT
    with pytest.raises(ConfigError, match="another"):
        write_copy("x: 1", params / "mine.yaml")


def test_where_the_repository_cannot_be_written_its_parameters_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "input" / "params" / "plans").mkdir(parents=True)
    (tmp_path / "input" / "params" / "plans" / "p.yaml").write_text("a: 1", "utf-8")
    monkeypatch.setattr(inputs, "ROOT", tmp_path / "input")
    monkeypatch.setattr(inputs, "PARAMS", tmp_path / "working" / "params")
    for _ in range(2):
        prepare_params()
        assert (inputs.PARAMS / "plans" / "p.yaml").read_text("utf-8") == "a: 1"
        (inputs.PARAMS / "own.yaml").write_text(MARK, "utf-8")
    assert is_copy(inputs.PARAMS / "own.yaml")
