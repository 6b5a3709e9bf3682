"""Fixtures for several tests: the corpus, small studies, and a copy of the repository that runs by
itself."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lib.config.errors import UserError
from lib.config.paths import ROOT
from lib.config.schema import CorpusConfig, RunConfig
from lib.config.study import Study
from lib.data import suite
from lib.data.text import load_corpus

torch.set_num_threads(1)


def pytest_ignore_collect(collection_path, config):
    """Do not import files with only slow tests when slow tests are not run."""
    if collection_path.is_dir() or "not slow" not in config.option.markexpr:
        return None
    text = collection_path.read_text("utf-8")
    return bool(re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow", text, re.M)) or None


def pytest_collection_modifyitems(items):
    """Run files with most slow tests first: started last, one would keep a single worker busy."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_unconfigure():
    """Remove temporary folders that live as long as a process; xdist's workers end without doing
    so."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit._run_exitfuncs()


TINY = {
    "corpus": {"source": "synthetic", "fraction": 0.02},
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16},
    "training": {"iterations": 12, "batch_size": 4, "learning_rate": 1e-3},
    "evaluation": {"interval": 4, "dev_windows": 4},
    "machine": {"evaluation_batch_size": 64, "checkpoint_interval": 5},
}


@pytest.fixture(scope="session")
def corpus():
    """The synthetic text, with a small part of its training part."""
    return load_corpus(CorpusConfig(source="synthetic", fraction=0.02))


@pytest.fixture(scope="session", autouse=True)
def _kept(tmp_path_factory):
    """Keep cached data of texts outside the checkout."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.data.cache.output_root", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _soon_done():
    """Count a text once, however many suites are made from it; counting takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "Lexicon", functools.lru_cache(maxsize=1)(suite.Lexicon))
        yield


@pytest.fixture
def float64(monkeypatch):
    """Use float64 throughout, also for sums that are widened; rounding shrinks to 1e-16."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float32)  # otherwise refused
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def beginning(corpus, characters=4000):
    """Keep only the beginning of the held-out part, half dev and half test, to measure quickly."""
    text, middle = corpus.heldout.numpy(), characters // 2
    ends = corpus.ends | {part: np.array([middle]) for part in ("dev", "test")}
    return replace(corpus, dev=text[:middle], test=text[middle:characters], ends=ends)


@pytest.fixture
def tiny():
    """A run that takes about a second."""
    return RunConfig.model_validate(TINY)


@pytest.fixture
def tiny_study():
    """Two arms × two seeds of the tiny run."""
    factors = {"model.embedding_norm": ["none", "layernorm"]}
    return Study.model_validate(TINY | {"name": "tiny", "factors": factors, "seeds": [0, 1]})


def change(config, section, **fields):
    """Return a run's parameters with some fields of a section replaced, and validate them again."""
    content = config.model_dump()
    content[section] |= fields
    return RunConfig.model_validate(content)


def refused(call, *given, **named):
    """Return the message with which a call is refused; it must be one line."""
    with pytest.raises(UserError) as error:
        call(*given, **named)
    assert len(re.split("\n(?!error: )", str(error.value))) == 1
    return str(error.value)


def run_git(folder, *words, **environment):
    """Run git in a folder with some user's name; return its output."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    variables = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return done.stdout.strip()


def copy_repository(to):
    """Copy the repository without records and without files that running it leaves."""
    top = {"runs", "papers", "data", ".git", ".venv", ".hypothesis"}

    def ignored(folder, names):
        here = top if Path(folder) == ROOT else set()
        return {name for name in names if name in here or name.endswith(("cache__", "_cache"))}

    shutil.copytree(ROOT, to, ignore=ignored, symlinks=True)


@functools.cache
def environment():
    """Make an environment that uses this one's packages and counts as installed, so that
    `./run_all.sh` neither installs anything nor marks the real one."""
    folder = Path(tempfile.mkdtemp(prefix="environment-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    borrowed = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "borrowed.pth").write_text(borrowed, "utf-8")
    (folder / "share").symlink_to(Path(sys.prefix) / "share")  # nbconvert's templates
    for lock in ("requirements.lock", "requirements-dev.lock"):
        shutil.copyfile(ROOT / lock, folder / f".embedding-norm-{lock}")
    return folder


class Tree:
    """A copy of the repository, in which studies run as a user runs them."""

    def __init__(self, root):
        self.root = root
        copy_repository(root)
        paper = Path("papers", "embedding-norm")
        shutil.copytree(ROOT / paper / "templates", root / paper / "templates")
        for file in (paper / "studies.yaml", paper.with_name("README.md")):
            shutil.copyfile(ROOT / file, root / file)
        (root / ".venv").symlink_to(environment())
        # Compile once, as an installation does; otherwise each process of a sweep would do it.
        self.environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}

    def write_study(self, name, **content):
        text = yaml.safe_dump(TINY | {"name": name, "seeds": [0]} | content, sort_keys=False)
        (self.root / "params" / f"{name}.yaml").write_text(text, "utf-8")

    def start(self, *words):
        """Start `./run_all.sh` in a process group of its own."""
        said = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        where = {"cwd": self.root, "env": self.environment, "start_new_session": True}
        # Under `nohup` the tests ignore SIGHUP, and so would the processes that they start.
        command = ["env", "--default-signal=HUP", "./run_all.sh", *words]
        return subprocess.Popen(command, **said, **where)

    def run_all(self, *words, seconds=1800):
        """Run `./run_all.sh` to its end; return its status and output. The limit is for hangs."""
        process = self.start(*words)
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text

    def run_folder(self, study, arm, seed=0):
        return self.root / "runs" / study / arm / f"seed-{seed}"


@pytest.fixture(scope="session")
def smoke_tree(tmp_path_factory):
    """A copy of the repository in which the README's smoke command was run, and its output."""
    tree = Tree(tmp_path_factory.mktemp("smoke") / "embedding-norm")
    readme = (ROOT / "README.md").read_text("utf-8")
    (command,) = re.findall(r"^\./run_all\.sh (\S*smoke\S*)", readme, re.MULTILINE)
    status, text = tree.run_all(command)
    assert status == 0, text
    return tree, text
