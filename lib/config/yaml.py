"""Read YAML 1.2 with ruamel.yaml: `1e-3` is a number, `no` and `2026-01-31` are texts, and a
repeated key is an error."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from lib.config.errors import ConfigError

Json = dict[str, Any]
"""Fields by name: an object of JSON, or a mapping of YAML."""


class _Constructor(SafeConstructor):
    """Turns YAML values into Python values, and leaves a date as text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(path: Path) -> Json:
    """Read a YAML mapping. Raises ConfigError, in one line, if the file is not a mapping, is not
    valid YAML, or has a field twice. Raises OSError if it cannot be read."""
    return parse_yaml(path.read_bytes(), path.name)


def parse_yaml(text: bytes, name: str) -> Json:
    """Read a YAML mapping from text. Messages call the text `name`. Raises ConfigError as
    `read_yaml` does."""
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Constructor = _Constructor
        content = yaml.load(text.decode("utf-8"))
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        is_tab = "'\\t'" in str(error.problem)
        reason = "it holds a tab; indent with spaces" if is_tab else error.problem
        raise ConfigError(f"{name}{line} is not valid YAML: {reason}") from None
    except (YAMLError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} is not valid YAML in UTF-8: {reason}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must hold fields, one a line (name: value)")
    return content
