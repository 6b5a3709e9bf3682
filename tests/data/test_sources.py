"""A corpus is found where it lies, or fetched, and what cannot be read is refused in one line."""

import bz2
import gzip
import hashlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from lib.data.sources import KNOWN, KnownCorpus, find_documents, find_mixture
from lib.data.text import Corpus, CorpusError, load_corpus
from lib.study.schema import CorpusConfig

# ---- finding and downloading a known corpus

BODY = b"to be or not to be\n" * 20
LITTLE = KnownCorpus("little.txt", hashlib.sha256(BODY).hexdigest())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that downloads go to, still missing; it is the one place where they are sought."""
    folder = tmp_path / "data"
    for module in ("lib.data.sources", "lib.study.io"):
        monkeypatch.setattr(f"{module}.output_root", lambda: tmp_path)
    places = "lib.data.sources.corpus_places"
    monkeypatch.setattr(places, lambda file_name: [tmp_path / "nowhere", folder / file_name])
    monkeypatch.setitem(KNOWN, "little", LITTLE)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


@contextmanager
def server(content: bytes, announced: int) -> Iterator[tuple[str, list[str]]]:
    """Serve `content` on the loopback, announced as so many bytes; give URL and requests seen."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/little", requests
        finally:
            http.shutdown()
            thread.join()


