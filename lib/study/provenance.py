"""Where a result comes from: written down with the weights, before the first step of training.

It travels with every checkpoint and is never changed afterwards. What is measured later, perhaps by
other code on another machine, has a provenance of its own beside it.
"""

import importlib.util
import re
from datetime import UTC, datetime
from functools import lru_cache
from operator import not_
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lib.study.digests import measuring_digest
from lib.study.fields import Machine, digest
from lib.study.git import git, is_checkout
from lib.study.inputs import is_copy
from lib.study.paths import PARAMS, ROOT

CHECKPOINT_FORMAT = 6
"""Increase it when the content of checkpoints changes: those of another format are ignored."""


INSTALL = "pip install lm_eval==0.4.13"
"""What brings the LM-Eval harness, which a stock image lacks."""


def has_harness() -> bool:
    """Tell whether the LM-Eval harness, which asks the task suite, is installed."""
    return importlib.util.find_spec("lm_eval") is not None


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parse_time(text: str) -> datetime:
    """Read when something was: as a provenance says it, or in ISO 8601. ValueError for no time."""
    return datetime.fromisoformat(text.replace(" UTC", "+00:00"))


class MachineFacts(Machine):
    """The machine as far as it may change a number: its settings, and what it is."""

    checkpoint_interval: int = Field(default=100, exclude=True)
    device_name: str
    vector_level: str
    """Instructions that the CPU's arithmetic uses, e.g. AVX512."""
    cores: int | None
    platform: str


class Environment(_Facts):
    """What executes: code, machine and versions."""

    commit: str | None
    """None where there is no git."""
    clean: bool | None
    """Whether code, notebooks and parameters were as committed."""
    code: str | None = Field(None, exclude_if=not_)
    """Where code is a factor, the commit whose code and notebook execute; `commit` and `clean` are
    then those of the parameters."""
    measuring_digest: str
    machine: MachineFacts
    packages: dict[str, str | None]
    """Version of each, None where it is missing."""


class Stretch(_Facts):
    """Steps of a run that were made on one machine, with one version of its packages."""

    start: int
    """How many steps there were before."""
    end: int
    machine: MachineFacts
    packages: dict[str, str | None]


class Provenance(Environment):
    """What a run's training began with. Later stretches may be of another machine."""

    started: str = Field(default_factory=_now)
    study: str
    arm: str
    seed: int
    plan: str | None
    """Hash of the plan that the study named when training started."""
    training_digest: str
    corpus_sha256: str
    tokenizer_sha256: str | None = None
    """Of the tokenizer's file; None for characters and bytes."""
    suite_hash: str | None = None
    """Of older runs, the suite that was made before them. It decides no weights."""
    parameters: dict[str, dict[str, Any]]
    """All fields of all sections but the machine's."""

    @property
    def identity(self) -> str:
        """SHA-256 of what decides the experiment: code, text, seed and parameters of the weights
        and their dev curve, and the plan. Not of the machine, which changes no more than rounding:
        on another one, or with other settings, a run continues from its checkpoint."""
        corpus, *others = deciding_parameters(self.parameters)
        code = [CHECKPOINT_FORMAT, self.training_digest, self.corpus_sha256, self.seed]
        return digest([*code, corpus, self.tokenizer_sha256, *others, self.plan])


def deciding_parameters(parameters: dict[str, dict[str, Any]]) -> tuple[Any, ...]:
    """Take the parameters that decide a run's weights and dev curve: corpus (by its hash, not its
    path), model, training, and when the curve is taken. Others may change, and finished weights are
    measured anew."""
    corpus = {name: value for name, value in parameters["corpus"].items() if name != "source"}
    curve = [parameters["evaluation"][name] for name in ("interval", "dev_windows")]
    return corpus, parameters["model"], parameters["training"], curve


class Execution(Environment):
    """What measured a run: the notebook that wrote its result."""

    finished: str = Field(default_factory=_now)
    from_checkpoint: bool
    """Whether training was complete before the notebook began."""


class Origin(_Facts):
    """The provenance of a result."""

    trained: Provenance
    executed: Execution


def trained_with(provenance: dict[str, Any]) -> dict[str, Any]:
    """Name what a run was trained with, flat: plan, commit, clean, device, precision, threads,
    packages and so on. Reads the provenance of a result of any format."""
    if "trained" not in provenance:  # the first results had a flat list, under other names
        former = {"git_commit": "commit", "git_clean": "clean", "preregistration": "plan"}
        return {former.get(name, name): value for name, value in provenance.items()}
    trained: dict[str, Any] = provenance["trained"]
    precision = trained["parameters"]["training"]["precision"]
    return {**trained, **trained["machine"], "precision": precision}


def history(provenance: dict[str, Any]) -> str:
    """Say in words when and by which commit a run was trained, and whether its notebook was
    executed again from finished weights. Reads the provenance of a result of any format."""

    def describe(part: dict[str, Any]) -> str:
        code = f"by commit {part['commit'][:12]}" if part["commit"] else "by code outside git"
        if part.get("code"):
            code = f"by the code of commit {part['code'][:12]}, started {code}"
        return code + (" and changes not committed" if part["clean"] is False else "")

    trained, executed = trained_with(provenance), provenance.get("executed", {})
    text = " ".join(filter(None, ["trained", trained.get("started"), describe(trained)]))
    if executed.get("from_checkpoint"):
        text += f"; executed again from its weights {executed['finished']} {describe(executed)}"
    return text


def code_state() -> dict[str, Any]:
    """Name the commit, whether what runs was as committed, and the measuring digest."""
    return {"measuring_digest": measuring_digest(), **git_state()}


CODE_REF = "refs/study/code"
"""In a tree with the code of one commit and the parameters of another, as an arm that is a commit
has it: the first."""

# What a run is made of. A Python file beside it could stand in for a module.
_RUNS = (
    *("lib", "notebooks", "params", "run_all.sh", "requirements.lock", "pyproject.toml"),
    *("*.py", ":!tests"),
)


@lru_cache(maxsize=1)
def git_state() -> dict[str, Any]:
    """Name the commit, and whether what runs was as committed; texts and the record, which a study
    writes itself, are nothing that runs. Where the code is that of another commit, name that too.

    In a tree that `git archive` packed, lib/VERSION names the commit. The code there counts as that
    commit's, unless a notebook added parameters: verifying a record compares its digests and
    notebooks with the commit.
    """
    version = ROOT / "lib" / "VERSION"
    packed = version.read_text("utf-8").strip() if version.is_file() else ""
    if re.fullmatch(r"[0-9a-f]{40}", packed):
        return {"commit": packed, "clean": not any(map(is_copy, PARAMS.rglob("*.yaml")))}
    if not is_checkout():
        return {"commit": None, "clean": None}
    code = git("rev-parse", "--verify", "--quiet", CODE_REF)
    changes = git("status", "--porcelain", "--", *(["params"] if code else _RUNS))
    commit = git("rev-parse", "HEAD")
    return {
        "commit": commit.strip() if commit else None,
        "clean": None if changes is None else not changes.strip(),
    } | ({"code": code.strip()} if code else {})
