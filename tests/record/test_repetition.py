"""How a run that was trained again is judged: to the bit, within tolerances, or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lib.record.retrain import (
    DIFFERS,
    EQUAL,
    MOVED,
    SAFETY,
    UNJUDGED,
    WITHIN,
    Judgement,
    Trained,
    judge,
    other_bits,
)
from lib.results import MachineFacts
from lib.study.metrics import MEASURES

MACHINE = MachineFacts(
    device="cpu",
    device_name="AMD EPYC",
    vector_level="AVX512",
    threads=1,
    micro_batch_size=4,
    evaluation_batch_size=8,
    processes=1,
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
TASKS: list[dict[str, Any]] = [
    {"task": "piqa", "accuracy": 0.6},
    {"task": "hellaswag", "accuracy": 0.3},
]
TABLES = {
    "lengths": [{"length": 8, "loss": 2.7}, {"length": 16, "loss": None}],
    "stock_tasks": TASKS,
}
RESULT: dict[str, Any] = {
    **{"status": "completed", "steps": 20, "diverged_at": None, "parameters": 1000},
    **{"initial_weights": "a", "batches": "b", "final_weights": "c", "measures": MEASURED},
    "tables": TABLES,
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
    "curve": pd.DataFrame(
        {"step": [0, 20], "dev_loss": [4.2, 2.6], "gradient_cosine": [np.nan, 0.5], "seconds": 1.0}
    ),
    "positions": pd.DataFrame({"context": [1, 2, 3], "position_loss": [3.3, 2.7, 2.5]}),
    "items": pd.DataFrame({"task": "order", "choice": [0, 3] * 30, "correct": [True, False] * 30}),
}
WEIGHTS = np.linspace(-0.3, 0.3, 100)
AGAIN = Trained(RESULT, RAW, WEIGHTS)


def made(column: tuple[str, str] | None = None, factor: float = 1.0, **fields: Any) -> Trained:
    """The run with other fields of its result, and a column of a raw file multiplied."""
    raw = dict(RAW)
    if column:
        name, of = column
        raw[name] = raw[name].assign(**{of: raw[name][of] * factor})
    return Trained(json.loads(json.dumps(RESULT)) | fields, raw, WEIGHTS)


def recorded(column: tuple[str, str] | None = None, factor: float = 1.0, **fields: Any) -> Trained:
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


def twin(column: tuple[str, str] | None = None, factor: float = 1.0, **fields: Any) -> Trained:
    """The run trained with other rounding."""
    return made(column, factor, **{"final_weights": "e"} | fields)


def steady() -> Trained:
    return twin(("trace", "loss"), 1 + 1e-7)


def chaotic() -> Trained:
    return twin(("trace", "loss"), 1.1)


def never() -> Trained:
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


@pytest.mark.parametrize("name", [*MACHINE, "packages"])
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


def with_raw(name: str, table: pd.DataFrame) -> Trained:
    """The record with another raw file."""
    return replace(recorded(), raw=RAW | {name: table})


SHORTER = [{"length": 8, "loss": 2.5}, {"length": 16, "loss": None}]
FORGERIES: dict[str, tuple[Trained, str]] = {
    "accuracies + 0.20": (
        recorded(measures=MEASURED | {"accuracy": 0.5}),
        "accuracy is 0.3, with other rounding 0.3, and was 0.5",
    ),
    "perplexity × 0.981": (
        recorded(measures=MEASURED | {"perplexity": 13.3 * 0.981}),
        "perplexity is 13.3, with other rounding 13.3, and was 13.0",
    ),
    "a measure taken out": (
        recorded(measures={k: v for k, v in MEASURED.items() if k != "ece"}),
        "ece is 0.011, and was None",
    ),
    "the losses": (recorded(("trace", "loss"), 1.001), "trace.loss is another"),
    "the dev losses": (recorded(("curve", "dev_loss"), 0.999), "curve.dev_loss is another"),
    "the losses by position": (
        recorded(("positions", "position_loss"), 1.004),
        "positions.position_loss is another",
    ),
    "a measure written as text": (
        recorded(measures=MEASURED | {"accuracy": "0.30"}),
        "accuracy is 0.3, and was 0.30",
    ),
    "a table": (recorded(tables=TABLES | {"lengths": SHORTER}), "lengths.loss"),
    "a renamed task": (
        recorded(tables=TABLES | {"stock_tasks": [TASKS[0] | {"task": "mmlu"}, TASKS[1]]}),
        "stock_tasks.task is another",
    ),
    "a table without its labels": (
        recorded(tables=TABLES | {"stock_tasks": [{"accuracy": t["accuracy"]} for t in TASKS]}),
        "stock_tasks.task is another",
    ),
    "rotated steps": (
        with_raw("curve", RAW["curve"].assign(step=[20, 0])),
        "curve.step is another",
    ),
    "answers of the suite": (
        with_raw("items", RAW["items"].assign(choice=3)),
        "items.choice is another, 10 × its tolerance",
    ),
    "questions of the suite": (
        with_raw("items", RAW["items"].assign(task="copying")),
        "items.task is another",
    ),
    "an infinite loss": (
        with_raw("curve", RAW["curve"].assign(gradient_cosine=[np.inf, 0.5])),
        "curve.gradient_cosine is another",
    ),
    "parameters": (recorded(parameters=900), "parameters differ"),
    "the step of an overflow": (
        recorded(diverged_at=3),
        "it completed at step 20, and the record says completed at step 20 (diverged_at 3)",
    ),
    "zeroed weights": (replace(recorded(), weights=WEIGHTS * 0), "final_weights is another"),
    "weights of another model": (replace(recorded(), weights=WEIGHTS[:9]), "final_weights is"),
    "weights that are no numbers": (
        replace(recorded(), weights=WEIGHTS * np.nan),
        "final_weights is another",
    ),
    "a measure that is no number": (
        recorded(measures=MEASURED | {"ece": "low"}),
        "ece is 0.011, and was low",
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
    found = judge(recorded(**ends | {"steps": 19}), made(**ends), lambda: twin(**ends))
    assert found.differing[0].startswith("it diverged at step 20, and the record says diverged at")
    assert judge(recorded(**ends), made(**ends), never).outcome == WITHIN


@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        (chaotic, "moves it by up to 1,000 × a tolerance"),
        (lambda: twin(steps=3), "moves it by up to inf × a tolerance"),
        (lambda: None, "cannot be tried"),
    ],
)
def test_what_rounding_moves_as_far_cannot_be_judged(
    otherwise: Callable[[], Trained | None], why: str
) -> None:
    found = judge(FORGERIES["perplexity × 0.981"][0], AGAIN, otherwise)
    assert found.outcome == UNJUDGED
    about = "cannot be judged (another CPU or versions: device_name): perplexity is 13.3"
    assert found.words.startswith(about)
    assert found.unjudged[-1] == f"here, other rounding {why}"


TWIN_MOVED = {"final_weights": 15.0, "ece": 30.0, "loss": 0.9}
"""By how many tolerances rounding moved a run in bf16."""


def amplified() -> Trained:
    moved = MEASURED | {n: measured(n, TWIN_MOVED[n])[n] for n in ("ece", "loss")}
    further = WEIGHTS * (1 + TWIN_MOVED["final_weights"] * SAFETY * MOVED["final_weights"])
    return replace(twin(measures=moved), weights=further)


@pytest.mark.parametrize(
    "name", ["accuracies + 0.20", "perplexity × 0.981", "zeroed weights", "divergence"]
)
def test_each_number_is_judged_by_how_far_rounding_moves_that_one(name: str) -> None:
    forged, said = FORGERIES[name]
    found = judge(forged, AGAIN, amplified)
    assert found.outcome == DIFFERS
    assert found.differing[0].partition(" ")[0] == said.partition(" ")[0]


@pytest.mark.parametrize(
    ("name", "tolerances", "outcome"),
    [
        ("accuracy", 299, UNJUDGED),  # 20 times what leads it
        ("accuracy", 301, DIFFERS),
        ("ece", 599, UNJUDGED),  # 20 times what it moved itself
        ("ece", 601, DIFFERS),
    ],
)
def test_what_moves_a_little_hides_little(name: str, tolerances: float, outcome: str) -> None:
    found = judge(recorded(measures=measured(name, tolerances)), AGAIN, amplified)
    assert found.outcome == outcome


def test_many_numbers_that_cannot_be_judged_hide_none_that_differs() -> None:
    wild = {f"level_{i}": 1.0 for i in range(20)}
    now, then = (MEASURED | wild | {k: v + d for k, v in wild.items()} for d in (0.0, 2.9))
    found = judge(
        recorded(measures=then | {"accuracy": 0.302}),
        made(measures=now),
        lambda: twin(measures=MEASURED | {k: v + 2 for k, v in wild.items()}),
    )
    assert [line.partition(" ")[0] for line in found.differing] == ["accuracy"]


@pytest.mark.parametrize("name", ["a renamed task", "rotated steps", "questions of the suite"])
def test_rounding_changes_no_label_however_far_it_moves_numbers(name: str) -> None:
    assert judge(FORGERIES[name][0], AGAIN, chaotic).outcome == DIFFERS


def test_near_ties_may_turn_a_few_answers() -> None:
    items = RAW["items"]
    turned = with_raw("items", items.assign(choice=[1] * 3 + list(items["choice"][3:])))
    assert judge(turned, AGAIN, never).outcome == WITHIN


def test_a_twin_equal_to_the_bit_says_nothing_of_rounding() -> None:
    found = judge(FORGERIES["accuracies + 0.20"][0], AGAIN, made)
    assert found.unjudged[-1] == "here, other rounding cannot be tried"


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
    beside |= {"windows.nll", "windows.brier", "positions.position_loss"}
    assert set(MOVED) - beside == set(MEASURES) - timed - {"unstable", "plateau", "harmful"}


def test_no_tolerance_lets_an_effect_of_a_fiftieth_pass() -> None:
    assert max(MOVED.values()) * SAFETY <= 0.02


_OF_MACHINE = ("model_flop_utilisation", "peak_memory")
