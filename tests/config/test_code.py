"""Which code a run is of: keys that change with a byte of a source that counts, and the commit."""

import json
import shutil
from pathlib import Path

import pytest

from lib.config import code
from lib.config.code import (
    git_state,
    measure_key,
    plan_log,
    require_allowed,
    tasks_hash,
    train_key,
)
from lib.config.io import ROOT
from lib.config.yaml import ConfigError
from tests.config.samples import Parameters

TRAIN, MEASURE = "train", "measure"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the keys are of."""
    top = tmp_path / "copy"
    shutil.copytree(ROOT / "lib", top / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "notebooks").mkdir()
    shutil.copyfile(ROOT / "notebooks/02_train.ipynb", top / "notebooks/02_train.ipynb")
    monkeypatch.setattr(code, "ROOT", top)
    monkeypatch.setattr(code, "NOTEBOOKS", top / "notebooks")
    return top


def keys() -> dict[str, str]:
    for function in (train_key, measure_key, git_state):
        function.cache_clear()
    return {TRAIN: train_key(), MEASURE: measure_key()}


def append(file: Path, text: str = "# a comment\n") -> None:
    file.write_text(file.read_text("utf-8") + text, "utf-8")


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        *((f"lib/config/{name}.py", {TRAIN}) for name in ("schema", "study", "yaml")),
        *((f"lib/data/{name}.py", {TRAIN}) for name in ("text", "tokens")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("model", "trainer", "checkpoint")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("machine", "distributed")),
        *((f"lib/train/{name}.py", {MEASURE}) for name in ("evaluate", "diagnostics", "lm_eval")),
        *((f"lib/data/{name}.py", {MEASURE}) for name in ("suite", "tasks")),
        *((f"lib/{name}.py", {MEASURE}) for name in ("results", "config/metrics")),
        *((f"lib/config/{name}.py", set()) for name in ("plan", "preregistration", "code", "io")),
        *((f"lib/{name}.py", set()) for name in ("stats/verdict", "figures/style")),
        *((f"lib/{name}", set()) for name in ("README.md", "sweep/sweep.py")),
    ],
)
def test_a_key_changes_with_each_source_that_it_is_of_and_with_no_other(
    file: str, changed: set[str], tree: Path
) -> None:
    before = keys()
    append(tree / file)
    assert {name for name, key in keys().items() if key != before[name]} == changed


def test_keys_are_of_the_cells_up_to_the_one_that_trains_and_the_one_with_the_result(
    tree: Path,
) -> None:
    notebook = tree / "notebooks" / "02_train.ipynb"
    content = json.loads(notebook.read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in content["cells"]]
    trains = next(i for i, text in enumerate(sources) if " train(" in text)
    writes = next(i for i, text in enumerate(sources) if "write_result(" in text)
    before = keys()
    for i, cell in enumerate(content["cells"]):
        is_code = cell["cell_type"] == "code"
        asks = "parameters" in cell["metadata"].get("tags", [])
        expected = {TRAIN} if i <= trains else {MEASURE} if i <= writes else set()
        text = sources[i]
        cell["source"] = text + "\n# another line"
        notebook.write_text(json.dumps(content), "utf-8")
        cell["source"] = text
        changed = {name for name, key in keys().items() if key != before[name]}
        assert changed == (expected if is_code and not asks else set()), text


def test_a_key_asks_neither_git_nor_when_a_file_was_written(tree: Path) -> None:
    before = keys()
    for file in tree.rglob("*.py"):
        file.touch()
    assert keys() == before
    assert git_state() == {"commit": None, "clean": None}


def test_git_names_the_commit_and_whether_what_runs_is_as_committed(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> dict[str, object]:
        git_state.cache_clear()
        return git_state()

    parameters.study()
    parameters.plan()
    commit = parameters.commit()
    assert state() == {"commit": commit, "clean": True}
    (parameters.top / "README.md").write_text("prose", "utf-8")
    assert state()["clean"] is True
    (parameters.top / "lib" / "new").mkdir(parents=True)
    (parameters.top / "lib" / "new" / "module.py").write_text("x = 1", "utf-8")
    assert state()["clean"] is False  # untracked, and Python would import it
    outer = parameters.commit()
    assert plan_log("p.yaml").startswith(commit[:7])
    assert plan_log("q.yaml") == "git knows no commit of it"
    # The checkout of another commit, for an arm that is one.
    tree = parameters.top / "runs" / ".code" / commit
    parameters.git("worktree", "add", "-q", "--detach", str(tree), commit)
    monkeypatch.setattr(code, "ROOT", tree)
    monkeypatch.setenv("STUDY_OUTPUT", str(parameters.top))
    assert state() == {"commit": outer, "clean": True, "code": commit}


def test_a_packed_tree_names_its_commit_and_does_not_know_whether_it_was_changed(
    tree: Path,
) -> None:
    (tree / "lib" / "VERSION").write_text("a" * 40 + "\n", "utf-8")
    keys()
    assert git_state() == {"commit": "a" * 40, "clean": None}


def test_tasks_of_one_s_own_are_hashed_by_their_files_and_asked_once_they_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed-tasks.txt"
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr(code, "corpus_places", lambda name: [tmp_path / name])
    monkeypatch.setattr("sys.pycache_prefix", None)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "items.jsonl").write_text("{}", "utf-8")
    (tmp_path / "tasks" / "own.yaml").write_text("task: own", "utf-8")
    first = tasks_hash("tasks")
    (tmp_path / "tasks" / ".hidden").write_text("", "utf-8")
    assert tasks_hash("tasks") == first
    (tmp_path / "tasks" / "items.jsonl").write_text("{} ", "utf-8")
    assert tasks_hash("tasks") != first
    assert tasks_hash(None) is None
    require_allowed(None)
    changes = {"own.yaml": "task: other", ".yaml": "task: own", ".in/utils.py": "", "d/x": ""}
    for name, text in changes.items():
        (tmp_path / "tasks" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=r"read those in tasks; .* data/allowed-tasks.txt"):
            require_allowed("tasks")
        allowed.write_text(f"{'0' * 64}\n{tasks_hash('tasks')}\n", "utf-8")
        require_allowed("tasks")
