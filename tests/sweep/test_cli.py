"""Every command line is run, or refused in one line."""

import errno
import re
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from lib.config.paths import ROOT
from lib.record.verify import NOT_HERE
from lib.sweep import cli
from lib.sweep.code import EditedError
from lib.sweep.sweep import Sweep


@pytest.fixture(autouse=True)
def _signals_stay(monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        ("", Sweep(["final"])),
        ("--jobs 2 params/smoke.yaml", Sweep(["params/smoke.yaml"], jobs=2)),
        ("smoke -j2 final -n", Sweep(["smoke", "final"], jobs=2, dry_run=True)),
        ("--stop-after 11.5 smoke --replace", Sweep(["smoke"], stop_after=11.5, replace=True)),
        ("--until train smoke", Sweep(["smoke"], ["--until", "train"])),
        ("--profile params/slurm smoke", Sweep(["smoke"], ["--profile", "params/slurm"])),
    ],
)
def test_studies_and_flags_come_in_any_order(words, sweep, monkeypatch):
    asked = []
    monkeypatch.setattr("lib.sweep.sweep.run_sweep", lambda sweep: asked.append(sweep) or 0)
    assert cli.main(words.split()) == 0
    assert asked == [sweep]
    assert sweep.is_local == ("--profile" not in words)


def test_a_sweep_whose_code_is_edited_as_it_starts_is_started_again(monkeypatch, capsys):
    """It restarts twice, then it stops with an error: somebody is still editing."""

    def sweep(_):
        raise EditedError("lib was edited; give it once more")

    def execv(_, words):
        monkeypatch.setattr("sys.orig_argv", words)
        cli.main(words[3:])

    monkeypatch.setattr("lib.sweep.sweep.run_sweep", sweep)
    monkeypatch.setattr("os.execv", execv)
    execv("python", ["python", "-m", "lib.sweep.cli", "smoke"])
    out, error = capsys.readouterr()
    assert out == "lib or notebooks were edited just now; starting again\n" * 2
    assert error == "error: lib was edited; give it once more\n"


def test_studies_are_known_where_parameters_are_yet_to_be_copied_to(tmp_path, monkeypatch):
    """As on Kaggle, where the repository is read-only."""
    monkeypatch.setattr("lib.config.files.PARAMS", tmp_path / "params")
    asked = []
    monkeypatch.setattr("lib.sweep.sweep.run_sweep", lambda sweep: asked.append(sweep) or 0)
    assert cli.main(["smoke"]) == 0
    assert asked == [Sweep(["smoke"])]


def test_without_a_folder_for_temporary_files_nothing_is_told_as_faulty(monkeypatch, capsys):
    class Module(ModuleType):
        def __getattr__(self, name):
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setitem(sys.modules, "lib.sweep.estimate", Module("lib.sweep.estimate"))
    assert cli.main(["verify", "final"]) == NOT_HERE
    assert "could not be verified here: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("called_from", "word", "meant"),
    [
        ("elsewhere", "./mine.yaml", "elsewhere/mine.yaml"),
        ("elsewhere", "../repository/params/smoke.yaml", "params/smoke.yaml"),
        ("repository/params", "smoke.yaml", "params/smoke.yaml"),
        ("link/params", "smoke.yaml", "params/smoke.yaml"),
        ("elsewhere", "params/smoke.yaml", "params/smoke.yaml"),
        ("elsewhere", "smoke", "smoke"),
    ],
)
def test_a_yaml_is_found_from_where_the_command_was_called(
    called_from, word, meant, tmp_path, monkeypatch
):
    """Otherwise it is looked up in `params/`."""
    for file in ("elsewhere/mine.yaml", "repository/params/smoke.yaml"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("repository")
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setenv("CALLED_FROM", str(tmp_path / called_from))
    asked = []
    monkeypatch.setattr("lib.sweep.sweep.run_sweep", lambda sweep: asked.append(sweep) or 0)
    monkeypatch.setattr("lib.config.study.load_study", lambda study, **_: asked.append(study))
    monkeypatch.setattr("lib.sweep.estimate.estimate", lambda *_: [])
    assert [cli.main([word]), cli.main(["estimate", word])] == [0, 0]
    meant = str(tmp_path / meant) if meant.startswith("elsewhere") else meant
    assert [asked[0].studies, asked[1]] == [[meant], meant]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--jobs 0 smoke", "--jobs/-j: 0 is not allowed; give a number above 0"),
        ("--stop-after nan", "--stop-after: nan is not allowed; give a number above 0"),
        ("smoke -j", "--jobs/-j: expected one argument"),
        ("--jbos 2", "unrecognized arguments: --jbos"),
        ("--retries x", "--retries/--restart-times/-T: invalid"),
        ("tset", "study: 'tset' is unknown; did you mean 'test'?"),
        ("help", "study: 'help' is unknown; did you mean '--help'?"),
        ("paper -x", "paper: '-x' is not an argument of this command"),
        ("verify --fresh", "verify: '--fresh' is not an argument of this command"),
        ("estimate", "the following arguments are required: study"),
        ("export smoke/none/0", "export: smoke/none/0 is a run; add --to DIR to export its"),
        ("export smoke --to x", "run: 'smoke' names none; write STUDY/ARM/SEED"),
        ("export smokee", "study: 'smokee' is unknown; did you mean 'smoke'?"),
        ("export scale", "study: scale is not finished; run ./run_all.sh params/"),
        ("params/smokee.yaml", "study: 'smokee' is unknown; did you mean 'smoke'?"),
        ("freeze self-vot", "plan: there is no params/plans/self-vot.yaml ('self-vot' is unknown;"),
        (
            "freeze params/plans/self-vot.yaml",
            "plan: there is no params/plans/self-vot.yaml ('self",
        ),
        ("fields x", "fields: 'x' is not an argument of this command"),
        ("estimate smokee", "study: 'smokee' is unknown; did you mean 'smoke'?"),
    ],
)
def test_a_command_line_that_cannot_be_followed_is_refused_in_one_line(words, message, capsys):
    assert cli.main(words.split()) in (1, 2)
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {message}")


@pytest.mark.parametrize(("before", "ends"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_terminal_that_closes_ends_a_command_unless_nohup_began_it(before, ends, monkeypatch):
    caught = []
    monkeypatch.setattr("signal.signal", lambda number, _: caught.append(number))
    monkeypatch.setattr("signal.getsignal", lambda _: before)
    cli.main(["--jobs", "0"])
    assert (signal.SIGHUP in caught, signal.SIGTERM in caught) == (ends, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--help"], ["--jobs", "--stop-after", *cli.commands()[1]]), (["verify", "-h"], [])],
)
def test_help_names_every_command_and_needs_no_package(words, told):
    """-S leaves out site-packages."""
    command = [sys.executable, "-S", "-m", "lib.sweep.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    assert [word for word in ("./run_all.sh", *told) if word not in done.stdout] == []
    assert max(map(len, done.stdout.splitlines())) <= 80
    examples = re.findall(r"^ {8}\./run_all\.sh (\S+)", done.stdout, re.MULTILINE)
    assert {*cli.commands()[1]} & {*told} <= {*examples}
