"""How a run that was trained again is judged: to the bit, within tolerances, or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lib.study.measures import MEASURES
from lib.study.provenance import MachineAccount
from lib.workflow.repetition import (
    DIFFERS,
    EQUAL,
    MOVED,
    SAFETY,
    UNJUDGED,
    WITHIN,
    Judgement,
    Made,
    judge,
    other_bits,
)

MACHINE = MachineAccount(
    device="cpu",
    device_name="AMD EPYC",
    vector_level="AVX512",
    threads=1,
    micro_batch_size=4,
    evaluation_batch_size=8,
    cores=2,
    platform="Linux x86_64",
).model_dump()
OTHERS = {
    name: not value if isinstance(value, bool) else 99 if isinstance(value, int) else "Abacus"
    for name, value in MACHINE.items()
}
PACKAGES = {"torch": "2.13.0", "python": "3.12"}
MEASURED = {
    **{"perplexity": 13.3, "loss": 2.588, "accuracy": 0.30, "macro_accuracy_zero_shot": 0.41},
    **{"macro_accuracy_few_shot": 0.43, "ece": 0.011, "brier": 0.82, "grad_norm": 1.1},
}
RESULT: dict[str, Any] = {
    **{"status": "completed", "steps": 20, "diverged_at": None, "parameters": 1000},
    **{"initial_weights": "a", "batches": "b", "final_weights": "c", "measures": MEASURED},
    "tables": {"lengths": [{"length": 8, "loss": 2.7}, {"length": 16, "loss": None}]},
    "provenance": {
        "trained": {
            "machine": MACHINE,
            "packages": PACKAGES,
            "parameters": {"training": {"precision": "fp32"}},
        }
    },
}
RAW = {
    "trace": pd.DataFrame({"step": range(1, 21), "loss": np.linspace(4, 2.6, 20), "seconds": 1.0}),
    "curve": pd.DataFrame({"step": [0, 20], "dev_loss": [4.2, 2.6], "seconds": 1.0}),
    "items": pd.DataFrame({"choice": [0, 3], "correct": [True, False]}),
}
WEIGHTS = np.linspace(-0.3, 0.3, 100)
AGAIN = Made(RESULT, RAW, WEIGHTS)


def made(column: tuple[str, str] | None = None, factor: float = 1.0, **fields: Any) -> Made:
    """The run with other fields of its result, and a column of a raw file multiplied."""
    raw = dict(RAW)
    if column:
        name, of = column
        raw[name] = raw[name].assign(**{of: raw[name][of] * factor})
    return Made(json.loads(json.dumps(RESULT)) | fields, raw, WEIGHTS)


def recorded(column: tuple[str, str] | None = None, factor: float = 1.0, **fields: Any) -> Made:
    """The same, whose record says another CPU, where rounding made other weights; only their hash
    is at hand."""
    trained = RESULT["provenance"]["trained"]
    machine = MACHINE | {"device_name": "Abacus"}
    provenance = {"trained": trained | {"machine": machine}}
    fields = {"final_weights": "d", "provenance": provenance} | fields
    return replace(made(column, factor, **fields), weights=WEIGHTS * (1 + 1e-7))


def measured(name: str, tolerances: float) -> dict[str, float]:
    """The measures with one of them so many of its tolerances away."""
    value = MEASURED[name]
    return MEASURED | {name: value + tolerances * SAFETY * MOVED[name] * max(1.0, value)}


def steady() -> Made:
    return made(("trace", "loss"), 1 + 1e-7)


def chaotic() -> Made:
    return made(("trace", "loss"), 1 + 1e-2)


def never() -> Made:
    raise AssertionError("nothing calls for training it once more")


def test_what_repeats_is_equal_to_the_bit_whatever_machine_it_names() -> None:
    assert judge(made(), AGAIN, never) == Judgement([], bits=True)
    found = judge(recorded(final_weights="c"), AGAIN, never)
    assert found.outcome == EQUAL
    assert found.words == "equal to the bit (another CPU or versions: device_name)"


def test_seconds_may_differ_and_nothing_else_to_the_bit() -> None:
    slower = {name: table.assign(seconds=2.0) for name, table in RAW.items()}
    assert other_bits(AGAIN, replace(AGAIN, raw=slower | {"items": RAW["items"]})) == []
    for name in ("status", "steps", "diverged_at", "final_weights", "batches", "initial_weights"):
        found = judge(made(**{name: "x"}), AGAIN, never)
        assert (found.outcome, found.differing) == (DIFFERS, [f"{name} differ"])
    for name, column in (("trace", "loss"), ("curve", "dev_loss")):
        found = judge(made((name, column), np.nextafter(1.0, 2)), AGAIN, never)
        assert found.differing == [f"{name}.parquet differs"]
    flipped = RAW | {"items": RAW["items"].assign(correct=True)}
    found = judge(replace(AGAIN, raw=flipped), AGAIN, never)
    assert found.differing == ["items.parquet differs"]


@pytest.mark.parametrize("name", [*MachineAccount.model_fields, "packages"])
def test_bits_are_demanded_only_where_every_field_of_the_machine_is_the_same(name: str) -> None:
    trained = json.loads(json.dumps(RESULT["provenance"]["trained"]))
    if name == "packages":
        trained["packages"]["torch"] = "2.12.0"
    else:
        trained["machine"][name] = OTHERS[name]
    other = made(measures=measured("loss", 0.5), provenance={"trained": trained})
    found = judge(other, AGAIN, never)
    assert found.outcome == WITHIN
    assert found.words == f"within tolerance (another CPU or versions: {name})"


def test_elsewhere_every_measure_is_held_to_its_own_tolerance() -> None:
    for name in MEASURED:
        found = judge(recorded(measures=measured(name, 0.9)), AGAIN, never)
        assert found.outcome == WITHIN, found
        for sign in (-1.1, 1.1):
            found = judge(recorded(measures=measured(name, sign)), AGAIN, steady)
            assert found.outcome == DIFFERS
            assert [line.partition(" ")[0] for line in found.differing] == [name]


SHORTER = [{"length": 8, "loss": 2.5}, {"length": 16, "loss": None}]
FORGERIES: dict[str, tuple[Made, str]] = {
    "accuracies + 0.20": (
        recorded(measures=MEASURED | {"accuracy": 0.5}),
        "accuracy is 0.3, with other rounding 0.3, and was 0.5",
    ),
    "a suite's accuracy": (
        recorded(measures=MEASURED | {"macro_accuracy_few_shot": 0.45}),
        "macro_accuracy_few_shot is 0.43, with other rounding 0.43, and was 0.45",
    ),
    "perplexity × 0.981": (
        recorded(measures=MEASURED | {"perplexity": 13.3 * 0.981}),
        "perplexity is 13.3, with other rounding 13.3, and was 13.0",
    ),
    "ece": (
        recorded(measures=MEASURED | {"ece": 0.0105}),
        "ece is 0.011, with other rounding 0.011, and was 0.0105",
    ),
    "brier": (
        recorded(measures=MEASURED | {"brier": 0.819}),
        "brier is 0.82, with other rounding 0.82, and was 0.819",
    ),
    "a measure taken out": (
        recorded(measures={k: v for k, v in MEASURED.items() if k != "ece"}),
        "ece is 0.011, with other rounding 0.011, and was None",
    ),
    "the losses": (recorded(("trace", "loss"), 1.001), "trace.loss is another"),
    "the dev losses": (recorded(("curve", "dev_loss"), 0.999), "curve.dev_loss is another"),
    "a table": (
        recorded(tables={"lengths": [{"length": 8, "loss": 2.5}, {"length": 16, "loss": None}]}),
        "lengths.loss",
    ),
    "zeroed weights": (replace(recorded(), weights=WEIGHTS * 0), "final_weights is another"),
    "weights of another model": (replace(recorded(), weights=WEIGHTS[:9]), "final_weights is"),
    "weights that are no numbers": (
        replace(recorded(), weights=WEIGHTS * np.nan),
        "final_weights is another",
    ),
    "a measure that is no number": (
        recorded(measures=MEASURED | {"ece": "low"}),
        "ece is 0.011, with other rounding 0.011, and was low",
    ),
    "divergence": (
        recorded(status="diverged", steps=12, diverged_at=12, batches="x"),
        "it completed at step 20, and the record says diverged at step 12",
    ),
    "other batches": (recorded(batches="x"), "batches differ"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_naming_another_cpu_switches_no_comparison_off(name: str) -> None:
    forged, said = FORGERIES[name]
    found = judge(forged, AGAIN, steady)
    assert found.outcome == DIFFERS
    assert len(found.differing) == 1
    assert found.differing[0].startswith(said)


def test_the_step_of_a_divergence_is_compared() -> None:
    ends = {"status": "diverged", "measures": {}, "diverged_at": 20}
    found = judge(recorded(**ends | {"steps": 19}), made(**ends), lambda: made(**ends))
    assert found.differing[0].startswith("it diverged at step 20, and the record says diverged at")
    assert judge(recorded(**ends), made(**ends), never).outcome == WITHIN


@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        (chaotic, "moves it by up to 100 × a tolerance"),
        (lambda: made(steps=3), "moves it by up to inf × a tolerance"),
        (lambda: None, "cannot be tried"),
    ],
)
def test_what_rounding_moves_as_far_cannot_be_judged(
    otherwise: Callable[[], Made | None], why: str
) -> None:
    found = judge(FORGERIES["perplexity × 0.981"][0], AGAIN, otherwise)
    assert found.outcome == UNJUDGED
    about = "cannot be judged (another CPU or versions: device_name): perplexity is 13.3"
    assert found.words.startswith(about)
    assert found.unjudged[-1] == f"here, other rounding {why}"


def test_weights_equal_to_the_bit_leave_rounding_nothing_to_amplify() -> None:
    measures = MEASURED | {"accuracy": 0.5}
    found = judge(recorded(measures=measures, final_weights="c"), AGAIN, never)
    assert found.outcome == DIFFERS


def test_a_hash_alone_cannot_be_judged_elsewhere() -> None:
    found = judge(replace(recorded(), weights=None), AGAIN, never)
    alone = "final_weights, of which only a hash is at hand"
    assert found.unjudged == [f"{alone} (all else is within tolerance)"]
    assert found.outcome == UNJUDGED


def test_every_measure_of_a_run_has_a_tolerance() -> None:
    timed = {name for name in MEASURES if "per_second" in name or name in _OF_MACHINE}
    beside = {"trace.loss", "curve.dev_loss", "final_weights", "windows.correct"}
    assert set(MOVED) - beside == set(MEASURES) - timed - {"unstable"}


_OF_MACHINE = ("model_flop_utilisation", "peak_memory")
