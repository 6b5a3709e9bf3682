"""A study held against its plan: what its numbers may claim, and why no more."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from lib.study.attempts import other_versions
from lib.study.config import Study, load_study
from lib.study.digests import analysing_digest, measuring_digest, training_digest
from lib.study.errors import ConfigError, UserError, unknown
from lib.study.fields import EmbeddingNorm, digest
from lib.study.history import plan_precedes
from lib.study.measures import MEASURES
from lib.study.paths import PARAMS
from lib.study.plan import Frozen, Plan, read_plan


class PreregistrationError(UserError):
    """Runs that were not made under the plan they are to be analysed by."""


@dataclass(frozen=True)
class Standing:
    """What a study's numbers may claim."""

    study: str
    plan: str | None
    """Hash of the plan; None when the study names none."""
    reasons: list[str]
    """Why the study is exploratory; none for a confirmatory one."""
    beside: tuple[str, ...] = ()
    """The other studies that the plan names as confirmatory."""

    @property
    def name(self) -> Literal["CONFIRMATORY", "EXPLORATORY"]:
        return "EXPLORATORY" if self.reasons else "CONFIRMATORY"

    def __str__(self) -> str:
        under = f" under plan {self.plan}" if self.plan else ""
        if self.beside:
            under += f", which also names {', '.join(map(repr, self.beside))}"
        return f"{self.name}: study '{self.study}'{under}" + "".join(f"; {r}" for r in self.reasons)


def load_plan(study: Study) -> Plan | None:
    """Load the plan that a study names; None when it names none.

    Raises ConfigError as for a study, and for a measure, variant or study that does not exist.
    """
    if study.plan is None:
        return None
    plan = read_plan(study.plan)
    if faults := list(_faults(plan, study)):
        raise ConfigError(f"{study.plan}: {'; '.join(faults)}")
    return plan


def _faults(plan: Plan, study: Study) -> Iterator[str]:
    """Say of each name in a plan that names nothing what it may have meant: a name that nothing
    matches would drop out of the analysis without a word."""
    studies = sorted(path.stem for path in PARAMS.glob("*.yaml"))
    planned = [load_study(name, undrawn=True) for name in plan.confirmatory if name in studies]
    arms = [arm.variant for design in [study, *planned] for arm in design.arms()]
    variants = list(dict.fromkeys([*get_args(EmbeddingNorm), *arms]))
    measures = list(MEASURES)
    used: list[tuple[str, Iterable[str], list[str]]] = [
        ("confirmatory", plan.confirmatory, studies),
        ("primary", plan.primary, measures),
        ("secondary", plan.secondary, measures),
        ("imputation", plan.imputation, measures),
        ("frozen", plan.frozen, plan.confirmatory),
        ("margins", plan.margins, measures),
        ("smoothness", filter(None, [plan.smoothness]), measures),
        *((f"families.{n}", chain(*f.contrasts), variants) for n, f in plan.tests_of.items()),
        *((f"families.{n}.measures", f.measures, measures) for n, f in plan.tests_of.items()),
    ]
    for field, names, known in used:
        yield from (f"{field}: {unknown(name, known)}" for name in names if name not in known)
    for name in plan.primary:
        if name in MEASURES and MEASURES[name].better is None:
            yield f"primary: of {name} neither lower nor higher is better; name it under secondary"
    listed = [*plan.primary, *plan.secondary]
    for name, family in plan.tests_of.items():
        for measure in family.measures:
            if measure not in listed:
                yield f"families.{name}.measures: {measure} is neither primary nor secondary"
            if family.test == "equivalence" and measure not in plan.margins:
                yield f"margins: has none of {measure}, which family {name} tests for equivalence"


def standing(study: Study, plan: Plan | None, runs: Iterable[dict[str, Any]] = ()) -> Standing:
    """Hold a study against its plan. `runs` are its results as JSON; before there are any, the
    code at hand stands for the code that they will be made by.

    Confirmatory is only a study that the plan names and is frozen for, made exactly as frozen with
    the seeds drawn, unless git shows that the plan was not committed before the runs, or another
    version of it had runs by then. Runs from before plans were frozen are held against the rules of
    their time: named by the plan, with the seeds that it lists.
    """
    runs = list(runs)
    if plan is None:
        return Standing(study.name, None, ["it names no plan"])
    frozen = plan.frozen.get(study.name)
    if study.name not in plan.confirmatory:
        reasons = ["the plan does not name it as confirmatory"]
    elif runs and not any("trained" in run["provenance"] for run in runs):
        reasons = [] if study.seeds == plan.seeds else ["its seeds are not those of the plan"]
    elif frozen is None:
        reasons = ["the plan was not frozen for it, so fixes no parameters, data, code or seeds"]
    else:
        drawn = plan.draw(study.name, frozen.seeds)
        reasons = [] if study.seeds == drawn else ["its seeds are not those drawn from the plan"]
        reasons += _departures(study, frozen, runs)
        commits = [run["provenance"].get("trained", {}).get("commit") for run in runs]
        answer, _, why = plan_precedes(study.plan or "", plan, commits).partition(": ")
        reasons += [why] if answer == "no" else []
        reasons += other_versions(study, plan, runs)
    beside = tuple(name for name in plan.confirmatory if name != study.name)
    return Standing(study.name, plan.hash, reasons, beside)


def _departures(study: Study, frozen: Frozen, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Name what was not made as the plan froze it, with both values."""
    fixed = frozen.model_dump()
    made: list[tuple[str, Any]] = [("parameters", parameters_digest(study))]
    if frozen.analysing_digest:  # plans frozen before do not fix it
        made.append(("analysing_digest", analysing_digest()))
    for run in runs:
        by, source = run["provenance"], run["config"]["corpus"]["source"]
        made.append((f"corpus.{source}", run["corpus_sha256"]))
        made.append(("training_digest", by.get("trained", {}).get("training_digest")))
        made.append(("measuring_digest", by.get("executed", {}).get("measuring_digest")))
        if run["status"] == "completed":
            made.append(("suite", run["suite_hash"]))
    if not runs:
        made += [("training_digest", training_digest()), ("measuring_digest", measuring_digest())]
    for name, value in dict.fromkeys(made):
        section, _, source = name.partition(".")
        expected = fixed[section].get(source) if source else fixed[section]
        allowed = expected if section == "suite" else [expected]
        if value not in (allowed or [None]):
            was = ", ".join(_short(each) for each in allowed) or "none"
            yield f"{name} is {_short(value)}, frozen was {was}"


def parameters_digest(study: Study) -> str:
    """SHA-256 of the parameters of all arms and what each is held against; of neither machine nor
    seeds."""
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