def test_a_missing_corpus_is_downloaded_once_and_verified(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(BODY, len(BODY)) as (url, requests):
        monkeypatch.setitem(KNOWN, "little", LITTLE._replace(url=url))
        first, second = (load_corpus(CorpusConfig(source="little")) for _ in range(2))
    assert first.text == second.text == BODY.decode()
    assert first.sha256 == LITTLE.sha256
    assert requests == ["/little"]
    assert {path.name: path.read_bytes() for path in data.iterdir()} == {"little.txt": BODY}


@pytest.mark.parametrize(
    ("content", "announced"),
    [
        pytest.param(BODY.upper(), len(BODY), id="another text"),
        pytest.param(BODY[:100], 100, id="half a text"),
        pytest.param(BODY[:100], len(BODY), id="interrupted"),
    ],
)
def test_a_wrong_download_leaves_nothing_behind(
    data: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, announced: int
) -> None:
    with server(content, announced) as (url, requests):
        monkeypatch.setitem(KNOWN, "little", LITTLE._replace(url=url))
        with pytest.raises(CorpusError, match=r"^little: not found and not downloaded"):
            load_corpus(CorpusConfig(source="little"))
    assert requests == ["/little"]
    assert list(data.iterdir()) == []


def test_a_corpus_out_of_reach_can_be_provided_in_three_ways(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.sources.corpus_places", lambda _: [])
    with socket.socket() as closed:  # bound but not listening: no one else can answer there
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/little"
        monkeypatch.setitem(KNOWN, "little", LITTLE._replace(url=url))
        with pytest.raises(CorpusError) as error:
            load_corpus(CorpusConfig(source="little"))
    assert str(error.value) == (
        "little: not found and not downloaded (ConnectionError). Provide it in one of three ways: "
        f"put it at data/little.txt (from {url}); attach a Kaggle input that holds little.txt; "
        "or set corpus.source to a text file's path"
    )


def test_a_corpus_with_a_wrong_hash_is_refused(data: Path) -> None:
    data.mkdir()
    (data / "little.txt").write_bytes(BODY.upper())
    with pytest.raises(CorpusError) as error:
        load_corpus(CorpusConfig(source="little"))
    found = hashlib.sha256(BODY.upper()).hexdigest()
    assert str(error.value) == (
        f"little: wrong hash: 380 bytes with SHA-256 {found}, "
        f"expected {LITTLE.sha256}; delete {data / 'little.txt'} and rerun"
    )


def test_an_embedded_text_that_is_damaged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is another text or no stream that can be unpacked."""
    read = Path.read_bytes
    for content in (bz2.compress(BODY), b"no stream"):
        damaged = {"synthetic.packed": content}
        monkeypatch.setattr(
            Path, "read_bytes", lambda path, d=damaged: d.get(path.name) or read(path)
        )
        with pytest.raises(
            CorpusError, match=r"^synthetic: wrong hash: .*; restore .*synthetic.pac"
        ):
            load_corpus(CorpusConfig(source="synthetic"))


def test_the_first_place_that_holds_the_file_is_read(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, right, wrong = (tmp_path / name for name in ("missing", "right", "wrong"))
    right.write_bytes(BODY)
    wrong.write_bytes(BODY.upper())
    monkeypatch.setattr("lib.data.sources.corpus_places", lambda _: [missing, right, wrong])
    assert load_corpus(CorpusConfig(source="little")).text == BODY.decode()
    monkeypatch.setattr("lib.data.sources.corpus_places", lambda _: [missing, wrong, right])
    with pytest.raises(CorpusError, match="wrong hash"):
        load_corpus(CorpusConfig(source="little"))


TEXTS = ["to be", "or not\nto be", "“q” 😀\x00 12", ""]
LINES = "".join(json.dumps({"text": text, "id": 1}) + "\n\n" for text in TEXTS).encode()


def parquet(**columns: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def zst(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


FILES = {
    "d.jsonl": LINES,
    "d.jsonl.gz": gzip.compress(LINES),
    "d.jsonl.zst": zst(LINES),
    "d.parquet": parquet(id=[1, 2, 3, 4], text=TEXTS),
    "large.parquet": parquet(text=pa.array(TEXTS, pa.large_string())),
}


@pytest.mark.parametrize("name", FILES)
def test_documents_are_lines_or_rows(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert list(find_documents(tmp_path / name) or []) == TEXTS
    assert list(find_documents(tmp_path) or []) == TEXTS  # a folder with the one file


def test_texts_of_a_folder_are_documents_in_order_of_their_names(tmp_path: Path) -> None:
    for name, text in [("b.txt", "second"), ("a/z.txt", "first"), ("c.txt.gz", "third")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        packed = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
        (tmp_path / name).write_bytes(packed)
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("no")
    assert list(find_documents(tmp_path) or []) == ["first", "second", "third"]


@pytest.mark.parametrize(("end", "packed"), [("gz", gzip.compress), ("zst", zst)])
def test_a_file_packed_in_several_goes_is_read_to_its_end(
    end: str, packed: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"d.jsonl.{end}"
    path.write_bytes(packed(LINES) + packed(b'{"text": "to be\\r\\n"}'))
    assert list(find_documents(path) or []) == [*TEXTS, "to be\r\n"]


def test_one_text_is_no_collection(tmp_path: Path) -> None:
    for name in ("own.txt", "own", "own.md"):
        (tmp_path / name).write_text("to be")
        assert find_documents(tmp_path / name) is None


def refused(path: Path) -> str:
    with pytest.raises(CorpusError) as error:
        load_corpus(CorpusConfig(source=str(path), tokenizer="bytes"))
    assert "\n" not in str(error.value)
    return str(error.value)


MANY = b'{"text": "a"}\n' * 3
BAD: list[tuple[str, bytes, str]] = [
    ("d.jsonl.gz", gzip.compress(LINES * 99)[:-20], "damaged or not of its kind"),
    ("d.jsonl.gz", LINES, "damaged or not of its kind"),
    ("d.jsonl.zst", zst(bytes(range(256)) * 99)[:-20], "damaged or not of its kind"),
    ("d.jsonl.zst", LINES, "damaged or not of its kind"),
    ("d.parquet", LINES, "damaged or not of its kind"),
    ("d.parquet", parquet(content=["a"], id=[1]), "no column 'text' (there are content, id)"),
    ("d.parquet", parquet(text=[1]), "column 'text' is int64, not text"),
    ("d.jsonl", MANY + b'{"content": "a"}', "no field 'text' with a text; each line needs one"),
    ("d.jsonl", MANY + b'{"text": 1}', "no field 'text' with a text"),
    ("d.jsonl", MANY + b"[1]", "no field 'text' with a text"),
    ("d.jsonl", MANY + b'{"text": "a', "no valid JSON"),
    ("d.jsonl", b'{"text": "\\ud800"}', "not UTF-8; convert it"),
    ("d.jsonl", b'{"text": "\xff"}', "not UTF-8; convert it"),
    ("d.jsonl", MANY, "too few documents: 3, and a tenth of them is held out"),
    ("d.jsonl", b"", "too few documents: 0"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_a_file_that_holds_no_documents_is_refused_in_one_line(
    name: str, content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "kept")
    (tmp_path / name).write_bytes(content)
    of_line = ", line 4" if content.startswith(MANY) and content != MANY else ""
    assert refused(tmp_path / name).startswith(f"{name}{of_line}: {message}")


@pytest.mark.parametrize("name", ["notes.gz", "x.csv.gz", "x.parquet.gz", "notes.zst"])
def test_a_compressed_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"to be"))
    assert refused(tmp_path / name).startswith(f"corpus.source: {name} is neither .txt, .jsonl")


def test_one_packed_text_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "mine.txt.gz").write_bytes(gzip.compress(b"to be " * 100))
    said = "corpus.source: mine.txt.gz is one packed text; unpack it"
    assert refused(tmp_path / "mine.txt.gz") == said


def test_a_folder_must_hold_files_of_one_kind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert refused(folder).startswith("corpus.source: folder 'folder' is empty; put .txt, .jsonl (")
    (folder / "a.txt").write_text("a")
    (folder / "b.jsonl").write_bytes(MANY)
    assert refused(folder) == (
        "corpus.source: folder folder holds .txt and .jsonl files; keep one kind"
    )
    (folder / "b.jsonl").unlink()
    (folder / "b.pdf").write_text("a")
    assert "b.pdf is neither .txt, .jsonl (both also .gz or .zst) or .par" in refused(folder)
    (folder / "b.pdf").unlink()
    os.mkfifo(folder / "b.txt")
    assert refused(folder).endswith("b.txt is no plain file; take it out of the folder")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "kept")


def write_letters(path: Path, letter: str, lengths: list[int]) -> str:
    lines = [json.dumps({"text": f"{i:04d}{letter * (n - 4)}"}) for i, n in enumerate(lengths)]
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


@pytest.fixture
def sources(tmp_path: Path, kept: None) -> tuple[str, str]:
    """4,000 characters of a in 100 documents, and 9,000 of b in 300."""
    a = write_letters(tmp_path / "a.jsonl", "a", [40] * 100)
    return a, write_letters(tmp_path / "b.jsonl", "b", [30] * 300)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
def test_every_beginning_of_a_mixture_has_the_shares(
    share: float, sources: tuple[str, str]
) -> None:
    mixture = find_mixture("mixed", dict(zip(sources, (share, 1 - share), strict=True)))
    texts = [text for _, text in mixture.parts()]
    counted: Counter[str] = Counter()
    for text in texts:
        counted[text[-1]] += len(text)
        total = sum(counted.values())
        assert abs(counted["a"] - share * total) <= 40  # a document more or less
    least = min(4000 / share, 9000 / (1 - share))
    assert least - 80 <= sum(counted.values()) <= least
    for letter in "ab":  # each source from its beginning, whole, in order, and none twice
        mine = [text for text in texts if text[-1] == letter]
        assert [int(text[:4]) for text in mine] == list(range(len(mine)))


def test_a_mixture_is_a_corpus_whose_account_names_its_sources(sources: tuple[str, str]) -> None:
    shares = dict(zip(sources, (0.25, 0.75), strict=True))
    corpus = load_corpus(CorpusConfig(source="mixed", sources=shares, tokenizer="bytes"))
    assert corpus.name == "mixed"
    account = corpus.metadata["sources"]
    # 9,000 characters of b are three quarters of 12,000: 3,000 of a, in 75 documents
    assert account[sources[0]] == {
        **{"share": 0.25, "characters": 3000, "documents": 75, "of_documents": 100}
    }
    assert account[sources[1]] == {
        **{"share": 0.75, "characters": 9000, "documents": 300, "of_documents": 300}
    }
    assert sum(corpus.metadata["documents"].values()) == 375
    heldout = Counter(corpus.decode(corpus.heldout))
    assert heldout["a"] / (heldout["a"] + heldout["b"]) == pytest.approx(0.25, abs=0.03)

    before = corpus.train[:]
    other = dict(zip(sources, (0.5, 0.5), strict=True))
    again = load_corpus(CorpusConfig(source="mixed", sources=other, tokenizer="bytes"))
    assert again.sha256 != corpus.sha256
    assert corpus.train[:].equal(before)  # read from the disk anew
    assert load_one(sources[0]).sha256 != corpus.sha256


def load_one(source: str) -> Corpus:
    return load_corpus(CorpusConfig(source=source, tokenizer="bytes"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"source": "m", "sources": {"a": 0.5, "b": 0.6}}, "shares sum to 1.1; they must sum to 1"),
        ({"source": "m", "sources": {"a": 1.0}}, "less than 1"),
        ({"sources": {"a": 0.5, "b": 0.5}}, "source: is missing; with sources"),
        ({"source": "a/b", "sources": {"a": 0.5, "b": 0.5}}, "'a/b' is no name"),
    ],
)
def test_shares_that_are_none_are_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CorpusConfig.model_validate(content)


def test_all_parts_hold_all_sources_however_long_their_documents_are(
    tmp_path: Path, kept: None
) -> None:
    long = write_letters(tmp_path / "long.jsonl", "a", [4000] * 20)
    short = write_letters(tmp_path / "short.jsonl", "b", [40] * 3000)
    shares = {long: 0.4, short: 0.6}
    corpus = load_corpus(CorpusConfig(source="m", sources=shares, tokenizer="bytes"))
    assert corpus.metadata["documents"] == {"train": 18 + 2700, "dev": 1 + 150, "test": 1 + 150}
    for part in (corpus.train, corpus.dev, corpus.test):
        letters = Counter(corpus.decode(part[:]))
        assert letters["a"] / (letters["a"] + letters["b"]) == pytest.approx(0.4, abs=0.03)

    few = write_letters(tmp_path / "few.jsonl", "a", [4000] * 5)
    asked = CorpusConfig(source="m", sources={few: 0.4, short: 0.6}, tokenizer="bytes")
    with pytest.raises(CorpusError, match=r"sources: '.*few.jsonl': too few documents: 5, .* cut"):
        load_corpus(asked)


def test_a_document_held_out_of_one_source_counts_where_another_trains_on_it(
    tmp_path: Path, kept: None
) -> None:
    one = write_letters(tmp_path / "one.jsonl", "a", [40] * 20)
    other = write_letters(tmp_path / "other.jsonl", "a", [40] * 20 + [50] * 180)
    corpus = load_corpus(
        CorpusConfig(source="m", sources={one: 0.1, other: 0.9}, tokenizer="bytes")
    )
    assert corpus.metadata["duplicates"] == 18
    assert corpus.metadata["heldout_in_train"] == 2  # the last two of one, among other's first


def test_a_source_without_documents_is_named(tmp_path: Path, sources: tuple[str, str]) -> None:
    (tmp_path / "one.txt").write_text("to be or not to be")
    empty = write_letters(tmp_path / "empty.jsonl", "c", [])
    (tmp_path / "folder").mkdir()
    for source, message in [
        (str(tmp_path / "gone"), "gone' holds no documents"),
        (str(tmp_path / "one.txt"), "one.txt' holds no documents"),
        (empty, "empty.jsonl' is empty"),
        (str(tmp_path / "folder"), "folder 'folder' is empty; put .txt"),
        # too long for a name, which is no file for Python 3.14
        ("x" * 300, f"'{'x' * 300}' (cannot be read: File name too|holds no documents; give fold)"),
        ("~nobody-at-all/a", "'~nobody-at-all/a' names no user's folder"),
    ]:
        with pytest.raises(CorpusError, match=rf"^corpus\.sources: .*{message}"):
            load_corpus(CorpusConfig(source="m", sources={source: 0.5, sources[0]: 0.5}))
