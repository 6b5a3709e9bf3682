"""A repository of parameters, with a study whose seeds are drawn from its plan."""

import json

from lib.config.freeze import freeze
from lib.config.study import load_study
from tests.conftest import run_git

TEXT, SUITE = "c" * 64, "d" * 64
STUDY = {
    "name": "trial",
    "factors": {"model.embedding_norm": ["none", "layernorm"]},
    "seeds": {"count": 3},
    "plan": "plän.yaml",
}
PLAN = {
    "title": "A trial",
    "question": "Does the layer cost anything?",
    "confirmatory": ["trial"],
    "hypotheses": {
        "cost": {
            "says": "The layer raises the loss.",
            "test": ["layernorm", "none", "loss"],
            "direction": "greater",
        }
    },
    "smallest_effect_of_interest": {"loss": 0.03},
}
BOUND = PLAN["hypotheses"]["cost"]
FAMILY = {"contrasts": [["layernorm", "none"]], "measures": ["loss"]}


class Parameters:
    """A folder in place of this repository."""

    def __init__(self, top, monkeypatch):
        self.top, self.folder, self.plans = top, top / "params", top / "params" / "plans"
        self.plans.mkdir(parents=True)
        places = {"ROOT": top, "CHECKOUT": top, "PARAMS": self.folder, "PLANS": self.plans}
        places |= {"RUNS": top / "runs", "PAPERS": top / "papers"}
        for module in ("paths", "files", "provenance", "study", "plan", "claim", "freeze"):
            for name, folder in places.items():
                monkeypatch.setattr(f"lib.config.{module}.{name}", folder, raising=False)
        monkeypatch.delenv("STUDY_OUTPUT", raising=False)

    def write(self, file, content):
        """Write one field per line, as JSON, which is also YAML."""
        path = self.folder / file
        lines = (f"{name}: {json.dumps(value)}\n" for name, value in content.items())
        path.write_text("".join(lines), "utf-8")
        return path

    def study(self, **changes):
        content = STUDY | changes
        self.write(f"{content['name']}.yaml", content)
        return load_study(content["name"], undrawn=True)

    def plan(self, **changes):
        return self.write("plans/plän.yaml", PLAN | changes)

    def freeze(self, file="plän.yaml"):
        return freeze(file, lambda _: ({"tinyshakespeare": TEXT}, [SUITE]))

    def git(self, *words):
        return run_git(self.top, *words)

    def commit(self):
        """Commit everything; return the commit's hash."""
        self.git("init", "-q", "-b", "main")
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "work")
        return self.git("rev-parse", "HEAD")


def run_at(commit, trained=None, executed=None, **changes):
    """Return the part of a run's result that says how it was made."""
    by = {"commit": commit, "clean": True}
    run = {
        **{"status": "completed", "levels": {}},
        "config": {"corpus": {"source": "tinyshakespeare"}},
        "corpus_sha256": TEXT,
        "suite_hash": SUITE,
        "provenance": {
            "trained": by | {"training_digest": "1" * 64} | (trained or {}),
            "executed": by | {"measuring_digest": "2" * 64} | (executed or {}),
        },
    }
    return run | changes
