"""A notebook counts only if all of it was executed, and it says itself how it ended."""

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import psutil
import pytest

from lib.config.paths import ROOT, result_file
from lib.results import status_of
from lib.sweep import execute as module
from lib.sweep.execute import ExecutionError, execute

WRITE = "from pathlib import Path; Path(result).write_text('{}')"


@pytest.fixture
def write_notebook(tmp_path, monkeypatch):
    """Write a notebook `02_train` with its result's path in the variable `result`; executing it
    writes only to the test's folder. Return the path of the executed notebook."""
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path / "runs")
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(module, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    result = result_file("02_train", "tiny", "none", 1)

    def write(*cells):
        notebook = nbformat.v4.new_notebook()
        kernel = {"name": "python3", "display_name": "", "language": "python"}
        notebook.metadata["kernelspec"] = kernel
        parameters = "study = arm = ''\nseed = 0"
        first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        sources = [f"result = {str(result)!r}", *cells]
        notebook.cells = [first, *map(nbformat.v4.new_code_cell, sources)]
        nbformat.write(notebook, tmp_path / "02_train.ipynb")
        return result.with_name("02_train.ipynb")

    return write


@pytest.mark.slow
def test_a_completed_notebook_leaves_its_result(write_notebook, tiny_study, tmp_path, monkeypatch):
    """With this Python, whatever `python3` is, with the given threads and GPU, and without the
    user's settings of Python, IPython and Matplotlib. A long TMPDIR does no harm."""
    spec = '{"argv": ["/bin/false"], "display_name": "", "language": "python"}'
    for file, text in {
        ".local/share/jupyter/kernels/python3/kernel.json": spec,
        "jupyter/kernels/python3/kernel.json": spec,
        ".ipython/profile_default/startup/own.py": "raise SystemExit",
        ".ipython/profile_default/ipython_config.py": "c.InteractiveShellApp.exec_lines = ['arm']",
        ".config/matplotlib/matplotlibrc": "text.usetex: True",
        "sitecustomize.py": "import os; os.environ['OMP_NUM_THREADS'] = '9'",
        f"{'x' * 120}/file": "",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for name, value in {"JUPYTER_PATH": "jupyter", "HOME": "", "PYTHONPATH": ""}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 120)))
    monkeypatch.setenv(module.GPUS, "3")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("RAYON_NUM_THREADS", "9")
    names = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS", "STUDY_HEADLESS", "CUDA_VISIBLE_DEVICES"]
    output = write_notebook(
        f"import os, sys, json; values = [sys.prefix, *(os.environ[n] for n in {names})]",
        "import matplotlib; values += [os.environ.get('MKL_CBWR'), sys.flags.utf8_mode]",
        "values += [matplotlib.rcParams['text.usetex'], matplotlib.rcParams['axes.edgecolor']]",
        "open(result, 'w').write(json.dumps([*values, arm, seed]))",
        r"from IPython.display import HTML; HTML('<p>\n  <b>a\n  b</b></p>')",
    )
    before = [result_file(name, "tiny") for name in ("03_analysis", "04_figures")]
    before += [module.archived_file("tiny"), tmp_path / "runs" / "paper-embedding-norm.txt"]
    for path in before:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    result = execute("02_train", tiny_study, "none", 1)
    kernel = [sys.prefix, "1", "1", "1", "3", None, 1, False, "black"]
    assert json.loads(result.read_text()) == [*kernel, "none", 1]
    assert status_of(output)["status"] == "completed"
    cell = nbformat.read(output, 4).cells[-1]
    assert cell.outputs[0].data == {"text/html": "<p>\n<b>a\n  b</b></p>"}  # not indented
    assert str(tmp_path) not in str(nbformat.read(output, 4).metadata)  # no folders of this machine
    assert not any(path.exists() for path in before)  # made from the earlier result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "options", "reason"),
    [
        (r"raise ValueError('no such\nluck')", {}, "ValueError: no such luck"),
        ("import os; os.kill(os.getpid(), 9)", {}, "DeadKernelError.*memory.*--jobs"),
        ("import time; time.sleep(60)", {"execution_timeout": 1}, "CellTimeoutError"),
    ],
)
def test_a_failed_notebook_is_kept_and_stamped_and_its_result_does_not_count(
    cell, options, reason, write_notebook, tiny_study, monkeypatch
):
    """After a killed kernel or a timeout, papermill marks every cell `completed`."""
    real = papermill.execute_notebook
    monkeypatch.setattr(papermill, "execute_notebook", lambda *a, **k: real(*a, **k, **options))
    output = write_notebook(WRITE, cell, "print('never reached')")
    with pytest.raises(ExecutionError, match=reason):
        execute("02_train", tiny_study, "none", 1)
    stamp = status_of(output)
    assert (stamp["status"], bool(re.search(reason, stamp["reason"]))) == ("failed", True)
    assert nbformat.read(output, 4).cells[0].source.startswith("# FAILED")
    assert not (output.parent / "result.json").exists()


