"""If archive, import or freeze is killed at any moment, the same command ends as if undisturbed,
and no other file is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lib.config.paths import ROOT
from tests.record.conftest import run_tiny
from tests.record.kills import contents

pytestmark = pytest.mark.slow

REAL_KILLS = 8


def start(folder, *words):
    variables = os.environ | {"STUDY_OUTPUT": str(folder), "PYTHONPATH": str(ROOT)}
    said = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=variables, **said)


@pytest.fixture(scope="session")
def homes(tiny, tmp_path_factory):
    """Command → a folder in which it has not been run yet."""
    assert run_tiny(tiny, "pack").returncode == 0
    top = tmp_path_factory.mktemp("homes")
    for name in ("archive", "replace"):
        shutil.copytree(tiny, top / name, ignore=shutil.ignore_patterns("checkpoints", "data"))
        (top / name / "runs/tiny/figures/loss.png").write_bytes(b"newer than the record")
    foreign = top / "replace"
    (foreign / "runs/tiny/archive.json").unlink()
    (foreign / "papers/paper/figures/tiny/old.png").write_bytes(b"of another")
    with (foreign / "papers/paper/record/tiny/MANIFEST.sha256").open("a") as file:
        file.write(f"{'0' * 64}  of another\n")
    (top / "import" / "params" / "plans").mkdir(parents=True)
    shutil.copyfile(tiny / "tiny.zip", top / "tiny.zip")
    shutil.copytree(tiny / "params", top / "freeze" / "params")
    plan = top / "freeze" / "params" / "plans" / "plan.yaml"
    plan.write_text(plan.read_text("utf-8").partition("frozen:")[0], "utf-8")
    return top


@pytest.mark.parametrize(
    ("word", "changes", "every"),
    [
        ("archive", 60, 10),
        ("freeze", 3, 1),
        pytest.param("archive", 60, 1, marks=pytest.mark.long),
        pytest.param("replace", 60, 1, marks=pytest.mark.long),
        pytest.param("import", 100, 1, marks=pytest.mark.long),
    ],
)
def test_killed_at_any_change_to_a_file(word, changes, every, homes, tmp_path):
    """All commands. A record from elsewhere is whole unless its replacement was requested."""
    shutil.copytree(homes / word, tmp_path / word)
    process = start(
        tmp_path / word, "tests.record.kills", word, str(homes / "tiny.zip"), str(every)
    )
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert int(text.splitlines()[-1]) >= changes


COMMANDS = {
    "archive": ("lib.record.archive", "tiny"),
    "import": ("lib.sweep.cli", "import", "tiny.zip"),
    "freeze": ("lib.sweep.cli", "freeze", "plan"),
}


@pytest.mark.long
@pytest.mark.parametrize("word", COMMANDS)
def test_killed_at_random_moments(word, homes, tmp_path):
    command = [str(homes / w) if w.endswith(".zip") else w for w in COMMANDS[word]]
    shutil.copytree(homes / word, tmp_path / "undisturbed")
    begun = time.monotonic()
    process = start(tmp_path / "undisturbed", *command)
    assert "Traceback" not in process.communicate()[0]
    assert process.returncode == 0
    duration, moments = time.monotonic() - begun, random.Random(0)
    undisturbed = contents(tmp_path / "undisturbed")
    for number in range(REAL_KILLS):
        folder = tmp_path / str(number)
        shutil.copytree(homes / word, folder)
        process = start(folder, *command)
        time.sleep(moments.uniform(0.5, 1) * duration)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = start(folder, *command)
        text, _ = process.communicate()
        assert process.returncode == 0, text
        assert contents(folder) == undisturbed


def test_what_a_killed_import_left_of_a_faulty_zip_goes_and_a_user_s_own_stays(homes, tmp_path):
    """An import is killed where it cannot undo anything; then its user changes a file."""
    home, zip_ = tmp_path / "home", str(homes / "tiny.zip")
    shutil.copytree(homes / "import", home)
    stop = "import os, sys; import lib.sweep.kaggle as k; k.verify_record = lambda *_: os._exit(9);"
    stop += "from pathlib import Path; k.import_study(Path(sys.argv[1]))"
    variables = os.environ | {"STUDY_OUTPUT": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", stop, zip_]
    assert subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 9
    left = contents(home)
    assert any(name.name == "MANIFEST.sha256" for name in left)

    changed = tmp_path / "changed"
    shutil.copytree(home, changed)
    for own in ("params/tiny.yaml", "runs/tiny/verdict.json"):
        (changed / own).write_text("mine", "utf-8")
        assert "tiny" in run_tiny(changed, "import", zip_).stdout
        assert (changed / own).read_text("utf-8") == "mine"

    interrupted = stop.replace("os._exit(9)", "signal.raise_signal(2)").replace(
        "sys;", "sys, signal;"
    )
    command = [sys.executable, "-c", interrupted, zip_]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, check=False)
    assert b"KeyboardInterrupt" in done.stderr
    assert contents(home) == {}
