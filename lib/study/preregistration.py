"""The claim status of a study: what its numbers may claim under its plan, and why no more.

Part of it is whether the study had runs under another version of its plan: who has seen them can
write a plan to fit.
"""

import io
import json
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product, takewhile
from math import inf
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from lib.results import git_state, parse_time, trained_with
from lib.study.code import GitError, changes, contents
from lib.study.digests import analysing_digest, measuring_digest, training_digest
from lib.study.history import PlanVersion, every_version, plan_history, plan_precedes, precedes
from lib.study.inputs import tasks_hash
from lib.study.io import PAPERS, PARAMS, RUNS, walk, write_json
from lib.study.metrics import MEASURES
from lib.study.plan import Frozen, Plan, Sha256, arms_called, read_plan, rules_file
from lib.study.schema import CODE, EmbeddingNorm, Section, digest
from lib.study.study import Study, StudyName, load_study
from lib.study.yaml import ConfigError, UserError, read_yaml, suggest


class PreregistrationError(UserError):
    """Runs that were not made under the plan they are to be analysed by."""


@dataclass(frozen=True)
class ClaimStatus:
    """What a study's numbers may claim."""

    study: str
    plan: str | None
    """Hash of the plan; None when the study names none."""
    reasons: list[str]
    """Why the study is exploratory; none for a confirmatory one."""
    other_studies: tuple[str, ...] = ()
    """The other studies that the plan names as confirmatory."""

    @property
    def name(self) -> Literal["CONFIRMATORY", "EXPLORATORY"]:
        return "EXPLORATORY" if self.reasons else "CONFIRMATORY"

    def __str__(self) -> str:
        plan = f" under plan {self.plan}" if self.plan else ""
        if self.other_studies:
            plan += f", which also names {', '.join(map(repr, self.other_studies))}"
        return f"{self.name}: study '{self.study}'{plan}" + "".join(f"; {r}" for r in self.reasons)


def load_plan(study: Study) -> Plan | None:
    """Load the plan that a study names; None when it names none.

    Raises ConfigError, with a line per fault, as for a study, and for a measure, variant or study
    that does not exist.
    """
    if study.plan is None:
        return None
    plan = read_plan(study.plan)
    if faults := [f"{study.plan}: {fault}" for fault in check_plan(plan, study)]:
        raise ConfigError("\nerror: ".join(faults))
    return plan


def check_plan(plan: Plan, study: Study) -> Iterator[str]:
    """Yield each name in a plan that names nothing, with what it may have meant: it would drop out
    of the analysis without a word."""
    studies = sorted(path.stem for path in PARAMS.glob("*.yaml"))
    planned = [load_study(name, undrawn=True) for name in plan.confirmatory if name in studies]
    designs = [{arm.id: arm.variant for arm in design.arms()} for design in planned or [study]]
    arm_variants = [arm.variant for design in [study, *planned] for arm in design.arms()]
    variants = list(dict.fromkeys([*get_args(EmbeddingNorm), *arm_variants]))
    rule_sets = sorted(file.stem for file in rules_file("").parent.glob("*.yaml"))
    margins = {**plan.smallest_effect_of_interest, **plan.margins}
    arms = list(dict.fromkeys(chain(*designs, *(test.values() for test in designs))))
    used: list[tuple[str, Iterable[str], Collection[str]]] = [
        ("confirmatory", plan.confirmatory, studies),
        ("frozen", plan.frozen, plan.confirmatory),
        ("rules", filter(None, [plan.rules]), ["none", *rule_sets]),
        *((f"hypotheses.{n}.test", test[1:3], arms) for n, test in plan.bound.items()),
        *((f"families.{n}", chain(*f.contrasts), variants) for n, f in plan.tests_of.items()),
    ]
    measure_fields = {
        "primary": plan.primary_measures,
        "secondary": plan.secondary,
        "imputation": plan.imputation,
        "smallest_effect_of_interest": margins,
        "smoothness": filter(None, [plan.smoothness]),
        **{f"hypotheses.{name}.test": test[3:] for name, test in plan.bound.items()},
        **{f"families.{name}.measures": f.measures for name, f in plan.tests_of.items()},
    }
    measures = [*MEASURES, *chain(*(each.stock_measures for each in [study, *planned]))]
    for field, names, known in [*used, *((*test, measures) for test in measure_fields.items())]:
        yield from (f"{field}: {suggest(name, [*known])}" for name in names if name not in known)
    if not plan.primary_measures:
        yield "primary: names no measure, and no hypothesis has a test; give either"
    answered = plan.bound.keys() | _answered_by_rules(plan)
    unbound = plan.hypotheses.keys() - answered
    if unbound:
        yield f"hypotheses: nothing answers {', '.join(sorted(unbound))}; give each its test"
    if any(design.looks for design in planned) and (plan.families or unbound or plan.rule_set):
        yield "families, rules: are looked at once; a study with looks takes hypotheses with tests"
    for name in set(plan.primary) & set(MEASURES):
        if MEASURES[name].better is None:
            yield f"primary: of {name} neither lower nor higher is better; make it secondary"
    for name, (_, arm, baseline, _) in plan.bound.items():
        for arm_name, design in product((arm, baseline), designs):
            if len(matches := arms_called(arm_name, design)) > 1:
                several = f"'{arm_name}' is {len(matches)} arms; write one of {', '.join(matches)}"
                yield f"hypotheses.{name}.test: {several}"
    for name, family in plan.tests_of.items():
        for measure in family.measures:
            if measure not in [*plan.primary_measures, *plan.secondary]:
                yield f"families.{name}.measures: {measure} is neither primary nor secondary"
            if family.test == "equivalence" and measure not in margins:
                yield f"smallest_effect_of_interest: has none of {measure}, as {name} needs"


