"""Every sentence of the paper and the README's answers, whatever the results may be: with records
of all planned studies, and with every result on either side of nothing, around it, and absent."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from lib.publish.paper import filled_in
from lib.publish.sources import Sources
from lib.study.measures import MEASURES
from lib.study.paths import PAPER
from tests.analysis.samples import noise
from tests.publish import samples

NUMBER = r"([+−]?[\d.,]*\d%?)"
ESTIMATE = rf"{NUMBER} \[{NUMBER}, {NUMBER}\]"
FORMS = {
    "lower": (-0.5, -0.6, -0.4),
    "higher": (0.5, 0.4, 0.6),
    "undecided": (0.5, -0.4, 1.4),
    "undefined": (0.5, None, None),
    "nothing": (0.0, None, None),
}


def verbatim(name: str) -> Markup:
    """A made-up study has no parameter file."""
    return Markup(f"```\n{name}\n```\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A paper whose record holds every planned study."""
    paper = tmp_path_factory.mktemp("whole") / "paper"
    ignored = shutil.ignore_patterns("record", "site", "*.pdf", "*.png")
    shutil.copytree(PAPER, paper, ignore=ignored)
    (paper / "record").symlink_to(PAPER / "record")
    for figure in PAPER.glob("figures/*/*.pdf"):
        (paper / figure.relative_to(PAPER)).touch()
    for name in samples.PLANNED:
        samples.write(
            name,
            paper,
            effect=lambda arm, seed: 0.1 * (arm.id != arm.baseline) + 0.001 * noise(seed),
            rise=lambda arm, _: 0.9 * (arm.id == arm.baseline),
        )
    return paper


@pytest.fixture
def texts(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Texts":
    monkeypatch.setattr("lib.publish.sources.verbatim", verbatim)
    shutil.copytree(whole, tmp_path / "paper", symlinks=True)
    return Texts(tmp_path / "paper")


class Texts:
    """A copy of the paper, whose results a test changes."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper

    def change(self, form: str, rule: str = "R1") -> None:
        """Give every result one form, consistently."""
        for path in [*self.paper.glob("results/*.verdict.json"), self.paper / "findings.json"]:
            verdict = json.loads(path.read_text("utf-8"))
            for row in rows_of(verdict):
                put(row, form)
            for row in verdict.get("decisions", ()):
                row["rule"] = rule
            path.write_text(json.dumps(verdict), "utf-8")

    def written(self) -> str:
        """Paper and answers, each on one line."""
        sources = Sources(self.paper)
        text = filled_in(self.paper, sources) + sources.render("templates/answers.md")
        assert set(sources.left_out) <= {"stability-check"}
        return " ".join(text.split())


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
    for name in ("tied", "untied", "difference"):
        if f"{name}_low" in row:
            row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
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


def contradictions(text: str) -> list[str]:
    """Sentences whose verb is not that of their number, and numbers that no sentence may show."""
    found = re.findall(r"(?:low|rais)ers? [^.;|]{1,80}? by [+−]\d[^.]*", text)
    for verb, *numbers in re.findall(rf"(lowers|raises) [^.;|]{{1,80}}? by {ESTIMATE}", text):
        size, low, high = map(value, numbers)
        if not 0 <= low <= size <= high:
            found.append(f"{verb} {numbers}")
    for numbers in re.findall(rf"does not detectably change [^.;|]{{1,80}}?: {ESTIMATE}", text):
        _, low, high = map(value, numbers)
        if not low <= 0 <= high:
            found.append(f"undecided {numbers}")
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
        "It does not detectably change ECE: +0.5 [+0.4, +0.6].",
        "H0 is supported and supported.",
        "by +0.0000 [−0.0000, +0.0000]",
        "[n/a, n/a]",
    ):
        assert contradictions(wrong), wrong
    right = "It lowers accuracy by 0.025 [0.016, 0.034] and raises ECE by 0.1 [0.1, 0.2]."
    assert contradictions(right) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_form_contradicts_its_number(texts: Texts, form: str) -> None:
    texts.change(form)
    text = texts.written()
    assert contradictions(text) == []
    by_number = {verb: re.findall(rf"{verb} [^.;|]{{1,80}}? by \d", text) for verb in OPPOSITE}
    for verb, opposite in OPPOSITE.items():
        assert bool(by_number[verb]) == (form == opposite), by_number[verb][:1]
    assert ("does not detectably change" in text) == (form == "undecided")
    if form != "nothing":  # of a ratio, nothing is one
        assert ("no interval: too few seeds" in text) == (form == "undefined")


OPPOSITE = {"lowers": "lower", "raises": "higher"}


@pytest.mark.slow
def test_the_takeaway_is_that_of_the_rule(texts: Texts) -> None:
    said = {}
    for rule in ("R0", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"):
        texts.change("higher", rule)
        found = re.search(r"\*Takeaway:\*.*?under this recipe: (.*?)\. :::", texts.written())
        assert found
        said[rule] = found[1]
    assert len(set(said.values())) == len(said)
    assert "costs quality" in said["R1"]
    assert "costs quality" not in said["R8"]


@pytest.mark.slow
def test_a_block_begins_after_a_blank_line_and_is_no_text(texts: Texts) -> None:
    text = filled_in(texts.paper, Sources(texts.paper))
    opened = re.findall(r"([^\n]*)\n::: \{", text)
    assert len(opened) > 30
    assert set(map(str.strip, opened)) == {""}


@pytest.mark.slow
def test_a_study_without_results_is_planned_and_claims_nothing(texts: Texts) -> None:
    for name in samples.PLANNED:
        (texts.paper / "results" / f"{name}.verdict.json").unlink()
    sources = Sources(texts.paper)
    text = filled_in(texts.paper, sources)
    assert set(sources.left_out) >= set(samples.PLANNED)
    for name in samples.PLANNED:
        assert re.search(rf"\| `{name}` \| [^|]+\|( – \|){{5}} planned, not yet run \|", text)
    assert text.count("planned and not yet run") >= len(samples.PLANNED)
