"""Whatever is wrong with a file of a study, its page says so and all others are built."""

import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lib.publish import pages, site
from lib.publish.catalogue import changed
from lib.record import archive, record
from lib.record.record import Record
from lib.study.io import sha256
from lib.study.yaml import exit_status
from tests.record.samples import PIXEL, hostile_notebook, move_to, write_notebook

pytestmark = pytest.mark.slow

main = exit_status(site.main)
WHOLE: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)),
    "null": b"null",
    "list": b"[1]",
    "number": b"1e999",
    "nested": b"[" * 100_000,
    "deep": b'{"a":' * 900 + b"1" + b"}" * 900,
    "a surrogate": b'{"runs": [{"arm": "\\ud800", "seed": 0}], "summary": {}}',
    "a huge number": b"1" + b"0" * 5000,
}
FILES = {
    "results": "results/alpha.json",
    "verdict": "results/alpha.verdict.json",
    "raw files": "record/alpha/raw.zip",
    "parameters": "record/alpha/parameters.yaml",
    "manifest": "record/alpha/MANIFEST.sha256",
    "analysis": "record/alpha/03_analysis.ipynb",
    "figures": "record/alpha/04_figures.ipynb",
    "run": "record/alpha/none/seed-0/02_train.ipynb",
    "figure": "figures/alpha/loss.png",
}
ODD: list[Any] = [None, [], {}, "x\ud800", float("nan"), 1e999, 10**400, True, [[[]]]]


@pytest.fixture
def own(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the made-up record, `alpha` with an archive of raw files and a figure."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    move_to(tmp_path, monkeypatch)
    record = Record("alpha").place
    raw = list(record.rglob("*.parquet"))
    archive.pack(raw, record, record / "raw.zip")
    for path in raw:
        path.unlink()
    Record("alpha").figures.mkdir(parents=True)
    (Record("alpha").figures / "loss.png").write_bytes(b"a picture")
    for study in ("alpha", "beta"):
        archive.write_manifest(study)
    return tmp_path


@pytest.fixture
def build(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], list[str]]:
    """Build the site, all but what notebooks hold, into an empty folder; return the studies that
    it says are damaged. What was asked of every build is asserted here."""
    monkeypatch.setattr(pages, "notebook_html", lambda path: "")
    monkeypatch.setattr(site, "plan_accounts", lambda paper: [])  # asks git, of this repository
    built = own / "paper" / "site"

    def run() -> list[str]:
        shutil.rmtree(built, ignore_errors=True)
        status = main(["paper"])
        said = capsys.readouterr().err.splitlines()
        studies = [line.removeprefix("error: ").partition(": ")[0] for line in said]
        assert (status, len(set(studies))) == (int(bool(said)), len(said)), said
        first = (built / "index.html").read_text("utf-8")
        for study in ("alpha", "beta", "gamma"):
            page = (built / study / "index.html").read_text("utf-8")
            assert f'<a href="{study}/index.html">' in first
            assert ("Damaged: " in page) == (study in studies), said
        assert (built / "beta" / "none,source=a+b.txt" / "seed-0.html").is_file()
        assert (built / "compare.html").is_file()
        return studies

    return run


def test_a_damaged_file_is_said_on_its_studys_page_and_all_others_are_built(
    own: Path, build: Callable[[], list[str]]
) -> None:
    assert build() == []
    for name, place in FILES.items():
        path = own / "paper" / place
        whole = path.read_bytes()
        for content in (None, b"", whole[: len(whole) // 2]):
            write(path, content)
            assert build() == ["alpha"], name
        write(path, whole)
    assert build() == []


OTHERWISE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", OTHERWISE)
def test_what_is_no_file_where_one_should_be_ends_no_build(
    kind: str, own: Path, build: Callable[[], list[str]]
) -> None:
    for name, place in FILES.items():
        path = own / "paper" / place
        whole = path.read_bytes()
        path.unlink()
        OTHERWISE[kind](path)
        assert build() == ["alpha"], name
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole)


def test_of_several_changed_files_the_first_is_named_and_the_others_are_counted(own: Path) -> None:
    for name in ("parameters", "analysis", "run"):
        (own / "paper" / FILES[name]).write_bytes(b"")
    said = "03_analysis.ipynb has changed (and 2 more); restore it, or record the study again"
    assert changed("alpha") == said


def test_a_sealed_record_that_cannot_be_opened_damages_its_study_alone(
    own: Path, build: Callable[[], list[str]]
) -> None:
    place = Record("alpha").place
    shutil.rmtree(place)
    for content in (b"", b"PK\x03\x04" + b"\0" * 40, bytes(range(256))):
        place.with_name("alpha.zip").write_bytes(content)
        assert build() == ["alpha"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"cells": [null]}'])
def test_a_damaged_notebook_of_a_study_in_progress_ends_no_build(
    content: bytes, own: Path, build: Callable[[], list[str]]
) -> None:
    for path in [*(own / "runs/gamma").rglob("*.ipynb")][:2]:
        path.write_bytes(content)
    assert set(build()) <= {"gamma"}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_that_was_archived_damaged_ends_no_build(
    kind: str, own: Path, build: Callable[[], list[str]]
) -> None:
    for name in ("results", "verdict", "raw files", "parameters", "analysis"):
        path = own / "paper" / FILES[name]
        whole = path.read_bytes()
        write(path, WHOLE[kind])
        hash_again("alpha")
        found = build()
        assert found == ["alpha"] or (found == [] and name != "results"), name
        write(path, whole)


def hash_again(study: str) -> None:
    """Let manifest and index say that the files of a study are as they should be."""
    files, index = Record(study), record.index_file(Record(study).paper)
    (files.place / record.MANIFEST).write_text(files.manifest_text(), "utf-8")
    content = json.loads(index.read_text("utf-8"))
    content[study]["manifest"] = sha256(files.place / record.MANIFEST)
    index.write_text(json.dumps(content), "utf-8")


def write(path: Path, content: bytes | None) -> None:
    """Write a file; None: there is none."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every value, each with what holds it; of a list those of the first item."""
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content[:1])):
            yield content, key
            yield from places(content[key])


