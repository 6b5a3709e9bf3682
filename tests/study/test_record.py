"""What a notebook shows of a result, and what it keeps."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from lib.study.config import Study
from lib.study.errors import UserError
from lib.study.record import attested, read_json, records, write_json
from tests.samples import sample_runs


def test_a_notebook_keeps_the_measures_and_a_hash_that_any_change_changes(
    tiny_study: Study,
) -> None:
    result = sample_runs(tiny_study)[0]
    shown = result._repr_mimebundle_()
    assert shown["application/json"]["measures"] == result.measures
    assert "tiny / none / seed 0" in shown["text/html"]
    assert "completed" in shown["text/plain"]
    written = json.loads(result.model_dump_json())
    assert shown["application/json"] == attested(written)  # as read from the results
    for name in written:
        changed = written | {name: "another"}
        assert attested(changed)["sha256"] != attested(written)["sha256"]


def test_numbers_that_json_lacks_are_written_as_null(tmp_path: Path) -> None:
    numbers = {"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf}, "d": "nan", "e": 3}
    write_json(tmp_path / "n.json", numbers)
    written = json.loads((tmp_path / "n.json").read_text("utf-8"))
    assert written == {"a": [None, [1.5, None]], "b": {"c": None}, "d": "nan", "e": 3}
    table = pd.DataFrame({"loss": [1.0, math.inf, math.nan]})
    assert records(table) == [{"loss": 1.0}, {"loss": None}, {"loss": None}]


@pytest.mark.parametrize("content", [b"", b'{"a": [1,', b"\xff", b"[" * 100_000])
def test_damaged_json_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(UserError, match=r"^n\.json cannot be read; restore it, or delete it$"):
        read_json(tmp_path / "n.json")
