"""./run_all.sh [STUDY …] [FIELD=VALUE …] [--jobs N] [--stop-after HOURS] [-n]
    Run studies (default: params/final.yaml): train, analyse, draw, archive.
    The same command resumes a stopped study and repeats nothing that is done.
        ./run_all.sh params/example.yaml -n
    FIELD=VALUE changes a field of all runs. These are scratch runs: no record
    includes them.
        ./run_all.sh params/example.yaml training.iterations=600
./run_all.sh fields
    List every field of a parameter file: default, allowed values, meaning.
        ./run_all.sh fields | grep learning_rate
./run_all.sh estimate STUDY [--measure M] [--effect D] [--spread SD|STUDY]
    Print what a study costs (arithmetic, memory, time on this machine), and the
    power of its seeds, given the spread of a pilot study or your guess.
        ./run_all.sh estimate example --effect 0.02 --spread 0.03
./run_all.sh freeze --new PLAN --study STUDY
    Write a template of a plan for a study to params/plans/. Fill it in.
        ./run_all.sh freeze --new myplan --study mine
./run_all.sh freeze PLAN
    Freeze a plan: add the hashes of its studies to it, and draw their seeds.
        ./run_all.sh freeze myplan
./run_all.sh site [PAPER …] [--serve] [--tensorboard DIR]
    Build pages that show runs in a browser: your own, or those of papers.
    --serve keeps the page of your own runs up to date at one address until the
    sweep ends. --tensorboard writes curves as TensorBoard event files instead.
        ./run_all.sh site --serve
./run_all.sh paper [PAPER …] [--add STUDY]
    Build the PDF and LaTeX of papers. If you name a paper that has no
    manuscript, a first one is written. --add appends a section on a study.
        ./run_all.sh paper example
./run_all.sh export STUDY
    Pack a finished study into STUDY.zip, for another machine.
        ./run_all.sh export mine
./run_all.sh export STUDY/ARM/SEED --to DIR
    Write a run's model as a folder that Hugging Face transformers can load.
        ./run_all.sh export final/none/0 --to gpt
./run_all.sh import FILE
    Check a zip from export or from 00_kaggle, and add its study to the record.
        ./run_all.sh import mine.zip
./run_all.sh verify [STUDY …] [--retrain N | STUDY/ARM/SEED …]
    Compute every published number again from the record. --retrain also trains
    runs again. The exit status is 1 for a fault, 4 if a retrained run cannot be
    judged, and 5 if this machine could not verify everything.
        ./run_all.sh verify final --retrain 2
./run_all.sh renew [STUDY …]
    Execute 01, 03 and 04 of recorded studies again, from the raw tables. A
    record is replaced only if every published number comes out equal.
        ./run_all.sh renew final
./run_all.sh test [--fast | --all] [any pytest flag]
    Run the tests. --fast leaves out the slow ones; --all adds the longest.
        ./run_all.sh test --fast
./run_all.sh setup
    Make the environment, and run nothing.
        ./run_all.sh setup
./run_all.sh --help
    Print this text. After a command, print only its part.
        ./run_all.sh verify --help

A STUDY is a name in params/ or the path of a YAML file. Studies and flags may
come in any order:
  --jobs N            Train N runs at once. The default is as many as cores and
                      memory, or GPUs, have room for.
  --stop-after HOURS  Stop everything after that time.
  -n                  Only print what would run. With --verbose, also print
                      Snakemake's plan.
  --replace           Put your runs in place of a published record. Without it,
                      the record is kept, and your runs stay in runs/. It also
                      makes confirmatory runs again if other code made them.
  Any other flag goes to Snakemake, such as --profile params/slurm (a cluster).

Ctrl-C stops everything. The environment is .venv in this folder, even if
another one is active; --here uses the active one.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

# Slow imports are inside the functions that need them, so --help is quick and needs no package.

STOPPED = 130
"""Exit status of an interrupted command, as in shells."""
MOST_TRIES = 3
"""How often a sweep starts if code is edited while it makes its copy."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        from lib.config.errors import UsageError

        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def _path(text: str) -> Path:
    """Resolve a path relative to the folder in which run_all.sh was called."""
    return Path(os.environ.get("CALLED_FROM", ""), text)


def _study(text: str) -> str:
    """Resolve a study: a name, or the path of a YAML file relative to that folder."""
    path, own = _path(text), Path("params", Path(text).name)
    # os.path.isfile returns False for a name that is too long; Path.is_file raises.
    if path.suffix != ".yaml" or not os.path.isfile(path):  # noqa: PTH113
        return text
    return str(own if own.is_file() and own.samefile(path) else path)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with suppress(ValueError):
            if 0 < (number := kind(text)) < float("inf"):
                return number
        raise argparse.ArgumentTypeError(f"{text} is not allowed; give a number above 0")

    return parse


