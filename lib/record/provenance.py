"""Whether a record comes from what it names: commits, plan, parameters, and times that can be."""

import json
import re
from collections.abc import Iterator
from functools import cache
from math import hypot, inf, isclose
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lib.record.notebook import unexecuted
from lib.record.record import Record, Run, run_name
from lib.record.replay import ask_code_of, committed, made_by
from lib.record.runs import printed_parameters
from lib.results import deciding_parameters, parse_time, status_of
from lib.study.code import git, is_checkout
from lib.study.io import NOTEBOOKS, PLANS, ROOT
from lib.study.plan import Commit, Plan
from lib.study.preregistration import ATTEMPTS, Attempt, load_plan, other_versions
from lib.study.schema import CODE, ModelConfig, digest
from lib.study.study import load_study
from lib.study.yaml import explain, read_yaml

_WHEN = re.compile(r"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2} UTC")
_OWN = {
    **{"trace": ("loss", "grad_norm"), "curve": ("dev_loss",), "windows": ("nll",)},
    **{"bins": ("confidence",), "positions": ("position_loss",)},
}
"""Columns of raw files in which no two runs are alike."""
_RATE = ("learning_rate", "schedule", "warmup_iterations", "final_learning_rate_ratio")
_MULTIPLIED = ("embedding_norm", "embedding_rms", "branch_multiplier", "embedding_norm_on")


def check_code(record: Record) -> Iterator[str]:
    """Yield notebooks whose code and text are not those of the commit that they name, or whose
    commit this repository's history does not hold. Where the working tree was not as committed,
    code and text may be those of this checkout."""
    if not is_checkout():
        return
    environments = {path: status_of(path) for path in record.folder.glob("*.ipynb")}
    environments |= {record.run_notebook(run): run["provenance"]["executed"] for run in record.runs}
    source = cache(_source)
    in_history = cache(lambda c: git("merge-base", "--is-ancestor", c, "HEAD") is not None)
    on_a_branch = cache(lambda c: bool(git("for-each-ref", "--count=1", "--contains", c)))
    for path, environment in environments.items():
        name, commit, code = record.name(path), environment.get("commit"), environment.get("code")
        lost = [commit] if commit and not in_history(commit) else []
        if lost := lost or ([code] if code and not on_a_branch(code) else []):
            yield f"{name} names commit {lost[0][:12]}, which this history does not hold"
            continue
        clean = code or committed(environment)
        sources = [source(at, path.name) for at in ([clean] if clean else [commit, None])]
        if unexecuted(record.read(path)) not in sources:
            code = f"commit {clean[:12]}" if clean else "this checkout"
            yield f"{name} holds other code or text than that of {code}"


def _source(commit: str | None, notebook: str) -> list[Any]:
    """Read a notebook of `notebooks/` at a commit (None: in this checkout)."""
    text = git("show", f"{commit}:notebooks/{notebook}") if commit else None
    return unexecuted(json.loads(text or (NOTEBOOKS / notebook).read_text("utf-8")))


def check_origins(record: Record) -> Iterator[str]:
    """Yield what a run's origin says otherwise than its result, its notebook, or its arm: levels,
    variant, setting and baseline decide what a run is compared with."""
    study, commits = load_study(record.study), record.parameters.commits
    arm_called = cache(study.arm)
    for run in record.runs:
        notebook = record.read(record.run_notebook(run))["metadata"]
        yield from (f"{run_name(run)}: {fault}" for fault in _wrong_origin(run, notebook))
        arm = arm_called(run["arm"])
        for name in ("levels", "variant", "setting", "baseline"):
            if run[name] != (expected := getattr(arm, name)):
                yield f"{run_name(run)}: its {name} is {run[name]!r}, and of its arm {expected!r}"
        if level := arm.levels.get(CODE):
            yield from _other_code(run, commits.get(str(level)))


