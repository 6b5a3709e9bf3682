"""The habits of the house, checked."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from rattler import MatchSpec

from lib.record.record import Record
from lib.record.verify import FIRST_RECORD, verify
from lib.study.inputs import is_copy
from lib.study.io import ROOT, relative
from lib.workflow.cli import COMMANDS

MODULES = sorted((ROOT / "lib").rglob("*.py"))


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_no_file_is_longer_than_600_lines():
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


@pytest.mark.parametrize(
    "command", ["ruff check", "ruff format --check", pytest.param("mypy", marks=pytest.mark.slow)]
)
def test_the_code_is_clean(command):
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_gitignore_swallows_no_code():
    paths = [p.relative_to(ROOT).as_posix() for p in MODULES] + [
        "notebooks/02_train.ipynb",
        "tests/conftest.py",
    ]
    done = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout == ""


def test_the_top_level_holds_what_the_project_fixes():
    allowed = {"notebooks", "lib", "params", "papers", "tests", "environment.yml", "run_all.sh"}
    allowed |= {"README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "requirements.lock"}
    allowed |= {
        "requirements-torch.lock",
        "requirements-torch-cpu.lock",
        "requirements-dev.lock",
        "CHANGELOG.md",
        "CITATION.cff",
        "Dockerfile",
    }
    top = {name.partition("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} == allowed


def test_no_study_of_a_notebook_or_a_test_is_left_in_params():
    files = [ROOT / name for name in tracked() if name.startswith("params/")]
    assert not [relative(path) for path in files if path.suffix == ".yaml" and is_copy(path)]


def test_environment_yml_lists_pyprojects_packages_and_parses_as_conda_would():
    content = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    *conda, pip = content["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert pip["pip"] == project["dependencies"]
    for spec in conda:
        assert str(MatchSpec(spec, strict=True).name.normalized) in ("python", "pip")
    assert project["requires-python"].replace(" ", "") in conda[0].replace(" ", "")


def entries(lock: str) -> dict[str, str]:
    """What a lock says of each package, by name."""
    lines = (ROOT / lock).read_text("utf-8").replace("\\\n", "").splitlines()
    return {line.partition("==")[0]: line for line in lines if "==" in line and line[0].isalpha()}


def test_the_locks_pin_every_dependency_but_torch_by_hash():
    user, dev = entries("requirements.lock"), entries("requirements-dev.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [d for group in project["optional-dependencies"].values() for d in group]
    for lock, needed in ((user, project["dependencies"]), (dev, extras)):
        for dependency in needed:
            name = dependency.split(">")[0].split("=")[0].replace("_", "-")
            assert ("sys_platform == 'never'" in lock[name]) == (name == "torch")
    assert all("--hash=sha256:" in entry for entry in (user | dev).values())
    torch, cpu = (entries(f"requirements-torch{end}.lock")["torch"] for end in ("", "-cpu"))
    assert cpu.partition(" ")[0] == torch.partition(" ")[0] + "+cpu"


def test_the_lock_of_tests_holds_that_of_studies_and_no_study_waits_for_tests():
    user, dev = entries("requirements.lock"), entries("requirements-dev.lock")
    assert user.items() < dev.items()
    assert not {"pytest", "mypy", "ruff", "playwright", "transformers"} & user.keys()


@pytest.mark.slow
def test_torch_is_locked_by_what_pypi_says_of_its_version():
    """A wrong hash is met only by those whose build of torch is another than here."""
    lock = entries("requirements-torch.lock")["torch"]
    version, _, build = lock.removeprefix("torch==").partition(" ")
    request = urllib.request.Request(
        "https://pypi.org/simple/torch/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            listed = json.load(answer)["files"]
    except OSError as error:
        pytest.skip(f"PyPI is not in reach: {error}")
    files = {file["hashes"]["sha256"]: file["filename"] for file in listed}
    locked = [files.get(hash, "none") for hash in re.findall(r"sha256:(\w+)", build)]
    assert [name for name in locked if not name.startswith(f"torch-{version}-")] == []
    pythons = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "requires-python"
    ]
    least, most = (int(minor) for minor in re.findall(r"3\.(\d+)", pythons))
    for minor in range(least, most):
        tags = f"-cp3{minor}-cp3{minor}-manylinux", "_x86_64.whl"
        assert any(tags[0] in name and name.endswith(tags[1]) for name in locked), minor


CPU, ANY = (f"--no-deps --require-hashes -r requirements-torch{end}.lock" for end in ("-cpu", ""))


@pytest.mark.parametrize(
    ("gpu", "refused", "asked"),
    [(False, "nothing", [CPU]), (False, "-cpu", [CPU, ANY]), (True, "nothing", [ANY])],
)
def test_the_build_of_torch_is_that_of_the_machine(tmp_path, gpu, refused, asked):
    """By its lock: without a GPU the CPU's where there is one, else that of PyPI."""
    (tmp_path / "grep").symlink_to(shutil.which("grep"))
    if gpu:
        (tmp_path / "nvidia-smi").touch(0o755)
    script = (ROOT / "run_all.sh").read_text("utf-8")
    function = re.search(r"(?ms)^install_torch\(\) \{.*?^\}", script)[0]
    install = f'install() {{ echo "$*"; [[ "$*" != *{refused}* ]]; }}'
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -euo pipefail\n{install}\n{function}\ninstall_torch"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PATH": str(tmp_path)},
    )  # fmt: skip
    *installed, needs = done.stdout.splitlines()
    assert installed == asked
    assert re.fullmatch(r"torch==[\d.]+", needs)


