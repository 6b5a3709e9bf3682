"""A run ends at the same weights whatever became of its checkpoints, and says what it passed over.

The run of `ruin` was stopped after step 10 of 12 and has checkpoints of the steps 5 and 10.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lib.data.text import Corpus
from lib.results import Provenance
from lib.run import checkpoint as checkpoints
from lib.run import trainer as training
from lib.run.checkpoint import MANIFEST, State, load, save
from lib.run.model import weights_digest
from lib.run.trainer import Run
from lib.study.io import sha256
from lib.study.schema import RunConfig
from tests.conftest import TINY, change
from tests.run.samples import begun, train

pytestmark = pytest.mark.slow


FILES = ("weights.safetensors", "state.pt", "provenance.json", MANIFEST)
LAST, FORMER = "step-00000010", "step-00000005"


Finish = Callable[[], tuple[list[int], str]]


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> Run:
    return train(RunConfig.model_validate(TINY), corpus, 0, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> Path:
    folder = tmp_path_factory.mktemp("before") / "run"
    return stopped(RunConfig.model_validate(TINY), corpus, 0, folder)


@pytest.fixture
def ruin(before: Path, tmp_path: Path) -> Path:
    """The folder of the checkpoints of a stopped run."""
    shutil.copytree(before.parents[1], tmp_path / "run")
    return tmp_path / "run" / "checkpoints" / before.name


def stopped(config: RunConfig, corpus: Corpus, seed: int, folder: Path) -> Path:
    saving = checkpoints.save

    def save_and_stop(provenance: Provenance, weights: Any, state: State, place: Path) -> None:
        saving(provenance, weights, state, place)
        if state["step"] == 10:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", save_and_stop)
        with pytest.raises(KilledError):
            train(config, corpus, seed, folder)
    (place,) = (folder / "checkpoints").iterdir()
    assert sorted(path.name for path in place.iterdir()) == [FORMER, LAST]
    return place


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def with_manifest(checkpoint: Path) -> None:
    """Rewrite a checkpoint's manifest, so that only its content can give it away."""
    hashes = {name: sha256(checkpoint / name) for name in FILES if name != MANIFEST}
    (checkpoint / MANIFEST).write_text(json.dumps(hashes))


def assert_same(trained: Run, whole: Run) -> None:
    assert weights_digest(trained.model) == weights_digest(whole.model)
    for one, other in ((trained.trace, whole.trace), (trained.curve, whole.curve)):
        pd.testing.assert_frame_equal(one.drop(columns="seconds"), other.drop(columns="seconds"))
    assert trained.batches == whole.batches


@pytest.fixture
def finish(
    ruin: Path, whole: Run, tiny: RunConfig, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> Finish:
    """Train on from what is left in `ruin`, which must end as an undisturbed run does; return the
    steps that it was resumed at and what was said."""

    def finish() -> tuple[list[int], str]:
        capsys.readouterr()
        trained = train(tiny, corpus, 0, ruin.parents[1])
        assert_same(trained, whole)
        return trained.resumed_at, capsys.readouterr().err

    return finish


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *[(flip_a_bit, name) for name in FILES],
        *[(damage, "state.pt") for damage in (Path.unlink, make_a_folder)],
        *[(damage, MANIFEST) for damage in (empty, Path.unlink)],
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    damage: Callable[[Path], None], name: str, ruin: Path, finish: Finish
) -> None:
    damage(ruin / LAST / name)
    resumed_at, said = finish()
    assert resumed_at == [5]
    (line,) = said.splitlines()
    assert line.startswith(f"Checkpoint {LAST} is damaged (")
    assert (ruin / f"{LAST}-damaged").is_dir()
    assert finish()[1] == ""


def swap_the_weights(ruin: Path) -> None:
    """Of two checkpoints."""
    one, other = (ruin / step / "weights.safetensors" for step in (LAST, FORMER))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def swap_the_checkpoints(ruin: Path) -> None:
    (ruin / LAST).rename(ruin / "between")
    (ruin / FORMER).rename(ruin / LAST)
    (ruin / "between").rename(ruin / FORMER)


def edit_table(name: str, edit: Callable[[dict[str, list[Any]]], None]) -> Callable[[Path], None]:
    """Change the columns of the trace or the curve."""

    def damage(ruin: Path) -> None:
        path = ruin / LAST / "state.pt"
        state = torch.load(path, weights_only=True)
        edit(state[name])
        torch.save(state, path)
        with_manifest(ruin / LAST)

    return damage