def _other_code(run: Run, by: Commit | None) -> Iterator[str]:
    for name, part in (("training_digest", "trained"), ("measuring_digest", "executed")):
        environment = run["provenance"][part]
        if environment.get("code") is None or environment[name] != getattr(by, name, None):
            yield f"{run_name(run)} was {part} by other code than that of its commit"


def _wrong_origin(run: Run, metadata: dict[str, Any]) -> Iterator[str]:
    trained, executed = run["provenance"]["trained"], run["provenance"]["executed"]
    for environment, name in ((trained, "started"), (executed, "finished")):
        if not _WHEN.fullmatch(str(environment[name])):
            yield f"{name} is {environment[name]!r}, and no time like 2026-01-31 23:59:59 UTC"
            return
    for name in ("study", "arm", "seed", "corpus_sha256"):
        if trained[name] != run[name]:
            yield f"it was trained with {name} {trained[name]!r}, and is filed under {run[name]!r}"
    # Finished weights may be measured anew, with another suite or other settings of evaluation.
    anew = executed["from_checkpoint"]
    parameters: list[Any] = [trained["parameters"], run["config"]]
    if anew:
        parameters = list(map(deciding_parameters, parameters))
    if parameters[0] != parameters[1]:
        yield "it was trained with other parameters than its result says"
    suite = trained["suite_hash"]
    if trained["parameters"]["evaluation"]["items_per_task"] != 0:
        suite = suite or run["suite_hash"]  # newer runs name none: it decides no weights
    if run["status"] == "completed" and not anew and suite != run["suite_hash"]:
        yield "it was asked another suite than was prepared for it"
    stamp = metadata["study"]
    if [stamp["commit"], stamp.get("code")] != [executed["commit"], executed.get("code")]:
        yield "its notebook is stamped with another commit than its result"
    if metadata["study"]["preregistration"] != trained["plan"]:
        yield "its notebook is stamped with another plan than it was trained under"
    start, end = _times(metadata)
    began, ended = _time(trained["started"]), _time(executed["finished"])
    fresh = not (anew or run["resumed_at"])
    if not (began <= ended <= end and (not fresh or start < began + 1)):
        yield "it was trained at another time than its notebook was executed"
    if fresh and sum(run["seconds"].values()) > ended - began + 1:
        yield "it says that it took longer than from its start to its end"
    environments = [trained, executed] if fresh else [trained]
    same = ("commit", "code", "packages", "machine")
    if len({digest([environment.get(name) for name in same]) for environment in environments}) > 1:
        yield "it names two commits, machines or versions for one execution"


def _time(text: str) -> float:
    return parse_time(text).timestamp()


def _times(metadata: dict[str, Any]) -> tuple[float, float]:
    """Return when the execution of a notebook began and ended."""
    papermill = metadata["papermill"]
    return _time(papermill["start_time"]), _time(papermill["end_time"])


def check_plan(record: Record) -> Iterator[str]:
    """Yield parameters that are others today, which the paper would quote (seeds may have been
    added), and a plan that is another one, in record or today, than the runs were made under."""
    study, recorded = load_study(record.study), record.folder / "plan.yaml"
    if study.hash != record.parameters.hash:
        yield f"params/{record.study}.yaml is another study today than was recorded"
    today = load_plan(study)
    made_under = {run["provenance"]["trained"]["plan"] for run in record.runs}
    if made_under != {today.hash if today else None}:
        yield "its plan is another one today than its runs were made under"
    if today:
        recorded_plan = Plan.model_validate(read_yaml(recorded))
        if recorded_plan.hash != today.hash:
            yield "plan.yaml is not the plan that its runs were made under"
        if today.deviations[: len(recorded_plan.deviations)] != recorded_plan.deviations:
            yield "deviations in its plan.yaml were removed from the plan since, or rewritten"
    commit = committed(status_of(record.notebook("03_analysis")))
    if commit and study.plan:
        plan_text = git("show", f"{commit}:{(PLANS / study.plan).relative_to(ROOT)}")
        if plan_text != (recorded.read_text("utf-8") if recorded.is_file() else ""):
            yield f"plan.yaml is not the plan of commit {commit[:12]}"


