"""./run_all.sh [params/NAME.yaml …] [--jobs N] [--stop-after HOURS] [any Snakemake flag]
    Set up, run the studies named (default: params/final.yaml), analyse, draw, archive.
    A rerun continues what was stopped and redoes nothing that is done.
./run_all.sh test [--fast | --all] [any pytest flag]
    Run the tests: those that take seconds, the usual ones, or every one.
./run_all.sh test --mutants N [--seed S] [--fast | --all] [lib/FILE.py …] [tests/… …]
    Change N lines of lib/ drawn at random, one at a time in a copy, and tell which test noticed.
./run_all.sh verify [NAME …] [--fresh] [--redraw] [--retrain N | STUDY/ARM/SEED …] [--badge FILE]
    Compute every published number again from the record, but of what was sound before and has not
    changed (--fresh: of that, too); execute 01 and 04 again; train runs again, and write how they
    compare as a badge (JSON for shields.io). Runs that are named are trained without verifying the
    whole record first.
./run_all.sh analyse NAME …            Analyse and draw recorded studies again.
./run_all.sh import FILE
    Take a study that ran elsewhere into the record: the zip that 00_kaggle leaves, checked first.
./run_all.sh wheels                    Download what a Kaggle session without internet installs.
./run_all.sh freeze --new PLAN --study NAME
    Begin a plan (params/plans/) for a study: a template, to be filled in.
./run_all.sh freeze PLAN               Fix the studies of a plan, draw their seeds.
./run_all.sh estimate STUDY [--effect D] [--spread SD|STUDY] [--vocabulary N] [--price P]
    Say before a study runs what it takes (arithmetic, memory, disk, time here and on GPUs), and
    what its seeds can show: the power of each hypothesis, given the spread of a pilot or a guess.
./run_all.sh export STUDY/ARM/SEED --to DIR
    Write a run's model as a folder that Hugging Face's transformers load.
./run_all.sh pack STUDY
    Pack the weights of a study's runs into one archive, with hashes.
./run_all.sh traces STUDY --to tensorboard|csv [--out DIR]
    Write what a recorded study's runs left by step, for TensorBoard or as tables.
./run_all.sh paper [PAPER …]
    Execute the notebooks of papers, build PDF and LaTeX; begin new ones.
./run_all.sh record [PAPER …]          Build the lab record: a site of a paper's studies and runs.
./run_all.sh --help                    This text; after a command, that command's words.

Studies and flags come in any order. --jobs is the number of runs side by side (default: one per
core; on GPUs as many as cores, and an estimate of a run's memory, allow; --runs-per-gpu N says
otherwise). --stop-after HOURS ends a sweep early and cleanly. A record that came with the
repository stays as it is: what runs stays in runs/, and --replace puts it in the record's place.
-n only tells which runs would be made, why, and how long that takes. Another useful Snakemake flag
is --profile params/slurm (a cluster); --snakemake-help lists them all. Ctrl-C stops everything and
says how far it is; a plain rerun continues. --ordinary-kernels imports every package anew for each
notebook, instead of forking kernels from one process.
Without an active environment, one is made in .venv.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from lib.workflow.sweep import Sweep

# Whatever takes long to import is imported where it is used: --help is quick and needs no package.

STOPPED = 130
"""The status of a command that was interrupted, as shells say it."""
_RESERVED = {"snakefile", "directory", "touch"}
"""Options of Snakemake that a sweep sets itself, by their names in its parser."""
_TELLING = {
    *("dryrun", "summary", "detailed_summary", "dag", "rulegraph", "filegraph", "d3dag", "lint"),
    *("list_rules", "list_target_rules", "list_changes", "list_input_changes", "list_untracked"),
    *("list_params_changes", "list_conda_envs", "print_compilation", "containerize", "report"),
    *("archive", "cleanup_metadata", "unlock", "delete_all_output", "delete_temp_output"),
}
"""Options with which Snakemake tells or tidies something instead of running."""
_ORDERING = {"until", "omit_from", "prioritize", "allowed_rules", "batch"}
"""Options that say which jobs run, or which come first; a file given priority is one to make."""


class _Parser(argparse.ArgumentParser):
    """Refuses a command line in one line instead of by its usage."""

    def error(self, message: str) -> NoReturn:
        from lib.study.yaml import UsageError

        command = self.prog.partition(" ")[2]
        fault = message.removeprefix("argument ")
        raise UsageError(
            f"{command}: {fault}; see {self.prog} --help"
            if command
            else f"{fault}; see {self.prog} --snakemake-help"
        )


COMMANDS: dict[str, _Parser] = {}
"""What `./run_all.sh` does beside running studies, by name; `func` of each does it."""
Command = Callable[[argparse.Namespace], int | None]


def _command(*words: tuple[str, dict[str, Any]]) -> Callable[[Command], Command]:
    """Make a function a command, whose docstring is its help, with the words that it takes."""

    def add(function: Command) -> Command:
        name = function.__name__.strip("_")
        prog, help_ = f"./run_all.sh {name}", function.__doc__
        parser = COMMANDS[name] = _Parser(prog=prog, description=help_, allow_abbrev=False)
        for word, settings in words:
            parser.add_argument(word, **settings)
        parser.set_defaults(func=function)
        return function

    return add


def _arg(name: str, help_: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    """Describe a word of a command as argparse takes it; a flag without settings is a switch."""
    if name.startswith("--") and not settings:
        settings = {"action": "store_true"}
    return name, {"help": help_, **settings}


def _path(text: str) -> Path:
    """Take a path as seen from where run_all.sh was called."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path")
    return Path(os.environ.get("CALLED_FROM", ""), text)


