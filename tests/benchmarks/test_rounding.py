"""How far stable runs move between two vector levels of one CPU, as they may on another.

`./run_all.sh test -m benchmark tests/benchmarks/test_rounding.py -s` trains each at every level and
prints what `lib.record.retrain.MOVED` holds.
"""

import pandas as pd
import pytest
import torch

from lib.record.retrain import (
    COLUMN,
    MOVED,
    SAFETY,
    distances,
    recorded_runs,
    train_again,
)

pytestmark = pytest.mark.benchmark
RUNS = (
    *(
        "pilot/none,embedding_std=0.02,mlp_ratio=1/0",
        "pilot/layernorm,embedding_std=1,mlp_ratio=1/1",
    ),
    *("example/warmup_cosine/1", "final/none/0"),
)
LEVELS = {"AVX512": ("avx2", "default"), "AVX2": ("default",)}


def test_stable_runs_stay_far_within_the_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = LEVELS.get(torch.backends.cpu.get_cpu_capability())
    if levels is None:
        pytest.skip("this CPU has one vector level")
    runs = recorded_runs(["pilot", "example", "final"])
    apart = {}
    for name in RUNS:
        made, _ = train_again(runs[name])
        for level in levels:
            monkeypatch.setenv("ATEN_CPU_CAPABILITY", level)
            other, _ = train_again(runs[name])
            apart[f"{name}, {level}"] = distances(made, other)
            monkeypatch.delenv("ATEN_CPU_CAPABILITY")
            assert made.result["final_weights"] != other.result["final_weights"]
    table = pd.DataFrame(apart).max(axis=1)
    moved = {name: table[name] * SAFETY * MOVED.get(name, COLUMN) for name in table.index}
    print("", *(f"{name}: {value:.0e}" for name, value in moved.items()), sep="\n")
    assert table.max() <= 0.1
