"""The formulas of cost against models, and against what torch counts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

from lib.data.text import Corpus
from lib.run import cost
from lib.run.machine import autocast, random_stream, recompute_activations
from lib.run.model import GPT, count_parameters, optimizer_groups
from lib.study.schema import ModelConfig, RunConfig
from tests.conftest import change
from tests.run.samples import NANOCHAT, train

CPU = "cpu"
V, SEQUENCES = 500, 4


SLOW = pytest.mark.slow
WAYS = [(precision, again) for precision in ("fp32", "bf16") for again in (False, True)]


@pytest.mark.parametrize(
    ("fields", "within", "precision", "again"),
    [
        *(pytest.param({"n_layer": 5}, 0.005, *way, marks=SLOW) for way in WAYS),
        *(pytest.param(NANOCHAT | {"dropout": 0.1}, 0.02, *way, marks=SLOW) for way in WAYS),
        ({"n_layer": 2}, 0.005, "fp32", False),
        ({"positions": "rotary"}, 0.005, "fp32", False),
        ({"qk_norm": True}, 0.005, "bf16", False),
        ({"qk_norm": True, "n_layer": 16, "n_head": 64, "mlp_ratio": 1}, 0.005, "fp32", False),
        ({"activation": "relu2"}, 0.005, "fp32", False),
        ({"logit_softcap": 15.0}, 0.005, "bf16", False),
        ({"dropout": 0.1}, 0.005, "fp32", False),
        pytest.param({"dropout": 0.1, "block_size": 256}, 0.05, "bf16", True, marks=SLOW),
        (NANOCHAT, 0.005, "bf16", False),
    ],
    ids=str,
)
def test_memory_is_what_torch_counts(
    fields: dict[str, Any], within: float, precision: str, again: bool
) -> None:
    config = RunConfig.model_validate(
        {
            "model": {"n_layer": 4, "n_head": 4, "n_embd": 64, "block_size": 64} | fields,
            "training": {"precision": precision},
            "machine": {"activation_checkpointing": again},
        }
    )
    model = GPT(config.model, V, random_stream(0, "weights"))
    if again:
        recompute_activations(model.transformer.h, random=config.model.dropout > 0)
    model.train()
    optimizer = torch.optim.AdamW(optimizer_groups(model, 0.1), fused=True)

    def micro_batch() -> None:
        x = torch.randint(V, (SEQUENCES, config.model.block_size))
        with autocast(precision, CPU):
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), x.flatten())
        loss.backward()

    micro_batch()
    optimizer.step()
    optimizer.zero_grad()
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        micro_batch()
        tracker.reset_mod_stats()
        micro_batch()  # with the second one all gradients are there
    counted = tracker.get_tracker_snapshot("peak")[torch.device(CPU)]["Total"]
    stated = cost.memory(config, V, count_parameters(model), SEQUENCES, "cpu")
    assert sum(stated.values()) == pytest.approx(counted, rel=within)


def test_operations_are_six_per_weight_and_those_of_attention() -> None:
    """Counted product by product: a weight takes part in one forward and two backward products,
    attention in two per layer, each over T keys of C features."""
    model = ModelConfig(n_layer=3, n_head=4, n_embd=64, block_size=32)
    C, T, L = 64, 32, 3
    block = 12 * C * C + 13 * C  # matrices; biases and gains
    parameters = V * C + T * C + L * block + 2 * C
    assert parameters == count_parameters(GPT(model, V, None))
    products = 6 * (V * C + L * block + 2 * C) + L * 3 * 2 * 2 * T * C
    assert cost.flops_per_token(model, V, parameters) == products
    untied = model.model_copy(update={"tied": False})
    more = count_parameters(GPT(untied, V, None))
    assert cost.flops_per_token(untied, V, more) == products  # the second matrix is looked up


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("NVIDIA H200", "bf16", 989e12),
    ],
)
def test_a_known_gpu_has_the_peak_of_its_data_sheet(name: str, precision: str, peak: float) -> None:
    assert cost.peak_flops(name, precision, CPU) == peak


def test_another_device_has_the_peak_of_a_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 10.0, 12.0, 20.0, 25.0, 30.0, 34.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert cost.peak_flops("a CPU", "fp32", CPU) == 2 * 1024**3 / 2.0


def test_a_checkpoint_takes_the_disk_that_is_stated(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    wide = change(tiny, "model", n_embd=64)  # beside which names and shapes take no room
    parameters = count_parameters(train(wide, corpus, 0, tmp_path).model)
    kept = list((tmp_path / "checkpoints").glob("*/step-*"))
    names = ("weights.safetensors", "state.pt")
    written = sum((path / name).stat().st_size for path in kept for name in names)
    stated = cost.disk(parameters, tiny.training.iterations)["checkpoints"]
    assert written / len(kept) == pytest.approx(stated / cost.CHECKPOINTS_AT_ONCE, rel=0.05)
