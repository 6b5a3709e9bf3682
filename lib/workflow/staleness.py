"""What is done and what is stale: a result counts only where it was made by this code, from this
corpus, under these parameters and this plan.

A result says itself what it was made with. What Snakemake notes of its jobs would not do: it stays
where they ran, and runs come home from other machines; nor could it tell weights from measures.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from os.path import normpath
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lib.data.text import load_corpus
from lib.record.archive import is_replaceable
from lib.record.record import MANIFEST, Record
from lib.results import RunResult, has_harness, status_of
from lib.study.digests import asking_digest, measuring_digest, showing_digest, training_digest
from lib.study.inputs import tasks_hash
from lib.study.io import executed_notebook, read_json, relative, result_file, sha256, study_folder
from lib.study.preregistration import load_plan
from lib.study.schema import CODE, CorpusConfig, RunConfig, digest
from lib.study.study import Arm, Study
from lib.study.yaml import UserError

_MEASURING_INPUTS = (
    *("run", "measuring code", "study", "baseline", "levels", "variant", "setting"),
    *("corpus.source", "evaluation.items_per_task", "evaluation.tasks", "evaluation.shots"),
    *("evaluation.include_path", "files of evaluation.include_path"),
)
"""What leaves weights as they are: a difference in anything else trains a run anew."""
_MEASURED = "measured anew from its weights"


@cache
def corpus_hashes(config: CorpusConfig) -> tuple[str, str | None]:
    """Load a corpus; return the SHA-256 of its text and of its tokenizer's file (None: characters
    or bytes). Raises CorpusError."""
    corpus = load_corpus(config)
    return corpus.sha256, corpus.tokenizer.sha256


def data_key(study: Study) -> str:
    """Return a digest of what decides 01_data; when it changes, the notebook is executed again.
    Raises CorpusError."""
    hashes = {corpus_hashes(arm.config.corpus) for arm in study.arms()}
    return digest([study.hash, asking_digest(), sorted(hashes, key=str)])


def analysis_key(study: Study) -> str:
    """Return a digest of what decides 03_analysis and 04_figures beside the runs; when it changes,
    both are executed again. Runs made under another plan are made anew; none is restamped."""
    plan = load_plan(study)
    deviations = [deviation.model_dump() for deviation in plan.deviations] if plan else []
    return digest([plan and plan.hash, deviations, showing_digest()])


def required_inputs(study: Study, arm: Arm, seed: int, plan: str | None) -> dict[str, Any]:
    """List what a run's result must have been made with, by the names that messages use: nothing
    of the machine, whose settings the analysis compares. `plan` is its hash. Raises CorpusError."""
    text, tokenizer = corpus_hashes(arm.config.corpus)
    commit = study.commit_of(arm)
    return {
        "run": f"{study.name}, {arm.id}",
        "plan": plan,
        "training code": commit.training_digest if commit else training_digest(),
        "measuring code": commit.measuring_digest if commit else measuring_digest(),
        "corpus": text,
        "tokenizer": tokenizer,
        "seed": seed,
        **_dotted(arm.config.model_dump(exclude={"machine"})),
        "files of evaluation.include_path": tasks_hash(arm.config.evaluation.include_path),
        "study": study.hash,
        **_design_fields(arm),
    }


def actual_inputs(result: RunResult) -> dict[str, Any]:
    """List the same of a result: of its weights what their provenance says."""
    trained, executed = result.provenance["trained"], result.provenance["executed"]
    return {
        "run": f"{result.study}, {result.arm}",
        "plan": trained["plan"],
        "training code": trained["training_digest"],
        "measuring code": executed["measuring_digest"],
        "corpus": trained["corpus_sha256"],
        "tokenizer": trained.get("tokenizer_sha256"),
        "seed": trained["seed"],
        **_dotted(trained["parameters"] | {"evaluation": result.config["evaluation"]}),
        "files of evaluation.include_path": result.tasks_hash,
        "study": result.study_hash,
        **_design_fields(result),
    }


def _design_fields(run: Arm | RunResult) -> dict[str, Any]:
    """Return where a run stands in its study's design."""
    return {name: getattr(run, name) for name in ("baseline", "levels", "variant", "setting")}


def _dotted(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{s}.{name}": value for s, fields in sections.items() for name, value in fields.items()
    }


def stale(study: Study) -> Iterator[tuple[Path, str]]:
    """Yield each result of a study that is there and does not count, with the reason and with what
    will be done about it. Raises CorpusError."""
    plan = load_plan(study)
    for arm in study.arms():
        for seed in study.seeds:
            path = result_file("02_train", study.name, arm.id, seed)
            if path.is_file():
                required = required_inputs(study, arm, seed, plan.hash if plan else None)
                if reason := _stale_run(path, required):
                    yield path, reason
    for notebook in ("01_data", "03_analysis", "04_figures"):
        path = result_file(notebook, study.name)
        verdict = study_folder(study.name) / "verdict.json"
        written = [path, verdict] if notebook == "03_analysis" else [path]
        if path.is_file():
            broken = [f"{file.name} cannot be read" for file in written if not _is_json(file)]
            if reason := next(iter(broken), _incomplete(executed_notebook(notebook, study.name))):
                yield path, f"{reason}: executed again"
    archived, record = result_file("archive", study.name), Record(study.name)
    if archived.is_file() and is_replaceable(record) and (lost_file := _missing_file(record)):
        yield archived, f"{relative(lost_file)} is missing: archived again"


def _missing_file(record: Record) -> Path | None:
    """Find a file that a record has lost; None when all are there."""
    files, names = record.files, record.manifest or {MANIFEST: ""}
    return next((Path(normpath(record.place / name)) for name in names if name not in files), None)


def _stale_run(file: Path, required: dict[str, Any]) -> str | None:
    try:
        result = RunResult.model_validate_json(file.read_bytes())
        actual = actual_inputs(result)
    except (ValidationError, LookupError, TypeError):
        return f"result.json cannot be read, or is of another version: {_MEASURED}"
    # A field that came later is one that an arm's own code may lack.
    defaults = _dotted(RunConfig().model_dump()) if CODE in required["levels"] else {}
    for name, value in required.items():
        if actual.get(name, defaults.get(name)) != value:
            remedy = _MEASURED if name in _MEASURING_INPUTS else "trained anew"
            return f"{name} is {_short(value)} and was {_short(actual.get(name))}: {remedy}"
    has_suite = result.status == "completed" and required["evaluation.items_per_task"] != 0
    if has_suite and result.suite_hash is None and has_harness():
        return f"the suite was not asked for want of lm_eval: {_MEASURED}"
    for path, hash_ in ((file.with_name(name), hash_) for name, hash_ in result.files.items()):
        if not path.is_file() or sha256(path) != hash_:
            return f"{path.name} is missing or not as it was written: {_MEASURED}"
    reason = _incomplete(file.with_name("02_train.ipynb"))
    return reason and f"{reason}: {_MEASURED}"


def _short(value: Any) -> str:
    """Write a value for a message; of a hash its beginning will do."""
    return value[:12] if isinstance(value, str) and len(value) == 64 else repr(value)


def _is_json(path: Path) -> bool:
    with suppress(OSError, UserError):
        read_json(path)
        return True
    return False


def _incomplete(notebook: Path) -> str | None:
    status = status_of(notebook)
    if status["status"] == "completed":
        return None
    return f"{notebook.name} is {status['status']} ({status.get('reason')})"
