"""What is noted as sound is sound for as long as nothing that it rests on has changed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lib.record import build, receipts, record, verify
from lib.record.record import Record
from lib.study import io as paths
from lib.study.io import PAPERS, ROOT
from lib.workflow import verify as command
from tests.conftest import run_git

STUDY = "example"
Change = Callable[[Path, pytest.MonkeyPatch], object]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little of a checkout, with the record of `example` and a run that is not recorded."""
    for name in ("lib/study", "notebooks", "params"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PAPERS / STUDY, tmp_path / "papers" / STUDY)
    (tmp_path / "papers/embedding-norm/templates").mkdir(parents=True)
    for name in ("data/tinyshakespeare.txt", "papers/embedding-norm/templates/a.md", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n", "utf-8")
    run = tmp_path / "runs/tried/none/seed-0/result.json"
    run.parent.mkdir(parents=True)
    run.write_text("{}", "utf-8")
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "a")
    monkeypatch.setattr(receipts, "ROOT", tmp_path)
    monkeypatch.setattr(receipts, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    places = [tmp_path / "data/tinyshakespeare.txt"]
    monkeypatch.setattr(receipts, "corpus_places", lambda _: places)
    for module in (paths, record):
        monkeypatch.setattr(module, "PAPERS", tmp_path / "papers")
        monkeypatch.setattr(module, "PAPER", tmp_path / "papers/embedding-norm")
        monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
        monkeypatch.setattr(module, "PARAMS", tmp_path / "params")
    monkeypatch.setattr(record, "PLANS", tmp_path / "params/plans")
    return tmp_path


def byte(name: str) -> Change:
    """Change the last byte of a file, and neither its size nor its time."""

    def change(tree: Path, _: pytest.MonkeyPatch) -> None:
        (path,) = tree.glob(name)
        content, times = path.read_bytes(), path.stat()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        receipts.os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    return change


def new(name: str) -> Change:
    def change(tree: Path, _: pytest.MonkeyPatch) -> None:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("", "utf-8")

    return change


def put(target: str, value: Any) -> Change:
    return lambda _, monkeypatch: monkeypatch.setattr(target, value)


def in_git(*words: str) -> Change:
    return lambda tree, _: run_git(tree, *words)


def linked(tree: Path, _: pytest.MonkeyPatch) -> None:
    """Put a link to the same bytes in the place of a file."""
    path = tree / f"papers/{STUDY}/results/{STUDY}.json"
    path.rename(tree / "aside")
    path.symlink_to(tree / "aside")


OWN = f"papers/{STUDY}"
OF_ALL: dict[str, Change] = {
    "a module": byte("lib/study/schema.py"),
    "a text that lib packs": new("lib/study/a.packed"),
    "a notebook": byte("notebooks/03_analysis.ipynb"),
    "parameters": byte("params/example.yaml"),
    "a plan": byte("params/plans/preregistration.yaml"),
    "a new study": new("params/new.yaml"),
    "reported numbers": new("papers/embedding-norm/reported.yaml"),
    "a run": byte(f"{OWN}/record/{STUDY}/constant/seed-0/02_train.ipynb"),
    "a package": put(
        "lib.record.receipts.distributions", lambda: [SimpleNamespace(name="a", version="1")]
    ),
    "Python": put("sys.version", "3.99"),
    "the CPU": put("lib.record.receipts.processor", lambda: ["Abacus"]),
    "vector instructions": lambda _, m: m.setenv("ATEN_CPU_CAPABILITY", "default"),
    "torch": put("importlib.util.find_spec", lambda _: None),
    "no checkout": put("lib.record.receipts.is_checkout", lambda: False),
    "a shallow one": put("lib.record.receipts.is_shallow", lambda: True),
    "HEAD": in_git("commit", "--quiet", "--allow-empty", "-m", "b"),
    "a branch": in_git("branch", "other"),
    "grafts": new(".git/info/grafts"),
    "a run elsewhere": new("runs/other/none/seed-0/provenance.json"),
    "a run there, changed": lambda tree, _: (
        tree / "runs/tried/none/seed-0/result.json"
    ).write_text("{ }", "utf-8"),
    "results": byte(f"{OWN}/results/{STUDY}.json"),
    "what was kept": new("papers/embedding-norm/record/a/other-versions.json"),
}
OF_STUDY: dict[str, Change] = {
    "raw files": byte(f"{OWN}/record/{STUDY}/raw.zip"),
    "the manifest": byte(f"{OWN}/record/{STUDY}/MANIFEST.sha256"),
    "a hidden file": new(f"{OWN}/record/{STUDY}/.hidden"),
    "a folder": lambda tree, _: (tree / f"{OWN}/record/{STUDY}/empty").mkdir(),
    "a link": linked,
    "the verdict": byte(f"{OWN}/results/{STUDY}.verdict.json"),
    "a figure": new(f"{OWN}/figures/{STUDY}/new.pdf"),
    "a sealed record": new(f"{OWN}/record/{STUDY}.zip"),
    "the index": lambda tree, _: (tree / f"{OWN}/record/index.json").write_text("{}", "utf-8"),
    "a text": byte("data/tinyshakespeare.txt"),
}
OF_PAPER: dict[str, Change] = {
    "the manuscript": byte(f"{OWN}/paper.md"),
    "the paper": byte(f"{OWN}/paper.pdf"),
    "accounts of plans": byte(f"{OWN}/plans.json"),
    "raw files": byte(f"{OWN}/record/{STUDY}/raw.zip"),
    "an index": lambda tree, _: (tree / f"{OWN}/record/index.json").write_text("{}\n", "utf-8"),
    "a template": byte("papers/embedding-norm/templates/a.md"),
    "a README": byte("README.md"),
    "another paper": new("papers/other/paper.md"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["study", "paper"])
def test_a_byte_of_anything_that_it_rests_on_has_it_verified_anew(
    what: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str | None:
        paper = tree / "papers" / STUDY
        return receipts.study_key(STUDY) if what == "study" else receipts.paper_key(paper)

    seen = [key()]
    assert key() == seen[0] is not None
    for name, change in ((OF_STUDY if what == "study" else OF_PAPER) | OF_ALL).items():
        change(tree, monkeypatch)
        now = key()
        assert now not in [None, *seen], name
        seen.append(now)


def test_own_texts_and_tokenizers_count(tree: Path) -> None:
    corpus = SimpleNamespace(model_dump=lambda: {"source": "data/own.txt", "tokenizer": "bpe"})
    arm = SimpleNamespace(config=SimpleNamespace(corpus=corpus))
    named = list(receipts._texts(SimpleNamespace(arms=lambda: [arm])))  # type: ignore[arg-type]
    assert {tree / "data/own.txt", tree / "bpe"} < {*named}


def test_of_what_cannot_be_read_there_is_no_note(tree: Path) -> None:
    (tree / f"papers/{STUDY}/record/{STUDY}/parameters.yaml").write_text("{", "utf-8")
    assert receipts.study_key(STUDY) is None
    receipts.note(None)
    assert not receipts.is_noted(None)


@pytest.mark.parametrize(
    ("faults", "again", "is_whole", "is_noted"),
    [([], True, True, True), (["a"], True, True, False), ([], False, True, False),
     ([], True, False, False)],
)  # fmt: skip
def test_only_a_whole_check_without_a_fault_is_noted(
    faults: list[str],
    again: bool,
    is_whole: bool,
    is_noted: bool,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checks(of: Record, *_: object) -> Any:
        if not is_whole:
            build._print_unseen(of, "suites", "built", 1, 2)
        yield iter(faults)

    monkeypatch.setattr(verify, "_checks", checks)
    assert verify.verify(STUDY, again=again) == faults
    assert receipts.is_noted(receipts.study_key(STUDY)) == is_noted
    assert len(list((tree / "runs").glob(".verified/*"))) == is_noted


def test_what_changed_meanwhile_is_not_noted(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(*_: object) -> Any:
        byte(f"{OWN}/results/{STUDY}.json")(tree, monkeypatch)
        yield iter([])

    monkeypatch.setattr(verify, "_checks", checks)
    assert verify.verify(STUDY) == []
    assert not (tree / "runs/.verified").exists()


def test_what_was_noted_while_the_surroundings_changed_is_forgotten(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[Change] = [new("params/new.yaml")]

    def checks(*_: object) -> Any:
        for change in changes:
            change(tree, monkeypatch)
        yield iter([])

    monkeypatch.setattr(verify, "_checks", checks)
    assert command.verify_record([STUDY], False, [], None, False) == 0
    assert list((tree / "runs/.verified").iterdir()) == []
    changes.clear()
    assert command.verify_record([STUDY], False, [], None, False) == 0
    assert len(list((tree / "runs/.verified").iterdir())) == 1


def test_a_note_spares_the_checks_unless_they_are_asked_for(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(verify, "_checks", lambda of, *_: seen.append(of.study) or [])
    for fresh, redraw, times in ((False, False, 1), (False, False, 1), (True, False, 2),
                                 (False, True, 3)):  # fmt: skip
        assert command.verify_record([STUDY], redraw, [], None, fresh) == 0
        assert len(seen) == times
    assert capsys.readouterr().out.count("verified before, and nothing changed since") == 1
    byte(f"{OWN}/record/{STUDY}/raw.zip")(tree, monkeypatch)
    command.verify_record([STUDY], False, [], None, False)
    assert len(seen) == 4


def test_texts_and_findings_are_noted_and_what_vanished_is_looked_for_always(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(command, "verify", lambda *_, **__: [])
    for name in ("vanished", "strays", "check_texts", "check_findings"):
        tell = lambda *_, name=name: seen.append(name) or []  # noqa: E731
        monkeypatch.setattr(command, name, tell)
    command.verify_record([], False, [], None, False)
    assert {*seen} == {"vanished", "strays", "check_texts", "check_findings"}
    seen.clear()
    command.verify_record([], False, [], None, False)
    assert {*seen} == {"vanished", "strays"}
    monkeypatch.setattr(command, "check_texts", lambda _: ["a fault"])
    byte(f"{OWN}/paper.md")(tree, monkeypatch)
    notes = len(list((tree / "runs/.verified").iterdir()))
    assert command.verify_record([], False, [], None, False) == 1
    assert len(list((tree / "runs/.verified").iterdir())) == notes