def _answered_by_rules(plan: Plan) -> Collection[str]:
    if plan.rule_set is None:
        return set()
    file = rules_file(plan.rule_set)
    answers = read_yaml(file).get("answers", {}) if file.is_file() else plan.hypotheses
    return set(answers)


def claim_status(
    study: Study, plan: Plan | None, runs: Iterable[dict[str, Any]] = ()
) -> ClaimStatus:
    """Hold a study against its plan. `runs` are its results as JSON; before there are any, the
    code at hand stands for the code that they will be made by.

    Confirmatory is only a study that the plan names and is frozen for, made exactly as frozen with
    the seeds drawn, unless git shows that the plan was not committed before the runs, or another
    version of it had runs by then.
    """
    runs = list(runs)
    if plan is None:
        return ClaimStatus(study.name, None, ["it names no plan"])
    frozen = plan.frozen.get(study.name)
    if study.name not in plan.confirmatory:
        reasons = ["the plan does not name it as confirmatory"]
    elif frozen is None:
        reasons = ["the plan was not frozen for it, so fixes no parameters, data, code or seeds"]
    else:
        seeds = plan.draw(study.name, frozen.seeds)
        reasons = [] if study.seeds == seeds else ["its seeds are not those drawn from the plan"]
        reasons += [] if study.looks == frozen.looks else ["its looks are not those of the plan"]
        reasons += _departures(study, frozen, runs)
        commits = [run["provenance"].get("trained", {}).get("commit") for run in runs]
        answer, _, reason = plan_precedes(study.plan or "", plan, commits).partition(": ")
        reasons += [reason] if answer == "no" else []
        reasons += other_versions(study, plan, runs)
    others = tuple(name for name in plan.confirmatory if name != study.name)
    return ClaimStatus(study.name, plan.hash, reasons, others)


