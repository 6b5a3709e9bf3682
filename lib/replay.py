"""What a record asks of the code that made it, printed as JSON.

    python -m lib.replay {digests,state,begin,suite,figures} STUDY
    python -m lib.replay execute STUDY NOTEBOOK [ARM SEED]

`verify` runs this module in the tree of the commit that an artefact names, with the study's runs
in `runs/`; a sweep asks `digests` and `execute` of an arm that is a commit. So these commands, and
what they print, must stay as they are; any other name in `lib` may change from one commit to the
next. Imports stand in the commands: some need no torch.
"""

import hashlib
import json
import sys
from functools import cache
from typing import Any

from lib.study.io import executed_notebook, read_json, relative, run_folder, study_folder
from lib.study.schema import CorpusConfig, ModelConfig
from lib.study.study import load_study
from lib.study.yaml import exit_status


def digests(name: str) -> dict[str, str]:
    """Say which code decides weights and numbers, if it knows a study's parameters."""
    from lib.study.digests import measuring_digest, training_digest

    load_study(name, undrawn=True)
    return {"training_digest": training_digest(), "measuring_digest": measuring_digest()}


def state(name: str) -> dict[str, Any]:
    """Say which digests, plan, standing and parameters a study has, and which runs it asks for."""
    from lib.analysis.runs import so_far
    from lib.study.preregistration import claim_status, load_plan

    study = load_study(name)
    plan = load_plan(study)
    return digests(name) | {
        "plan": plan.hash if plan else None,
        "standing": str(claim_status(study, plan)),
        "parameters": study.model_dump(mode="json", exclude_defaults=True),
        "runs": [[arm.id, seed] for arm in study.arms() for seed in so_far(study).seeds],
    }


@cache
def _text(config: CorpusConfig) -> Any:
    """Load a corpus; None where it is not here."""
    from lib.data.text import CorpusError, load_corpus

    try:
        return load_corpus(config)
    except CorpusError:
        return None


def begin(name: str) -> list[dict[str, Any]]:
    """Make again what every run in `runs/` begins with: losses of its text, initial weights, the
    batch and the learning rate of each step. Runs whose text is not here are left out."""
    from lib.data.describe import references
    from lib.data.text import sample_batch
    from lib.run.machine import random_stream
    from lib.run.model import GPT, count_parameters, weights_digest
    from lib.run.trainer import learning_rate

    @cache  # arms share most of it
    def losses(corpus: CorpusConfig, block_size: int) -> dict[str, Any]:
        text = _text(corpus)
        return {"references": references(text, block_size), "corpus_sha256": text.sha256}

    @cache
    def weights(corpus: CorpusConfig, model: ModelConfig, seed: int) -> dict[str, Any]:
        gpt = GPT(model, _text(corpus).vocab_size, random_stream(seed, "weights"))
        return {"initial_weights": weights_digest(gpt), "parameters": count_parameters(gpt)}

    @cache
    def batches(corpus: CorpusConfig, size: int, length: int, steps: int, seed: int) -> str:
        stream, digest = random_stream(seed, "batches"), ""
        for _ in range(steps):
            x, _ = sample_batch(_text(corpus).train, size, length, stream)
            digest = hashlib.sha256(digest.encode() + x.numpy().tobytes()).hexdigest()
        return digest

    study, starts = load_study(name), []
    for arm in study.arms():
        corpus, model, training = arm.config.corpus, arm.config.model, arm.config.training
        for seed in study.seeds if _text(corpus) else ():
            path = run_folder(study.name, arm.id, seed) / "result.json"
            if path.is_file():
                steps = read_json(path)["steps"]
                size, length = training.batch_size, model.block_size
                row = {"arm": arm.id, "seed": seed} | losses(corpus, length)
                row |= weights(corpus, model, seed)
                row["batches"] = batches(corpus, size, length, steps, seed)
                starts.append(row | {"rates": [learning_rate(training, n) for n in range(steps)]})
    return starts


def suite(name: str) -> dict[str, str | None]:
    """Build the suite of every arm again; return its hash, None where the text is not here."""
    from lib.data.suite import build_suite

    @cache
    def built(corpus: CorpusConfig, items: int | None, block_size: int) -> str | None:
        text = _text(corpus)
        return str(build_suite(text, items, block_size).hash) if text else None

    configs = {arm.id: arm.config for arm in load_study(name, undrawn=True).arms()}
    return {
        arm: built(c.corpus, c.evaluation.items_per_task, c.model.block_size)
        for arm, c in configs.items()
    }


def figures(name: str) -> dict[str, dict[str, str]]:
    """Give the hash of every figure's data, and its words, without drawing it."""
    from lib.figures.study import drawn

    return drawn(name)


def execute(name: str, notebook: str, arm: str = "", seed: str = "0") -> dict[str, str]:
    """Execute a notebook; return where it and all that it wrote lie, from the tree's root."""
    from lib.run.processes import exit_with_parent
    from lib.workflow.execution import execute as run

    exit_with_parent()
    study = load_study(name)
    result, folder = run(notebook, study, arm, int(seed)), study_folder(name)
    written = {
        "notebook": executed_notebook(notebook, name, arm, int(seed)),
        "result": result,
        "verdict": folder / "verdict.json",
        "figures": folder / "figures",
    }
    return {key: relative(path) for key, path in written.items() if path.exists()}


@exit_status
def main(command: str, *words: str) -> None:
    """Print what a command returns."""
    commands = {f.__name__: f for f in (digests, state, begin, suite, figures, execute)}
    print(json.dumps(commands[command](*words)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
