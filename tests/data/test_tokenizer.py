"""Bytes and byte pairs write any text, and as the `tokenizers` library writes it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from lib.data.sources import pieces
from lib.data.text import Corpus, CorpusError, load_corpus, token_class
from lib.data.tokenizer import BytePairs, Bytes, learn_pairs
from lib.study.schema import CorpusConfig

TEXT = load_corpus(CorpusConfig(source="synthetic")).text[:100_000]
CONTENT = learn_pairs([TEXT], 400)
PEER = Tokenizer.from_str(CONTENT)
PEER.encode_special_tokens = True
PAIRS = BytePairs(CONTENT, "bpe-400")
BYTES = Bytes()
ODD = "“q” 😀\x00 12\r\n\n<|endoftext|>\x03 e\u0301 \ufeff\ufffd"
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
@example(ODD)
def test_any_text_survives(text: str) -> None:
    for tokenizer in (BYTES, PAIRS):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.end_of_document not in tokenizer.encode(text)


@given(any_text)
@example(ODD)
@example(TEXT[:3000])
def test_pairs_are_those_of_the_library(text: str) -> None:
    expected = PEER.encode(text, add_special_tokens=False)
    assert PAIRS.encode(text).tolist() == expected.ids
    (again,) = PAIRS.encode_all([text])
    assert again.tolist() == expected.ids


@given(any_text)
@example(ODD)
def test_every_character_counts_once(text: str) -> None:
    for tokenizer in (BYTES, PAIRS):
        assert tokenizer.characters[tokenizer.encode(text)].sum() == len(text)


def test_a_file_that_cuts_and_pads_texts_is_asked_for_neither() -> None:
    peer = Tokenizer.from_str(CONTENT)
    peer.enable_truncation(3)
    peer.enable_padding(length=50)
    tokenizer = BytePairs(peer.to_str(), "own")
    texts = ["to be", TEXT[:500]]
    assert [ids.tolist() for ids in tokenizer.encode_all(texts)] == [
        PEER.encode(text, add_special_tokens=False).ids for text in texts
    ]
    assert tokenizer.encode(texts[0]).tolist() == PAIRS.encode(texts[0]).tolist()


def test_bytes_are_their_own_ids() -> None:
    assert BYTES.encode("aé").tolist() == list("aé".encode())
    assert (len(BYTES.symbols), BYTES.end_of_document) == (257, 256)
    assert BYTES.decode([97, 256, 98]) == "a\n\nb"


def test_the_vocabulary_is_bytes_the_end_of_a_document_and_pairs_of_the_text() -> None:
    assert len(PAIRS.symbols) == 400
    assert {bytes([b]) for b in range(256)} <= set(PAIRS.tokens)
    assert PAIRS.tokens.count(b"") == 1
    assert all(token.decode() in TEXT for token in PAIRS.tokens if len(token) > 1)
    assert len(PAIRS.encode(TEXT)) < len(TEXT) / 1.5


def test_bytes_are_written_as_in_gpt_2() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in (chr(i) for i in range(0x250) if not 0xD800 <= i < 0xE000):
        ((written, _),) = split.pre_tokenize_str(character)
        ids = [PEER.token_to_id(symbol) for symbol in written]
        assert b"".join(PAIRS.tokens[i] for i in ids) == character.encode()


def test_learning_twice_gives_the_same() -> None:
    assert learn_pairs([TEXT], 400) == CONTENT
    assert BytePairs(learn_pairs([TEXT[:50_000]], 400), "").sha256 != PAIRS.sha256


@pytest.mark.parametrize("text", [TEXT * 3, ("a.\n\n  b\n" + "c d 1 2\n") * 30_000, "x" * 70_000])
def test_pieces_are_the_text_and_their_tokens_the_texts(text: str) -> None:
    cut = pieces(text)
    assert "".join(cut) == text
    assert len(cut) == (1 if " " not in text else len(text) // 65_536 + 1)
    ids = np.concatenate([PAIRS.encode(piece) for piece in cut])
    assert ids.tolist() == PAIRS.encode(text).tolist()


def test_tokens_have_the_classes_of_what_they_write() -> None:
    expected = {
        " the": "alphabetic",
        " 12": "numeric",
        "\n\n": "whitespace",
        " don't": "punctuation",
    }
    expected |= {" don't": "punctuation", "\x03": "end of document", "\ufffd": "punctuation"}
    assert {symbol: token_class(symbol) for symbol in expected} == expected
    classes = [token_class(symbol) for symbol in PAIRS.symbols]
    assert classes.count("end of document") == 1 + 2  # and the bytes 3 and 4
    assert classes.count("numeric") >= 10


# ---- a tokenizer of one's own

Load = Callable[..., Corpus]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load the text with a tokenizer, which is kept below a folder of the test's own."""
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "kept")
    (tmp_path / "own.txt").write_text(TEXT, "utf-8")

    def load(tokenizer: str) -> Corpus:
        return load_corpus(CorpusConfig(source=str(tmp_path / "own.txt"), tokenizer=tokenizer))

    return load


