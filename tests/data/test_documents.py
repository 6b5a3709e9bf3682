"""Documents are read from whatever files hold them, and what holds none is refused."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lib.data.corpus import CorpusError, load_corpus
from lib.data.documents import find_documents
from lib.study.fields import CorpusConfig

TEXTS = ["to be", "or not\nto be", "“q” 😀\x00 12", ""]
LINES = "".join(json.dumps({"text": text, "id": 1}) + "\n\n" for text in TEXTS).encode()


def write_parquet(path: Path, **columns: object) -> None:
    pq.write_table(pa.table(columns), path)


def zst(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


Write = Callable[[Path], object]
FILES: dict[str, Write] = {
    "d.jsonl": lambda path: path.write_bytes(LINES),
    "d.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "d.jsonl.zst": lambda path: path.write_bytes(zst(LINES)),
    "d.parquet": lambda path: write_parquet(path, id=[1, 2, 3, 4], text=TEXTS),
    "large.parquet": lambda path: write_parquet(path, text=pa.array(TEXTS, pa.large_string())),
}


@pytest.mark.parametrize("name", FILES)
def test_documents_are_lines_or_rows(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
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
BAD: dict[str, tuple[str, Write, str]] = {
    "half a gz": (
        "d.jsonl.gz",
        lambda path: path.write_bytes(gzip.compress(LINES * 99)[:-20]),
        "d.jsonl.gz: damaged or not of its kind",
    ),
    "no gz": ("d.jsonl.gz", lambda path: path.write_bytes(LINES), "d.jsonl.gz: damaged or not"),
    "half a zst": (
        "d.jsonl.zst",
        lambda path: path.write_bytes(zst(os.urandom(9999))[:-20]),
        "d.jsonl.zst",
    ),
    "no zst": ("d.jsonl.zst", lambda path: path.write_bytes(LINES), "d.jsonl.zst: damaged or not"),
    "no parquet": ("d.parquet", lambda path: path.write_bytes(LINES), "d.parquet: damaged or not"),
    "no column": (
        "d.parquet",
        lambda path: write_parquet(path, content=["a"], id=[1]),
        "d.parquet: no column 'text' (there are content, id); rename the one",
    ),
    "numbers": (
        "d.parquet",
        lambda path: write_parquet(path, text=[1]),
        "d.parquet: column 'text' is int64, not text",
    ),
    "no field": (
        "d.jsonl",
        lambda path: path.write_bytes(MANY + b'{"content": "a"}'),
        "d.jsonl, line 4: no field 'text' with a text; each line needs one",
    ),
    "a number": (
        "d.jsonl",
        lambda path: path.write_bytes(MANY + b'{"text": 1}'),
        "d.jsonl, line 4: no field 'text' with a text",
    ),
    "a list": ("d.jsonl", lambda path: path.write_bytes(b"[1]"), "d.jsonl, line 1: no field"),
    "no JSON": (
        "d.jsonl",
        lambda path: path.write_bytes(MANY + b'{"text": "a'),
        "d.jsonl, line 4: no valid JSON",
    ),
    "half a character": (
        "d.jsonl",
        lambda path: path.write_bytes(b'{"text": "\\ud800"}'),
        "d.jsonl: not UTF-8; convert it",
    ),
    "no UTF-8": (
        "d.jsonl",
        lambda path: path.write_bytes(b'{"text": "\xff"}'),
        "d.jsonl: not UTF-8; convert it",
    ),
    "too few": (
        "d.jsonl",
        lambda path: path.write_bytes(MANY),
        "d.jsonl: too few documents: 3, and a tenth of them is held out",
    ),
    "nothing": ("d.jsonl", lambda path: path.write_bytes(b""), "d.jsonl: too few documents: 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_holds_no_documents_is_refused_in_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokenised.output_root", lambda: tmp_path / "kept")
    name, write, message = BAD[case]
    write(tmp_path / name)
    assert refused(tmp_path / name).startswith(message)


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
