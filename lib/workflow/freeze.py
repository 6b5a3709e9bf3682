"""Begin a plan, and freeze it: write into it what it fixes of each confirmatory study, by hash.

    ./run_all.sh freeze --new PLAN --study NAME
    ./run_all.sh freeze PLAN

From then on the seeds of these studies follow from the plan's own hash.
"""

import math
import re
import textwrap
from collections.abc import Iterator
from itertools import chain
from typing import Any

import yaml
from pydantic import ValidationError

from lib.analysis.stability import PLATEAU_WINDOW, rule_of
from lib.data.suite import suite_hash
from lib.data.text import load_corpus
from lib.record.record import recorded_studies
from lib.results import has_harness
from lib.study.digests import analysing_digest, measuring_digest, training_digest
from lib.study.inputs import tasks_hash
from lib.study.io import (
    PAPERS,
    PARAMS,
    PLANS,
    TEMPLATES,
    atomic_write,
    read_json,
    relative,
    study_folder,
)
from lib.study.metrics import JUDGED, MAIN, MEASURES
from lib.study.plan import ALPHA, POWER, Frozen, Noise, Plan, Plateau, read_plan, without_blanks
from lib.study.preregistration import attempts, check_plan, parameters_digest
from lib.study.study import Study, load_study
from lib.study.yaml import ConfigError, UsageError, UserError, read_yaml, suggest
from lib.workflow.commits import find_commits
from lib.workflow.estimate import power_report, usual_hypotheses
from lib.workflow.preflight import require_stock_tasks

_BLOCK = re.compile(r"^frozen:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
_ABOVE = "written by ./run_all.sh freeze; seeds follow from the hash of the plan with all of this"
_PLATEAU, _NOISE = Plateau(), Noise()


def begin(file: str, name: str | None) -> None:
    """Write a new plan for a study, to be filled in, and say what follows. Raises UserError where
    the plan exists."""
    if not name:
        raise UsageError(f"freeze --new {file}: name the study that it is for, --study NAME")
    path, study = PLANS / file, load_study(name, undrawn=True)
    if path.exists():
        raise UserError(f"{relative(path)} exists, and nothing is replaced; take another name")
    path.write_text(template(study, file), "utf-8")
    print(f"{relative(path)} is written: fill in what ends in a colon.")
    if lines := _missing_lines(study, file):
        print(f"In params/{study.name}.yaml write:", *lines, sep="\n  ")
    print(f"Then: ./run_all.sh freeze {file}, which names all that is missing, or fixes the plan.")


def template(study: Study, file: str) -> str:
    """Write a plan with the arms and measures of a study. Blank is what only its user knows."""
    arms = [arm.id for arm in study.arms()]
    asks = any(arm.config.evaluation.items_per_task != 0 for arm in study.arms())
    measures = [
        name
        for name, measure in MEASURES.items()
        if measure.better and (asks or not name.startswith("macro_"))
    ] + study.stock_measures
    hypotheses = "\n".join(
        f"  {_in_yaml(name)}:\n    says:\n    test: {_in_yaml(h['test'])}\n    direction: differs"
        for name, h in usual_hypotheses(study).items()
    )
    return (TEMPLATES / "plan.yaml").read_text("utf-8").format(
        study=study.name, file=file, measure=MAIN, hypotheses=hypotheses,
        arms=_wrapped("; ".join(arms)), measures=_wrapped(", ".join(measures)),
        alpha=ALPHA, power=POWER, of_plateau=PLATEAU_WINDOW, p=_PLATEAU, n=_NOISE,
        plateau=_in_yaml(_PLATEAU.model_dump()), noise=_in_yaml(_NOISE.model_dump()),
    )  # fmt: skip


def _in_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 96, initial_indent="#   ", subsequent_indent="#   "))


def fix(file: str) -> None:
    """Freeze a plan; say what follows, and what its seeds can show."""
    plan = freeze(file)
    print(f"{file} is frozen. Its hash: {plan.hash}")
    for name in plan.confirmatory:
        study = load_study(name)
        print(f"Seeds of {name}: {', '.join(map(str, study.seeds))}")
        print(*power_report(study, plan), sep="\n")
    files = [f"params/{name}.yaml" for name in plan.confirmatory]
    print(f"Next: commit {', '.join([f'params/plans/{file}', *files])}.")
    print("Publish the hash where its date can be checked; then run.")


