"""A user plays with 02_train: changes it, stops in the middle, looks, continues."""

import json
import os
import signal
import threading

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert.filters import strip_ansi

from tests.conftest import TINY, copy_repository

pytestmark = pytest.mark.slow

STUDY = TINY | {
    "name": "toy",
    "training": {"iterations": 150, "batch_size": 4},
    "evaluation": {"interval": 10, "dev_windows": 4, "items_per_task": 0},
    "machine": {"checkpoint_interval": 1},
    "factors": {"model.embedding_norm": ["none", "layernorm"]},
    "seeds": [0],
}
PARAMETERS = """
study: str = "toy"
arm: str = "layernorm"
seed: int = 0
changes: dict = {changes}
"""


class Player:
    """Executes single cells in a kernel, as an editor does."""

    def __init__(self, root):
        self.root = root
        self.notebook = nbformat.read(root / "notebooks" / "02_train.ipynb", as_version=4)
        self.client = NotebookClient(self.notebook, kernel_name="python3", timeout=300)

    def cell(self, holding):
        code = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        return next(cell for cell in code if holding in cell.source)

    def run(self, holding):
        """Run the first cell that contains a text. Return its output (or traceback), and the kinds
        of output that it displays."""
        cell = self.cell(holding)
        try:
            self.client.execute_cell(cell, self.notebook.cells.index(cell))
        except CellExecutionError:
            return strip_ansi("\n".join(cell.outputs[-1].traceback)).strip(), ["error"]
        printed = "".join(out.text for out in cell.outputs if out.output_type == "stream")
        return printed, [kind for out in cell.outputs for kind in out.get("data", {})]

    def stop_when(self, place):
        """Stop the kernel's cell as soon as a file appears in the tree."""

        def wait():
            while not any(self.root.glob(place)):
                threading.Event().wait(0.02)
            os.killpg(os.getpgid(self.client.km.provisioner.process.pid), signal.SIGINT)

        threading.Thread(target=wait, daemon=True).start()


def test_a_scratch_run_is_stopped_looked_at_and_continued(tmp_path, monkeypatch):
    for name in ("STUDY_HEADLESS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    copy_repository(tmp_path / "home")
    (tmp_path / "home" / "params" / "toy.yaml").write_text(json.dumps(STUDY), "utf-8")
    player = Player(tmp_path / "home")
    with player.client.setup_kernel(cwd=str(tmp_path / "home" / "notebooks")):
        for holding in ("import glob", "import load_corpus"):
            player.run(holding)
        parameters = player.cell("study: str")
        parameters.source = PARAMETERS.format(changes={"learning_rate": 1e-2})
        player.run("study: str")
        said, _ = player.run("load_study(study)")
        hint = "did you mean 'training.learning_rate'?"
        assert said == f"ConfigError: changes: 'learning_rate' is unknown; {hint}"

        parameters.source = PARAMETERS.format(changes={"training.learning_rate": 1e-2})
        player.run("study: str")
        said, shown = player.run("load_study(study)")
        assert said.startswith("Changed from layernorm:\n  training.learning_rate: ")
        assert " → 0.01\n" in said
        assert "text/markdown" in shown  # its title
        player.stop_when("runs/.scratch/*/seed-0/checkpoints/*/step-00000000[1-9]?-*")
        said, shown = player.run("= train(")
        stopped = int(said.removeprefix("Stopped at step ").partition(" ")[0])
        assert said == f"Stopped at step {stopped} of 150; run this cell again to continue.\n"
        assert 10 <= stopped < 150
        assert "image/png" in shown
        said, _ = player.run("= measure(")
        fault = f"training stopped at step {stopped}; train the run to its end"
        assert said == f"UserError: {fault}"
        assert "image/png" in player.run("show_training(trained")[1]

        for _ in range(2):  # to its end, and again when there is nothing left to train
            said, shown = player.run("= train(")
            assert (said, "image/png" in shown) == ("", True)
        assert player.run("= measure(")[0].startswith("task suite left out")
        player.run("= write_result(")
        assert player.run("generate(")[0].strip()
    runs = tmp_path / "home" / "runs"
    assert [path.name for path in runs.iterdir()] == [".scratch"]
    (result,) = runs.glob(".scratch/toy,layernorm,learning_rate=0.01/seed-0/result.json")
    assert json.loads(result.read_text())["resumed_at"] == [stopped]
