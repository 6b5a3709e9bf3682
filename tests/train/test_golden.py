"""A tiny run gives the same results as ever, on every machine: the same batches, to the bit, and
the same measures and norm of the weights, up to rounding. Even CPUs with the same vector
instructions do not give the same bits: two kinds with AVX-512 were tried."""

import pytest
import torch

from lib.train.evaluate import measure
from tests.conftest import beginning, change
from tests.train.samples import NANOCHAT, train

BATCHES = "11ec8aa087bae71815b75df2b047b803027feedc7060aa4fc58a7d306831fb65"
WEIGHTS = 9.118310
"""Euclidean norm of all weights together."""
MEASURES = {
    "loss": 3.9093824281019653,
    "accuracy": 0.11185559277963898,
    "brier": 0.9765700632630349,
    "embedding_norm": 0.12220790921577013,
    "ece": 0.08768141075766343,
    "temperature": 0.13618927305877274,
    "nll_test_tempered": 3.354583663630623,
    "grad_norm": 1.0159562826156616,
    "gradient_cosine": 0.35996760924657184,
}


def test_golden_tiny_run(tiny, corpus, tmp_path):
    config, text = change(tiny, "evaluation", items_per_task=0), beginning(corpus, 20_000)
    trained = train(config, text, 0, tmp_path)
    assert trained.batches == BATCHES
    length = torch.nn.utils.get_total_norm(trained.model.parameters()).item()
    assert length == pytest.approx(WEIGHTS, rel=1e-6)
    measured = measure(trained).measures
    assert {name: measured[name] for name in MEASURES} == pytest.approx(MEASURES, rel=1e-5)


CLIPPED = {"gradient_clip": 0.01, "embedding_learning_rate_ratio": 3.0}
WARM = {"warmup_iterations": 3}


@pytest.mark.parametrize(
    ("section", "fields", "weights", "dev_loss"),
    [
        ("model", {"embedding_norm": "layernorm"}, 9.962743, 4.015318),
        ("model", {"embedding_norm": "rmsnorm"}, 9.962608, 4.016249),
        ("model", {"embedding_norm": "center"}, 9.11831, 3.914263),
        ("model", {"embedding_norm": "scale"}, 9.122289, 4.016522),
        ("model", {"embedding_norm": "grad_shrink"}, 9.118683, 3.915752),
        ("model", NANOCHAT, 1.711039, 4.019519),
        ("model", {"dropout": 0.2, "branch_multiplier": 2.0}, 9.101193, 3.914056),
        ("training", CLIPPED, 9.155525, 3.683196),
        ("training", WARM | {"schedule": "warmup_cosine"}, 9.085488, 3.986188),
        ("training", WARM | {"schedule": "warmup_stable_decay"}, 9.098043, 3.952702),
    ],
)
def test_golden_variants(section, fields, weights, dev_loss, tiny, corpus, tmp_path):
    trained = train(change(tiny, section, **fields), corpus, 0, tmp_path)
    length = torch.nn.utils.get_total_norm(trained.model.parameters()).item()
    assert (length, trained.points[-1]["dev_loss"]) == pytest.approx((weights, dev_loss), rel=1e-5)
    assert trained.batches == BATCHES
