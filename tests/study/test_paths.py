"""Outputs go where they can be kept, and no machine's folders are ever shown."""

from pathlib import Path

import pytest

from lib.study import io as paths

KAGGLE_INPUTS = ["input/slug/repo", "input/datasets/owner/slug", "input/slug/input/repo"]


@pytest.fixture
def kaggle(tmp_path: Path) -> Path:
    """A folder laid out as Kaggle's: read-only inputs beside a working folder."""
    (tmp_path / "input").mkdir()
    (tmp_path / "working").mkdir()
    return tmp_path


@pytest.fixture
def on_kaggle(kaggle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, with the repository attached as an input."""
    monkeypatch.setattr(paths, "ROOT", kaggle / "input" / "slug" / "repo")
    monkeypatch.setattr(paths, "kaggle_folder", lambda: kaggle)
    monkeypatch.setattr(paths, "output_root", lambda: kaggle / "working")
    return kaggle


@pytest.mark.parametrize("repository", KAGGLE_INPUTS)
def test_on_kaggle_outputs_go_to_the_working_folder(kaggle: Path, repository: str) -> None:
    assert paths.kaggle_folder(kaggle / repository) == kaggle
    assert paths.output_root(kaggle / repository) == kaggle / "working"


@pytest.mark.parametrize("repository", ["repo", "working/repo", "inputs/slug/repo"])
def test_a_repository_outside_the_inputs_keeps_its_outputs(
    kaggle: Path, monkeypatch: pytest.MonkeyPatch, repository: str
) -> None:
    monkeypatch.setattr(paths, "kaggle_folder", lambda root: kaggle)
    assert paths.output_root(kaggle / repository) == kaggle / repository


def test_an_input_folder_without_a_working_folder_is_not_kaggle(tmp_path: Path) -> None:
    repository = tmp_path / "input" / "slug" / "repo"
    assert paths.output_root(repository) == repository


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (paths.executed_notebook("03_analysis", "final"), "runs/final/03_analysis.ipynb"),
        (
            paths.executed_notebook("02_train", "final", "none", 3),
            "runs/final/none/seed-3/02_train.ipynb",
        ),
        (paths.result_file("02_train", "final", "none", 3), "runs/final/none/seed-3/result.json"),
        (paths.PAPER, "papers/embedding-norm"),
        (paths.PARAMS / "final.yaml", "params/final.yaml"),
    ],
)
def test_paths_are_shown_relative_to_the_repository(path: Path, shown: str) -> None:
    assert paths.relative(path) == shown


def test_a_path_from_elsewhere_is_shown_by_its_name_alone(tmp_path: Path) -> None:
    assert paths.relative(tmp_path / "secret" / "own.txt") == "own.txt"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("working/runs/final", "runs/final"),
        ("input/slug/repo/params/final.yaml", "params/final.yaml"),
        ("input/other/own.txt", "own.txt"),
    ],
)
def test_paths_on_kaggle_are_shown_relative_too(on_kaggle: Path, path: str, shown: str) -> None:
    assert paths.relative(on_kaggle / path) == shown


def test_a_corpus_is_sought_in_the_repository_then_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ROOT", tmp_path / "repo")
    monkeypatch.setattr(paths, "output_root", lambda: tmp_path / "out")
    monkeypatch.setattr(paths, "kaggle_folder", lambda: None)
    assert paths.corpus_places("own.txt") == [
        tmp_path / "repo" / "data" / "own.txt",
        tmp_path / "out" / "data" / "own.txt",
        tmp_path / "shared" / "data" / "own.txt",
    ]


def test_on_kaggle_a_corpus_is_sought_last_in_every_input(on_kaggle: Path) -> None:
    attached = [on_kaggle / "input" / "b" / "own.txt", on_kaggle / "input" / "a" / "deep/own.txt"]
    for path in attached:
        path.parent.mkdir(parents=True)
        path.touch()
    assert paths.corpus_places("own.txt")[3:] == sorted(attached)