def _plan_file(text: str) -> str:
    """Take the name or path of a plan."""
    name = Path(text).stem
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise argparse.ArgumentTypeError(f"{text!r} names none; use letters, digits, -, . and _")
    return f"{name}.yaml"


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with suppress(ValueError):
            if 0 < (number := kind(text)) < math.inf:
                return number
        wanted = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{text}; give a {wanted} above 0")

    return parse


def _finite(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text}; give a number, in the measure's units")


def _number_or_name(text: str) -> float | str:
    try:
        float(text)
    except ValueError:
        return Path(text).stem
    return _positive(float)(text)


_STUDY = _arg("study", "name or path of a parameter file")
_PAPERS = _arg("papers", "a folder of papers/", nargs="*", metavar="PAPER")


@_command(
    _arg("--fast", "those that take seconds"),
    _arg("--all", "also those that take minutes"),
    _arg("--mutants", "change N lines of lib/ instead", type=_positive(int), metavar="N"),
)
def _test(options: argparse.Namespace) -> NoReturn:
    """Run the tests: those that take seconds, the usual ones, or every one. Further words go to
    pytest."""
    if options.mutants:
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutants", *options.argv])
    marks = "not benchmark" if options.all else "not long and not benchmark"
    # Many of the slow tests wait for processes that they have started: one worker more than cores.
    workers = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", (os.cpu_count() or 1) + 1)
    if options.fast:
        marks, workers = f"not slow and {marks}", "auto"
    command = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", "-m", marks]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *command, *options.extras])


@_command(
    _arg("studies", "a recorded study", nargs="*", metavar="NAME"),
    _arg("--redraw", "execute 01 and 04 again as well"),
    _arg("--fresh", "also what was sound before and has not changed"),
    _arg("--retrain", "or STUDY/ARM/SEED …: only these", nargs="+", default=[], metavar="N"),
    _arg("--badge", "where to say how they compare, for shields.io", type=_path, metavar="FILE"),
)
def _verify(options: argparse.Namespace) -> int:
    """Compute every published number again from the record; train some of its runs again."""
    from lib.workflow.verify import verify_record

    return verify_record(
        options.studies, options.redraw, options.retrain, options.badge, options.fresh
    )


@_command(_arg("studies", "a recorded study", nargs="+", metavar="NAME"))
def _analyse(options: argparse.Namespace) -> None:
    """Analyse and draw recorded studies again by the code at hand, from the runs in their
    record."""
    from lib.record.record import require_recorded
    from lib.workflow.importing import analyse_again

    for name in require_recorded(options.studies):
        print(f"{name}: 03_analysis, 04_figures", flush=True)
        analyse_again(name)


@_command(_arg("file", "the zip that 00_kaggle leaves", type=_path))
def _import(options: argparse.Namespace) -> None:
    """Take a study that ran elsewhere into the record, checked first."""
    from lib.workflow.importing import import_study

    import_study(options.file)


