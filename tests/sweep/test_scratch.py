"""Fields on the command line change all runs of a study, like `changes` in 02_train. The study
stays unchanged."""

import re

import pytest

from lib.config.files import read_json
from lib.config.study import load_study
from lib.sweep import cli
from lib.sweep.scratch import read_changes, with_changes
from tests.conftest import Tree


def test_values_are_yaml_and_reach_every_arm():
    changes = read_changes(["training.learning_rate=1e-2", "model.tied=false", "corpus.source=a=b"])
    expected = {"training.learning_rate": 0.01, "model.tied": False, "corpus.source": "a=b"}
    assert changes == expected
    changed = with_changes(load_study("final"), changes)
    assert {
        (arm.config.training.learning_rate, arm.config.model.tied) for arm in changed.arms()
    } == {(0.01, False)}
    assert changed.plan is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "smoke training.iteration=8",
            "changes: 'training.iteration' is unknown; did you mean 'tr",
        ),
        ("smoke iterations=8", "changes: 'iterations' is unknown; did you mean 'training.iter"),
        ("training.lr=1 smoke", "changes: 'training.lr' is unknown; there are training.iterations"),
        ("smoke training.iterations=x", "changes: training.iterations: 'x' is not allowed"),
        ("smoke training.iterations=[", "training.iterations=[, line 1 is not valid YAML"),
        ("smoke model.n_head=3", "changes: model: n_embd 32 must be a multiple of n_head 3"),
        ("smoke model.embedding_norm=none", "model.embedding_norm: is a factor; change its levels"),
        ("smoke training.iterations=8 --replace", "training.iterations=8: scratch runs take only"),
        ("smokee.yaml training.iterations=8", "study: 'smokee' is unknown; did you mean 'smoke'?"),
    ],
)
def test_what_cannot_be_changed_is_refused_in_one_line(words, message, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert cli.main(words.split()) in (1, 2)
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {message}")


@pytest.mark.slow
def test_a_changed_study_is_trained_and_told_and_leaves_no_record(tmp_path):
    tree = Tree(tmp_path / "home")
    words = ("params/smoke.yaml", "training.iterations=8", "evaluation.items_per_task=0")
    status, text = tree.run_all(*words)
    assert status == 0, text
    assert re.search(r"^layernorm − none +[+−-]\d\.\d{4} \[", text, re.MULTILINE)
    assert "scratch runs are in no record" in text
    results = sorted(tree.root.glob("runs/.scratch/smoke,*,iterations=8,*/seed-*/result.json"))
    assert [read_json(path)["steps"] for path in results] == [8] * 4
    assert not [*tree.root.glob("runs/smoke/*"), *tree.root.glob("papers/smoke/*")]
    status, text = tree.run_all(*words)
    assert text.startswith("smoke: 0 of 4 scratch runs to train"), text