def test_a_tokenizer_file_does_what_it_did_where_it_was_learned(load: Load, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(CONTENT, "utf-8")
    corpus = load(str(tmp_path / "t.json"))
    assert corpus.tokenizer.sha256 == PAIRS.sha256
    expected = PEER.encode(TEXT[:90_000], add_special_tokens=False).ids
    assert corpus.train[:].tolist() == expected


def without(content: str, *names: str) -> str:
    return json.dumps({k: v for k, v in json.loads(content).items() if k not in names})


WORDS = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{}", "is no tokenizer.json of Hugging Face", id="empty"),
        pytest.param("[1]", "is no tokenizer.json of Hugging Face", id="a list"),
        pytest.param("not JSON", "is no tokenizer.json of Hugging Face", id="no JSON"),
        pytest.param("\udcff", "is no tokenizer.json of Hugging Face", id="no UTF-8"),
        pytest.param(WORDS, "does not work on bytes", id="words"),
        pytest.param(without(CONTENT, "decoder"), "does not work on bytes", id="no decoder"),
        pytest.param(
            CONTENT.replace("<|endoftext|>", "<|other|>"), "no token for the end", id="no end"
        ),
    ],
)
def test_another_file_is_refused(load: Load, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CorpusError) as error:
        load(str(tmp_path / "t.json"))
    assert str(error.value).startswith("corpus.tokenizer: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_is_nowhere_and_one_too_large_are_refused(load: Load) -> None:
    with pytest.raises(CorpusError, match=r"^corpus.tokenizer: 'no.json' is no file; give char"):
        load("no.json")
    refused = r"(cannot be read: File name |is no file; give char)"  # from Python 3.14 on
    with pytest.raises(CorpusError, match=rf"^corpus.tokenizer: 'x+.json' {refused}"):
        load("x" * 300 + ".json")
    with pytest.raises(CorpusError, match=r"^corpus.tokenizer: bpe-90000 is too large: .* gives"):
        load("bpe-90000")


JSON_TEXT = "ROMEO:\nWhat's here?  To be, or\n\nnot “q” 12 😀\x00\x7f\xad"


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe-300"])
def test_ids_and_text_are_the_corpus_own(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path)
    corpus = load_corpus(CorpusConfig(source="synthetic", fraction=0.02, tokenizer=tokenizer))
    peer = Tokenizer.from_str(corpus.tokenizer.to_json())
    text = JSON_TEXT if tokenizer != "characters" else corpus.decode(corpus.heldout[:200])
    ids = peer.encode(text).ids
    assert ids == corpus.encode(text).tolist()
    assert peer.decode(ids) == text
    assert peer.get_vocab_size() == corpus.vocab_size
    assert corpus.tokenizer.end_name == (None if tokenizer == "characters" else "<|endoftext|>")


def test_characters_of_documents_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path)
    for number in range(20):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number}.txt").write_text("abc " * 20, "utf-8")
    corpus = load_corpus(CorpusConfig(source=str(tmp_path / "texts")))
    peer = Tokenizer.from_str(corpus.tokenizer.to_json())
    assert (
        peer.token_to_id("<|endoftext|>")
        == corpus.tokenizer.end_of_document
        == corpus.vocab_size - 1
    )
    with pytest.raises(Exception, match="WordLevel"):
        peer.encode("é")
