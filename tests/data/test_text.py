"""A corpus is the right text, split as described and drawn from fairly; what is none is refused in
one line."""

import gzip
import hashlib
import json
import os
import sys
import threading
import time
import tracemalloc
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lib.config.schema import CorpusConfig
from lib.data import tokens
from lib.data.suite import build_suite
from lib.data.text import KNOWN, CorpusError, load_corpus, sample_batch
from tests.conftest import refused
from tests.data.conftest import is_mapped, nine_to_one

# ---- what is known by name


@pytest.mark.parametrize(
    ("source", "sha256", "lengths", "drawn"),
    [
        (
            "tinyshakespeare",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            (1_003_854, 55_828, 55_712),
            "20fb7e2477cd23a959fa2c0999edec34ac365022b13bc15d8da61998ba3f1803",
        ),
        (
            "synthetic",
            "bc3e66b4fb25b09f41c78ae498e032fc39865a15dfd3347e6fe1485652ab12a3",
            (990_000, 55_305, 54_695),
            "a1e67a81cacd299a6e2ff00788055ae9f93eb1a3005c5937b0b901cd94c143ec",
        ),
    ],
)
def test_a_known_text_is_drawn_as_in_published_runs(shakespeare, source, sha256, lengths, drawn):
    """Golden: SHA-256 of the first ten batches, 16 × 128, of a stream seeded with 0."""
    corpus = load_corpus(CorpusConfig(source=source))
    assert (corpus.name, corpus.sha256) == (source, sha256)
    assert (len(corpus.train), len(corpus.dev), len(corpus.test)) == lengths
    stream, batches = torch.Generator().manual_seed(0), hashlib.sha256()
    for _ in range(10):
        for part in sample_batch(corpus.train, corpus.ends["train"], 16, 128, stream):
            batches.update(part.numpy().tobytes())
    assert batches.hexdigest() == drawn


def test_a_fraction_shortens_the_training_part_alone():
    whole, part = (load_corpus(CorpusConfig(source="synthetic", fraction=f)) for f in (1.0, 0.05))
    assert (part.train == whole.train[:49_500]).all()
    assert (part.symbols, part.training_text) == (whole.symbols, whole.training_text)
    assert part.heldout.equal(whole.heldout)
    assert len(part.dev) == len(whole.dev)


BODY = b"to be or not to be\n" * 20
LITTLE = ("little.txt", hashlib.sha256(BODY).hexdigest(), "")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder that downloads go to, still missing; it is the one place where they are sought."""
    for module in ("lib.data.text", "lib.config.paths"):
        monkeypatch.setattr(f"{module}.output_root", lambda: tmp_path)
    monkeypatch.setattr("lib.data.text.corpus_places", lambda name: [tmp_path / "data" / name])
    monkeypatch.setitem(KNOWN, "little", LITTLE)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


@pytest.fixture
def served(data, monkeypatch):
    """A folder that is served on the loopback; its little.txt is the known text's."""
    folder = data.parent / "served"
    folder.mkdir()
    with HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}).start()
        url = f"http://127.0.0.1:{http.server_port}/little.txt"
        monkeypatch.setitem(KNOWN, "little", (*LITTLE[:2], url))
        yield folder
        http.shutdown()


@pytest.mark.parametrize("earlier", [None, BODY.upper()])
def test_a_missing_corpus_is_downloaded_once_and_verified(data, served, earlier):
    if earlier:  # another text has its name
        data.mkdir()
        (data / "little.txt").write_bytes(earlier)
    (served / "little.txt").write_bytes(BODY)
    first = load_corpus(CorpusConfig(source="little"))
    (served / "little.txt").unlink()
    assert load_corpus(CorpusConfig(source="little")).sha256 == first.sha256 == LITTLE[1]
    assert {path.name: path.read_bytes() for path in data.iterdir()} == {"little.txt": BODY}


@pytest.mark.parametrize("content", [BODY.upper(), BODY[:100], None])
def test_a_wrong_download_leaves_nothing_behind_and_says_what_to_do(data, served, content):
    if content:
        (served / "little.txt").write_bytes(content)
    said = rf"^little: no file with SHA-256 .* data/little.txt \(from {KNOWN['little'][2]}\); "
    with pytest.raises(CorpusError, match=said + "attach a Kaggle .*; or set corpus.source"):
        load_corpus(CorpusConfig(source="little"))
    assert list(data.iterdir()) == []