def freeze(file: str) -> Plan:
    """Write what a plan of `params/plans/` fixes into its file, and return the plan.

    Raises UserError with a line for all that is missing or wrong, in the plan and in its studies,
    and where runs under the plan exist.
    """
    studies = _complete_studies(file)
    plan = read_plan(file)
    runs = [run for name in plan.confirmatory for run in attempts(name, file)]
    if runs:
        raise ConfigError(
            f"runs of '{runs[0].study}' under a plan exist, since {runs[0].started or 'before'}; "
            "it can be frozen no more. For new runs write a new plan, and studies that name it"
        )
    used = _used_seeds()
    frozen = {study.name: _frozen(study, used).model_dump() for study in studies}
    path = PLANS / file
    text = yaml.safe_dump({"frozen": frozen}, sort_keys=False, default_flow_style=None, width=99)
    text = text.replace("frozen:", f"frozen: # {_ABOVE}", 1)
    text_before = _BLOCK.sub("", path.read_text("utf-8")).rstrip("\n")
    with atomic_write(path) as temporary:
        temporary.write_text(f"{text_before}\n\n{text}", "utf-8")
        return read_plan(temporary.name)


def _complete_studies(file: str) -> list[Study]:
    """Load the studies of a plan that is ready to be frozen. Raises UserError with a line for each
    thing that is missing or wrong."""
    plan, faults, studies = None, [], []
    try:
        plan = read_plan(file)
    except ConfigError as error:
        faults.append(str(error))
        plan = _plan_without_sentences(file)
    faults += [f"{file}: {fault}" for fault in _missing_fields(plan)] if plan else []
    for name in plan.confirmatory if plan else []:
        try:
            study = load_study(name, undrawn=True)
            commits = find_commits(study, {})
        except ConfigError as error:
            faults.append(str(error))
            continue
        studies.append(study.model_copy(update={"commits": commits}))
        missing = _missing_lines(study, file).items()
        faults += [f"{study.name}.yaml: {reason}; write {line}" for line, reason in missing]
        faults += [f"{file}: {fault}" for fault in _missing_plateau(plan, study)] if plan else []
        faults += [f"{file}: {fault}" for fault in check_plan(plan, study)] if plan else []
        faults += [f"{study.name}.yaml: {fault}" for fault in _missing_tasks(study, plan)]
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))
    return studies


def _plan_without_sentences(file: str) -> Plan | None:
    """Read a plan as if the sentences that are still blank were written, so that what else it lacks
    can be named with them; None where more than these is wrong."""
    try:
        content = without_blanks(read_yaml(PLANS / file))
        for hypothesis in content.get("hypotheses", {}).values():
            hypothesis.setdefault("says", "?")
        return Plan.model_validate({"title": "?", "question": "?"} | content)
    except (ConfigError, ValidationError, AttributeError, OSError):
        return None


def _missing_fields(plan: Plan) -> Iterator[str]:
    """Name what a plan does not say and no default can, and what it says in vain."""
    if not plan.confirmatory:
        yield "confirmatory: names no study; there is nothing to freeze"
    for measure in dict.fromkeys(m for h, *_, m in plan.bound.values() if h.direction):
        if measure not in plan.smallest_effect_of_interest and measure not in JUDGED:
            yield (
                f"smallest_effect_of_interest: has none of {measure}; write the smallest "
                "difference that matters"
            )
    for name, (_, arm, baseline, _) in plan.bound.items():
        if arm == baseline:
            yield f"hypotheses.{name}.test: holds {arm} against itself; name two arms"
    tested = _tested(plan)
    yield from _missing_spread(plan.spread, tested)
    if plan.instability and plan.instability.window:
        yield (
            "instability: window and threshold were the first plan's, and judge no run; write "
            f"noise: {_in_yaml(_NOISE.model_dump())} in their place"
        )
    if "unstable" in tested and not rule_of(plan).is_defined:
        noise = _in_yaml(_NOISE.model_dump())
        yield f"instability: does not say when a run is unstable; write noise: {noise}"
    if "harmful" in tested and "loss" not in plan.smallest_effect_of_interest:
        yield "smallest_effect_of_interest: has none of loss, beyond which a run is harmful"


