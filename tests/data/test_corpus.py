"""A corpus is the right text, split as described, counted truly and drawn from fairly."""

import hashlib
from pathlib import Path

import pytest
import torch

from lib.data.text import (
    TOKEN_CLASSES,
    Corpus,
    CorpusError,
    load_corpus,
    sample_batch,
    token_class,
)
from lib.study.schema import CorpusConfig
from tests.data.conftest import FromText, nine_to_one

# ---- the corpus of the study


def test_tinyshakespeare_is_the_published_text(shakespeare: Corpus) -> None:
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert hashlib.sha256(shakespeare.text.encode()).hexdigest() == sha256
    assert (shakespeare.name, shakespeare.sha256) == ("tinyshakespeare", sha256)
    assert len(shakespeare.text) == 1_115_394
    assert (len(shakespeare.train), len(shakespeare.heldout)) == (1_003_854, 111_540)


@pytest.mark.parametrize(("fraction", "length"), [(1.0, 1_003_854), (0.5, 501_927), (0.05, 50_192)])
def test_a_fraction_shortens_the_training_part_alone(
    shakespeare: Corpus, fraction: float, length: int
) -> None:
    part = load_corpus(CorpusConfig(fraction=fraction))
    assert part.train.equal(shakespeare.train[:length])
    assert part.symbols == shakespeare.symbols
    assert part.heldout.equal(shakespeare.heldout)
    assert part.dev_length == shakespeare.dev_length


# ---- a corpus of one's own


@pytest.mark.parametrize("line", ["to be or not to be\n", "Grüße, 世界! 🌍\n"])
def test_any_text_is_a_corpus_with_a_vocabulary_and_hash_of_its_own(
    from_text: FromText, line: str
) -> None:
    text = line * 20
    corpus = from_text(text)
    assert corpus.name == "own.txt"
    assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert list(corpus.symbols) == sorted(set(line))
    assert len(corpus.train) + len(corpus.heldout) == 20 * len(line)
    assert corpus.decode(torch.cat([corpus.train, corpus.heldout])) == text


@pytest.mark.parametrize("base", ["the working folder", "the repository"])
def test_a_relative_path_is_sought_here_and_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    for folder in ("the working folder", "the repository"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "the working folder")
    monkeypatch.setattr("lib.data.sources.ROOT", tmp_path / "the repository")
    (tmp_path / base / "own.txt").write_text("to be\n" * 20, "utf-8")
    assert load_corpus(CorpusConfig(source="own.txt")).text == "to be\n" * 20


@pytest.mark.parametrize(
    ("heldout", "dev_length"),
    [
        pytest.param("a" * 14 + "\n\n" + "b" * 3 + "\n" + "a" * 20, 16, id="blank line"),
        pytest.param("a" * 15 + "\n\n\n" + "b" * 22, 18, id="two blank lines"),
        pytest.param("a" * 13 + "\n\n" + "b" * 7 + "\n\n" + "a" * 16, 24, id="nearer blank line"),
        pytest.param("a" * 17 + "\n" + "b" * 22, 18, id="line end"),
        pytest.param("a" * 2 + "\n\n" + "b" * 17 + "\n" + "a" * 18, 22, id="blank line too early"),
        pytest.param("a" * 40, 20, id="one line"),
        pytest.param("a" * 3 + "\n" + "b" * 36, 20, id="line end too early"),
    ],
)
def test_dev_ends_at_a_blank_line_else_a_line_end_else_the_middle(
    from_text: FromText, heldout: str, dev_length: int
) -> None:
    assert len(heldout) == 40
    corpus = from_text(nine_to_one("ab", heldout))
    assert corpus.decode(corpus.dev) == heldout[:dev_length]
    assert corpus.decode(corpus.test) == heldout[dev_length:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "empty or too short: 0 characters; give a text of 20", id="empty"),
        pytest.param("é" * 19, "empty or too short: 19 characters; give a", id="too short"),
        pytest.param(
            b"a" * 2000 + b"\xff" + b"a" * 99, "not UTF-8 at byte 2,000; convert", id="not UTF-8"
        ),
        pytest.param("a" * 95 + "zaéaa", "symbol 'z', 'é' was unseen in training", id="unseen"),
    ],
)
def test_a_text_that_is_no_corpus_is_refused(
    from_text: FromText, content: str | bytes, message: str
) -> None:
    with pytest.raises(CorpusError, match=f"^own.txt: {message}"):
        from_text(content)


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        pytest.param("to be or not to be ", "t", id="no line break"),
        pytest.param("\ufefftext\n", "\n", id="byte order mark"),
        pytest.param("text\r\n\r\n", "\n", id="CRLF"),
        pytest.param("a\0b\u2028\x85", "a", id="NUL and separators"),
        pytest.param("👩‍👩‍👧‍👦 e\u0301", "👩", id="combining characters"),
    ],
)
def test_odd_texts_are_corpora(from_text: FromText, line: str, beginning: str) -> None:
    corpus = from_text(line * 50)
    assert corpus.text == line * 50
    assert corpus.beginning.shape == (1,)
    assert corpus.decode(corpus.beginning) == beginning


