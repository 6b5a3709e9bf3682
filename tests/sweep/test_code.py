"""Commits as arms, the copy of the code that a sweep runs from, and files edited meanwhile."""

import json
import shutil
from functools import partial

import pytest

from lib.config.files import read_json
from lib.config.paths import ROOT
from lib.config.provenance import git, hash_code, require_unedited
from lib.config.study import Study
from lib.sweep import sweep
from lib.sweep.code import copy_code, execute_in, require_as_asked, resolve, tree_of
from tests.conftest import TINY, Tree, refused, run_git


def design(*levels):
    factors = {"code": list(levels)}
    return Study.model_validate(TINY | {"name": "t", "seeds": [0], "factors": factors})


OWN = {"source": "data/own.txt"}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a repository with some branches; return the commit of each."""
    monkeypatch.setattr("lib.config.provenance.CHECKOUT", tmp_path)
    git = partial(run_git, tmp_path)
    git("init", "-q", "-b", "main")
    commits = {}
    for branch in ("main", "try/it", "gone"):
        git("checkout", "-q", "-B", branch)
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / "model.py").write_text(branch, "utf-8")
        git("add", "--all")
        git("commit", "-qm", branch)
        commits[branch] = git("rev-parse", "HEAD")
    git("branch", "same", "main")
    git("update-ref", "refs/remotes/origin/gone", commits["gone"])  # as in a clone
    git("checkout", "-q", "main")
    git("branch", "-D", "gone")
    return commits


def test_a_level_is_the_commit_that_it_names(checkout):
    short = checkout["try/it"][:9]
    found = resolve(design("main", short, "gone"))
    assert found == {"main": checkout["main"], short: checkout["try/it"], "gone": checkout["gone"]}
    assert [arm.id for arm in design("main", "try/it").arms()] == ["main", "try-it"]
    assert resolve(Study.model_validate(TINY | {"name": "t", "seeds": [0]})) == {}


def test_a_dry_run_asks_which_commits_levels_are_now(checkout, tmp_path, monkeypatch):
    """Like a sweep, which trains again if a branch has moved."""
    study, told = design("main").model_copy(update={"commits": {"main": "0" * 40}}), []
    monkeypatch.setattr(sweep, "load_and_check", lambda *_, **__: [study])
    monkeypatch.setattr(sweep, "make", lambda studies, *_: told.extend(studies) or 0)
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path / "runs")
    assert sweep.run_sweep(sweep.Sweep(["t"], dry_run=True)) == 0
    assert [study.commits for study in told] == [{"main": checkout["main"]}]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("nowhere", "'nowhere' is not a commit, branch or tag here; `git fetch` it, or"),
        ("same", "'main' and 'same' are one commit, "),
    ],
)
def test_what_cannot_be_an_arm_is_refused_in_one_line(level, said, checkout):
    assert refused(resolve, design("main", level)).startswith(f"factors.code: {said}")


@pytest.mark.parametrize(
    ("refs", "level", "commit"),
    [
        (["tags/try/it"], "try/it", None),
        (["tags/gone"], "gone", None),  # also a branch of origin
        (["heads/origin/gone"], "origin/gone", None),
        (["tags/v1"], "v1", "main"),
        (["tags/try/it"], "refs/heads/try/it", "try/it"),
        (["tags/try/it"], "refs/tags/try/it", "main"),
        (["remotes/origin/try/it"], "try/it", "try/it"),  # the local branch is ahead of it
        ([], "HEAD", "main"),
    ],
)
def test_a_name_of_two_commits_is_refused_with_both(refs, level, commit, checkout, tmp_path):
    for ref in refs:
        run_git(tmp_path, "update-ref", f"refs/{ref}", checkout["main"])
    if commit:
        assert resolve(design(level)) == {level: checkout[commit]}
        return
    said = refused(resolve, design(level))
    assert said.startswith(f"factors.code: '{level}' names two commits (")
    other = "try/it" if level == "try/it" else "gone"
    assert checkout["main"][:12] in said
    assert checkout[other][:12] in said


def test_worktrees_of_others_stay_and_a_deleted_one_is_made_again(checkout, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweep.code.RUNS", tmp_path / "runs")
    away = tmp_path / "away"  # on a disk that is not mounted now
    run_git(tmp_path, "worktree", "add", "--detach", str(away / "mine"), checkout["try/it"])
    away.rename(tmp_path / "unmounted")
    tree = tree_of(checkout["try/it"])
    shutil.rmtree(tree)
    assert tree_of(checkout["try/it"]) == tree
    assert (tree / "lib" / "model.py").read_text("utf-8") == "try/it"
    (tmp_path / "unmounted").rename(away)
    assert run_git(away / "mine", "rev-parse", "HEAD") == checkout["try/it"]


@pytest.mark.parametrize("file", ["lib/model.py", "lib/other.py"])
def test_a_checkout_that_was_changed_since_is_no_arm(file, checkout, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweep.code.RUNS", tmp_path / "runs")
    tree = tree_of(checkout["try/it"])
    assert tree_of(checkout["try/it"]) == tree
    assert (tree / "lib" / "model.py").read_text("utf-8") == "try/it"
    (tree / file).write_text("changed", "utf-8")
    assert "delete that folder" in refused(tree_of, checkout["try/it"])


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Put a little checkout in place of this one, as if this process had imported its code."""
    for name in ("lib/model.py", "lib/data/text.packed", "notebooks/02.ipynb", "params/own.yaml",
                 "params/plans/p.yaml", "asked/task.yaml", "t.json", "lib/.hidden"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    (tmp_path / "lib/model.py").chmod(0o555)
    places = {"ROOT": tmp_path, "CHECKOUT": tmp_path, "COPIES": tmp_path / "runs/.code"}
    places |= {"SWEEP": tmp_path / "runs/sweep.json", "PARAMS": tmp_path / "params"}
    places |= {"PLANS": tmp_path / "params/plans"}
    for name, folder in places.items():
        for module in ("config.provenance", "sweep.code"):
            monkeypatch.setattr(f"lib.{module}.{name}", folder, raising=False)
    monkeypatch.setattr("lib.config.paths.output_root", lambda: tmp_path)
    imported = hash_code(tmp_path)
    for module in ("config.provenance", "sweep.code"):
        monkeypatch.setattr(f"lib.{module}.imported_code", lambda: imported)
    return tmp_path


def asking():
    evaluation = {"include_path": "asked", "tasks": ["own"]}
    content = {"name": "own", "seeds": [0], "plan": "p.yaml", "evaluation": evaluation}
    corpus = {"source": "synthetic", "tokenizer": "t.json"}
    return Study.model_validate(TINY | content | {"corpus": corpus})


def test_a_copy_holds_the_bytes_of_the_code_and_heals(code):
    copy = copy_code([asking()])
    assert hash_code(copy) == hash_code(code)
    assert {*copy.rglob("*.*")} == {copy / name for name in hash_code(code)}
    assert not any(file.stat().st_mode & 0o222 for file in copy.rglob("*.*"))
    (copy / "lib/model.py").unlink()
    others = [copy.with_name(name) for name in ("0" * 16, ".1.left", "a" * 40, "b" * 40)]
    for other in others:
        other.mkdir()
    assert copy_code([asking()]) == copy
    assert hash_code(copy) == hash_code(code)
    assert [other.exists() for other in others] == [False, False, True, True]


@pytest.mark.parametrize("file", ["lib/model.py", "lib/new.py", "notebooks/02.ipynb"])
def test_code_that_was_edited_since_a_command_began_is_not_copied(file, code):
    (code / file).unlink(missing_ok=True)
    (code / file).write_text("edited", "utf-8")
    assert "were edited while this command started" in refused(copy_code, [asking()])


@pytest.mark.parametrize(
    "file", ["params/own.yaml", "params/plans/p.yaml", "asked/task.yaml", "t.json"]
)
def test_a_file_that_asks_may_not_be_edited_while_the_sweep_runs(file, code):
    copy_code([asking()])
    require_as_asked(asking())
    (code / file).write_text("edited", "utf-8")
    name = "asked" if file.startswith("asked") else file
    assert refused(require_as_asked, asking()).startswith(f"{name}: was edited while the sweep")


def test_code_edited_since_it_was_imported_is_refused_by_name(code):
    require_unedited(["lib/model.py"])
    (code / "lib/model.py").unlink()
    assert refused(require_unedited, ["lib/model.py"]).startswith("lib/model.py: was edited")


@pytest.mark.slow
def test_a_change_to_the_model_is_an_arm_beside_the_code_without_it(tmp_path):
    tree = Tree(tmp_path / "embedding-norm")
    git = partial(run_git, tree.root)
    git("init", "-q", "-b", "main")
    git("add", "--all")
    git("commit", "-qm", "As it is")
    git("checkout", "-q", "-b", "patch")
    model = tree.root / "lib/train/model.py"
    whole = model.read_text("utf-8")
    assert whole.count("F.gelu(") == 1
    model.write_text(whole.replace("F.gelu(", "F.silu("), "utf-8")
    git("commit", "-qam", "SiLU in place of GELU")
    git("checkout", "-q", "main")
    evaluation = {"interval": 4, "dev_windows": 4, "items_per_task": 0}
    text = "\n\n".join(f"{i} is a number, and a line of text." for i in range(200))
    for file in ("own.txt", "some/a.txt", "some/b.txt"):  # ignored by git, so in no worktree
        (tree.root / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tree.root / "data" / file).write_text(text, "utf-8")
    factors = {"code": ["main", "patch"], "corpus.source": ["data/own.txt", "data/some"]}
    tree.write_study("patched", factors=factors, evaluation=evaluation)
    status, text = tree.run_all("patched", "--until", "train")
    assert status == 0, text

    commits = {name: git("rev-parse", name) for name in ("main", "patch")}
    assert read_json(tree.root / "runs/patched/commits.json") == commits
    arms = {name: f"{name},source=own.txt" for name in commits}
    assert tree.run_folder("patched", "patch,source=some").is_dir()
    files = {name: tree.run_folder("patched", arm) / "result.json" for name, arm in arms.items()}
    results = {name: read_json(file) for name, file in files.items()}
    trained = {name: result["provenance"]["trained"] for name, result in results.items()}
    for name, commit in commits.items():
        assert trained[name]["code"] == commit
        assert trained[name]["commit"] == commits["main"]  # the checkout that ran the sweep
    main, patch = results["main"], results["patch"]
    for name in ("initial_weights", "batches", "corpus_sha256", "seed"):
        assert main[name] == patch[name]
    assert main["final_weights"] != patch["final_weights"]
    assert trained["main"]["training_digest"] != trained["patch"]["training_digest"]
    assert "No run is missing or stale" in tree.run_all("patched", "--until", "train")[1]


BEFORE_COPIES = "b2b2e619ce1657553c654c7595b8a28d811fac8e"


@pytest.mark.slow
def test_code_of_before_copies_is_executed_as_an_arm_s_is(tmp_path):
    """Older commits know only `STUDY_OUTPUT` and `python -m lib.sweep.execute`."""
    if git("cat-file", "-e", BEFORE_COPIES) is None:
        pytest.skip("this clone lacks the history")
    tree = tmp_path / "tree"
    run_git(tmp_path, "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(tree))
    run_git(tree, "checkout", "-q", BEFORE_COPIES)
    text = "\n\n".join(f"{i} is a number, and a line of text." for i in range(200))
    for file, content in {
        "out/data/own.txt": text,
        "out/params/own.yaml": json.dumps(TINY | {"name": "own", "seeds": [0], "corpus": OWN}),
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(content, "utf-8")
    (tree / "data").symlink_to(tmp_path / "out/data")
    execute_in(tree, str(tmp_path / "out"), "02_train", "own", "baseline", "0")
    result = read_json(tmp_path / "out/runs/own/baseline/seed-0/result.json")
    trained = result["provenance"]["trained"]
    assert (result["status"], trained["code"]) == ("completed", BEFORE_COPIES)
