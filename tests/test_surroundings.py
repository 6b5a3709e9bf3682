"""READMEs, workflows and other files name only commands, files and versions that exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from lib.config.paths import PARAMS, ROOT
from lib.sweep.cli import commands

COMMANDS = commands()[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FOLDERS = ("notebooks", "lib", "params", "papers", "tests")
READMES = [ROOT / "README.md", *(ROOT / folder / "README.md" for folder in FOLDERS)]
TEXTS = [*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FILES = [*WORKFLOWS, *TEXTS[:-1], ROOT / "Dockerfile", ROOT / ".devcontainer/devcontainer.json"]
SUPPORTED = [f"3.{minor}" for minor in (11, 12, 13, 14)]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_commands_that_are_named_exist(path):
    for word in re.findall(r"(?:^|[\s`(\"])\./run_all\.sh ([^\s`\"]+)", path.read_text("utf-8")):
        study = PARAMS / f"{Path(word).stem}.yaml"
        is_word = word in (*COMMANDS, "--help", "setup", "params/plans")
        assert is_word or word.startswith("params/NAME") or study.is_file(), word


def test_the_readmes_own_study_is_the_recorded_one():
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXTS[0].read_text("utf-8"), re.S)
    assert example == (PARAMS / "example.yaml").read_text("utf-8")


def test_the_readme_is_short():
    assert len(TEXTS[0].read_text("utf-8").splitlines()) <= 150


def test_supported_versions_of_python_are_those_of_pyproject():
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8"))
    (fast,) = [job for job in tests["jobs"].values() if "strategy" in job]
    assert fast["strategy"]["matrix"]["python"] == SUPPORTED
    (image,) = re.findall(r"(?m)^FROM python:(3\.\d+)-", (ROOT / "Dockerfile").read_text("utf-8"))
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    assert {image, container["image"].rpartition(":")[2]} <= {*SUPPORTED}


def test_the_citation_has_what_its_format_requires_and_pyprojects_version():
    content = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert content["cff-version"] == "1.2.0"
    assert all(content[field] for field in ("message", "title", "authors"))
    assert all({"name", "family-names"} & author.keys() for author in content["authors"])
    assert (content["version"], content["license"]) == (PROJECT["version"], PROJECT["license"])
    assert content["authors"][0]["name"] in (ROOT / "LICENSE").read_text("utf-8")


def anchors(text):
    """Return the anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_links_lead_to_what_is_there(path):
    text = path.read_text("utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S))
    for link in links:
        file, _, anchor = link.partition("#")
        if link.startswith(("http", "../../actions", "../../releases")):  # pages of GitHub
            continue
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text("utf-8")), link
