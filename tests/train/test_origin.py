"""The provenance of a run is complete, and survives writing and reading."""

import platform
from importlib.metadata import version

import numpy as np
import pytest
import torch

from lib.config.provenance import measure_key, train_key
from lib.config.study import Study
from lib.results import Provenance
from lib.train.trainer import new_provenance
from tests.conftest import TINY, change
from tests.train.samples import begun

PACKAGES = {"python", "torch", "numpy", "scipy", "pandas", "papermill", "lm_eval"}


def test_a_provenance_names_plan_code_text_parameters_machine_and_versions(corpus):
    study = Study.model_validate(TINY | {"name": "tiny", "seeds": [3]})
    arm = study.arm("baseline")
    made = new_provenance(study, arm, 3, corpus)
    assert (made.study, made.arm, made.seed, made.plan) == ("tiny", "baseline", 3, None)
    assert made.corpus_sha256 == corpus.sha256
    assert made.training_digest == train_key() != made.measuring_digest == measure_key()
    assert made.parameters["training"]["learning_rate"] == 1e-3
    assert made.parameters["training"]["beta2"] == 0.95  # a default, which is still written
    assert "machine" not in made.parameters
    assert set(made.packages) == PACKAGES
    assert made.packages["python"] == platform.python_version()
    assert made.packages["torch"] == version("torch")
    # A build for GPUs names its CUDA version only when it is imported.
    assert version("torch").partition("+")[0] == torch.__version__.partition("+")[0]
    assert made.packages["numpy"] == np.__version__
    assert made.packages["lm_eval"] == version("lm_eval")
    assert Provenance.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("section", "fields", "same"),
    [
        ("model", {"n_layer": 1}, False),
        ("training", {"learning_rate": 2e-3}, False),
        ("corpus", {"fraction": 0.5}, False),
        ("corpus", {"source": "the same text elsewhere"}, True),
        ("evaluation", {"interval": 3}, False),
        ("evaluation", {"dev_windows": 3}, False),
        *(("machine", {name: 2}, True) for name in ("threads", "micro_batch_size")),
        ("evaluation", {"items_per_task": 50}, True),
        (None, {"seed": 1}, False),
        (None, {"plan": "a" * 64}, False),
        (None, {"corpus_sha256": "b" * 64}, False),
        (None, {"tokenizer_sha256": "b" * 64}, False),
        (None, {"training_digest": "c" * 64}, False),
        (None, {"measuring_digest": "d" * 64}, True),
        (None, {"commit": "e" * 40}, True),
        (None, {"suite_hash": "f" * 64}, True),
        (None, {"study": "other", "arm": "other"}, True),
        (None, {"started": "2000-01-01 00:00:00 UTC"}, True),
    ],
)
def test_the_identity_covers_what_decides_weights_and_curve(section, fields, same, tiny, corpus):
    """Fields of the parameters, and of the provenance itself."""
    made, threads = begun(tiny, corpus), torch.get_num_threads()
    if section:
        other = begun(change(tiny, section, **fields), corpus)
    else:
        other = made.model_copy(update=fields)
    torch.set_num_threads(threads)
    assert (made.identity == other.identity) == same
