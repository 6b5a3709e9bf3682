"""Reading parameters strictly: YAML without surprises, and errors that say how to mend them."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError


class ConfigError(ValueError):
    """Parameters that cannot be run; the message names the field and the remedy."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; ConfigError when it is not one, or when a field stands twice."""
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name} must hold fields, one a line (name: value)")
    return content


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a repeated key is an error; YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # <<: *shared
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def unknown(name: str, known: list[str]) -> str:
    """Say that `name` is unknown, with the nearest of the known names or all of them."""
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(known)}"
    return f"'{name}' is unknown; {hint}"


def explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """Rewrite pydantic's errors as lines that name field, value, what is allowed and the remedy."""
    lines = []
    for item in error.errors():
        *parents, last = item["loc"] or ("",)
        owner: Any = schema
        for parent in parents:
            field = owner.model_fields.get(parent) if hasattr(owner, "model_fields") else None
            owner = field.annotation if field else None
        name = ".".join(str(part) for part in item["loc"])
        message, value = item["msg"].removeprefix("Value error, "), item["input"]
        if item["type"] == "extra_forbidden" and hasattr(owner, "model_fields"):
            lines.append(f"{name}: {unknown(str(last), list(owner.model_fields))}")
        elif item["type"] == "value_error":
            lines.append(f"{name}: {message}" if name else message)
        elif item["type"] == "missing":
            lines.append(f"{name}: is missing; add it")
        else:
            options = _options(owner, last)
            remedy = _remedy(item["type"], value, options)
            lines.append(f"{name}: {value!r} is not allowed. {message}{remedy}")
    return "; ".join(dict.fromkeys(lines))


def _options(owner: Any, field: Any) -> list[str]:
    """List the words that a field allows; none for a field of another kind."""
    found = getattr(owner, "model_fields", {}).get(field)
    return [o for o in get_args(found.annotation) if isinstance(o, str)] if found else []


def _remedy(kind: str, value: Any, options: list[str]) -> str:
    if kind == "literal_error" and isinstance(value, bool):
        return f" (YAML reads a bare no/off/yes/on as {value}; write the value in quotes)"
    if kind == "literal_error" and (nearest := get_close_matches(str(value), options, n=1)):
        return f"; did you mean '{nearest[0]}'?"
    if kind in ("float_type", "int_type") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        written = f"{number:.0f}" if kind == "int_type" else yaml_number(number)
        return f" (YAML reads '{value}' as text; write {written})"
    return ""


def yaml_number(number: float) -> str:
    """Write a float so that YAML 1.1 reads it back as one: 1e-08 would be text, 1.0e-08 is not."""
    text = repr(number)
    return text if "." in text else text.replace("e", ".0e")
