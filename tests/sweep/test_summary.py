"""What a sweep says at its end: in plain words, and whole in any terminal."""

import re

import pandas as pd
import pytest

from lib.config.claim import ClaimStatus
from lib.config.files import write_json
from lib.config.paths import ROOT
from lib.record.archive import Record
from lib.stats.runs import study_results, tidy
from lib.stats.verdict import analyse
from lib.sweep import summary
from tests.samples import made_up
from tests.stats.samples import crossed, design, noise, plan_of, trace_of

RATIO = "training.embedding_learning_rate_ratio"
FAST = "embedding_learning_rate_ratio=35.36"
ASKED = {
    "says": "LayerNorm raises it.",
    "test": [f"layernorm,{FAST}", f"none,{FAST}"],
    "direction": "greater",
}


def end_of(study, runs, verdict, folder, patch):
    """Let a sweep end that left these runs and this verdict."""
    write_json(folder / "03_analysis.json", {"runs": runs})
    write_json(folder / "verdict.json", verdict)
    patch.setattr(summary, "study_folder", lambda _: folder)
    patch.setattr(summary, "result_file", lambda name, _: folder / f"{name}.json")
    summary.summarise(study)


def test_the_readme_shows_how_the_example_ends(tmp_path, monkeypatch, capsys):
    record = Record("example")
    monkeypatch.setenv("COLUMNS", "80")
    verdict = {"effects": []} | record.verdict  # it is older than effects
    end_of(record.parameters, record.runs, verdict, tmp_path, monkeypatch)
    said = re.sub(" +\n", "\n", capsys.readouterr().out)
    (shown,) = re.findall("```\n(example: .*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert said.startswith(f"\n{shown}")


@pytest.mark.parametrize("width", [80, 45])
@pytest.mark.parametrize("measure", ["loss", "gradient_cosine"])  # of the longest title
def test_an_answer_is_said_whole_and_in_plain_words(width, measure, tmp_path, monkeypatch, capsys):
    """Nothing is cut, in a narrow terminal either."""
    factors = {"model.embedding_norm": ["none", "layernorm"], RATIO: [1.0, 35.36]}
    study, runs = design(factors=factors, seeds=[0, 1, 2, 3]), []
    for arm in study.arms():
        for seed in study.seeds:
            value = 2 + 0.2 * (arm.variant == "layernorm") + 0.01 * noise(seed, len(arm.id))
            values = dict.fromkeys(("loss", "perplexity", "gradient_cosine"), value)
            runs.append(made_up(study, arm, seed).model_copy(update={"measures": values}))
    table, none = tidy(runs), pd.DataFrame()
    runs[3] = runs[3].model_copy(update={"status": "diverged", "measures": {}})
    plan = plan_of(
        hypotheses={"dearer": ASKED | {"test": [*ASKED["test"], measure]}},
        smallest_effect_of_interest={measure: 0.02},
    )
    claim = ClaimStatus(study.name, plan.hash, "CONFIRMATORY", [])
    verdict = analyse(study, plan, claim, table, trace_of(table), none, none)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(summary, "load_plan", lambda _: plan)
    kept = study_results(study, runs)["runs"]
    end_of(study, kept, verdict.as_json(), tmp_path, monkeypatch)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert text.count("[+") + text.count("[-") >= 3  # two contrasts, and the answer
    words = "".join(re.sub(r"[+-]?\d\.\d{3,}|[][±]|, (?=[+-])", " ", text).split())
    for name in [f"none,{RATIO[9:]}=1(1diverged)", *(arm.id for arm in study.arms())]:
        assert name in words
    said = " ".join(text.split())
    answer = (
        r"dearer: supported; holds without any one seed\. LayerNorm raises it\. \(.+ \+0\.\d+ \["
    )
    assert re.search(answer, said)
    for odd in ("…", "n = ", "p_holm", "not judged", "nan", "None"):
        assert odd not in text


def test_long_names_are_wrapped_at_commas_and_the_second_measure_goes_first(
    tmp_path, monkeypatch, capsys
):
    """Readable at 80 columns, as are short names beside both measures."""
    factors = {
        "model.embedding_norm": ["none", "layernorm"],
        "model.tied": [False],
        "model.embedding_roll": [0],
        "model.head_init": ["normal"],
    }
    monkeypatch.setenv("COLUMNS", "80")
    claim, none = ClaimStatus("long", None, "EXPLORATORY", ["it names no plan"]), pd.DataFrame()
    for number, has_second in ((4, False), (1, True)):
        study = design(factors=dict([*factors.items()][:number]), seeds=[0, 1, 2])
        values = {"loss": 2.0, "perplexity": 7.4}
        runs = [
            made_up(study, arm, seed).model_copy(update={"measures": values})
            for arm in study.arms()
            for seed in study.seeds
        ]
        table = tidy(runs)
        verdict = analyse(study, None, claim, table, trace_of(table), none, none).as_json()
        end_of(study, study_results(study, runs)["runs"], verdict, tmp_path, monkeypatch)
        said = capsys.readouterr().out
        assert ("perplexity" in said) == has_second
        assert max(map(len, said.splitlines())) <= 80
        if number == 4:
            assert re.search(r"^layernorm,tied=false,embedding_roll=0,normal +2\.0", said, re.M)
            assert re.search(r"^layernorm,tied=false,embedding_roll=0,normal +\+0\.0", said, re.M)
            assert re.search(r"^  − none,tied=false,embedding_roll=0,normal +$", said, re.M)


def test_a_name_is_wrapped_at_commas_and_no_line_ends_in_a_sign_or_at():
    assert summary._wrapped("layernorm,tied=true - none,tied=true", 24) == (
        "layernorm,tied=true\n  − none,tied=true"
    )
    assert summary._wrapped("layernorm,tied=true,embedding_roll=0", 24) == (
        "layernorm,tied=true,\n  embedding_roll=0"
    )
    name = f"layernorm,{FAST} - none,{FAST} at optimizer=muon,tied=true (batch_size differs)"
    for width in range(12, 99):
        lines = summary._wrapped(name, width).splitlines()
        assert max(map(len, lines)) <= width
        assert not {line.split()[-1] for line in lines} & {"−", "-", "at"}
        assert "".join("".join(lines).split()) == "".join(name.replace(" - ", "−").split())


@pytest.mark.parametrize(("n", "few"), [(2, True), (4, False)])
def test_an_effect_that_changes_sign_is_told_by_setting(n, few, tmp_path, monkeypatch, capsys):
    study, table = crossed(n)
    runs = [
        made_up(study, study.arm(run["arm"]), run["seed"]).model_copy(
            update={"measures": {"loss": run["loss"]}}
        )
        for run in table.to_dict("records")
    ]
    claim, none = ClaimStatus(study.name, None, "EXPLORATORY", ["it names no plan"]), pd.DataFrame()
    verdict = analyse(study, None, claim, table, trace_of(table), none, none).as_json()
    monkeypatch.setenv("COLUMNS", "80")
    kept = study_results(study, runs)["runs"]
    end_of(study, kept, verdict, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "changes sign" in said
    words = " ".join(said.split())
    at = r"at (\w+), tied=\w+: [a-z ]+ the held-out loss \(([+-]0\.\d)"
    assert re.findall(at, words)[:4] == [
        ("AdamW", "-0.2"), ("AdamW", "-0.2"), ("Muon", "+0.5"), ("Muon", "+0.0")
    ]  # fmt: skip
    mean = next(
        row for row in verdict["effects"] if row["kind"] == "main" and row["measure"] == "loss"
    )
    assert f"{mean['mean_delta']:+.4f}" not in said
    assert re.search(r"\d+ intervals; none is adjusted for their number\.", words)
    assert "No rate was tuned for either optimizer" in words
    assert ("Two seeds show no spread" in words) == few
