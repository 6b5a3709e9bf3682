"""Bytes and byte pairs write any text, as the `tokenizers` library writes it, and a corpus on the
disk holds the ids of its texts, made anew whole when anything is off."""

import bz2
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from lib.config.paths import ROOT
from lib.config.schema import CorpusConfig
from lib.data import tokens
from lib.data.text import CorpusError, load_corpus, sample_batch
from lib.data.tokens import TOKEN_CLASSES, BytePairs, Characters, learn, pieces, token_class
from tests.conftest import refused
from tests.data.conftest import is_mapped

PACKED = (ROOT / "lib" / "data" / "synthetic.packed").read_bytes()
TEXT = bz2.decompress(PACKED)[:100_000].decode()
CONTENT = learn("bpe-400", [TEXT])
PEER = Tokenizer.from_str(CONTENT)
PEER.encode_special_tokens = True
PAIRS, BYTES = BytePairs(CONTENT, "bpe-400"), BytePairs(learn("bytes", []), "bytes")
ODD = "“q” 😀\x00 12\r\n\n<|endoftext|>\x03 e\u0301 \ufeff\ufffd"
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
@example(ODD)
@example(TEXT[:3000])
def test_any_text_survives_encoding_and_decoding(text):
    for tokenizer in (BYTES, PAIRS, Characters(text or "a")):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.end_of_document not in ids.tolist()
        assert tokenizer.characters[ids].sum() == len(text)
    assert PAIRS.encode(text).tolist() == PEER.encode(text, add_special_tokens=False).ids
    assert BYTES.encode(text).tolist() == list(text.encode())


def test_the_vocabulary_is_bytes_the_end_of_a_document_and_pairs_of_the_text():
    assert (len(BYTES.symbols), BYTES.end_of_document) == (257, 256)
    assert BYTES.decode(np.array([97, 256, 98])) == "a\n\nb"
    assert len(PAIRS.symbols) == 400
    assert {bytes([b]) for b in range(256)} <= set(PAIRS.tokens)
    assert PAIRS.tokens.count(b"") == 1
    assert all(token.decode() in TEXT for token in PAIRS.tokens if len(token) > 1)
    assert len(PAIRS.encode(TEXT)) < len(TEXT) / 1.5
    assert learn("bpe-400", [TEXT]) == CONTENT
    classes = [token_class(symbol) for symbol in PAIRS.symbols]
    assert classes.count("end of document") == 1 + 2  # and the bytes 3 and 4


