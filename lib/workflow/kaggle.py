"""A whole study in one session of a notebook, where there is no shell: on Kaggle, or on Colab.

The sweep is the one of `./run_all.sh`. It runs in an environment that has the lock's packages and,
behind them, those of the session's image: torch among them is not touched.
"""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

import nbformat
import torch
from IPython.display import DisplayHandle, display

from lib.results import status_of
from lib.study.inputs import MARK, PLAN_BELOW, is_copy
from lib.study.io import (
    PARAMS,
    PLANS,
    ROOT,
    RUNS,
    atomic_write,
    executed_notebook,
    kaggle_folder,
    result_file,
    study_folder,
)
from lib.study.study import load_study
from lib.study.yaml import TIME_UP, UserError
from lib.workflow.estimate import estimate

ENVIRONMENT = Path(tempfile.gettempdir(), "embedding-norm")
"""Outside what a session keeps."""
_KERNEL_VARIABLES = {"MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE"}
"""What a kernel sets for itself (the colours: since ipykernel 6.29). A sweep writes to a pipe,
which these would have it take for a terminal."""


def environment(folder: Path = ENVIRONMENT) -> dict[str, str]:
    """Make the environment, still without the lock's packages; return the variables that lead
    there. An attached folder of wheels (`./run_all.sh wheels`) is installed from instead of the
    internet."""
    if not (folder / "share/jupyter/kernels/python3/kernel.json").is_file():  # what comes last
        venv.create(folder, symlinks=True)
        image = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        (packages / "image.pth").write_text("\n".join(image) + "\n", "utf-8")
        # The image's own entry would start its own Python.
        install = ("-m", "ipykernel", "install", "--sys-prefix", "--name", "python3")
        subprocess.run([folder / "bin" / "python", *install], capture_output=True, check=True)
    variables = {name: os.environ[name] for name in os.environ.keys() - _KERNEL_VARIABLES}
    variables |= {"VIRTUAL_ENV": str(folder)}
    variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    kaggle = kaggle_folder()
    wheels = sorted((kaggle / "input").glob("**/snakemake-*.whl")) if kaggle else []
    if wheels:
        variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels[0].parent)}
    return variables


FULL = {"cuda": "final-gpu", "cpu": "final"}
"""A study of full size, by the machine's device."""
VOCABULARY = 65
"""Of its text, which may not be here yet."""


def cost_of_full() -> str:
    """Say what a study of full size would take on this machine, by a few steps of it."""
    name = FULL["cuda" if torch.cuda.is_available() else "cpu"]
    study = load_study(name)
    hours = estimate(study, VOCABULARY).hours
    unit, number = next((unit, n) for unit, n in hours.items() if unit.endswith("here"))
    n_parallel = max(1, torch.cuda.device_count() if name == FULL["cuda"] else os.cpu_count() or 1)
    runs = len(list(study.arms())) * len(study.seeds)
    return (
        f'study = "{name}": {runs} runs; training alone takes {number:.2f} {unit}, some '
        f"{number / n_parallel:.2f} hours with {n_parallel} runs at once"
    )


_STATUS_LINE = re.compile(r" elapsed$|: (step )?\d+/\d+, |: (runs|starts)$")
"""Lines about what runs at this moment, after which the next ones take their place."""


def sweep(study: str, hours: float, variables: dict[str, str]) -> int:
    """Run `./run_all.sh` for a study and for so many hours at the most, showing what it prints:
    what runs at the moment in one place, all else line by line. Return its exit status. Stopping
    the cell stops it all."""
    command = ["bash", str(ROOT / "run_all.sh"), study, "--stop-after", f"{hours:g}"]
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    handle, lines = DisplayHandle(), list[str]()
    handle.display({"text/plain": ""}, raw=True)
    try:
        for line in process.stdout or ():
            if not _STATUS_LINE.search(line):
                print(line, end="", flush=True)
                continue
            lines = lines * (not line.endswith(" elapsed\n")) + [line]
            handle.update({"text/plain": "".join(lines).rstrip()}, raw=True)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
    handle.update({"text/plain": ""}, raw=True)
    return process.wait()


def show(study: str, notebook: str, heading: str = "") -> None:
    """Show what an executed notebook shows, below one of its headings or all of it."""
    path, is_shown = executed_notebook(notebook, study), not heading
    if status_of(path)["status"] != "completed":
        print(f"{notebook} has not been executed yet")
        return
    for cell in nbformat.read(path, as_version=4).cells:
        if heading and cell.cell_type == "markdown" and cell.source.startswith("#"):
            is_shown = cell.source.splitlines()[0].strip("# ") == heading
        for output in cell.get("outputs", []) if is_shown else []:
            if "data" in output:
                display(output.data, raw=True)
            else:
                print(output.get("text", ""), end="")


def pack(study: str, status: int) -> None:
    """Write what `./run_all.sh import` takes, and another session continues, to `STUDY.zip`: all of
    a study but the checkpoints of finished runs. Print what to do with it. Raises UserError after a
    sweep that ended with the status of a failure."""
    folder, target = study_folder(study), RUNS.parent / f"{study}.zip"
    with (
        atomic_write(target) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            parts = path.relative_to(folder).parts
            run = folder.joinpath(*parts[:2])
            is_unneeded = "checkpoints" in parts and (run / "result.json").is_file()
            if not is_unneeded and not path.name.endswith(".lock"):
                packed.write(path, Path("runs", study, *parts))
        if is_copy(file := PARAMS / f"{study}.yaml"):  # a study of one's own, which home lacks
            texts = [file.read_text("utf-8")]
            if (plan := load_study(study).plan) and is_copy(PLANS / plan):
                texts.append((PLANS / plan).read_text("utf-8"))
            combined = PLAN_BELOW.join(text.removeprefix(MARK).rstrip("\n") for text in texts)
            packed.writestr(f"params/{study}.yaml", combined)
    print(f"{target.name}: {target.stat().st_size / 1e6:.1f} MB")
    if result_file("archive", study).is_file():
        print(f"Download it; at home: ./run_all.sh import {target.name}")
    elif status not in (0, TIME_UP):
        raise UserError(
            f"the sweep failed (status {status}); what it printed says why, and "
            f"{target.name} holds what was done before"
        )
    else:
        print("The study is not complete. Save this version, attach its output to the next session")
        print("as an input, and run all again: it continues.")