# ---- a text of one's own


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        ("to be or not to be\n", "\n"),
        ("to be or not to be ", "t"),
        ("Grüße, 世界! 🌍\n", "\n"),
        ("a\0b\u2028\x85", "a"),
        ("👩‍👩‍👧‍👦 e\u0301", "👩"),
    ],
)
def test_any_text_is_a_corpus_with_a_vocabulary_and_hash_of_its_own(from_text, line, beginning):
    text = line * 50
    corpus = from_text(text)
    assert (corpus.name, corpus.whole.n_characters) == ("own.txt", len(text))
    assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert list(corpus.symbols) == sorted(set(line))
    assert corpus.decode(corpus.train) + corpus.decode(corpus.heldout) == text
    assert corpus.beginning.shape == (1,)
    assert corpus.decode(corpus.beginning) == beginning


@pytest.mark.parametrize(("source", "tokenizer"), [("d/0.md", "characters"), ("d", "bytes")])
def test_line_ends_and_byte_order_marks_change_nothing(tokenizer, source, tmp_path, kept):
    """Of one text, and of a folder of texts."""
    whole = load_corpus(CorpusConfig(source="synthetic")).training_text[:60_000]
    parts, found = whole.split("\n\n"), []
    texts = {f"{i}.txt": "\n\n".join(parts[i::11]) for i in range(11)}
    (tmp_path / "d").mkdir()
    for mark, end in [("", "\n"), ("", "\r\n"), ("", "\r"), ("\ufeff", "\n"), ("\ufeff", "\r\n")]:
        for name, text in (texts if source == "d" else {"0.md": whole}).items():
            (tmp_path / "d" / name).write_bytes((mark + text.replace("\n", end)).encode())
        corpus = load_corpus(CorpusConfig(source=str(tmp_path / source), tokenizer=tokenizer))
        suite = build_suite(corpus, 60, 64)
        assert suite.tasks
        found.append((corpus.train.tolist(), corpus.heldout.tolist(), corpus.sha256, suite.hash))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("base", ["the working folder", "the repository"])
def test_relative_corpus_path_is_found_here_or_in_the_repository(tmp_path, monkeypatch, base):
    for folder in ("the working folder", "the repository"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "the working folder")
    monkeypatch.setattr("lib.config.paths.CHECKOUT", tmp_path / "the repository")
    (tmp_path / base / "own.txt").write_text("to be\n" * 20, "utf-8")
    assert load_corpus(CorpusConfig(source="own.txt")).whole.n_characters == 120


@pytest.mark.parametrize(
    ("heldout", "dev_length"),
    [
        pytest.param("a" * 14 + "\n\n" + "b" * 3 + "\n" + "a" * 20, 16, id="blank line"),
        pytest.param("a" * 15 + "\n\n\n" + "b" * 22, 18, id="two blank lines"),
        pytest.param("a" * 13 + "\n\n" + "b" * 7 + "\n\n" + "a" * 16, 24, id="nearer blank line"),
        pytest.param("a" * 17 + "\n" + "b" * 22, 18, id="line end"),
        pytest.param("a" * 2 + "\n\n" + "b" * 17 + "\n" + "a" * 18, 22, id="blank line too early"),
        pytest.param("a" * 11 + "\n\n" + "b" * 7 + "\n" + "a" * 19, 13, id="early blank line"),
        pytest.param("a" * 40, 20, id="one line"),
        pytest.param("a" * 3 + "\n" + "b" * 36, 20, id="line end too early"),
    ],
)
def test_dev_ends_at_a_blank_line_else_a_line_end_else_the_middle(from_text, heldout, dev_length):
    assert len(heldout) == 40
    corpus = from_text(nine_to_one("ab", heldout))
    assert corpus.decode(corpus.dev) == heldout[:dev_length]
    assert corpus.decode(corpus.test) == heldout[dev_length:]


@pytest.mark.parametrize(
    ("heldout", "fraction", "part", "length"),
    [
        pytest.param("a" * 17 + "\n" + "a" * 22, 1.0, "dev", 18, id="dev"),
        pytest.param("a" * 22 + "\n" + "a" * 17, 1.0, "test", 17, id="test"),
        pytest.param("a" * 40, 0.01, "train", 3, id="train"),
    ],
)
def test_every_part_must_hold_a_window_and_its_target(from_text, heldout, fraction, part, length):
    corpus = from_text(nine_to_one("a", heldout), fraction=fraction)
    corpus.require_length(length - 1)
    needs = f"the {part} part has {length} characters and model.block_size {length} needs"
    with pytest.raises(CorpusError, match=f"^own.txt: too short: {needs} {length + 1}; "):
        corpus.require_length(length)


# ---- a long text: it is read in blocks, and only once


SYMBOLS = ["a", "\n", "é", "世", "🌍", "\r\n", "\r", "\ufeff"]  # of 1 to 4 bytes


