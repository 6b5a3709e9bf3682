from pathlib import Path

import pandas as pd
import pytest

from lib.analysis.findings import (
    Reported,
    findings,
    load_reported,
    reported_table,
)
from lib.analysis.runs import tidy
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError
from tests.conftest import TINY
from tests.samples import sample_runs

NOTHING = pd.DataFrame()


@pytest.fixture
def curve() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "step": step, "dev_loss": 4 - speed * step / 300}
            for arm, speed in (("none", 1.0), ("layernorm", 0.5))
            for seed in (0, 1)
            for step in range(0, 301, 25)
        ]
    )


def test_tables_are_made_where_they_apply_and_say_what_they_show(
    tiny_study: Study, curve: pd.DataFrame
) -> None:
    runs = tidy(sample_runs(tiny_study))
    found = {f.key: f for f in findings(tiny_study, None, runs, curve, NOTHING)}
    assert list(found) == ["efficiency", "budgets"]  # no scale variant, one rate, no reported table
    assert found["efficiency"].words == [
        "layernorm needs 2.00 [nan, nan] times the tokens of none for the same dev loss; it "
        "reached the baseline's final loss in 0 of 2 seeds."
    ]


def test_budgets_are_left_out_where_the_rate_changes_with_the_budget(
    tiny_study: Study, curve: pd.DataFrame
) -> None:
    changed = {"schedule": "warmup_cosine", "warmup_iterations": 2}
    training = tiny_study.training.model_copy(update=changed)
    study = tiny_study.model_copy(update={"training": training})
    assert findings(study, None, tidy(sample_runs(study)), curve, NOTHING) == []


def test_where_the_schedule_is_a_factor_each_arm_counts_by_its_own(curve: pd.DataFrame) -> None:
    factors = {
        "model.embedding_norm": ["none", "layernorm"],
        "training.schedule": ["constant", "warmup_cosine"],
    }
    training = TINY["training"] | {"warmup_iterations": 2}
    for base in ("constant", "warmup_cosine"):
        content = {"name": "s", "factors": factors, "seeds": [0, 1]}
        study = Study.model_validate(TINY | content | {"training": training | {"schedule": base}})
        runs = pd.DataFrame(
            [
                {"arm": arm.id, "baseline": arm.baseline, "seed": seed, "status": "completed"}
                | {"variant": arm.levels["model.embedding_norm"], "setting": "s"}
                for arm in study.arms()
                for seed in study.seeds
            ]
        )
        curves = pd.concat(
            curve.assign(arm=curve["arm"] + "," + name) for name in ("constant", "warmup_cosine")
        )
        found = {f.key: f.table for f in findings(study, None, runs, curves, NOTHING)}
        assert found["efficiency"]["arm"].tolist() == ["layernorm,constant"]
        assert set(found["budgets"]["arm"]) == {"layernorm,constant"}


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
    monkeypatch.setattr("lib.analysis.findings.ROOT", tmp_path)
    folder = tmp_path / "papers" / "embedding-norm"
    folder.mkdir(parents=True)
    (folder / "r.yaml").write_text(
        "source: s\nmeasures: {perplexty: {values: {none: {mean: 1.0}}, note: n}}\n", "utf-8"
    )
    with pytest.raises(ConfigError, match="did you mean 'perplexity'"):
        load_reported(tiny_study.model_copy(update={"reported": "r.yaml"}))
