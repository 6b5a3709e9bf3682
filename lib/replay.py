"""What a record asks of the code that made it, printed as JSON.

    python -m lib.replay {state,begin,suite,figures} STUDY
    python -m lib.replay execute STUDY NOTEBOOK [ARM SEED]

`verify` runs this module in the tree of the commit that an artefact names, with the study's runs
in `runs/`. So these commands, and what they print, must stay as they are; any other name in `lib`
may change from one commit to the next. Imports stand in the commands: some need no torch.
"""

import hashlib
import json
import sys
from functools import cache
from typing import Any

from lib.study.config import load_study
from lib.study.errors import exit_status
from lib.study.fields import CorpusConfig, ModelConfig, TrainingConfig
from lib.study.paths import executed_notebook, run_folder, shown, study_folder


def state(name: str) -> dict[str, Any]:
    """Say which digests, plan, standing and parameters a study has, and which runs it asks for."""
    from lib.study.claim import claim_status, load_plan
    from lib.study.digests import measuring_digest, training_digest

    study = load_study(name)
    plan = load_plan(study)
    return {
        "training_digest": training_digest(),
        "measuring_digest": measuring_digest(),
        "plan": plan.hash if plan else None,
        "standing": str(claim_status(study, plan)),
        "parameters": study.model_dump(mode="json", exclude_defaults=True),
        "runs": [[arm.id, seed] for arm in study.arms() for seed in study.seeds],
    }


def begin(name: str) -> list[dict[str, Any]]:
    """Make again what every run in `runs/` begins with: losses of its text, initial weights, the
    batch and the learning rate of each step. Runs whose text is not here are left out."""
    from lib.data.corpus import Corpus, CorpusError, load_corpus, sample_batch
    from lib.data.references import references
    from lib.run.machine import random_stream
    from lib.run.model import GPT, count_parameters, weights_digest
    from lib.run.training import learning_rate

    # Arms share most of it; sections of their parameters are passed as JSON, which has a hash.
    @cache
    def text(corpus: str) -> Corpus | None:
        try:
            return load_corpus(CorpusConfig.model_validate_json(corpus))
        except CorpusError:
            return None

    @cache
    def of_text(corpus: str, block_size: int) -> dict[str, Any] | None:
        of = text(corpus)
        if not of:
            return None
        return {"references": references(of, block_size), "corpus_sha256": of.sha256}

    @cache
    def weights(corpus: str, model: str, seed: int) -> dict[str, Any]:
        of = text(corpus)
        assert of
        parsed = ModelConfig.model_validate_json(model)
        gpt = GPT(parsed, of.vocab_size, random_stream(seed, "weights"))
        return {"initial_weights": weights_digest(gpt), "parameters": count_parameters(gpt)}

    @cache
    def batches(corpus: str, size: int, length: int, steps: int, seed: int) -> dict[str, Any]:
        of = text(corpus)
        assert of
        stream, digest = random_stream(seed, "batches"), ""
        for _ in range(steps):
            x, _ = sample_batch(of.train, size, length, stream)
            digest = hashlib.sha256(digest.encode() + x.numpy().tobytes()).hexdigest()
        return {"batches": digest}

    @cache
    def rates(training: str, steps: int) -> dict[str, Any]:
        schedule = TrainingConfig.model_validate_json(training)
        return {"rates": [learning_rate(schedule, step) for step in range(steps)]}

    study, begun = load_study(name), []
    for arm in study.arms():
        config, length = arm.config, arm.config.model.block_size
        corpus, model, training = (
            part.model_dump_json() for part in (config.corpus, config.model, config.training)
        )
        read = of_text(corpus, length)
        for seed in study.seeds if read else ():
            path = run_folder(study.name, arm.id, seed) / "result.json"
            if path.is_file():
                steps = json.loads(path.read_text("utf-8"))["steps"]
                begun.append(
                    {"arm": arm.id, "seed": seed}
                    | (read or {})
                    | weights(corpus, model, seed)
                    | batches(corpus, config.training.batch_size, length, steps, seed)
                    | rates(training, steps)
                )
    return begun


def suite(name: str) -> dict[str, str | None]:
    """Build the suite of every arm again; return its hash, None where the text is not here."""
    from lib.data.corpus import CorpusError, load_corpus
    from lib.data.suite import build_suite

    @cache
    def built(corpus: str, items: int | None, block_size: int) -> str | None:
        try:
            text = load_corpus(CorpusConfig.model_validate_json(corpus))
        except CorpusError:
            return None
        return str(build_suite(text, items, block_size).hash)

    configs = {arm.id: arm.config for arm in load_study(name, undrawn=True).arms()}
    return {
        arm: built(c.corpus.model_dump_json(), c.evaluation.items_per_task, c.model.block_size)
        for arm, c in configs.items()
    }


def figures(name: str) -> dict[str, dict[str, str]]:
    """Give the hash of every figure's data, and its words, without drawing it."""
    from lib.figures.study import drawn

    return drawn(name)


def execute(name: str, notebook: str, arm: str = "", seed: str = "0") -> dict[str, str]:
    """Execute a notebook; return where it and all that it wrote lie, from the tree's root."""
    from lib.run import lifeline
    from lib.workflow.execution import execute as run

    lifeline.hold_on()
    study = load_study(name)
    result, folder = run(notebook, study, arm, int(seed)), study_folder(name)
    written = {
        "notebook": executed_notebook(notebook, name, arm, int(seed)),
        "result": result,
        "verdict": folder / "verdict.json",
        "figures": folder / "figures",
    }
    return {what: shown(path) for what, path in written.items() if path.exists()}


@exit_status
def main(command: str, *words: str) -> None:
    """Print what a command returns."""
    commands = {each.__name__: each for each in (state, begin, suite, figures, execute)}
    print(json.dumps(commands[command](*words)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
