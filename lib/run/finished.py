"""A finished run, read back: its result, its corpus, and its model with the final weights."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from safetensors.torch import load_file

from lib.data.text import Corpus, load_corpus
from lib.results import Provenance, RunResult
from lib.run import checkpoint as checkpoints
from lib.run.model import GPT, weights_digest
from lib.study.code import train_key
from lib.study.io import relative, run_folder
from lib.study.schema import ModelConfig, RunConfig
from lib.study.study import load_study
from lib.study.yaml import UserError


class UnfinishedError(UserError):
    """A run without a result or without its final weights; the message says what to do."""


@dataclass(frozen=True)
class FinishedRun:
    """A run with its final weights."""

    result: RunResult
    corpus: Corpus
    model: GPT

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.result.study}/{self.result.arm}/{self.result.seed}"


def read_finished(study: str, arm: str, seed: int) -> FinishedRun:
    """Read a run of `runs/` back, with the weights that its result was measured on.

    Raises ConfigError for a study, arm or seed that does not exist, UnfinishedError for a run whose
    result or weights are not there, and CorpusError where its corpus cannot be had.
    """
    design = load_study(study)
    folder = run_folder(design.name, design.arm(arm).id, design.require_seed(seed))
    name, command = f"{design.name}/{arm}/{seed}", f"./run_all.sh params/{design.name}.yaml"
    again = f"delete {relative(folder)}, and {command} trains it again"
    try:
        result = RunResult.model_validate_json((folder / "result.json").read_bytes())
        provenance = Provenance.model_validate(result.provenance["trained"])
    except (OSError, ValidationError, KeyError):
        raise UnfinishedError(f"{name} has no result; {command} makes it") from None
    if provenance.training_digest != train_key() and provenance.code:
        raise UnfinishedError(f"{name} is a model of commit {provenance.code[:12]}; do this there")
    config = RunConfig.model_validate(result.config)
    corpus = load_corpus(config.corpus)
    model = GPT(config.model, corpus.vocab_size, None)
    checkpoint_folder = folder / "checkpoints" / provenance.identity[:16]
    checkpoint = checkpoints.load(checkpoint_folder, provenance, model.state_dict())
    if checkpoint is None:
        raise UnfinishedError(f"{name} has no checkpoints; {again}")
    model.load_state_dict(checkpoint[1], assign=True)
    if weights_digest(model, all_weights=True) != result.final_weights:
        raise UnfinishedError(f"{name}: its checkpoint is not of its result's weights; {again}")
    return FinishedRun(result, corpus, model.eval(), folder)


def read_packed(folder: Path) -> GPT:
    """Read the model of one run of an archive that `./run_all.sh pack` wrote.

    Raises ValueError for weights that are not those of the result beside them.
    """
    result = RunResult.model_validate_json((folder / "result.json").read_bytes())
    weights = load_file(folder / "weights.safetensors")
    config = ModelConfig.model_validate(result.config["model"])
    model = GPT(config, len(weights["transformer.wte.weight"]), None)
    model.load_state_dict(weights, assign=True)
    if weights_digest(model, all_weights=True) != result.final_weights:
        raise ValueError(f"{folder}: the weights are not those of the result")
    return model.eval()
