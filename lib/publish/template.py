"""Look up the numbers and check the claims of the paper and the READMEs when they are built.

    {{ trained.arms.none.loss.mean | number(".3f") }}          results/trained.json
    {{ trained.arms.none.loss | mean_sd(".3f") }}
    {{ trained.cost | estimate("+.3f") }}                      a hypothesis of its verdict
    {{ trained.cost.outcome }}                                 its answer, and what it excludes
    {{ contrast("when", "layernorm,iterations=300") | estimate("+.3f") }}    in the loss
    {{ contrast("trained", "layernorm - scale", "perplexity") | estimate("+.3f") }}
    {{ test("tuned", "scale", "perplexity").p_holm | p_value }}     a test of an older plan
    {{ one(turn.verdict.stability_map, arm="warmup").unstable | words }}     any of its tables
    {{ findings.dose[0].mean_delta | number("+.3f") }}         findings.json, by findings.ipynb
    {{ params("when").training.iterations }}                   params/when.yaml, with defaults

In a study's name, write `_` for `-`, or `results["start-or-speed"]`; in a hypothesis' name,
`turn["warm-up"]`. A comment above a paragraph or a table row names the facts that it rests on:

    <!-- holds: trained.cost supported; trained.equal undecided -->
    <!-- holds: contrast("trained", "layernorm - scale") lower -->
    <!-- holds: contrast("confirmatory-2", "rescued", "perplexity") within 0.1 -->
    <!-- holds: findings.schedule[0].t_low > 0 -->

A fact that no longer holds, or an unknown name, stops the build; the message names the line.
"""

import re
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateSyntaxError
from jinja2.exceptions import UndefinedError

from lib.config.errors import UserError, suggest
from lib.config.files import read_json
from lib.config.metrics import MAIN
from lib.config.paths import listed
from lib.config.plan import read_plan
from lib.config.study import load_study
from lib.config.yaml import Json, read_yaml
from lib.record.archive import Record
from lib.stats.answers import outcome
from lib.stats.factorial import by_setting
from lib.stats.tables import cautions