def replace(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(ruin: Path) -> None:
        (ruin / LAST / name).write_bytes(content)
        with_manifest(ruin / LAST)

    return damage


@pytest.mark.parametrize(
    ("damage", "reason", "resumed_at"),
    [
        (swap_the_weights, "weights.safetensors is not as it was written", []),
        (swap_the_checkpoints, "its state is that of step", []),
        (
            lambda ruin: (ruin / LAST).rename(ruin / "step-00000099"),
            "its state is that of step 10",
            [5],
        ),
        (
            lambda ruin: shutil.copytree(ruin / FORMER, ruin / "step-00000011"),
            "its state is that of step 5",
            [10],
        ),
        (lambda ruin: (ruin / "step-00000012").write_text("a"), "manifest.json is missing", [10]),
        (edit_table("trace", lambda t: t["step"].pop(3)), "its trace does not hold", [5]),
        (edit_table("trace", lambda t: t["step"].append(10)), "its trace does", [5]),
        (edit_table("curve", lambda t: t["step"].pop()), "its curve does not hold", [5]),
        (edit_table("trace", lambda t: t.pop("step")), "KeyError", [5]),
        (replace("provenance.json", b"{}"), "unreadable: ValidationError", [5]),
        (replace("state.pt", b"no state"), "unreadable: ", [5]),
        (replace("weights.safetensors", b"no weights"), "unreadable: ", [5]),
        (lambda ruin: (ruin / LAST / MANIFEST).write_text("{}"), "is not as it was written", [5]),
    ],
)
def test_what_does_not_fit_together_is_passed_over(
    damage: Callable[[Path], object], reason: str, resumed_at: list[int], ruin: Path, finish: Finish
) -> None:
    damage(ruin)
    steps, said = finish()
    assert steps == resumed_at
    assert reason in said
    assert finish()[1] == ""


def test_the_checkpoint_of_another_run_is_set_aside_as_foreign(
    ruin: Path, finish: Finish, tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    other = stopped(tiny, corpus, 1, tmp_path / "other")
    for step in (LAST, FORMER):
        shutil.rmtree(ruin / step)
        shutil.copytree(other / step, ruin / step)
    resumed_at, said = finish()
    assert f"Checkpoint {LAST} is foreign (it belongs to alone, baseline, seed 1)." in said
    assert {f"{LAST}-foreign", f"{FORMER}-foreign"} < {path.name for path in ruin.iterdir()}
    assert resumed_at == []


def test_a_second_ruin_of_one_step_is_kept_beside_the_first(ruin: Path, finish: Finish) -> None:
    (ruin / f"{LAST}-damaged").mkdir()
    empty(ruin / LAST / "state.pt")
    assert f"kept as {LAST}-damaged-2" in finish()[1]


def test_a_file_where_the_folder_should_be_is_set_aside(ruin: Path, finish: Finish) -> None:
    shutil.rmtree(ruin)
    ruin.write_text("no folder")
    assert "it is no folder" in finish()[1]


def test_strays_are_ignored(ruin: Path, finish: Finish) -> None:
    strays = (".DS_Store", "step-abc", "step-1", "step-00000010~", "partial-17", "notes.txt")
    for name in strays[:3]:
        (ruin / name).write_bytes(b"\0")
    for name in strays[3:]:
        (ruin / name).mkdir()
    (ruin / LAST / "stray").write_text("")
    (ruin / ".0.step-00000012").mkdir()  # of a kill while a checkpoint was written
    (ruin / ".0.step-00000012" / "weights.safetensors").write_bytes(b"half")
    assert finish() == ([10], "")
    assert sorted(p.name for p in ruin.iterdir()) == sorted([*strays, LAST, "step-00000012"])


def test_the_last_two_checkpoints_are_kept_and_finished_weights_say_that_they_are(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path, whole: Run
) -> None:
    train(tiny, corpus, 0, tmp_path)
    names = sorted(path.name for path in tmp_path.glob("checkpoints/*/*"))
    assert names == [LAST, "step-00000012"]
    again = train(tiny, corpus, 0, tmp_path)
    assert (whole.from_checkpoint, again.from_checkpoint) == (False, True)
    assert_same(again, whole)


def test_provenance_stands_before_the_first_step_and_is_never_changed(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    written = []
    earlier = begun(tiny, corpus).model_copy(update={"started": "2026-01-01 00:00:00 UTC"})

    def look(row: dict[str, float], _: object) -> None:
        written.append((tmp_path / "provenance.json").read_text())
        if row["step"] == 7:
            raise KilledError

    with pytest.raises(KilledError):
        training.train(tiny, corpus, earlier, tmp_path, look)
    assert Provenance.model_validate_json(written[0]) == earlier
    trained = train(tiny, corpus, 0, tmp_path)
    after = (tmp_path / "provenance.json").read_text()
    assert {*written, after} == {written[0]}
    assert trained.provenance == Provenance.model_validate_json(after)
    for path in tmp_path.glob("checkpoints/*/*/provenance.json"):
        assert Provenance.model_validate_json(path.read_text()) == trained.provenance


def test_the_provenance_of_another_run_is_refused(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    other = begun(change(tiny, "training", learning_rate=2e-3), corpus)
    with pytest.raises(ValueError, match="of other parameters or another corpus"):
        training.train(tiny, corpus, other, tmp_path)


def test_a_checkpoint_comes_back_as_it_was_saved(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    state = {
        **{"step": 5, "diverged_at": None, "numbers": torch.arange(3)},
        "trace": {"step": [1, 2, 3, 4, 5], "loss": [1.0, 0.5, 1 / 3, math.inf, math.nan]},
        "curve": {"step": [0, 4], "dev_loss": [0.1, 0.4]},
    }
    weights, provenance = {"w": torch.randn(2, 3)}, begun(tiny, corpus)
    save(provenance, weights, state, tmp_path)
    loaded = load(tmp_path, provenance, weights)
    assert loaded is not None
    assert loaded[0] == provenance
    assert torch.equal(loaded[1]["w"], weights["w"])
    assert loaded[2]["numbers"].tolist() == [0, 1, 2]
    np.testing.assert_equal(loaded[2]["trace"], state["trace"])
    assert loaded[2]["curve"] == state["curve"]


def test_checkpoints_are_in_the_order_of_their_steps_however_many_digits_these_have(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    provenance, last = begun(tiny, corpus), 10**8
    for step in (last - 1, last, last + 1):
        save(provenance, {}, {"step": step}, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"step-{last}", f"step-{last + 1}"}


def test_weights_of_another_shape_are_set_aside(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However well its hashes agree."""
    provenance = begun(tiny, corpus)
    state = {"step": 0, "diverged_at": None, "trace": {"step": []}, "curve": {"step": [0]}}
    save(provenance, {"w": torch.ones(2)}, state, tmp_path)
    assert load(tmp_path, provenance, {"w": torch.ones(3)}) is None
    assert "its weights are not of this model's shapes" in capsys.readouterr().err


MOVES: list[dict[str, object]] = [
    {"micro_batch_size": 2},
    {"evaluation_batch_size": 8, "activation_checkpointing": True},
]


@pytest.mark.parametrize("settings", MOVES)
def test_training_continues_under_other_settings_of_the_machine_and_tells_its_stretches(
    settings: dict[str, Any], ruin: Path, tiny: RunConfig, corpus: Corpus, whole: Run
) -> None:
    moved = change(tiny, "machine", **settings)
    trained = train(moved, corpus, 0, ruin.parents[1])
    assert trained.resumed_at == [10]
    assert [(s.start, s.end) for s in trained.stretches] == [(0, 10), (10, 12)]
    first, last = (stretch.machine.model_dump() for stretch in trained.stretches)
    assert first == whole.stretches[0].machine.model_dump()
    assert last == first | settings
    assert trained.provenance.machine == trained.stretches[0].machine  # as it was begun
    assert trained.batches == whole.batches
    np.testing.assert_array_equal(trained.trace["loss"][:10], whole.trace["loss"][:10])
    np.testing.assert_allclose(trained.trace["loss"], whole.trace["loss"], rtol=1e-5)


def test_a_run_that_stays_on_its_machine_has_one_stretch(
    ruin: Path, tiny: RunConfig, corpus: Corpus
) -> None:
    trained = train(tiny, corpus, 0, ruin.parents[1])
    assert [(s.start, s.end) for s in trained.stretches] == [(0, 12)]
    finished = train(change(tiny, "machine", threads=2), corpus, 0, ruin.parents[1])
    assert (finished.from_checkpoint, finished.stretches) == (True, trained.stretches)
    torch.set_num_threads(1)


def test_a_run_goes_on_with_half_the_micro_batch_then_two_processes_then_one(
    tiny: RunConfig, corpus: Corpus, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = checkpoints.save

    def save_and_stop(*of: Any) -> None:
        saving(*of)
        raise KilledError

    def go_on(**settings: object) -> Run:
        moved = change(tiny, "machine", checkpoint_interval=3, **settings)
        return train(moved, corpus, 0, tmp_path)

    monkeypatch.setattr(checkpoints, "save", save_and_stop)
    for size in (4, 2):  # ends at step 3, then at 6
        with pytest.raises(KilledError):
            go_on(micro_batch_size=size)
    monkeypatch.setattr(checkpoints, "save", saving)
    go_on(micro_batch_size=2, processes=2)
    (last,) = tmp_path.glob("checkpoints/*/step-00000012")
    shutil.rmtree(last)  # as if they had been killed after step 9
    trained = go_on(micro_batch_size=2)
    told = [(s.start, s.end, s.machine.micro_batch_size, s.machine.processes)
            for s in trained.stretches]  # fmt: skip
    assert told == [(0, 3, 4, 1), (3, 6, 2, 1), (6, 9, 2, 2), (9, 12, 2, 1)]
    assert trained.resumed_at == [3, 6, 9]
    assert trained.provenance.machine == trained.stretches[0].machine
    assert trained.batches == whole.batches
    np.testing.assert_array_equal(trained.trace["loss"][:3], whole.trace["loss"][:3])
    np.testing.assert_allclose(trained.trace["loss"], whole.trace["loss"], rtol=1e-5)
