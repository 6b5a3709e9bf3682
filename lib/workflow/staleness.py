"""What is done and what is stale: a result counts only where it was made by this code, from this
corpus, under these parameters and this plan."""

import json
from collections.abc import Iterable, Iterator
from os.path import normpath
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lib.record.record import MANIFEST, Record
from lib.study.claim import load_plan
from lib.study.config import Arm, Study
from lib.study.digests import asking_digest, measuring_digest, showing_digest, training_digest
from lib.study.fields import CorpusConfig, digest
from lib.study.files import sha256
from lib.study.paths import (
    executed_notebook,
    result_file,
    run_folder,
    shown,
    study_folder,
)
from lib.study.provenance import has_harness
from lib.study.result import RunResult, status_of

_OF_MEASURES = (
    *("measuring code", "study", "baseline", "levels", "variant", "setting", "corpus.source"),
    *("evaluation.items_per_task", "evaluation.tasks", "evaluation.shots"),
)
"""What leaves weights as they are: a difference in anything else trains a run anew."""


def corpus_hashes(studies: Iterable[Study]) -> dict[str, str | None]:
    """Load every corpus of some studies; return their sources, of a mixture with its shares, with
    their SHA-256, and beside each tokenizer with its file's.

    Raises CorpusError for the first that cannot be used.
    """
    from lib.data.corpus import load_corpus  # not for those who only read what it found

    found: dict[str, str | None] = {}
    for config in {arm.config.corpus for study in studies for arm in study.arms()}:
        corpus = load_corpus(config)
        found[_source(config)] = corpus.sha256
        if corpus.tokenizer.sha256:
            found[_tokenized(config)] = corpus.tokenizer.sha256
    return found


def _source(config: CorpusConfig) -> str:
    return f"{config.source} {config.sources}" if config.sources else config.source


def _tokenized(config: CorpusConfig) -> str:
    return f"{_source(config)}, {config.tokenizer}, {config.deduplicate}"


def data_key(study: Study, corpora: dict[str, str | None]) -> str:
    """Digest of what decides 01_data; when it changes, the notebook is executed again."""
    configs = {arm.config.corpus for arm in study.arms()}
    own = {name for config in configs for name in (_source(config), _tokenized(config))}
    hashes = {name: value for name, value in corpora.items() if name in own}
    return digest([study.hash, asking_digest(), hashes])


def analysis_key(study: Study) -> str:
    """Digest of what decides 03_analysis and 04_figures beside the runs; when it changes, both are
    executed again. Runs made under another plan are made anew; none is restamped."""
    plan = load_plan(study)
    deviations = [each.model_dump() for each in plan.deviations] if plan else []
    return digest([plan and plan.hash, deviations, showing_digest()])


def asked(
    study: Study, arm: Arm, seed: int, corpora: dict[str, str | None], plan: str | None
) -> dict[str, Any]:
    """List what a run's result must have been made with, by the names that messages use: nothing
    of the machine, whose settings the analysis compares. `plan` is its hash."""
    return {
        "plan": plan,
        "training code": training_digest(),
        "measuring code": measuring_digest(),
        "corpus": corpora[_source(arm.config.corpus)],
        "tokenizer": corpora.get(_tokenized(arm.config.corpus)),
        "seed": seed,
        **_dotted(arm.config.model_dump(exclude={"machine"})),
        "study": study.hash,
        **{name: getattr(arm, name) for name in ("baseline", "levels", "variant", "setting")},
    }


def held(result: RunResult) -> dict[str, Any]:
    """List the same of a result: of its weights what their provenance says."""
    trained, executed = result.provenance["trained"], result.provenance["executed"]
    return {
        "plan": trained["plan"],
        "training code": trained["training_digest"],
        "measuring code": executed["measuring_digest"],
        "corpus": trained["corpus_sha256"],
        "tokenizer": trained.get("tokenizer_sha256"),
        "seed": trained["seed"],
        **_dotted(trained["parameters"]),
        **_dotted({"evaluation": result.config["evaluation"]}),
        "study": result.study_hash,
        **{name: getattr(result, name) for name in ("baseline", "levels", "variant", "setting")},
    }


def _dotted(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{s}.{name}": value for s, fields in sections.items() for name, value in fields.items()
    }


def stale(study: Study, corpora: dict[str, str | None]) -> Iterator[tuple[Path, str]]:
    """Yield each result of a study that is there and does not count, with the reason and with what
    will be done about it."""
    loaded = load_plan(study)
    plan = loaded.hash if loaded else None
    for arm in study.arms():
        for seed in study.seeds:
            path = result_file("02_train", study.name, arm.id, seed)
            if path.is_file() and (reason := _stale_run(study, arm, seed, corpora, plan)):
                yield path, reason
    for notebook in ("01_data", "03_analysis", "04_figures"):
        path = result_file(notebook, study.name)
        written = [path]
        if notebook == "03_analysis":
            written.append(study_folder(study.name) / "verdict.json")
        if path.is_file():
            broken = [each.name for each in written if not _is_json(each)]
            executed = _incomplete(executed_notebook(notebook, study.name))
            if reason := f"{broken[0]} cannot be read" if broken else executed:
                yield path, f"{reason}: executed again"
    archived = result_file("archive", study.name)
    if archived.is_file() and (lost := _lost(study.name)):
        yield archived, f"{shown(lost)} is missing: archived again"


def _lost(study: str) -> Path | None:
    """Find a file that a study's record has lost; None when all are there."""
    record = Record(study)
    kept, listed = record.files, record.manifest or {MANIFEST: ""}
    return next((Path(normpath(record.place / name)) for name in listed if name not in kept), None)


def _stale_run(
    study: Study, arm: Arm, seed: int, corpora: dict[str, str | None], plan: str | None
) -> str | None:
    folder = run_folder(study.name, arm.id, seed)
    again = "measured anew from its weights"
    try:
        result = RunResult.model_validate_json((folder / "result.json").read_bytes())
        if (result.study, result.arm) != (study.name, arm.id):
            return f"result.json is of {result.study}, {result.arm}: {again}"
        made_with = held(result)
    except (ValidationError, LookupError, TypeError):
        return f"result.json cannot be read, or is of another version: {again}"
    for name, value in asked(study, arm, seed, corpora, plan).items():
        if made_with.get(name) != value:
            done = again if name in _OF_MEASURES else "trained anew"
            return f"{name} is {_short(value)} and was {_short(made_with.get(name))}: {done}"
    wanted = result.status == "completed" and arm.config.evaluation.items_per_task != 0
    if wanted and result.suite_hash is None and has_harness():
        return f"the suite was not asked for want of lm_eval: {again}"
    for name, expected in result.files.items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            return f"{name} is missing or not as it was written: {again}"
    if reason := _incomplete(folder / "02_train.ipynb"):
        return f"{reason}: {again}"
    return None


def _short(value: Any) -> str:
    """Write a value for a message; of a hash its beginning will do."""
    return value[:12] if isinstance(value, str) and len(value) == 64 else repr(value)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _incomplete(notebook: Path) -> str | None:
    status = status_of(notebook)
    if status["status"] == "completed":
        return None
    return f"{notebook.name} is {status['status']} ({status.get('reason')})"