def _missing_spread(spread: str | dict[str, float] | None, tested: set[str]) -> Iterator[str]:
    """Say that the spread names no recorded study, or no measure."""
    if isinstance(spread, str) and spread not in (recorded := recorded_studies()):
        yield (
            f"spread: {suggest(spread, recorded)}; name a recorded study, or guess an sd by "
            f"measure, as {{{MAIN}: 0.4}}"
        )
    for measure in spread if isinstance(spread, dict) else ():
        if measure not in tested | set(MEASURES):
            yield f"spread: {suggest(measure, sorted(tested))}"


def _tested(plan: Plan) -> set[str]:
    """Name the measures that a plan's hypotheses and families are about."""
    families = (family.measures for family in plan.tests_of.values())
    return {hypothesis[-1] for hypothesis in plan.bound.values()}.union(*families)


def _missing_plateau(plan: Plan, study: Study) -> Iterator[str]:
    """Say that a plateau of tokens that are no characters has no usual bound."""
    tokenizers = {arm.config.corpus.tokenizer for arm in study.arms()} - {"characters"}
    has_bound = "below" in rule_of(plan).plateau.model_fields_set
    if tokenizers and not has_bound and _tested(plan) & {"plateau", "harmful"}:
        yield (
            f"instability.plateau.below: {_PLATEAU.below:g} nats is for characters, and "
            f"{study.name} reads {', '.join(sorted(tokenizers))}; write the loss that its plateau "
            "is above"
        )


def _missing_tasks(study: Study, plan: Plan | None) -> Iterator[str]:
    """Say which stock task cannot be asked, where the harness is installed: found by the first run,
    it would be too late, as the plan fixes the tasks."""
    if study.evaluation.tasks and has_harness():
        try:
            require_stock_tasks(study, plan)
        except ConfigError as error:
            yield str(error)


def _missing_lines(study: Study, file: str) -> dict[str, str]:
    """Return the lines that a study needs for its seeds to be drawn from a plan, each with why."""
    lines = {}
    if study.plan != file:
        lines[f"plan: {file}"] = f"plan is {study.plan}, and {file} names the study"
    if not _draws_seeds(study.name):
        seed_line = f"seeds: {{count: {len(study.seeds)}}}"
        lines[seed_line] = "seeds are listed, and those of a frozen plan are drawn"
    return lines


def _draws_seeds(study: str) -> bool:
    return isinstance(read_yaml(PARAMS / f"{study}.yaml").get("seeds"), dict)


def _frozen(study: Study, used: list[int]) -> Frozen:
    corpora, suites = {}, set()
    for arm in study.arms():
        corpus = load_corpus(arm.config.corpus)
        corpora[arm.config.corpus.source] = corpus.sha256
        suites.add(suite_hash(corpus, arm.config, study_folder(study.name) / "suite"))
    return Frozen(
        seeds=len(study.seeds),
        looks=study.looks,
        used_seeds=used,
        parameters=parameters_digest(study),
        corpus=corpora,
        suite=sorted(filter(None, suites)),
        tasks=tasks_hash(study.evaluation.include_path),
        training_digest=None if study.commits else training_digest(),
        measuring_digest=None if study.commits else measuring_digest(),
        commits=study.commits,
        analysing_digest=analysing_digest(),
    )


def _used_seeds() -> list[int]:
    """List every seed that a study of `params/` lists, or a record holds. Those drawn and not run
    are not among them: a plan frozen again without a change is the same plan."""
    used: set[int] = set()
    for path in PARAMS.glob("*.yaml"):
        if not _draws_seeds(path.stem):
            used |= set(load_study(path).seeds)
    for path in PAPERS.glob("*/record/index.json"):
        for study in read_json(path).values():
            used |= set(chain(*study["seeds"].values()))
    return sorted(used)
