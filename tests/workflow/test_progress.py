"""How far a sweep is, as Snakemake itself tells it."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from lib.study.paths import ROOT
from lib.workflow.progress import Recorder, follow

SNAKEFILE = """
import logging
from pathlib import Path
from lib.workflow.progress import Recorder

logging.getLogger("snakemake.logging").addHandler(Recorder(Path("progress.json")))

rule all:
    input: "good", "bad"

rule good:
    output: "good"
    shell: "touch {output}"

rule bad:
    output: "bad"
    log: "bad.log"
    shell: "echo why > {log}; test -e mended && touch {output}"
"""


def sweep(folder: Path) -> "subprocess.Popen[bytes]":
    (folder / "Snakefile").write_text(SNAKEFILE, "utf-8")
    (folder / "progress.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going", "--quiet", "all"]
    return subprocess.Popen(command, cwd=folder, env={"PATH": "/bin", "PYTHONPATH": str(ROOT)})


@pytest.mark.slow
def test_snakemakes_events_are_followed_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = follow(sweep(tmp_path), tmp_path / "progress.json")
    assert failed == ({"bad.log": ""}, False)
    assert "\n1/3 steps done in 0:" in capsys.readouterr().out
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "done": 1,
        "total": 3,
        "failed": {"bad.log": ""},  # once, though Snakemake repeats its errors at its end
        "running": {},
    }

    (tmp_path / "mended").touch()
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert "\n2/2 steps done in 0:" in capsys.readouterr().out
    assert follow(sweep(tmp_path), tmp_path / "progress.json") == ({}, False)
    assert capsys.readouterr().out.endswith("Nothing to do: everything is up to date.\n")


def test_jobs_are_listed_from_their_beginning_to_their_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "progress.json")
    seen = []
    for event in (
        {"event": "job_info", "jobid": 1, "log": ["a.ipynb"]},
        {"event": "job_info", "jobid": 2, "log": []},
        {"event": "job_info", "jobid": 3, "log": ["b.ipynb"]},
        {"event": "job_finished", "job_id": 1},
        {"event": "job_error", "jobid": 3, "log": ["b.ipynb", None, "no/such/slurm.log"]},
    ):
        recorder.emit(logging.makeLogRecord(event))
        progress = json.loads((tmp_path / "progress.json").read_text())
        seen.append(list(progress["running"].values()))
    assert seen == [["a.ipynb"], ["a.ipynb"], ["a.ipynb", "b.ipynb"], ["b.ipynb"], []]
    assert progress["failed"] == {"b.ipynb": ""}
