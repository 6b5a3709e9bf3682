from typing import get_args

import pytest

from lib.config.metrics import MEASURES, MeasureGroup


@pytest.mark.parametrize(
    ("name", "label"),
    [("piqa.acc", "piqa accuracy"), ("a.b.acc@5", "a.b accuracy, 5-shot")],
)
def test_the_accuracy_of_any_stock_task_is_a_measure(name, label):
    assert name in MEASURES
    assert MEASURES[name].label == label


def test_every_group_of_a_measure_is_one_that_tables_ask_for():
    groups = {group for name in MEASURES for group in MEASURES[name].groups}
    assert groups == {*get_args(MeasureGroup)}


@pytest.mark.parametrize("name", ["piqa", "acc", ".acc", ".acc@5", "piqa.acc_norm", "perplexities"])
def test_an_unknown_measure_is_refused(name):
    with pytest.raises(KeyError, match=name):
        MEASURES[name]
    assert name not in MEASURES
