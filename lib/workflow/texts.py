"""What stands beside weights that are handed on, written from `templates/weights/`."""

import json
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.study.paths import TEMPLATES


def text_of(template: str, **content: Any) -> str:
    """Fill in one of the templates; UndefinedError for a name that is not there."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "weights"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = json.dumps
    return environment.get_template(template).render(content)
