"""Any command line is followed or refused in one line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lib.study.io import ROOT
from lib.study.yaml import UsageError
from lib.workflow import cli
from lib.workflow.cli import parse_sweep
from tests.mutants import MARKS


@pytest.mark.parametrize(
    ("words", "studies", "flags"),
    [
        ("", [], []),
        ("--jobs 2 params/smoke.yaml", ["params/smoke.yaml"], ["--jobs", "2"]),
        ("params/smoke.yaml -j2", ["params/smoke.yaml"], ["-j2"]),
        ("--jobs=2 smoke", ["smoke"], ["--jobs=2"]),
        ("params/smoke.yaml -n final", ["params/smoke.yaml", "final"], ["-n"]),
        ("--forcerun train params/smoke.yaml", ["params/smoke.yaml"], ["--forcerun", "train"]),
        ("--dag smoke", ["smoke"], ["--dag"]),
        ("-- smoke", ["smoke"], []),
        ("--profile PROFILE smoke", ["smoke"], ["--profile", "PROFILE"]),
        ("--report smoke.html", [], ["--report", "smoke.html"]),
        ("--stop-after 11.5 smoke --runs-per-gpu=2 -j2", ["smoke"], ["-j2"]),
        ("--cores all --jobs unlimited", [], ["--cores", "all", "--jobs", "unlimited"]),
    ],
)
def test_studies_and_flags_come_in_any_order(
    words: str,
    studies: list[str],
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PROFILE").mkdir()
    (tmp_path / "PROFILE" / "config.yaml").write_text("jobs: 3\n", "utf-8")
    command = parse_sweep(words.split())
    assert (command.studies, command.flags) == (studies, flags)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--jobs 0", "--jobs 0: give a number of 1 or more"),
        ("--jobs=-3", "--jobs -3: give a number of 1 or more"),
        ("-c 0", "--cores 0: give a number of 1 or more"),
        ("--runs-per-gpu 0", "--runs-per-gpu: 0; give a whole number above 0"),
        ("--stop-after 0", "--stop-after: 0; give a number above 0"),
        ("--stop-after nan", "--stop-after: nan; give a number above 0"),
        ("--stop-after soon", "--stop-after: soon; give a number above 0"),
        ("--jobs", "--jobs/-j: expected one argument"),
        ("--jobs params/smoke.yaml", "--jobs/-j: expected one argument"),
        ("--jobs x smoke", "--jobs x: Error parsing number of jobs (--jobs, -j): must be integer"),
        ("--jobs 2.5", "--jobs 2.5: Error parsing number of jobs (--jobs, -j): must be integer"),
        ("smoke -j", "--jobs/-j: expected one argument"),
        ("--jbos 2", "unrecognized arguments: --jbos; see ./run_all.sh --snakemake-help"),
        ("--job 2", "ambiguous option: --job could match --jobs"),
        ("--retries x", "--retries/--restart-times/-T: invalid int value"),
        ("--rerun-triggers foo", "--rerun-triggers: invalid choice"),
        ("--resources gpu", "--resources gpu: "),
        ("--list-changes x", "--list-changes x: "),
        ("--until", "--until/-U: expected at least one"),
        ("--profile nosuch smoke", "--profile nosuch: there is no such folder"),
        ("-s Snakefile", "flag --snakefile: run_all.sh sees to that itself; leave it out"),
        ("--directory /tmp", "flag --directory: run_all.sh sees to that itself; leave it out"),
        ("--touch smoke", "flag --touch: run_all.sh sees to that itself; leave it out"),
        ("tset", "study: 'tset' is unknown; did you mean 'test'?"),
        ("-n verfy", "study: 'verfy' is unknown; did you mean 'verify'?"),
        ("smok --jobs 2", "study: 'smok' is unknown; did you mean 'smoke'?"),
        ("help", "study: 'help' is unknown; did you mean '--help'?"),
        ("-", "study: '-' is unknown; there are "),
    ],
)
def test_a_command_line_that_cannot_be_followed_is_refused_in_one_line(
    words: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        parse_sweep(words.split())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["freeze", ""], "freeze: plan: '' names none; use letters, digits, -, . and _; see "),
        (["freeze", "--new", "a\nb", "--study", "example"], "freeze: plan: 'a\\nb' names none; "),
        (["freeze", ".hidden"], "freeze: plan: '.hidden' names none; "),
        (["import", ""], "import: file: is empty; give a path; see "),
        (["traces", "dose", "--to", "csv", "--out", " "], "traces: --out: is empty; give a path; "),
        (["estimate", "example", "--vocabulary", "1.5"],
         "estimate: --vocabulary: 1.5; give a whole number above 0; see "),
        (["test", "--mutants", "0"], "test: --mutants: 0; give a whole number above 0; see "),
    ],
)  # fmt: skip
def test_a_word_of_a_command_that_cannot_be_meant_is_refused_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CALLED_FROM", str(tmp_path))
    monkeypatch.setattr("lib.workflow.freeze.PLANS", tmp_path)
    assert cli.main(words) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {message}")


@pytest.mark.parametrize(
    "words", ["-n", "-nq", "--dry-run", "--summary", "-l", "--lint", "--lc code"]
)
def test_what_is_dry_run_is_known(words: str) -> None:
    assert parse_sweep(words.split()).is_dry_run
    assert not parse_sweep(["--jobs", "2"]).is_dry_run


def test_the_time_given_is_not_for_snakemake() -> None:
    command = parse_sweep(["--stop-after", "11.5", "smoke", "--runs-per-gpu=2", "-n"])
    assert (command.stop_after, command.runs_per_gpu) == (11.5, 2)
    assert (command.flags, command.is_dry_run) == (["-n"], True)


def test_kernels_are_forked_unless_ordinary_ones_are_asked_for() -> None:
    command = parse_sweep(["smoke", "--ordinary-kernels", "-j2"])
    assert (command.forks_kernels, command.flags) == (False, ["-j2"])
    assert parse_sweep(["smoke"]).forks_kernels == (sys.platform == "linux")


def test_what_is_forced_is_named_together_with_what_is_stale() -> None:
    """Of two --forcerun Snakemake would follow the last one alone."""
    assert parse_sweep(["smoke", "-R", "train", "-j2"]).forced == ["train"]
    assert parse_sweep(["smoke", "-j2"]).forced == []


@pytest.mark.parametrize("tier", MARKS)
def test_the_tests_that_are_run_are_of_a_tier(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr("os.execv", lambda *command: called.append(command))
    cli.main(["test", *([f"--{tier}"] if tier != "usual" else []), "-x"])
    ((program, command),) = called
    assert command[:3] == [program, "-m", "pytest"]
    assert command[-3:] == ["-m", MARKS[tier], "-x"]


@pytest.mark.parametrize("words", [["--help"], ["smoke", "-h"], ["verify", "--help"]])
def test_help_needs_no_package(words: list[str]) -> None:
    """-S: without site-packages."""
    command = [sys.executable, "-S", "-m", "lib.workflow.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    assert "./run_all.sh" in done.stdout
