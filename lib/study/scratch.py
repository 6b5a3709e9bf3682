"""Scratch runs: an arm with some of its fields changed, to play with. No record takes them, and no
study sees them."""

import os
from dataclasses import replace
from typing import Any

from lib.study.config import LONGEST_ID, Arm, Study, arm_id, with_fields
from lib.study.errors import ConfigError, unknown
from lib.study.fields import FIELDS, digest
from lib.study.paths import HEADLESS

SCRATCH = ".scratch"
"""The study that they are of, a name that no parameter file may have: `runs/.scratch/`."""


def scratch(study: Study, arm: Arm, changes: dict[str, Any]) -> tuple[Study, Arm]:
    """Return the study and the arm to train: with changes (dotted field → value) a scratch run,
    whose baseline is the arm as it was, under no plan; without, and in a notebook that a sweep
    executes, the study's own.

    Raises ConfigError for a field that does not exist, or a value that is not allowed.
    """
    if not changes or os.environ.get(HEADLESS):
        return study, arm
    if not isinstance(changes, dict):
        raise ConfigError('changes: write fields with values: {"training.learning_rate": 0.01}')
    for name in changes:
        if name not in FIELDS:
            raise ConfigError(f"changes: {unknown(str(name), FIELDS)}")
    config = with_fields(arm.config.model_dump(), changes, "changes")
    name = f"{study.name},{arm.id},{arm_id(changes)}".replace("/", "-")
    if len(name) > LONGEST_ID:
        name = f"{name[: LONGEST_ID - 13]}-{digest(changes)[:12]}"
    own = study.model_copy(update={"name": SCRATCH, "plan": None})
    return own, replace(arm, id=name, config=config, baseline=arm.id)