@pytest.mark.parametrize("text", [TEXT * 3, ("a.\n\n  b\n" + "c d 1 2\n") * 10_000, "x" * 70_000])
def test_tokens_of_pieces_are_tokens_of_the_text(text):
    cut = [*pieces([text])]
    assert "".join(cut) == text
    assert [*pieces(text[i : i + 1000] for i in range(0, len(text), 1000))] == cut
    assert len(cut) == (1 if " " not in text else len(text) // 65_536 + 1)
    assert [*chain(*PAIRS.encode_all(cut))] == PAIRS.encode(text).tolist()


def test_truncation_and_padding_in_a_tokenizer_file_are_ignored():
    peer = Tokenizer.from_str(CONTENT)
    peer.enable_truncation(3)
    peer.enable_padding(length=50)
    texts = ["to be", TEXT[:500]]
    found = BytePairs(peer.to_str(), "own").encode_all(texts)
    assert found == [PAIRS.encode(text).tolist() for text in texts]


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe-300"])
def test_a_tokenizer_json_gives_the_ids_and_text_of_the_corpus(tokenizer, from_text, kept):
    corpus = from_text(TEXT, tokenizer=tokenizer)
    peer = Tokenizer.from_str(corpus.tokenizer.to_json())
    text = ODD.replace("<|endoftext|>", "")
    text = text if tokenizer != "characters" else corpus.decode(corpus.heldout[:200])
    ids = peer.encode(text).ids
    assert ids == corpus.encode(text).tolist()
    assert peer.decode(ids) == text
    assert peer.get_vocab_size() == corpus.vocab_size
    assert corpus.tokenizer.end_name == (None if tokenizer == "characters" else "<|endoftext|>")


@pytest.mark.parametrize(
    ("symbols", "name"),
    [
        (["a", "Z", "é", "ß", "世", " the"], "alphabetic"),
        (["0", "3", "½", " 12"], "numeric"),
        ([".", "'", "-", "&", " don't", "\ufffd"], "punctuation"),
        ([" ", "\n", "\t", "\n\n"], "whitespace"),
        (["\x03", "\x04"], "end of document"),
    ],
)
def test_every_symbol_has_one_class(symbols, name):
    assert name in TOKEN_CLASSES
    assert {token_class(symbol) for symbol in symbols} == {name}


# ---- a tokenizer of one's own


def test_tokenizer_file_gives_the_ids_of_the_learned_tokenizer(from_text, tmp_path, kept):
    (tmp_path / "t.json").write_text(CONTENT, "utf-8")
    corpus = from_text(TEXT, tokenizer=str(tmp_path / "t.json"))
    assert corpus.tokenizer.sha256 == PAIRS.sha256
    assert corpus.train.tolist() == PAIRS.encode(TEXT[:90_000]).tolist()


def changed(**fields):
    """The tokenizer with other fields; those of its model stand in `model`."""
    content = json.loads(CONTENT)
    model = content["model"] | fields.get("model", {})
    return json.dumps(content | fields | {"model": model})


WITHOUT_Z = {t: i for t, i in json.loads(CONTENT)["model"]["vocab"].items() if "Z" not in t}
ADDED = {"special": False, "single_word": False, "lstrip": False, "rstrip": False, "id": 400}
END = json.loads(CONTENT)["added_tokens"][0]
STRIPS = ADDED | {"content": "<mask>", "normalized": False, "lstrip": True}
PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("fields", "text", "symbol"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "a B", "B"),
        ({"normalizer": {"type": "NFC"}}, "cafe\u0301", "e"),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, "a ", " "),
        ({"pre_tokenizer": PREFIX}, "a", "a"),
        ({"model": {"vocab": WITHOUT_Z}}, "a Z", "Z"),
        ({"model": {"vocab": WITHOUT_Z, "unk_token": "a"}}, "a Z", "Z"),
        ({"added_tokens": [END, STRIPS]}, "a  <mask>", " "),
        ({"model": {"vocab": {}, "merges": []}}, "a", "a"),
    ],
)
def test_a_tokenizer_that_loses_text_is_refused_by_symbol(fields, text, symbol, from_text, kept):
    """In the corpus, and in a text that is asked later."""
    (kept.parents[2] / "t.json").write_text(changed(**fields), "utf-8")
    with pytest.raises(CorpusError, match=f"t.json loses text: {symbol!r} is lost in decoding; "):
        BytePairs(changed(**fields), "t.json").encode(text)
    with pytest.raises(CorpusError, match=r"^corpus.tokenizer: .*t.json loses text: "):
        from_text(text * 20, tokenizer=str(kept.parents[2] / "t.json"))


def test_added_tokens_decode_as_plain_text():
    added = ADDED | {"content": "café", "normalized": False}
    pairs = BytePairs(changed(added_tokens=[END, added]), "own")
    ids = pairs.encode("a café, naïve")
    assert 400 in ids
    assert pairs.decode(ids) == "a café, naïve"
    assert (pairs.symbols[400], pairs.characters[400]) == ("café", 4)


UNDECODED = json.dumps(json.loads(CONTENT) | {"decoder": None})
WORDS = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()
BACKTRACKING = Tokenizer.from_str(CONTENT)
BACKTRACKING.pre_tokenizer = pre_tokenizers.Split(Regex(r"(.|.)*[QZ]\d\d\d"), "isolated")