@pytest.mark.parametrize("size", [1, 3])
def test_reading_in_blocks_of_any_size_changes_nothing(size, from_text, monkeypatch, kept):
    """Whatever symbols meet at the border of two blocks, or of two parts."""
    monkeypatch.setattr("lib.data.text._BLOCK", size)
    monkeypatch.setattr("lib.data.tokens._SLICE", size)
    monkeypatch.setattr("lib.data.tokens._BATCH", size)
    for one, other in product(SYMBOLS, SYMBOLS):
        written = "".join(SYMBOLS) * 4 + one + other + "a"
        text = written.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
        cut = int(0.9 * len(text))
        symbols = sorted(set(text[:cut]))
        corpus = from_text(written)
        assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert [*corpus.symbols] == symbols
        assert corpus.train.tolist() == [symbols.index(symbol) for symbol in text[:cut]]
        assert corpus.heldout.tolist() == [symbols.index(symbol) for symbol in text[cut:]]
        assert corpus.whole.n_characters == len(text)


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe-260"])
def test_files_of_a_folder_are_read_alike_in_blocks_of_any_size(tokenizer, tmp_path, monkeypatch):
    """Those that are cut and those that are held out whole, with their ends."""
    read = []
    (tmp_path / "d").mkdir()
    for i in range(14):
        text = "".join(SYMBOLS) * (2 + 60 * (i % 3)) + f"{'ab ' * i}\r\n\r\n" * (i % 5)
        (tmp_path / "d" / f"{i:02}.txt").write_bytes(text.encode())
    for size in (3, 5, 2**20):
        monkeypatch.setattr("lib.data.text._BLOCK", size)
        monkeypatch.setattr("lib.data.tokens._BATCH", size)
        monkeypatch.setattr("lib.data.cache.output_root", lambda size=size: tmp_path / f"{size}")
        corpus = load_corpus(CorpusConfig(source=str(tmp_path / "d"), tokenizer=tokenizer))
        ends = {part: corpus.ends[part].tolist() for part in corpus.ends}
        read.append((corpus.train.tolist(), corpus.heldout.tolist(), ends, corpus.sha256))
    assert read[0] == read[1] == read[2]


def test_a_symbol_that_is_not_measured_may_be_unseen(from_text):
    text = nine_to_one("ab", "a" * 20 + "\n" + "a" * 7 + "ξ" + "b" * 11)
    corpus = from_text(text, measured_characters=7)
    assert (corpus.symbols, corpus.whole.n_characters) == ("\nab", 400)
    assert (corpus.decode(corpus.dev), corpus.decode(corpus.test)) == ("a" * 7, "a" * 7)
    assert "symbol 'ξ' was unseen" in refused(from_text, text, measured_characters=8)


@pytest.fixture
def peak():
    """The most memory that Python and numpy take for a call, in bytes."""
    tracemalloc.start()

    def peak(function, *arguments):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        found = function(*arguments)
        return found, tracemalloc.get_traced_memory()[1] - before

    yield peak
    tracemalloc.stop()


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_memory_does_not_grow_with_a_text(tokenizer, tmp_path, kept, monkeypatch, peak):
    """When a text is first read, its held-out tenth is held, and later what is measured. Beside
    that, tables of symbols."""
    for name in ("text._BLOCK", "tokens._SLICE", "tokens._BATCH"):
        monkeypatch.setattr(f"lib.data.{name}", 2**16)
    (tmp_path / "own.txt").write_text("to be or not to be\n\n" * 2**20, "utf-8")
    config = CorpusConfig(source=str(tmp_path / "own.txt"), tokenizer=tokenizer)
    for _ in range(2):
        corpus, most = peak(load_corpus, config)
        assert len(corpus.train) == 18 * 2**20
        assert is_mapped(corpus.train)
        assert most < 15 * 2**20


def test_a_text_is_hashed_once_while_it_stays_as_it_is(tmp_path, kept, monkeypatch):
    """Not by its size and the time of writing alone, which can be set back."""
    path = tmp_path / "own.txt"
    path.write_text("to be\n" * 20, "utf-8")
    now = time.time_ns
    monkeypatch.setattr("lib.data.text.time.time_ns", lambda: now() + 10**10)
    opened, open_ = [], Path.open
    monkeypatch.setattr(
        Path, "open", lambda own, *a, **k: opened.append(own) or open_(own, *a, **k)
    )
    found = []
    for text in ("to be\n", "to be\n", "or be\n"):
        if found and text != "to be\n":
            written = path.stat()
            path.write_text(text * 20, "utf-8")
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
        opened.clear()
        corpus = load_corpus(CorpusConfig(source=str(path)))
        assert corpus.decode(corpus.train) == text * 18
        found.append(path in opened)
    assert found == [True, False, True]


