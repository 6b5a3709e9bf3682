"""Provenance is read alike from results of every format, and said in words."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lib import results as provenance
from lib.results import MachineFacts, Provenance, history, trained_with
from lib.study.code import git_state
from lib.study.io import ROOT
from lib.study.schema import MACHINE_SETTINGS, RunConfig
from tests.conftest import run_git

RESULTS = sorted((ROOT / "papers/embedding-norm/results").glob("*[a-z].json"))
MACHINE = {"device": "cpu", "device_name": "a processor", "threads": 1}
TRAINED: dict[str, Any] = {
    "plan": None,
    "commit": "a" * 40,
    "clean": True,
    "started": "2026-11-21 12:00:00 UTC",
    "machine": MACHINE,
    "packages": {"torch": "2.13.0"},
    "parameters": {"training": {"precision": "bf16"}},
}
EXECUTED = {"commit": "b" * 40, "clean": False, "finished": "2026-11-22 09:30:00 UTC"}
FLAT = {
    "git_commit": "a" * 40,
    "git_clean": True,
    "preregistration": None,
    "precision": "bf16",
    "packages": {"torch": "2.13.0"},
    **MACHINE,
}


def test_either_format_gives_the_same_answers() -> None:
    new = {"trained": TRAINED, "executed": EXECUTED | {"from_checkpoint": False}}
    of_new, of_old = trained_with(new), trained_with(FLAT)
    assert {name: of_new[name] for name in of_old} == of_old


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_recorded_results_are_readable(path: Any) -> None:
    for run in json.loads(path.read_text("utf-8")).get("runs", []):
        origin = trained_with(run["provenance"])
        assert {"plan", "commit", "clean", "device", "threads", "precision"} <= set(origin)
        assert "torch" in origin["packages"]
        assert history(run["provenance"]).startswith("trained ")


@pytest.mark.parametrize(
    ("provenance", "sentence"),
    [
        (
            {"trained": TRAINED, "executed": EXECUTED | {"from_checkpoint": False}},
            "trained 2026-11-21 12:00:00 UTC by commit aaaaaaaaaaaa",
        ),
        (
            {"trained": TRAINED, "executed": EXECUTED | {"from_checkpoint": True}},
            "trained 2026-11-21 12:00:00 UTC by commit aaaaaaaaaaaa; executed again from its "
            "weights 2026-11-22 09:30:00 UTC by commit bbbbbbbbbbbb and changes not committed",
        ),
        (
            {"trained": TRAINED | {"commit": None, "clean": None}, "executed": {}},
            "trained 2026-11-21 12:00:00 UTC by code outside git",
        ),
        (FLAT, "trained by commit aaaaaaaaaaaa"),
    ],
)
def test_history_says_when_and_by_what(provenance: dict[str, Any], sentence: str) -> None:
    assert history(provenance) == sentence


@pytest.mark.parametrize("setting", MACHINE_SETTINGS)
def test_no_setting_of_the_machine_identifies_weights(setting: str) -> None:
    machine = MachineFacts(
        device="cpu", device_name="", vector_level="", cores=1, platform="",
        micro_batch_size=4, evaluation_batch_size=4,
    )  # fmt: skip
    values = machine.model_dump()
    other = not values[setting] if isinstance(values[setting], bool) else 2
    sections = RunConfig().model_dump(exclude={"machine"})
    one, another = (
        Provenance.model_construct(
            machine=machine.model_copy(update=update), parameters=sections, plan=None, seed=0,
            training_digest="", corpus_sha256="",
        ).identity
        for update in ({}, {setting: other})
    )  # fmt: skip
    assert one == another


def test_in_a_packed_tree_a_file_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = subprocess.run(
        ["git", "archive", "HEAD", "lib/VERSION"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive.stdout, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "PARAMS", tmp_path / "params")
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    git_state.cache_clear()
    packed = git_state()
    (tmp_path / "lib" / "VERSION").write_bytes((ROOT / "lib" / "VERSION").read_bytes())
    git_state.cache_clear()
    neither = git_state()
    git_state.cache_clear()
    assert packed == {"commit": head.stdout.strip(), "clean": True}
    assert neither == {"commit": None, "clean": None}


def test_a_checkout_is_clean_until_what_runs_are_made_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("a = 1\n", "utf-8")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        run_git(tmp_path, *words)
    for module in ("results", "study.code"):
        monkeypatch.setattr(f"lib.{module}.ROOT", tmp_path)
    head = run_git(tmp_path, "rev-parse", "HEAD")
    for path, clean in (("notes.txt", True), ("lib/a.py", False)):
        (tmp_path / path).write_text("a = 2\n", "utf-8")
        assert git_state.__wrapped__() == {"commit": head, "clean": clean}


def test_a_copy_inside_another_repository_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / ".gitignore").write_text("*")
    for words in (["init", "-q"], ["add", "-f", ".gitignore"], ["commit", "-qm", "a"]):
        run_git(tmp_path, *words)
    for module in ("results", "study.code"):
        monkeypatch.setattr(f"lib.{module}.ROOT", tmp_path / "copy")
    git_state.cache_clear()
    found = git_state()
    git_state.cache_clear()
    assert found == {"commit": None, "clean": None}
