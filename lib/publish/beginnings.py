"""Whether runs began as their seed and parameters say: initial weights, batches, the text, and the
learning rate of every step.

What decides these is little work, so it is done again by the code that each run was trained with,
where torch and the text are at hand. A seed under another's name is found so without training.
"""

import importlib.util
from collections.abc import Iterator

import numpy as np

from lib.publish import replay
from lib.publish.raw_zip import raw_folder
from lib.publish.recomputed import Run, close, named, place
from lib.study.raw import read_raw_file

_BEGIN = """
import hashlib, json, sys
from lib.data.corpus import CorpusError, load_corpus, sample_batch
from lib.data.references import references
from lib.run.machine import random_stream
from lib.run.model import GPT, count_parameters
from lib.run.training import learning_rate, weights_digest
from lib.study.config import load_study
from lib.study.paths import run_folder
made = {}
def once(make, *of):  # arms share most of it
    key = make.__name__ + repr(of)
    if key not in made:
        made[key] = make(*of)
    return made[key]
def text(source):
    try:
        return load_corpus(source)
    except CorpusError:
        return None
def losses(source, size):
    corpus = once(text, source)
    return {"references": references(corpus, size), "corpus_sha256": corpus.sha256}
def weights(model, source, seed):
    model = GPT(model, once(text, source).vocab_size, random_stream(seed, "weights"))
    return {"initial_weights": weights_digest(model), "parameters": count_parameters(model)}
def batches(source, batch_size, size, steps, seed):
    stream, digest = random_stream(seed, "batches"), ""
    for _ in range(steps):
        x, _ = sample_batch(once(text, source).train, batch_size, size, stream)
        digest = hashlib.sha256(digest.encode() + x.numpy().tobytes()).hexdigest()
    return {"batches": digest}
def rates(training, steps):
    return {"rates": [learning_rate(training, step) for step in range(steps)]}
study, found = load_study(sys.argv[1]), []
for arm in study.arms():
    source, model = arm.config.corpus, arm.config.model
    for seed in study.seeds if once(text, source) else []:
        path = run_folder(study.name, arm.id, seed) / "result.json"
        if path.is_file():
            steps, size = json.loads(path.read_text())["steps"], model.block_size
            drawn = source, arm.config.training.batch_size, size, steps, seed
            found.append({"arm": arm.id, "seed": seed, **once(losses, source, size),
                **once(weights, model, source, seed), **once(batches, *drawn),
                **once(rates, arm.config.training, steps)})
print(json.dumps(found))
"""


def wrong_beginnings(study: str, runs: list[Run]) -> Iterator[str]:
    """Name every run whose initial weights, batches, number of parameters, text, or losses of the
    text are not those of its seed and parameters. Print how many could not be looked at."""
    of = {(run["arm"], run["seed"]): run for run in runs}
    unseen = set(of)
    begun: dict[str | None, Run] = {}  # one run for each commit that trained some
    for run in runs:
        begun.setdefault(replay.committed(run["provenance"]["trained"]), run)
    if importlib.util.find_spec("torch") is None:
        begun.clear()
    for commit, first in begun.items():
        for found in replay.asked(study, first["provenance"]["trained"], _BEGIN):
            run = of[key := (found.pop("arm"), found.pop("seed"))]
            if replay.committed(run["provenance"]["trained"]) != commit:
                continue
            unseen.discard(key)
            stated = run["references"]
            for name, value in found.pop("references").items():
                if not close(stated.get(name, 0.0), value):
                    yield f"{named(run)}: {name} is {stated.get(name)}, and the text's is {value}"
            trace = read_raw_file(raw_folder(place(study, run) / "02_train.ipynb"), "trace")
            if not np.allclose(trace["learning_rate"], found.pop("rates"), rtol=1e-6, atol=0):
                yield f"{named(run)}: learning rates in trace.parquet are not those of its schedule"
            for name, value in found.items():
                if run[name] != value:
                    yield f"{named(run)}: {name} are not those of its seed and parameters"
    if unseen:
        print(f"{study}: beginnings of {len(unseen)} of {len(of)} runs not made again: torch or "
              "their text is not here", flush=True)  # fmt: skip