_HOLDS = re.compile(r"<!-- holds: (.+?) -->\n", re.DOTALL)
_CLAIM = re.compile(
    r"(.+?) +(supported|refuted|negligible|undecided|higher|lower|within [\d.]+)", re.DOTALL
)
_WORDS = [
    "none", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip


class TextError(UserError):
    """A text cannot be built; the message names file, line and fault."""


class Template:
    """Everything that the texts in a paper's folder may quote."""

    def __init__(self, paper: Path) -> None:
        self._paper = paper
        self.studies = {study: _quoted(Record(study, paper)) for study in studies_of(paper)}
        known: Json = {
            **{name.replace("-", "_"): study for name, study in self.studies.items()},
            **{path.stem: read_yaml(path) for path in listed(paper, "*.yaml")},
            **{path.stem: read_json(path) for path in listed(paper, "findings.json")},
            "results": self.studies,
            "contrast": partial(self._row, "contrasts"),
            "test": partial(self._row, "tests"),
            "one": one,
            "params": load_study,
            "by_setting": by_setting,
            "cautions": cautions,
        }
        self._environment = Environment(
            loader=FileSystemLoader(paper),
            undefined=_with_nearest_name(known),
            finalize=_finished,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            comment_start_string="<!--",
            comment_end_string="-->",
        )
        self._environment.globals.update(known)
        self._environment.filters.update(
            number=number, mean_sd=mean_sd, estimate=estimate, p_value=p_value, words=words
        )

    def render(self, name: str) -> str:
        """Check the claims of a text, and fill in its numbers. TextError names the line."""
        source = (self._paper / name).read_text("utf-8")
        for match in _HOLDS.finditer(source):
            line = source[: match.end()].count("\n")
            sentence = source[match.end() :].split("\n")[0]
            for claim in match[1].split(";"):
                try:
                    fault = self._fault(" ".join(claim.split()))
                except (TemplateSyntaxError, UndefinedError, ValueError, TypeError) as error:
                    raise TextError(f"{name}, line {line}: {claim.strip()}: {error}") from None
                if fault:
                    what = f"{claim.strip()} does not hold: {fault}"
                    raise TextError(f"{name}, line {line}: {what}. Rewrite: {sentence}")
        try:
            return self._environment.get_template(name).render()
        except TemplateSyntaxError as error:
            raise TextError(f"{name}, line {error.lineno}: {error.message}") from None
        except Exception as error:  # an expression in the text may raise anything
            frames = reversed(traceback.extract_tb(error.__traceback__))
            at = next((f.lineno for f in frames if f.filename.endswith(name)), "?")
            raise TextError(f"{name}, line {at}: {error}") from None

    def _fault(self, claim: str) -> str:
        """Return what the record shows instead of a claim; "" if the claim holds."""
        match = _CLAIM.fullmatch(claim)
        found: Any = self._environment.compile_expression(match[1] if match else claim)()
        if match is None:
            if isinstance(found, bool):
                return "" if found else "it is false"
            known = "supported, refuted, negligible, undecided, higher, lower, within NUMBER"
            raise ValueError(f"end it with one of {known}")
        word = match[2]
        if word.startswith("within"):
            margin = float(word.split()[1])
            return "" if -margin < found["t_low"] <= found["t_high"] < margin else estimate(found)
        asks_direction = word in ("higher", "lower") or "answer" not in found
        outcome = direction(found) if asks_direction else found["answer"]
        return "" if outcome == word else f"it is {outcome}, {estimate(found)}"

    def _row(self, table: str, study: str, arms: str, measure: str = "loss", **fields: str) -> Json:
        """Return the contrast of an arm with its own baseline, or "of one - with another"."""
        if study not in self.studies:
            raise ValueError(suggest(study, self.studies))
        arm, _, baseline = arms.partition(" - ")
        rows = self.studies[study]["verdict"][table]
        if not baseline:  # the first row of an arm has its own baseline
            baseline = next((row["baseline"] for row in rows if row["arm"] == arm), "")
        return one(rows, arm=arm, baseline=baseline, measure=measure, **fields)


def studies_of(paper: Path) -> list[str]:
    """List the studies that have results in a paper's folder."""
    return sorted(path.name.removesuffix(".verdict.json") for path in listed(paper, "results/*.v*"))


def _quoted(record: Record) -> Json:
    """Return everything that a text may quote of a study: its hypotheses by name, and its parts."""
    verdict = record.verdict
    answers = {row["hypothesis"]: row for row in verdict.get("hypothesis_tests") or []}
    design = record.results["study"]
    plan = read_plan(design["plan"]) if answers and design.get("plan") else None
    for row in answers.values():
        row["outcome"] = outcome(row, plan) if plan else row["answer"]
    tested = [row.get("measure") for row in answers.values()]
    compared = {row["measure"] for row in verdict.get("contrasts", ())}
    main = next((m for m in (*tested, *MAIN, "bits_per_character") if m in compared), MAIN[0])
    return {
        **answers,
        "hypotheses": answers,
        "arms": record.results["summary"],
        "main": main,
        "design": design,
        "verdict": verdict,
    }


def one(rows: list[Json], **fields: Any) -> Json:
    """Return the one row with these values; ValueError with the nearest name if there is none."""
    for field, value in fields.items():
        known = {str(row[field]): None for row in rows}
        rows = [row for row in rows if row[field] == value]
        if not rows:
            raise ValueError(f"{field} {suggest(str(value), known)}")
    if len(rows) > 1:
        raise ValueError(f"{len(rows)} rows have {fields}; name another field")
    return rows[0]


def direction(row: Json) -> str:
    """Return the side of zero on which the *t* interval lies: lower, higher, or undecided."""
    low = row["t_low"]
    if low is None or low <= 0 <= row["t_high"]:
        return "undecided"
    return "lower" if low < 0 else "higher"


def number(value: float | None, form: str) -> str:
    """Write a number in a format of Python's. Zero has no sign; None is n/a."""
    if value is None:
        return "n/a"
    text = format(value, form)
    return (text if re.search("[1-9]", text) else text.lstrip("+-")).replace("-", "−")


def mean_sd(summary: Json, form: str) -> str:
    """Write mean ± standard deviation, or only the mean if there is a single run."""
    parts = [number(summary[key], form) for key in ("mean", "sd") if summary[key] is not None]
    return " ± ".join(parts) or "n/a"


def estimate(row: Json, form: str = "+.3f") -> str:
    """Write a difference with its *t* interval: +0.021 [+0.005, +0.036]."""
    low = number(row["t_low"], form)
    high = number(row["t_high"], form)
    return f"{number(row['mean_delta'], form)} [{low}, {high}]"


def p_value(p: float) -> str:
    """Write a p-value: .017 or < .001."""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def words(count: float) -> str:
    """Write a whole number, in letters from none to twelve."""
    return _WORDS[int(count)] if count < len(_WORDS) else f"{count:,.0f}"


def _finished(value: Any) -> Any:
    if value is None or isinstance(value, float | list | dict):
        raise ValueError(f"{value!r} needs a filter such as number('.3f')")
    return value


def _with_nearest_name(known: Json) -> type[StrictUndefined]:
    """Return Jinja's type of undefined names: looking one up fails, with the nearest known name.
    `known` has the names at the top level."""

    class Missing(StrictUndefined):
        def __init__(self, hint: Any = None, obj: Any = known, name: Any = "", **_: Any) -> None:
            inside = obj if isinstance(obj, dict) else ()
            raise UndefinedError(hint or suggest(str(name), map(str, inside)))

    return Missing
