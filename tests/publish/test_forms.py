"""Every sentence of the paper and the README's answers, whatever the results may be: with records
of all planned studies, and with every result on either side of nothing, around it, and absent."""

import itertools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from lib.publish.paper import filled_in
from lib.publish.sources import Sources
from lib.record.archive import Record, as_rows
from lib.study.io import PAPER
from lib.study.metrics import MEASURES
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.study import load_study
from tests.analysis.samples import noise
from tests.publish import samples
from tests.publish.prose import MOST_NUMBERS, abstract, answers, faults, numbers, sentences

NUMBER = r"([+−]?[\d.,]*\d%?)"
ESTIMATE = rf"{NUMBER} \[{NUMBER}, {NUMBER}\]"
FORMS = {
    "lower": (-0.5, -0.6, -0.4),
    "higher": (0.5, 0.4, 0.6),
    "undecided": (0.5, -0.4, 1.4),
    "undefined": (0.5, None, None),
    "nothing": (0.0, None, None),
}
WORDS = ("supported", "refuted", "undecided")
OFTEN = (("supported", "supported", "higher"), ("supported", "refuted", "higher"))
"""Answers of `when` that the usual run tries, a delay and a level; the others take minutes."""
ANSWERS = {"lower": "refuted", "higher": "supported"}
"""Of a hypothesis; in every other form it is undecided."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A paper whose record holds every planned study."""
    paper = tmp_path_factory.mktemp("whole") / "paper"
    ignored = shutil.ignore_patterns("record", "site", "*.pdf", "*.png")
    shutil.copytree(PAPER, paper, ignore=ignored)
    (paper / "record").symlink_to(PAPER / "record")
    for figure in PAPER.glob("figures/*/*.pdf"):
        (paper / figure.relative_to(PAPER)).touch()
    (paper / "figures/findings/when.pdf").touch()  # which the notebook draws once that is recorded
    for name in samples.PLANNED:
        samples.write(
            name,
            paper,
            effect=lambda arm, seed: 0.1 * (arm.id != arm.baseline) + 0.001 * noise(seed),
            rise=lambda arm, _: 0.9 * (arm.id == arm.baseline),
        )
    samples.explore(paper, lambda arm, seed: 0.1 * (arm.id != arm.baseline) + 0.001 * noise(seed))
    return paper


@pytest.fixture
def texts(whole: Path, tmp_path: Path) -> "Texts":
    shutil.copytree(whole, tmp_path / "paper", symlinks=True)
    return Texts(tmp_path / "paper")


class Texts:
    """A copy of the paper, whose results a test changes before it reads what is made of them."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper

    def put(self, choose: Callable[[list[str]], str], words: Sequence[str] = ()) -> None:
        """Give every result the form that is chosen of some; every answer, too, one of some words,
        or, without them, the one that follows from its number."""
        verdicts = sorted(self.paper.glob("results/*.verdict.json"))
        for path in [*verdicts, self.paper / "findings.json"]:
            verdict = {k: as_rows(v) for k, v in json.loads(path.read_text("utf-8")).items()}
            for row in rows_of(verdict):
                put(row, choose([*FORMS]))
            study = path.name.removesuffix(".verdict.json")
            for row in verdict.get("hypothesis_tests", ()):
                form = choose(["lower", "higher", "undecided"])
                put(row, form)
                row["answer"] = choose([*words]) if words else ANSWERS.get(form, "undecided")
                row["sentence"] = planned(study, row["hypothesis"], row["answer"])
            path.write_text(json.dumps(verdict), "utf-8")

    @cached_property
    def manuscript(self) -> str:
        """The paper's."""
        sources = Sources(self.paper)
        text = filled_in(self.paper, sources)
        assert not set(sources.left_out) & {*samples.PLANNED, *samples.EXPLORED}
        return text

    @cached_property
    def page(self) -> str:
        """The README's answers."""
        return Sources(self.paper).page_part("answers")

    @property
    def written(self) -> str:
        """Both on one line."""
        return " ".join(f"{self.manuscript} {self.page}".split())


@cache
def plan_of(study: str) -> Plan:
    plan = load_plan(load_study(study))
    assert plan
    return plan


def planned(study: str, hypothesis: str, answer: str) -> str:
    """The sentence that a study's plan has for an answer."""
    return str(getattr(plan_of(study).hypotheses[hypothesis], f"if_{answer}"))


def rows_of(content: Any) -> Iterator[dict[str, Any]]:
    """Every row of the tables in a verdict."""
    for value in content.values() if isinstance(content, dict) else content:
        if isinstance(value, list):
            yield from (row for row in value if isinstance(row, dict))


