"""What a study will cost is counted as the model counts; the large one is as large as it says."""

import re
from pathlib import Path

import pytest
import torch

from lib.data.text import Corpus
from lib.run.model import GPT, count_parameters
from lib.study.inputs import is_copy
from lib.study.schema import RunConfig
from lib.study.study import Study, load_study
from lib.workflow import cli, estimate
from tests.conftest import TINY, change
from tests.run.samples import train
from tests.study.samples import Parameters

SCALE = load_study("scale")
MACHINE = {
    "processes": 1,
    "micro_batch_size": 2,
    "compile": False,
    "device": "cpu",
    "checkpoint_interval": 3,
}


def test_the_large_study_is_350_million_parameters_on_50_billion_tokens() -> None:
    C, L, T, V = 1024, 24, 2048, 50_000
    norm = {"none": 0, "layernorm": 2 * C, "rmsnorm": C}
    for arm in SCALE.arms():
        model = GPT(arm.config.model, V, None)
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        blocks = L * (12 * C * C + 13 * C)
        closed = V * C + T * C + blocks + 2 * C + norm[arm.variant]
        assert count_parameters(model) == closed
        assert closed == pytest.approx(350e6, rel=0.02)
    assert {run.vocab_size for run in estimate.run_costs(SCALE, None)} == {V}
    training = SCALE.training
    assert training.iterations * training.batch_size * T == pytest.approx(50e9, rel=1e-5)
    assert training.warmup_iterations * training.batch_size * T == pytest.approx(375e6, rel=1e-3)
    assert (training.schedule, training.precision) == ("warmup_cosine", "bf16")
    assert len(list(SCALE.arms())) == 3


def test_a_gpu_holds_a_run_by_its_largest_moment(tiny_study: Study) -> None:
    C, context = 16, 1e9
    (small, _) = estimate.run_costs(tiny_study, None)
    V = small.vocab_size
    weights = 16 * small.parameters  # with gradients and AdamW's moments
    evaluation = 64 * 16 * (32 * V + 4 * 18 * C)  # a step's four sequences are few beside it
    layernorm = 16 * 2 * C
    assert estimate.gpu_memory([tiny_study]) == context + 1.5 * (weights + layernorm + evaluation)
    large = estimate.gpu_memory([SCALE, tiny_study])
    assert large == estimate.gpu_memory([SCALE]) > 16 * 350e6


def test_a_large_vocabulary_is_evaluated_in_parts_and_counted_so() -> None:
    """All logits of 32,768 tokens and 50,000 symbols would take 6.5 GB, and a sixteenth does."""
    content = TINY | {"name": "large", "seeds": [0], "machine": {"device": "cuda"}}
    study = Study.model_validate(content | {"model": TINY["model"] | {"block_size": 128}})
    (run,) = estimate.run_costs(study, 50_000)
    held = estimate.peak_bytes(run, "cuda", 1)
    tokens = 256 * 128
    assert 4 * tokens * 50_000 > 6.5e9
    assert held["evaluation"] == tokens * 4 * 18 * 16 + 32 * 2**24
    assert "activations" not in held
    assert re.search(r"^  evaluation +574\.6 MB$", estimate.estimate(study, 50_000).text, re.M)


def test_a_study_meant_for_another_machine_is_estimated_without_a_time_here() -> None:
    study = load_study("final-gpu")
    text = estimate.estimate(study, vocabulary=65).text
    assert "not on this machine: machine.device: 'cuda' does not work" in text
    assert "T4" in text


@pytest.mark.parametrize(
    ("section", "fields", "lacking"),
    [
        ("machine", {"threads": 65_536}, "machine.threads: 65536 is more than the"),
        ("model", {"n_embd": 100_000}, "model: with n_embd 100000, n_layer 2, "),
    ],
)
def test_what_this_machine_cannot_hold_is_estimated_without_a_time_here(
    section: str, fields: dict[str, int], lacking: str
) -> None:
    content = TINY | {"name": "large", "seeds": [0], section: TINY[section] | fields}
    text = estimate.estimate(Study.model_validate(content), vocabulary=65).text
    assert f"not on this machine: {lacking}" in text
    assert "T4" in text


