"""What the paper and the READMEs may quote, and the Jinja templates that quote it.

    {{ final.summary.none.perplexity | mean_sd(".2f") }}     results/final.json
    {{ one(confirmatory.verdict.decisions, arm="scale").rule }}     its .verdict.json
    {{ contrast(final, "scale", "ece") | estimate("+.3f") }} an arm's contrast with its baseline
    {{ count(final.runs, status="diverged") | words }}       how many rows
    {% for row in where(final.verdict.contrasts, measure="ece") %}      every such row
    {{ final.summary[arm("none", learning_rate=0.1)] }}      by the name of an arm
    {{ params("final").training.iterations }}                params/final.yaml, with defaults
    {{ plan_of("final").alpha }}                             a study's plan
    {% for plan in plans() %} {{ plan.hash }}  every plan, as `lib.publish.plans` accounts for it
    {% for name in recorded %} {{ recorded[name].runs | words }}      every study with results
    {% for name in superseded() %}                every study of which only results are kept
    {{ preliminary.source }}                                 preliminary.yaml beside the paper
    {{ root_hash() }}                                        of records, results and plans
    {{ findings.dose[0] | estimate("+.3f") }}                findings.json, by findings.ipynb
    {% if has("pilot") %} … {% endif %}                      left out while it has no results; a
                                                             plan may name it before params/ does

Filters are the functions of `lib.publish.wording`; `-` in the name of a study is written `_`.
Comments stand in `<%` and `%>`, because `{#` opens a label. A name that is not there is an error.
"""

import inspect
import re
import traceback
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateSyntaxError
from jinja2.exceptions import UndefinedError
from jinja2.utils import missing

from lib.publish import wording
from lib.publish.plans import plan_accounts, standing_shown
from lib.record.archive import Record, read_index, root_hash, superseded
from lib.study.io import PLANS, TEMPLATES, read_json
from lib.study.preregistration import load_plan
from lib.study.study import arm_id, load_study
from lib.study.yaml import UserError, read_yaml, suggest

Row = dict[str, Any]
Rows = list[Row]


_BREAK = re.compile(r"(?<!\n)\n(?!\n|\||- )")
"""Of a line, but for those around a paragraph and before a row of a table or a list."""


class TextError(UserError):
    """A text that cannot be built; the message names file, line and fault."""


class _Study(dict[str, Any]):
    """A recorded study: its results, verdict, the file that shows its analysis, and, read when they
    are asked for, runs. It notes that something of it was asked for."""

    def __init__(self, record: Record) -> None:
        standing = standing_shown(record.study, record.verdict)
        verdict = record.verdict | {"standing": standing}
        executed = record.place / "03_analysis.ipynb"  # within its file for some sealed records
        shown = executed if executed.is_file() else record.verdict_file
        place = shown.relative_to(record.paper).as_posix()
        super().__init__(record.results, verdict=verdict, analysis=place)
        self._record, self.asked_for = record, False

    def __getitem__(self, key: str) -> Any:
        self.asked_for = True
        return self._record.runs if key == "runs" else super().__getitem__(key)