def test_help_names_every_command():
    done = subprocess.run(["./run_all.sh", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("params/NAME.yaml", "--jobs", "--stop-after", *COMMANDS, "--help"):
        assert word in done.stdout


def test_the_published_papers_stay_small():
    """A checkout is attached to Kaggle sessions and copied to clusters."""
    published = [ROOT / "papers" / name for name in ("embedding-norm", "example")]
    files = [path for paper in published for path in paper.rglob("*") if path.is_file()]
    kept = [path for path in files if "site" not in path.relative_to(ROOT / "papers").parts]
    assert sum(path.stat().st_size for path in kept) < 55e6


RECORDS = sorted(p.parent.name for p in (ROOT / "papers").glob("*/record/*/03_analysis.ipynb"))
SMALL = {"example", "stability-check"}
WHOLE = [
    pytest.param(name, marks=pytest.mark.slow if name in SMALL else pytest.mark.long)
    for name in RECORDS
    if name not in FIRST_RECORD
]


@pytest.mark.parametrize("study", RECORDS)
@pytest.mark.slow
def test_every_record_holds_together_and_its_training_notebooks_are_small(study):
    assert verify(study, again=False) == []
    for notebook in Record(study).folder.rglob("02_train.ipynb"):
        assert notebook.stat().st_size <= 150_000


@pytest.mark.parametrize("study", WHOLE)
def test_a_record_is_what_its_study_gives_again(study):
    assert verify(study) == []


def test_imports_keep_to_the_rooms() -> None:
    """The contracts stand in pyproject.toml, under [tool.importlinter]."""
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_rooms_without_torch_load_none() -> None:
    rooms = ("study", "analysis", "figures", "publish")
    files = [path for room in rooms for path in (ROOT / "lib" / room).glob("[a-z]*.py")]
    modules = [f"lib.{path.parent.name}.{path.stem}" for path in files]
    code = "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    done = subprocess.run([sys.executable, "-c", code, *modules], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


SHOWN_AS_THEY_STAND = {"lib/data/tasks.py", "lib/figures/study.py"}
"""Their docstrings are read by visitors of notebooks: what a task asks, what a figure shows."""
NO_VERB = r"(?i)a|an|the|how|what|where|whether|which|every|each|all|one|no|in|of|for|when"


def first_sentences() -> list[tuple[str, str]]:
    """The first sentence of every docstring of a function, but for properties, which are named by
    what they are."""
    found = []
    for path in MODULES:
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if not text or name in SHOWN_AS_THEY_STAND:
                continue
            if not any("property" in ast.unparse(each) for each in node.decorator_list):
                sentence = re.split(r"(?<=[.:?!])\s", " ".join(text.split()))[0]
                found.append((f"{name}: {node.name}", sentence))
    return found


def test_docstrings_of_functions_begin_with_a_verb_and_a_short_sentence():
    found = first_sentences()
    assert len(found) > 500
    first = {where: re.split(r"[\s,:]", sentence)[0] for where, sentence in found}
    assert {where: word for where, word in first.items() if re.fullmatch(NO_VERB, word)} == {}
    assert {where: word for where, word in first.items() if not word.isalpha()} == {}
    assert {where: text for where, text in found if len(text.split()) > 33} == {}
