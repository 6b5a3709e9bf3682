"""The plan fixed in advance: load it, hash it, hold runs against it, and decide by its rules.

The hash covers all but `deviations`, so that a deviation can be recorded without pretending that
the plan was another one.
"""

import subprocess
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, takewhile
from typing import Annotated, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError

from lib.study.config import Study, load_study
from lib.study.errors import ConfigError, explain, read_yaml, unknown
from lib.study.fields import Positive, PositiveFloat, Section, digest
from lib.study.measures import MEASURES
from lib.study.paths import PARAMS, ROOT
from lib.study.variants import VARIANTS

PLAN_FILE = "params/preregistration.yaml"
ALPHA, POWER = 0.05, 0.8
"""Level of tests, and power, where a study names no plan."""
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, StringConstraints(strip_whitespace=True)]  # how YAML folds it is no content
Contrast = Annotated[list[str], Field(min_length=2, max_length=2)]


class Sensitivity(Section):
    factor: Literal["training.learning_rate"]
    loss: Literal["dev_loss"]


class Instability(Section):
    window: Positive
    threshold: PositiveFloat
    tolerated_share: Share
    sensitivity: Sensitivity


class Cost(Section):
    accuracy: Share
    throughput: Share


class Deviation(Section):
    date: str
    what: Text
    why: Text


class Plan(Section):
    """A pre-registration. See params/preregistration.yaml for what each field means."""

    title: str
    question: str
    confirmatory: list[str]
    seeds: list[int]
    hypotheses: dict[Literal["H0", "H1a", "H1b"], str]
    estimand: str
    primary: Annotated[list[str], Field(min_length=1)]
    secondary: list[str]
    families: dict[str, list[Contrast]]
    alpha: Annotated[float, Field(gt=0, lt=1)]
    power: Annotated[float, Field(gt=0, lt=1)]
    minimum_detectable_effect: PositiveFloat
    tests: str
    exclusions: str
    imputation: dict[str, float]
    instability: Instability
    cost: Cost
    deviations: list[Deviation]

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's content without its deviations."""
        return digest(self.model_dump(exclude={"deviations"}))


class PreregistrationError(ValueError):
    """Runs that were not made under the plan they are to be analysed by."""


def load_plan(study: Study) -> Plan | None:
    """Load the plan that a study names; None when it names none.

    Raises ConfigError as for a study, and for a measure, variant or study that does not exist.
    """
    if study.plan is None:
        return None
    path = PARAMS / study.plan
    if not path.is_file():
        raise ConfigError(
            f"plan: there is no params/{study.plan}; name an existing plan, "
            "or leave the field out for an exploratory study"
        )
    try:
        plan = Plan.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error, Plan)}") from None
    if faults := list(_faults(plan, study)):
        raise ConfigError(f"{path.name}: {'; '.join(faults)}")
    return plan


def _faults(plan: Plan, study: Study) -> Iterator[str]:
    """Say of each name in a plan that names nothing what it may have meant: a name that nothing
    matches would drop out of the analysis without a word."""
    studies = sorted(path.stem for path in PARAMS.glob("*.yaml"))
    planned = [load_study(name) for name in plan.confirmatory if name in studies]
    arms = [arm.variant for design in [study, *planned] for arm in design.arms()]
    variants = list(dict.fromkeys([*VARIANTS, *arms]))
    measures = list(MEASURES)
    used: list[tuple[str, Iterable[str], list[str]]] = [
        ("confirmatory", plan.confirmatory, studies),
        ("primary", plan.primary, measures),
        ("secondary", plan.secondary, measures),
        ("imputation", plan.imputation, measures),
        *((f"families.{n}", chain(*pairs), variants) for n, pairs in plan.families.items()),
    ]
    for field, names, known in used:
        yield from (f"{field}: {unknown(name, known)}" for name in names if name not in known)
    for name in plan.primary:
        if name in MEASURES and MEASURES[name].better is None:
            yield f"primary: of {name} neither lower nor higher is better; name it under secondary"


def plan_line(study: Study, plan: Plan | None) -> str:
    """Write the line that every executed notebook shows: which plan, and what that makes of it."""
    if plan is None:
        return f"EXPLORATORY: study '{study.name}' names no pre-registration"
    kind = standing(study, plan)
    return f"{kind}: study '{study.name}' under pre-registration {plan.hash}"


def standing(study: Study, plan: Plan | None) -> Literal["CONFIRMATORY", "EXPLORATORY"]:
    """Tell what a study's numbers may claim. Confirmatory is only a study that the plan names, run
    with exactly the plan's seeds."""
    if plan is None or study.name not in plan.confirmatory or study.seeds != plan.seeds:
        return "EXPLORATORY"
    return "CONFIRMATORY"


def require_stamps(plan: Plan | None, stamps: dict[str, str | None]) -> None:
    """Raise PreregistrationError naming the first run (name → stamped hash) whose stamp is not the
    plan's, with both hashes."""
    expected = plan.hash if plan else None
    for run, stamp in stamps.items():
        if stamp != expected:
            raise PreregistrationError(
                f"run {run} was made under pre-registration {stamp}, and the plan's hash is "
                f"{expected}: restore the plan that it was made under, or rerun ./run_all.sh, "
                "which trains it anew under this one"
            )


def plan_history(file: str) -> list[tuple[str, Plan]]:
    """List the committed versions of a plan, newest first, as (commit, plan); empty without git.
    Versions that are no valid plan end the list."""
    try:
        commits = _git("log", "--format=%H", "--", file).stdout.split()
    except OSError:
        return []
    history = []
    for commit in commits:
        try:
            content = yaml.safe_load(_git("show", f"{commit}:{file}").stdout)
            history.append((commit, Plan.model_validate(content)))
        except (yaml.YAMLError, ValidationError):
            break
    return history


def plan_precedes(plan: Plan | None, commits: list[str | None], file: str = PLAN_FILE) -> str:
    """Say whether the plan was committed, as it stands, before every one of the runs' `commits`:
    "yes: …", "no: …" naming the first run's commit that it does not precede, or "unknown: …".
    Appending a deviation is no change of the plan; rewriting one is, and says "no: …"."""
    if plan is None:
        return "unknown: no plan is named"
    history = plan_history(file)
    same = list(takewhile(lambda version: version[1].hash == plan.hash, history))
    if not same:
        return "unknown: the plan is not committed as it stands"
    for (commit, later), (_, earlier) in pairwise([("now", plan), *same]):
        if later.deviations[: len(earlier.deviations)] != earlier.deviations:
            return f"no: deviations were rewritten, not appended, after commit {commit[:12]}"
    fixed = same[-1][0]
    for run in dict.fromkeys(commits):
        if run is None:
            return "unknown: a run was made outside git"
        if _git("merge-base", "--is-ancestor", fixed, run).returncode:
            return f"no: run at commit {run[:12]}, plan fixed at {fixed[:12]}"
    return f"yes: plan fixed at {fixed[:12]}"


def _git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
