"""Kernels that are forked are as ordinary ones: in their bits and pictures, and in how they end."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from lib.record import warm
from lib.record.warm import Forked, printed
from lib.study.study import load_study
from lib.workflow import execution
from lib.workflow.forked import warm_process
from tests.conftest import TINY
from tests.workflow.test_processes import is_forked, is_warm

pytestmark = pytest.mark.slow

ENVIRONMENT = execution.kernel_environment(load_study("smoke"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psutil.Process]:
    """A warm process that has imported all it will."""
    folder = tmp_path_factory.mktemp("warm")
    with (folder / "log").open("wb") as log, warm_process(ENVIRONMENT, log):
        timeout, warm.TIMEOUT = warm.TIMEOUT, 300.0
        while not Path(os.environ[warm.WARM]).exists():
            time.sleep(0.05)
        (server,) = filter(is_warm, psutil.Process().children())
        yield server
        warm.TIMEOUT = timeout
    server.wait(300)
    said = (folder / "log").read_text("utf-8")
    assert "Error" not in said.replace("FileNotFoundError", ""), said


@pytest.fixture
def start(server: psutil.Process, tmp_path: Path) -> Callable[..., Forked]:
    """Fork what runs some code as a module of its own."""

    def fork(
        code: str, python: str = sys.executable, folder: Path = tmp_path, **own: str
    ) -> Forked:
        (tmp_path / "module.py").write_text(code, "utf-8")
        environment = {**os.environ, **ENVIRONMENT, **own}
        return Forked([python, "-m", "module", "word"], str(folder), environment)

    return fork


def ends(process: Forked, seconds: float = 300) -> bool:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    return process.poll() is not None


SAY = """
import json, os, sys
said = [sys.argv[1:], os.getcwd(), os.getpid(), os.getsid(0), os.environ["OWN"], sys.stdin.read()]
loaded = [name for name in sys.modules if name.partition(".")[0] in ("lib", "tests")]
json.dump([*said, loaded, "torch" in sys.modules], open("said", "w"))
"""


def test_a_fork_has_the_words_the_folder_and_the_environment_that_were_asked_for(
    start: Callable[..., Forked], tmp_path: Path
) -> None:
    process = start(SAY, OWN="its own")
    assert ends(process)
    told = json.loads((tmp_path / "said").read_text("utf-8"))
    assert told == [["word"], str(tmp_path), process.pid, process.pid, "its own", "", [], True]
    assert not psutil.pid_exists(process.pid)


@pytest.mark.parametrize(
    "other",
    [{"OMP_NUM_THREADS": "7"}, {"GLIBC_TUNABLES": ""}, {"python": "/usr/bin/python"},
     {"folder": Path("/nowhere")}],
)  # fmt: skip
def test_what_a_fork_cannot_be_is_refused_before_it_is_answered(
    other: dict[str, Any], start: Callable[..., Forked], tmp_path: Path
) -> None:
    with pytest.raises((ValueError, OSError)):
        start(SAY, OWN="its own", **other)
    assert not (tmp_path / "said").exists()


def test_what_a_program_or_a_module_prints_is_returned_if_it_came_to_a_good_end(
    server: psutil.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in warm.FIXED:
        monkeypatch.delenv(name, raising=False)
    code = "import os, sys; print(*sys.argv[1:], os.environ['OMP_NUM_THREADS'], os.environ['OWN'])"
    (tmp_path / "module.py").write_text(code, "utf-8")

    def told(*words: str, **own: str) -> str:
        return printed(tmp_path, [sys.executable, *words], {"OWN": "own", **own})

    assert told("-c", code, "word") == told("-m", "module", "word") == "word 1 own\n"
    assert told("-c", f"{code}; sys.exit(0)") == "1 own\n"
    for end in ("sys.exit(2)", "sys.exit('error')", "1 / 0", "os.kill(os.getpid(), 9)"):
        assert told("-c", f"{code}; sys.stdout.flush(); {end}") == ""
    assert told("-c", code, OMP_NUM_THREADS="7") == ""
    monkeypatch.delenv(warm.WARM)
    assert told("-c", code) == ""


ATEXIT = """
import atexit, threading, time
atexit.register(lambda: open("ended", "w").write("x"))
threading.Thread(target=lambda: (time.sleep(0.2), open("late", "w").write("x"))).start()
"""


def test_a_fork_ends_as_python_does_but_for_taking_itself_apart(
    server: psutil.Process, tmp_path: Path
) -> None:
    assert printed(tmp_path, [sys.executable, "-c", f"{ATEXIT}print(1)"], {}) == "1\n"
    assert (tmp_path / "late").read_text("utf-8") == (tmp_path / "ended").read_text("utf-8") == "x"


EXECUTE = """
import nbformat, nbclient
cell = nbformat.v4.new_code_cell("import psutil; print(psutil.Process().cmdline())")
notebook = nbformat.v4.new_notebook(cells=[cell])
print(nbclient.execute(notebook).cells[0].outputs[0].text)
"""


def test_kernels_of_code_that_knows_of_no_forks_are_forks(
    server: psutil.Process, tmp_path: Path
) -> None:
    assert "warm.py" in printed(tmp_path, [sys.executable, "-c", EXECUTE], {})


def test_a_fork_that_is_killed_has_ended_and_one_whose_client_is_gone_ends(
    start: Callable[..., Forked],
) -> None:
    killed, left = (start("import time; time.sleep(600)") for _ in range(2))
    assert (killed.poll(), left.poll()) == (None, None)
    os.killpg(killed.pid, signal.SIGKILL)
    assert ends(killed)
    process = psutil.Process(left.pid)
    left.connection.close()
    process.wait(300)


@pytest.fixture
def show(
    server: psutil.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., nbformat.NotebookNode]:
    """Execute cells in a kernel, forked or ordinary; return the notebook."""

    def execute(*cells: str, forks: bool = True, said: str = "") -> nbformat.NotebookNode:
        monkeypatch.setattr(os, "environ", {**os.environ, **ENVIRONMENT})
        if not forks:
            del os.environ[warm.WARM]
        source, output = tmp_path / "source.ipynb", tmp_path / "output.ipynb"
        kernel = {"name": "python3", "display_name": "", "language": "python"}
        notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        notebook.cells = list(map(nbformat.v4.new_code_cell, cells))
        nbformat.write(notebook, source)
        error = execution._run_papermill(source, output, {}) or ""
        assert (said in error, bool(said)) == (True, bool(error)), error
        return nbformat.read(output, 4)

    return execute


def test_a_kernel_that_is_killed_at_work_is_told_to_be_dead(
    show: Callable[..., nbformat.NotebookNode], tmp_path: Path
) -> None:
    noted = f"open({str(tmp_path / 'noted')!r}, 'a').write('x')"
    show(noted, "import os; os.kill(os.getpid(), 9)", said="DeadKernelError")
    assert (tmp_path / "noted").read_text("utf-8") == "x"  # it is not tried again


SHOWN = """
import matplotlib.pyplot, numpy, pandas
options = pandas._config.config._registered_options
for name in sorted({*options} - {"display.encoding"}):  # utf-8 or UTF-8
    print(name, pandas.get_option(name))