def commands() -> tuple[_Parser, Any]:
    """Return the parser of all named commands, and each command's own parser by name. The command
    that runs studies has no name: see `run`. The top of this file says what the arguments mean."""
    top = _Parser(prog="./run_all.sh", add_help=False, allow_abbrev=False)
    subparsers = top.add_subparsers(dest="command", parser_class=_Parser)
    add = subparsers.add_parser
    test, freeze, estimate = add("test"), add("freeze"), add("estimate")
    test.add_argument("--fast", action="store_true")
    test.add_argument("--all", action="store_true")
    verify = add("verify")
    for parser in (verify, add("renew")):
        parser.add_argument("studies", nargs="*")
    verify.add_argument("--retrain", nargs="+", default=[])
    add("import").add_argument("file", type=_path)
    freeze.add_argument("plan")
    freeze.add_argument("--new", action="store_true")
    freeze.add_argument("--study")
    estimate.add_argument("study", type=_study)
    estimate.add_argument("--effect", type=float)
    estimate.add_argument("--spread")
    estimate.add_argument("--measure")
    export = add("export")
    export.add_argument("name", type=_study)
    export.add_argument("--to", type=_path)
    add("fields")
    paper, site = add("paper"), add("site")
    for parser in (paper, site):
        parser.add_argument("papers", nargs="*")
    paper.add_argument("--add", metavar="STUDY")
    site.add_argument("--serve", action="store_true")
    site.add_argument("--tensorboard", type=_path, metavar="DIR")
    return top, subparsers.choices


def follow(options: argparse.Namespace, rest: list[str]) -> int | None:
    """Run a parsed command; return its exit status (None means 0). Raises UserError."""
    match options.command:
        case "test":
            marks = "not benchmark" if options.all else "not long and not benchmark"
            marks = f"not slow and {marks}" if options.fast else marks
            command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadfile"]
            command += [
                "--no-loadscope-reorder"
            ]  # keep the order of tests/conftest.py: slow files first
            os.execv(sys.executable, [*command, "-m", marks, *rest])
        case "verify":
            return verify(options.studies, options.retrain)
        case "renew":
            from lib.record.archive import recorded_studies, require_recorded
            from lib.sweep.renew import renew

            return renew(require_recorded(options.studies) or recorded_studies())
        case "import":
            from lib.sweep.kaggle import import_study
            from lib.sweep.summary import print_places, summarise

            study = import_study(options.file)
            summarise(study)
            print_places(study)
        case "fields":
            from lib.config.fields import field_lines

            for line in field_lines():
                print(line)
        case "freeze":
            from lib.config.freeze import draft_plan, freeze
            from lib.config.plan import read_plan
            from lib.config.study import load_study
            from lib.sweep.estimate import data_of, power

            plan = f"{Path(options.plan).name.removesuffix('.yaml')}.yaml"
            if options.new:
                draft_plan(plan, options.study)
            else:
                earlier = read_plan(plan)
                frozen = freeze(plan, data_of)
                if earlier.frozen:
                    print(
                        f"{plan} was frozen before; its old hash no longer counts: {earlier.hash}"
                    )
                print(f"{plan} is frozen. Its hash: {frozen.hash}")
                for study in map(load_study, frozen.confirmatory):
                    print(f"Seeds of {study.name}: {', '.join(map(str, study.seeds))}")
                    print(*power(frozen, study, None, None), sep="\n")
                print(
                    "Next: commit params/, publish the hash where it is dated, then run the study."
                )
        case "estimate":
            from lib.config.study import load_study
            from lib.sweep.estimate import estimate

            study = load_study(options.study, undrawn=True)
            for line in estimate(study, options.effect, options.spread, options.measure):
                print(line, flush=True)
        case "export" if options.to:
            from lib.train.hugging_face import export

            export(options.name, options.to)
            print(f"Load it with AutoModelForCausalLM.from_pretrained('{options.to}')")
        case "export":
            from lib.sweep.kaggle import export_study

            export_study(options.name)
        case "paper":
            from lib.publish import findings, paper

            findings.main(options.papers)
            paper.main(options.papers, options.add)
        case "site" if options.tensorboard:
            from lib.publish import tensorboard

            tensorboard.main(options.papers, options.tensorboard)
        case "site":
            from lib.publish import site

            if options.serve:
                site.serve()
            else:
                site.main(options.papers)
    return None


