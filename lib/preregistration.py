"""The plan fixed in advance: load it, hash it, hold runs against it, and decide by its rules.

The hash covers all but `deviations`, so that a deviation can be recorded without pretending that
the plan was another one.
"""

import subprocess
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Annotated, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError

from lib.config import Positive, PositiveFloat, Section, Study, digest
from lib.paths import PARAMS, ROOT
from lib.validation import ConfigError, explain, read_yaml

PLAN_FILE = "params/preregistration.yaml"
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
    """Load the plan that a study names; None when it names none. ConfigError as for a study."""
    if study.preregistration is None:
        return None
    path = PARAMS / study.preregistration
    if not path.is_file():
        raise ConfigError(
            f"preregistration: there is no params/{study.preregistration}; name an existing plan, "
            "or leave the field out for an exploratory study"
        )
    try:
        return Plan.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error, Plan)}") from None


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
                f"{expected}: restore the plan that it was made under, or run it again under this "
                "one (./run_all.sh … --forcerun train)"
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


Direction = Literal["improvement", "regression", "none"]


@dataclass(frozen=True)
class Evidence:
    """What the rules look at, of one arm beside its baseline."""

    arm: str
    baseline_stable: bool
    arm_stable: bool
    accuracy: dict[str, Direction]
    """Per primary measure: the significant change (adjusted p below alpha), or none."""
    accuracy_change: dict[str, float]
    """Per primary measure: mean paired difference."""
    calibration: Direction
    """Significant change of the calibration error; improvement: it fell."""
    throughput_change: float
    """Relative change of training speed; -0.02: two percent slower."""


@dataclass(frozen=True)
class Decision:
    """What the plan says of one arm."""

    arm: str
    rule: str
    decision: Literal["keep the baseline", "adopt the arm", "replicate before adopting"]
    reason: str


def decide(evidence: Evidence, plan: Plan) -> Decision:
    """Apply the rules in order; exactly one fires for any evidence.

    R1 regression with a stable baseline, R2 improvement with a stable baseline, R3–R5 an unstable
    baseline (the arm stable at a bearable cost; at too high a cost; not stable), R6–R8 nothing
    significant in accuracy with a stable baseline (calibration, throughput and simplicity break the
    tie).
    """
    e, changes = evidence, set(evidence.accuracy.values())
    loss = max([0.0, *(-change for change in e.accuracy_change.values())])

    def decision(rule: str, what: str, reason: str) -> Decision:
        return Decision(e.arm, rule, what, reason)  # type: ignore[arg-type]

    keep, adopt = "keep the baseline", "adopt the arm"
    if e.baseline_stable:
        if "regression" in changes:
            return decision("R1", keep, "it loses accuracy and the baseline trains stably")
        if "improvement" in changes:
            return decision(
                "R2",
                "replicate before adopting",
                "it gains accuracy, but the baseline trains stably: the plan adopts an arm only "
                "for the instability it removes",
            )
        if e.calibration == "improvement":
            return decision(
                "R6", adopt, "accuracy does not tell them apart; its calibration is better"
            )
        if e.calibration == "none" and e.throughput_change > plan.cost.throughput:
            return decision("R7", adopt, "neither accuracy nor calibration tells; it is faster")
        return decision("R8", keep, "nothing speaks for the extra layer")
    if not e.arm_stable:
        return decision("R5", keep, "the baseline is unstable and the arm does not cure it")
    if loss > plan.cost.accuracy or -e.throughput_change > plan.cost.throughput:
        return decision("R4", keep, "it removes instability, at more than the pre-registered cost")
    return decision("R3", adopt, "it removes instability within the pre-registered cost")


def hypotheses(evidence: Evidence) -> dict[str, str]:
    """Say of each hypothesis what one arm's evidence means for it."""
    changes = set(evidence.accuracy.values())
    h0 = "not tested: the baseline is unstable"
    if not changes:
        h0 = "not tested: no primary measure was taken"
    h1a = h0
    if evidence.baseline_stable and changes:
        h0 = "rejected" if changes - {"none"} else "not rejected"
        h1a = "supported" if "regression" in changes else "not supported"
    h1b = "not tested: the baseline is stable"
    if not evidence.baseline_stable:
        h1b = "supported" if evidence.arm_stable else "not supported"
    return {"H0": h0, "H1a": h1a, "H1b": h1b}