def test_a_table_holds_the_sums_over_all_runs(tiny_study: Study) -> None:
    text = estimate.estimate(tiny_study, price=2.0).text
    (none, layernorm) = estimate.run_costs(tiny_study, None)
    model = tiny_study.arm("none").config.model
    assert none.parameters + 2 * model.n_embd == layernorm.parameters
    rows = {row[:40].strip(): row.split() for row in text.splitlines()}
    assert rows["parameters"][-1] == f"{layernorm.parameters:,}"
    tokens = 12 * 4 * 16
    assert none.tokens == layernorm.tokens == tokens
    flops = 2 * (none.flops + layernorm.flops)
    assert text.count(f"{flops:.2e}") == 1
    assert re.search(
        r"^1 × .*, by 3 steps of 4 × 16, 2 layers +\S+ s +0\.00 h$", text, re.MULTILINE
    )
    assert "cost at 2 an hour" in text
    assert re.search(r"H100, fp32: 35% of 67 TFLOP/s +0\.0 s +0\.00 h, 0\.00$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("affordable", "left"),
    [
        (1e30, (4, 24, 2048)),
        (6e12, (1, 24, 2048)),
        (1.3e12, (1, 3, 2048)),
        (3e11, (1, 3, 512)),
        (0, (1, 3, 128)),
    ],
)
def test_what_is_measured_is_reduced_until_it_is_affordable(
    affordable: float, left: tuple[int, int, int]
) -> None:
    config = SCALE.arm("none").config
    run = estimate.RunCost(config, 50_000, 0, 0, 0)
    model, sequences = estimate.reduce_to(run, 4, affordable)
    assert (sequences, model.n_layer, model.block_size) == left
    assert model.n_embd == config.model.n_embd


def test_more_processes_share_the_passes_and_not_the_updates(
    tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by which a pass takes 6 s and an update 1 s; 12 steps of one micro-batch of 4."""
    (run,) = estimate.run_costs(Study.model_validate(TINY | {"name": "tiny", "seeds": [0]}), 65)
    machine = estimate.prepare(tiny)
    for processes, seconds in ((1, 12 * 6 + 12 * 1), (2, 12 * 6 / 2 + 12 * 1)):
        clock = iter([t for step in range(3) for t in (9 * step, 9 * step + 6, 9 * step + 7)])
        monkeypatch.setattr("time.perf_counter", lambda clock=clock: float(next(clock)))
        assert estimate.measured_seconds(run, machine, processes)[0] == pytest.approx(seconds)


def test_a_vocabulary_that_cannot_be_known_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = Parameters(tmp_path, monkeypatch).folder  # which gets a copy
    missing = tmp_path / "missing.yaml"
    missing.write_text("name: missing\nseeds: [0]\ncorpus: no/such/text\n", "utf-8")
    assert cli.main(["estimate", str(missing)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert is_copy(params / "missing.yaml")


@pytest.mark.parametrize("vocabulary", ["0", "-5"])
def test_a_vocabulary_is_at_least_one_symbol(
    vocabulary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["estimate", "smoke", f"--vocabulary={vocabulary}"]) == 2
    error = f"--vocabulary: {vocabulary}; give a whole number above 0; see"
    assert capsys.readouterr().err.startswith(f"error: estimate: {error}")


@pytest.mark.slow
def test_the_first_steps_of_the_large_study_run_in_two_processes(
    corpus: Corpus, tmp_path: Path
) -> None:
    """At reduced width, depth, context and batch; against one process, bf16 rounds differently."""
    config = change(SCALE.arm("layernorm").config, "machine", **MACHINE)
    config = change(config, "model", n_layer=2, n_embd=32, n_head=2, block_size=32)
    config = change(config, "training", iterations=6, batch_size=8, warmup_iterations=2)
    config = change(config, "corpus", source="synthetic", fraction=0.02, tokenizer="characters")
    one, two = (
        train(change(config, "machine", processes=n), corpus, 0, tmp_path / str(n)) for n in (1, 2)
    )
    assert two.batches == one.batches
    torch.testing.assert_close(
        torch.tensor(two.trace["loss"]), torch.tensor(one.trace["loss"]), rtol=1e-3, atol=0
    )
