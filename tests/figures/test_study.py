"""Which figures a study shows, and that they can be drawn, from made-up runs and contrasts."""

import re

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from lib.config.contrasts import level_name
from lib.config.plan import Plan
from lib.figures import effects, training
from lib.figures import study as study_figures
from lib.figures.study import StudyFigures
from lib.stats.runs import ResultError
from tests.conftest import TINY
from tests.figures.samples import GRID, ONE_ARM, ONE_FACTOR, analysed, drawn, study_of


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two variants at three rates."""
    with pytest.MonkeyPatch.context() as patch:
        yield analysed(GRID, tmp_path_factory.mktemp("grid"), patch)


@pytest.fixture(scope="module")
def figures_of_grid(grid):
    with pytest.MonkeyPatch.context() as patch:
        yield drawn(grid, patch)


@pytest.mark.slow
def test_a_study_of_one_factor_shows_what_applies(monkeypatch, tmp_path):
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch, kept={})
    said = [figure.words for figure in figures.applicable()]
    assert [words for words in said if re.search(r"\d of \d", words)] == []  # all is shown
    drawn(figures, monkeypatch)
    names = ["effects", "comparison", "loss", "trend", "inside"]
    assert [figure.name for figure in figures.applicable()] == names
    assert {path.stem for path in figures.folder.iterdir()} == {*names}


@pytest.mark.slow
def test_a_study_of_one_arm_is_drawn_without_contrasts(monkeypatch, tmp_path):
    figures = analysed(ONE_ARM, tmp_path, monkeypatch, kept={}, contrasts=[])
    assert drawn(figures, monkeypatch)


def test_nothing_per_token_is_compared_between_tokenizers(monkeypatch, tmp_path):
    study = study_of({"corpus.tokenizer": ["bytes", "bpe-300"]})
    figures = analysed(study, tmp_path, monkeypatch, kept={})
    assert len(drawn(figures, monkeypatch, "loss")[0].axes) == 1  # the curves, no differences
    assert not [figure.name for figure in figures.applicable() if figure.name == "comparison"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "levels"),
    [("weight_decay", [0.1, 1.0, 0.0, 0.3]), ("gradient_clip", [None, 2.0, 0.5, 1.0])],
)
def test_numbers_are_shades_in_order_and_a_baseline_black(field, levels, monkeypatch, tmp_path):
    """Levels of a factor that are numbers."""
    study = study_of({f"training.{field}": levels})
    figures = analysed(study, tmp_path, monkeypatch, kept={})
    labels = [level_name(field, level) for level in [levels[0], *sorted(levels[1:])]]
    for name in ("loss", "comparison"):
        axes = drawn(figures, monkeypatch, name)[0].axes
        if name == "comparison":
            ticks = [label.get_text() for label in axes[0].get_xticklabels()]
            assert ticks == labels
            bars = [line for line in axes[0].lines if line.get_linewidth() == 2.2]
        else:
            beside = {text.get_text() for text in axes[0].texts}
            assert beside == {*labels, "unigram", "bigram"}
            bars = [line for line in axes[0].lines if line.get_label() in labels]
            alone = [line for line in axes[1].lines if len(line.get_xdata()) > 2]
            assert alone[0].get_color() == bars[1].get_color()  # without the baseline, too
        baseline, *others = [to_rgb(line.get_color()) for line in bars]
        assert baseline == (0, 0, 0)
        assert [max(other) == other[2] for other in others] == [True] * 3  # one hue
        assert sum(others[0]) > sum(others[1]) > sum(others[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "levels", "panels"),
    [
        ("model.tied", [True, False], 4),
        ("training.embedding_learning_rate_ratio", [1.0, 35.0], 4),
        ("model.activation", ["gelu", "relu2"], 2),
        ("code", ["main", "patch"], 2),
    ],
)
def test_embeddings_are_shown_if_a_factor_concerns_them(
    factor, levels, panels, monkeypatch, tmp_path
):
    """Only where a factor is about them."""
    figures = analysed(study_of({factor: levels}), tmp_path, monkeypatch, kept={})
    assert len(drawn(figures, monkeypatch, "inside")[0].axes) == panels


@pytest.mark.slow
def test_a_grid_over_rates_shows_how_effects_and_stability_depend_on_it(grid, figures_of_grid):
    assert {path.stem for path in grid.folder.glob("*.pdf")} == {
        "effects", "loss", "trend", "interaction-learning_rate", "inside", "calibration", "tasks",
    }  # fmt: skip
    assert len(figures_of_grid) == 7


@pytest.mark.slow
def test_no_text_of_a_figure_is_smaller_than_seven_points(figures_of_grid):
    texts = [text for figure in figures_of_grid for text in figure.findobj(Text)]
    assert min(text.get_fontsize() for text in texts if text.get_text().strip()) >= 7


def test_words_above_a_figure_name_its_functions(grid):
    for figure in grid.applicable():
        assert "?" in figure.words  # what to look for
        named = re.findall(r"`(\w+)`", figure.words)
        assert named
        for name in named:
            assert any(hasattr(m, name) for m in (training, effects))


def test_a_study_without_an_analysis_is_refused(monkeypatch, tmp_path):
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch)
    (tmp_path / "verdict.json").unlink()
    with pytest.raises(ResultError, match="execute 03_analysis first"):
        StudyFigures(ONE_FACTOR, figures.results)


def test_an_accuracy_in_a_stock_task_that_the_plan_names_is_drawn_by_seed(tmp_path, monkeypatch):
    """As the text's own accuracy is; beside it one that the plan does not name."""
    asked = TINY["evaluation"] | {"tasks": ["sciq", "piqa"], "items_per_task": 0}
    corpus = TINY["corpus"] | {"tokenizer": "bytes"}
    content = ONE_FACTOR.model_dump() | {"corpus": corpus, "evaluation": asked}
    study = ONE_FACTOR.model_validate(content)
    claim = {"says": "…", "test": ["layernorm", "none", "sciq.acc"], "direction": "greater"}
    plan = Plan(title="F", question="Q", confirmatory=["tiny"], hypotheses={"knows": claim})
    monkeypatch.setattr(study_figures, "load_plan", lambda _: plan)
    figures = analysed(study, tmp_path, monkeypatch, kept={})
    for run in figures.results:
        run.measures.update({"accuracy": 0.3, "sciq.acc": 0.25, "piqa.acc": 0.5})
    figures = StudyFigures(study, figures.results)
    axes = drawn(figures, monkeypatch, "comparison")[0].axes
    labels = [ax.get_ylabel().replace("\n", " ") for ax in axes]
    assert labels == ["sciq accuracy", "held-out perplexity", "next-token accuracy"]
    for line in axes[0].lines:
        assert set(line.get_ydata()) == {0.25}
    test = {"hypothesis": "h", "answer": "supported", "mean_delta": 1, "t_low": 0.5, "t_high": 2}
    tests = [test | {"measure": measure} for measure in ("accuracy", "sciq.acc")]
    figures = analysed(study, tmp_path, monkeypatch, kept={}, hypothesis_tests=tests)
    figures.main = "sciq.acc"
    axes = drawn(figures, monkeypatch, "effects")[0].axes
    assert [ax.get_xlabel() for ax in axes] == [
        "Δ sciq accuracy, higher is better", "Δ next-token accuracy, higher is better",
    ]  # fmt: skip


