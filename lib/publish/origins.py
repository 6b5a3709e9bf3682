"""Whether runs come from what they name: their accounts, and the code and parameters of the commits
in these."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import yaml

from lib.publish import replay
from lib.publish.archive import record_folder
from lib.publish.recomputed import Run, named, place
from lib.study.config import Study
from lib.study.fields import digest
from lib.study.provenance import deciding
from lib.study.record import read_json, status_of


def wrong_provenance(study: str, run: Run) -> Iterator[str]:
    """What a run's account of its origin says otherwise than its result and its notebook."""
    trained, executed = run["provenance"]["trained"], run["provenance"]["executed"]
    for name in ("study", "arm", "seed", "corpus_sha256"):
        if trained[name] != run[name]:
            yield f"it was trained with {name} {trained[name]!r}, and is filed under {run[name]!r}"
    # Finished weights may be measured anew, with another suite or other settings of evaluation.
    anew = executed["from_checkpoint"]
    sides: list[Any] = [trained["parameters"], run["config"]]
    if anew:
        sides = list(map(deciding, sides))
    if sides[0] != sides[1]:
        yield "it was trained with other parameters than its result says"
    suite = trained["suite_hash"]
    if trained["parameters"]["evaluation"]["items_per_task"] != 0:
        suite = suite or run["suite_hash"]  # newer accounts name none: it decides no weights
    if run["status"] == "completed" and not anew and suite != run["suite_hash"]:
        yield "it was asked another suite than was prepared for it"
    notebook = place(study, run) / "02_train.ipynb"
    metadata = read_json(notebook)["metadata"]
    if metadata["study"]["commit"] != executed["commit"]:
        yield "its notebook is stamped with another commit than its result"
    if metadata["study"]["preregistration"] != trained["plan"]:
        yield "its notebook is stamped with another plan than it was trained under"
    start, end = (
        datetime.fromisoformat(metadata["papermill"][f"{k}_time"]) for k in ("start", "end")
    )
    began, ended = (_time(trained["started"]), _time(executed["finished"]))
    fresh = not (anew or run["resumed_at"])
    if not (began <= ended <= end.timestamp() and (not fresh or start.timestamp() < began + 1)):
        yield "it was trained at another time than its notebook was executed"
    accounts = [trained, executed] if fresh else [trained]
    if len({digest([a["commit"], a["packages"], a["machine"]]) for a in accounts}) > 1:
        yield "it names two commits, machines or versions for one execution"


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace(" UTC", "+00:00")).timestamp()


_STATED = """
import json, sys
from lib.study.config import load_study
from lib.study.digests import measuring_digest, training_digest
study = load_study(sys.argv[1])
print(json.dumps({"training_digest": training_digest(), "measuring_digest": measuring_digest(),
                  "parameters": study.model_dump(mode="json", exclude_defaults=True),
                  "runs": [[arm.id, seed] for arm in study.arms() for seed in study.seeds]}))
"""


def wrong_code(study: str, runs: list[Run]) -> Iterator[str]:
    """Parameters that are not those of the analysis' commit, runs whose digests are not those of
    their commit's code, and runs left out that such a commit asks for; it may ask for fewer."""
    there = [[run["arm"], run["seed"]] for run in runs]
    known: dict[str, dict[str, Any]] = {}
    # Without defaults: a field that came after a run was made changes nothing of it.
    given = yaml.safe_load((record_folder(study) / "parameters.yaml").read_text("utf-8"))
    recorded = Study.model_validate(given).model_dump(mode="json", exclude_defaults=True)
    account = status_of(record_folder(study) / "03_analysis.ipynb")
    if commit := replay.committed(account):
        known[commit] = replay.asked(study, account, _STATED)
        if known[commit]["parameters"] != recorded:
            yield f"parameters.yaml is not params/{study}.yaml of commit {commit[:12]}"
    for run in runs:
        for name, account in run["provenance"].items():
            commit = replay.committed(account)
            if commit is None:
                continue
            if commit not in known:
                known[commit] = replay.asked(study, account, _STATED)
            if [run["arm"], run["seed"]] not in known[commit]["runs"]:
                yield f"{named(run)} names commit {commit[:12]}, which does not ask for it"
            for digest_name in ("training_digest", "measuring_digest"):
                own = known[commit][digest_name]
                if account.get(digest_name, own) != own:
                    yield (
                        f"{named(run)} names a {digest_name} ({name}) that is not that of commit "
                        f"{commit[:12]}"
                    )
    for commit, stated in known.items():
        for arm, seed in stated["runs"]:
            if [arm, seed] not in there:
                yield f"run {arm} seed {seed} of commit {commit[:12]} is left out"