def put(row: dict[str, Any], form: str) -> None:
    mean, low, high = FORMS[form]
    if "token_ratio" in row:
        row |= {"token_ratio": 1 + mean, "t_low": low and 1 + low, "t_high": high and 1 + high}
    elif "share" in row and "ingredient" in row:
        row |= {"share": mean, "low": low, "high": high}
    elif "value" in row:
        row |= {"value": mean, "low": low, "high": high}
    elif "mean_delta" in row:
        row |= {"mean_delta": mean, "t_low": low, "t_high": high}
    if "answer" in row and "measure" in row:
        harm = "harms" if MEASURES[row["measure"]].gain(mean) < 0 else "helps"
        if row["test"] == "equivalence":
            harm = "undecided"
        answers = {"undecided": "undecided", "undefined": "not tested"}
        row["answer"] = answers.get(form, harm)
        row["p_holm"] = {"undefined": None, "nothing": None, "undecided": 0.6}.get(form, 0.01)
        if form == "nothing":
            row["answer"] = "no difference in any seed"


def value(number: str) -> float:
    return float(number.replace("−", "-").replace(",", "").rstrip("%"))


VERBS = "lowers|raises|costs|gains"


def contradictions(text: str) -> list[str]:
    """Sentences whose verb is not that of their number, and numbers that no sentence may show."""
    found = re.findall(rf"(?:{VERBS}) (?:[^.;|:]{{1,80}}? by )?[+−]\d[^.]*", text)
    for verb, *ends in re.findall(rf"({VERBS}) (?:[^.;|:]{{1,80}}? by )?{ESTIMATE}", text):
        size, low, high = map(value, ends)
        if not 0 <= low <= size <= high:
            found.append(f"{verb} {ends}")
    undecided = (
        rf"(?:undecided|does not detectably change|not told apart)[^.;|]{{0,80}}?: {ESTIMATE}"
    )
    for ends in re.findall(undecided, text):
        _, low, high = map(value, ends)
        if not low <= 0 <= high:
            found.append(f"undecided {ends}")
    for pattern in (
        r"\[n/a",
        r"n/a\]",
        r"[+−]0\.?0*(?![\d.])",
        r"(\w+ed) and \1\b",
        r"\bNone\b \[",
    ):
        found += [match[0] for match in re.finditer(pattern, text)]
    return found


def test_a_contradiction_is_found() -> None:
    for wrong in (
        "It lowers accuracy by −0.025 [−0.034, −0.016].",
        "It raises perplexity by 0.5 [0.6, 0.7].",
        "It costs −0.1 nats.",
        "It gains 0.5 [0.6, 0.7] nats.",
        "It does not detectably change ECE: +0.5 [+0.4, +0.6].",
        "A cost is undecided at this rate: +0.5 [+0.4, +0.6] nats.",
        "H0 is supported and supported.",
        "by +0.0000 [−0.0000, +0.0000]",
        "[n/a, n/a]",
    ):
        assert contradictions(wrong), wrong
    right = "It lowers accuracy by 0.025 [0.016, 0.034] and raises ECE by 0.1 [0.1, 0.2]."
    assert contradictions(right) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_form_contradicts_its_number_or_its_plan_or_reads_badly(texts: Texts, form: str) -> None:
    texts.put(lambda _: form)
    text, answer = texts.written, ANSWERS.get(form, "undecided")
    assert contradictions(text) == []
    for verb, direction in {"costs": "higher", "gains": "lower"}.items():
        assert bool(re.findall(rf"{verb} \d", text)) == (form == direction)
    if form != "nothing":  # of a ratio, nothing is one
        assert ("no interval: too few seeds" in text) == (form == "undefined")
    for study in samples.PLANNED:
        for hypothesis in plan_of(study).hypotheses:
            for other in WORDS:
                said = " ".join(planned(study, hypothesis, other).split())
                assert (said in text) == (other == answer), said
    reads_well(texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))]
)
def test_no_mixture_of_forms_contradicts_its_numbers_or_reads_badly(
    texts: Texts, seed: int
) -> None:
    """Every result has a form of its own, drawn with a seed."""
    texts.put(random.Random(seed).choice, WORDS)
    assert contradictions(texts.written) == []
    assert re.search(r"(costs|gains) \d", texts.written)
    reads_well(texts)


