"""Check a study against its plan, to decide what its numbers may claim.

A study is confirmatory only if its seeds follow from its plan's hash, its runs were made exactly as
the plan was frozen, and git shows that the plan was committed before the runs. If git cannot tell,
the study is neither confirmatory nor exploratory, but unverified.
"""

import shlex
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from lib.config.contrasts import Grid, arm_weights
from lib.config.errors import ConfigError, UserError, suggest
from lib.config.metrics import JUDGED, MEASURES, PER_TOKEN
from lib.config.paths import PARAMS, PLANS, listed, relative
from lib.config.plan import Plan, published_plans, read_plan
from lib.config.provenance import git, is_checkout
from lib.config.schema import CODE, digest, vocabulary
from lib.config.study import Study, load_study
from lib.config.yaml import Json, parse_yaml, read_yaml

Run = Json
"""A run's result, as JSON."""


@cache
def load_plan(study: Study) -> Plan | None:
    """Load the plan that a study names; None if it names none. The file is read only once, so a
    loaded study keeps its plan.

    Raises ConfigError, with a line per fault. A measure, arm or study that does not exist is also a
    fault. The names in a published plan are not checked, because some of its studies are gone.
    """
    if study.plan is None:
        return None
    plan = read_plan(study.plan)
    if study.plan in published_plans():
        return plan
    if faults := [f"plans/{study.plan}: {fault}" for fault in check_plan(plan, study)]:
        raise ConfigError("\nerror: ".join(faults))
    return plan


def check_plan(plan: Plan, study: Study) -> Iterator[str]:
    """Yield a message for each unknown name in a plan, with the nearest known one. The analysis
    would skip such a name silently. If the plan is for another study, check its names against that
    study."""
    studies = [path.stem for path in listed(PARAMS, "*.yaml")]
    planned = [name for name in plan.confirmatory if name in studies]
    if planned and study.name not in planned:
        study = load_study(planned[0], undrawn=True)
    arms = {arm.id: arm for arm in study.arms()}
    variants = {arm.id: arm.variant for arm in arms.values()}
    levels = {arm.id: arm.levels for arm in arms.values()}
    called = [*arms, *variants.values()]
    known_names = dict.fromkeys([*called, *Grid(levels).level_names()])
    measures = [*MEASURES, *study.stock_measures]
    names: list[tuple[str, Iterable[str], Collection[str]]] = [
        ("confirmatory", plan.confirmatory, studies),
        ("frozen", plan.frozen, plan.confirmatory),
        ("primary", plan.primary_measures, measures),
        ("secondary", plan.secondary, measures),
        ("smallest_effect_of_interest", plan.smallest_effect_of_interest, measures),
    ]
    texts = {arm.variant: vocabulary(dict(arm.config.corpus)) for arm in arms.values()}
    remedy = "is per token, and the arms' tokens differ; write bits_per_character, which all share"
    for name, family in plan.families.items():
        for measure in PER_TOKEN.intersection(family.measures):
            if any(texts.get(one) != texts.get(other) for one, other in family.contrasts):
                yield f"families.{name}.measures: {measure} {remedy}"
        names.append((f"families.{name}", chain(*family.contrasts), variants.values()))
        names.append((f"families.{name}.measures", family.measures, measures))
    for name, h in plan.bound.items():
        field = f"hypotheses.{name}.test"
        sides = ([side] if side in called else side.split(",") for side in chain(*h.pairs))
        asked = list(chain(*sides))
        names.append((field, asked, known_names))
        names.append((field, [h.measure], measures))
        weights = arm_weights(h.pairs, variants, levels, h.minus_share)
        if not weights and known_names.keys() >= {*asked}:
            some = textwrap.shorten("; ".join(arms), 400, placeholder=" …")
            pair = f"{' and '.join(h.pairs[0])} are not two arms or levels of otherwise equal arms"
            yield f"{field}: {pair}; write two of {some}, or levels with their fields"
        of_test = {vocabulary(dict(arms[arm].config.corpus)) for arm in weights}
        if h.measure in PER_TOKEN and len(of_test) > 1:
            yield f"{field}: {h.measure} {remedy}"
    for field, used, known in names:
        yield from (f"{field}: {suggest(name, known)}" for name in used if name not in known)
    if unbound := plan.hypotheses.keys() - plan.bound.keys():
        yield f"hypotheses: no test for {', '.join(sorted(unbound))}; give each hypothesis one"
    tested = plan.bound.values()
    needed = {h.measure for h in tested if h.direction and h.measure not in JUDGED}
    needed.update(*(f.measures for f in plan.families.values() if f.test == "equivalence"))
    for measure in sorted(needed - plan.smallest_effect_of_interest.keys()):
        missing = f"has no value for {measure}; write the smallest difference that matters"
        yield f"smallest_effect_of_interest: {missing}"


