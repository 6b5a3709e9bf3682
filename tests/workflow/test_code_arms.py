"""Commits as arms: what cannot be one, in one line, and a question answered from a clone."""

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.workflow.commits import find_commits, moved

from lib.record import replay
from lib.study import study as config
from lib.study.code import git_state
from lib.study.plan import Commit
from lib.study.study import Study
from lib.study.yaml import ConfigError
from lib.workflow import commits
from tests.conftest import TINY, Tree, run_git

DIGESTS = {"training_digest": "a" * 64, "measuring_digest": "b" * 64}
KNOWS = f"import json\ndef digests(): ...\nprint(json.dumps({DIGESTS}))\n"
REFUSES = (
    "import sys\ndef digests(): ...\nsys.exit(\"error: t.yaml: model.foo: 'foo' is unknown\")\n"
)


def design(*levels: str, **content: Any) -> Study:
    factors = {"code": list(levels)}
    return Study.model_validate(TINY | {"name": "t", "seeds": [0], "factors": factors} | content)


class Checkout:
    """A repository whose library is one file: what a commit says of itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("lib/__init__.py", "params/t.yaml", "notebooks/x", ".gitignore"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("/runs\n" if name == ".gitignore" else "", "utf-8")
        self.git = partial(run_git, root)
        self.git("init", "-q", "-b", "main")

    def commit(self, branch: str, says: str) -> str:
        self.git("checkout", "-q", "-B", branch)
        (self.root / "lib" / "replay.py").write_text(says, "utf-8")
        self.git("add", "--all")
        self.git("commit", "-qm", branch)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    for module in ("lib.record.replay", "lib.results", "lib.study.code"):
        monkeypatch.setattr(f"{module}.ROOT", tmp_path)
    monkeypatch.setattr(commits, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(commits, "output_root", lambda: tmp_path)
    monkeypatch.setattr(commits, "git_state", git_state.__wrapped__)
    monkeypatch.setattr(commits, "link_inputs", lambda *_: None)
    return Checkout(tmp_path)


def test_a_level_is_the_commit_that_it_names_and_asks_it_what_its_code_decides(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = checkout.commit("main", KNOWS), checkout.commit("try/it", KNOWS + "\n#")
    found = find_commits(design("main", "try/it"), {})
    expected = {"main": first, "try/it": second}
    assert found == {name: Commit(commit=c, **DIGESTS) for name, c in expected.items()}
    assert [arm.id for arm in design("main", "try/it").arms()] == ["main", "try-it"]
    # In a clone, a branch is known by where it came from; and what is known is not asked again.
    checkout.git("update-ref", "refs/remotes/origin/try/it", second)
    checkout.git("checkout", "-q", "main")
    checkout.git("branch", "-D", "try/it")
    monkeypatch.setattr(commits, "ask", None)
    study = design(first[:9], "try/it").model_copy(update={"commits": found})
    assert [c.commit for c in find_commits(study, {}).values()] == [first, second]
    assert find_commits(design("main").model_copy(update={"factors": {}}), {}) == {}
    # What a plan has fixed stays, and it is said where the name has moved to other code.
    monkeypatch.setattr(commits, "fixed_commits", lambda _: found)
    assert list(moved(study)) == []
    later = checkout.commit("main", KNOWS + "\n##")
    assert find_commits(design("main", "try/it"), found) == found
    (line,) = moved(study)
    assert f"'main' is now at {later[:12]}, with other code; what runs is {first[:12]}" in line


@pytest.mark.parametrize(
    ("levels", "before", "said"),
    [
        (("main", "nowhere"), None, "'nowhere' is no commit, branch or tag here; `git fetch` it"),
        (("main", "same"), None, "'main' and 'same' are one commit, "),
        (("main", "old"), None, "is older than the factor code, which it does not know"),
        (("main", "other"), None, "cannot run this study: t.yaml: model.foo: 'foo' is unknown"),
        (
            ("old", "main"),
            lambda root: (root / "lib" / "replay.py").write_text("print(1)"),
            "changes that are not committed cannot be an arm, and 'main' is the commit that is "
            "changed here (lib/replay.py); commit or undo them",
        ),
    ],
)
def test_what_cannot_be_an_arm_is_refused_in_one_line(
    levels: tuple[str, ...], before: Callable[[Path], Any] | None, said: str, checkout: Checkout
) -> None:
    for branch, says in (("old", "def state(): ..."), ("other", REFUSES), ("main", KNOWS)):
        checkout.commit(branch, says)
    checkout.git("branch", "same")
    if before:
        before(checkout.root)
    with pytest.raises(ConfigError) as error:
        find_commits(design(*levels), {})
    assert said in str(error.value)
    assert str(error.value).startswith("t.yaml: factors.code: ")
    assert "\n" not in str(error.value)


def test_outside_git_no_commit_is_an_arm(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / ".git").rename(tmp_path / "no")
    with pytest.raises(ConfigError, match="this folder is no clone"):
        find_commits(design("main"), {})


def test_a_tree_has_the_code_of_one_commit_and_the_parameters_of_another(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = Path("params", "t.yaml")
    code = checkout.commit("old", KNOWS)
    (checkout.root / "lib" / "later.py").touch()
    (checkout.root / params).write_text("b", "utf-8")
    here = checkout.commit("main", "later")
    state = {"commit": here, "clean": True, "code": code}
    for text, clean in (("b", True), ("c", False)):
        (checkout.root / params).write_text(text, "utf-8")
        with replay.tree_at({"commit": here, "clean": clean, "code": code}) as tree:
            assert (tree / "lib" / "replay.py").read_text("utf-8") == KNOWS
            assert not (tree / "lib" / "later.py").exists()
            assert (tree / params).read_text("utf-8") == text
            with monkeypatch.context() as within:
                for module in ("lib.results", "lib.study.code"):
                    within.setattr(f"{module}.ROOT", tree)
                assert git_state.__wrapped__() == state | {"clean": clean}


def test_commits_of_a_study_are_those_of_its_plan_and_else_those_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "study_folder", lambda name: tmp_path / name)
    began = {name: Commit(commit=name[0] * 40, **DIGESTS) for name in ("a", "b")}
    study = design("a", "b")
    assert config.read_commits(study) == {}
    with pytest.raises(ConfigError, match=r"which commit 'a' is, is fixed when the study begins"):
        study.commit_of(study.arm("a"))
    config.write_commits(began, tmp_path / "t")
    assert config.read_commits(study) == began
    fixed = {"b": Commit(commit="f" * 40, **DIGESTS)}
    monkeypatch.setattr(config, "fixed_commits", lambda _: fixed)
    found = study.model_copy(update={"commits": config.read_commits(study)})
    assert found.commits == began | fixed
    assert found.commit_of(found.arm("b")) == fixed["b"]
    assert found.hash == study.hash
    (tmp_path / "t" / "commits.json").write_text('{"a": ', "utf-8")
    assert config.read_commits(study) == fixed


HYPOTHESIS = {"says": "SiLU changes the loss.", "test": ["silu", "main", "loss"]}


@pytest.mark.long
@pytest.mark.slow
def test_whether_a_commit_is_better_is_one_study(tmp_path: Path) -> None:
    """As the README says, from a clone: a branch with another activation, and a frozen plan."""
    tree = Tree(tmp_path / "embedding-norm")
    tree.spare_rehearsals()
    git = partial(run_git, tree.root)
    for words in (("init", "-qb", "main"), ("add", "."), ("commit", "-qm", "work")):
        git(*words)
    brief = {"interval": 4, "dev_windows": 4, "items_per_task": 0}
    asked = {"factors": {"code": ["main", "silu"]}, "evaluation": brief, "plan": "silu.yaml"}
    tree.write_study("silu", seeds={"count": 2}, **asked)
    plan = {"title": "T", "question": "Q", "smallest_effect_of_interest": {"loss": 0.1}}
    plan |= {"confirmatory": ["silu"]}
    plan |= {"hypotheses": {"silu": HYPOTHESIS | {"direction": "differs"}}}
    (tree.root / "params/plans/silu.yaml").write_text(yaml.safe_dump(plan), "utf-8")
    git("switch", "-qc", "silu")
    model = tree.root / "lib" / "run" / "model.py"
    model.write_text(model.read_text("utf-8").replace("F.gelu(x)", "F.silu(x)"), "utf-8")
    git("commit", "-qm", "SiLU", "lib")
    git("switch", "-q", "main")
    status, text = tree.run_all("freeze", "silu")
    assert status == 0, text
    git("add", ".")
    git("commit", "-qm", "The plan")  # main is another commit now, of the same code

    status, text = tree.run_all("silu")
    assert status == 0, text
    assert "\nCONFIRMATORY\n" in text
    assert "SiLU changes the loss." in text
    runs = {
        arm: [json.loads(path.read_text("utf-8")) for path in sorted(found)]
        for arm in ("main", "silu")
        if (found := list((tree.root / "runs/silu" / arm).glob("*/result.json")))
    }
    for main, silu in zip(runs["main"], runs["silu"], strict=True):
        assert (main["batches"], main["initial_weights"]) == (
            silu["batches"],
            silu["initial_weights"],
        )
        assert main["final_weights"] != silu["final_weights"]
        for arm, run in (("main", main), ("silu", silu)):
            for account in run["provenance"].values():
                assert account["commit"] == git("rev-parse", "main")
                assert account["code"] == git("rev-parse", {"main": "main^"}.get(arm, arm))
                assert account["clean"] is True
    status, text = tree.run_all("silu")
    assert (status, "Nothing to do" in text) == (0, True), text

    status, text = tree.run_all(
        "verify", "silu", "--retrain", f"silu/silu/{runs['silu'][0]['seed']}"
    )
    assert status == 0, text
    assert "trained again, equal to the bit" in text
    record = tree.root / "papers/embedding-norm/record/silu"
    notebook = (record / "silu" / f"seed-{runs['silu'][0]['seed']}" / "02_train.ipynb").read_text()
    assert f"by the code of commit {git('rev-parse', 'silu')[:12]}, started by commit " in notebook
    git("add", ".")
    git("commit", "-qm", "The record")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(tree.root), str(clone)], check=True)
    tree.root = clone  # with the branch only where it came from
    status, text = tree.run_all("verify", "silu")
    assert (status, "files verified" in text) == (0, True), text
