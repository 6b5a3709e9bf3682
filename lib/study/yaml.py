"""Errors that say how to mend them, how a command says them, and YAML read without surprises."""

import copy
import errno
import functools
import math
import os
import re
import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, ParamSpec, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that `lib.workflow.execution` sets: nobody watches, so no bars."""

MAX_ERRORS = 5
MAX_LINES = 30
"""Faults of a file that are named, where they stand in one line, and where each has its own."""
TIME_UP = 3
"""The status of a sweep that ended with the time it was given."""
_LEVELS = ("str", "bool", "int", "float")
_Arguments = ParamSpec("_Arguments")


class UserError(ValueError):
    """What its user can mend; the message says what is wrong and the remedy."""

    status: ClassVar[int] = 1
    """With which a command ends."""


class ConfigError(UserError):
    """Parameters that cannot be run; the message names the field and the remedy."""


class UsageError(UserError):
    """A command line that cannot be followed; the message names the word and the remedy."""

    status = 2  # as that of argparse


def exit_status(command: Callable[_Arguments, int | None]) -> Callable[_Arguments, int]:
    """Have a command return its exit status, and say in one line on stderr what stopped it: a
    UserError, or what the machine refused. Anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def run(*words: _Arguments.args, **options: _Arguments.kwargs) -> int:
        try:
            return command(*words, **options) or 0
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.status
        except OSError as error:
            print(f"error: {explain_os(error)}", file=sys.stderr)
            return 1

    return run


def one_line_errors() -> None:
    """Have cells of a notebook say in one line what stopped them; after it `%tb Context` shows
    where. What a sweep executes keeps its tracebacks."""
    from IPython import get_ipython

    if (shell := get_ipython()) and not os.environ.get(HEADLESS):
        shell.InteractiveTB.set_mode("Minimal")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ConfigError, in one line, when the file is not one, is not valid
    YAML, or holds a field twice; OSError when it cannot be read."""
    return parse_yaml(path.read_bytes(), path.name)


def parse_yaml(text: bytes, name: str) -> dict[str, Any]:
    """Read the YAML mapping of a text that messages call by `name`; ConfigError as `read_yaml`."""
    try:
        content = copy.deepcopy(_load(text.decode("utf-8")))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = _PROBLEMS.get(str(error.problem), error.problem)
        raise ConfigError(f"{name}{line} is not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply; a field takes two levels") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # no text, or no UTF-8
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} is not valid YAML: {reason}; write UTF-8 text") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must hold fields, one a line (name: value)")
    return content


_PROBLEMS = {
    "but found another document": "a second document begins here; delete the line ---, or its text",
    "found character '\\t' that cannot start any token": "a tab stands here; indent by spaces",
}
"""What PyYAML says that does not name its remedy, and what is said instead."""
_DECIMAL = re.compile(r"[-+]?((0|[1-9]\d*|\d*\.\d*)(e[-+]?\d+)?|\.inf|\.nan)", re.IGNORECASE)


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key is text and stands once; YAML would keep the last. What
    cannot be read as its tag says is named with its line, and a number is written in decimals:
    YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_0 as 10, and other readers otherwise."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        problem = f"{short(node.value)} is no decimal number; write one, or a text in quotes"
        if kind not in ("int", "float") or _DECIMAL.fullmatch(str(node.value)):
            try:
                return super().construct_object(node, deep)
            except (AttributeError, LookupError, ValueError):  # what PyYAML or Python lets through
                problem = f"{short(node.value)} cannot be read as {kind}; correct it, or quote it"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen, text = set(), ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # <<: *shared
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in text:
                problem = "a field's name must be text (put it in quotes)"
            elif not key_node.value.isprintable():
                problem = f"{short(key_node.value)} is no field's name; write it in one line"
            elif key_node.value in seen:
                problem = f"field '{key_node.value}' stands twice"
            else:
                seen.add(key_node.value)
                continue
            raise yaml.composer.ComposerError(None, None, problem, key_node.start_mark)
        return node


@functools.lru_cache(maxsize=256)
def _load(text: str) -> Any:
    """Read YAML once: it takes milliseconds, and plans and studies are asked for often."""
    return yaml.load(text, Loader=_StrictLoader)


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


def explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """Rewrite pydantic's errors as one line that names field, value, what is allowed and the
    remedy; of many errors the first few."""
    return "; ".join(explain_each(error, schema, MAX_ERRORS))


def explain_each(error: ValidationError, schema: type[BaseModel], most: int) -> list[str]:
    """Rewrite each of pydantic's errors so, of many the first few."""
    items = [dict(item) for item in error.errors() if not _is_of_another_kind(dict(item))]
    lines = list(dict.fromkeys(_explained(item, schema) for item in items))
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return lines[:most] + more