def test_the_mean_of_an_effect_that_changes_sign_is_hollow_above_its_settings(
    monkeypatch, tmp_path
):
    """Its interval excludes zero, and so do those of its settings."""
    study = study_of({"model.embedding_norm": ["none", "layernorm"], "model.tied": [True, False]})
    row = {"measure": "perplexity", "n": 4, "budget": ""}
    rows = [
        row | {"effect": effect, "kind": kind, "mean_delta": mean}
        | {"t_low": mean - 0.01, "t_high": mean + 0.01}
        for effect, kind, mean in [
            ("norm=b - norm=a", "main", 0.03),
            ("norm=b - norm=a at tied=true", "simple", -0.2),
            ("norm=b - norm=a at tied=false", "simple", 0.26),
            ("tied=false - tied=true", "main", 0.3),
            ("tied=false - tied=true at norm=a", "simple", 0.2),
            ("tied=false - tied=true at norm=b", "simple", 0.4),
        ]
    ]  # fmt: skip
    figures = analysed(study, tmp_path, monkeypatch, kept={}, effects=rows)
    (ax,) = drawn(figures, monkeypatch, "effects")[0].axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["norm=b − norm=a", "at tied=true", "at tied=false", "tied=false − tied=true"]
    assert [text.get_text() for text in ax.texts] == [
        "changes sign", "-0.200 [-0.210, -0.190]", "+0.260 [+0.250, +0.270]",
        "+0.300 [+0.290, +0.310]",
    ]  # fmt: skip
    faces = [line.get_markerfacecolor() for line in ax.lines[1:]]
    assert faces == ["white", effects.BETTER, effects.WORSE, effects.WORSE]
    planned = {"hypothesis": "h", "answer": "supported", "mean_delta": 1, "t_low": 0.5, "t_high": 2}
    settings = {
        f"tied={tied}": {"mean_delta": mean, "t_low": mean - 0.3, "t_high": mean + 0.3}
        for tied, mean in [("true", -0.2), ("false", 2.2)]
    }
    tests = [planned | {"measure": "perplexity", "changes_sign": sign} for sign in (True, False)]
    tests[0]["settings"] = settings
    figures = analysed(study, tmp_path, monkeypatch, kept={}, hypothesis_tests=tests)
    (ax,) = drawn(figures, monkeypatch, "effects")[0].axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["h", "at tied=true", "at tied=false", "h"]
    assert ax.texts[-1].get_text() == "+1.000 [+0.500, +2.000]\nsupported"
    faces = [line.get_markerfacecolor() for line in ax.lines[1:]]
    assert faces == ["white", "white", effects.WORSE, effects.WORSE]
