"""A small study under a plan: train, analyse and archive it as a sweep does, without papermill.

    STUDY_OUTPUT=FOLDER python -m tests.record.tiny [WORD …]

Without a word, make the study in FOLDER. With `verify`, verify its record in every paper there and
print the reports as JSON. `archive` archives it again, `renew` executes 01, 03 and 04 again,
`again` trains runs again, `pack` writes the zip of a Kaggle session, and `import` imports zips.
"""

import json
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lib.config import files, paths, provenance
from lib.config.claim import claim_status, load_plan
from lib.config.errors import UserError
from lib.config.freeze import freeze
from lib.config.paths import PAPERS, PARAMS, PLANS, study_folder
from lib.config.study import load_study
from lib.data.text import load_corpus
from lib.record.archive import SHARED, Record, archive
from lib.record.retrain import retrain
from lib.record.verify import verify_record
from lib.results import write_result
from lib.stats.runs import collect, read_parquet, study_results, tidy
from lib.stats.verdict import analyse
from lib.sweep.estimate import begin_again as hashes
from lib.sweep.execute import train_apart
from lib.sweep.kaggle import import_study, pack
from lib.sweep.renew import renew
from lib.train.evaluate import facts_of, measure
from lib.train.trainer import train
from tests.conftest import TINY

STUDY = TINY | {
    "name": "tiny",
    "factors": {"model.embedding_norm": ["none", "layernorm"]},
    "seeds": {"count": 3},
    "plan": "plan.yaml",
    "paper": "paper",
    "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0},
}
PLAN = {
    "title": "A trial",
    "question": "Does the layer cost anything?",
    "confirmatory": ["tiny"],
    "hypotheses": {
        "cost": {
            "says": "The layer changes the loss by less than 3 nats.",
            "test": ["layernorm", "none", "loss"],
            "equivalent_within": 3.0,
        }
    },
    "smallest_effect_of_interest": {"loss": 0.03},
    "spread": {"loss": 0.02},
    "secondary": ["perplexity"],
    "procedures": {"exclusions": "none"},
}


def write_notebook(name, data, arm="", seed=0):
    """Write an executed notebook with one cell that shows some data."""
    warning = new_output("stream", name="stderr", text="a warning")
    shown = new_output("display_data", {"text/plain": "in words"} | data)
    content = new_notebook(cells=[new_code_cell("result", outputs=[warning, shown])])
    content.metadata["study"] = {"status": "completed"}
    nbformat.write(content, paths.executed_notebook(name, "tiny", arm, seed))


def make():
    """Freeze the plan, train every run, analyse and archive."""
    committed = provenance.ask_git()["code"] | {"clean": True}  # even if the checkout has edits
    provenance.ask_git = lambda: {"code": committed}
    PLANS.mkdir(parents=True)
    (PARAMS / "tiny.yaml").write_text(json.dumps(STUDY), "utf-8")
    (PLANS / "plan.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in PLAN.items()), "utf-8"
    )
    corpus = load_corpus(load_study("tiny", undrawn=True).corpus)
    freeze("plan.yaml", lambda _: ({"synthetic": corpus.sha256}, []))
    study = load_study("tiny")
    for arm in study.arms():
        for seed in study.seeds:
            folder = paths.run_folder("tiny", arm.id, seed)
            trained = train(study, arm, seed, corpus, folder, lambda *_: None)
            measured = measure(trained)
            facts = facts_of(arm, trained, measured)
            result = write_result(study, arm, seed, measured.raw, facts)
            shown = result._repr_mimebundle_()["application/json"]
            write_notebook("02_train", {"application/json": shown}, arm.id, seed)

    results, plan = collect(study), load_plan(study)
    raw = (read_parquet(study, name) for name in ("trace", "items", "stock_items"))
    claim = claim_status(study, plan, [run.model_dump() for run in results])
    verdict = analyse(study, plan, claim, tidy(results), *raw)
    files.write_json(study_folder("tiny") / "verdict.json", verdict.as_json())
    files.write_json(paths.result_file("03_analysis", "tiny"), study_results(study, results))
    files.write_json(paths.result_file("04_figures", "tiny"), {"loss": "0"})
    for name in SHARED:
        write_notebook(name, {"text/html": "<p>a table</p>"})
    (study_folder("tiny") / "figures").mkdir()
    (study_folder("tiny") / "figures" / "loss.png").write_bytes(b"a figure")
    archive(study)


def main(words):
    """Make the study, or do one of the things listed at the top."""
    if words == ["verify"]:
        papers = sorted(path for path in PAPERS.iterdir())
        reports = {paper.name: verify_record(Record("tiny", paper), hashes) for paper in papers}
        print(json.dumps({name: vars(report) for name, report in reports.items()}))
    elif words[:1] == ["archive"]:
        archive(load_study("tiny"), replace="--replace" in words)
    elif words[:1] == ["again"]:
        sys.exit(retrain(words[1:], [], train_apart))
    elif words[:1] == ["renew"]:
        sys.exit(renew(["tiny"]))
    elif words[:1] == ["pack"]:
        pack("tiny", 0)
    elif words[:1] == ["import"]:
        for file in words[1:]:
            try:
                import_study(Path(file))
            except UserError as error:
                print(error)
    else:
        make()


if __name__ == "__main__":
    main(sys.argv[1:])
