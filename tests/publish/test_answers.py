import json
from pathlib import Path
from typing import Any

import pytest

from lib.publish import answers
from lib.publish.answers import AnswerError, as_markdown, direction, find, interval
from lib.publish.archive import verdict_file
from lib.study.paths import ROOT


def contrast(arm: str, measure: str, delta: float, half: float, baseline: str = "none") -> Any:
    ends = {"t_low": delta - half, "t_high": delta + half}
    return {
        "arm": arm,
        "baseline": baseline,
        "measure": measure,
        "mean_delta": delta,
        "n": 6,
    } | ends


def share(ingredient: str, value: float) -> dict[str, object]:
    ends = {"low": value - 0.1, "high": value + 0.1}
    return {"ingredient": ingredient, "measure": "perplexity", "share": value} | ends


def ratio(arm: str, value: float, n: int) -> dict[str, object]:
    ends = {"t_low": value - 0.05, "t_high": value + 0.05}
    return {"arm": arm, "token_ratio": value, "n": n} | ends


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Made-up verdicts of the studies that are asked."""
    monkeypatch.setattr(answers, "verdict_file", lambda study: tmp_path / f"{study}.json")
    contents: dict[str, Any] = {
        "confirmatory": {
            "standing": "CONFIRMATORY",
            "contrasts": [
                contrast("layernorm", "perplexity", 1.0, 0.1),
                contrast("rmsnorm", "perplexity", 1.1, 0.1),
                contrast("layernorm", "macro_accuracy_zero_shot", -0.02, 0.01),
                contrast("rmsnorm", "macro_accuracy_zero_shot", 0.001, 0.01),
                contrast("center", "perplexity", 0.0001, 0.001),
            ],
            "decisions": [
                {"arm": arm, "rule": "R1", "decision": "keep the baseline"}
                for arm in ("layernorm", "rmsnorm", "center")
            ],
            "mechanism": [share("fixed scale", 0.9), share("centring and bias", 0.1)],
            "efficiency": [ratio("layernorm", 1.5, 6)],
        },
        "initialisation": {
            "contrasts": [
                contrast("layernorm,embedding_std=0.02", "perplexity", 2.0, 0.5),
                contrast("layernorm,embedding_std=1", "perplexity", -1.0, 0.5),
                contrast("scale,embedding_std=1", "perplexity", -9.0, 0.5),
            ]
        },
        "stability": {
            "sensitivity": [
                {"variant": "none", "stable_rates": 3},
                contrast("", "", -0.4, 0.1)
                | {"variant": "layernorm", "stable_rates": 5, "rates": 6, "H1b": "supported"},
            ],
            "best_rate": [
                {"variant": "none", "best_rate": 3e-4},
                contrast("", "", 0.5, 0.1) | {"variant": "layernorm", "best_rate": 3e-3},
            ],
        },
        "stability-warmup": {
            "sensitivity": [
                {"variant": "none", "stable_rates": 4},
                {"variant": "layernorm", "stable_rates": 6},
            ]
        },
        "horizon": {
            "efficiency": [
                ratio("layernorm,fraction=1", 0.9, 3),
                ratio("layernorm,fraction=0.1", 7.0, 3),
            ],
            "budgets": [
                contrast("layernorm,fraction=1", "dev_loss", 0.3, 0.1) | {"steps": 300},
                contrast("layernorm,fraction=1", "dev_loss", -0.2, 0.1) | {"steps": 2000},
            ],
        },
    }
    for study, content in contents.items():
        (tmp_path / f"{study}.json").write_text(json.dumps(content), "utf-8")
    return contents


def test_each_question_is_answered_with_its_number_and_interval(record: dict[str, Any]) -> None:
    first, second, third, fourth, fifth = as_markdown().splitlines()
    assert "No: LayerNorm raises validation perplexity by +1.000 [+0.900, +1.100]" in first
    assert "changes zero-shot macro accuracy by -0.0200 [-0.0300, -0.0100] (rule R1)" in first
    assert "n = 6 seeds, confirmatory." in first
    assert "Mostly fixed scale: of LayerNorm's change in perplexity, fixed scale 90% [80%, 100%]" in second  # noqa: E501  # fmt: skip
    assert "Yes: LayerNorm changes perplexity by +2.00 [+1.50, +2.50] at a standard" in third
    assert "-9" not in third
    assert "Yes: its runs were stable at 5 of 6 constant rates, the baseline's at 3" in fourth
    assert "with warm-up and a cosine, at 6 and 4;" in fourth
    assert "0.003 against 0.0003, its test perplexity differs by +0.50 [+0.40, +0.60]" in fourth
    assert "It depends on the budget: for the same dev loss LayerNorm needs 1.50" in fifth
    assert "2,000 steps of a smaller model 0.90 [0.85, 0.95] times" in fifth
    assert "its dev loss ends -0.200 [-0.300, -0.100] nats away (n = 3)" in fifth


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(-2.0, -1.0, "less"), (1.0, 2.0, "more"), (-1.0, 1.0, "same"), (None, None, "same")],
)
def test_words_follow_from_the_interval(low: float | None, high: float | None, word: str) -> None:
    assert direction({"t_low": low, "t_high": high}, "less", "more", "same") == word


def test_what_is_missing_is_named(record: dict[str, Any]) -> None:
    with pytest.raises(AnswerError, match=r"run \./run_all\.sh params/pilot\.yaml"):
        answers.verdict_of("pilot")
    with pytest.raises(AnswerError, match=r"contrasts: 0 rows have \{'arm': 'layrnorm'\}"):
        find(record["confirmatory"], "contrasts", arm="layrnorm")


def test_an_interval_is_written_in_the_measures_digits() -> None:
    assert interval(contrast("a", "b", 1.23456, 0.5), "+.2f") == "+1.23 [+0.73, +1.73]"


def test_the_readmes_answers_are_those_of_the_results() -> None:
    asked = ("confirmatory", "initialisation", "stability", "stability-warmup", "horizon")
    if not all(verdict_file(study).is_file() for study in asked):
        pytest.skip("a study that is asked has no record here")
    assert as_markdown() in (ROOT / "README.md").read_text("utf-8")