def test_a_notebook_without_its_result_does_not_count(write_notebook, tiny_study, monkeypatch):
    """The result of an earlier execution does not count either. A run gets its arm, its seed and
    its plan's hash."""
    output, options = write_notebook(), {}

    def execute_notebook(source, output, parameters, **words):
        options.update(words, parameters=parameters, run=Path(output).parents[1].name)
        nbformat.write(nbformat.v4.new_notebook(), output)

    monkeypatch.setattr(papermill, "execute_notebook", execute_notebook)
    monkeypatch.setattr(module, "load_plan", lambda study: SimpleNamespace(hash="f" * 64))
    output.parent.mkdir(parents=True)
    (output.parent / "result.json").write_text("of an earlier execution")
    with pytest.raises(ExecutionError, match=r"notebook wrote no .*result\.json; see .*02_train"):
        execute("02_train", tiny_study, "none", 1)
    stamp = status_of(output)
    assert (stamp["status"], stamp["preregistration"]) == ("failed", "f" * 64)
    assert {"commit", "clean", "seconds"} <= stamp.keys()
    run = {"study": "tiny", "arm": "none", "seed": 1}
    assert options["parameters"] == run | {"changes": {}}
    changes = {"training.learning_rate": 0.5}
    with pytest.raises(ExecutionError):
        execute("02_train", tiny_study, "none", 1, changes)
    assert options["parameters"] == run | {"changes": changes}
    assert options["run"] == "tiny,none,learning_rate=0.5"
    assert options["config"].KernelManager.transport == "ipc"  # not TCP: ports clash


def test_a_run_holds_a_gpu_that_no_other_has(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.delenv(module.GPUS, raising=False)
    with module.own_gpu() as none:
        assert none is None
    monkeypatch.setenv(module.GPUS, "3;4,5")
    waited = []

    def wait():
        with module.own_gpu() as gpu:
            waited.append(gpu)

    with module.own_gpu() as first:
        with module.own_gpu() as second:
            assert [first, second] == ["3", "4,5"]
            waiting = threading.Thread(target=wait, daemon=True)
            waiting.start()
            time.sleep(0.3)
            assert not waited
        waiting.join(10)
        assert waited == ["4,5"]


ORPHAN = (
    "import time\nfrom lib.config.environment import end_with_parent\n"
    "end_with_parent()\nprint('ready', flush=True)\ntime.sleep(60)"
)


@pytest.mark.slow
def test_a_process_whose_starter_has_ended_already_does_nothing():
    given = os.environ | {"STUDY_PARENT": str(2**22)}  # no process has this number
    done = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, env=given, timeout=60)
    assert done.returncode == 1


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it():
    """Also if the parent was killed."""
    start = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {ORPHAN!r}])\n"
    command = [sys.executable, "-c", start + "time.sleep(60)"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout
    assert parent.stdout.readline() == b"ready\n"
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    assert psutil.wait_procs([child], timeout=10)[1] == []


STARTER = (
    "import os\nfrom jupyter_client import KernelManager\n"
    "from lib.config.environment import kernel_environment\n"
    "with kernel_environment(1):\n    KernelManager().start_kernel()\n    os._exit(1)"
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_a_kernel_whose_starter_ends_at_once_does_too_whoever_takes_it_over(tmp_path):
    subreaper = functools.partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    given = os.environ | {"TMPDIR": str(tmp_path)}
    subreaper(1)
    try:
        command = [sys.executable, "-c", STARTER]
        # The kernel's output ends when the kernel ends.
        subprocess.run(command, cwd=ROOT, env=given, stdout=subprocess.PIPE, timeout=30)
    finally:
        subreaper(0)