def _is_of_another_kind(item: dict[str, Any]) -> bool:
    """Tell whether an error only says of a mapping that it is no text or list, or of what is none
    that it is no section, where a field may be either: pydantic tries each kind in turn."""
    kind, fault = str(item["loc"][-1]).partition("[")[0] if item["loc"] else "", item["type"]
    if isinstance(item["input"], dict):
        return (kind, fault) in {("str", "string_type"), ("list", "list_type")}
    return bool(fault == "model_type" and kind == item["ctx"]["class_name"])


def _explained(item: dict[str, Any], schema: type[BaseModel]) -> str:
    location = [part for part in item["loc"] or ("",) if not _KIND.match(str(part))]
    message, kind = item["msg"].removeprefix("Value error, "), item["type"]
    if location[-1] in _LEVELS and kind.endswith("_type"):
        location.pop()  # pydantic says this once per kind of level
        kind, message = "level", "A level is text, a number, true, false or null"
    *parents, last = location
    owner: Any = schema
    for parent in parents:
        if parent == getattr(owner, "__name__", ""):  # the kind of section, where it has a choice
            location.remove(parent)
            continue
        field = getattr(owner, "model_fields", {}).get(parent)
        owner = field.annotation if field else _section_in(owner)
        if get_origin(owner) in (Union, UnionType):  # of a section and None, or a list
            owner = _section_in(owner)
    fields = getattr(owner, "model_fields", {})
    name, value = ".".join(f"{part:.100}" for part in map(str, location)), item["input"]
    if kind == "extra_forbidden" and fields:
        return f"{name}: {suggest(last, fields)}"
    if kind == "value_error":
        return f"{name}: {message}" if name else message
    if kind == "missing":
        return f"{name}: is missing; add it"
    if isinstance(value, float) and math.isnan(value):
        message = "Input should be a finite number"
    message = message.partition(" or instance of ")[0]
    return (
        f"{name}: {short(value)} is not allowed. {message}{_remedy(kind, value, fields.get(last))}"
    )


def _section_in(annotation: Any) -> Any:
    """Find the section that a mapping, a list or a choice of kinds holds; None without one."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


_KIND = re.compile(r"(dict|list)\[")
"""What pydantic adds to a location where a field may be of several kinds."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def short(value: object, length: int = 80) -> str:
    """Write a value so that a long one does not bury the message, nor break its line."""
    text = _REPR.repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


_OFF = (0, False, "none", "None", "off", "no")


def _remedy(kind: str, value: Any, field: FieldInfo | None) -> str:
    allowed = get_args(field.annotation) if field else ()
    # A field with a validator of its own has a word for what is off.
    null = field and type(None) in allowed and field.default is None and not field.metadata
    if value in _OFF and null:
        return "; for none, write null"
    if kind == "literal_error" and isinstance(value, bool):
        return f" (YAML reads a bare no/off/yes/on as {value}; write the value in quotes)"
    if kind == "literal_error":
        options = [option for option in allowed if isinstance(option, str)]
        nearest = get_close_matches(str(value), options, n=1)
        return f"; did you mean '{nearest[0]}'?" if nearest else ""
    if kind in ("float_type", "int_type") and isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
            if not math.isfinite(number):
                return "; write a finite one"
            written = f"{number:.0f}" if kind == "int_type" else yaml_number(number)
            return f" (YAML reads '{value}' as text; write {written})"
    return ""


def explain_os(error: OSError) -> str:
    """Say in one line what the machine refused, where, and what to do about it."""
    where = f" ({error.filename})" if error.filename else ""
    remedy = _OS_REMEDIES.get(error.errno or 0, "")
    return f"{error.strerror or error}{where}{remedy}"


_OS_REMEDIES = {
    errno.ENOSPC: "; free some space and rerun, which continues",
    errno.EDQUOT: "; free some space and rerun, which continues",
    errno.EROFS: "; the repository must be writable, copy it elsewhere",
    errno.EACCES: "; change its permissions, or use another place",
    errno.EPERM: "; change its permissions, or use another place",
}


def yaml_number(number: float) -> str:
    """Write a float so that YAML 1.1 reads it back as one: 1e-08 would be text, 1.0e-08 is not."""
    text = repr(number)
    return text if "." in text else text.replace("e", ".0e")