@pytest.mark.parametrize(
    ("content", "tokenizer", "message"),
    [
        ("{}", "t.json", "is not a tokenizer.json that can be used"),
        ("not JSON", "t.json", "is not a tokenizer.json that can be used"),
        ("\udcff", "t.json", "is not a tokenizer.json that can be used"),
        (WORDS, "t.json", "it does not work on bytes; give one like"),
        (UNDECODED, "t.json", "it does not work on bytes"),
        (CONTENT.replace("<|endoftext|>", "<|other|>"), "t.json", "no token ends a document"),
        (BACKTRACKING.to_str(), "t.json", "cannot encode this text: "),
        (
            "",
            "gone.json",
            "there is no file 'gone.json'; give characters, bytes, bpe-<size> or the path",
        ),
        ("", "bpe-90000", "bpe-90000 is too large: the training part gives"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_in_one_line(
    from_text, tmp_path, kept, monkeypatch, content, tokenizer, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    said = refused(from_text, TEXT, tokenizer=tokenizer)
    assert said.startswith("corpus.tokenizer: ")
    assert message in said


# ---- on the disk

DOCUMENTS = [f"Document {i}.\n" + f"Line {i % 7}, “{i}”\n" * (i % 5) for i in range(200)]


@pytest.fixture
def load(tmp_path, kept):
    """Write documents to a file and load it."""

    def load(documents=DOCUMENTS, **fields):
        path = tmp_path / "own.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), "utf-8")
        return load_corpus(CorpusConfig(source=str(path), **fields))

    return load


def ids_of(corpus, documents):
    """What the documents are in memory."""
    end = [corpus.tokenizer.end_of_document]
    return [*chain.from_iterable([*corpus.encode(d).tolist(), *end] for d in documents)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_files_hold_the_ids_of_the_documents_and_no_network_is_asked(load, tokenizer, monkeypatch):
    def no_network(*_):
        raise AssertionError("the network is asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(tokens, "_BATCH", 7)
    corpus = load(tokenizer=tokenizer)
    assert is_mapped(corpus.train)
    dev, test = DOCUMENTS[::19], DOCUMENTS[10::19]
    held_out = {*range(0, 200, 19), *range(10, 200, 19)}
    train = [text for i, text in enumerate(DOCUMENTS) if i not in held_out]
    assert corpus.train.tolist() == ids_of(corpus, train)
    assert corpus.dev.tolist() == ids_of(corpus, dev)
    assert corpus.test.tolist() == ids_of(corpus, test)
    streams = [torch.Generator().manual_seed(3) for _ in range(2)]
    for _ in range(5):
        one = sample_batch(corpus.train, corpus.ends["train"], 8, 16, streams[0])
        other = sample_batch(corpus.train.astype(np.int64), corpus.ends["train"], 8, 16, streams[1])
        assert all(x.equal(y) for x, y in zip(one, other, strict=True))
    half = load(tokenizer=tokenizer, fraction=0.5)
    assert (half.train == corpus.train[: len(corpus.train) // 2]).all()
    assert half.heldout.equal(corpus.heldout)


@pytest.mark.parametrize("most", [61, 64, 2**16])
def test_one_text_is_cut_to_the_same_whatever_the_tokenizer(most, from_text, kept):
    text, tokenizers = "".join(DOCUMENTS), ("characters", "bytes", "bpe-300")
    characters, in_bytes, pairs = (
        from_text(text, tokenizer=name, measured_characters=most) for name in tokenizers
    )
    for other in (in_bytes, pairs):
        assert other.training_text == characters.training_text
        assert other.sha256 == characters.sha256
        assert other.whole.n_characters == characters.whole.n_characters
        assert other.decode(other.beginning) == characters.decode(characters.beginning) == "\n"
        assert other.tokenizer.end_of_document not in other.train
    for part in ("dev", "test"):
        whole, same, shorter = (c.decode(getattr(c, part)) for c in (characters, in_bytes, pairs))
        assert len(whole) == most or most == 2**16
        assert whole == same
        assert whole.startswith(shorter)
        assert len(whole) - len(shorter) < max(map(len, pairs.symbols))


def test_no_more_of_a_long_text_is_tokenized_at_once_than_memory_holds(
    from_text, kept, monkeypatch
):
    """Each character takes 150 bytes while it is tokenized; a text is cut about every 65,536."""
    encode_all = BytePairs.encode_all
    sizes = []

    def counted(self, texts):
        sizes.append(sum(map(len, texts)))
        return encode_all(self, texts)

    monkeypatch.setattr(BytePairs, "encode_all", counted)
    text = "word " * 600_000
    from_text(text, tokenizer="bytes")
    assert sum(sizes) == len(text)
    assert max(sizes) < 2**20 + 2**17


def flip(path):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])  # of the same size


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip(folder / "train.bin"),
        lambda folder: (folder / "dev.bin").unlink(),
        lambda folder: (folder / "test.bin").write_bytes(b""),
        lambda folder: [os.truncate(folder / f"{part}.bin", 8) for part in ("train", "test")],
        lambda folder: (folder / "more.bin").write_bytes(b"more"),
        lambda folder: (folder / "index.json").unlink(),
        lambda folder: (folder / "index.json").write_text(""),
        lambda folder: (folder / "index.json").write_text(
            (folder / "index.json").read_text().replace('"n_characters": ', '"n_characters": 1')
        ),
    ],
)
def test_damaged_token_cache_is_rebuilt(load, kept, damage):
    before = load(tokenizer="bytes").train.tolist()
    (folder,) = (path for path in kept.iterdir() if path.is_dir())
    content = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    assert set(content) == {"train.bin", "dev.bin", "test.bin"}
    time.sleep(0.02)  # the clock of a file system may tick as seldom
    damage(folder)
    corpus = load(tokenizer="bytes")
    assert (corpus.train.tolist(), corpus.whole.n_characters) == (before, sum(map(len, DOCUMENTS)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} | content == {
        **content,
        "index.json": (folder / "index.json").read_bytes(),
    }


def test_token_cache_is_reused_until_its_text_changes(load, kept, tmp_path):
    def written():
        return {path: path.stat().st_mtime_ns for path in kept.rglob("train.bin")}

    first = load(tokenizer="bytes")
    before = written()
    os.utime(tmp_path / "own.jsonl", (1, 1))  # a time of change says nothing
    assert load(tokenizer="bytes").train.tolist() == first.train.tolist()
    assert (written(), len(before)) == (before, 1)
    load(tokenizer="bpe-300")
    changed = load([*DOCUMENTS[1:], "another"], tokenizer="bytes")
    assert changed.sha256 != first.sha256
    (tmp_path / "t.json").write_text(CONTENT, "utf-8")
    load(tokenizer=str(tmp_path / "t.json"))
    assert len(written()) == 4
    (tmp_path / "t.json").write_text(learn("bpe-401", [TEXT]), "utf-8")
    load(tokenizer=str(tmp_path / "t.json"))
    assert len(written()) == 5
    assert not [path for path in kept.iterdir() if path.name.startswith(".")]


def test_token_cache_of_another_text_is_not_used(load, kept):
    folders = []
    for documents in (DOCUMENTS, DOCUMENTS[::-1]):
        ids = load(documents, tokenizer="bytes").train.tolist()
        (folder,) = (path for path in kept.iterdir() if path.is_dir() and path not in folders)
        folders.append(folder)
    shutil.rmtree(folders[1])
    shutil.copytree(*folders)
    assert load(DOCUMENTS[::-1], tokenizer="bytes").train.tolist() == ids


def test_a_vocabulary_is_learned_from_a_sample_of_a_long_text(load, monkeypatch):
    """From so many characters, of all of it, and of both kinds that alternate; that is told."""
    documents = [f"{'ab'[i % 2]}{i:05} " * 10 for i in range(4000)]
    learned, learn = [], tokens.learn

    def recorded(tokenizer, train):
        learned[:] = train
        return learn(tokenizer, learned)

    monkeypatch.setattr(tokens, "learn", recorded)
    whole = load(documents, tokenizer="bpe-300")
    assert "learned" not in whole.held_out
    assert len(learned) == 4000 - 421
    monkeypatch.setattr(tokens, "MAX_LEARNED", sum(map(len, documents)) // 4)
    documents[-1] += "."  # another text
    assert load(documents, tokenizer="bpe-300").held_out.endswith(
        "; bpe-300 was learned from 25.0% of the rest, evenly spread"
    )
    numbers = [int(text[1:6]) for text in learned]
    assert len(numbers) == pytest.approx(3579 / 4, rel=0.01)
    assert sum(text.startswith("a") for text in learned) == pytest.approx(3579 / 8, rel=0.05)
    for quarter in range(4):
        within = [n for n in numbers if n // 1000 == quarter]
        assert len(within) == pytest.approx(3579 / 16, rel=0.05)


LARGE = """
import sys, lib.data.cache as cache
from pathlib import Path
from lib.data.text import load_corpus
from lib.config.schema import CorpusConfig
cache.output_root = lambda: Path(sys.argv[2])
corpus = load_corpus(CorpusConfig(source=sys.argv[1], tokenizer="bytes"))
(memory,) = (line for line in open("/proc/self/status") if line.startswith("RssAnon"))
print(len(corpus.train), int(memory.split()[1]) // 1024)
"""


@pytest.mark.long
def test_a_large_corpus_takes_little_memory(tmp_path):
    source = tmp_path / "large.jsonl"
    line = json.dumps({"text": "to be or not to be, that is the question " * 100}) + "\n"
    source.write_text(line * 50_000)
    command = [sys.executable, "-c", LARGE, source, tmp_path / "kept"]
    n_tokens, megabytes = map(int, subprocess.check_output(command, cwd=ROOT, text=True).split())
    assert n_tokens > 180e6
    assert megabytes < 1000
