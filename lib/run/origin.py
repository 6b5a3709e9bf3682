"""What a run is made with, as its provenance holds it: machine, versions, code and time."""

from typing import Any

from lib.data.corpus import Corpus
from lib.run.machine import describe, package_versions, prepare
from lib.study.config import Arm, Study
from lib.study.digests import training_digest
from lib.study.fields import Machine
from lib.study.plan import read_plan
from lib.study.provenance import Execution, Provenance, code_state


def begin(study: Study, arm: Arm, seed: int, corpus: Corpus) -> Provenance:
    """Write down what a run is about to be trained with.

    Raises ConfigError for a device or precision that this machine lacks, or a plan that is missing.
    """
    plan = read_plan(study.plan) if study.plan else None
    return Provenance(
        study=study.name,
        arm=arm.id,
        seed=seed,
        plan=plan.hash if plan else None,
        training_digest=training_digest(),
        corpus_sha256=corpus.sha256,
        tokenizer_sha256=corpus.tokenizer.sha256,
        parameters=arm.config.model_dump(exclude={"machine"}),
        **_circumstances(prepare(arm.config)),
    )


def execution(machine: Machine, from_checkpoint: bool) -> Execution:
    """Write down what a run is measured with."""
    return Execution(from_checkpoint=from_checkpoint, **_circumstances(machine))


def _circumstances(machine: Machine) -> dict[str, Any]:
    return {**code_state(), "machine": describe(machine), "packages": package_versions()}
