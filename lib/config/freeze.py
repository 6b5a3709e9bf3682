"""Draft a plan, and freeze it.

./run_all.sh freeze --new PLAN --study NAME     writes a draft, to be filled in
./run_all.sh freeze PLAN                        fixes the plan's studies, and draws their seeds
"""

import json
import textwrap
from collections.abc import Callable

from lib.config.claim import check_plan, parameters_digest
from lib.config.contrasts import effects_of
from lib.config.errors import ConfigError, UsageError, UserError
from lib.config.files import write_text
from lib.config.metrics import MAIN, MEASURES
from lib.config.paths import PAPERS, PARAMS, PLANS, RUNS, TEMPLATES, listed, relative
from lib.config.plan import Frozen, Noise, Plan, Plateau, read_plan
from lib.config.provenance import tasks_hash
from lib.config.schema import CODE, vocabulary
from lib.config.study import Study, load_study
from lib.config.yaml import Json, parse_yaml

RULE = {
    "small_effects": "small_effects: negligible",
    "tests": """\
tests: >
  Tests are two-sided. A claim that a difference is greater or less than a bound is supported if
  that side of the bound is shown, and refuted if the other side is. A claim that there is a
  difference is supported if one is shown, either way. If neither is shown, the difference is
  negligible if two one-sided tests (TOST) show it to be closer to zero than the smallest effect
  of interest, and undecided otherwise. A claim of equivalence is supported by TOST within its
  margin, and refuted by a difference shown beyond it. Shown means p < alpha, adjusted within the
  family by Holm's method. The interval printed is the plain one of level 1 - alpha, so 95 % at
  0.05; it is not adjusted.""",
}
"""Field that says how a plan's hypotheses are answered → its text in every new plan."""


def draft_plan(file: str, name: str | None) -> None:
    """Write the draft of a plan for a study, and print the next steps. Raises UserError if the plan
    exists and its user has filled something in."""
    if not name:
        raise UsageError(f"freeze --new {file}: name the study of the plan, --study NAME")
    path, study = PLANS / file, load_study(name, undrawn=True)
    template = _template(study, file)
    if path.exists() and path.read_text("utf-8") != template:
        raise UserError(f"{relative(path)} exists, and nothing is replaced; take another name")
    write_text(path, template)
    print(f"{relative(path)} is written: fill in the empty fields.")
    if lines := _missing_lines(study, file):
        print(f"In params/{study.name}.yaml write:", *lines, sep="\n  ")
    print(f"Then run ./run_all.sh freeze {file}: it lists what is missing, or freezes the plan.")


def _template(study: Study, file: str) -> str:
    """Return the text of a plan with a study's arms and measures, and with a hypothesis for each of
    the `proposed_tests`. Fields that only the user can fill in are empty."""
    measure, hypotheses = main_measure(study), list[str]()
    for name, test in proposed_tests(study, measure).items():
        hypotheses += [f"  {json.dumps(name, ensure_ascii=False)}:", "    says:"]
        hypotheses += [f"    {field}: {json.dumps(value)}" for field, value in test.items()]
    measures = [name for name, of in MEASURES.items() if of.better] + study.stock_measures
    template = (TEMPLATES / "plan.yaml").read_text("utf-8")
    return template.format(
        study=study.name,
        file=file,
        measure=measure,
        hypotheses="\n".join(hypotheses),
        arms=_wrapped("; ".join(arm.id for arm in study.arms())),
        measures=_wrapped(", ".join(measures)),
        rule="\n".join(RULE.values()),
        usual=Plan.model_construct(),
        p=Plateau(),
        n=Noise(),
    )


def main_measure(study: Study) -> str:
    """Return the main measure of a study without a plan: the loss, or bits per character if its
    arms have different tokens."""
    per_token = len({vocabulary(dict(arm.config.corpus)) for arm in study.arms()}) == 1
    return MAIN[0] if per_token else "bits_per_character"


def proposed_plan(study: Study, measure: str | None) -> Json:
    """Return the content of a plan with the `proposed_tests` of a study."""
    blank = {"title": study.name, "question": study.name, "confirmatory": [study.name]}
    tests = proposed_tests(study, measure or main_measure(study))
    return blank | {"hypotheses": {name: {"says": name} | test for name, test in tests.items()}}


