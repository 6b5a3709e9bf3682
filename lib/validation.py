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
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field '{key}' stands twice", node.start_mark
                )
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
            lines.append(
                f"{name}: {value!r} is not allowed. {message}{_remedy(value, owner, last)}"
            )
    return "; ".join(dict.fromkeys(lines))


def _remedy(value: Any, owner: Any, field: Any) -> str:
    if isinstance(value, bool):
        return f" (YAML reads a bare no/off/yes/on as {value}; write the value in quotes)"
    if isinstance(value, str):
        try:
            return f" (YAML reads '{value}' as text; write {float(value):.1e})"
        except ValueError:
            annotation = getattr(owner, "model_fields", {}).get(field)
            options = (
                [o for o in get_args(annotation.annotation) if isinstance(o, str)]
                if annotation
                else []
            )
            nearest = get_close_matches(value, options, n=1)
            return f"; did you mean '{nearest[0]}'?" if nearest else ""
    return ""
