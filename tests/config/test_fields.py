"""Every field of a parameter file is listed with its default, what is allowed, and one line."""

import re

from lib.config.fields import field_lines
from lib.config.schema import FIELDS
from lib.config.study import Study


def test_every_field_is_listed_with_default_values_and_a_line():
    text = "\n".join(field_lines())
    assert max(map(len, text.splitlines())) <= 80
    listed = re.findall(r"^([\w.]+): .*\n(?:    .*\n?)+", text, re.MULTILINE)
    own = {"name", "factors", "seeds", "include", "exclude", "plan", "paper"}
    assert own < {*Study.model_fields}
    assert {*listed} == {*FIELDS, *own}
    assert "\ntraining.optimizer: adamw   (adamw, muon)\n    Optimizer of the weight " in text
    assert "\ntraining.gradient_clip: null   (number ≥ 1e-06, ≤ 10,000 or null)\n" in text
    assert "\nmodel.dropout: 0.0   (number ≥ 0, < 1)\n" in text
    assert "\nmachine.processes: 1   (whole number > 0, ≤ 65,536 or auto)\n" in text
