"""What a run asks of a cluster: what it holds by formula and what its steps take, with margins."""

import math

import pytest

from lib.study.study import Study
from lib.workflow import dry_run, estimate
from tests.conftest import TINY


def study(**content: object) -> Study:
    factors = {"training.iterations": [12, 36]}
    return Study.model_validate(TINY | {"name": "t", "seeds": [0], "factors": factors} | content)


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 48 steps of both arms are said to take four hours."""
    hours = estimate.StudyCost("", {"core-hours here": 4.0})
    monkeypatch.setattr("lib.workflow.dry_run.estimate", lambda _: hours)


@pytest.mark.usefixtures("hourly")
def test_a_run_asks_for_twice_its_steps_and_half_more_than_it_holds() -> None:
    C, T, windows = 16, 16, 64
    (run, _) = estimate.run_costs(study(), None)
    evaluation = windows * T * (32 * run.vocab_size + 4 * 18 * C)  # more than a step holds
    memory = 2e9 + 1.5 * (16 * run.parameters + evaluation)
    assert dry_run.job_resources(study()) == {
        "iterations=12": {"mem_mb": math.ceil(memory / 1e6), "runtime": 15 + 2 * 60},
        "iterations=36": {"mem_mb": math.ceil(memory / 1e6), "runtime": 15 + 2 * 180},
    }


@pytest.mark.usefixtures("hourly")
def test_every_process_has_a_program_of_its_own() -> None:
    both = (dry_run.job_resources(study(machine={"processes": n})) for n in (1, 2))
    one, two = (resources["iterations=12"] for resources in both)
    assert 1.9 * one["mem_mb"] < two["mem_mb"] <= 2 * one["mem_mb"]


def test_where_only_other_machines_have_the_gpu_the_slowest_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_gpu = study(machine={"device": "cuda", "processes": 2, "micro_batch_size": 1})
    hours = estimate.StudyCost("", {"T4-hours": 8.0, "H100-hours": 1.0})
    monkeypatch.setattr("lib.workflow.dry_run.estimate", lambda _: hours)
    (run, _) = estimate.run_costs(on_gpu, None)
    memory = 2 * (4e9 + 1.5 * 16 * run.parameters)
    assert dry_run.job_resources(on_gpu) == {
        "iterations=12": {"mem_mb": math.ceil(memory / 1e6), "runtime": 15 + 2 * 60},
        "iterations=36": {"mem_mb": math.ceil(memory / 1e6), "runtime": 15 + 2 * 180},
    }
