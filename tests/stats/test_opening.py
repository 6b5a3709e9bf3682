"""What 03 opens with, in words and tables."""

import numpy as np
import pandas as pd
import pytest

from lib.config.claim import ClaimStatus
from lib.config.files import write_text
from lib.config.study import COPY
from lib.stats import opening, tables
from lib.stats.verdict import analyse
from tests.stats.samples import NORMS, crossed, design, noise, plan_of, runs_of, trace_of, two_arms

RAISES = {"says": "It raises the loss.", "test": ["layernorm", "none", "loss"]}
NONE = pd.DataFrame()


def found(study, runs, plan=None):
    claim = ClaimStatus(study.name, None, "CONFIRMATORY" if plan else "EXPLORATORY", [])
    return analyse(study, plan, claim, runs, trace_of(runs), NONE, NONE).as_json()


def told(study, runs, plan=None):
    numbers = opening.seed_numbers(study)
    return opening.answer_sentences(found(study, runs, plan), plan, runs, numbers)


def losses(by):
    return lambda arm, seed: 2 + by * (arm.variant == "layernorm") + 0.01 * noise(seed, len(arm.id))


@pytest.mark.parametrize(
    ("n", "by", "verb"),
    [(4, 0.3, "raises"), (4, -0.3, "lowers"), (4, 0.0, "does not detectably change"),
     (1, 0.3, "may change")],
)  # fmt: skip
def test_a_difference_is_said_as_strongly_as_its_interval(n, by, verb):
    study = two_arms(n)
    said = told(study, runs_of(study, losses(by)))
    assert said.startswith(f"- LayerNorm − no layer: **{verb}** the held-out loss (")
    assert said.endswith(tables.UNTESTED)


def test_an_effect_that_changes_sign_is_told_by_setting_and_an_interaction_as_one():
    study, runs = crossed(4)
    lines = told(study, runs).splitlines()
    i = lines.index("- LayerNorm − no layer: **changes sign**")
    assert lines[i + 1].startswith("  - at AdamW, tied=true: **lowers** the held-out loss (-0.2")
    assert lines[i + 3].startswith("  - at Muon, tied=true: **raises** the held-out loss (+0.5")
    (both,) = [line for line in lines if line.startswith("- LayerNorm × Muon: **")]
    assert "**shows in** the held-out loss (+0.5" in both


@pytest.mark.parametrize(
    ("by", "answer"), [(0.3, "supported"), (-0.3, "refuted"), (0.001, "undecided")]
)
def test_a_hypothesis_has_one_sentence_with_its_answer_and_estimate(by, answer):
    plan = plan_of(
        hypotheses={"dearer": RAISES | {"direction": "greater"}},
        smallest_effect_of_interest={"loss": 0.0001},
    )
    study = two_arms(4)
    (line,) = told(study, runs_of(study, losses(by)), plan).splitlines()
    assert line.startswith(f"- **dearer: {answer}")
    assert f".** It raises the loss. (held-out loss {'+' if by > 0 else '-'}0." in line
    assert line.endswith("] nats)")


def test_drawn_seeds_are_numbered_and_others_keep_their_numbers():
    study = design(factors=NORMS, seeds=[2_070_244_986, 44_207_835, 7])
    drawn = study.model_copy(update={"drawn": True})
    assert opening.seed_numbers(drawn) == {2_070_244_986: 1, 44_207_835: 2, 7: 3}
    assert opening.seed_numbers(two_arms(2)) == {0: 0, 1: 1}
    plan = plan_of(
        hypotheses={"dearer": RAISES | {"direction": "greater"}},
        smallest_effect_of_interest={"loss": 0.0001},
    )
    values = {2_070_244_986: 0.02, 44_207_835: 0.02, 7: 0.021}
    runs = runs_of(drawn, lambda arm, seed: 2 + values[seed] * (arm.variant == "layernorm"))
    verdict = found(drawn, runs, plan)
    verdict["hypothesis_tests"][0]["needed_seeds"] = [44_207_835]
    numbers = opening.seed_numbers(drawn)
    said = opening.answer_sentences(verdict, plan, runs, numbers)
    assert "does not hold without seed 2." in said


def test_each_arm_has_what_it_changes_from_the_first_and_its_baseline():
    study = design(
        factors=NORMS | {"model.tied": [True, False]},
        include=[
            {"name": "wide", "baseline": "none,tied=false"}
            | {
                "levels": {
                    "model.embedding_norm": "none",
                    "model.tied": False,
                    "model.dropout": 0.5,
                }
            }
        ],
    )
    table = opening.arm_table(study)
    assert table["changes"].to_dict() == {
        "none,tied=true": "nothing: it is the baseline",
        "none,tied=false": "model.tied: True → False",
        "layernorm,tied=true": "model.embedding_norm: none → layernorm",
        "layernorm,tied=false": "model.embedding_norm: none → layernorm, model.tied: True → False",
        "wide": "model.tied: True → False, model.dropout: 0.0 → 0.5",
    }
    assert table["compared with"]["wide"] == "none,tied=false"
    assert table["compared with"]["none,tied=true"] == ""


def test_the_question_is_the_plans_or_the_comment_above_a_study(tmp_path, monkeypatch):
    assert opening.question(two_arms(2), plan_of(question="Does it\n  cost?")) == "Does it cost?"
    monkeypatch.setattr(opening, "PARAMS", tmp_path)
    for text, said in (
        ("# Does it\n# end lower?\nname: x # a name\n", "Does it end lower?"),
        ("name: made-up\n# not this\n", ""),
        (f"{COPY}# Why?\n", "Why?"),
    ):
        write_text(tmp_path / "made-up.yaml", text)
        assert opening.question(two_arms(2), None) == said


def test_a_section_is_shown_whole_or_not_at_all(monkeypatch):
    shown = []
    monkeypatch.setattr(
        tables, "display", lambda *parts: shown.extend(part._repr_html_() for part in parts[1:])
    )
    tables.section("### Nothing", pd.DataFrame(), NONE)
    assert shown == []
    wide = pd.DataFrame(
        [[f"{i}.{j:030}" for j in range(40)] for i in range(100)],
        index=[f"layernorm,tied=true,embedding_roll=0,normal,{i}" for i in range(100)],
        columns=[f"column {j}" for j in range(40)],
    )
    tables.section("### All", wide)
    page = "".join(shown)
    assert "…" not in page
    assert "..." not in page
    assert len(shown) > 5
    assert all(f"{i}.{j:030}" in page for i in (0, 50, 99) for j in (0, 20, 39))
    assert all(
        part.count("layernorm, tied=true, embedding_roll=0, normal") == 100 for part in shown
    )


def test_the_loss_is_shown_first_unless_vocabularies_differ():
    study = two_arms(2)
    runs = runs_of(study, losses(0.1))
    test = ["layernorm", "none", "perplexity"]
    plan = plan_of(hypotheses={"h": RAISES | {"test": test, "direction": "greater"}})
    assert opening.loss_first(runs, plan)[0] == "loss"
    assert opening.loss_first(runs, None) == ["loss", "perplexity"]
    runs["vocabulary"] = np.where(runs["arm"] == "none", "characters", "bytes")
    runs["bits_per_character"] = 2.0
    assert opening.loss_first(runs, None) == ["bits_per_character"]