class Sources:
    """What the templates in a paper's folder may quote."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper
        self.left_out: dict[str, None] = {}
        """Studies without results that a template has asked for."""
        verdicts = sorted(path.name for path in paper.glob("results/[!.]*.verdict.json"))
        studies = [name.removesuffix(".verdict.json") for name in verdicts]
        recorded = {study: _Study(Record(study, paper)) for study in studies}
        self._recorded = recorded
        asks = paper / "studies.yaml"
        self._asks = read_yaml(asks) if asks.is_file() else {}
        names: dict[str, Any] = {study.replace("-", "_"): of for study, of in recorded.items()}
        # After the studies, so that one called `count` hides no function.
        functions = (where, one, count, contrast, arm)
        names |= {function.__name__: function for function in functions}
        names |= {
            "root_hash": partial(root_hash, paper),
            "has": self._has,
            "recorded": recorded,
            "superseded": lambda: superseded(read_index(paper)),
            "params": load_study,
            "plan_of": lambda study: load_plan(load_study(study)),
        }
        names["plans"] = cache(partial(plan_accounts, paper))  # asks git, so where a text wants it
        names |= {path.stem: read_yaml(path) for path in paper.glob("*.yaml")}
        names |= {path.stem: read_json(path) for path in paper.glob("findings.json")}
        # What is written is Markdown: `finished` escapes it, and marks it as ready by Markup,
        # which autoescape then leaves alone.
        self._environment = Environment(
            loader=FileSystemLoader([paper, TEMPLATES.parent]),
            undefined=_strict(names),
            finalize=wording.finished,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            comment_start_string="<%",
            comment_end_string="%>",
        )
        self._environment.globals |= names
        self._environment.filters |= dict(inspect.getmembers(wording, inspect.isfunction))

    def render(self, name: str) -> str:
        """Fill in a template of the paper's folder; TextError, naming the line, for what is not
        there or cannot be written as asked."""
        try:
            return self._environment.get_template(name).render()
        except TemplateSyntaxError as error:
            raise TextError(f"{name}, line {error.lineno}: {error.message}") from None
        except Exception as error:  # whatever an expression raises is a fault of the text
            frames = reversed(traceback.extract_tb(error.__traceback__))
            line = next((f.lineno for f in frames if f.filename.endswith(name)), "?")
            raise TextError(f"{name}, line {line}: {error}") from None

    def page_part(self, name: str) -> str:
        """Fill in what a page computes, by the name of its template: a line each paragraph, and
        each row of a table or list."""
        text = self.render(f"templates/{name}.md").strip()
        lines = "\n".join(" ".join(line.split()) for line in text.split("\n"))
        return re.sub(r"\n{3,}", "\n\n", _BREAK.sub(" ", lines))

    @property
    def unused(self) -> list[str]:
        """Studies with results of which no template has asked for anything."""
        return [name for name, study in self._recorded.items() if not study.asked_for]

    def _has(self, study: str) -> bool:
        """Tell whether a study has results; note it where it has none. ConfigError for one that
        neither params/ nor a plan nor studies.yaml names."""
        if study in self._recorded:
            return True
        plans = "".join(path.read_text("utf-8") for path in PLANS.glob("*.yaml"))
        if study not in self._asks and f"`{study}`" not in plans:
            load_study(study)
        self.left_out[study] = None
        return False


def where(rows: Rows, **fields: Any) -> Rows:
    """Return the rows with these values, each a single one or a list. ValueError naming a field or
    value that no row has."""
    for field, wanted in fields.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        column = _column(rows, field)
        for value in values:
            if value not in column:
                names = [str(x) for x in dict.fromkeys(column)]
                raise ValueError(f"{field} {suggest(str(value), names)}")
        rows = [row for row in rows if row[field] in values]
    return rows


def one(rows: Rows, **fields: Any) -> dict[str, Any]:
    """Return the one row with these values; ValueError where several have them."""
    matches = where(rows, **fields)
    if len(matches) != 1:
        raise ValueError(f"{len(matches)} rows have {fields}; name another field")
    return matches[0]


def count(rows: Rows, **fields: Any) -> int:
    """Count the rows with these values; there may be none."""
    for field in fields:
        _column(rows, field)
    return sum(all(row[field] == value for field, value in fields.items()) for row in rows)


def contrast(
    study: dict[str, Any], arm: str, measure: str, baseline: str | None = None
) -> dict[str, Any]:
    """Return the contrast of an arm with its own baseline, or with another arm."""
    baseline = baseline or where(study["runs"], arm=arm)[0]["baseline"]
    return one(study["verdict"]["contrasts"], arm=arm, measure=measure, baseline=baseline)


def arm(variant: str, **levels: Any) -> str:
    """Return the name of an arm: `layernorm,learning_rate=0.1`."""
    return arm_id({"model.embedding_norm": variant} | levels)


def _column(rows: Rows, field: str) -> list[Any]:
    absent = [row for row in rows if field not in row]
    if absent:
        raise ValueError(suggest(field, list(absent[0])))
    return [row[field] for row in rows]


def _strict(names: dict[str, Any]) -> type[StrictUndefined]:
    """Make the type of an undefined name: it fails where it is looked up, and says the nearest
    name. `names` are those that a template begins with."""

    class Missing(StrictUndefined):
        def __init__(
            self, hint: str | None = None, obj: Any = missing, name: Any = "", **_: Any
        ) -> None:
            inside = names if obj is missing else range(len(obj)) if isinstance(obj, list) else obj
            known = inside if isinstance(inside, dict | range) else getattr(obj, "__dict__", ())
            advice = " (a study without results? see has())" if obj is missing else ""
            raise UndefinedError(hint or suggest(str(name), [str(key) for key in known]) + advice)

    return Missing
