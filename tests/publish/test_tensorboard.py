"""Curves for TensorBoard. A stand-in replaces tensorboardX, which no lock has."""

import sys
from types import SimpleNamespace

import pytest

from lib.config.errors import UserError
from lib.config.paths import PAPERS
from lib.publish import tensorboard
from lib.record.archive import Record
from lib.results import read_raw_file


def test_every_column_of_a_run_is_a_scalar_at_its_step(tmp_path, monkeypatch):
    written = {}

    class SummaryWriter:
        def __init__(self, folder):
            self.scalars = written[folder] = {}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_scalar(self, name, value, step):
            self.scalars[name, step] = value

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    tensorboard.main(["example"], tmp_path)
    run = Record("example", PAPERS / "example").raw_folder("none,tied=true", 0)
    scalars = written[str(tmp_path / "example" / "none,tied=true" / "seed-0")]
    trace, curve = (read_raw_file(run, name) for name in ("trace", "curve"))
    assert len(written) == 16
    assert len(scalars) == sum(table.drop(columns="step").count().sum() for table in (trace, curve))
    assert scalars["trace/loss", 250] == trace["loss"].iloc[-1]
    assert scalars["curve/dev_loss", 0] == curve["dev_loss"].iloc[0]


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match="uv pip install tensorboardX"):
        tensorboard.main(["example"], tmp_path)
