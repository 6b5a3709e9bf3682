"""Errors that say in one line how to fix them, and the exit status of a command after an error."""

import functools
import json
import os
import re
import reprlib
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that a sweep sets for its notebooks: nobody watches, so they show no
progress bars. As a parameter of the notebooks, it would be in every record."""
TIME_UP = 3
"""Exit status of a sweep whose time was up."""


class UserError(ValueError):
    """A mistake that the user can fix; the message says what is wrong and what to do."""

    status: ClassVar[int] = 1
    """The command's exit status."""


class ConfigError(UserError):
    """Parameters that cannot be run; the message names the field and the remedy."""


class UsageError(UserError):
    """A command line that cannot be followed; the message names the word and the remedy."""

    status = 2  # as in argparse


def exit_status(command: Callable[..., int | None]) -> Callable[..., int]:
    """Make a command return its exit status. A UserError, or an OSError of the machine, becomes one
    line on stderr. If nobody reads the output any more, print nothing. Any other error is a bug and
    keeps its traceback."""

    @functools.wraps(command)
    def run(*words: Any) -> int:
        try:
            return command(*words) or 0
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.status
        except BrokenPipeError:  # from `| head`, which has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard the output that Python buffers
            return 128 + signal.SIGPIPE  # the status of a command that this signal ends
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            print(f"error: {error.strerror or error}{where}", file=sys.stderr)
            return 1

    return run


def one_line_errors() -> None:
    """Show errors in a notebook's cells as one line; `%tb Context` shows where they came from.
    Notebooks that a sweep executes keep their tracebacks."""
    from IPython import get_ipython

    if (shell := get_ipython()) and not os.environ.get(HEADLESS):
        shell.InteractiveTB.set_mode("Minimal")


def suggest(name: object, known: Iterable[str]) -> str:
    """Write that `name` is unknown, and the nearest known name; if none is near, the first few. A
    name with a dot is compared within its section. For the name of a section, list its fields."""
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
    """Write a value on one line, shortened if it is long."""
    text = _REPR.repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


_NUMBER = re.compile(r"[-+.\deE]*\d[-+.\deE]*")


def explain(error: ValidationError, schema: type[BaseModel], most: int = 5) -> list[str]:
    """Rewrite the first few of pydantic's errors, a line each: the field, its value, the allowed
    values and the remedy."""
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
    if kind == "list_type":
        is_level = isinstance(value, str | int | float)
        level = value if isinstance(value, str) else json.dumps(value)
        example = level if "," in level else f"{level}, …" if is_level else "a, b"
        example = "0, 1, 2" if last == "seeds" else example
        return f"{name}: {short(value)} is no list; write [{example}]"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"{name}: {short(value)} holds no fields; write them below it, or leave it out"
    allowed = get_args(schema.model_fields[last].annotation) if last in schema.model_fields else ()
    remedy = ""
    if value in _OFF and type(None) in allowed and schema.model_fields[last].default is None:
        remedy = "; for none, write null"
    elif kind == "literal_error":  # only for a near miss: 'geglu' is not 'gelu'
        meant = "none" if value in _OFF else str(value)
        near = get_close_matches(meant, map(str, allowed), 1, cutoff=0.9)
        remedy = f"; did you mean '{near[0]}'?" if near else ""
    elif kind in ("bool_type", "bool_parsing"):
        remedy = "; write true or false"
    elif kind in ("int_type", "float_type") and _NUMBER.fullmatch(str(value)):
        how = "quotes" if isinstance(value, str) else "a decimal point or an exponent"
        remedy = f"; write it without {how}"
    return f"{name}: {short(value)} is not allowed. {message}{remedy}"


_OFF = (False, "none", "None", "off", "no", "false")  # 0 equals False


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section inside a type, such as Family in dict[str, Family], or None."""
    if get_origin(annotation) is None and hasattr(annotation, "model_fields"):
        return annotation  # type: ignore[no-any-return]
    return next(filter(None, map(_section_in, get_args(annotation))), None)
