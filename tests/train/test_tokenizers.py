"""What is trained and measured on bytes and byte pairs is measured on the same text."""

import math
from pathlib import Path

import pytest

from lib.config.metrics import MEASURES
from lib.config.schema import CorpusConfig, RunConfig
from lib.config.study import Study
from lib.data.text import Corpus, load_corpus
from lib.results import measures_of, read_raw
from lib.train.evaluate import Measurement, measure, write_result
from lib.train.trainer import Trainer
from tests.conftest import TINY, beginning
from tests.train.samples import train

pytestmark = pytest.mark.slow

PLAIN = CorpusConfig(source="synthetic", fraction=0.02)
CONFIG = {
    **TINY,
    "corpus": {"source": "synthetic", "fraction": 0.02, "tokenizer": "bpe-512"},
    "model": TINY["model"] | {"block_size": 48},
    "evaluation": TINY["evaluation"] | {"items_per_task": 50},
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    kept = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.data.tokens.output_root", lambda: kept)
        return load_corpus(RunConfig.model_validate(CONFIG).corpus)


@pytest.fixture(scope="module")
def run(
    pairs: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trainer, Measurement, Path]:
    folder = tmp_path_factory.mktemp("run")
    config = RunConfig.model_validate(CONFIG)
    trained = train(config, beginning(pairs, 16_000), 0, folder)
    return trained, measure(trained), folder


def test_a_study_of_byte_pairs_ends_in_a_result_with_every_measure(
    run: tuple[Trainer, Measurement, Path], pairs: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, measured, folder = run
    monkeypatch.setattr("lib.train.evaluate.run_folder", lambda *_: folder)
    study = Study.model_validate(CONFIG | {"name": "alone", "seeds": [0]})
    result = write_result(study, study.arm("baseline"), trained, measured)
    expected = {name for name, of in MEASURES.items() if "per_second" not in name}
    # Of several runs, and of a device whose peak is known.
    expected -= {"unstable", "plateau", "harmful", "model_flop_utilisation"}
    assert expected <= {*result.measures, *result.throughput}
    assert all(math.isfinite(value) for value in result.measures.values())
    assert result.measures["suite_overflows"] == 0
    assert result.provenance["trained"]["tokenizer_sha256"] == pairs.tokenizer.sha256
    for name, value in measures_of(read_raw(folder)).items():
        assert result.measures[name] == pytest.approx(value, rel=1e-12)
    assert result.references["uniform_loss"] == pytest.approx(math.log(512))


def test_bits_per_character_count_all_characters_but_the_first_token(
    run: tuple[Trainer, Measurement, Path],
) -> None:
    trained, measured, _ = run
    heldout = trained.corpus.heldout
    characters, tokens = len(trained.corpus.decode(heldout[1:])), len(heldout) - 1
    bits = measured.measures["loss"] * tokens / math.log(2) / characters
    assert measured.measures["bits_per_character"] == pytest.approx(bits, rel=1e-9)
    assert characters > 2 * tokens
