"""Any command line is followed or refused in one line."""

from pathlib import Path

import pytest

from lib.study.errors import UsageError
from lib.workflow.command import parse


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
    command = parse(words.split())
    assert (command.studies, command.flags) == (studies, flags)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--jobs 0", "flag --jobs 0: give a number of 1 or more"),
        ("--jobs=-3", "flag --jobs=-3: give a number of 1 or more"),
        ("-c 0", "flag -c 0: give a number of 1 or more"),
        ("--runs-per-gpu 0", "flag --runs-per-gpu 0: give a number of 1 or more"),
        ("--stop-after 0", "flag --stop-after 0: give a number of hours above 0"),
        ("--stop-after nan", "flag --stop-after nan: give a number of hours above 0"),
        ("--stop-after soon", "flag --stop-after soon: invalid float value: 'soon'"),
        ("--jobs", "flag --jobs: expected one argument"),
        ("--jobs params/smoke.yaml", "flag --jobs: expected one argument"),
        ("--jobs x smoke", "flag --jobs x: must be integer"),
        ("--jobs 2.5", "flag --jobs 2.5: must be integer"),
        ("smoke -j", "flag -j: expected one argument"),
        ("--jbos 2", "flag '--jbos' is unknown; did you mean '--jobs'?"),
        ("--qwertyuiop", "flag '--qwertyuiop' is unknown"),
        ("--job 2", "flag --job 2: --job could match --jobs"),
        ("--retries x", "flag --retries x: invalid int value"),
        ("--rerun-triggers foo", "flag --rerun-triggers foo: invalid choice"),
        ("--resources gpu", "flag --resources gpu: "),
        ("--list-changes x", "flag --list-changes x: "),
        ("--until", "flag --until: expected at least one"),
        ("--profile nosuch smoke", "flag --profile nosuch: there is no such folder"),
        ("--config a=b", "flag --config: run_all.sh sees to that itself; leave it out"),
        ("-s Snakefile", "flag -s: run_all.sh sees to that itself; leave it out"),
        ("--directory /tmp", "flag --directory: run_all.sh sees to that itself; leave it out"),
        ("--touch smoke", "flag --touch: run_all.sh sees to that itself; leave it out"),
        ("tset", "study: 'tset' is unknown; did you mean 'test'?"),
        ("-n verfy", "study: 'verfy' is unknown; did you mean 'verify'?"),
        ("smok --jobs 2", "study: 'smok' is unknown; did you mean 'smoke'?"),
        ("-", "study: '-' is unknown; there are "),
    ],
)
def test_a_command_line_that_cannot_be_followed_is_refused_in_one_line(
    words: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        parse(words.split())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words", ["-n", "-nq", "--dry-run", "--summary", "-l", "--lint", "--lc code"]
)
def test_what_only_tells_is_known(words: str) -> None:
    assert parse(words.split()).tells
    assert not parse(["--jobs", "2"]).tells


def test_the_time_given_is_not_for_snakemake() -> None:
    command = parse(["--stop-after", "11.5", "smoke", "--runs-per-gpu=2", "-n"])
    assert (command.stop_after, command.runs_per_gpu) == (11.5, 2)
    assert (command.flags, command.tells) == (["-n"], True)
    assert not {"stop_after", "runs_per_gpu"} & command.options
