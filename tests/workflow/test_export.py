"""An exported run is what `transformers` loads; what cannot be exported is refused in one line."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lib.run.checkpoint import read_finished
from lib.study.io import run_folder
from lib.study.metrics import MEASURES
from lib.study.study import Study
from lib.workflow import cli, export
from tests.run.samples import finished_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    factors = {"model.embedding_norm": ["none", "scale", "layernorm"]}
    with finished_study(tmp_path_factory.mktemp("export"), factors=factors) as study:
        yield study


@pytest.mark.parametrize("arm", ["none", "scale"])
def test_transformers_load_the_folder_and_give_the_same_logits_and_text(
    arm: str, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "model"
    assert cli.main(["export", f"small/{arm}/0", "--to", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"small/{arm}/0 lies in ")
    run = read_finished("small", arm, 0)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = run.corpus.decode(run.corpus.heldout[:16])
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids.tolist() == [run.corpus.heldout[:16].tolist()]
    assert tokenizer.decode(ids[0]) == text
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, run.model(ids), rtol=1e-5, atol=1e-5)


def test_the_model_card_holds_measures_and_provenance(study: Study, tmp_path: Path) -> None:
    assert cli.main(["export", "small/none/0", "--to", str(tmp_path / "model")]) == 0
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    result = read_finished("small", "none", 0).result
    for name in ("perplexity", "accuracy", "ece"):
        assert f"| {MEASURES[name].title} | {MEASURES[name].text(result.measures[name])} |" in card
    for value in (result.corpus_sha256, result.final_weights, result.origin["training_digest"]):
        assert value in card
    assert "/tmp" not in card


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("small/none", "run: 'small/none' names none; give STUDY/ARM/SEED"),
        ("smal/none/0", "study: 'smal' is unknown; did you mean 'small'?"),
        ("small/non/0", "arm: 'non' is unknown; did you mean 'none'?"),
        ("small/none/7", "seed: 7 is not in study 'small'; it has [0]"),
        ("small/layernorm/0", "GPT-2 has no layernorm between the embeddings and block 1"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    words: str, message: str, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", words, "--to", str(tmp_path / "model")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_folder_that_exists_is_left_as_it_is(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", "small/none/0", "--to", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"error: --to: {tmp_path} exists, and nothing is replaced; name another\n"
    )
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_whole_leaves_nothing(
    study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export, "model_card", fail)
    to = tmp_path / "models" / "one"
    assert cli.main(["export", "small/none/0", "--to", str(to)]) == 1
    assert capsys.readouterr().err.startswith("error: No space left on device")
    assert not list(to.parent.iterdir())


def test_a_run_without_checkpoints_or_result_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with finished_study(tmp_path):
        folder = run_folder("small", "baseline", 0)
        for missing, remedy in (("checkpoints", "; delete "), ("result", "; ./run_all.sh params/")):
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            if missing == "result":
                (folder / "result.json").unlink()
            assert cli.main(["export", "small/baseline/0", "--to", str(tmp_path / "model")]) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"error: small/baseline/0 has no {missing}{remedy}")
            assert error.count("\n") == 1


def test_a_diverged_run_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = {"training": {"iterations": 12, "batch_size": 4, "learning_rate": 1e30}}
    with finished_study(tmp_path, **wild):
        assert cli.main(["export", "small/baseline/0", "--to", str(tmp_path / "model")]) == 1
    assert capsys.readouterr().err == "error: small/baseline/0 diverged at step 2: no model\n"