@pytest.mark.parametrize("name", ["own.txt", "own.jsonl"])
def test_a_text_that_changes_while_it_is_read_is_refused_and_not_kept(
    name, tmp_path, kept, monkeypatch
):
    path = tmp_path / name
    path.write_text((json.dumps({"text": "to be"}) + "\n") * 20, "utf-8")
    learn = tokens.learn

    def learn_slowly(*arguments):
        path.write_text((json.dumps({"text": "or be"}) + "\n") * 20, "utf-8")
        return learn(*arguments)

    monkeypatch.setattr(tokens, "learn", learn_slowly)
    config = CorpusConfig(source=str(path), tokenizer="bytes")
    assert refused(load_corpus, config) == f"{name}: it changed while it was read; start again"
    corpus = load_corpus(config)
    assert "to be" not in corpus.decode(corpus.train)


# ---- documents

TEXTS = ["to be", "or not\nto be", "“q” 😀\x00 12\r\n", "", *(f"number {i}" for i in range(20))]
LINES = "".join(json.dumps({"text": text, "id": 1}) + "\n\n" for text in TEXTS).encode()


def parquet(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.jsonl", LINES),
        ("d.ndjson", b"\xef\xbb\xbf" + LINES),
        ("d.JSONL", LINES.replace(b"\n", b"\r\n")),
        ("d.parquet", parquet(id=[*range(24)], text=TEXTS)),
        ("large.parquet", parquet(text=pa.array(TEXTS, pa.large_string()))),
    ],
)
def test_documents_are_lines_or_rows_and_each_ends(name, content, folder, tmp_path, kept):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(content)
    path = tmp_path / "d" if folder else tmp_path / "d" / name
    corpus = load_corpus(CorpusConfig(source=str(path), tokenizer="bytes"))
    full = [*filter(None, (text.replace("\r\n", "\n") for text in TEXTS))]  # 23
    held_out = [full[i] for i in (0, 19, 10)]
    assert corpus.whole.has_documents
    train = "".join(f"{text}\n\n" for text in full if text not in held_out)
    assert corpus.decode(corpus.train) == train
    assert corpus.decode(corpus.heldout) == "".join(f"{text}\n\n" for text in held_out)
    assert corpus.whole.n_characters == sum(map(len, full))
    assert corpus.beginning.tolist() == [corpus.tokenizer.end_of_document]


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_texts_of_a_folder_are_documents_in_order_of_their_names(tmp_path, kept, tokenizer):
    """In characters they are one text, with blank lines between them."""
    for number, name in enumerate(["a/z.txt", *(f"b{i}.txt" for i in range(9)), "c/a.txt"]):
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "d" / name).write_text(f"document {number % 10} of 10")
    (tmp_path / "d" / ".git").mkdir()
    (tmp_path / "d" / ".git" / "x.txt").write_text("no")
    corpus = load_corpus(CorpusConfig(source=str(tmp_path / "d"), tokenizer=tokenizer))
    trained = "".join(f"document {number} of 10\n\n" for number in range(1, 10))
    assert corpus.decode(corpus.train) == trained
    for part in (corpus.dev, corpus.test):
        assert corpus.decode(part) == "document 0 of 10\n\n"


@pytest.mark.skipif(sys.platform == "darwin", reason="it has no such names")
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_a_file_may_have_a_name_of_another_encoding(tmp_path, kept, tokenizer):
    (tmp_path / "d").mkdir()
    for i in range(12):
        (tmp_path / "d" / os.fsdecode(b"\xff%d.txt" % i)).write_text(
            f"text {i} 0123456789", "utf-8"
        )
    corpus = load_corpus(CorpusConfig(source=str(tmp_path / "d"), tokenizer=tokenizer))
    assert corpus.decode(corpus.dev) == "text 0 0123456789\n\n"


