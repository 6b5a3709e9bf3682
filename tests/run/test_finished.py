"""What is read back are the very weights that a result was measured on."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from lib.run import checkpoint as checkpoints
from lib.run.checkpoint import UnfinishedError, read_finished, read_packed
from lib.study.io import run_folder
from tests.run.samples import finished_study


@pytest.mark.slow
def test_another_gain_of_the_layer_under_study_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with finished_study(tmp_path, model={"embedding_norm": "layernorm", "n_layer": 1}):
        folder = run_folder("small", "baseline", 0)
        weights = read_finished("small", "baseline", 0).model.state_dict()
        save_file(weights, folder / "weights.safetensors")
        read_packed(folder)
        weights["transformer.emb_norm.weight"] *= 2
        save_file(weights, folder / "weights.safetensors")
        with pytest.raises(ValueError, match="not those of the result"):
            read_packed(folder)
        monkeypatch.setattr(checkpoints, "weights_from", lambda _: weights)
        with pytest.raises(UnfinishedError, match="its checkpoint is not of its result's weights"):
            read_finished("small", "baseline", 0)