def reads_well(texts: Texts) -> None:
    """Check every sentence of the paper and the answers, and the size of the abstract."""
    manuscript, page = texts.manuscript, texts.page
    found = [*sentences(manuscript), *sentences(page)]
    found += [line for cell in answers(page) for line in sentences(cell)]
    assert {line: wrong for line in found if (wrong := faults(line))} == {}
    assert [cell for cell in answers(page) if len(numbers(cell)) > MOST_NUMBERS] == []
    assert len(abstract(manuscript).split()) <= 160
    assert len(numbers(abstract(manuscript))) <= 4
    opened = re.findall(r"([^\n]*)\n::: \{", manuscript)  # a block after text would be text
    assert len(opened) > 10
    assert set(map(str.strip, opened)) == {""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("early", "late", "form"),
    [
        pytest.param(*each, marks=[] if each in OFTEN else pytest.mark.long)
        for each in itertools.product(WORDS, WORDS, ["lower", "higher"])
    ],
)
def test_a_delay_or_a_level_is_called_by_the_rule_of_the_plan(
    texts: Texts, early: str, late: str, form: str
) -> None:
    record = Record("when", texts.paper)
    verdict = record.verdict
    for row in verdict["hypothesis_tests"]:
        put(row, form if row["hypothesis"] == "late" else "higher")
        row["answer"] = {"early": early, "late": late}.get(row["hypothesis"], "supported")
        row["sentence"] = planned("when", row["hypothesis"], row["answer"])
    record.verdict_file.write_text(json.dumps(verdict), "utf-8")
    called = "open"
    if early == "refuted":
        called = "none"
    elif (late, form) == ("refuted", "higher"):
        called = "level"
    elif early == late == "supported":
        called = "delay"
    said = {
        "none": "there is no early cost that could be called a delay or a level",
        "level": "The cost is a level:",
        "delay": "The early cost is a delay:",
        "open": "Whether the early cost is a delay or a level stays open.",
    }
    text = texts.written
    assert [name for name, sentence in said.items() if sentence in text] == [called]
    reads_well(texts)


@pytest.mark.slow
def test_a_study_without_results_is_not_yet_run_and_claims_nothing(texts: Texts) -> None:
    names = (*samples.PLANNED, *samples.EXPLORED)
    for name in names:
        (texts.paper / "results" / f"{name}.verdict.json").unlink()
    sources = Sources(texts.paper)
    text = filled_in(texts.paper, sources)
    assert set(sources.left_out) >= set(names)
    for name in names:
        assert re.search(rf"\| `{name}` \| [^|]+\|( – \|){{2}} not yet run \|", text)
    for name in samples.EXPLORED:  # but for that row, nothing is said of it
        assert text.count(f"`{name}`") == 1
    for name in samples.PLANNED:
        hypotheses = plan_of(name).hypotheses.values()
        assert not any(str(each.if_supported).strip() in text for each in hypotheses)


PLACES = {
    ("lower", "lower"): "and that holds in both.",
    ("higher", "higher"): "and that holds in neither.",
    ("higher", "lower"): "and that holds only with rotary positions.",
    ("lower", "higher"): "and that holds only on the tokens.",
    ("higher", "undecided"): "and that does not hold on the tokens.",
    ("undefined", "higher"): "and that does not hold with rotary positions.",
    ("lower", "undecided"): "; nothing here shows the contrary.",
    ("undefined", "undecided"): "; nothing here shows the contrary.",
}


@pytest.mark.slow
@pytest.mark.parametrize(("token", "rotary"), PLACES)
def test_what_was_expected_of_the_layers_place_is_said_by_both_intervals(
    texts: Texts, token: str, rotary: str
) -> None:
    found = json.loads((texts.paper / "findings.json").read_text("utf-8"))
    forms = {"token": token, "rotary": rotary}
    for row in found["where_apart"]:
        put(row, forms[row["place"]])
    (texts.paper / "findings.json").write_text(json.dumps(found), "utf-8")
    expected = re.findall(r"had expected that it adds no more in either place(?:, )?([^.]*\.)",
                          texts.written)  # fmt: skip
    assert expected == [PLACES[token, rotary]]
    said = {"lower": "The layer adds less to", "higher": "The layer adds more to",
            "undecided": "Whether the layer adds less to"}  # fmt: skip
    assert [form for form, words in said.items() if words in texts.written] == (
        [token] if token in said else []
    )


@pytest.mark.slow
def test_widths_at_which_a_cost_is_seen_are_counted(texts: Texts) -> None:
    found = json.loads((texts.paper / "findings.json").read_text("utf-8"))
    last = [row for row in found["ladder_2"] if row["steps"] == 2400]
    for row, form in zip(last, ["higher", "undecided", "higher"], strict=True):
        put(row, form)
    for row, form in zip(found["ladder_2_steps"], ["undecided", "lower", "lower"], strict=True):
        put(row, form)
    for row, inside in zip(found["ladder_2"], [2, 1, 0, 2, 1, 0], strict=True):
        row["bracketed"] = inside
    (texts.paper / "findings.json").write_text(json.dumps(found), "utf-8")
    for said in (
        "raises the loss at two of these widths, and lowers it at none.",
        "detectably falls at two of them, and grows at none.",
        "At the widest, 192, that change is −0.500 [−0.600, −0.400] nats, with one of four best "
        "rates inside the grid. It was expected to fall at each width, and that stays open.",
        "The grid brackets six of the twelve best rates.",
    ):
        assert said in texts.written
