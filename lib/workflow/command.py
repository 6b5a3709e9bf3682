"""The command line of a sweep: studies and flags in any order, each refused at once in one line.

All flags are Snakemake's own; its parser knows them.
"""

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lib.study.errors import UsageError, unknown
from lib.study.paths import PARAMS
from lib.workflow.slurm import Cluster

COMMANDS = (
    *("test", "verify", "analyse", "paper", "record", "freeze"),
    *("estimate", "export", "import", "pack", "wheels"),
)
"""What `./run_all.sh` does beside running studies."""
_OURS = {"snakefile", "directory", "config", "configfile", "replace_workflow_config", "touch"}
"""Options that are not for users of a sweep, by their names in Snakemake's parser."""
_BESIDE = {"stop_after": float, "runs_per_gpu": int}
"""Options that Snakemake does not have."""
_TELLING = {
    *("dryrun", "summary", "detailed_summary", "dag", "rulegraph", "filegraph", "d3dag", "lint"),
    *("list_rules", "list_target_rules", "list_changes", "list_input_changes", "list_untracked"),
    *("list_params_changes", "list_conda_envs", "print_compilation", "containerize", "report"),
    *("archive", "cleanup_metadata", "unlock", "delete_all_output", "delete_temp_output"),
}
"""Options with which Snakemake tells or tidies something instead of running."""


@dataclass(frozen=True)
class Command:
    """What is asked for: names of studies, and flags for Snakemake."""

    studies: list[str]
    flags: list[str]
    options: set[str]
    """What the flags set, by the names in Snakemake's parser."""
    stop_after: float | None = None
    """Hours after which the sweep ends."""
    runs_per_gpu: int | None = None
    executor: str = "local"
    """What runs the jobs, by its name in Snakemake."""
    cluster: Cluster | None = None
    """The Slurm cluster that runs them, if one does."""

    @property
    def tells(self) -> bool:
        """Whether Snakemake is only asked to tell or tidy something."""
        return bool(_TELLING & self.options)


def parse(words: list[str]) -> Command:
    """Tell studies from flags. Raises UsageError for a name that is neither, for a flag that does
    not exist or is run_all.sh's own, and for a value that is missing or impossible."""
    from snakemake.cli import get_argument_parser  # type: ignore[import-untyped]

    parser = get_argument_parser()
    parser.error = _refuse
    for name, kind in _BESIDE.items():
        parser.add_argument("--" + name.replace("_", "-"), type=kind)
    known = sorted(path.stem for path in PARAMS.glob("*.yaml"))
    studies: list[str] = []
    flags: list[list[str]] = []
    for word in words:
        if word.startswith("-") and word != "--":
            flags.append([word])
        elif _is_study(word, known) and not (flags and _takes_a_name(parser, flags[-1][-1])):
            studies.append(word)
        elif flags:
            flags[-1].append(word)
        elif word != "--":
            raise UsageError(f"study: {unknown(word, [*known, *COMMANDS])}")
    options: dict[str, Any] = {}
    for_snakemake: list[str] = []
    for flag, *values in flags:
        given, further = _given(parser, flag, values)
        if further:
            raise UsageError(f"study: {unknown(further[0], [*known, *COMMANDS])}")
        options |= given
        for_snakemake += [] if given.keys() & _BESIDE else [flag, *values]
    beside = {name: options.pop(name) for name in _BESIDE if name in options}
    executor = _executor(for_snakemake, options.get("profile"))
    return Command(studies, for_snakemake, set(options), **beside, **executor)


def _executor(flags: list[str], profile: str | None) -> dict[str, Any]:
    """Say what runs the jobs, by these flags and what their profile adds."""
    from snakemake.cli import get_argument_parser

    parser = get_argument_parser(profiles=[profile] if profile else None)
    parser.error = _refuse
    try:
        parsed = parser.parse_args(flags)
    except UsageError as error:
        if missing := re.search(r"--executor.*invalid choice: '([\w-]+)'", str(error)):
            raise UsageError(
                f"executor '{missing[1]}' is not installed; for Slurm: pip install --no-deps "
                "--require-hashes -r params/slurm/requirements.txt"
            ) from None
        raise UsageError(f"flag --profile {profile}: {error}") from None
    if parsed.executor != "slurm":
        return {"executor": parsed.executor or "local"}
    resources = parsed.default_resources.args if parsed.default_resources else []
    partition = dict(item.split("=", 1) for item in resources).get("slurm_partition")
    return {"executor": "slurm", "cluster": Cluster(partition, parsed.slurm_status_command)}


def _is_study(word: str, known: list[str]) -> bool:
    return word.endswith(".yaml") or Path(word).name in known


def _takes_a_name(parser: argparse.ArgumentParser, flag: str) -> bool:
    """Tell whether a flag's one value may look like a study's name."""
    option = parser._option_string_actions.get(flag)
    return option is not None and option.nargs is None and option.type in (None, Path)


def _given(
    parser: argparse.ArgumentParser, flag: str, values: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return what one flag sets, and those of the words after it that are no values of it."""
    text = " ".join([flag, *values])
    try:
        parsed, strange = parser.parse_known_args([flag, *values])
    except Exception as error:  # Snakemake's own converters raise what they like
        why = str(error).partition(": ")[2] or str(error) or type(error).__name__
        raise UsageError(f"flag {text}: {why}; see ./run_all.sh --snakemake-help") from None
    if strange:
        hint = unknown(flag.partition("=")[0], list(parser._option_string_actions))
        hint = hint if "did you mean" in hint else hint.partition(";")[0]
        raise UsageError(f"flag {hint} (./run_all.sh --snakemake-help lists all)")
    counts = (parsed.jobs, parsed.cores, parsed.runs_per_gpu)
    if any(count is not None and count < 1 for count in counts):
        raise UsageError(f"flag {text}: give a number of 1 or more")
    if parsed.stop_after is not None and not 0 < parsed.stop_after < math.inf:
        raise UsageError(f"flag {text}: give a number of hours above 0")
    nothing = vars(parser.parse_args([]))
    options = {name: value for name, value in vars(parsed).items() if value != nothing[name]}
    if options.keys() & _OURS:
        raise UsageError(f"flag {flag}: run_all.sh sees to that itself; leave it out")
    if parsed.profile and not Path(parsed.profile).is_dir():
        raise UsageError(f"flag {text}: there is no such folder; params/slurm is one")
    return options, options.pop("targets", [])


def _refuse(message: str) -> NoReturn:
    raise UsageError(message)