def check_versions(record: Record) -> Iterator[str]:
    """Yield runs under another version of the plan, of which a confirmatory verdict does not
    tell, and what the record keeps of such runs that is not plan, study, time or commit."""
    kept = record.folder / ATTEMPTS
    for each in record.read(kept) if kept.is_file() else ():
        try:
            Attempt.model_validate(each)
        except ValidationError as error:
            yield f"{ATTEMPTS}: {explain(error, Attempt)}"
    study = load_study(record.study)
    plan = load_plan(study)
    if plan and record.verdict["standing"] == "CONFIRMATORY":
        for reason in other_versions(study, plan, record.runs):
            yield f"its verdict stands as confirmatory, but {reason}"


def check_times(record: Record) -> Iterator[str]:
    """Yield runs and notebooks dated before the commit that they name, and an analysis before its
    runs."""
    date = cache(lambda commit: float(git("show", "-s", "--format=%ct", commit) or 0))

    def before(name: str, environment: dict[str, Any], dated: float) -> Iterator[str]:
        for commit in filter(None, (environment.get("commit"), environment.get("code"))):
            if is_checkout() and dated < date(commit):
                yield f"{name} is dated before commit {commit[:12]}, which it names"

    def times(path: Path) -> tuple[float, float]:
        return _times(record.read(path)["metadata"])

    for run in record.runs:
        for environment in run["provenance"].values():
            dated = _time(environment.get("started") or environment["finished"])
            yield from before(run_name(run), environment, dated)
    last = max(times(record.run_notebook(run))[1] for run in record.runs)
    for name in ("01_data", "03_analysis", "04_figures"):
        path = record.notebook(name)
        start, end = times(path)
        yield from before(path.name, status_of(path), end)
        if name != "01_data":
            if start < last:
                yield f"{path.name} is dated before what it was made from was there"
            last = end


def check_commits(record: Record) -> Iterator[str]:
    """Yield parameters that are not those of the analysis' commit, and runs whose digests are not
    those of their commit's code. Yield also runs that were made by different code, and runs left
    out that such a commit asks for; it may ask for fewer. Print how many runs name no committed
    code."""
    present = [[run["arm"], run["seed"]] for run in record.runs]
    states: dict[Any, dict[str, Any]] = {}  # by the commits of parameters and of code
    environment = status_of(record.notebook("03_analysis"))
    if commit := committed(environment):
        states[by := made_by(environment)] = ask_code_of(environment, "state", record)
        # Without defaults: a field that came after a run was made changes nothing of it.
        recorded = record.parameters.model_dump(mode="json", exclude_defaults=True)
        if states[by]["parameters"] != recorded:
            yield f"parameters.yaml is not params/{record.study}.yaml of commit {commit[:12]}"
    for run in record.runs:
        for name, environment in run["provenance"].items():
            if committed(environment):
                if (by := made_by(environment)) not in states:
                    states[by] = ask_code_of(environment, "state", record)
                yield from _unlike_commit(record, run, name, by[1] or by[0] or "", states[by])
    for (commit, _), state in states.items():
        for arm, seed in state["runs"]:
            if [arm, seed] not in present:
                yield f"run {arm} seed {seed} of commit {commit[:12]} is left out"
    for digest_name, name in (("training_digest", "trained"), ("measuring_digest", "executed")):
        others: dict[str | None, dict[str, Run]] = {}
        for run in record.runs:
            of_level = others.setdefault(run["levels"].get(CODE), {})
            of_level.setdefault(run["provenance"][name][digest_name], run)
        for of_level in others.values():
            if len(of_level) > 1:
                runs = ", ".join(map(run_name, of_level.values()))
                yield f"its runs have different {digest_name}s: {runs}"
    uncommitted = sum(not run["provenance"]["trained"].get("clean") for run in record.runs)
    if uncommitted:
        print(f"{record.study}: the code of {uncommitted} of {len(record.runs)} runs was not "
              "committed; their digests are not compared with any", flush=True)  # fmt: skip


