"""A thousand runs are planned in seconds and analysed in half a minute, and five thousand take no
more of either for each."""

import time
from pathlib import Path

import pytest

from tests.benchmarks.thousand import analysed, fabricate, train_two, write_studies
from tests.conftest import Tree

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("thousands", [1, 5])
def test_thousands_of_runs_are_planned_and_analysed_in_time(thousands: int, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "embedding-norm")
    study = write_studies(tree, seeds=10 * thousands)

    def planned() -> float:
        start = time.perf_counter()
        status, text = tree.run_all("params/thousand.yaml", "-n", "--quiet", "rules")
        assert status == 0, text
        return time.perf_counter() - start

    pending = planned()
    train_two(tree)
    fabricate(tree, study)
    done = planned()
    seconds, memory = analysed(tree)
    print(f"{thousands},000 runs: "
          f"planned {pending:.1f} s, nothing to train {done:.1f} s, analysed {seconds:.1f} s, "
          f"{memory:.2f} GB")  # fmt: skip
    assert max(pending, done) < 10 * thousands
    assert seconds < 30 * thousands
    assert memory < 2 * thousands
