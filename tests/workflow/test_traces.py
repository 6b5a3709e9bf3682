"""What leaves by `traces` is what the record holds, read by the readers of others."""

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.study.io import PAPERS
from lib.workflow import cli

SEALED = PAPERS / "embedding-norm" / "record" / "dose.zip"
OPEN = PAPERS / "example" / "record" / "example"


def raw(archive: Path | io.BytesIO, run: str, name: str) -> pd.DataFrame:
    """A raw file of a run, by nothing of the library."""
    with zipfile.ZipFile(archive) as packed:
        return pd.read_parquet(io.BytesIO(packed.read(f"{run}/{name}.parquet"))).set_index("step")


def test_tables_hold_every_recorded_digit_also_of_a_sealed_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["traces", "dose", "--to", "csv", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"dose lies in {tmp_path / 'dose'}\n"
    steps = pd.read_csv(tmp_path / "dose/traces.csv", float_precision="round_trip")
    assert steps["run"].nunique() == 13 * 5
    assert len(steps) == 13 * 5 * 151  # step 0 is evaluated and not trained
    with zipfile.ZipFile(SEALED) as packed, zipfile.ZipFile(packed.open("record.zip")) as whole:
        archive = io.BytesIO(whole.read("raw.zip"))
    of_run = steps[steps["run"] == "dose/scale,rms=0.3/921"].set_index("step")
    for name in ("trace", "curve"):
        for column, values in raw(archive, "scale,rms=0.3/seed-921", name).items():
            found = of_run[f"{name}/{column}"]
            assert found.reindex(values.index).equals(values.astype(float)), column
            assert found.notna().sum() == values.notna().sum()
    runs = pd.read_csv(tmp_path / "dose/runs.csv", index_col="run")
    row = runs.loc["dose/scale,rms=0.3/921"]
    assert row[["arm", "seed", "status"]].tolist() == ["scale,rms=0.3", 921, "completed"]
    assert row[["model.embedding_norm", "model.embedding_rms"]].tolist() == ["scale", 0.3]
    assert row["training.learning_rate"] == 3e-4


def test_tensorboards_own_reader_finds_steps_times_hyperparameters_and_measures(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard", reason="no TensorBoard: pip install tensorboard")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    assert cli.main(["traces", "example", "--to", "tensorboard", "--out", str(tmp_path)]) == 0
    events = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(tmp_path))
    events.Reload()
    arms = ("constant", "warmup_cosine")
    assert set(events.Runs()) == {f"example/{arm}/{seed}" for arm in arms for seed in range(4)}
    run = "example/warmup_cosine/2"
    trace, curve = (
        raw(OPEN / "raw.zip", "warmup_cosine/seed-2", name) for name in ("trace", "curve")
    )
    for name, table in (("trace", trace), ("curve", curve)):
        for column, values in table.items():
            found = events.Scalars(run, f"{name}/{column}")
            kept = values.dropna()
            assert [each.step for each in found] == kept.index.tolist()
            assert [each.value for each in found] == kept.astype(np.float32).tolist()
    first, *_, last = events.Scalars(run, "trace/loss")
    took = trace["seconds"].iloc[1:].sum()
    assert last.wall_time - first.wall_time == pytest.approx(took, abs=1e-3)
    about = events.SummaryMetadata(run, "_hparams_/session_start_info").plugin_data.content
    asked = HParamsPluginData.FromString(about).session_start_info.hparams
    assert asked["training.schedule"].string_value == "warmup_cosine"
    assert asked["training.learning_rate"].number_value == 3e-3
    assert asked["model.n_embd"].number_value == 64
    with zipfile.ZipFile(OPEN / "raw.zip") as packed:
        result = json.loads(packed.read("warmup_cosine/seed-2/result.json"))
    (loss,) = events.Scalars(run, "measure/loss")
    assert (loss.step, loss.value) == (300, np.float32(result["measures"]["loss"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dos --to csv", "study: 'dos' is unknown; did you mean 'dose'? in papers/"),
        ("final-embedded --to csv", "study: 'final-embedded' has no record yet; run it first: "),
        ("dose", "traces: the following arguments are required: --to; see ./run_all.sh traces"),
        ("dose --to xls", "traces: --to: invalid choice: 'xls' (choose from "),
        ("horizon --to csv", "horizon: only its results are kept, and no traces"),
        ("example --to tensorboard", "--to tensorboard: "),
    ],
)
def test_what_cannot_leave_is_refused_in_one_line_and_leaves_nothing(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert cli.main(["traces", *words.split(), "--out", str(tmp_path)]) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert ("pip install tensorboard" in error) == ("tensorboard" in words)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "example").mkdir()
    assert cli.main(["traces", "example", "--to", "csv", "--out", str(tmp_path)]) == 1
    assert "example exists, and nothing is replaced; delete it\n" in capsys.readouterr().err
    assert not list((tmp_path / "example").iterdir())


def test_a_place_that_is_no_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["traces", "example", "--to", "csv", "--out", str(file)]) == 1
    assert capsys.readouterr().err == "error: --out: notes.txt is no folder; name one\n"
    assert file.read_text() == "mine"
