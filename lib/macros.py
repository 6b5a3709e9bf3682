"""Values in prose: `{{path:format}}` stands for a number or word of the results, parameters, plan.

A path begins with one of these and walks on by fields, list indices and row look-ups:

    final.summary.none.perplexity          results/final.json
    final.verdict.contrasts[arm=layernorm,measure=perplexity].mean_delta
                                           results/final.verdict.json; exactly one row must match
    params.final.training.iterations       params/final.yaml, with defaults
    plan.minimum_detectable_effect         params/preregistration.yaml
    lib.calibration.N_BINS                 a constant of the code
    preliminary.source                     preliminary.yaml beside the paper

A field with other characters than letters, digits, `_` and `-` stands in single quotes. A final `?`
says that the field may be missing (a measure of a diverged run, say): it is then n/a. `(path)`
inside a path is replaced by its own value.
"""

import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lib.config import Study, load_study
from lib.paths import PARAMS
from lib.preregistration import load_plan
from lib.results import MEASURES
from lib.validation import read_yaml, unknown

MACRO = re.compile(r"\{\{(.*?)\}\}")
_STEP = re.compile(r"\.?(?:'(?P<quoted>[^']*)'|(?P<name>[\w-]+))(?P<optional>\?)?|\[(?P<rows>[^]]*)\]")
_CONDITION = re.compile(r"([\w-]+)=('[^']*'|[^,]*)(?:,|$)")
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
MISSING = "n/a"


class MacroError(ValueError):
    """A macro that has no value; the message names the key and what there is instead."""


class Sources:
    """What paths walk through: everything that a paper may quote."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper
        self._read: dict[str, Any] = {}

    def has(self, study: str) -> bool:
        """Tell whether a study has results."""
        return self._results(study).is_file()

    def value(self, path: str, **names: Any) -> Any:
        """Walk a path to its value. `names` are further beginnings of paths, such as `row`.

        Raises MacroError naming the key that is unknown, ambiguous or not there.
        """
        path = re.sub(r"\(([^()]*)\)", lambda m: plain(self.value(m[1], **names)), path.strip())
        steps = list(_STEP.finditer(path))
        if not steps or "".join(step[0] for step in steps) != path or not steps[0]["name"]:
            raise MacroError(f"{path!r} is no path")
        try:
            start = steps[0]["name"]
            value = names[start] if start in names else self._beginning(start)
            for step in steps[1:]:
                value = _walk(value, step)
        except MacroError as error:
            raise MacroError(f"{path}: {error}") from None
        return value

    def macro(self, text: str, **names: Any) -> str:
        """Write what stands between `{{` and `}}`: a path and a format. `count path` is how many rows
        match a look-up, of which the last condition may match none."""
        path, _, form = text.partition(":")
        if path.startswith("count "):
            path, _, last = path.removeprefix("count ").rpartition("[")
            last = re.sub(r"\(([^()]*)\)", lambda m: plain(self.value(m[1], **names)), last)
            rows = _matching(self.value(path, **names), last.rstrip("] "), allow_none=True)
            return written(len(rows), form)
        return written(self.value(path, **names), form)

    def rows(self, path: str) -> list[Any]:
        """Walk a path to a list. Of a mapping, its keys; after a look-up, every row that matches;
        a path with a blank in it is a list of words."""
        if " " in path.strip():
            return path.split()
        path, conditions = re.fullmatch(r"(.*?)(?:\[([^]]*=[^]]*)\])?", path.strip()).groups()  # type: ignore[union-attr]
        found = self.value(path)
        if conditions is not None:
            return _matching(found, conditions)
        if not isinstance(found, list | dict):
            raise MacroError(f"{path}: is {found!r}, and rows must be a list or a mapping")
        return list(found)

    def _results(self, study: str) -> Path:
        return self.paper / "results" / f"{study}.json"

    def _beginning(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> Any:
        match name:
            case "plan":
                return self._plan
            case "params":
                studies = [p.stem for p in sorted(PARAMS.glob("*.yaml"))]
                return {s: load_study(s).model_dump() for s in studies if s != "preregistration"}
            case "lib":
                return _Code()
        if (self.paper / f"{name}.yaml").is_file():
            return read_yaml(self.paper / f"{name}.yaml")
        if not self.has(name):
            studies = [p.stem for p in self._results("*").parent.glob("*.json") if "." not in p.stem]
            hint = unknown(name, sorted([*studies, "plan", "params", "lib"]))
            raise MacroError(f"{hint} (a study without results belongs inside a .needs block)")
        results = json.loads(self._results(name).read_text("utf-8"))
        verdict = self.paper / "results" / f"{name}.verdict.json"
        return results | {"verdict": json.loads(verdict.read_text("utf-8"))}

    @cached_property
    def _plan(self) -> dict[str, Any]:
        study = Study(name="any", seeds=[0], preregistration="preregistration.yaml")
        plan = load_plan(study)
        assert plan is not None
        return plan.model_dump() | {"hash": plan.hash, "confidence": 1 - plan.alpha}


class _Code:
    """Modules of `lib`, by name."""


def _walk(value: Any, step: re.Match[str]) -> Any:
    if step["rows"] is not None:
        if step["rows"].isdigit():
            return _item(value, int(step["rows"]))
        found = _matching(value, step["rows"])
        if len(found) > 1:
            raise MacroError(f"{len(found)} rows match [{step['rows']}]; add a field")
        return found[0]
    key = step["name"] if step["quoted"] is None else step["quoted"]
    if value is None and step["optional"]:
        return None
    if isinstance(value, dict):
        if key not in value and not step["optional"]:
            raise MacroError(unknown(key, [str(k) for k in value]))
        return value.get(key)
    try:
        return importlib.import_module(f"lib.{key}") if isinstance(value, _Code) else vars(value)[key]
    except (ImportError, TypeError, KeyError):
        raise MacroError(f"{key!r} is unknown") from None


def _item(value: Any, index: int) -> Any:
    if not isinstance(value, list) or index >= len(value):
        raise MacroError(f"there is no item [{index}]")
    return value[index]


def _matching(rows: Any, conditions: str, allow_none: bool = False) -> list[dict[str, Any]]:
    """The rows whose fields have the given values: `arm=none,measure=ece|brier`. `allow_none`: the
    last condition may match no row."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MacroError(f"[{conditions}] looks up rows, and there are none")
    pairs = _CONDITION.findall(conditions)
    for i, (key, wanted) in enumerate(pairs):
        present = [row for row in rows if key in row]
        if rows and not present:
            raise MacroError(f"[{conditions}]: {unknown(key, [str(k) for k in rows[0]])}")
        kept = [row for row in present if plain(row[key]) in wanted.strip("'").split("|")]
        if not kept and not (allow_none and i + 1 == len(pairs)):
            there = list(dict.fromkeys(plain(row[key]) for row in present))
            raise MacroError(f"[{conditions}]: {key} {unknown(wanted, there)}")
        rows = kept
    return rows


