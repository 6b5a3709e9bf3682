"""What a whole study takes on this machine, installed, from `./run_all.sh` to its pages.

Run alone on a quiet machine: `./run_all.sh test -m benchmark tests/benchmarks/test_study.py -s`. It
prints the README's table: 15 to 30 minutes on two cores. With a GPU it runs `final-gpu`.
"""

import json
import os
import time
from pathlib import Path

import pandas as pd
import pytest

from lib.record.replay import link_inputs
from lib.run.machine import is_usable
from lib.study.study import load_study
from tests.conftest import Tree

pytestmark = pytest.mark.benchmark


def test_a_study_is_timed_from_its_first_command_to_its_pages(tmp_path: Path) -> None:
    study = load_study("final-gpu" if is_usable("cuda") else "final")
    tree = Tree(tmp_path / "embedding-norm")
    link_inputs(tree.root, [study.model_dump()])
    start = time.perf_counter()
    status, text = tree.run_all(f"params/{study.name}.yaml", seconds=7200)
    wall = time.perf_counter() - start
    assert status == 0, text
    paths = sorted((tree.root / "runs" / study.name).glob("*/seed-*/result.json"))
    runs = [json.loads(path.read_text("utf-8")) for path in paths]
    assert len(runs) == len(list(study.arms())) * len(study.seeds)
    assert {run["status"] for run in runs} == {"completed"}

    parts = pd.DataFrame([run["seconds"] for run in runs]).sum()
    cores = os.cpu_count() or 1
    if not is_usable("cuda"):  # a run keeps one core busy
        parts["the rest"] = wall * cores - parts.sum()
    machine = runs[0]["provenance"]["trained"]["machine"]["device_name"]
    print(f"\n{study.name} on {machine}, {cores} cores: {wall:.0f} s, "
          f"{60 * len(runs) / wall:.1f} runs per minute")  # fmt: skip
    for part, seconds in parts.items():
        print(f"| {part} | {seconds:.0f} | {seconds / parts.sum():.0%} | "
              f"{seconds / parts['training']:.1%} of training |")  # fmt: skip
