"""Suites are built again where they can be, and it is said where they cannot."""

import importlib.util
from typing import Any

import pytest

from lib.publish import replay
from lib.publish.suites import foreign_suites

RUNS: list[dict[str, Any]] = [
    {"arm": arm, "seed": seed, "suite_hash": "a" if arm != "bare" else None,
     "provenance": {"executed": {"commit": "c" * 40, "clean": True}}}
    for arm in ("none", "layernorm", "bare") for seed in (0, 1)
]  # fmt: skip


def test_runs_of_another_suite_are_named_and_each_commit_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def built(study: str, account: dict[str, Any], script: str) -> dict[str, str]:
        asked.append(account["commit"])
        return {"none": "a", "layernorm": "b"}

    monkeypatch.setattr(replay, "asked", built)
    assert list(foreign_suites("sample", RUNS)) == [
        f"run layernorm seed {seed} was asked other questions than its text gives"
        for seed in (0, 1)
    ]
    assert asked == ["c" * 40]
    assert capsys.readouterr().out == ""
    assert list(foreign_suites("sample", RUNS[4:])) == []
    assert len(asked) == 1


def test_suites_that_cannot_be_built_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "asked", lambda *_: {"none": "a", "layernorm": None})
    assert list(foreign_suites("sample", RUNS)) == []
    assert "sample: suites of 2 of 4 runs not built again" in capsys.readouterr().out
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(foreign_suites("sample", RUNS)) == []
    assert "sample: suites of 4 of 4 runs not built again" in capsys.readouterr().out
