"""Provenance is read alike from results of every format, and said in words."""

import json
from typing import Any

import pytest

from lib.study.paths import ROOT
from lib.study.provenance import history, trained_with

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
