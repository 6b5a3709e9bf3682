"""Whether the suites that runs were asked are those that their texts give: built again by the code
that asked them, where torch and the text are at hand."""

import importlib.util
from collections.abc import Iterator

from lib.publish import replay
from lib.publish.recomputed import Run, named

_BUILD = """
import json, sys
from lib.data.corpus import CorpusError, load_corpus
from lib.data.suite import build_suite
from lib.study.config import load_study
built, found = {}, {}
for arm in load_study(sys.argv[1]).arms():
    config = arm.config
    of = config.corpus, config.evaluation.items_per_task, config.model.block_size
    if repr(of) not in built:
        try:
            built[repr(of)] = build_suite(load_corpus(of[0]), *of[1:]).hash
        except CorpusError:
            built[repr(of)] = None
    found[arm.id] = built[repr(of)]
print(json.dumps(found))
"""


def foreign_suites(study: str, runs: list[Run]) -> Iterator[str]:
    """Name every run that was asked other questions than its text gives. Print how many could not
    be looked at."""
    asked = [run for run in runs if run["suite_hash"]]
    found: dict[str | None, dict[str, str | None]] = {}  # by the commit that asked
    unseen = 0
    for run in asked if importlib.util.find_spec("torch") else []:
        account = run["provenance"]["executed"]
        commit = replay.committed(account)
        if commit not in found:
            found[commit] = replay.asked(study, account, _BUILD)
        built = found[commit].get(run["arm"])
        unseen += built is None
        if built not in (None, run["suite_hash"]):
            yield f"{named(run)} was asked other questions than its text gives"
    unseen = unseen if found else len(asked)
    if unseen:
        print(f"{study}: suites of {unseen} of {len(asked)} runs not built again: torch or their "
              "text is not here", flush=True)  # fmt: skip
