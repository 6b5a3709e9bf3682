"""A corpus on the disk holds the ids of its documents, once, however often it was interrupted."""

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.data import tokens
from lib.data.sources import Documents, OneText, find_source
from lib.data.text import Corpus, CorpusError, load_corpus, sample_batch
from lib.data.tokens import Shards
from lib.study.io import ROOT
from lib.study.schema import CorpusConfig

Load = Callable[..., Corpus]
DOCUMENTS = [f"Document {i}.\n" + f"Line {i % 7}, “{i}”\n" * (i % 5) for i in range(200)]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tokens are kept."""
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "kept")
    return tmp_path / "kept" / "data" / "tokens"


@pytest.fixture
def load(tmp_path: Path, kept: Path) -> Load:
    """Write documents to a file and load it."""

    def load(documents: list[str] = DOCUMENTS, **fields: object) -> Corpus:
        path = tmp_path / "own.jsonl"
        content = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        if not path.exists() or path.read_text("utf-8") != content:
            path.write_text(content, "utf-8")
        return load_corpus(CorpusConfig(source=str(path), **fields))

    return load


def ids_of(corpus: Corpus, documents: list[str]) -> list[int]:
    """What the documents are in memory."""
    end = [corpus.tokenizer.end_of_document]
    return [*chain.from_iterable([*corpus.encode(d).tolist(), *end] for d in documents)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300", "characters"])
def test_shards_are_the_documents_in_memory(
    load: Load, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.MAX_SHARD", 500)  # many small ones
    corpus = load(tokenizer=tokenizer)
    assert len(corpus.metadata["shards"]) > 10
    assert corpus.train[:].tolist() == ids_of(corpus, DOCUMENTS[:180])
    assert corpus.dev.tolist() == ids_of(corpus, DOCUMENTS[180:190])
    assert corpus.test.tolist() == ids_of(corpus, DOCUMENTS[190:])
    assert corpus.decode(corpus.test) == "".join(d + "\n\n" for d in DOCUMENTS[190:])
    assert corpus.metadata["documents"] == {"train": 180, "dev": 10, "test": 10}
    assert corpus.n_characters == sum(map(len, DOCUMENTS))
    assert corpus.beginning.tolist() == [corpus.tokenizer.end_of_document]


def test_a_symbol_that_characters_lack_is_named(load: Load) -> None:
    with pytest.raises(CorpusError, match=r"^own.jsonl: symbol 'é' was unseen"):
        load([*DOCUMENTS, "é"])


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_one_text_is_split_where_characters_split_it(
    tokenizer: str, tmp_path: Path, kept: Path
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("".join(DOCUMENTS), "utf-8")
    of = {t: load_corpus(CorpusConfig(source=str(path), tokenizer=t))
          for t in ("characters", tokenizer)}  # fmt: skip
    one, other = of.values()
    for part in ("train", "dev", "test", "heldout"):
        assert one.decode(getattr(one, part)[:]) == other.decode(getattr(other, part)[:])
    assert one.sha256 == other.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (one.text, one.training_text) == (other.text, other.training_text)
    assert one.decode(one.beginning) == other.decode(other.beginning) == "\n"
    assert other.tokenizer.end_of_document not in other.train[:]


@pytest.mark.slow
def test_a_long_text_is_read_in_pieces(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("".join(DOCUMENTS) * 400, "utf-8")
    monkeypatch.setattr("lib.data.sources.MAX_ENCODED", 10)
    corpus = load_corpus(CorpusConfig(source=str(path), tokenizer="bytes"))
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert corpus.text.encode() == path.read_bytes()
    assert len(corpus.train) / path.stat().st_size == pytest.approx(0.9, abs=0.05)
    assert 256 not in corpus.train[:]


def test_a_long_text_of_characters_may_be_longer_than_one_that_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("x" * 50, "utf-8")
    monkeypatch.setattr("lib.data.sources.MAX_ENCODED", 40)
    monkeypatch.setattr("lib.data.sources.MAX_BYTES", 50)
    kinds = {}
    for tokenizer in ("characters", "bytes"):
        kinds[tokenizer] = type(find_source(CorpusConfig(source=str(path), tokenizer=tokenizer)))
    assert kinds == {"characters": OneText, "bytes": Documents}


@pytest.mark.slow
def test_a_text_without_words_is_a_corpus_too(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("é" * 2**24, "utf-8")
    monkeypatch.setattr("lib.data.sources.MAX_ENCODED", 10)
    corpus = load_corpus(CorpusConfig(source=str(path), tokenizer="bytes"))
    assert sum(s["tokens"] for s in corpus.metadata["shards"]) == path.stat().st_size


def test_a_window_is_read_from_wherever_it_lies(tmp_path: Path) -> None:
    ids, files = np.arange(1000), []
    for number, part in enumerate(np.split(ids, [1, 400, 401, 900])):
        part.astype("<u2").tofile(tmp_path / f"{number}.bin")
        files.append((tmp_path / f"{number}.bin", len(part)))
    shards, memory = Shards(files, "<u2"), torch.arange(1000)
    for start, stop in [(0, 1000), (0, 1), (399, 402), (5, 5), (990, 2000), (-10, 1000)]:
        assert shards[start:stop].equal(memory[start:stop])
    assert [*shards] == memory.tolist()
    assert shards.cut(450)[440:460].equal(memory[440:450])
    streams = [torch.Generator().manual_seed(3) for _ in range(2)]
    for _ in range(5):
        drawn = zip(
            sample_batch(shards, 8, 16, streams[0]),
            sample_batch(memory, 8, 16, streams[1]),
            strict=True,
        )
        assert all(one.equal(other) for one, other in drawn)


def test_a_fraction_is_the_beginning_of_the_training_part(load: Load) -> None:
    whole, half = load(tokenizer="bpe-300"), load(tokenizer="bpe-300", fraction=0.5)
    assert half.train[:].equal(whole.train[: len(whole.train) // 2])
    assert half.tokenizer.sha256 == whole.tokenizer.sha256
    assert half.heldout.equal(whole.heldout)


@pytest.mark.parametrize("most", [61, 64])
def test_the_heldout_part_is_cut_to_the_same_text_whatever_the_tokenizer(
    most: int, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("".join(DOCUMENTS), "utf-8")
    monkeypatch.setattr("lib.data.text.MAX_MEASURED", most)
    characters, in_bytes, pairs = (
        load_corpus(CorpusConfig(source=str(path), tokenizer=tokenizer))
        for tokenizer in ("characters", "bytes", "bpe-300")
    )
    for part in ("dev", "test"):
        of = [corpus.decode(getattr(corpus, part)) for corpus in (characters, in_bytes, pairs)]
        assert len(of[0]) == most
        assert of[1] == of[0]
        assert of[0].startswith(of[2])
        assert most - len(of[2]) < max(map(len, pairs.symbols))


# ---- duplicates


def test_duplicates_are_counted_and_removed_where_asked(load: Load) -> None:
    documents = ["a", "b", "a", "a", "c", "B", "b", *"defghijklmnopqrstuvwx", "a", "y"]
    train, heldout = documents[:27], documents[27:]
    counted, removed = (load(documents, tokenizer="bytes", deduplicate=x) for x in (False, True))
    for corpus in (counted, removed):
        assert corpus.metadata["duplicates"] == 3
        assert corpus.metadata["heldout_in_train"] == sum(each in train for each in heldout) == 1
    assert counted.train[:].tolist() == ids_of(counted, train)
    assert removed.train[:].tolist() == ids_of(removed, list(dict.fromkeys(train)))
    assert removed.heldout.equal(counted.heldout)
    assert (removed.metadata["removed"], counted.metadata["removed"]) == (True, False)
    assert removed.sha256 == counted.sha256


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_one_text_has_no_duplicates_to_remove(tmp_path: Path, kept: Path, tokenizer: str) -> None:
    (tmp_path / "own.txt").write_text("to be\n" * 50)
    config = CorpusConfig(source=str(tmp_path / "own.txt"), tokenizer=tokenizer, deduplicate=True)
    with pytest.raises(CorpusError, match=r"^corpus.deduplicate: own.txt is one text, without doc"):
        load_corpus(config)


# ---- written once


def test_what_is_written_is_found_again_until_something_changes(
    load: Load, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    write = tokens._write
    monkeypatch.setattr(
        "lib.data.tokens._write", lambda *given: written.append(given) or write(*given)
    )
    first, again = load(tokenizer="bytes"), load(tokenizer="bytes")
    assert first.train[:].equal(again.train[:])
    assert len(written) == 1
    load(tokenizer="bpe-300")
    assert len(written) == 2
    changed = load([*DOCUMENTS[1:], "another"], tokenizer="bytes")
    assert len(written) == 3
    assert changed.sha256 != first.sha256
    for shard in kept.glob("*/000001-*.bin"):
        shard.write_bytes(shard.read_bytes()[:-1])
    load([*DOCUMENTS[1:], "another"], tokenizer="bytes")
    load([*DOCUMENTS[1:], "another"], tokenizer="bpe-300")
    assert len(written) == 5


@pytest.mark.parametrize("removed", [False, True])
def test_a_damaged_shard_is_named_and_made_anew(
    removed: bool, load: Load, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load(tokenizer="bytes").train[:]
    (folder,) = (path for path in kept.iterdir() if path.is_dir())
    (path,) = folder.glob("000000-*.bin")
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])  # of the same size
    if removed:
        path.unlink()
    assert load(tokenizer="bytes").train[:].equal(before)
    assert path.read_bytes() == content
    assert f"{path.name} of {folder.name} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: "{",
        lambda text: "[1]",
        lambda text: "[" * 200_000,
        lambda text: text.replace('"part": "dev"', '"part": "train"', 1),
    ],
)
def test_an_account_that_is_not_as_it_was_written_is_written_anew(
    load: Load, kept: Path, edit: Callable[[str], str]
) -> None:
    before = load(tokenizer="bytes").train[:]
    (index,) = kept.glob("*/index.json")
    account = index.read_text()
    index.write_text(edit(account))
    assert load(tokenizer="bytes").train[:].equal(before)
    assert index.read_text() == account


def test_only_what_has_changed_since_it_was_hashed_is_hashed_again(
    load: Load, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(tokenizer="bytes").train[:]
    read: list[str] = []
    hash_of = tokens._hash_of
    monkeypatch.setattr(
        tokens, "_hash_of", lambda path: read.append(path.name[:6]) or hash_of(path)
    )

    def hashed() -> list[str]:
        read.clear()
        assert load(tokenizer="bytes").train[:].equal(before)
        return sorted(read)

    assert hashed() == ["000000", "000001", "000002"]  # nobody had checked what was written
    assert hashed() == []
    (shard,) = kept.glob("*/000000-*.bin")
    status = shard.stat()
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert hashed() == ["000000"]
    (shard.parent / "checked.json").write_text("[]")
    assert len(hashed()) == 3


KILLED = """
import os, signal, sys, lib.data.tokens as t
from pathlib import Path
from lib.data.text import load_corpus
from lib.study.schema import CorpusConfig
source, kept = sys.argv[1:]
t.output_root = lambda: Path(kept)
t.MAX_SHARD = 500
write, left = t.write_bytes, [None] * 15
t.write_bytes = lambda *of: write(*of) if left and not left.pop() else os.kill(os.getpid(), 9)
load_corpus(CorpusConfig(source=source, tokenizer="bpe-300"))
"""


@pytest.mark.slow
def test_a_writing_that_is_killed_is_taken_up_again(
    load: Load, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_SHARD", 500)
    written: list[Path] = []
    write = tokens.write_bytes
    monkeypatch.setattr(tokens, "write_bytes", lambda *of: written.append(of[0]) or write(*of))
    undisturbed = load(tokenizer="bpe-300")
    total = len(written)
    killed = [sys.executable, "-c", KILLED, tmp_path / "own.jsonl", tmp_path / "killed"]
    assert subprocess.run(killed, cwd=ROOT).returncode == -9
    written.clear()
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "killed")
    resumed = load(tokenizer="bpe-300")
    assert resumed.metadata == undisturbed.metadata
    assert len(written) == total - 15 > 0


def test_more_shards_are_read_than_a_process_may_open_files(tmp_path: Path) -> None:
    files = []
    for number in range(50):
        np.array([number], "<u2").tofile(tmp_path / f"{number}.bin")
        files.append((tmp_path / f"{number}.bin", 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(tmp_path, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    try:
        assert Shards(files, "<u2")[:].equal(torch.arange(50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- however large

MEASURED = """
import resource, sys, lib.data.tokens as t, torch
from pathlib import Path
from lib.data.text import load_corpus, sample_batch
from lib.study.schema import CorpusConfig
t.output_root = lambda: Path(sys.argv[2])
corpus = load_corpus(CorpusConfig(source=sys.argv[1], tokenizer="bytes"))
stream = torch.Generator().manual_seed(0)
for _ in range(300):
    sample_batch(corpus.train, 64, 1024, stream)
print(len(corpus.train), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.long
def test_training_on_a_large_corpus_takes_little_memory(tmp_path: Path) -> None:
    source = tmp_path / "large.jsonl"
    line = "to be or not to be, that is the question " * 100
    with source.open("w") as file:
        for i in range(50_000):
            file.write(json.dumps({"text": f"{i} {line}"}) + "\n")
    assert source.stat().st_size > 200e6
    command = [sys.executable, "-c", MEASURED, source, tmp_path / "kept"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(2):  # tokenized, and then found
        words = subprocess.check_output(command, cwd=ROOT, text=True, env=environment).split()
    tokens, peak = map(int, words)
    assert tokens > 180e6
    assert peak < 1000
