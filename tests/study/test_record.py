"""What a notebook shows of a result, and what it keeps."""

import json

from lib.study.config import Study
from lib.study.record import attested
from tests.samples import sample_runs


def test_a_notebook_keeps_the_measures_and_a_hash_that_any_change_changes(
    tiny_study: Study,
) -> None:
    result = sample_runs(tiny_study)[0]
    shown = result._repr_mimebundle_()
    assert shown["application/json"]["measures"] == result.measures
    assert "none" in shown["text/html"]
    written = json.loads(result.model_dump_json())
    assert shown["application/json"] == attested(written)  # as read from the results
    for name in written:
        changed = written | {name: "another"}
        assert attested(changed)["sha256"] != attested(written)["sha256"]
