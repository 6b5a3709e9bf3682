"""An archive of a study's weights: the same bytes again, every hash right, each run loadable."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jinja2 import UndefinedError
from tokenizers import Tokenizer

from lib.run.finished import read_finished, read_packed
from lib.study.io import run_folder
from lib.study.study import Study
from lib.workflow import cli
from lib.workflow.export import pack, render
from tests.run.samples import finished_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    factors = {"model.embedding_norm": ["none", "layernorm"]}
    folder = tmp_path_factory.mktemp("pack")
    with finished_study(folder, factors=factors, seeds=[0, 1]) as study:
        yield study


@pytest.fixture
def unpacked(study: Study, tmp_path: Path) -> Path:
    pack(study, tmp_path / "small.tar")
    with tarfile.open(tmp_path / "small.tar") as archive:
        archive.extractall(tmp_path)
    return tmp_path / "small"


def test_the_same_runs_give_the_same_bytes(study: Study, tmp_path: Path) -> None:
    pack(study, tmp_path / "one.tar")
    for path in run_folder("small", "none", 0).rglob("*"):
        os.utime(path, (1, 1))
    pack(study, tmp_path / "other.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive} == {(0, 0, "")}


def test_the_manifest_names_every_file_with_its_hash(unpacked: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", "MANIFEST.sha256"], cwd=unpacked, capture_output=True
    )
    assert done.returncode == 0
    listed = [
        line.split("  ")[1] for line in (unpacked / "MANIFEST.sha256").read_text().split("\n")[:-1]
    ]
    found = {
        path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()
    }
    assert {*listed, "MANIFEST.sha256"} == found
    assert len(found) == 3 + 3 * 4


def test_each_run_loads_as_the_readme_says(unpacked: Path, study: Study) -> None:
    readme = (unpacked / "README.md").read_text("utf-8")
    code = readme.split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    here = Path.cwd()
    os.chdir(unpacked.parent)
    try:
        exec(code, names)
    finally:
        os.chdir(here)
    run = read_finished("small", "none", 0)
    model, tokenizer = names["model"], names["tokenizer"]
    assert isinstance(tokenizer, Tokenizer)
    text = run.corpus.decode(run.corpus.heldout[:16])
    ids = torch.tensor([tokenizer.encode(text).ids])
    assert torch.equal(model(ids), run.model(ids))  # type: ignore[operator]
    for arm, seed in (("none", 1), ("layernorm", 0), ("layernorm", 1)):
        assert f"- `{arm}/seed-{seed}`" in readme
        read_packed(unpacked / arm / f"seed-{seed}")


def test_a_text_beside_weights_leaves_no_name_out() -> None:
    with pytest.raises(UndefinedError, match="'manifest' is undefined"):
        render("archive.md.j2", study={"name": "small"}, folders=["none/seed-0"])


def test_weights_of_another_run_are_refused(unpacked: Path) -> None:
    name = "weights.safetensors"
    shutil.copyfile(unpacked / "none" / "seed-1" / name, unpacked / "none" / "seed-0" / name)
    with pytest.raises(ValueError, match="not those of the result"):
        read_packed(unpacked / "none" / "seed-0")


def test_the_command_writes_beside_the_runs_and_says_where(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pack", "small"]) == 0
    assert "small-weights.tar: 14 files" in capsys.readouterr().out
    target = run_folder("small", "none", 0).parents[2] / "small-weights.tar"
    first = hashlib.sha256(target.read_bytes()).hexdigest()
    assert cli.main(["pack", "small"]) == 0
    assert hashlib.sha256(target.read_bytes()).hexdigest() == first
    assert not list(target.parent.glob(".small*"))


def test_a_study_that_is_not_complete_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with finished_study(tmp_path, seeds=[0, 1]):
        shutil.rmtree(run_folder("small", "baseline", 1) / "checkpoints")
        assert cli.main(["pack", "small"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: small/baseline/1 has no checkpoints; delete ")
    assert error.count("\n") == 1
    assert not list((tmp_path / "runs").glob("*.tar"))
    assert cli.main(["pack", "nosuch"]) == 1
    assert capsys.readouterr().err.startswith("error: study: 'nosuch' is unknown")