def plain(value: Any) -> str:
    """Write a value as it is compared with, and as ids of arms hold it: 0.0003, true, none."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def written(value: Any, form: str) -> str:
    """Write a value by a format: one of Python's (`.3f`, `+.1%`, `,`) or

    `±.3f` mean ± sd of a summary (the mean alone where there is no sd); `[+.3f]` the t interval of a contrast (t_low, t_high);
    `p` and `p=` a p-value, `< .001` or with its sign; `sci` a power of ten; `label` a measure's
    name; `code` a name as code; `words` a number, or a list's length, as a word; `list` a list in
    prose; `up/down` a choice by sign, by truth, or (with a third word, `up/down/open`, of a
    contrast) by its t interval's lying above, below or across zero.
    """
    if value is None:
        return MISSING
    special: dict[str, Callable[[Any], str]] = {
        "p": lambda v: "< .001" if v < 0.001 else f"{v:.3f}".removeprefix("0"),
        "p=": lambda v: "< .001" if v < 0.001 else f"= {v:.3f}".replace("0.", ".", 1),
        "sci": _power_of_ten,
        "label": lambda v: MEASURES[v].label,
        "code": lambda v: f"`{v}`",
        "words": _in_words,
        "list": lambda v: _listed([_escaped(plain(item)) for item in v]),
        "list sci": lambda v: _listed([_power_of_ten(item) for item in v]),
        "list code": lambda v: _listed([f"`{item}`" for item in v]),
    }
    try:
        if form in special:
            return special[form](value)
        if form.startswith("±"):
            parts = [value[key] for key in ("mean", "sd") if value[key] is not None]
            return " ± ".join(_signed(part, form[1:]) for part in parts) or MISSING
        if form.startswith("["):
            low, high = (_signed(value[key], form[1:-1]) for key in ("t_low", "t_high"))
            return f"[{low}, {high}]"
        if "/" in form:
            return _choice(value, form.split("/"))
        if form:
            return _signed(value, form)
    except (KeyError, TypeError, ValueError) as error:
        raise MacroError(f"{value!r} cannot be written as {form!r}: {error!r}") from None
    if isinstance(value, float | list | dict):
        raise MacroError(f"{str(value)[:60]} needs a format")
    return _escaped(plain(value))


def _signed(value: Any, form: str) -> str:
    return MISSING if value is None else format(value, form).replace("-", "−")


def _power_of_ten(value: float) -> str:
    mantissa, _, exponent = f"{value:.12e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    times = "" if mantissa == "1" else rf"{mantissa} \times "
    return f"${times}10^{{{int(exponent)}}}$"


def _in_words(value: Any) -> str:
    number = len(value) if isinstance(value, list | dict) else value
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def _listed(items: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _choice(value: Any, words: list[str]) -> str:
    if isinstance(value, dict):
        up, down, across = words
        return up if value["t_low"] > 0 else down if value["t_high"] < 0 else across
    up, down = words
    return up if value > 0 else down


def _escaped(text: str) -> str:
    """Keep Markdown from reading marks of its own into a text."""
    return re.sub(r"([\\`*_\[\]|$@<>~^#])", r"\\\1", text)
