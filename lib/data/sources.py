"""Where a text comes from: known ones by name, others by path; found, written here or fetched."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib.data import synthetic
from lib.data.errors import CorpusError, MissingCorpusError
from lib.data.shards import write_whole
from lib.study.constants import TINYSHAKESPEARE_LENGTH
from lib.study.paths import ROOT, corpus_places, output_root, shown


@dataclass(frozen=True)
class KnownCorpus:
    """Where a corpus comes from and how to tell that it is the right one."""

    file_name: str
    url: str
    length: int
    sha256: str
    write: Callable[[], str] | None = None
    """Writes the text where there is nothing to download."""


KNOWN = {
    "tinyshakespeare": KnownCorpus(
        file_name="tinyshakespeare.txt",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        length=TINYSHAKESPEARE_LENGTH,
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "synthetic": KnownCorpus(
        "synthetic.txt", "", synthetic.LENGTH, synthetic.SHA256, synthetic.synthetic_text
    ),
}


def read_source(source: str) -> bytes:
    """Read a corpus, a known one with its right hash. Raises CorpusError for what is not there, is
    no plain file or has a wrong hash, and OSError for what cannot be read."""
    known = KNOWN.get(source)
    if known is None:
        return _own_text(source)
    for path in filter(Path.is_file, corpus_places(known.file_name)):
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 == known.sha256:
            return data
        if not known.write:
            raise CorpusError(
                f"{source}: wrong hash: {len(data):,} bytes with SHA-256 {sha256}, expected "
                f"{known.length:,} bytes with {known.sha256}; delete {path} and rerun"
            )
    return _written(known.write(), known) if known.write else _download(source, known)


def places(path: str, field: str = "corpus.source") -> list[Path]:
    """Where a path may lead: from the working folder, and from the repository."""
    try:
        return [Path(path).expanduser(), ROOT / path]
    except RuntimeError:
        raise CorpusError(f"{field}: '{path}' names no user's folder; give another path") from None


def _own_text(source: str) -> bytes:
    """Read a text by its path. What is no plain file is refused unread: it may never end."""
    for path in places(source):
        if path.exists():
            if not path.is_file():
                raise CorpusError(f"corpus.source: '{source}' is a device; {GIVE}")
            size = path.stat().st_size
            return path.read_bytes() if size else b""  # 0 is also what a kernel's file says
    raise CorpusError(
        f"corpus.source: '{source}' is neither a text file nor a known corpus "
        f"({', '.join(KNOWN)}); {GIVE}"
    )


GIVE = "give the path of a UTF-8 text"


def _written(text: str, known: KnownCorpus) -> bytes:
    """Keep a text that was written here in `data/`, unless that folder cannot be written."""
    data, path = text.encode(), output_root() / "data" / known.file_name
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    return data


def _download(name: str, known: KnownCorpus) -> bytes:
    """Fetch into `data/`; pooch shows a progress bar, checks the hash and then moves into place."""
    folder = output_root() / "data"
    try:
        import pooch  # only here: a Kaggle kernel without internet never needs it

        pooch.get_logger().setLevel("WARNING")
        known_hash = f"sha256:{known.sha256}"
        path = pooch.retrieve(known.url, known_hash, known.file_name, folder, progressbar=True)
        return Path(path).read_bytes()
    except Exception as error:
        reason = "wrong hash" if isinstance(error, ValueError) else type(error).__name__
        raise MissingCorpusError(
            f"{name}: not found and not downloaded ({reason}). Provide it in one of "
            f"three ways: put it at {shown(folder / known.file_name)} (from {known.url}); attach a "
            f"Kaggle input that holds {known.file_name}; or set corpus.source to a text file's path"
        ) from error