def test_twenty_characters_are_enough(from_text: FromText) -> None:
    corpus = from_text("é" * 20)
    assert [len(part) for part in (corpus.train, corpus.dev, corpus.test)] == [18, 1, 1]


def test_a_corpus_that_is_nowhere_is_answered_with_those_known() -> None:
    with pytest.raises(CorpusError) as error:
        load_corpus(CorpusConfig(source="tinyshakespear"))
    assert str(error.value) == (
        "corpus.source: 'tinyshakespear' is neither a text file nor a known corpus "
        "(tinyshakespeare, synthetic); give the path of a UTF-8 text"
    )


@pytest.mark.parametrize(
    ("heldout", "fraction", "part", "length"),
    [
        pytest.param("a" * 17 + "\n" + "a" * 22, 1.0, "dev", 18, id="dev"),
        pytest.param("a" * 22 + "\n" + "a" * 17, 1.0, "test", 17, id="test"),
        pytest.param("a" * 40, 0.01, "train", 3, id="train"),
    ],
)
def test_every_part_must_hold_a_window_and_its_target(
    from_text: FromText, heldout: str, fraction: float, part: str, length: int
) -> None:
    corpus = from_text(nine_to_one("a", heldout), fraction)
    corpus.require_length(length - 1)
    needs = f"the {part} part has {length} characters and model.block_size {length} needs"
    with pytest.raises(CorpusError, match=f"^own.txt: too short: {needs} {length + 1}; "):
        corpus.require_length(length)


# ---- describing a corpus


@pytest.mark.parametrize(
    ("symbols", "name"),
    [
        ("aZéß世", "alphabetic"),
        ("03½", "numeric"),
        (".,'-&$", "punctuation"),
        (" \n\t", "whitespace"),
        ("\x03\x04", "end of document"),
    ],
)
def test_every_symbol_has_one_class(symbols: str, name: str) -> None:
    assert name in TOKEN_CLASSES
    assert {token_class(symbol) for symbol in symbols} == {name}


# ---- drawing batches


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_batch_holds_windows_and_the_characters_that_follow() -> None:
    inputs, targets = sample_batch(torch.arange(100), 64, 8, seeded(0))
    assert inputs.shape == targets.shape == (64, 8)
    assert inputs.equal(inputs[:, :1] + torch.arange(8))
    assert targets.equal(inputs + 1)
    assert targets.max() <= 99


@pytest.mark.parametrize(("length", "block_size"), [(9, 8), (9, 7), (8, 8), (8, 1), (2, 1)])
def test_windows_start_wherever_they_and_their_targets_fit(length: int, block_size: int) -> None:
    if block_size >= length:
        with pytest.raises(RuntimeError):
            sample_batch(torch.arange(length), 1, block_size, seeded(0))
        return
    inputs, _ = sample_batch(torch.arange(length), 1000, block_size, seeded(0))
    fitting = [s for s in range(length) if s + block_size + 1 <= length]
    assert sorted(set(inputs[:, 0].tolist())) == fitting
