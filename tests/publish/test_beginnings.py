"""What is said where the beginnings of runs cannot be made again."""

import importlib.util
from typing import Any

import pandas as pd
import pytest

from lib.publish import beginnings, replay
from lib.publish.beginnings import wrong_beginnings

RUNS: list[dict[str, Any]] = [
    {"arm": arm, "seed": 0, "provenance": {"trained": {}}, "references": {}, "batches": "b"}
    for arm in ("none", "layernorm")
]


def test_runs_without_torch_are_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(wrong_beginnings("sample", RUNS)) == []
    assert "sample: beginnings of 2 of 2 runs not made again" in capsys.readouterr().out


def test_runs_without_their_text_are_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"arm": "none", "seed": 0, "references": {}, "batches": "c", "rates": [0.1]}
    monkeypatch.setattr(replay, "asked", lambda *_: [found])
    trace = pd.DataFrame({"learning_rate": [0.1]})
    monkeypatch.setattr(beginnings, "read_raw_file", lambda *_: trace)
    assert list(wrong_beginnings("sample", RUNS)) == [
        "run none seed 0: batches are not those of its seed and parameters"
    ]
    assert "sample: beginnings of 1 of 2 runs not made again" in capsys.readouterr().out