@pytest.mark.parametrize("name", ["results", "verdict"])
def test_odd_values_inside_end_no_build(
    name: str, own: Path, build: Callable[[], list[str]]
) -> None:
    path = own / "paper" / FILES[name]
    content = json.loads(path.read_text("utf-8"))
    chosen = random.Random(0).sample(list(places(content)), 20)
    for (holder, key), odd in zip(chosen, itertools.cycle(ODD)):
        value, holder[key] = holder[key], odd
        path.write_text(json.dumps(content), "utf-8")
        archive.write_manifest("alpha")
        assert set(build()) <= {"alpha"}
        holder[key] = value


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b'{"runs": []}', b"\xff", b'{"a": 1}'])
def test_a_damaged_result_of_a_study_in_progress_damages_that_study(
    content: bytes, own: Path, build: Callable[[], list[str]]
) -> None:
    (own / "runs/gamma/none/seed-1/result.json").write_bytes(content)
    assert build() == ([] if content == b"null" else ["gamma"])


@pytest.mark.parametrize("content", [b"\xff", b"a: [", b"- 1", b"paper: 5", b"paper: [a]", b""])
def test_parameters_that_cannot_be_read_damage_their_study(
    content: bytes, own: Path, build: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "params").mkdir()
    monkeypatch.setattr("lib.publish.catalogue.PARAMS", own / "params")
    monkeypatch.setattr("lib.record.record.PARAMS", own / "params")
    (own / "params" / "alpha.yaml").write_bytes(content)
    assert build() == ([] if content.startswith(b"paper") else ["alpha"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "index.json cannot be read; restore it, or delete it"),
        (b"[1]", "index.json must hold an entry per study; restore it"),
        (b'{"alpha": null}', "index.json names 'alpha', which is no study; restore it"),
        (b'{"../beta": {}}', "index.json names '../beta', which is no study; restore it"),
    ],
)
def test_a_damaged_index_is_said_on_the_first_page(
    content: bytes, said: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.index_file(own / "paper").write_bytes(content)
    assert main(["paper"]) == 1
    assert capsys.readouterr().err == f"error: paper: {said}\n"
    first = (own / "paper/site/index.html").read_text("utf-8")
    assert re.sub("&#39;", "'", first).count(f"Damaged: {said}") == 1
    assert "Root of records" not in first or content.startswith(b'{"')


@pytest.mark.parametrize("kind", OTHERWISE)
def test_an_index_that_is_no_file_is_said_on_the_first_page(
    kind: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = record.index_file(own / "paper")
    index.unlink()
    OTHERWISE[kind](index)
    assert main(["paper"]) == 1
    assert capsys.readouterr().err.startswith("error: paper: ")
    assert "Damaged: " in (own / "paper/site/index.html").read_text("utf-8")


@pytest.mark.parametrize("place", ["runs/{}/03_analysis.ipynb", "paper/record/{}/MANIFEST.sha256"])
def test_a_folder_whose_name_is_no_text_is_no_study(
    place: str, own: Path, build: Callable[[], list[str]]
) -> None:
    path = own / place.format(os.fsdecode(b"\xff"))
    path.parent.mkdir()
    path.write_text("{}", "utf-8")
    assert build() == []


def test_a_study_that_the_index_names_and_nothing_holds_is_said_to_be_missing(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(Record("alpha").place)
    assert main(["paper"]) == 1
    assert "error: alpha: its MANIFEST.sha256 is missing or empty" in capsys.readouterr().err
    assert "Damaged: its MANIFEST" in (own / "paper/site/alpha/index.html").read_text("utf-8")


def test_half_a_pair_of_surrogates_anywhere_loses_no_page(tmp_path: Path) -> None:
    notebook = hostile_notebook()
    notebook.cells[0]["attachments"] = {"a.png": {"image/png": PIXEL}}
    path = tmp_path / "a.ipynb"
    write_notebook(path, notebook)
    whole = path.read_text("utf-8")
    texts = [m for m in re.finditer(r'"[^"\\]{2,}(?=[^"]*",?$)', whole, re.MULTILINE)]
    assert len(texts) > 50
    for text in texts:
        if whole[: text.start()].endswith(('_type": ', '"name": ')):
            continue  # of another kind, it is no notebook
        path.write_text(whole[: text.end()] + "\\ud800" + whole[text.end() :], "utf-8")
        assert "cannot be shown" not in pages.notebook_html(path), text


@pytest.mark.parametrize("content", [b"{", b"[1]", b'[{"file": "a.yaml"}]', b"3"])
def test_plans_that_cannot_be_accounted_for_are_said_on_the_first_page(
    content: bytes, own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lib.publish.plans.has_history", lambda: False)
    (own / "paper" / "plans.json").write_bytes(content)
    assert main(["paper"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: paper: plans: ")
    first = (own / "paper/site/index.html").read_text("utf-8")
    assert first.count("Damaged: plans: ") == 1
    assert 'href="alpha/index.html"' in first
