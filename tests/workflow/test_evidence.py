"""Weights keep the provenance they were born with, and nothing stale is called done."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.study.io import sha256
from tests.conftest import Tree

pytestmark = pytest.mark.slow

PROBE = {
    "factors": {"model.embedding_norm": ["none", "center"]},
    "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0},
}
ARM = "none"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "embedding-norm")
    tree.write_study("probe", **PROBE)
    assert "Stale" not in sweep(tree)
    return tree


def sweep(tree: Tree, *flags: str) -> str:
    status, text = tree.run_all("params/probe.yaml", *flags)
    assert status == 0, text
    return text


def result(tree: Tree) -> dict[str, Any]:
    path = tree.run_folder("probe", ARM) / "result.json"
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.long
def test_a_plan_written_after_the_runs_restamps_none_of_them(tree: Tree) -> None:
    before = result(tree)
    trained = before["provenance"]["trained"]
    assert (trained["plan"], before["provenance"]["executed"]["from_checkpoint"]) == (None, False)
    tree.write_study("probe", **PROBE, plan="preregistration.yaml")
    text = sweep(tree)
    assert " and was None: trained anew" in text
    after = result(tree)
    now = after["provenance"]["trained"]
    assert now["plan"] is not None
    assert now["started"] > trained["started"]
    assert after["provenance"]["executed"]["from_checkpoint"] is False
    assert after["final_weights"] == before["final_weights"]  # the same run, made a second time
    kept = list((tree.run_folder("probe", ARM) / "checkpoints").iterdir())
    assert len(kept) == 2  # the weights from before the plan are set aside, as they were
    stamps = {
        json.loads((path / "step-00000012" / "provenance.json").read_text())["plan"]
        for path in kept
    }
    assert stamps == {None, now["plan"]}

    sweep(tree, "--forcerun", "train")
    forced = result(tree)["provenance"]
    assert forced["trained"] == now
    assert forced["executed"]["from_checkpoint"] is True
    notebook = tree.run_folder("probe", ARM) / "02_train.ipynb"
    assert nbformat.read(notebook, 4).metadata["study"]["preregistration"] == now["plan"]
    assert f"trained {now['started']} by " in notebook.read_text("utf-8")
    assert "; executed again from its weights " in notebook.read_text("utf-8")

    replace(tree.root / "params" / "plans" / "preregistration.yaml", "alpha: 0.05", "alpha: 0.06")
    assert f"and was {now['plan'][:12]}: trained anew" in sweep(tree)
    assert result(tree)["provenance"]["trained"]["plan"] not in (None, now["plan"])


@pytest.mark.long
def test_after_an_edit_just_what_is_stale_is_made_anew_and_named(tree: Tree) -> None:
    before = result(tree)
    evaluation, model = (tree.root / f"lib/run/{name}.py" for name in ("evaluation", "model"))
    replace(evaluation, '"""Measures of a', '"""More. Measures of a')
    replace(model, "\n\n\n", "\n\n\n# a comment\n")
    assert "Nothing to do" in sweep(tree)

    evaluation.write_text(evaluation.read_text("utf-8") + "\nLAST = 0\n", "utf-8")
    text = sweep(tree)
    assert "Stale: runs/probe/none/seed-0/result.json: measuring code is " in text
    assert "measured anew from its weights" in text
    measured = result(tree)
    assert measured["provenance"]["trained"] == before["provenance"]["trained"]
    assert measured["provenance"]["executed"]["from_checkpoint"] is True
    assert measured["measures"] == before["measures"]

    model.write_text(model.read_text("utf-8") + "\nLAST = 0\n", "utf-8")
    assert "trained anew" in sweep(tree)
    trained = result(tree)
    assert trained["provenance"]["executed"]["from_checkpoint"] is False
    assert trained["provenance"]["trained"]["started"] > before["provenance"]["trained"]["started"]
    assert trained["final_weights"] == before["final_weights"]
    assert "Nothing to do" in sweep(tree)


@pytest.mark.long
def test_an_edited_text_and_damaged_files_are_noticed_and_healed(tree: Tree) -> None:
    before = result(tree)
    text = tree.root / "data" / "mine.txt"
    text.write_text("To be, or not to be.\n\nThat is the question.\n" * 400)
    tree.write_study("probe", **PROBE | {"corpus": {"source": "data/mine.txt"}})
    assert "corpus is " in sweep(tree)
    first = result(tree)
    assert first["final_weights"] != before["final_weights"]

    runs = tree.root / "runs" / "probe"
    damaged = [
        *(runs / "none/seed-0/result.json", runs / "center/seed-0/trace.parquet"),
        *(runs / "verdict.json", runs / "01_data.ipynb"),
    ]
    for path in damaged:
        path.write_bytes(b"")
    said = sweep(tree)
    for path in damaged:
        assert f"{path.name} " in said
        assert path.stat().st_size > 0
    again = result(tree)
    assert again["measures"] == first["measures"]
    assert again["provenance"]["trained"] == first["provenance"]["trained"]

    with text.open("a") as file:
        file.write("To be.\n")
    assert f"corpus is {sha256(text)[:12]} and was {first['corpus_sha256'][:12]}" in sweep(tree)
    assert result(tree)["corpus_sha256"] == sha256(text)
    assert "Nothing to do" in sweep(tree)
