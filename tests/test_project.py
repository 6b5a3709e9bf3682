"""The project's conventions: style, types, imports, locks, and how it is installed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from rattler import MatchSpec

from lib.config.paths import ROOT
from lib.sweep.cli import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MODULES = sorted((ROOT / "lib").rglob("*.py"))
FIXED = {"notebooks", "lib", "params", "papers", "tests", "environment.yml", "run_all.sh"}
BESIDE = {"README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile"}
LOCKS = {f"requirements{end}.lock" for end in ("", "-dev", "-torch", "-torch-cpu", "-uv")}


def run(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    "command", ["ruff check", "ruff format --check", pytest.param("mypy", marks=pytest.mark.slow)]
)
def test_the_code_is_clean(command):
    done = run(sys.executable, "-m", *command.split())
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_keep_to_the_rooms():
    """The contracts are in pyproject.toml, under [tool.importlinter]."""
    done = run(str(Path(sys.executable).with_name("lint-imports")))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_rooms_without_torch_load_none():
    """A sweep loads none until it trains; a room imports a file only if a name from it is used."""
    rooms = ("config", "data", "stats", "figures", "record", "publish", "sweep")
    files = [path for room in rooms for path in (ROOT / "lib" / room).glob("[a-z]*.py")]
    modules = [f"lib.{path.parent.name}.{path.stem}" for path in files if path.stem != "live"]
    code = "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    done = run(sys.executable, "-c", code, *modules)
    assert done.returncode == 0, done.stderr


def test_the_top_level_holds_what_the_project_fixes():
    listed = run("git", "ls-files")
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {name.partition("/")[0] for name in listed.stdout.splitlines()}
    expected = FIXED | BESIDE | LOCKS | {"pyproject.toml"}
    assert {name for name in top if not name.startswith(".")} == expected


def test_gitignore_swallows_no_code():
    paths = [path.relative_to(ROOT).as_posix() for path in MODULES]
    assert run("git", "check-ignore", "--no-index", *paths, "tests/conftest.py").stdout == ""


def test_environment_yml_lists_pyprojects_packages_and_parses_as_conda_would():
    content = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    *conda, pip = content["dependencies"]
    assert pip["pip"] == PROJECT["dependencies"]
    for spec in conda:
        assert str(MatchSpec(spec, strict=True).name.normalized) in ("python", "pip")
    assert PROJECT["requires-python"].replace(" ", "") in conda[0].replace(" ", "")


def entries(lock):
    """Return package → its entry in a lock."""
    lines = (ROOT / lock).read_text("utf-8").replace("\\\n", "").splitlines()
    return {line.partition("==")[0]: line for line in lines if "==" in line and line[0].isalpha()}


def test_the_locks_pin_every_dependency_but_torch_by_hash():
    user, dev = entries("requirements.lock"), entries("requirements-dev.lock")
    extras = [d for group in PROJECT["optional-dependencies"].values() for d in group]
    for lock, needed in ((user, PROJECT["dependencies"]), (dev, extras)):
        for dependency in needed:
            name = re.split("[<>=]", dependency)[0].replace("_", "-").replace(".", "-")
            found = {key.replace(".", "-"): entry for key, entry in lock.items()}[name]
            assert ("sys_platform == 'never'" in found) == (name == "torch")
    assert all("--hash=sha256:" in entry for entry in (user | dev).values())
    assert user.items() < dev.items()
    assert not {"pytest", "mypy", "ruff", "playwright", "statsmodels"} & user.keys()
    torch, cpu = (entries(f"requirements-torch{end}.lock")["torch"] for end in ("", "-cpu"))
    assert cpu.partition(" ")[0] == torch.partition(" ")[0] + "+cpu"
    assert cpu.count("--hash=sha256:") == 2 * 4  # two processors, Python 3.11 to 3.14


class Checkout:
    """A checkout whose `.venv` and Python only record how they were called."""

    def __init__(self, root):
        self.root, self.bin = root / "checkout", root / "bin"
        (self.root / "lib").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("run_all.sh", *LOCKS):
            shutil.copyfile(ROOT / name, self.root / name)
        (self.bin / "python3").write_text(
            f'#!/bin/sh\necho "$0 $*" >> {root}/calls\n'
            'case "$*" in *sys.prefix*) dirname "$(dirname "$0")";;\n'
            '"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;\n'
            '*"import version"*) exit 1;; esac\n'
        )
        (self.bin / "python3").chmod(0o755)
        self.calls = root / "calls"

    def run(self, *words, shell="bash", **variables):
        """Call `run_all.sh`; return its status, what it printed and what it called."""
        kept = {"HOME": str(self.root), "PATH": f"{self.bin}:/usr/bin:/bin"}
        done = subprocess.run(
            [shell, "run_all.sh", *words], cwd=self.root, env=kept | variables,
            capture_output=True, text=True,
        )  # fmt: skip
        calls = self.calls.read_text("utf-8") if self.calls.is_file() else ""
        self.calls.unlink(missing_ok=True)
        return done.returncode, done.stdout + done.stderr, calls


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_another_environment_that_is_active_is_left_alone(checkout, shell):
    other = str(checkout.bin.parent)
    status, _, calls = checkout.run("params/x.yaml", shell=shell, VIRTUAL_ENV=other)
    assert status == 0
    installs = [line for line in calls.splitlines() if "install " in line]
    assert installs
    assert all(line.startswith(f"{checkout.root}/.venv/bin/python") for line in installs)
    assert calls.splitlines()[-1].endswith("-m lib.sweep.cli params/x.yaml")
    assert "install " not in checkout.run("params/x.yaml")[2]  # once a lock


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--here"], {}),
        ([], {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}),
        ([], {"COLAB_RELEASE_TAG": "x"}),
        ([], {"CONDA_DEFAULT_ENV": "embedding-norm"}),
    ],
)
def test_the_active_environment_is_used_where_that_is_asked(checkout, words, variables):
    status, _, calls = checkout.run(*words, "params/x.yaml", **variables)
    assert status == 0
    assert ".venv" not in calls
    assert calls.splitlines()[-1].endswith("-m lib.sweep.cli params/x.yaml")


def test_a_search_path_of_cd_leads_nowhere_else(checkout, tmp_path):
    (tmp_path / "elsewhere" / "checkout").mkdir(parents=True)
    checkout.run("setup")
    given = {"HOME": str(tmp_path), "PATH": f"{checkout.bin}:/usr/bin:/bin"}
    given["CDPATH"] = str(tmp_path / "elsewhere")
    command = ["bash", "checkout/run_all.sh", "params/x.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert checkout.calls.read_text("utf-8").endswith("-m lib.sweep.cli params/x.yaml\n")


@pytest.mark.parametrize("words", [["--help"], ["verify", "-h"], ["params/x.yaml", "-n"]])
def test_telling_leaves_everything_as_it_is(checkout, words):
    status, said, calls = checkout.run(*words)
    assert " install " not in calls
    assert not (checkout.root / ".venv").exists()
    if "-n" in words:
        assert status == 1
        assert re.fullmatch(r"error: .*\./run_all\.sh setup.*\n", said)


@pytest.mark.parametrize(("gpu", "wanted"), [(False, "-torch-cpu"), (True, "-torch")])
def test_the_build_of_torch_is_that_of_the_machine(checkout, gpu, wanted):
    if gpu:
        (checkout.bin / "nvidia-smi").touch(0o755)
    calls = checkout.run("setup")[2]
    locks = re.findall(r"uv pip install.*requirements([\w-]*)\.lock", calls)
    assert locks == [wanted, ""]


def answer(checkout, case):
    """Make the Python of a checkout answer one more kind of call."""
    python = checkout.bin / "python3"
    python.write_text(python.read_text("utf-8").replace("esac", f"{case};; esac"), "utf-8")


SOURCES = {
    "PIP_CERT": "/ca",
    "PIP_TIMEOUT": "60",
    "UV_CACHE_DIR": "/cache",
    "https_proxy": "http://p",
}
ELSEWHERE = (
    "PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT PIP_DRY_RUN"
)
ELSEWHERE += " PIP_PYTHON UV_SYSTEM_PYTHON UV_PYTHON UV_TORCH_BACKEND UV_EXCLUDE_NEWER UV_NO_BINARY"


def test_settings_of_pip_say_where_packages_come_from_and_not_where_they_go(checkout):
    """Both variables and lines of pip.conf; uv gets them too."""
    told = checkout.root / "told"
    told.write_text(
        ":env:.cert='/ca'\nglobal.extra-index-url='\\nhttps://y/\\nhttps://z/'\nglobal.user='true'\n"
        "global.index-url='https://x/'\ninstall.find-links='/wheels /more'\ninstall.target='/x'\n"
    )
    answer(checkout, f"*'config list'*) cat {told}")
    answer(checkout, f"*'uv pip'*) env >> {checkout.calls}")
    given = SOURCES | dict.fromkeys(ELSEWHERE.split(), "1")
    found = {*checkout.run("setup", **given)[2].splitlines()}
    expected = {"UV_FIND_LINKS=/wheels,/more", "SSL_CERT_FILE=/ca", "UV_DEFAULT_INDEX=https://x/"}
    expected |= {"UV_INDEX=https://y/ https://z/", "PIP_CONFIG_FILE=/dev/null"}
    expected |= {f"{name}={value}" for name, value in SOURCES.items()}
    assert expected - found == set()
    assert {line.partition("=")[0] for line in found} & {*ELSEWHERE.split()} == set()


@pytest.mark.parametrize("told", ["None", 'Some("/x")'])
def test_a_target_in_uv_toml_is_not_followed(told, checkout):
    answer(checkout, f"*--show-settings*) echo '    target: {told},'")
    answer(checkout, f"*'uv pip'*) env >> {checkout.calls}")
    assert ("UV_NO_CONFIG=1" in checkout.run("setup")[2]) == (told != "None")


def test_an_installation_counts_once_its_packages_can_be_imported(checkout):
    answer(checkout, "*'import lib.'*) echo No module named torch >&2; exit 1")
    for _ in range(2):
        status, said, calls = checkout.run("setup")
        assert (status, "(No module named torch)" in said) == (1, True)
        assert "install " in calls


def test_a_link_to_run_all_finds_its_folder(checkout, tmp_path):
    """From another folder, through a link to a link; one of them is relative."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "first").symlink_to("../checkout/run_all.sh")
    (tmp_path / "second").symlink_to(tmp_path / "links" / "first")
    given = {"HOME": str(tmp_path), "PATH": f"{checkout.bin}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "second", "setup"], cwd=tmp_path, env=given)
    assert (done.returncode, (checkout.root / ".venv").is_dir()) == (0, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_checkout_that_cannot_be_written_says_where_to_copy_it(checkout):
    checkout.root.chmod(0o555)
    status, said, _ = checkout.run("params/x.yaml")
    checkout.root.chmod(0o755)
    assert status == 1
    assert "cp -r" in said


@pytest.mark.parametrize(
    ("words", "marks"),
    [
        (["--fast"], "not slow and not long and not benchmark"),
        ([], "not long and not benchmark"),
        (["--all"], "not benchmark"),
    ],
)
def test_each_tier_leaves_out_the_tests_of_its_marks(words, marks, monkeypatch):
    called = []
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("os.execv", lambda _, command: called.extend(command))
    main(["test", *words, "-x"])
    assert called[-3:] == ["-m", marks, "-x"]


def test_the_published_papers_stay_small():
    """Users attach a checkout to Kaggle sessions and copy it to clusters."""
    published = [ROOT / "papers" / name for name in ("embedding-norm", "example")]
    files = [path for paper in published for path in paper.rglob("*") if path.is_file()]
    ignored = {"site", "__pycache__"}  # by .gitignore
    kept = [path for path in files if not ignored & {*path.relative_to(ROOT / "papers").parts}]
    assert sum(path.stat().st_size for path in kept) < 90e6
    assert all(path.stat().st_size < 60e3 for path in kept if path.name == "02_train.ipynb")