print(numpy.get_printoptions(), dict(matplotlib.rcParams))
"""
WIDE = "pandas.DataFrame([range(30)])"


def test_what_a_kernel_shows_is_the_same_in_a_fork(
    show: Callable[..., nbformat.NotebookNode],
) -> None:
    forked, ordinary = (show(SHOWN, WIDE, forks=forks).cells for forks in (True, False))
    assert forked[0].outputs[0] == ordinary[0].outputs[0]  # the other warns of old options
    assert forked[1].outputs == ordinary[1].outputs
    assert "[1 rows x 30 columns]" in forked[1].outputs[0].data["text/plain"]  # of which 20 stand


RUNS = f"""
import json, tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args
from lib.data.text import load_corpus
from lib.run.measure import measure
from lib.run.model import weights_digest
from lib.study.study import Study
from lib.study.schema import EmbeddingNorm
from lib.run.trainer import begin, train

def run(variant):
    content = {TINY!r} | {{"name": "alone", "seeds": [0]}}
    content["model"] = content["model"] | {{"embedding_norm": variant}}
    content["evaluation"] = content["evaluation"] | {{"items_per_task": 4 * (variant == "none")}}
    study, folder = Study.model_validate(content), Path(tempfile.mkdtemp())
    (arm,) = study.arms()
    corpus = load_corpus(study.corpus)
    corpus = replace(corpus, heldout=corpus.heldout[:4000], dev_length=2000)
    trained = train(arm.config, corpus, begin(study, arm, 0, corpus), folder)
    measured = measure(trained, folder)
    tables = measured.tables | measured.raw
    rows = {{n: t.drop(columns="seconds", errors="ignore").to_csv() for n, t in tables.items()}}
    return [trained.batches, weights_digest(trained.model), measured.measures, rows]

print("told", json.dumps({{name: run(name) for name in get_args(EmbeddingNorm)}}))
"""
PICTURE = """
import os, torch, numpy as np, matplotlib.pyplot as plt
print(os.getpid(), torch.get_num_threads())
plt.plot(np.arange(3)); plt.title("ABC"); plt.show()
"""


def test_every_variant_ends_at_the_same_bits_and_every_picture_is_the_same(
    show: Callable[..., nbformat.NotebookNode],
) -> None:
    told = []
    for forks in (True, False):
        runs, picture = show(RUNS, PICTURE, forks=forks).cells
        text = "".join(each.text for each in runs.outputs if each.get("name") == "stdout")
        (threads, drawn) = picture.outputs
        told.append((text.partition("told")[2], threads.text.split()[1], drawn.data["image/png"]))
    assert len(json.loads(told[0][0])) > 5
    assert told[0] == told[1]


def test_a_kernel_of_a_killed_server_goes_on_and_the_next_one_is_ordinary(
    start: Callable[..., Forked], server: psutil.Process, show: Callable[..., Any]
) -> None:
    (cell,) = show("import psutil; print(psutil.Process().cmdline())").cells
    assert "warm.py" in cell.outputs[0].text
    process = start("import time; time.sleep(600)")
    assert is_forked(psutil.Process(process.pid))
    server.kill()
    server.wait(300)
    assert process.poll() is None
    (cell,) = show("import psutil; print(psutil.Process().cmdline())").cells
    assert "ipykernel_launcher" in cell.outputs[0].text
    process.send_signal(signal.SIGTERM)
    assert ends(process)
