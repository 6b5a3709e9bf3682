"""A known corpus is found where it lies, written here or fetched, and is the right one."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lib.data.corpus import (
    Corpus,
    CorpusError,
    load_corpus,
)
from lib.data.sources import KNOWN, KnownCorpus
from lib.study.fields import CorpusConfig

# ---- finding and downloading a known corpus

BODY = b"to be or not to be\n" * 20
LITTLE = KnownCorpus("little.txt", "", len(BODY), hashlib.sha256(BODY).hexdigest())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that downloads go to, still missing; it is the one place where they are sought."""
    folder = tmp_path / "data"
    for module in ("lib.data.sources", "lib.study.paths"):
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
        monkeypatch.setitem(KNOWN, "little", replace(LITTLE, url=url))
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
        monkeypatch.setitem(KNOWN, "little", replace(LITTLE, url=url))
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
        monkeypatch.setitem(KNOWN, "little", replace(LITTLE, url=url))
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
        f"expected 380 bytes with {LITTLE.sha256}; delete {data / 'little.txt'} and rerun"
    )


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


# ---- a known corpus that is written here


@pytest.fixture
def written(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the little corpus one that is written here, and collect every writing of it."""
    writings: list[str] = []

    def write() -> str:
        writings.append(BODY.decode())
        return writings[-1]

    monkeypatch.setitem(KNOWN, "little", replace(LITTLE, write=write))
    return writings


def load_little() -> Corpus:
    return load_corpus(CorpusConfig(source="little"))


def test_a_corpus_written_here_is_kept_for_the_next_time(data: Path, written: list[str]) -> None:
    assert load_little().text == load_little().text == BODY.decode()
    assert len(written) == 1
    assert {path.name: path.read_bytes() for path in data.iterdir()} == {"little.txt": BODY}


@pytest.mark.parametrize("content", [b"", BODY[:-1], BODY.upper()])
def test_a_damaged_copy_of_it_is_written_again(
    data: Path, written: list[str], content: bytes
) -> None:
    data.mkdir()
    (data / "little.txt").write_bytes(content)
    assert load_little().text == BODY.decode()
    assert {path.name: path.read_bytes() for path in data.iterdir()} == {"little.txt": BODY}


@pytest.mark.parametrize("obstacle", ["a file in the folder's place", "a folder in the file's"])
def test_where_it_cannot_be_kept_it_is_written_each_time(
    data: Path, written: list[str], obstacle: str
) -> None:
    if obstacle == "a file in the folder's place":
        data.write_text("")
    else:
        (data / "little.txt").mkdir(parents=True)
    assert load_little().text == load_little().text == BODY.decode()
    assert len(written) == 2
    assert data.is_file() or [path.name for path in data.iterdir()] == ["little.txt"]


def test_the_embedded_text_is_a_corpus_like_any_other() -> None:
    corpus = load_corpus(CorpusConfig(source="synthetic", fraction=0.1))
    assert (corpus.name, corpus.sha256) == ("synthetic", KNOWN["synthetic"].sha256)
    assert [len(part) for part in (corpus.train, corpus.heldout)] == [99_000, 110_000]
    assert corpus.decode(corpus.heldout) == corpus.text[990_000:]
    dev, test = corpus.decode(corpus.dev), corpus.decode(corpus.test)
    assert dev.endswith("\n\n")
    assert test.partition("\n")[0].endswith(":")
