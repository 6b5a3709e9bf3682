"""Hugging Face's tokenizer gives a corpus's ids, and its text back."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lib.data.corpus import load_corpus
from lib.data.tokenizer_json import END, end_name, tokenizer_json
from lib.study.fields import CorpusConfig

TEXT = "ROMEO:\nWhat's here?  To be, or\n\nnot"


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe-300"])
def test_ids_and_text_are_the_corpus_own(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokenised.output_root", lambda: tmp_path)
    corpus = load_corpus(CorpusConfig(source="synthetic", fraction=0.02, tokenizer=tokenizer))
    peer = Tokenizer.from_str(tokenizer_json(corpus))
    text = TEXT if tokenizer != "characters" else corpus.decode(corpus.heldout[:200])
    ids = peer.encode(text).ids
    assert ids == corpus.encode(text).tolist()
    assert peer.decode(ids) == text
    assert peer.get_vocab_size() == corpus.vocab_size
    assert end_name(corpus) == (None if tokenizer == "characters" else END)


@pytest.mark.parametrize("text", ["“q” 12 😀", "\x00\x7f\xad", "é"])
def test_bytes_write_any_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.data.tokenised.output_root", lambda: tmp_path)
    corpus = load_corpus(CorpusConfig(source="synthetic", fraction=0.02, tokenizer="bytes"))
    peer = Tokenizer.from_str(tokenizer_json(corpus))
    assert peer.encode(text).ids == list(text.encode())
    assert peer.decode(peer.encode(text).ids) == text


def test_characters_of_documents_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokenised.output_root", lambda: tmp_path)
    for number in range(20):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number}.txt").write_text("abc " * 20, "utf-8")
    corpus = load_corpus(CorpusConfig(source=str(tmp_path / "texts")))
    peer = Tokenizer.from_str(tokenizer_json(corpus))
    assert peer.token_to_id(END) == corpus.tokenizer.end_of_document == corpus.vocab_size - 1
    with pytest.raises(Exception, match="WordLevel"):
        peer.encode("é")
