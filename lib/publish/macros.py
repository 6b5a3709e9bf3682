"""Values in prose: `{{path:format}}` stands for a number or word of the results, parameters, plan.

A path begins with one of these and walks on by fields, list indices and look-ups of rows:

    final.summary.none.perplexity          results/final.json
    final.verdict.contrasts[arm=layernorm,measure=perplexity].mean_delta
                                           results/final.verdict.json; exactly one row must match
    params.final.training.iterations       params/final.yaml, with defaults
    plan.minimum_detectable_effect         params/preregistration.yaml
    lib.run.calibration.N_BINS                 a constant of the code
    preliminary.seeds                      preliminary.yaml beside the paper

A field with other characters than letters, digits, `_` and `-` stands in single quotes. A final `?`
says that the field may be missing (a measure of a diverged run, say): it is then n/a. `(path)`
inside a macro is replaced by its own value. `count path` is the number of rows that match a
look-up, whose last condition may match none. Formats are those of `lib.publish.wording.written`.
"""

import importlib
import json
import re
from pathlib import Path
from typing import Any

from lib.publish.wording import plain, written
from lib.study.config import Study, load_study
from lib.study.errors import read_yaml, unknown
from lib.study.paths import PARAMS
from lib.study.plan import load_plan

MACRO = re.compile(r"\{\{(.*?)\}\}")
_FIELD = r"\.?(?:'(?P<quoted>[^']*)'|(?P<name>[\w-]+))(?P<optional>\?)?"
_STEP = re.compile(_FIELD + r"|\[(?P<look_up>[^]]*)\]")
_CONDITION = re.compile(r"([\w-]+)=('[^']*'|[^,]*)(?:,|$)")


class MacroError(ValueError):
    """A macro that has no value; the message names the key and what there is instead."""


class Sources:
    """Everything that a paper may quote."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper
        self._read: dict[str, Any] = {}

    def has(self, study: str) -> bool:
        """Tell whether a study has results."""
        return self._results(study).is_file()

    def macro(self, text: str, **names: Any) -> str:
        """Write what stands between `{{` and `}}`. `names` are further beginnings of paths, such as
        `row`. Raises MacroError."""
        path, _, form = self._filled(text, names).partition(":")
        try:
            if path.startswith("count "):
                path, _, conditions = path.removeprefix("count ").rpartition("[")
                rows = _matching(self.value(path), conditions.rstrip("] "), allow_none=True)
                return written(len(rows), form)
            return written(self.value(path, **names), form)
        except ValueError as error:
            raise MacroError(f"{{{{{text}}}}}: {error}") from None

    def value(self, path: str, **names: Any) -> Any:
        """Walk a path to its value; MacroError naming the key that is unknown or ambiguous."""
        path = self._filled(path, names).strip()
        steps = list(_STEP.finditer(path))
        if not steps or "".join(step[0] for step in steps) != path or not steps[0]["name"]:
            raise MacroError(f"{path!r} is no path")
        start = steps[0]["name"]
        value = names[start] if start in names else self._beginning(start)
        for step in steps[1:]:
            value = _walk(value, step)
        return value

    def rows(self, path: str) -> list[Any]:
        """Walk a path to a list. Of a mapping, its keys; after a look-up, every row that matches;
        several words are a list of themselves."""
        if " " in path.strip():
            return path.split()
        looked_up = re.fullmatch(r"(.*)\[([^]]*=[^]]*)\]", path.strip())
        if looked_up:
            return _matching(self.value(looked_up[1]), looked_up[2])
        found = self.value(path)
        if not isinstance(found, list | dict):
            raise MacroError(f"{path} is {found!r}; rows must be a list or a mapping")
        return list(found)

    def _filled(self, text: str, names: dict[str, Any]) -> str:
        return re.sub(r"\(([^()]*)\)", lambda m: plain(self.value(m[1], **names)), text)

    def _results(self, study: str) -> Path:
        return self.paper / "results" / f"{study}.json"

    def _beginning(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> Any:
        if name == "lib":
            return _Code()
        if name == "plan":
            plan = load_plan(Study(name="any", seeds=[0], plan="preregistration.yaml"))
            assert plan is not None
            return plan.model_dump() | {"hash": plan.hash, "confidence": 1 - plan.alpha}
        if name == "params":
            studies = [p.stem for p in PARAMS.glob("*.yaml") if p.stem != "preregistration"]
            return {study: load_study(study).model_dump() for study in sorted(studies)}
        if (self.paper / f"{name}.yaml").is_file():
            return read_yaml(self.paper / f"{name}.yaml")
        if self.has(name):
            verdict = self.paper / "results" / f"{name}.verdict.json"
            if not verdict.is_file():
                raise MacroError(f"there is no results/{verdict.name}")
            content: dict[str, Any] = json.loads(self._results(name).read_text("utf-8"))
            return content | {"verdict": json.loads(verdict.read_text("utf-8"))}
        there = [p.stem for p in self._results("*").parent.glob("*.json") if "." not in p.stem]
        hint = unknown(name, sorted([*there, "plan", "params", "lib"]))
        raise MacroError(f"{hint} (what a study without results says belongs in a .needs block)")


class _Code:
    """The modules of `lib`, by name."""


def _walk(value: Any, step: re.Match[str]) -> Any:
    if step["look_up"] is not None:
        return _item(value, step["look_up"])
    key = step["name"] if step["quoted"] is None else step["quoted"]
    if isinstance(value, _Code):
        return importlib.import_module(f"lib.{key}")
    if value is None and step["optional"]:
        return None
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if key not in fields and not step["optional"]:
        raise MacroError(unknown(key, [str(k) for k in fields if not str(k).startswith("_")]))
    return fields.get(key)


def _item(rows: Any, look_up: str) -> Any:
    if look_up.isdigit():
        if not isinstance(rows, list) or int(look_up) >= len(rows):
            raise MacroError(f"there is no item [{look_up}]")
        return rows[int(look_up)]
    found = _matching(rows, look_up)
    if len(found) > 1:
        raise MacroError(f"{len(found)} rows match [{look_up}]; add a field")
    return found[0]


def _matching(rows: Any, conditions: str, allow_none: bool = False) -> list[dict[str, Any]]:
    """The rows whose fields have the given values: `arm=none,measure=ece|brier`. `allow_none`: the
    last condition may match no row."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MacroError(f"[{conditions}] looks up rows, and there are none")
    pairs = _CONDITION.findall(conditions)
    if not pairs:
        raise MacroError(f"[{conditions}] is no look-up; write [field=value]")
    kept: list[dict[str, Any]] = rows
    for i, (key, wanted) in enumerate(pairs):
        present = [row for row in kept if key in row]
        if not present:
            there = [str(k) for k in kept[0]] if kept else []
            raise MacroError(f"[{conditions}]: {unknown(key, there)}")
        kept = [row for row in present if plain(row[key]) in wanted.strip("'").split("|")]
        if not kept and not (allow_none and i + 1 == len(pairs)):
            there = list(dict.fromkeys(plain(row[key]) for row in present))
            raise MacroError(f"[{conditions}]: {key} {unknown(wanted, there)}")
    return kept
