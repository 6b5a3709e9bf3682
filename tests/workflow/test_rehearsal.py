"""A study's analysis is rehearsed on made-up results before anything trains, under whatever history
its plan has in git."""

import re
import traceback
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lib.analysis import planned, resampling, tables
from lib.analysis.findings import Analysis
from lib.analysis.runs import check, collect
from lib.figures import style, training
from lib.results import RunResult, read_raw
from lib.study import io as paths
from lib.study.history import plan_provenance
from lib.study.io import PARAMS, run_folder, write_json
from lib.study.plan import Commit, read_plan
from lib.study.study import Study, load_study
from lib.study.yaml import UserError
from lib.workflow import rehearsal
from lib.workflow.dry_run import due_runs
from lib.workflow.rehearsal import made_up, rehearse, rehearse_once
from tests.analysis.samples import design
from tests.conftest import TINY, Tree
from tests.run.samples import finished_study
from tests.study.samples import Parameters
from tests.study.test_history import ONE, TWO, Repository

SMALL = {"model": TINY["model"], "training": TINY["training"], "machine": TINY["machine"]}
SMALL |= {"evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0}}
FAMILY = {"contrasts": [["layernorm", "none"]], "measures": ["perplexity"]}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A study that is held against a plan, in git."""
    parameters = Parameters(tmp_path, monkeypatch)
    parameters.study(seeds=[0, 1, 2], **SMALL)
    return Repository(parameters)


def frozen(repository: Repository, *used: int) -> dict[str, Any]:
    """Have the study's seeds drawn; return what freezing it writes into the plan."""
    repository.parameters.study(**SMALL)
    return {"frozen": {"trial": repository.parameters.frozen() | {"used_seeds": list(used)}}}


SLOW_HISTORIES = ("uncommitted", "draft", "nested", "frozen", "twice", "unreadable")


@pytest.mark.parametrize(
    "history",
    ["lists", "deviations", *(pytest.param(h, marks=pytest.mark.slow) for h in SLOW_HISTORIES)],
)
def test_03_is_executed_under_every_history_of_a_plan(history: str, repository: Repository) -> None:
    plans = repository.parameters.plans
    repository.parameters.plan(confirmatory=[])
    if history == "unreadable":
        (plans / "p.yaml").write_text("a: [", "utf-8")
    if history != "uncommitted":
        repository.commit_all()
    if history == "lists":
        repository.commit(secondary=["ece", "perplexity"], primary=["perplexity", "loss"])
    elif history == "nested":
        repository.commit(families={"one": FAMILY | {"test": "exact"}}, margins={"perplexity": 0.1})
        repository.commit(families={"one": FAMILY, "two": FAMILY}, margins={"loss": 0.1})
    elif history == "frozen":
        repository.commit(**frozen(repository))
    elif history == "twice":
        repository.commit(**frozen(repository, 0))
        repository.commit(**frozen(repository, 0, 1, 2))
    elif history == "deviations":
        repository.commit(**frozen(repository), deviations=[ONE])
        repository.parameters.plan(**frozen(repository), deviations=[ONE, TWO])
    elif history == "unreadable":
        repository.commit()
    rehearse_once(load_study("trial"), diverged=0, figures=False)


def test_changes_of_a_plan_are_shown_as_the_plan_has_them(repository: Repository) -> None:
    repository.commit(confirmatory=[])
    repository.commit(alpha=0.0001, secondary=["ece"], margins={"perplexity": 0.1})
    held = frozen(repository, 7, 8)
    repository.commit(alpha=0.0001, secondary=["ece"], margins={"perplexity": 0.1}, **held)
    history = plan_provenance("p.yaml", read_plan("p.yaml"), [])
    deviations, changes = tables.plan_tables(history)
    assert deviations.empty
    shown = changes.set_index("field")
    assert shown.loc["alpha", "after"] == "0.0001"
    assert shown.loc["confirmatory", ["before", "after"]].tolist() == ["n/a", "['trial']"]
    assert shown.loc["secondary", "after"] == "['ece']"
    assert shown.loc["margins.perplexity", ["before", "after"]].tolist() == ["n/a", "0.1"]
    assert shown.loc["frozen.trial.used_seeds", "after"] == "[7, 8]"
    assert shown.loc["frozen.trial.seeds", "after"] == "3"


@pytest.mark.slow
def test_a_study_of_which_every_run_diverges_has_an_analysis(repository: Repository) -> None:
    repository.commit(**frozen(repository))
    study = load_study("trial")
    rehearse_once(study, diverged=len(study.seeds) * len(list(study.arms())), figures=True)


@pytest.mark.parametrize("diverged", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_the_analysis_of_a_study_whose_arms_are_commits_is_rehearsed(diverged: int) -> None:
    """Each run says that the code of its own commit made it."""
    levels = {"main": "a", "try/it": "b"}
    commits = {
        name: Commit(commit=of * 40, training_digest=of * 64, measuring_digest=of * 64)
        for name, of in levels.items()
    }
    study = design(name="patch", factors={"code": [*levels]}, **SMALL)
    study = study.model_copy(update={"commits": commits})
    made = [run.provenance["trained"] for run, _ in made_up(study)]
    assert {run["training_digest"][0] for run in made} == {"a", "b"}
    rehearse_once(study, diverged, figures=diverged == 0)


def test_a_rehearsal_asks_what_happens_when_none_one_or_all_of_the_runs_diverge(
    tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        rehearsal, "rehearse_once", lambda _, diverged, figures: asked.append((diverged, figures))
    )
    for seeds in ([0, 1], [0, 1, 2]):
        rehearse(tiny_study.model_copy(update={"seeds": seeds}))
    arms = len(list(tiny_study.arms()))
    few, many = 2 * arms, 3 * arms
    assert asked == [(0, True), (1, False), (few, True), (0, False), (1, True), (many, True)]


def test_made_up_runs_differ_in_what_decides_questions_and_measures() -> None:
    factors = {"model.embedding_norm": ["none", "scale"], "model.block_size": [32, 64]}
    evaluation = {"items_per_task": 50, "dev_windows": 2}
    study = design(factors=factors, seeds=[0], evaluation=evaluation)
    runs = [run for run, _ in made_up(study)]
    check(study, runs)
    assert runs[0].suite_hash == runs[2].suite_hash != runs[1].suite_hash == runs[3].suite_hash
    assert "gradient_cosine" not in runs[0].measures
    more = design(factors=factors, seeds=[0], evaluation=evaluation | {"dev_windows": 3})
    assert "gradient_cosine" in next(made_up(more))[0].measures


@pytest.mark.slow
def test_made_up_results_have_the_form_of_trained_ones(tmp_path: Path) -> None:
    factors = {"model.embedding_norm": ["none", "rmsnorm", "layernorm"]}
    factors |= {"model.tied": [True, False]}
    apart = [
        {"model.embedding_norm": n, "model.tied": n == "rmsnorm"} for n in ("rmsnorm", "layernorm")
    ]
    content = {"factors": factors, "exclude": apart, "model": TINY["model"] | {"block_size": 128}}
    content["evaluation"] = {"interval": 4, "dev_windows": 4, "items_per_task": 50}
    with finished_study(tmp_path, **content) as study:
        trained = [(r, read_raw(run_folder(study.name, r.arm, r.seed))) for r in collect(study)]
        made = list(made_up(study))
    assert [form(*one) for one in made] == [form(*one) for one in trained]


def form(result: RunResult, raw: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """All of a run but its numbers."""
    tables = {name: rows and {*rows[0]} for name, rows in result.tables.items()}
    same = ("arm", "baseline", "levels", "variant", "setting", "seed", "config", "study_hash")
    return {name: getattr(result, name) for name in same} | {
        "tables": tables,
        "measures": {*result.measures},
        "references": {*result.references},
        "throughput": {*result.throughput},
        "provenance": {name: {*account} for name, account in result.provenance.items()},
        "raw": {name: {c: t.dtype.kind for c, t in table.items()} for name, table in raw.items()},
    }


@pytest.mark.parametrize(
    ("of", "name", "trouble", "notebook"),
    [
        (tables, "power_summary", False, "03_analysis"),
        # While a cell shows its value; what only a diverged run needs; figures.
        pytest.param(Analysis, "_repr_markdown_", False, "03_analysis", marks=pytest.mark.slow),
        pytest.param(planned, "contrast_table", True, "03_analysis", marks=pytest.mark.slow),
        pytest.param(training, "trajectory", True, "04_figures", marks=pytest.mark.slow),
        pytest.param(style, "_common_legend", True, "04_figures", marks=pytest.mark.slow),
    ],
)
def test_an_analysis_that_would_fail_is_told_in_one_line(
    of: Any, name: str, trouble: bool, notebook: str,
    repository: Repository, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    repository.commit(**frozen(repository))
    real = getattr(of, name)

    def fails(*given: Any, **named: Any) -> Any:
        if of is planned and "imputed" not in str(traceback.extract_stack()):
            return real(*given, **named)
        raise ValueError("no such\nthing")

    monkeypatch.setattr(of, name, fails)
    with pytest.raises(UserError) as error:
        rehearse(load_study("trial"))
    how = "one of them diverged" if trouble else "all completed"
    begin = f"trial: {notebook} fails on made-up runs of this study, {how}: "
    pattern = r"ValueError: no such thing( \(lib/\S+\.py:\d+\))?; nothing was trained"
    assert re.fullmatch(re.escape(begin) + pattern, str(error.value))


@pytest.mark.slow
def test_a_rehearsal_touches_nothing(repository: Repository) -> None:
    repository.commit(**frozen(repository))
    before = (paths.RUNS, resampling.RESAMPLES, style.save, sorted(paths.RUNS.glob("*")))
    rehearse(load_study("trial"))
    assert (paths.RUNS, resampling.RESAMPLES, style.save, sorted(paths.RUNS.glob("*"))) == before


def test_only_a_study_that_will_be_trained_is_rehearsed(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    runs = [(arm.id, seed) for arm in tiny_study.arms() for seed in tiny_study.seeds]
    for arm, seed in runs:
        assert any(due_runs(tiny_study, {}))
        write_json(run_folder(tiny_study.name, arm, seed) / "result.json", {})
    assert not any(due_runs(tiny_study, {}))
    first = run_folder(tiny_study.name, *runs[0]) / "result.json"
    assert list(due_runs(tiny_study, {first: "why"})) == [(*runs[0], "why")]


@pytest.mark.slow
def test_a_sweep_whose_analysis_would_fail_trains_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "embedding-norm")
    tree.write_study("one", evaluation=SMALL["evaluation"])
    broken = tree.root / "lib" / "analysis" / "effects.py"
    with broken.open("a", encoding="utf-8") as file:
        file.write("\n\ndef leave_one_out(*_):\n    raise KeyError('lost')\n")
    status, text = tree.run_all("params/one.yaml")
    assert (status, text.count("\n")) == (1, 1), text
    assert text.startswith("error: one: 03_analysis fails on made-up runs of this study, all comp")
    assert "KeyError: 'lost' (lib/analysis/effects.py:" in text
    assert not list((tree.root / "runs").glob("one/*"))
    assert tree.run_all("params/one.yaml", "--summary")[0] == 0  # which only tells


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.stem for path in PARAMS.glob("*.yaml")))
def test_every_study_of_the_repository_passes_its_rehearsal(name: str) -> None:
    rehearse(load_study(name, undrawn=True))


@pytest.mark.slow
def test_a_hypothesis_about_a_stock_task_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = Parameters(tmp_path, monkeypatch)
    asked = {"interval": 4, "dev_windows": 4, "items_per_task": 0, "tasks": ["sciq"]}
    fields = SMALL | {"corpus": {"source": "synthetic", "tokenizer": "bytes"}}
    fields |= {"evaluation": asked | {"shots": [0, 5]}}
    test = {"test": ["layernorm", "none", "sciq.acc@5"], "direction": "greater"}
    plan = {"title": "T", "question": "Q", "confirmatory": ["trial"]}
    plan |= {"hypotheses": {"better": {"says": "It answers more."} | test}}
    (parameters.plans / "p.yaml").write_text(yaml.safe_dump(plan), "utf-8")
    parameters.study(seeds=[0, 1, 2], **fields)
    for diverged in (0, 6):
        rehearse_once(load_study("trial"), diverged, figures=True)
