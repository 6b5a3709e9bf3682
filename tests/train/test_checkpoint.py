"""A run ends with the same weights even if checkpoints are damaged, and says which it skipped."""

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.config.schema import RunConfig
from lib.results import Provenance
from lib.train import checkpoint
from lib.train import trainer as training
from tests.conftest import TINY, change
from tests.train.samples import KilledError, assert_same, begun, killed_at, train


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, corpus):
    """A run that was killed after step 11 of 12, with checkpoints of steps 5 and 10."""
    folder = tmp_path_factory.mktemp("before") / "run"
    with killed_at(11):
        train(RunConfig.model_validate(TINY), corpus, 0, folder)
    return folder


@pytest.fixture
def ruin(stopped, tmp_path):
    """A copy of that run."""
    return shutil.copytree(stopped, tmp_path / "run")


def saved(folder):
    return sorted(folder.glob("checkpoints/*/step-*"))


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def leave_half(path):
    """A file with a temporary name, as a kill during writing leaves it."""
    path.rename(path.with_name(f".0.{path.name}"))


@pytest.mark.parametrize(
    ("damage", "which", "resumed_at"),
    [
        (flip_a_bit, [-1], [5]),
        (empty, [-1], [5]),
        (flip_a_bit, [0, -1], []),
        (leave_half, [-1], [5]),
        (Path.unlink, [-1], [5]),
    ],
)
def test_damaged_checkpoint_is_named_and_the_previous_one_used(
    damage, which, resumed_at, ruin, tiny, corpus, undisturbed, capsys
):
    broken = [saved(ruin)[i] for i in which]
    for path in broken:
        damage(path)
    trained = train(tiny, corpus, 0, ruin)
    assert_same(trained, undisturbed)
    assert trained.resumed_at == resumed_at
    said = capsys.readouterr().err.splitlines()
    if damage in (flip_a_bit, empty):
        for line, path in zip(said, reversed(broken), strict=True):
            assert line.startswith(f"Checkpoint {path.name} is damaged.")
            assert path.with_suffix(".damaged").exists()
    assert not [*ruin.glob("checkpoints/*/.*")]
    train(tiny, corpus, 0, ruin)
    assert capsys.readouterr().err == ""


def test_two_checkpoints_and_finished_weights_are_kept(tiny, corpus, tmp_path, undisturbed):
    """The last two are kept. A finished run says that its weights are from a checkpoint."""
    train(tiny, corpus, 0, tmp_path)
    assert [path.name[:15] for path in saved(tmp_path)] == ["step-0000000010", "step-0000000012"]
    again = train(tiny, corpus, 0, tmp_path)
    assert (undisturbed.from_checkpoint, again.from_checkpoint) == (False, True)
    assert_same(again, undisturbed)


def test_no_copy_of_a_checkpoint_is_held_in_memory(tmp_path):
    state = {"step": 1, "model": {"weight": torch.rand(2**21)}}  # 8 MB
    (tmp_path / "unnamed.pt").write_bytes(b"of a process that was killed")
    tracemalloc.start()
    checkpoint.save(tmp_path, state)
    found = checkpoint.load(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21
    assert found["model"]["weight"].equal(state["model"]["weight"])
    assert len([*tmp_path.iterdir()]) == 1


def test_provenance_is_written_before_the_first_step_and_never_changed(tiny, corpus, tmp_path):
    written = []
    earlier = begun(tiny, corpus).model_copy(update={"started": "2026-01-01 00:00:00 UTC"})

    def look(row, _):
        written.append((tmp_path / "provenance.json").read_text())
        if row["step"] == 7:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "new_provenance", lambda *_: earlier)
        with pytest.raises(KilledError):
            train(tiny, corpus, 0, tmp_path, look)
    assert Provenance.model_validate_json(written[0]) == earlier
    trained = train(tiny, corpus, 0, tmp_path)
    after = (tmp_path / "provenance.json").read_text()
    assert {*written, after} == {written[0]}
    assert trained.provenance == earlier


@pytest.mark.parametrize(
    "settings",
    [{"micro_batch_size": 2}, {"evaluation_batch_size": 8, "activation_checkpointing": True}],
)
def test_training_resumes_with_other_machine_settings(settings, ruin, tiny, corpus, undisturbed):
    trained = train(change(tiny, "machine", **settings), corpus, 0, ruin)
    assert trained.resumed_at == [10]
    assert [(s["start"], s["end"]) for s in trained.stretches] == [(0, 10), (10, 12)]
    first, last = (stretch["machine"] for stretch in trained.stretches)
    assert first == undisturbed.stretches[0]["machine"]
    assert last == first | settings
    assert trained.provenance.machine.model_dump() == first  # as when it began
    assert trained.batches == undisturbed.batches
    np.testing.assert_array_equal(trained.trace["loss"][:10], undisturbed.trace["loss"][:10])
    np.testing.assert_allclose(trained.trace["loss"], undisturbed.trace["loss"], rtol=1e-5)


def test_a_run_that_stays_on_its_machine_has_one_stretch(ruin, tiny, corpus):
    trained = train(tiny, corpus, 0, ruin)
    assert [(s["start"], s["end"]) for s in trained.stretches] == [(0, 12)]
    finished = train(change(tiny, "machine", threads=2), corpus, 0, ruin)
    assert (finished.from_checkpoint, finished.stretches) == (True, trained.stretches)
    torch.set_num_threads(1)
