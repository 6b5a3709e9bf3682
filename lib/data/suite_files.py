"""The task suite as the LM-Eval harness reads it: written once, hashed, made anew when damaged."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from lib.data.corpus import Corpus
from lib.data.suite import DELIMITER, FEW_SHOT, ZERO_SHOT, Suite, Task, build_suite
from lib.study.digests import asking_digest
from lib.study.fields import RunConfig, digest
from lib.study.record import sha256


def prepare_suite(corpus: Corpus, items: int | None, block_size: int, suites: Path) -> Path:
    """Return the folder below `suites` with the suite of this corpus, made if need be. Another text
    has another folder, and a suite that is whole and of this code is never written again: runs may
    be reading it. Another is named and made anew; corpus and code decide its questions."""
    size = "all" if items is None else str(items)
    size += "" if corpus.unit == "characters" else "-tokens"
    texts = corpus.training_text, corpus.decode(corpus.dev), corpus.decode(corpus.test)
    if corpus.account.get("removed") or "".join(texts) != corpus.text:
        size += f"-{digest(texts)[:8]}"  # what is left of the text, which the hash does not tell
    folder = suites / f"{corpus.name}-{corpus.sha256[:8]}-{block_size}-{size}"
    suites.mkdir(parents=True, exist_ok=True)
    with FileLock(suites / ".lock"):
        fault = _fault(folder)
        if fault and folder.exists():
            print(f"The suite in {folder.name} is {fault}. It is made anew.")
            shutil.rmtree(folder)
        if fault:
            write_suite(build_suite(corpus, items, block_size), folder)
    return folder


def _fault(folder: Path) -> str | None:
    """Say what is wrong with the suite in a folder; None when it is as this code writes it."""
    try:
        suite = read_suite(folder)
        files, code = suite["files"], suite.get("code")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "damaged (suite.json is missing or cannot be read)"
    for name, stated in files.items():
        if not (folder / name).is_file() or sha256(folder / name) != stated:
            return f"damaged ({name} is not as it was written)"
    return None if code == asking_digest() else "of other code"


def suite_hash(corpus: Corpus, config: RunConfig, suites: Path) -> str | None:
    """Return the hash of the suite that a run will be asked, made below `suites` if need be; None
    when it will be asked none."""
    items = config.evaluation.items_per_task
    if items == 0:
        return None
    folder = prepare_suite(corpus, items, config.model.block_size, suites)
    return str(read_suite(folder)["hash"])


def read_suite(folder: Path) -> dict[str, Any]:
    """Read what `write_suite` wrote of a suite; ValueError when the folder holds none."""
    if not (folder / "suite.json").is_file():
        raise ValueError(f"{folder.name} holds no suite: write one with write_suite")
    content: dict[str, Any] = json.loads((folder / "suite.json").read_text("utf-8"))
    return content


def write_suite(suite: Suite, folder: Path) -> Path:
    """Write a suite as the LM-Eval harness reads it, and return `folder`.

    Per task: its items and exemplars as JSON lines and one YAML per number of shots. The groups
    average the tasks' accuracies, each task counting the same: `macro_zero_shot`, and
    `macro_few_shot` with each task at its largest number of shots. `suite.json`, written last,
    names the suite's hash, the digest of the code that made it and what was left out; a folder
    without it holds no suite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suite.json").unlink(missing_ok=True)
    groups: dict[str, list[str]] = {ZERO_SHOT: [], FEW_SHOT: []}
    for task in suite.tasks:
        for part, items in (("test", task.items), ("dev", task.exemplars)):
            lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items)
            (folder / f"{task.name}.{part}.jsonl").write_text("".join(lines), "utf-8")
        for shots in task.shots:
            name = f"{task.name}_{shots}_shot"
            groups[FEW_SHOT if shots else ZERO_SHOT].append(name)
            _write_yaml(folder / f"{name}.yaml", _task_yaml(name, task, shots))
    accuracy = {"metric": "acc", "aggregation": "mean", "weight_by_size": False}
    for group, members in groups.items():
        if members:
            content: dict[str, object] = {"group": group, "task": members}
            _write_yaml(folder / f"{group}.yaml", content | {"aggregate_metric_list": [accuracy]})
    described = {
        "hash": suite.hash,
        "corpus_sha256": suite.corpus_sha256,
        "block_size": suite.block_size,
        "groups": groups,
        "tasks": suite.table().to_dict("records"),
        "left_out": suite.left_out,
        "code": asking_digest(),
        "files": {path.name: sha256(path) for path in sorted(folder.glob("[!.]*.*"))},
    }
    (folder / "suite.json").write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    return folder


def _task_yaml(name: str, task: Task, shots: int) -> dict[str, object]:
    files = {"test": f"{task.name}.test.jsonl"}
    if shots:
        files["dev"] = f"{task.name}.dev.jsonl"
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files, "cache_dir": ".datasets"},
        "test_split": "test",
        **({"fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}} if shots else {}),
        "num_fewshot": shots,
        "output_type": "multiple_choice",
        # A whole number from doc_to_text: the harness takes the choices for contexts.
        "doc_to_text": "gold",
        "doc_to_choice": "contexts",
        "doc_to_target": "continuation",
        "target_delimiter": "",
        "fewshot_delimiter": DELIMITER,
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "brier_score", "aggregation": "brier_score", "higher_is_better": False},
        ],
    }


def _write_yaml(path: Path, content: dict[str, object]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
