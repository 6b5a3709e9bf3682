"""Checkpoints of one run: hashed, written through to the disk, the last two kept.

A damaged one is named, set aside and passed over, so that training goes on from the one before it.
So is one whose provenance says that it belongs to other weights than those asked for.
"""

import hashlib
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load as weights_from
from safetensors.torch import save as weights_to_bytes
from torch import Tensor

from lib.results import Provenance
from lib.study.io import atomic_write

MANIFEST = "manifest.json"
"""SHA-256 of every other file of a checkpoint; written last."""
_FILES = ("weights.safetensors", "state.pt", "provenance.json")
_N_KEPT = 2

Weights = dict[str, Tensor]
State = dict[str, Any]
"""All else that a run needs to go on as if it had never stopped. Among it: step, diverged_at (None
while training may go on), trace (columns, with a row for each of the steps 1 … step) and curve (one
for each evaluation up to `step`)."""


class DamagedError(ValueError):
    """A checkpoint that is not as it was written; the message says what is wrong."""


def save(provenance: Provenance, weights: Weights, state: State, folder: Path) -> None:
    """Write a checkpoint to `folder`; it gets its final name when it is complete and on the disk,
    and then all but the last two go."""
    packed = io.BytesIO()
    torch.save(state, packed)
    account = provenance.model_dump_json(indent=1).encode()
    contents = weights_to_bytes(weights), packed.getvalue(), account
    for leftover in folder.glob(".*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with atomic_write(folder / f"step-{state['step']:08d}") as temporary:
        temporary.mkdir()
        hashes = {}
        for name, content in zip(_FILES, contents, strict=True):
            (temporary / name).write_bytes(content)
            hashes[name] = hashlib.sha256(content).hexdigest()
        (temporary / MANIFEST).write_text(json.dumps(hashes, indent=1), "utf-8")
    for former in _checkpoints(folder)[:-_N_KEPT]:
        shutil.rmtree(former)


def load(
    folder: Path, expected: Provenance, model: Weights
) -> tuple[Provenance, Weights, State] | None:
    """Read the last sound checkpoint in `folder` that belongs to the weights asked for, those of
    this model (its state dict); None when there is none. Those passed over are set aside, each
    named on one line."""
    if folder.exists() and not folder.is_dir():
        _set_aside(folder, "damaged", "it is no folder")
    for path in reversed(_checkpoints(folder)):
        try:
            provenance, weights, state = _read(path)
            _check(provenance, state, path.name)
            if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in model.items()}:
                raise DamagedError("its weights are not of this model's shapes")
        except DamagedError as error:
            _set_aside(path, "damaged", str(error))
        except Exception as error:  # whatever a reader raises over a file that is no such file
            _set_aside(path, "damaged", f"unreadable: {type(error).__name__}")
        else:
            if provenance.identity == expected.identity:
                return provenance, weights, state
            owner = f"{provenance.study}, {provenance.arm}, seed {provenance.seed}"
            _set_aside(path, "foreign", f"it belongs to {owner}")
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, first to last. Whatever else lies there is left alone."""
    paths = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(paths, key=lambda path: int(path.name[5:]))


def _read(path: Path) -> tuple[Provenance, Weights, State]:
    hashes, contents = json.loads(_content(path / MANIFEST)), []
    for name in _FILES:
        contents.append(_content(path / name))
        if hashlib.sha256(contents[-1]).hexdigest() != hashes.get(name):
            raise DamagedError(f"{name} is not as it was written")
    weights, state, provenance = contents
    return (
        Provenance.model_validate_json(provenance),
        weights_from(weights),
        torch.load(io.BytesIO(state), map_location="cpu", weights_only=True),
    )


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise DamagedError(f"{path.name} is missing")
    return path.read_bytes()


def _check(provenance: Provenance, state: State, name: str) -> None:
    """Raise DamagedError unless name, state, trace and curve speak of the same step."""
    step, parameters = state["step"], provenance.parameters
    if name != f"step-{step:08d}":
        raise DamagedError(f"its state is that of step {step}")
    if state["trace"]["step"] != list(range(1, step + 1)):
        raise DamagedError(f"its trace does not hold the steps 1 to {step}, each once")
    evaluated = {*range(0, step + 1, parameters["evaluation"]["interval"])}
    if step == parameters["training"]["iterations"] or state["diverged_at"]:
        evaluated.add(step)
    if state["curve"]["step"] != sorted(evaluated):
        raise DamagedError(f"its curve does not hold every evaluation up to step {step}, each once")


def _set_aside(path: Path, tag: Literal["damaged", "foreign"], reason: str) -> None:
    target, number = path.with_name(f"{path.name}-{tag}"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}-{tag}-{number}")
    path.rename(target)
    line = f"Checkpoint {path.name} is {tag} ({reason}). It is not used, and kept as {target.name}."
    print(line, file=sys.stderr)  # in no record: it differs wherever a run is repeated
