"""How runs that are trained again are compared."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lib.workflow.retrain import beyond_tolerance, main, other_bits, same_machine

RUN: dict[str, Any] = {
    "initial_weights": "a",
    "batches": "b",
    "final_weights": "c",
    "measures": {"perplexity": 10.0},
    "tables": {},
}
TRACE = pd.DataFrame({"step": range(1, 21), "loss": np.linspace(4, 2, 20), "seconds": 1.0})


def changed(**fields: Any) -> dict[str, Any]:
    return json.loads(json.dumps(RUN)) | fields


def test_seconds_may_differ_and_nothing_else_to_the_bit() -> None:
    slower = TRACE.assign(seconds=2.0)
    assert list(other_bits(RUN, RUN, TRACE, slower)) == []
    assert list(other_bits(RUN, changed(final_weights="d"), TRACE, TRACE)) == [
        "final_weights differ"
    ]
    moved = TRACE.assign(loss=np.nextafter(TRACE["loss"], 9))
    assert list(other_bits(RUN, RUN, TRACE, moved)) == ["the trace differs"]


@pytest.mark.parametrize(
    ("fields", "factor", "found"),
    [
        ({"final_weights": "d"}, 1.0005, []),
        ({"measures": {"perplexity": 10.1}}, 1.0, []),
        ({"batches": "x"}, 1.0, ["batches differ"]),
        ({}, 1.002, ["a loss of the first 10 steps differs by more than 0.1%"]),
        (
            {"measures": {"perplexity": 10.3}},
            1.0,
            ["perplexity is 10.3 and was 10.0: beyond 2%"],
        ),
    ],
)
def test_elsewhere_rounding_is_tolerated(
    fields: dict[str, Any], factor: float, found: list[str]
) -> None:
    again = TRACE.assign(loss=TRACE["loss"] * factor)
    assert list(beyond_tolerance(RUN, changed(**fields), TRACE, again)) == found


@pytest.mark.parametrize("name", ["device_name", "vector_level", "threads", "packages"])
def test_the_machine_is_the_same_when_all_that_changes_bits_is(name: str) -> None:
    one = {"device_name": "CPU", "vector_level": "AVX512", "threads": 1, "packages": {"torch": "2"}}
    assert same_machine(one, dict(one))
    assert not same_machine(one, one | {name: "other"})


def test_a_run_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["horizon", "--retrain", "horizon/none,fraction=1/0"]) == 1
    assert "error: horizon/none,fraction=1/0 was not trained again: " in capsys.readouterr().err
