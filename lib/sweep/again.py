"""What is recorded, made again: its values by `verify`, runs by `--retrain`."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from lib.config.io import PARAMS, ROOT, read_json, relative
from lib.config.schema import CorpusConfig, RunConfig
from lib.config.yaml import UserError
from lib.data.text import Corpus, CorpusError, load_corpus
from lib.publish import findings
from lib.publish import paper as texts
from lib.record import retrain
from lib.record import verify as records
from lib.record.archive import Run, papers_named, recorded_studies, require_recorded
from lib.train.trainer import initial_hashes


def verify(studies: list[str], words: list[str]) -> int:
    """Verify some studies, or all and what is written of them; then train the runs again that
    `words` name or count. Return the exit status: 1 for a fault, 4 where a run cannot be judged."""
    named = list(dict.fromkeys(word.partition("/")[0] for word in words if "/" in word))
    names = require_recorded(studies or named) or recorded_studies()
    faults = records.verify(names, begin)
    written = [paper for paper in papers_named([]) if (paper / "paper.md").is_file()]
    for paper in [] if studies or named else written:
        for fault in (*findings.check(paper), *texts.check(paper)):
            print(f"error: {relative(paper)}: {fault}", flush=True)
            faults += 1
    status = retrain.retrain(words, studies, train) if words else 0
    return 1 if faults else status


def begin(config: RunConfig, seed: int, steps: int) -> tuple[str, str] | None:
    """Return the hashes of a run's initial weights and batches; None where its text is not here."""
    corpus = _corpus(config.corpus)
    return initial_hashes(config, corpus, seed, steps) if corpus else None


@cache
def _corpus(config: CorpusConfig) -> Corpus | None:
    try:
        return load_corpus(config)
    except CorpusError:
        return None


def train(study: str, arm: str, seed: int) -> Run:
    """Execute 02_train for a run, in a folder of its own; return its result. UserError where it
    fails, with what it said last."""
    with tempfile.TemporaryDirectory(prefix="again-") as folder:
        Path(folder, "params").symlink_to(PARAMS)
        command = [sys.executable, "-m", "lib.sweep.execute", "02_train", study, arm, str(seed)]
        environment = os.environ | {"STUDY_OUTPUT": folder, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{study}/{arm}/{seed}: {done.stderr.strip().splitlines()[-1:]}")
        result: Run = read_json(Path(folder, "runs", study, arm, f"seed-{seed}", "result.json"))
        return result
