"""Protocol 1, frozen: how commits before `lib.replay` are asked what it prints.

Each program runs in the tree of such a commit and names what that commit's `lib` names. It is never
edited: commits do not change.
"""

_STATE = """
import json, sys
from lib.study.study import load_study
from lib.study.digests import measuring_digest, training_digest
from lib.study.standing import load_plan, standing
study = load_study(sys.argv[1])
plan = load_plan(study)
print(json.dumps({"training_digest": training_digest(), "measuring_digest": measuring_digest(),
                  "plan": plan.hash if plan else None, "standing": str(standing(study, plan)),
                  "parameters": study.model_dump(mode="json", exclude_defaults=True),
                  "runs": [[arm.id, seed] for arm in study.arms() for seed in study.seeds]}))
"""
_BEGIN = """
import hashlib, json, sys
from lib.data.text import CorpusError, load_corpus, sample_batch
from lib.data.describe import references
from lib.run.machine import random_stream
from lib.run.model import GPT, count_parameters
from lib.run.trainer import learning_rate, weights_digest
from lib.study.study import load_study
from lib.study.io import run_folder
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
_SUITE = """
import json, sys
from lib.data.text import CorpusError, load_corpus
from lib.data.suite import build_suite
from lib.study.study import load_study
built, found = {}, {}
for arm in load_study(sys.argv[1]).arms():
    config = arm.config
    of = config.corpus, config.evaluation.items_per_task, config.model.block_size
    if repr(of) not in built:
        try:
            built[repr(of)] = build_suite(load_corpus(of[0]), *of[1:]).hash
        except CorpusError:
            built[repr(of)] = None
    found[arm.id] = built[repr(of)]
print(json.dumps(found))
"""
_FIGURES = """
import json, sys
from lib.figures.study import drawn
print(json.dumps(drawn(sys.argv[1])))
"""
_EXECUTE = """
import json, sys
from pathlib import Path
try:
    from lib.workflow.execution import main
except ModuleNotFoundError:
    from lib.execution import main
study, notebook, *run = sys.argv[1:]
words = ["--arm", run[0], "--seed", run[1]] if run else []
status = main([notebook, "--study", study, *words])
top = Path("runs", study)
folder = top / run[0] / f"seed-{run[1]}" if run else top
places = {"notebook": folder / f"{notebook}.ipynb", "verdict": top / "verdict.json",
          "result": folder / "result.json" if run else folder / f"{notebook}.json",
          "figures": top / "figures"}
print(json.dumps({what: path.as_posix() for what, path in places.items() if path.exists()}))
sys.exit(status)
"""
PROGRAMS = {
    "state": _STATE,
    "begin": _BEGIN,
    "suite": _SUITE,
    "figures": _FIGURES,
    "execute": _EXECUTE,
}