@_command()
def _wheels(_: argparse.Namespace) -> int:
    """Download what a Kaggle session without internet installs, for the Python of its image."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--dest", "wheels", "--implementation", "cp", "--python-version", "3.12"]
    for platform in ("any", "manylinux_2_28_x86_64", "manylinux2014_x86_64"):  # not ours: sources
        command += ["--platform", platform]
    if status := subprocess.run([*command, "-r", "requirements.lock"]).returncode:
        return status
    count = sum(1 for _ in Path("wheels").iterdir())
    print(f"wheels/ holds {count} files; upload it as a Kaggle dataset")
    return 0


@_command(
    _arg("plan", "name or path of a plan of params/plans/", type=_plan_file),
    _arg("--new", "write it, to be filled in"),
    _arg("--study", "of a new plan: the study that it is for", metavar="NAME"),
)
def _freeze(options: argparse.Namespace) -> None:
    """Fix the studies of a plan, and draw their seeds; or begin a plan for a study."""
    from lib.workflow import freeze

    if options.new:
        freeze.begin(options.plan, options.study)
    else:
        freeze.fix(options.plan)


@_command(
    _STUDY,
    _arg("--vocabulary", "symbols, where the corpus is not here", type=_positive(int)),
    _arg("--price", "of an hour of one GPU", type=_positive(float)),
    _arg("--effect", "the true difference, for power", type=_finite),
    _arg(
        "--spread",
        "of differences, for power: their sd, or a recorded study, such as a pilot",
        type=_number_or_name,
        metavar="SD|STUDY",
    ),
)
def _estimate(options: argparse.Namespace) -> None:
    """Say before a study runs what it takes (arithmetic, memory, disk, time here and on GPUs), and
    what its seeds can show."""
    from lib.study.study import load_study
    from lib.workflow.estimate import estimate, plan_of, power_report

    study = load_study(options.study, undrawn=True)
    cost = estimate(study, options.vocabulary, options.price)
    lines = [cost.text]
    if plan := plan_of(study):
        lines += ["", *power_report(study, plan, options.effect, options.spread, cost.hours)]
    print(*lines, sep="\n")


@_command(
    _arg("run", "of which the weights are here", metavar="STUDY/ARM/SEED"),
    _arg("--to", "a new folder", type=_path, required=True, metavar="DIR"),
)
def _export(options: argparse.Namespace) -> None:
    """Write a run's model as a folder that Hugging Face's transformers load."""
    from lib.workflow.export import export

    export(options.run, options.to)
    print(f"{options.run} lies in {options.to}, for AutoModelForCausalLM.from_pretrained")
    if find_spec("transformers") is None:
        install = "pip install --no-deps --require-hashes -r requirements-dev.lock"
        print(f"transformers, which has it, is not installed: {install}")


@_command(_STUDY)
def _pack(options: argparse.Namespace) -> None:
    """Pack the weights of a study's runs into one archive, with hashes."""
    from lib.study.io import RUNS, relative
    from lib.study.study import load_study
    from lib.workflow.export import pack

    study = load_study(options.study)
    target = RUNS / f"{study.name}-weights.tar"
    number = pack(study, target)
    print(
        f"{relative(target)}: {number} files and their hashes; its README.md says how to load a run"
    )


@_command(
    _arg("study", "a recorded study"),
    _arg("--to", "for TensorBoard, or as tables", required=True, choices=["tensorboard", "csv"]),
    _arg("--out", "a folder (runs/traces/)", type=_path, metavar="DIR"),
)
def _traces(options: argparse.Namespace) -> None:
    """Write what a recorded study's runs left by step, with their hyperparameters."""
    from lib.workflow.export import export_traces

    folder = export_traces(options.study, options.to, options.out)
    look = f"; to look at it: tensorboard --logdir {folder.parent}"
    print(f"{folder.name} lies in {folder}{look if options.to == 'tensorboard' else ''}")


@_command(_PAPERS)
def _paper(options: argparse.Namespace) -> None:
    """Build papers from the results, as PDF and LaTeX; begin new ones."""
    from lib.publish import findings, paper

    findings.main(options.papers)
    paper.main(options.papers)


@_command(_PAPERS)
def _record(options: argparse.Namespace) -> None:
    """Build the lab record: a site of a paper's studies and runs."""
    from lib.publish import site

    site.main(options.papers)