def _unlike_commit(
    record: Record, run: Run, name: str, commit: str, state: dict[str, Any]
) -> Iterator[str]:
    environment, short, label = run["provenance"][name], commit[:12], run_name(run)
    if [run["arm"], run["seed"]] not in state["runs"]:
        yield f"{label} names commit {short}, which does not ask for it"
    if environment.get("plan", state["plan"]) != state["plan"]:
        yield f"{label} names a plan that is not that of commit {short}"
    notebook = record.read(record.run_notebook(run))
    if name == "executed" and printed_parameters(notebook)[:1] != [state["standing"]]:
        yield f"{label}: its notebook says another standing than commit {short}"
    for digest_name in ("training_digest", "measuring_digest"):
        if environment.get(digest_name, state[digest_name]) != state[digest_name]:
            yield f"{label} names a {digest_name} ({name}) that is not that of commit {short}"


def check_copies(record: Record) -> Iterator[str]:
    """Yield runs with the final weights or the raw numbers of a run of another seed, or of an arm
    whose parameters make it another training. A diverged run has no weights of its own."""
    seen: dict[tuple[str, Any], list[Run]] = {}
    for run in record.runs:
        fingerprints: list[tuple[str, Any]] = []
        for name, columns in _OWN.items():
            table = record.raw(run)[name]
            fingerprints += [(c, table[c].to_numpy().tobytes()) for c in columns if len(table)]
        if run["status"] == "completed":
            fingerprints.append(("final weights", run["final_weights"]))
        for what, value in fingerprints:
            for other in seen.setdefault((what, value), []):
                alike = what not in ("final weights", "nll") or _one_training(record, run, other)
                if run["seed"] != other["seed"] or not alike:
                    yield f"{run_name(run)} has the {what} of {run_name(other)}"
            seen[what, value].append(run)


def _one_training(record: Record, one: Run, other: Run) -> bool:
    """Tell whether what two arms of a seed differ in may come to the same: how a run is evaluated,
    code, what gives equal rates, a clip that nothing reached, stream and branches multiplied
    alike."""
    if one["levels"].get(CODE) != other["levels"].get(CODE):
        return True
    decisive, traces = [], []
    for run in (one, other):
        model, multiplied = _multiplied(ModelConfig.model_validate(run["config"]["model"]))
        training = dict(run["config"]["training"])
        clip, trace = training.pop("gradient_clip") or inf, record.raw(run)["trace"]
        clip = None if trace["grad_norm"].max() <= clip else clip
        training = {name: value for name, value in training.items() if name not in _RATE}
        decisive.append((model, training, multiplied, clip, run["batches"]))
        traces.append(trace["learning_rate"])
    return bool(decisive[0] == decisive[1] and traces[0].equals(traces[1]))


def _multiplied(config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """Return a model's other fields, and its norm with what it reads and the multipliers that tell
    it from another: of the whole stream only by that of the branches, of token embeddings as they
    are."""
    model = config.model_dump()
    norm, rms, branches, on = (model.pop(name) for name in _MULTIPLIED)
    whole = on == "sum" or config.positions == "rotary"
    if norm == "scale":  # as the model's layer of this name
        learned = whole and config.positions == "learned"
        factor = rms / hypot(config.embedding_std, config.position_std if learned else 0)
        if whole or isclose(factor, 1, rel_tol=1e-6):
            norm, rms = "none", factor
    if whole or norm == "none":
        return model, [norm, f"{rms / branches:.6g}"]
    return model, [norm, on, f"{rms:.6g}", f"{branches:.6g}"]
