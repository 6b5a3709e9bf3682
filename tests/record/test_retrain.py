"""A retrained run is judged by its bits, or if these may differ, by its loss."""

import copy

import pytest

from lib.config.errors import UsageError
from lib.record.archive import Record
from lib.record.retrain import DIFFERS, EQUAL, UNJUDGED, WITHIN, retrain
from tests.record.conftest import run_tiny

ELSEWHERE = {"device_name": "another CPU"}


def changed(run, fields, machine, loss):
    again = copy.deepcopy(run) | fields
    again["provenance"]["trained"]["machine"] |= machine
    again["measures"]["loss"] += loss
    return again


@pytest.mark.parametrize(
    ("study", "fields", "machine", "loss", "outcome", "status"),
    [
        ("where", {}, {}, 0.0, EQUAL, 0),
        ("where", {}, ELSEWHERE, 0.0, EQUAL, 0),
        ("where", {"final_weights": "0"}, {}, 0.0, DIFFERS, 1),
        ("where", {"initial_weights": "0"}, {}, 0.0, DIFFERS, 1),
        ("where", {"batches": "0"}, ELSEWHERE, 0.0, DIFFERS, 1),
        ("where", {"final_weights": "0"}, ELSEWHERE, 0.0029, WITHIN, 0),
        ("where", {"final_weights": "0"}, ELSEWHERE, -0.0031, UNJUDGED, 4),
        ("modern", {"final_weights": "0"}, ELSEWHERE, 0.0019, WITHIN, 0),  # a tenth of 0.02
        ("modern", {"final_weights": "0"}, ELSEWHERE, 0.0021, UNJUDGED, 4),
        ("where", {"final_weights": "0", "status": "diverged"}, ELSEWHERE, 0.0, UNJUDGED, 4),
    ],
)
def test_outcome_and_exit_status(study, fields, machine, loss, outcome, status, capsys):
    run = Record(study).runs[0]
    name = f"{study}/{run['arm']}/{run['seed']}"
    again = changed(run, fields, machine, loss)
    assert retrain([name], [], lambda *asked: again) == status
    said = capsys.readouterr().out
    assert f"{name}: trained again, {outcome}" in said
    for result in (run, again):  # both losses, both machines
        assert str(result["measures"]["loss"]) in said
        assert result["provenance"]["trained"]["machine"]["device_name"] in said


def test_the_worst_of_several_outcomes_counts_and_runs_are_drawn_from_the_studies_named():
    asked = []

    def train(study, *run):
        asked.append((study.name, *run))
        (recorded,) = (r for r in Record("where").runs if (r["arm"], r["seed"]) == run)
        fields = {"final_weights": "0"} if len(asked) == 2 else {}
        return changed(recorded, fields, ELSEWHERE, 1.0)

    assert retrain(["3"], ["where"], train) == 4
    assert len({*asked}) == 3
    assert {study for study, *_ in asked} == {"where"}


@pytest.mark.parametrize("word", ["0", "-1", "two", "where/none", "where/nome/1050", "wher/x/1"])
def test_a_word_that_is_no_number_and_no_recorded_run_is_refused(word):
    with pytest.raises(UsageError):
        retrain([word], [], lambda *_: {})


@pytest.mark.long
@pytest.mark.slow
def test_a_run_is_trained_again_to_the_bit_by_todays_code(tiny):
    seed = Record("tiny", tiny / "papers" / "paper").runs[0]["seed"]
    done = run_tiny(tiny, "again", f"tiny/layernorm/{seed}")
    assert done.returncode == 0, done.stderr
    assert f"tiny/layernorm/{seed}: trained again, equal to the bit" in done.stdout