def parse_sweep(words: list[str]) -> Sweep:
    """Tell studies from flags. Raises UsageError for a name that is neither, for a flag that does
    not exist or that a sweep sets itself, and for a value that is missing or impossible."""
    from snakemake.cli import get_argument_parser  # type: ignore[import-untyped]

    from lib.study.io import PARAMS
    from lib.study.yaml import UsageError, suggest
    from lib.workflow.slurm import Cluster
    from lib.workflow.sweep import Sweep

    names = sorted(path.stem for path in PARAMS.glob("*.yaml"))
    studies = [word for word in words if word.endswith(".yaml") or Path(word).name in names]
    parser = _Parser(prog="./run_all.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--stop-after", type=_positive(float))
    parser.add_argument("--runs-per-gpu", type=_positive(int))
    parser.add_argument("--replace", action="store_true")
    parser.add_argument("--ordinary-kernels", action="store_true")
    parser.add_argument("--profile")
    rest = [word for word in words if word not in studies and word != "--"]
    args, flags = parser.parse_known_args(rest)
    if args.profile and not Path(args.profile).is_dir():
        raise UsageError(f"--profile {args.profile}: there is no such folder; params/slurm is one")

    snakemake = get_argument_parser(profiles=[args.profile] if args.profile else None)
    snakemake.error = parser.error
    try:
        parsed, defaults = snakemake.parse_args(flags), vars(snakemake.parse_args([]))
    except UsageError as error:
        if "--executor" in str(error):
            raise UsageError(
                f"{error}. For Slurm: pip install --no-deps --require-hashes "
                "-r params/slurm/requirements.txt"
            ) from None
        raise
    except Exception as error:  # Snakemake's own converters raise what they like
        parser.error(f"{' '.join(flags)}: {error}")
    if parsed.targets:
        name = next(word for word in flags if word in parsed.targets)
        raise UsageError(f"study: {suggest(name, [*names, *COMMANDS, '--help'])}")
    used = {name for name, value in vars(parsed).items() if value != defaults[name]}
    if reserved := used & _RESERVED:
        raise UsageError(f"flag --{min(reserved)}: run_all.sh sees to that itself; leave it out")
    for name in ("jobs", "cores"):
        if (count := getattr(parsed, name)) is not None and count < 1:
            parser.error(f"--{name} {count}: give a number of 1 or more")

    cluster = None
    if parsed.executor == "slurm":
        resources = parsed.default_resources.args if parsed.default_resources else []
        partition = dict(item.split("=", 1) for item in resources).get("slurm_partition")
        cluster = Cluster(partition, parsed.slurm_status_command)
    return Sweep(
        studies=studies,
        flags=flags + (["--profile", args.profile] if args.profile else []),
        forced=sorted(parsed.forcerun or ()),
        jobs=(parsed.jobs or parsed.cores) if {"jobs", "cores"} & used or args.profile else None,
        is_ordered=bool(_ORDERING & used),
        is_dry_run=bool(_TELLING & used),
        lists_runs=_TELLING & used == {"dryrun"},
        is_local=parsed.executor in (None, "local"),
        replaces=args.replace,
        forks_kernels=Sweep.forks_kernels and not args.ordinary_kernels,
        stop_after=args.stop_after,
        runs_per_gpu=args.runs_per_gpu,
        cluster=cluster,
    )


def _dispatch(words: list[str]) -> int | None:
    """Follow a command line. Raises UserError."""
    if words and words[0] in COMMANDS:
        parser = COMMANDS[words[0]]
        options, extras = parser.parse_known_intermixed_args(words[1:])
        if extras and words[0] != "test":
            parser.error(f"'{extras[0]}' is no argument of this command")
        options.argv, options.extras = words[1:], extras
        status: int | None = options.func(options)
        return status
    if "--snakemake-help" in words:
        return subprocess.run([sys.executable, "-m", "snakemake", "--help"]).returncode
    sweep = parse_sweep(words)
    from lib.workflow.sweep import run_sweep

    return run_sweep(sweep)


def main(words: list[str]) -> int:
    """Follow a command line; return the exit status."""
    if {"-h", "--help"} & set(words):
        print(COMMANDS[words[0]].format_help() if words[0] in COMMANDS else __doc__, end="")
        return 0
    from lib.study.yaml import exit_status

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # SIGINT is off in a script's background
    try:
        return exit_status(_dispatch)(words)
    except KeyboardInterrupt:
        print("\nstopped; a plain rerun continues", file=sys.stderr)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