NAMES = ["a[12]", "a[1", "a*", "a?", "a::b", "zip::a", "{a}", "a%20b", "ä \\ b", "s3:a"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_a_file_gives_its_own_documents_whatever_it_is_called(name, kind, tmp_path, kept):
    """It and the folder above it, beside others that its name would match as a pattern."""
    for folder, file in ((name, name), (name, "a1"), ("a1", name), ("a1", "a1"), ("a2", "a2")):
        texts = [f"{folder} {file} 0123456789 {i}" for i in range(12)]
        path = tmp_path / folder / f"{file}.{kind}"
        path.parent.mkdir(exist_ok=True)
        if kind == "txt":
            path.with_suffix("").mkdir()
            for i, text in enumerate(texts):
                (path.with_suffix("") / f"{i:02} {name}.txt").write_text(text, "utf-8")
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        else:
            path.write_bytes(parquet(text=texts))
    source = tmp_path / name / f"{name}.{kind}"
    source = source.with_suffix("") if kind == "txt" else source
    for tokenizer in ("bytes", "characters"):
        corpus = load_corpus(CorpusConfig(source=str(source), tokenizer=tokenizer))
        read = corpus.decode(corpus.train) + corpus.decode(corpus.heldout)
        assert sorted(read.split("\n\n")[:-1]) == sorted(
            f"{name} {name} 0123456789 {i}" for i in range(12)
        )


# ---- what is no corpus

MANY = b'{"text": "a"}\n' * 3
BAD = [
    ("own.txt", "é".encode() * 19, "own.txt: empty or too short: 19 characters; give 20"),
    ("own.txt", b"a" * 2000 + b"\xff" + b"a" * 99, "own.txt: not UTF-8 at byte 2,000; unpack"),
    (
        "own.txt",
        "é".encode() * 2**20 + b"a\xe4\xb8",
        "own.txt: not UTF-8 at byte 2,097,153; unpack",
    ),
    ("own.txt.gz", gzip.compress(b"to be " * 99, mtime=0), "gz: not UTF-8 at byte 1; unpack it"),
    ("own.txt", ("a" * 95 + "zaéaa").encode(), "corpus.tokenizer: symbol 'z', 'é' was unseen"),
    ("d.parquet", LINES, "d.parquet: cannot be read as documents: Parquet magic bytes not found"),
    (
        "d.parquet",
        parquet(content=["a"], id=[1]),
        'd.parquet: cannot be read as documents: \'Field "text" does not exist',
    ),
    (
        "d.jsonl",
        MANY + b'{"content": "a"}',
        "a document has no 'text', or its 'text' is not a string",
    ),
    ("d.jsonl", MANY + b'{"text": 1}', "a document has no 'text', or its 'text' is not a string"),
    ("d.jsonl", MANY + b"[1]", "a document has no 'text', or its 'text' is not a string"),
    ("d.jsonl", b'{"text": "\\ud800"}', "surrogates not allowed"),
    ("d.jsonl", b"", "d.jsonl: too few documents: 0; give 11 or more"),
    (
        "d.jsonl",
        MANY + b"[1",
        "d.jsonl: cannot be read as documents: line 4 is not JSON: Expecting",
    ),
    ("d/a.txt", b"\xff", "d/a.txt: not UTF-8 at byte 0; unpack it, or convert it by iconv"),
    ("d.jsonl", MANY, "d.jsonl: too few documents: 3; give 11 or more"),
    ("d/a.txt d/b.jsonl", MANY, "folder 'd' must hold files of one kind: .txt, .jsonl, .ndjson"),
    ("d/b.pdf", MANY, "corpus.source: folder 'd' must hold files of one kind: .txt, .jsonl, .ndj"),
    ("d/a.txt d/away", b"a", "it holds .txt, away"),
    ("gone.txt/", b"", "gone.txt' is neither a text file, nor a folder, nor a known corpus (tiny"),
    ("pipe", b"", "pipe' is neither a text file, nor a folder, nor a known corpus (tinyshakesp"),
    ("x" * 300, b"", f"{'x' * 300}' "),  # too long for a name, which is no file for Python 3.14
]


@pytest.mark.parametrize(("names", "content", "message"), BAD)
def test_bad_corpus_is_refused_in_one_line(names, content, message, tmp_path, kept):
    for name in names.split():
        if name == "d/away":
            (tmp_path / name).symlink_to(tmp_path)
        elif name == "pipe":
            os.mkfifo(tmp_path / name)
        elif not name.endswith("/") and len(name) < 300:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
    source = tmp_path / (names if "/" not in names or names.endswith("/") else "d")
    tokenizer = "characters" if names.startswith("own") else "bytes"
    corpus = CorpusConfig(source=str(source), tokenizer=tokenizer)
    assert message in refused(load_corpus, corpus)


# ---- drawing batches


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_batch_holds_windows_and_the_characters_that_follow():
    ids = torch.arange(100).numpy()
    inputs, targets = sample_batch(ids, np.array([len(ids)]), 64, 8, seeded(0))
    assert inputs.shape == targets.shape == (64, 8)
    assert inputs.equal(inputs[:, :1] + torch.arange(8))
    assert targets.equal(inputs + 1)
    assert targets.max() <= 99
