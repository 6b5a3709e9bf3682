"""All plans with their versions, changes and deviations, for the paper and the lab record.

Git tells. What it told when the paper was last built stands in plans.json beside the paper, so that
a copy without git, or without all of its history, gives the same paper.
"""

from pathlib import Path
from typing import Any

from lib.record.archive import MANIFEST, Record
from lib.results import trained_with
from lib.study.code import is_checkout, is_shallow
from lib.study.history import plan_history, plan_provenance
from lib.study.io import PARAMS, PLANS, read_json, write_json
from lib.study.plan import Plan, read_plan
from lib.study.yaml import read_yaml

FILE = "plans.json"


def plan_accounts(paper: Path) -> list[dict[str, Any]]:
    """Account for every plan of `params/plans/`, the first committed one first: file, title, hash,
    studies (its confirmatory ones); whether it preceded their recorded runs; versions (commit,
    date and hash, oldest first); changes (from the plan before it); and deviations and
    plan_changes as in `lib.study.history.plan_provenance`."""
    if not has_history():
        path = paper / FILE
        return read_json(path) if path.is_file() else []
    accounts = [_account(path.name) for path in PLANS.glob("[!.]*.yaml")]
    return sorted(
        accounts, key=lambda plan: ([v["date"] for v in plan["versions"]][:1], plan["file"])
    )


def standing_shown(study: str, verdict: dict[str, Any]) -> str:
    """Say what a verdict stands as (empty where it does not say), and what is missing beside it.
    That is looked up wherever a verdict is shown, for records come and go."""
    missing = "; ".join(missing_beside(study))
    return str(verdict.get("standing", "")) + (f" ({missing})" if missing else "")


def missing_beside(study: str) -> list[str]:
    """Name the other confirmatory studies of its plan that have no record under that plan: one
    verdict of several may have been chosen."""
    file = PARAMS / f"{study}.yaml"
    plan_name = read_yaml(file).get("plan") if file.is_file() else None
    plan = Record(study).plan
    if plan is None and plan_name and (PLANS / plan_name).is_file():
        plan = read_plan(plan_name)
    if plan is None or study not in plan.confirmatory:
        return []
    return [
        f"its plan also names '{name}', of which there is no record under it"
        for name in plan.confirmatory
        if name != study and not _recorded(name, plan)
    ]


def _recorded(study: str, plan: Plan) -> bool:
    record = Record(study)
    needed = [record.folder / MANIFEST, record.results_file, record.verdict_file]
    has_plan = record.plan is not None and record.plan.hash == plan.hash
    return has_plan and all(path.is_file() for path in needed)


def has_history() -> bool:
    """Tell whether this folder is a git repository that holds the whole history."""
    return is_checkout() and not is_shallow()


def write_accounts(paper: Path) -> None:
    """Write down what git tells, where it tells all."""
    if has_history():
        write_json(paper / FILE, plan_accounts(paper))


def _account(file: str) -> dict[str, Any]:
    plan, versions = read_plan(file), plan_history(file)[::-1]
    records = [each for each in map(Record, plan.confirmatory) if each.results_file.is_file()]
    runs = [run for record in records for run in record.runs]
    facts = plan_provenance(file, plan, [trained_with(run["provenance"])["commit"] for run in runs])
    if not runs:
        facts["plan_precedes"] = "there are no recorded runs yet"
    return {
        "file": file,
        "title": plan.title,
        "hash": plan.hash,
        "studies": plan.confirmatory,
        "versions": [{"commit": v.commit[:12], "date": v.date, "hash": v.hash} for v in versions],
        "changes": [change.model_dump() for change in plan.changes],
        **facts,
    }
