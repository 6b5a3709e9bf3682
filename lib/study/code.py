"""What git knows of this repository."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path

from lib.study.io import ROOT
from lib.study.yaml import UserError


class GitError(UserError):
    """A question that git cannot answer here: what it would have told is not known."""


@dataclass(frozen=True)
class FileChange:
    """A file as a commit left it, where that is none of what the commit's parents hold."""

    commit: str
    date: str
    """When it was committed: ISO 8601, with the time zone."""
    copied: str
    """From which other file; empty where it was not."""
    blob: str
    """What git calls the content; zeros where the file was deleted."""
    name: str


def git(*words: str) -> str | None:
    """Return what a command of git prints in this checkout; None where it fails or git is not
    there."""
    try:
        return _decode(_run(words).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None


def ask_git(*words: str, stdin: str = "") -> bytes:
    """Return what a command of git prints, nothing outside a repository; GitError where it fails:
    what it does not tell must not read as what is not there."""
    try:
        process = _run(words, stdin)
        message = _decode(process.stderr)
        if "ignoring broken ref" not in message:
            return process.stdout
    except subprocess.CalledProcessError as error:
        message = _decode(error.stderr)
        if not (ROOT / ".git").exists() and git("rev-parse", "--git-dir") is None:
            return b""
    except OSError as error:
        if not (ROOT / ".git").exists():
            return b""
        message = error.strerror or "it is not there"
    line = next(iter(message.strip().splitlines()), "it does not say why")
    raise GitError(f"{line.replace(str(ROOT), '.')} (`git status` and `git fsck` say more)")


def changes(*words: str) -> Iterator[FileChange]:
    """List what a log tells of files, merges included, newest first."""
    log = ask_git("log", "-c", "--raw", "--no-abbrev", "--format=%x00%H %cI", *words)
    for entry in _decode(log).split("\0")[1:]:
        head, *lines = filter(None, entry.split("\n"))
        commit, _, date = head.partition(" ")
        for line in lines:
            modes, *names = line.split("\t")
            *_, blob, status = modes.split()
            copied = names[0] if status.startswith("C") else ""
            yield FileChange(commit, date, copied, blob, names[-1])


@lru_cache(maxsize=64)
def contents(blobs: tuple[str, ...]) -> list[bytes]:
    """Read each blob, which never changes; GitError for one that is not there."""
    stream, results = BytesIO(ask_git("cat-file", "--batch", stdin="\n".join(blobs))), []
    for blob in blobs:
        size = stream.readline().split()[-1]
        if not size.isdigit():
            raise GitError(f"object {blob[:12]} is missing (`git fsck` says more)")
        results.append(stream.read(int(size)))
        stream.read(1)
    return results


def is_checkout() -> bool:
    """Tell whether this folder has a git repository of its own."""
    return _has_repository(ROOT)


@cache  # it is asked of every run
def _has_repository(folder: Path) -> bool:
    top = git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()) == folder


def is_shallow() -> bool:
    """Tell whether this repository lacks a part of its history."""
    return (git("rev-parse", "--is-shallow-repository") or "").strip() == "true"


def _run(words: tuple[str, ...], stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(ROOT), "-c", "core.quotepath=off", "-c", "log.showRoot=true"]
    command += ["-c", "advice.graftFileDeprecated=false"]  # no hint about the graft file below
    # Settings by which git would tell another history, or read other paths than it is asked for.
    environment = {n: v for n, v in os.environ.items() if not n.endswith("_PATHSPECS")}
    environment |= {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": os.devnull}
    return subprocess.run(
        [*command, *words], capture_output=True, check=True, env=environment, input=stdin.encode()
    )


def _decode(output: bytes) -> str:
    """Decode what may be no text, such as a file's name."""
    return output.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
