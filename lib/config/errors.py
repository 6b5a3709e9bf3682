"""Errors that say in one line how to mend them, and what a command does with them."""

import functools
import os
import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that a sweep sets for its notebooks: nobody watches, so no bars."""
TIME_UP = 3
"""The status of a sweep that ended with the time it was given."""


class UserError(ValueError):
    """What its user can mend; the message says what is wrong and the remedy."""

    status: ClassVar[int] = 1
    """With which a command ends."""


class ConfigError(UserError):
    """Parameters that cannot be run; the message names the field and the remedy."""


class UsageError(UserError):
    """A command line that cannot be followed; the message names the word and the remedy."""

    status = 2  # as that of argparse


def exit_status(command: Callable[..., int | None]) -> Callable[..., int]:
    """Have a command return its exit status, and say in one line on stderr what stopped it: a
    UserError, or what the machine refused. Anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def run(*words: Any) -> int:
        try:
            return command(*words) or 0
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.status
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            print(f"error: {error.strerror or error}{where}", file=sys.stderr)
            return 1

    return run


def one_line_errors() -> None:
    """Have cells of a notebook say in one line what stopped them; after it `%tb Context` shows
    where. What a sweep executes keeps its tracebacks."""
    from IPython import get_ipython

    if (shell := get_ipython()) and not os.environ.get(HEADLESS):
        shell.InteractiveTB.set_mode("Minimal")


def suggest(name: object, known: Iterable[str]) -> str:
    """Say that `name` is unknown, with the nearest of the known names, or the first of them. A name
    with a dot is compared within its section; of a section's own name, its fields are named."""
    section, _, last = str(name).rpartition(".")
    known = list(known)
    if any(k.startswith(f"{name}.") for k in known):
        section, last = str(name), ""
    inside = {k.rpartition(".")[2]: k for k in known if section and k.startswith(f"{section}.")}
    names = inside or {k: k for k in known}
    nearest = get_close_matches((last if inside else str(name)).lower(), names, n=1, cutoff=0.5)
    some = textwrap.shorten(", ".join(names.values()), 500, placeholder=" …")
    hint = f"did you mean '{names[nearest[0]]}'?" if nearest else f"there are {some or 'none'}"
    return f"{short(name)} is unknown; {hint}"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def short(value: object, length: int = 80) -> str:
    """Write a value so that a long one does not bury the message, nor break its line."""
    text = _REPR.repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def explain(error: ValidationError, schema: type[BaseModel], most: int = 5) -> list[str]:
    """Rewrite each of pydantic's errors as one line that names field, value, what is allowed and
    the remedy, of many the first few."""
    return list(dict.fromkeys(_explained(dict(item), schema) for item in error.errors()[:most]))


def _explained(item: dict[str, Any], schema: type[BaseModel]) -> str:
    *parents, last = item["loc"] or ("",)
    for parent in parents:
        field = schema.model_fields.get(str(parent))
        schema = (field and _section_in(field.annotation)) or schema
    name = ".".join(f"{part!s:.100}" for part in item["loc"])
    name = name if name.isprintable() else short(name)
    kind = item["type"]
    value = item["input"]
    message = item["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return f"{name}: {suggest(last, schema.model_fields)}"
    if kind == "value_error":
        return f"{name}: {message}" if name else message
    if kind == "missing":
        return f"{name}: is missing; add it"
    allowed = get_args(schema.model_fields[last].annotation) if last in schema.model_fields else ()
    remedy = ""
    if value in _OFF and type(None) in allowed and schema.model_fields[last].default is None:
        remedy = "; for none, write null"
    elif kind == "literal_error":  # only for what is as good as it: 'geglu' is no 'gelu'
        meant = "none" if value in _OFF else str(value)
        near = get_close_matches(meant, map(str, allowed), 1, cutoff=0.9)
        remedy = f"; did you mean '{near[0]}'?" if near else ""
    return f"{name}: {short(value)} is not allowed. {message}{remedy}"


_OFF = (False, "none", "None", "off", "no", "false")  # 0 equals False


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Find the section that a type holds, such as Family in dict[str, Family]; None without one."""
    if get_origin(annotation) is None and hasattr(annotation, "model_fields"):
        return annotation  # type: ignore[no-any-return]
    return next(filter(None, map(_section_in, get_args(annotation))), None)