def verify(studies: list[str], words: list[str]) -> int:
    """Verify the studies named, or all of them and the papers. Then train runs again: `words` names
    them, or says how many. Return the exit status: 1 for a fault, 4 if a run cannot be judged, 5 if
    this machine could not verify everything."""
    from lib.config.files import machine_fault
    from lib.publish import findings, paper
    from lib.record import archive, retrain
    from lib.record.verify import NOT_HERE
    from lib.record.verify import verify as verify_records
    from lib.sweep.execute import train_apart

    named = studies or [word.partition("/")[0] for word in words if "/" in word]
    chosen = archive.require_recorded(list(dict.fromkeys(named))) or archive.recorded_studies()

    def verify_studies() -> int:
        # Imported here because importing it fails without a folder for temporary files.
        from lib.sweep.estimate import begin_again

        return verify_records(chosen, begin_again)

    def verify_paper(folder: Path) -> int:
        faults = [*findings.check(folder), *paper.check(folder)]
        for fault in faults:
            print(f"error: papers/{folder.name}: {fault}", flush=True)
        return 1 if faults else 0

    checks: dict[str, Callable[[], int]] = {
        "the records": verify_studies,
        "--retrain": lambda: retrain.retrain(words, studies, train_apart),
    }
    for folder in [] if named else archive.papers_named([]):
        if (folder / "paper.md").is_file():
            checks[f"papers/{folder.name}"] = partial(verify_paper, folder)
    statuses = []
    for name, check in checks.items():
        try:
            statuses.append(check())
        except Exception as error:
            if not (reason := machine_fault(error)):
                raise
            print(f"{name}: could not be verified here: {reason}", flush=True)
            statuses.append(NOT_HERE)
    return min(filter(None, statuses), default=0)


def run(words: list[str]) -> int:
    """Run studies. Raises UsageError for a word that is neither a study nor a flag."""
    from lib.config.errors import UsageError, suggest
    from lib.config.files import prepare_params
    from lib.config.paths import PARAMS, listed
    from lib.config.schema import FIELDS
    from lib.sweep.code import EditedError
    from lib.sweep.sweep import Sweep, run_sweep

    prepare_params()
    names = [path.stem for path in listed(PARAMS, "*.yaml")]
    fields = [word for word in words if re.match(r"\w+\.\w+=", word)]
    words = [word for word in words if word not in fields]
    studies = [word for word in words if word.endswith(".yaml") or Path(word).name in names]
    studies = studies or ["final"]
    parser = _Parser(prog="./run_all.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--jobs", "-j", type=_positive(int))
    parser.add_argument("--stop-after", type=_positive(float))
    parser.add_argument("--dry-run", "-n", action="store_true")
    parser.add_argument("--replace", action="store_true")
    parser.add_argument(
        "--again", action="count", default=0
    )  # the command adds it when it restarts itself
    options, flags = parser.parse_known_args([word for word in words if word not in studies])
    if flags:
        from snakemake.cli import get_argument_parser  # type: ignore[import-untyped]

        snakemake = get_argument_parser()
        snakemake.error = parser.error
        if unknown := snakemake.parse_args(flags).targets:
            field, is_change, _ = unknown[0].partition("=")
            if is_change:
                raise UsageError(f"changes: {suggest(field, FIELDS)}")
            raise UsageError(f"study: {suggest(unknown[0], [*names, 'test', 'verify', '--help'])}")
    times = vars(options).pop("again")
    if fields and (flags or options.replace or options.stop_after):
        raise UsageError(
            f"{fields[0]}: scratch runs take only --jobs and -n; leave other flags out"
        )
    try:
        if fields:
            from lib.sweep.scratch import read_changes, run_scratch

            asked = read_changes(fields), options.jobs
            ends = [run_scratch(s, *asked, dry_run=options.dry_run) for s in map(_study, studies)]
            return max(ends)
        return run_sweep(Sweep([*map(_study, studies)], flags, **vars(options)))
    except EditedError:
        if times == MOST_TRIES - 1:
            raise
    # Start again in a new process, which imports the edited code.
    print("lib or notebooks were edited just now; starting again", flush=True)
    os.execv(sys.executable, [*sys.orig_argv, "--again"])


def dispatch(words: list[str]) -> int | None:
    """Run a command line; return its exit status (None means 0). Raises UserError."""
    parser, named = commands()
    if not words or words[0] not in named:
        return run(words)
    options, rest = parser.parse_known_args(words)
    if rest and options.command != "test":
        parser.error(f"{options.command}: '{rest[0]}' is not an argument of this command")
    return follow(options, rest)


def main(words: list[str]) -> int:
    """Run a command line; return its exit status."""
    if {"-h", "--help"} & {*words}:
        own = "" if words[0] not in commands()[1] else words[0]
        lines = re.findall(rf"^\./run_all\.sh {own}\b.*\n(?: .*\n)*", __doc__ or "", re.M)
        print("".join(lines) if own else __doc__, end="")
        return 0
    from lib.config.errors import exit_status

    hang_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        signal.signal(
            number, signal.default_int_handler
        )  # SIGINT is ignored after `command &` in a script
    try:
        return exit_status(dispatch)(words)
    except KeyboardInterrupt:
        print("\nstopped; the same command continues", file=sys.stderr)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
