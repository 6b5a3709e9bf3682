"""Errors that say how to mend them, how a command says them, and YAML read without surprises."""

import copy
import errno
import functools
import math
import os
import re
import reprlib
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, ParamSpec, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lib.study.paths import HEADLESS

MAX_ERRORS = 5
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
        raise ConfigError(f"{name}{line} is not valid YAML: {error.problem}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply; a field takes two levels") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # no text, or no UTF-8
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} is not valid YAML: {reason}; write UTF-8 text") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must hold fields, one a line (name: value)")
    return content


_DECIMAL = re.compile(r"[-+]?((0|[1-9]\d*|\d*\.\d*)(e[-+]?\d+)?|\.inf|\.nan)", re.IGNORECASE)


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key is text and stands once; YAML would keep the last. What
    cannot be read as its tag says is named with its line, and a number is written in decimals:
    YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_0 as 10, and other readers otherwise."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        problem = f"{_short(node.value)} is no decimal number; write one, or a text in quotes"
        if kind not in ("int", "float") or _DECIMAL.fullmatch(str(node.value)):
            try:
                return super().construct_object(node, deep)
            except (AttributeError, LookupError, ValueError):  # what PyYAML or Python lets through
                problem = f"{_short(node.value)} cannot be read as {kind}; correct it, or quote it"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen, text = set(), ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # <<: *shared
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in text:
                problem = "a field's name must be text (put it in quotes)"
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


def suggest(name: str, known: list[str]) -> str:
    """Say that `name` is unknown, with the nearest of the known names or all of them."""
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(known)}"
    return f"'{name}' is unknown; {hint}"


def explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """Rewrite pydantic's errors as one line that names field, value, what is allowed and the
    remedy; of many errors the first few."""
    lines = explain_each(error, schema)
    more = [f"and {len(lines) - MAX_ERRORS} more"] if len(lines) > MAX_ERRORS else []
    return "; ".join(lines[:MAX_ERRORS] + more)


def explain_each(error: ValidationError, schema: type[BaseModel]) -> list[str]:
    """Rewrite each of pydantic's errors so."""
    items: list[dict[str, Any]] = [dict(item) for item in error.errors()]
    # Of text or a mapping, pydantic says of a mapping that it is no text, too.
    items = [i for i in items if i["loc"][-1:] != ("str",) or not isinstance(i["input"], dict)]
    return list(dict.fromkeys(_explained(item, schema) for item in items))


def _explained(item: dict[str, Any], schema: type[BaseModel]) -> str:
    location = [part for part in item["loc"] or ("",) if not str(part).startswith("dict[")]
    message, kind = item["msg"].removeprefix("Value error, "), item["type"]
    if location[-1] in _LEVELS:  # pydantic says this once per kind of level
        location.pop()
        kind, message = "level", "A level is text, a number, true, false or null"
    *parents, last = location
    owner: Any = schema
    for parent in parents:
        field = getattr(owner, "model_fields", {}).get(parent)
        members = (m for m in get_args(owner) if hasattr(m, "model_fields"))  # of a list
        owner = field.annotation if field else next(members, None)
        if isinstance(owner, UnionType):  # of a section and None
            owner = next((m for m in get_args(owner) if hasattr(m, "model_fields")), owner)
    fields = getattr(owner, "model_fields", {})
    name, value = ".".join(map(str, location)), item["input"]
    if kind == "extra_forbidden" and fields:
        return f"{name}: {suggest(str(last), list(fields))}"
    if kind == "value_error":
        return f"{name}: {message}" if name else message
    if kind == "missing":
        return f"{name}: is missing; add it"
    remedy = _remedy(kind, value, fields.get(last))
    return f"{name}: {_short(value)} is not allowed. {message}{remedy}"


def _short(value: Any) -> str:
    """Write a value so that a long one does not bury the message."""
    text = reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