def _departures(study: Study, frozen: Frozen, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Name what was not made as the plan froze it, with both values."""
    checks: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("parameters", parameters_digest(study), (frozen.parameters,))
    ]
    # Plans frozen before do not fix it; nor is it the code of an arm that analyses.
    if frozen.analysing_digest and "code" not in git_state():
        checks.append(("analysing_digest", analysing_digest(), (frozen.analysing_digest,)))
    own_tasks = [run.get("tasks_hash") for run in runs]
    for value in own_tasks or [tasks_hash(study.evaluation.include_path)]:
        checks.append(("tasks", value, (frozen.tasks,)))
    for run in runs:
        origin, source = run["provenance"], run["config"]["corpus"]["source"]
        level = run.get("levels", {}).get(CODE)
        code, arm = (frozen.commits.get(level), f" of {level}") if level else (frozen, "")
        checks.append((f"corpus.{source}", run["corpus_sha256"], (frozen.corpus.get(source),)))
        for name, part in (("training_digest", "trained"), ("measuring_digest", "executed")):
            value, fixed = origin.get(part, {}).get(name), getattr(code, name, None)
            checks.append((f"{name}{arm}", value, (fixed,)))
        if run["status"] == "completed":
            checks.append(("suite", run["suite_hash"], tuple(frozen.suite)))
    if not runs and not frozen.commits:
        checks.append(("training_digest", training_digest(), (frozen.training_digest,)))
        checks.append(("measuring_digest", measuring_digest(), (frozen.measuring_digest,)))
    for name, value, allowed in dict.fromkeys(checks):
        if value not in (allowed or (None,)):
            frozen_values = ", ".join(_short(hash_) for hash_ in allowed) or "none"
            yield f"{name} is {_short(value)}, frozen was {frozen_values}"


def parameters_digest(study: Study) -> str:
    """Compute the SHA-256 of the parameters of all arms and what each is held against; of neither
    machine nor seeds."""
    return digest({arm.id: [arm.baseline, arm.config.changed()] for arm in study.arms()})


def _short(value: str | None) -> str:
    return value[:12] if value else "none"


def require_stamps(plan: Plan | None, stamps: dict[str, str | None]) -> None:
    """Raise PreregistrationError naming the first run (name → stamped hash) whose stamp is not the
    plan's, with both hashes."""
    expected = plan.hash if plan else None
    for run, stamp in stamps.items():
        if stamp != expected:
            raise PreregistrationError(
                f"run {run} was made under plan {stamp}, and the plan's hash is {expected}: "
                "restore the plan that it was made under, or rerun ./run_all.sh, which trains it "
                "anew under this one"
            )


TELLING = "0[234]*.ipynb"
"""Notebooks that tell that a study had runs: of each, and of the analysis and figures of all."""
WHOLE_ZIP = "record.zip"
"""What the file of a sealed record holds: a zip of all files, compressed as a whole since notebooks
of runs resemble one another. In older ones each file is compressed by itself."""
ATTEMPTS = "other-versions.json"
"""In a study's folder of `runs/` and in its record: such runs as were known when it was recorded,
so that the record tells of them when the runs themselves are gone."""

RUN_FILES = {"provenance.json", "result.json", "03_analysis.json", ATTEMPTS}
"""What tells of runs in `runs/`."""


_WHEN = r"^(\d{4}(-\d\d){2}[ T]\d\d(:\d\d){2}(\.\d+)?( UTC|Z|[+-]\d\d:\d\d)?)?$"


class Attempt(Section):
    """Runs under a version of a plan, by the first of them."""

    plan: Sha256
    """Hash of the version."""
    study: StudyName
    started: Annotated[str, Field(pattern=_WHEN)]
    """When; empty where nothing tells."""
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")]
    """By which code; empty outside git."""


def attempts(study: str, file: str) -> list[Attempt]:
    """Find the runs of a study under any plan, in `runs/`, in the record and in all of git's
    history. Runs of every study that a version of this plan ever named count where they were made
    under a version of it. Return one for each version and study, the oldest first. Runs under no
    plan are under no version of it."""
    versions = every_version(file)
    hashes = {version.hash for version in versions}
    names = dict.fromkeys([study, *(name for v in versions for name in v.confirmatory)])
    all_attempts = [*_in_runs(names), *_in_git(names, versions), *_in_record(names)]
    first: dict[tuple[str, str], Attempt] = {}
    for attempt in sorted(all_attempts, key=lambda attempt: _time(attempt.started)):
        if attempt.study == study or attempt.plan in hashes:
            first.setdefault((attempt.plan, attempt.study), attempt)
    return list(first.values())


def other_versions(study: Study, plan: Plan, runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Name each other version of a plan that had runs when this one was committed, or came into
    use again, or before the last of the study's own runs began. Before there are any, every one
    counts. A version that was tried later takes nothing from this one, unless it was merged."""
    file = study.plan or ""
    try:
        versions = plan_history(file)
        committed = {version.hash: version for version in every_version(file)}  # oldest of each
        others = [other for other in attempts(study.name, file) if other.plan != plan.hash]
    except GitError as error:
        yield f"git cannot tell whether another version of its plan had runs: {error}"
        return
    current = list(takewhile(lambda version: version.hash == plan.hash, versions))[-1:]
    starts = [run["provenance"].get("trained", {}).get("started") for run in runs]
    last = max((_time(start) if start else inf for start in starts), default=inf)
    merged = [inf] if versions and not current else []  # a merge kept this version
    cutoff = max([last, *merged, *(_time(version.date) for version in current)])
    for other in others:
        earlier = [v for v in current if other.commit not in ("", v.commit)]
        if _time(other.started) < cutoff or any(precedes(other.commit, v.commit) for v in earlier):
            version = committed.get(other.plan)
            when = f"committed {version.date[:10]} at {version.commit[:12]}" if version else ""
            yield (
                f"there were runs of '{other.study}' under another version of its plan, "
                f"{other.plan[:12]} ({when or 'never committed in its history'})"
            )


def write_other_versions(study: Study, folder: Path) -> None:
    """Write into a study's record which other versions of its plan had runs, if any had."""
    if study.plan:
        plan_hash = read_plan(study.plan).hash
        others = [m for m in attempts(study.name, study.plan) if m.plan != plan_hash]
        if others:
            write_json(folder / ATTEMPTS, [attempt.model_dump() for attempt in others], indent=None)


def _in_runs(studies: Collection[str]) -> Iterator[Attempt]:
    """Read what is said anywhere in `runs/`: in the folders of the studies, and by any provenance
    that names its study, whatever its folder is called and wherever that lies."""
    for path in walk(RUNS):
        if path.name in RUN_FILES:
            folder = path.relative_to(RUNS).parts[0]
            yield from _attempts_in(path, folder if folder in studies else None)


def _in_record(studies: Iterable[str]) -> Iterator[Attempt]:
    """Read what records say of their runs: notebooks, and what was kept, sealed or not; in older
    ones, results do."""
    for study in studies:
        for path in PAPERS.glob(f"*/record/{study}.zip"):
            yield from _in_sealed(path.read_bytes(), study)
        record = f"record/{study}"
        patterns = f"results/{study}.json", f"{record}/{ATTEMPTS}", f"{record}/**/{TELLING}"
        for path in chain(*(PAPERS.glob(f"*/{pattern}") for pattern in patterns)):
            yield from _attempts_in(path, study)


def _in_git(studies: Iterable[str], versions: list[PlanVersion]) -> Iterator[Attempt]:
    """Read what every branch held of the studies' results and executed notebooks, sealed or not,
    and of `runs/`, and which seeds that a version of the plan drew an index or results named."""
    patterns = ["papers/*/record/index.json", *(f"runs/**/{name}" for name in sorted(RUN_FILES))]
    for study in studies:
        record = f"papers/*/record/{study}"
        patterns += [f"papers/*/results/{study}{end}.json" for end in ("", ".verdict")]
        patterns += [f"{record}.zip"]
        patterns += [f"{record}/{ATTEMPTS}", f"{record}/**/{TELLING}"]
    history = changes("--all", "--full-history", "--", *(f":(glob){p}" for p in patterns))
    files = {(c.blob, c.name): c for c in history if c.blob.strip("0")}  # the oldest
    drawn = list(_drawn(versions))
    texts = contents(tuple(blob for blob, _ in files))
    for change, text in zip(files.values(), texts, strict=True):
        name = change.name
        folder = re.search(r"/(?:results|record)/([^/.]+)", name)
        if name.endswith("/index.json") or "/results/" in name:
            for plan, study, seed in drawn:
                if re.search(rf"\b{seed}\b".encode(), text):
                    of = {"plan": plan, "study": study, "commit": change.commit}
                    yield Attempt(**of, started=change.date)
        if folder and name.endswith(".zip"):
            yield from _in_sealed(text, folder[1])
        else:
            yield from _attempts_in(text, folder[1] if folder else None)


def _in_sealed(packed: bytes, study: str) -> Iterator[Attempt]:
    """Read a record that was sealed; nothing where it is damaged."""
    # zipfile lets through what its decompressors raise.
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(packed)) as files:
        for name in files.namelist():
            if name == WHOLE_ZIP:
                yield from _in_sealed(files.read(name), study)
            elif PurePath(name).match(TELLING) or name == ATTEMPTS:
                yield from _attempts_in(files.read(name), study)


def _drawn(versions: list[PlanVersion]) -> Iterator[tuple[str, str, int]]:
    """Return the first seed that each version of a plan drew for each of its studies."""
    for version in {version.hash: version for version in versions}.values():
        with suppress(ValidationError):
            plan = Plan.model_validate(version.plan)
            yield from ((plan.hash, study, plan.draw(study, 1)[0]) for study in plan.frozen)


def _attempts_in(file: Path | bytes, study: str | None) -> Iterator[Attempt]:
    """Read the provenance of a run, a result, results, an executed notebook, or what was kept (a
    file, or its text). What is damaged hides nothing beside it."""
    content: Any = None
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(file.read_bytes() if isinstance(file, Path) else file)
    is_kept, runs = isinstance(content, list), [content]
    if isinstance(content, dict) and isinstance(content.get("runs"), list):
        runs = content["runs"]
    for item in content if is_kept else runs:
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # nothing that was run
            content_of = item if is_kept else _trained_fields(item)
            fields = {name: str(content_of.get(name) or "") for name in Attempt.model_fields}
            yield Attempt(**fields | ({} if is_kept or not study else {"study": study}))


def _trained_fields(content: Any) -> dict[str, Any]:
    """By what a run was begun: from a notebook's metadata, a result, or the provenance alone."""
    if stamp := content.get("metadata"):
        started = stamp["papermill"]["start_time"]
        return trained_with(stamp["study"]) | {"study": None, "started": started}
    provenance = content.get("provenance", content)
    return trained_with(provenance.get("trained", provenance))


def _time(text: str) -> float:
    """Return when something was, in seconds; 0 where nothing tells, which counts as before all
    else."""
    try:
        return parse_time(text).timestamp()
    except ValueError:
        return 0.0
