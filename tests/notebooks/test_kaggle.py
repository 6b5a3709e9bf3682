"""The notebooks run where the repository is a read-only Kaggle input."""

import hashlib
import json
import os
from pathlib import Path

import papermill
import pytest

from lib.data.synthetic import synthetic_text
from lib.study.config import load_study
from tests.conftest import copy_repository

pytestmark = pytest.mark.slow


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("embedding-norm", marks=pytest.mark.long),
        "datasets/owner/embedding-norm/inner",
    ],
)
def test_notebooks_run_from_a_read_only_input(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, working = tmp_path / "input" / place, tmp_path / "working"
    copy_repository(repository)
    (tmp_path / "input" / "texts").mkdir()
    (tmp_path / "input" / "texts" / "synthetic.txt").write_text(synthetic_text(), "utf-8")
    working.mkdir()
    before = contents(tmp_path / "input")
    for path in sorted(repository.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    # As on Kaggle, only the start cell leads to the library.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    monkeypatch.setattr(os, "environ", environment | {"PYTHONDONTWRITEBYTECODE": "1"})

    def run(notebook: str, **parameters: object) -> None:
        papermill.execute_notebook(
            repository / "notebooks" / f"{notebook}.ipynb",
            working / f"{notebook}.ipynb",
            {"study": "smoke", **parameters},
            kernel_name="python3",
            progress_bar=False,
            cwd=working,
        )

    study = load_study("smoke")
    run("01_data")
    for arm in study.arms():
        for seed in study.seeds:
            run("02_train", arm=arm.id, seed=seed)
    run("03_analysis")
    run("04_figures")
    for path in repository.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)

    assert contents(tmp_path / "input") == before
    results = json.loads((working / "runs/smoke/03_analysis.json").read_text())
    assert len(results["runs"]) == 4
    assert (working / "runs/smoke/figures/trend.pdf").is_file()
    assert not (working / "data").exists()  # the attached text was read
