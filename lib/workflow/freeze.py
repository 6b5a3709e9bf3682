"""Freeze a plan: write into it what it fixes of each confirmatory study, by hash.

    ./run_all.sh freeze PLAN

From then on the seeds of these studies follow from the plan's own hash.
"""

import argparse
import re
import sys
from pathlib import Path

import yaml

from lib.data.corpus import load_corpus
from lib.data.suite import suite_hash
from lib.study.claim import attempts, load_plan, parameters_digest
from lib.study.config import Study, load_study
from lib.study.digests import analysing_digest, measuring_digest, training_digest
from lib.study.errors import ConfigError, exit_status, read_yaml
from lib.study.files import read_json, replacing
from lib.study.paths import PAPERS, PARAMS, PLANS, study_folder
from lib.study.plan import Frozen, Plan, read_plan

_BLOCK = re.compile(r"^frozen:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
_ABOVE = "written by ./run_all.sh freeze; seeds follow from the hash of the plan with all of this"


def freeze(file: str) -> Plan:
    """Write what a plan of `params/plans/` fixes into its file, and return the plan.

    Raises ConfigError for a study that cannot be frozen, and where runs under the plan exist.
    """
    plan = read_plan(file)
    if not plan.confirmatory:
        raise ConfigError("confirmatory: names no study; there is nothing to freeze")
    studies = [_unfrozen(name, file) for name in plan.confirmatory]
    load_plan(studies[0])  # finds names in the plan that name nothing
    made = [run for name in plan.confirmatory for run in attempts(name, file)]
    if made:
        raise ConfigError(
            f"runs of '{made[0].study}' under a plan exist ({made[0].place}); it can be frozen no "
            "more. For new runs write a new plan, and new studies that name it"
        )
    used = _used_seeds()
    frozen = {study.name: _frozen(study, used).model_dump() for study in studies}
    path = PLANS / file
    text = yaml.safe_dump({"frozen": frozen}, sort_keys=False, default_flow_style=None, width=99)
    text = text.replace("frozen:", f"frozen: # {_ABOVE}", 1)
    before = _BLOCK.sub("", path.read_text("utf-8")).rstrip("\n")
    with replacing(path) as temporary:
        temporary.write_text(f"{before}\n\n{text}", "utf-8")
        return read_plan(temporary.name)


def _unfrozen(name: str, file: str) -> Study:
    """Load a confirmatory study, which must name the plan and have its seeds drawn."""
    study = load_study(name, undrawn=True)
    if study.plan != file:
        raise ConfigError(f"{name}.yaml: plan is {study.plan}, and {file} names the study; agree")
    if not _drawn(name):
        raise ConfigError(
            f"{name}.yaml: seeds are listed; those of a frozen plan are drawn: "
            f"write seeds: {{count: {len(study.seeds)}}}"
        )
    return study


def _drawn(study: str) -> bool:
    return isinstance(read_yaml(PARAMS / f"{study}.yaml").get("seeds"), dict)


def _frozen(study: Study, used: list[int]) -> Frozen:
    corpora, suites = {}, set()
    for arm in study.arms():
        corpus = load_corpus(arm.config.corpus)
        corpora[arm.config.corpus.source] = corpus.sha256
        suites.add(suite_hash(corpus, arm.config, study_folder(study.name) / "suite"))
    return Frozen(
        seeds=len(study.seeds),
        used_seeds=used,
        parameters=parameters_digest(study),
        corpus=corpora,
        suite=sorted(filter(None, suites)),
        training_digest=training_digest(),
        measuring_digest=measuring_digest(),
        analysing_digest=analysing_digest(),
    )


def _used_seeds() -> list[int]:
    """List every seed that a study of `params/` lists, or a record holds. Those drawn and not run
    are not among them: a plan frozen again without a change is the same plan."""
    used: set[int] = set()
    for path in PARAMS.glob("*.yaml"):
        if not _drawn(path.stem):
            used |= set(load_study(path).seeds)
    for path in PAPERS.glob("*/results/*.json"):
        used |= {run["seed"] for run in read_json(path).get("runs", [])}
    return sorted(used)


@exit_status
def main(words: list[str]) -> None:
    """Freeze the plan named, and say what follows."""
    parser = argparse.ArgumentParser(prog="./run_all.sh freeze", description=__doc__)
    parser.add_argument("plan", help="name or path of a plan of params/plans/")
    file = f"{Path(parser.parse_args(words).plan).stem}.yaml"
    plan = freeze(file)
    print(f"{file} is frozen. Its hash: {plan.hash}")
    for name in plan.confirmatory:
        seeds = ", ".join(map(str, load_study(name).seeds))
        print(f"Seeds of {name}: {seeds}")
    print("Next: commit the plan, and publish its hash where its date can be checked; then run.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
