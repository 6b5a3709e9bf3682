import pandas as pd
import pytest

from lib.analysis.findings import findings
from lib.analysis.runs import tidy
from lib.analysis.verdict import Verdict
from lib.study.config import Study
from tests.samples import sample_runs

NOTHING = Verdict(pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), [], [])


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
