"""The notebooks run as on Kaggle: from read-only inputs, each with a working folder of its own, and
with what the image lacks out of reach; what they leave enters the record at home."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from lib.record.archive import Record
from lib.study.io import ROOT
from lib.workflow import kaggle
from lib.workflow.kaggle import environment
from tests.conftest import TINY, Tree, copy_repository

pytestmark = pytest.mark.slow

IMAGE, WHEELS = os.environ.get("IMAGE_PYTHON", ""), os.environ.get("IMAGE_WHEELS", "")
"""A Python with the packages of Kaggle's image, and the folder that `./run_all.sh wheels` made:
with these, sessions run as there; otherwise with this Python, what the image lacks being hidden."""
STUDY = TINY | {
    "name": "probe",
    "factors": {"model.embedding_norm": ["none", "layernorm"]},
    "seeds": [3],
    "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0},
}
HIDE = """
import sys
from importlib.machinery import PathFinder

LACKING = {"snakemake", "lm_eval", "typst", "pikepdf", "pypandoc", "nh3", "jupytext", "papermill",
           "rich"}
find = PathFinder.find_spec


def found(name, path=None, target=None):
    return None if name.partition(".")[0] in LACKING else find(name, path, target)


PathFinder.find_spec = staticmethod(found)
"""


@pytest.fixture(autouse=True, scope="module")
def of_the_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if IMAGE:
            top = tmp_path_factory.mktemp("jupyter")
            argv = [IMAGE, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            kernel = {"argv": argv, "display_name": "", "language": "python"}
            (top / "kernels" / "python3").mkdir(parents=True)
            (top / "kernels" / "python3" / "kernel.json").write_text(json.dumps(kernel), "utf-8")
            patch.setenv("JUPYTER_PATH", str(top))
            patch.setenv("PATH", f"{Path(IMAGE).parent}{os.pathsep}{os.environ['PATH']}")
        yield


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def set_writable(folder: Path, writable: bool) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod((0o755 if path.is_dir() else 0o644) & (0o777 if writable else 0o555))


class Session:
    """One Kaggle session: inputs that cannot be written, and a working folder."""

    def __init__(self, top: Path, place: str, *outputs: Path) -> None:
        self.inputs, self.working = top / "input", top / "working"
        self.repository = self.inputs / place
        copy_repository(self.repository)
        templates = Path("papers", "embedding-norm", "templates")
        shutil.copytree(ROOT / templates, self.repository / templates)
        (self.repository / "params" / "probe.yaml").write_text(json.dumps(STUDY), "utf-8")
        for number, output in enumerate(outputs):
            shutil.copytree(output, self.inputs / "notebooks" / "owner" / f"output-{number}")
        if WHEELS:
            shutil.copytree(WHEELS, self.inputs / "wheels")
        self.working.mkdir()

    def run(self, notebook: str, **parameters: object) -> nbformat.NotebookNode:
        """Run a notebook as by hand: with the parameters cell edited, cell by cell."""
        content = nbformat.read(self.repository / "notebooks" / f"{notebook}.ipynb", 4)
        (cell,) = (c for c in content.cells if "parameters" in c.metadata.get("tags", []))
        cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        set_writable(self.inputs, False)
        before = contents(self.inputs)
        try:
            client = NotebookClient(content, kernel_name="python3", timeout=300)
            client.execute(cwd=str(self.working))
        finally:
            set_writable(self.inputs, True)
        assert contents(self.inputs) == before
        nbformat.write(content, self.working / "__notebook__.ipynb")
        return content


@pytest.fixture
def as_on_kaggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No git, no network, no packages that the image lacks; the start cell finds the library."""
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "sitecustomize.py").write_text(HIDE, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lacking"))
    monkeypatch.setenv("PATH", str(Path(IMAGE or sys.executable).parent))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("STUDY_HEADLESS", raising=False)


KERNELS: dict[str, dict[str, str]] = {
    "6.17": {"TERM": "xterm-color", "CLICOLOR": "1"},
    "6.29": {"TERM": "xterm-color", "CLICOLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"},
}
"""What a kernel of Kaggle's ipykernel, and one of Colab's and the lock's (6.29, 6.30, 7), sets."""
LONG_JOBS = """
rule all:
    input: "one", "two"

rule job:
    output: "{name,one|two}"
    log: "probe/{name}.ipynb"
    shell: "touch {log}; sleep 3; touch {output}"
"""
FOLLOWED = """
import logging, subprocess, sys
from pathlib import Path
from lib.workflow.progress import follow

head = "import logging; from pathlib import Path; from lib.workflow.progress import Recorder\\n"
head += "logging.getLogger('snakemake.logging').addHandler(Recorder(Path('progress.json')))\\n"
Path("Snakefile").write_text(head + Path("jobs").read_text())
call = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
with open("log", "wb") as log:
    follow(subprocess.Popen(call, stdout=log, stderr=log), Path("progress.json"))
"""


@pytest.mark.parametrize(
    ("series", "dropped"),
    [
        ("6.29", True),  # as 00_kaggle asks
        *(pytest.param(*each, marks=pytest.mark.long)
          for each in (("6.29", False), ("6.17", True), ("6.17", False))),
    ],
)  # fmt: skip
def test_a_sweep_in_a_cell_writes_few_lines_and_no_escapes(
    series: str, dropped: bool, tmp_path: Path
) -> None:
    (tmp_path / "jobs").write_text(LONG_JOBS, "utf-8")
    (tmp_path / "follow.py").write_text(FOLLOWED, "utf-8")
    script = f"cd {tmp_path}\nPYTHONPATH={ROOT} exec {sys.executable} follow.py\n"
    (tmp_path / "run_all.sh").write_text(script, "utf-8")
    variables = f"environment(Path({str(tmp_path / 'environment')!r}))"
    cell = f"""
import os, sys; from pathlib import Path; sys.path.insert(0, {str(ROOT)!r})
for name in ("FORCE_COLOR", "CLICOLOR_FORCE"): os.environ.pop(name, None)
os.environ |= {KERNELS[series]!r}
from lib.workflow import kaggle
kaggle.ROOT, environment = Path({str(tmp_path)!r}), kaggle.environment
status = kaggle.sweep("probe", 1.0, {variables if dropped else "dict(os.environ)"})
assert status == 0"""
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(content, kernel_name="python3", timeout=300).execute(cwd=str(tmp_path))
    (run,) = content.cells
    text = "".join(output.get("text", "") for output in run.outputs)
    assert "2/2 jobs done in 0:" in text
    assert "\x1b" not in json.dumps(run.outputs)
    assert [text.count(f"{name}: done, time 0:0") for name in ("one", "two")] == [1, 1]
    assert "elapsed" not in text  # what runs at the moment stands in one place, and then goes
    (board,) = [output for output in run.outputs if output.output_type == "display_data"]
    assert board.data == {"text/plain": ""}


@pytest.mark.parametrize("series", KERNELS)
def test_what_a_kernel_sets_for_itself_reaches_no_sweep(
    series: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = KERNELS[series] | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    kept = environment(tmp_path / "environment")
    assert not {"MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE"} & set(kept)
    assert kept["TERM"] == "xterm-color"


def test_a_kernel_that_could_not_be_installed_is_installed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("lib.workflow.kaggle.subprocess.run", lambda *_, **__: [][0])
        with pytest.raises(IndexError):
            environment(tmp_path)
    environment(tmp_path)
    assert (tmp_path / "share/jupyter/kernels/python3/kernel.json").is_file()


def test_what_runs_at_the_moment_takes_the_place_of_what_ran_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ["one: done", "0/2 jobs done, 0:01 elapsed", "one: step 1/9, loss 3", "two: starts"]
    said += ["one: done", "1/2 jobs done, 0:02 elapsed", "two: step 5/9, loss 2"]
    script = "".join(f"echo '{line}'\n" for line in said)
    (tmp_path / "run_all.sh").write_text(f"{script}exit 7\n", "utf-8")
    shown: list[str] = []
    for name in ("display", "update"):
        monkeypatch.setattr(
            kaggle.DisplayHandle, name, lambda _, what, raw: shown.append(what["text/plain"])
        )
    monkeypatch.setattr(kaggle, "ROOT", tmp_path)
    assert kaggle.sweep("probe", 1.0, dict(os.environ)) == 7
    assert capfd.readouterr().out == "one: done\none: done\n"
    first, second = ["\n".join(said[a:b]) for a, b in ((1, 4), (5, 7))]
    assert (shown[3], shown[5], shown[-1]) == (first, second, "")


def test_a_study_of_full_size_is_priced_for_the_characters_of_its_text() -> None:
    (uniform,) = {run["references"]["uniform_loss"] for run in Record(kaggle.FULL["cpu"]).runs}
    assert round(math.exp(uniform)) == kaggle.VOCABULARY


def write_zip(folder: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(folder))
    return file


@pytest.mark.long
@pytest.mark.usefixtures("as_on_kaggle")
@pytest.mark.parametrize(
    "place",
    [
        "embedding-norm",
        "datasets/owner/embedding-norm/inner",
    ],
)
def test_notebooks_run_by_hand_in_sessions_of_their_own_enter_the_record(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[Path] = []

    def session(name: str, notebook: str, **parameters: object) -> Session:
        started = Session(tmp_path / name, place, *outputs)
        started.run(notebook, study="probe", **parameters)
        return started

    outputs.append(session("one", "01_data").working)
    runs = [session(arm, "02_train", arm=arm, seed=3, changes={}) for arm in ("none", "layernorm")]
    outputs += [run.working for run in runs]
    outputs = [session("three", "03_analysis").working]
    last = session("four", "04_figures").working
    assert len(json.loads((last / "runs/probe/03_analysis.json").read_text())["runs"]) == 2
    assert list((last / "runs/probe/figures").glob("*.pdf"))

    monkeypatch.undo()
    home = Tree(tmp_path / "home")
    (home.root / "params" / "probe.yaml").write_text(json.dumps(STUDY), "utf-8")
    file = write_zip(last, tmp_path / "output.zip")
    status, text = home.run_all("import", str(file))
    assert status == 0, text
    record = home.root / "papers/embedding-norm/record/probe"
    stamped = nbformat.read(record / "none/seed-3/02_train.ipynb", 4).metadata["study"]
    assert (stamped["status"], stamped["by_hand"]) == ("completed", True)
    status, text = home.run_all("verify", "probe")
    assert (status, "files verified" in text) == (0, True), text
    assert home.run_all("import", str(file)) == (
        1,
        "error: output.zip: the record already holds 'probe', and nothing is replaced\n",
    )


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, str]:
    """A session in which 00_kaggle ran a study of one's own, and what it showed."""
    with pytest.MonkeyPatch.context() as patch:
        top = tmp_path_factory.mktemp("kaggle")
        started = Session(top, "embedding-norm")
        (started.repository / "params" / "probe.yaml").unlink()
        return started, run_study(started, patch, yaml.safe_dump(STUDY))


def run_study(started: Session, patch: pytest.MonkeyPatch, study: str = "probe") -> str:
    """Run 00_kaggle; return all that it shows as text."""
    temporary = started.working.parent / "tmp"
    temporary.mkdir()
    patch.setenv("TMPDIR", str(temporary))
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("MPLBACKEND", "module://of.another.kernel")
    patch.delenv("PYTHONPATH", raising=False)
    content = started.run("00_kaggle", study=study, hours=1.0)
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    shown = [output.get("text", "") or str(output.get("data", "")) for output in outputs]
    assert "\x1b" not in "".join(shown)
    assert "".join(shown).count("\n") < 60
    assert not [output for output in outputs if output.output_type == "error"], shown
    return "".join(shown)


def jobs(text: str) -> int:
    """How many jobs a sweep had; all of them were done."""
    (done, total) = re.findall(r"(\d+)/(\d+) jobs done in", text)[-1]
    assert done == total
    return int(total)


@pytest.mark.long
def test_a_study_runs_to_table_verdict_figures_and_zip(session: tuple[Session, str]) -> None:
    started, text = session
    assert "training alone takes" in text
    assert "nothing to take up" in text
    assert "Installing torch and the packages of requirements.lock" in text
    assert jobs(text) > 0
    assert "EXPLORATORY" in text
    assert "image/png" in text
    assert text.endswith("at home: ./run_all.sh import probe.zip\n")
    with zipfile.ZipFile(started.working / "probe.zip") as packed:
        names = packed.namelist()
    assert "runs/probe/none/seed-3/02_train.ipynb" in names
    assert "params/probe.yaml" in names
    assert not [name for name in names if "checkpoints" in name or name.endswith(".lock")]


@pytest.mark.long
def test_a_second_session_continues_and_redoes_nothing(
    session: tuple[Session, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "half"
    shutil.copytree(session[0].working, half, ignore=shutil.ignore_patterns("*.zip", "papers"))
    for path in [half / "runs/probe/layernorm/seed-3/result.json", *half.glob("runs/probe/0*")]:
        path.unlink()
    second = Session(tmp_path / "second", "datasets/owner/embedding-norm", half)
    text = run_study(second, monkeypatch)
    assert "2 runs taken up from notebooks/owner/output-0/runs/probe" in text
    assert jobs(text) == jobs(session[1]) - 1
    before, after = (
        {
            arm: json.loads((top / f"runs/probe/{arm}/seed-3/result.json").read_text())
            for arm in ("none", "layernorm")
        }
        for top in (session[0].working, second.working)
    )
    assert after["none"] == before["none"]
    again = after["layernorm"]
    assert again["provenance"]["executed"]["from_checkpoint"] is True
    assert again["final_weights"] == before["layernorm"]["final_weights"]


def changed(file: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy of a zip with each member's content changed; None leaves it out."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            if (content := change(name, old.read(name))) is not None:
                new.writestr(name, content)
    return to


def edited(name: str, ending: str, content: bytes, **fields: Any) -> bytes:
    if not name.endswith(ending):
        return content
    return json.dumps(json.loads(content) | fields).encode()


@pytest.mark.long
def test_what_a_session_left_enters_the_record_at_home_only_as_it_was(
    session: tuple[Session, str], tmp_path: Path
) -> None:
    file, home = session[0].working / "probe.zip", Tree(tmp_path / "home")

    def refused(packed: Path) -> str:
        status, text = home.run_all("import", str(packed))
        assert status == 1
        assert text.count("\n") == 1, text
        assert not (home.root / "papers/embedding-norm/record").exists()
        return text.removeprefix(f"error: {packed.name}: ").strip()

    parameters = home.root / "params" / "probe.yaml"
    parameters.write_text(json.dumps(STUDY | {"seeds": [3, 4]}), "utf-8")
    assert "there is another params/probe.yaml" in refused(file)
    nameless = changed(file, tmp_path / "nameless.zip", lambda n, c: None if n.startswith("params/") else c)  # noqa: E501  # fmt: skip
    assert "none seed 4" in refused(nameless)
    parameters.unlink()
    assert "'probe' is unknown" in refused(nameless)

    run = "none/seed-3/"
    trace = changed(file, tmp_path / "trace.zip", lambda n, c: c[:-1] if n.endswith(f"{run}trace.parquet") else c)  # noqa: E501  # fmt: skip
    assert refused(trace) == f"{run}result.json: trace.parquet is missing or not as it was written"
    lost = changed(file, tmp_path / "lost.zip", lambda n, c: None if n.endswith(f"{run}02_train.ipynb") else c)  # noqa: E501  # fmt: skip
    assert refused(lost) == f"{run[:-1]}: no notebook shows its result"
    forged = changed(file, tmp_path / "forged.zip", lambda n, c: edited(n, f"{run}result.json", c, tokens=1))  # noqa: E501  # fmt: skip
    assert "has tokens 768 and the others have 1" in refused(forged)

    status, text = home.run_all("import", str(file))
    assert status == 0, text
    status, text = home.run_all("verify", "probe")
    assert (status, "files verified" in text) == (0, True), text


def test_every_wheel_is_asked_for_by_the_locks_hashes() -> None:
    assert '"--require-hashes"' in (ROOT / "lib" / "workflow" / "cli.py").read_text("utf-8")
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    for name in ("setuptools", "wheel"):  # some packages come as sources, and are built offline
        assert re.search(rf"^{name}==", lock, re.MULTILINE), name
    done = subprocess.run(["bash", "run_all.sh", "wheels", "x"], cwd=ROOT, capture_output=True, text=True, env=os.environ)  # noqa: E501  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: wheels: 'x' is no argument of this command; see ./run_all.sh wheels --help\n")  # noqa: E501  # fmt: skip
