"""Whether runs come from what they name: their accounts, and the code and parameters of the commits
in these."""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from math import hypot, inf, isclose
from pathlib import Path
from typing import Any

import yaml

from lib.publish import replay
from lib.publish.agreement import begun
from lib.publish.archive import record_folder, verdict_file
from lib.publish.raw_zip import raw_folder
from lib.publish.recomputed import Run, named, place
from lib.study.attempts import other_versions
from lib.study.config import Study, load_study
from lib.study.fields import ModelConfig, digest
from lib.study.git import git, is_checkout
from lib.study.provenance import deciding
from lib.study.raw import read_raw_file
from lib.study.record import read_json, status_of
from lib.study.standing import load_plan


def wrong_provenance(study: str, run: Run) -> Iterator[str]:
    """What a run's account of its origin says otherwise than its result and its notebook."""
    trained, executed = run["provenance"]["trained"], run["provenance"]["executed"]
    for account, name in ((trained, "started"), (executed, "finished")):
        if not _WHEN.fullmatch(str(account[name])):
            yield f"{name} is {account[name]!r}, and no time like 2026-01-31 23:59:59 UTC"
            return
    for name in ("study", "arm", "seed", "corpus_sha256"):
        if trained[name] != run[name]:
            yield f"it was trained with {name} {trained[name]!r}, and is filed under {run[name]!r}"
    # Finished weights may be measured anew, with another suite or other settings of evaluation.
    anew = executed["from_checkpoint"]
    sides: list[Any] = [trained["parameters"], run["config"]]
    if anew:
        sides = list(map(deciding, sides))
    if sides[0] != sides[1]:
        yield "it was trained with other parameters than its result says"
    suite = trained["suite_hash"]
    if trained["parameters"]["evaluation"]["items_per_task"] != 0:
        suite = suite or run["suite_hash"]  # newer accounts name none: it decides no weights
    if run["status"] == "completed" and not anew and suite != run["suite_hash"]:
        yield "it was asked another suite than was prepared for it"
    notebook = place(study, run) / "02_train.ipynb"
    metadata = read_json(notebook)["metadata"]
    if metadata["study"]["commit"] != executed["commit"]:
        yield "its notebook is stamped with another commit than its result"
    if metadata["study"]["preregistration"] != trained["plan"]:
        yield "its notebook is stamped with another plan than it was trained under"
    start, end = _times(notebook)
    began, ended = (_time(trained["started"]), _time(executed["finished"]))
    fresh = not (anew or run["resumed_at"])
    if not (began <= ended <= end and (not fresh or start < began + 1)):
        yield "it was trained at another time than its notebook was executed"
    if fresh and sum(run["seconds"].values()) > ended - began + 1:
        yield "it says that it took longer than from its start to its end"
    accounts = [trained, executed] if fresh else [trained]
    if len({digest([a["commit"], a["packages"], a["machine"]]) for a in accounts}) > 1:
        yield "it names two commits, machines or versions for one execution"


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace(" UTC", "+00:00")).timestamp()


def untold_versions(study: str, runs: list[Run]) -> Iterator[str]:
    """Runs under another version of its plan, of which a confirmatory verdict does not tell."""
    design = load_study(study)
    if (plan := load_plan(design)) and read_json(verdict_file(study))["standing"] == "CONFIRMATORY":
        for reason in other_versions(design, plan, runs):
            yield f"its verdict stands as confirmatory, but {reason}"


def wrong_dates(study: str, runs: list[Run]) -> Iterator[str]:
    """Runs and notebooks dated before the commit that they name, an analysis before its runs."""
    committed = cache(lambda commit: float(git("show", "-s", "--format=%ct", commit) or 0))

    def before(name: str, account: dict[str, Any], dated: float) -> Iterator[str]:
        commit = account.get("commit")
        if commit and is_checkout() and dated < committed(commit):
            yield f"{name} is dated before commit {commit[:12]}, which it names"

    for run in runs:
        for account in run["provenance"].values():
            dated = _time(account.get("started") or account["finished"])
            yield from before(named(run), account, dated)
    last = max(_times(place(study, run) / "02_train.ipynb")[1] for run in runs)
    for name in ("01_data", "03_analysis", "04_figures"):
        path = record_folder(study) / f"{name}.ipynb"
        start, end = _times(path)
        yield from before(path.name, status_of(path), end)
        if name != "01_data":
            if start < last:
                yield f"{path.name} is dated before what it was made from was there"
            last = end


def _times(notebook: Path) -> tuple[float, float]:
    """When the execution of a notebook began and ended."""
    noted = read_json(notebook)["metadata"]["papermill"]
    start, end = (datetime.fromisoformat(noted[f"{name}_time"]) for name in ("start", "end"))
    return start.timestamp(), end.timestamp()


_STATED = """
import json, sys
from lib.study.config import load_study
from lib.study.digests import measuring_digest, training_digest
from lib.study.standing import load_plan, standing
study = load_study(sys.argv[1])
plan = load_plan(study)
print(json.dumps({"training_digest": training_digest(), "measuring_digest": measuring_digest(),
                  "plan": plan.hash if plan else None, "standing": str(standing(study, plan)),
                  "parameters": study.model_dump(mode="json", exclude_defaults=True),
                  "runs": [[arm.id, seed] for arm in study.arms() for seed in study.seeds]}))
"""


