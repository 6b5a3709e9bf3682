"""What a training step costs on any device: how often it waits, and how many operations it sends.

On a GPU of today the study's model is bound by both; neither needs one to be counted.
"""

from collections import Counter

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lib.config.study import load_study
from lib.train.trainer import Trainer
from tests.conftest import change
from tests.train.samples import begun

VIEWS = {"view", "t", "transpose", "detach", "slice", "split", "_unsafe_view", "select", "expand"}
"""Operations that launch nothing."""
MOST = 291


class Counted(TorchDispatchMode):
    """Counts operations by name; every read by the host is a `_local_scalar_dense`."""

    def __init__(self):
        super().__init__()
        self.by_name = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.by_name[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    @property
    def launched(self):
        named = {n: c for n, c in self.by_name.items() if not n.startswith("_record_function")}
        return sum(count for name, count in named.items() if name not in VIEWS)


def counted(step):
    with Counted() as result:
        step()
    return result


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_sends_few_operations_and_waits_for_none(clip, corpus, tmp_path):
    """Return the model of `final` with a whole batch at once, as on a GPU. Its size does not
    matter."""
    config = change(load_study("final").arm("none").config, "machine", micro_batch_size=1)
    config = change(config, "training", batch_size=1, gradient_clip=clip)
    run = Trainer(config, corpus, begun(config, corpus), tmp_path)
    run.training_step()  # it makes AdamW's state
    of_step = counted(run.training_step)
    assert of_step.launched <= MOST
    assert of_step.by_name["_local_scalar_dense"] == 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("wrong", [3, 10, 11])
def test_nothing_changes_after_a_divergence(wrong, optimizer, tiny, corpus, tmp_path, monkeypatch):
    """One step's loss becomes infinite. Later steps, made before the host looks, are ignored."""
    config = change(tiny, "training", iterations=24, optimizer=optimizer)
    made = begun(config, corpus)
    sound, broken = (Trainer(config, corpus, made, tmp_path / name) for name in "ab")
    for _ in range(wrong - 1):
        sound.training_step()
    weights = {name: weight.clone() for name, weight in sound.model.state_dict().items()}
    sound.training_step()
    cross_entropy, calls = F.cross_entropy, 0

    def infinite_once(*given):
        nonlocal calls
        calls += 1
        loss = cross_entropy(*given)
        return loss * torch.inf if calls == wrong else loss

    point = {"dev_loss": 1.0}
    monkeypatch.setattr(Trainer, "evaluate", lambda run: run.points.append(point) or point)
    monkeypatch.setattr("lib.train.trainer.F.cross_entropy", infinite_once)
    broken.training_loop(lambda *_: None)
    assert (broken.diverged_at, broken.step, len(broken.rows)) == (wrong, wrong, wrong)
    assert broken.batches == sound.batches
    for name, weight in broken.model.state_dict().items():
        assert weight.equal(weights[name]), name