def proposed_tests(study: Study, measure: str) -> dict[str, Json]:
    """Propose tests for a study: the main effects and interactions of a grid, or without a grid,
    each arm's difference from its baseline. Return name → the fields of the hypothesis."""
    arms = study.arms()
    effects = effects_of({arm.id: arm.levels for arm in arms})
    pairs = {effect.name: effect.pairs for effect in effects if effect.kind != "simple"}
    pairs = pairs or {arm.id: [(arm.id, arm.baseline)] for arm in arms if arm.baseline != arm.id}
    tests: dict[str, Json] = {}
    for name, (pair, *minus) in pairs.items():
        tests[name] = {"test": [*pair, measure], "direction": "differs"}
        if minus:
            tests[name]["minus"] = minus[0]
    return tests


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="#   ", subsequent_indent="#   ")


def freeze(file: str, data_of: Callable[[Study], tuple[dict[str, str], list[str]]]) -> Plan:
    """Write into a plan of `params/plans/` the hashes of its studies' parameters and data, and the
    rule by which it is answered. Return the plan.

    `data_of` returns the hashes of a study's texts, by source, and the hashes of its task suites.
    Raises UserError with a line for each fault of the plan and its studies. A study that has
    already run is a fault.
    """
    path, plan = PLANS / file, read_plan(file)
    faults: list[str] = []
    before = f"\n{path.read_text('utf-8')}".partition("\nfrozen:")[0].strip("\n")
    try:
        parse_yaml(f"{before}\nfrozen:\n".encode(), file)
    except ConfigError:
        remedy = "write one field per line, without braces or quotes around them"
        faults.append(f"plans/{file}: nothing can be added below its last line; {remedy}")
    studies = [load_study(name, undrawn=True) for name in plan.confirmatory]
    for study in studies:
        faults += [f"{study.name}.yaml: write {line}" for line in _missing_lines(study, file)]
        faults += [f"plans/{file}: {fault}" for fault in check_plan(plan, study)]
        traces = listed(RUNS, f"{study.name}/*/seed-*/*.json")
        traces += listed(PAPERS, f"*/record/{study.name}")
        traces += listed(PAPERS, f"*/results/{study.name}.json")
        if traces:
            fault = f"{study.name} has run ({relative(traces[0])})"
            faults.append(f"{fault}: write a new plan, and a study that names it")
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))
    lines = ["frozen: # written by ./run_all.sh freeze; seeds follow from the plan's hash with it"]
    used = _used_seeds(file)
    for study in studies:
        corpus, suite = data_of(study)
        fixed = Frozen(
            seeds=len(study.seeds),
            used_seeds=used,
            parameters=parameters_digest(study),
            corpus=corpus,
            suite=sorted(suite),
            tasks=tasks_hash(study.evaluation.include_path),
            # Arms that are commits are committed anyway, and older commits do not know this field.
            committed_code=CODE not in study.factors,
        )
        lines.append(f"  {study.name}:")
        # One field a line; JSON is also YAML.
        lines += [f"    {name}: {json.dumps(value)}" for name, value in fixed.model_dump().items()]
    rule = [text for name, text in RULE.items() if not getattr(plan, name)]
    parts = [before, "\n".join(rule), "\n".join(lines)]
    write_text(path, "\n\n".join(filter(None, parts)) + "\n")
    return read_plan(file)


def _missing_lines(study: Study, file: str) -> list[str]:
    """List the lines that a study's file needs for its seeds to be drawn from a plan."""
    lines = []
    if study.plan != file:
        lines.append(f"plan: {file}")
    if not study.drawn:
        lines.append(f"seeds: {{count: {len(study.seeds)}}}")
    return lines


def _used_seeds(file: str) -> list[int]:
    """List every seed that a study in `params/` lists, or that another plan drew or skipped. Some
    studies are gone, and only published plans still have their seeds. So these are not used again.
    """
    studies = [load_study(path.stem, undrawn=True) for path in listed(PARAMS, "*.yaml")]
    used = {seed for study in studies if not study.drawn for seed in study.seeds}
    for plan in (read_plan(path.name) for path in listed(PLANS, "*.yaml") if path.name != file):
        for name, frozen in plan.frozen.items():
            used |= {*frozen.used_seeds, *plan.draw(name, frozen.seeds)}
    return sorted(used)