def wrong_code(study: str, runs: list[Run]) -> Iterator[str]:
    """Parameters that are not those of the analysis' commit, runs whose digests are not those of
    their commit's code, and runs left out that such a commit asks for; it may ask for fewer."""
    there = [[run["arm"], run["seed"]] for run in runs]
    known: dict[str, dict[str, Any]] = {}
    # Without defaults: a field that came after a run was made changes nothing of it.
    given = yaml.safe_load((record_folder(study) / "parameters.yaml").read_text("utf-8"))
    recorded = Study.model_validate(given).model_dump(mode="json", exclude_defaults=True)
    account = status_of(record_folder(study) / "03_analysis.ipynb")
    if commit := replay.committed(account):
        known[commit] = replay.asked(study, account, _STATED)
        if known[commit]["parameters"] != recorded:
            yield f"parameters.yaml is not params/{study}.yaml of commit {commit[:12]}"
    for run in runs:
        for name, account in run["provenance"].items():
            commit = replay.committed(account)
            if commit is None:
                continue
            if commit not in known:
                known[commit] = replay.asked(study, account, _STATED)
            if [run["arm"], run["seed"]] not in known[commit]["runs"]:
                yield f"{named(run)} names commit {commit[:12]}, which does not ask for it"
            if account.get("plan", known[commit]["plan"]) != known[commit]["plan"]:
                yield f"{named(run)} names a plan that is not that of commit {commit[:12]}"
            notebook = place(study, run) / "02_train.ipynb"
            if name == "executed" and begun(notebook)[:1] != [known[commit]["standing"]]:
                yield f"{named(run)}: its notebook says another standing than commit {commit[:12]}"
            for digest_name in ("training_digest", "measuring_digest"):
                own = known[commit][digest_name]
                if account.get(digest_name, own) != own:
                    yield (
                        f"{named(run)} names a {digest_name} ({name}) that is not that of commit "
                        f"{commit[:12]}"
                    )
    for commit, stated in known.items():
        for arm, seed in stated["runs"]:
            if [arm, seed] not in there:
                yield f"run {arm} seed {seed} of commit {commit[:12]} is left out"


_OWN = {"trace": ("loss", "grad_norm"), "curve": ("dev_loss",), "bins": ("confidence",)}
_OWN |= {"windows": ("nll",), "positions": ("position_loss",)}
"""Columns of raw files in which no two runs are alike."""
_RATE = ("learning_rate", "schedule", "warmup_iterations", "final_learning_rate_ratio")
_MULTIPLIED = ("embedding_norm", "embedding_rms", "branch_multiplier", "embedding_norm_on")
_WHEN = re.compile(r"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2} UTC")


def copied(study: str, runs: list[Run]) -> Iterator[str]:
    """Runs with the final weights or the raw numbers of a run of another seed, or of an arm whose
    parameters make it another training. A diverged run has no weights of its own."""
    seen: dict[tuple[str, Any], list[Run]] = {}
    for run in runs:
        found: list[tuple[str, Any]] = []
        for name, columns in _OWN.items():
            table = read_raw_file(raw_folder(place(study, run) / "02_train.ipynb"), name)
            found += [(c, table[c].to_numpy().tobytes()) for c in columns if len(table)]
        if run["status"] == "completed":
            found.append(("final weights", run["final_weights"]))
        for what, value in found:
            for other in seen.setdefault((what, value), []):
                alike = what not in ("final weights", "nll") or _one_training(study, run, other)
                if run["seed"] != other["seed"] or not alike:
                    yield f"{named(run)} has the {what} of {named(other)}"
            seen[what, value].append(run)


def _multiplied(config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """A model's other fields, and its norm with what it reads and the multipliers that tell it from
    another: of the whole stream only by that of the branches, of token embeddings as they are."""
    model = config.model_dump()
    norm, rms, branches, on = (model.pop(name) for name in _MULTIPLIED)
    whole = on == "sum" or config.positions == "rotary"
    if norm == "scale":  # as `lib.run.model.Scale`
        learned = whole and config.positions == "learned"
        factor = rms / hypot(config.embedding_std, config.position_std if learned else 0)
        if whole or isclose(factor, 1, rel_tol=1e-6):
            norm, rms = "none", factor
    if whole or norm == "none":
        return model, [norm, f"{rms / branches:.6g}"]
    return model, [norm, on, f"{rms:.6g}", f"{branches:.6g}"]


def _one_training(study: str, one: Run, other: Run) -> bool:
    """Whether what two arms of a seed differ in may come to the same: how a run is evaluated, what
    gives equal rates, a clip that nothing reached, stream and branches multiplied alike."""
    sides, traces = [], []
    for run in (one, other):
        model, multiplied = _multiplied(ModelConfig.model_validate(run["config"]["model"]))
        training = dict(run["config"]["training"])
        clip = training.pop("gradient_clip") or inf
        trace = read_raw_file(raw_folder(place(study, run) / "02_train.ipynb"), "trace")
        clip = None if trace["grad_norm"].max() <= clip else clip
        training = {name: value for name, value in training.items() if name not in _RATE}
        sides.append((model, training, multiplied, clip, run["batches"]))
        traces.append(trace["learning_rate"])
    return bool(sides[0] == sides[1] and traces[0].equals(traces[1]))