@dataclass(frozen=True)
class ClaimStatus:
    """What a study's numbers may claim."""

    study: str
    plan: str | None
    """Hash of the plan; None if the study names none."""
    name: str
    """CONFIRMATORY, EXPLORATORY, or UNVERIFIED: everything is as in the plan, but git cannot tell
    if the plan came first."""
    reasons: list[str]
    """Why the study is not confirmatory, or not known to be."""

    def __str__(self) -> str:
        plan = f" under plan {self.plan}" if self.plan else ""
        return "; ".join([f"{self.name}: study '{self.study}'{plan}", *self.reasons])


def claim_status(study: Study, plan: Plan | None, runs: Collection[Run] = ()) -> ClaimStatus:
    """Check a study against its plan. `runs` are its results as JSON.

    A study is confirmatory only if

    - the plan names it and was frozen for it;
    - one code made all runs exactly as frozen, with the drawn seeds;
    - git shows that the plan was committed before every run.
    """
    unknown: list[str] = []
    if plan is None:
        reasons = ["it names no plan"]
    elif study.name not in plan.confirmatory:
        reasons = ["the plan does not name it as confirmatory"]
    elif study.name not in plan.frozen:
        reasons = ["the plan was not frozen for it, so fixes no parameters, data or seeds"]
    else:
        commits = [run["provenance"]["trained"]["commit"] for run in runs]
        later, unknown = _precedes(str(study.plan), dict.fromkeys(commits))
        if plan.frozen[study.name].committed_code and any(None in _clean(run) for run in runs):
            unknown.append("git could not tell if a run's code was committed: make runs in a clone")
        reasons = [*dict.fromkeys(_departures(study, plan, runs)), *later]
    name = "UNVERIFIED" if unknown else "CONFIRMATORY"
    if reasons:
        name = "EXPLORATORY"
    return ClaimStatus(study.name, plan.hash if plan else None, name, reasons or unknown)


def _departures(study: Study, plan: Plan, runs: Collection[Run]) -> Iterator[str]:
    """Yield each way in which the study is not as the plan froze it."""
    frozen = plan.frozen[study.name]
    if study.seeds != plan.draw(study.name, frozen.seeds):
        yield "its seeds are not those drawn from the plan"
    if parameters_digest(study) != frozen.parameters:
        yield "its parameters are not those that the plan froze"
    for run in runs:
        source = run["config"]["corpus"]["source"]
        if run["corpus_sha256"] != frozen.corpus.get(source):
            yield f"corpus.{source} is not the text that the plan froze"
        # None: the study asks no suite.
        if run["status"] == "completed" and run["suite_hash"] not in (frozen.suite or (None,)):
            yield "its task suite is not the one that the plan froze"
        if run.get("tasks_hash") != frozen.tasks:
            yield "the tasks of evaluation.include_path are not those that the plan froze"
        if frozen.committed_code and False in _clean(run):
            yield "a run was made by code or parameters that were not committed"
    made_by: dict[Any, set[Any]] = {}
    for run in runs:
        trained, executed = run["provenance"]["trained"], run["provenance"]["executed"]
        keys = trained["training_digest"], executed["measuring_digest"]
        made_by.setdefault(run["levels"].get(CODE), set()).add(keys)
    if any(len(keys) > 1 for keys in made_by.values()):
        yield "its runs were made by more than one code"


def _clean(run: Run) -> list[bool | None]:
    """Return whether code and parameters were committed, first when a run was trained, then when it
    was measured. None means that git could not tell."""
    return [run["provenance"][part]["clean"] for part in ("trained", "executed")]


def parameters_digest(study: Study) -> str:
    """Compute the SHA-256 of all arms' parameters and baselines, without machine and seeds."""
    return digest({arm.id: [arm.baseline, arm.config.changed()] for arm in study.arms()})


def _precedes(file: str, commits: Collection[str | None]) -> tuple[list[str], list[str]]:
    """Ask git whether the runs' commits contain the plan as it is now. Return two lists: signs that
    the plan was committed after a run, and questions that git cannot answer, with the remedy."""
    if not is_checkout():
        trust = 'git config --global --add safe.directory "$PWD"'
        return [], [f"git tells nothing here: take a clone, or if it is another user's, {trust}"]
    if git("rev-parse", "--quiet", "--verify", "HEAD") and git("log", "-1") is None:
        return [], ["git cannot read the history here: git fsck says what is missing"]
    now = Plan.content_hash(read_yaml(PLANS / file))
    is_committed = bool(plan_at("HEAD", now, file))
    later, unknown = [], dict[str, None]()
    for commit in commits or ["HEAD"]:  # without runs, the commit that would make them
        if commit is None:
            unknown["a run was made outside git, so its code is at no commit"] = None
        elif plan_at(commit, now, file):
            continue
        elif not _is_here(commit) and commit != "HEAD":
            unknown[_missing(commit)] = None
        elif is_committed:
            later.append(f"the plan as it is now is not in commit {commit[:12]}, which made runs")
        else:
            unknown["the plan as it is now is not committed: commit it before the runs"] = None
    return later, list(unknown)


