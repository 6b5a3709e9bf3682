"""Write and read the checkpoints of a run; load the model of a finished run.

A checkpoint is one file, `step-0000000100-<hash>.pt`. Its name has the SHA-256 of its content, so
damage is noticed. The last two checkpoints are kept. If the last one is damaged, a line says so,
and training resumes from the one before. Neither writing nor reading needs a copy of the file in
memory.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from lib.config.errors import UserError
from lib.config.files import atomic_write, read_json, sha256
from lib.config.paths import relative, run_folder
from lib.config.provenance import train_key
from lib.config.schema import RunConfig
from lib.config.study import load_study
from lib.data.text import Corpus, load_corpus
from lib.results import Provenance, RunResult
from lib.train.model import GPT, weights_digest


def checkpoint_folder(folder: Path, provenance: Provenance) -> Path:
    """Return the folder of a run's checkpoints. If the code or the parameters differ, the
    folder differs. So no run resumes from weights that were trained in another way."""
    return folder / "checkpoints" / provenance.identity[:16]


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, and delete all but the last two. `state` comes from `Trainer.save`: it
    has everything that a run needs to go on as if it had never stopped."""
    for leftover in folder.glob(".*"):  # half-written files of killed processes
        leftover.unlink(missing_ok=True)
    unnamed = folder / "unnamed.pt"
    with atomic_write(unnamed) as temporary, temporary.open("wb") as file:
        torch.save(state, file)
    unnamed.rename(folder / f"step-{state['step']:010d}-{sha256(unnamed)[:16]}.pt")
    for former in sorted(folder.glob("step-*.pt"))[:-2]:
        former.unlink()


def load(folder: Path) -> Any:
    """Read the last undamaged checkpoint; None if there is none. Print a line about each damaged
    one, and rename it."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        if path.stem.endswith(sha256(path)[:16]):
            # Memory-map the file, so that all processes of a run share its pages.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        aside = path.rename(path.with_suffix(".damaged"))
        line = f"Checkpoint {path.name} is damaged. It is not used, and is kept as {aside.name}."
        print(line, file=sys.stderr)  # a notebook's record does not keep stderr
    return None


def read_finished(study: str, arm: str, seed: int) -> tuple[RunResult, Corpus, GPT]:
    """Load a finished run from `runs/`: its result, its corpus, and its model with the weights that
    were evaluated.

    Raises ConfigError for a study, arm or seed that does not exist, UserError for a run without a
    result or weights, and CorpusError if its corpus is missing.
    """
    design = load_study(study)
    folder = run_folder(design.name, design.arm(arm).id, design.require_seed(seed))
    name = f"{design.name}/{arm}/{seed}"
    command = f"./run_all.sh params/{design.name}.yaml"
    try:
        result = RunResult.model_validate(read_json(folder / "result.json"))
        provenance = Provenance.model_validate(result.provenance["trained"])
    except (OSError, ValueError, KeyError):
        raise UserError(f"{name} has no result; {command} makes it") from None
    if provenance.training_digest != train_key() and provenance.code:
        raise UserError(
            f"{name} was trained by the code of commit {provenance.code[:12]}; check that commit "
            "out, and repeat the command there"
        )
    config = RunConfig.model_validate(result.config)
    corpus = load_corpus(config.corpus)
    model = GPT(config.model, corpus.vocab_size, None)
    state = load(checkpoint_folder(folder, provenance))
    if state:
        model.load_state_dict(state["model"], assign=True)
    if not state or weights_digest(model, all_weights=True) != result.final_weights:
        raise UserError(
            f"{name} has no checkpoint with the weights of its result; delete {relative(folder)}, "
            f"and {command} trains it again"
        )
    return result, corpus, model
