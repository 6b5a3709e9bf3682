from pathlib import Path

import pandas as pd
import pytest

from lib.analysis.reported import Reported, load_reported, reported_finding, reported_table
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError

CONTENT = {
    "source": "a table",
    "measures": {
        "perplexity": {
            "values": {"none": {"mean": 20.0, "sd": 1.0}, "layernorm": {"mean": 18.0}},
            "note": "a note",
        }
    },
}


@pytest.fixture
def two_arms() -> pd.DataFrame:
    rows = [("none", 21.0), ("none", 22.0), ("layernorm", 23.0), ("layernorm", 24.0)]
    return pd.DataFrame(
        [
            {"setting": "", "variant": v, "perplexity": p, "seed": i % 2}
            for i, (v, p) in enumerate(rows)
        ]
    )


def test_reported_numbers_stand_beside_ours(two_arms: pd.DataFrame) -> None:
    table = reported_table(Reported.model_validate(CONTENT), two_arms).set_index("variant")
    none, layernorm = table.loc["none"], table.loc["layernorm"]
    assert (none["here"], none["reported"]) == ("21.500 ± 0.707", "20.000 ± 1.000")
    assert (none["within_two_sd"], none["same_direction"]) == ("yes", "n/a")
    assert (layernorm["within_two_sd"], layernorm["same_direction"]) == ("n/a", "no")
    words = reported_finding(Reported.model_validate(CONTENT), two_arms).words
    assert words == ["validation perplexity: a note."]


def test_the_pilots_reported_numbers_are_the_protocols() -> None:
    reported = load_reported(load_study("pilot"))
    assert reported is not None
    means = {m: [v.mean for v in c.values.values()] for m, c in reported.measures.items()}
    assert means == {
        "perplexity": [22.18, 20.64, 21.88],
        "accuracy": [0.0533, 0.0667, 0.06],
        "grad_norm": [0.1762, 0.1783, 0.1706],
        "embedding_norm": [11.46, 11.68, 11.59],
    }


def test_a_study_may_name_none_and_a_missing_file_is_named(tiny_study: Study) -> None:
    assert load_reported(tiny_study) is None
    with pytest.raises(ConfigError, match=r"there is no papers/embedding-norm/r\.yaml"):
        load_reported(tiny_study.model_copy(update={"reported": "r.yaml"}))


def test_an_unknown_measure_is_named(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.analysis.reported.ROOT", tmp_path)
    folder = tmp_path / "papers" / "embedding-norm"
    folder.mkdir(parents=True)
    (folder / "r.yaml").write_text(
        "source: s\nmeasures: {perplexty: {values: {none: {mean: 1.0}}, note: n}}\n", "utf-8"
    )
    with pytest.raises(ConfigError, match="did you mean 'perplexity'"):
        load_reported(tiny_study.model_copy(update={"reported": "r.yaml"}))