def _is_here(commit: str) -> bool:
    """Return whether git can read a commit's plans. In a partial clone that needs a network."""
    listed = git("ls-tree", "-z", "--name-only", commit, "--", "params/plans/")
    paths = (listed or "").split("\0")[:-1]
    found = (git("cat-file", "-e", f"{commit}:{path}") for path in paths)
    return listed is not None and None not in found


def _missing(commit: str) -> str:
    """Return how to fetch a missing commit. Archiving has tagged the commits of runs, so git keeps
    them even if history is rewritten."""
    if (git("rev-parse", "--is-shallow-repository") or "").strip() == "true":
        return "this clone lacks a part of its history: git fetch --unshallow --tags"
    return f"commit {commit[:12]} is not here: git fetch --tags"


def plan_at(commit: str, content: str, file: str) -> str | None:
    """Return the path of the plan with this hash (see `Plan.content_hash`) in a commit, even if it
    is not called `file` there; None if the commit has no such plan."""
    listed = git("ls-tree", "-z", "--name-only", commit, "--", "params/plans/") or ""
    for path in dict.fromkeys([f"params/plans/{file}", *filter(None, listed.split("\0"))]):
        with suppress(ConfigError, TypeError, ValueError):  # it may be a draft
            then = parse_yaml((git("show", f"{commit}:{path}") or "").encode(), path)
            if Plan.content_hash(then) == content:
                return path
    return None


def require_plan_of_runs(
    study: Study, made: Collection[tuple[str | None, str | None]], kept: Path | None = None
) -> None:
    """Raise ConfigError if a study's plan changed after its runs. Otherwise the sweep would draw
    other seeds, train all runs again, and replace the record. `made` has the plan's hash and the
    commit of each run that was made under another plan. `kept` is a copy of that other plan."""
    if not made:
        return
    ((was, _),) = Counter(plan for plan, _ in made).most_common(1)
    runs = f"{len(made)} run{'s' * (len(made) > 1)}"
    if was is None:
        fault = f"{runs} made without a plan came before {study.plan}"
        remedy = f"remove `plan: {study.plan}` in params/{study.name}.yaml"
    else:
        fault = f"{study.plan or 'the plan'} changed after {runs} (made under {was[:8]})"
        remedy = _restoring(study, was, [commit for _, commit in made if commit], kept)
    new = "for another plan, give the study and its plan new names"
    raise ConfigError(f"plan: {fault}: {remedy}; {new}")


def _restoring(study: Study, was: str, commits: list[str], kept: Path | None) -> str:
    """Return how to restore the plan with this hash. It may be in another file, in git, or in a
    copy."""
    for other in (path.name for path in listed(PLANS, "*.yaml")):
        with suppress(ConfigError):
            if other != study.plan and read_plan(other).hash == was:
                return f"write `plan: {other}` in params/{study.name}.yaml"
    file = study.plan or f"{study.name}.yaml"
    target = f"params/plans/{file}"
    log = (git("log", "--all", "--format=%H", "--", "params/plans") or "").split()
    for commit in dict.fromkeys(["", "HEAD", *commits, *log]):  # "" is git's index
        if path := plan_at(commit, was, file):
            command = shlex.join(["git", "checkout", *filter(None, [commit[:12]]), path])
            if study.plan and path != target:
                command = f"{shlex.join(['git', 'show', f'{commit[:12]}:{path}'])} > {target}"
            return f"`{command}` restores it"
    if kept:
        return f"`{shlex.join(['cp', relative(kept), target])}` restores it"
    return "undo that; git knows no version of it"


def require_same_plan(plan: Plan | None, stamps: dict[str, str | None]) -> None:
    """Raise UserError, with both hashes, for the first run that was made under another plan.
    `stamps` maps the name of a run to the plan's hash in its result."""
    expected = plan.hash if plan else None
    for run, stamp in stamps.items():
        if stamp != expected:
            fault = f"run {run} was made under plan {stamp}, and the plan's hash is {expected}"
            raise UserError(f"{fault}: restore that plan; ./run_all.sh STUDY says how")
