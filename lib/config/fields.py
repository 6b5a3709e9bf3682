"""Every field of a parameter file, for the terminal: default, allowed values, and one line."""

import json
import re
import textwrap
from collections.abc import Iterator

from lib.config.schema import RunConfig
from lib.config.study import Study
from lib.config.yaml import Json

WIDTH = 80
FOUND = ("commits", "drawn")
"""Fields of a study that are never in a file."""
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_TYPES = {"integer": "whole number", "string": "text", "array": "list", "object": "fields"}


def field_lines() -> Iterator[str]:
    """Yield the lines of a table: a study's own fields, then those of each section, dotted as in
    `factors` and on the command line."""
    of_study = Study.model_json_schema()["properties"]
    fields = {k: v for k, v in of_study.items() if k not in {*RunConfig.model_fields, *FOUND}}
    for section, of in RunConfig():
        properties = type(of).model_json_schema()["properties"]
        fields |= {f"{section}.{name}": field for name, field in properties.items()}
    for name, field in fields.items():
        none = "auto" if name.startswith("machine.") else "null"
        default = field.get("default", "needed")
        text = default if isinstance(default, str) else json.dumps(default)
        head = f"{name}: {text}   ({_allowed(field)})".replace("null", none)
        yield textwrap.fill(head, WIDTH, subsequent_indent="    ")
        says = re.split(r"(?<=\.) (?=[A-Z`])", " ".join(field["description"].split()))[0]
        yield textwrap.fill(says, WIDTH, initial_indent="    ", subsequent_indent="    ")


def _allowed(field: Json) -> str:
    """Write the values that a field may have."""
    if "anyOf" in field:
        return " or ".join(_allowed(part) for part in field["anyOf"])
    if "enum" in field:
        return ", ".join(v if isinstance(v, str) else json.dumps(v) for v in field["enum"])
    if field.get("type") == "boolean":
        return "true, false"
    kind: str = field["type"]
    bounds = [f"{sign} {field[key]:,.12g}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([_TYPES.get(kind, kind), ", ".join(bounds)]).strip()
