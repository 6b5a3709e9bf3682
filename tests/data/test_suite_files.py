"""A suite is written once, is known by its hashes, and is made anew when it is damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from lib.data.suite import Suite, build_suite, prepare_suite, read_suite
from lib.data.text import Corpus, load_corpus
from lib.study.schema import CorpusConfig


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return build_suite(corpus, 50, 128)


@pytest.fixture(autouse=True)
def _built(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a suite asks is another file's: here it is built once, whatever its size."""
    monkeypatch.setattr("lib.data.suite.build_suite", lambda *size: suite)


def test_a_suite_is_made_once_and_another_text_or_code_has_another(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_suite(corpus, 50, 48, tmp_path)
    written = (folder / "suite.json").stat().st_mtime_ns
    assert prepare_suite(corpus, 50, 48, tmp_path) == folder
    assert (folder / "suite.json").stat().st_mtime_ns == written
    assert prepare_suite(corpus, 50, 64, tmp_path) != folder
    edited = replace(corpus, sha256="e" * 64)
    assert prepare_suite(edited, 50, 48, tmp_path) != folder
    assert read_suite(folder)["corpus_sha256"] == corpus.sha256
    monkeypatch.setattr("lib.data.suite.git_state", lambda: {"code": "c" * 40})
    assert prepare_suite(corpus, 50, 48, tmp_path).name == f"{folder.name}-{12 * 'c'}"


def test_what_is_left_of_a_text_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    """Where tokenizers cut it at another place, or duplicates are left out."""
    documents = [f"Line {i % 190}.\nIt is said “{i}” times.\n" for i in range(400)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in [*documents[:9], *documents])
    (tmp_path / "own.jsonl").write_text(lines, "utf-8")
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path)

    def named(tokenizer: str, deduplicate: bool = False) -> str:
        fields = {"source": str(tmp_path / "own.jsonl"), "tokenizer": tokenizer}
        corpus = load_corpus(CorpusConfig(**fields, deduplicate=deduplicate))
        return prepare_suite(corpus, 50, 128, tmp_path).name.removeprefix("own.jsonl-")

    plain = named("bytes")
    assert plain == named("bpe-300") == f"{plain[:8]}-128-50-tokens"
    assert named("bytes", deduplicate=True) == named("bpe-300", deduplicate=True) != plain
    monkeypatch.setattr("lib.data.text.MAX_MEASURED", 501)
    cut = [named("bytes"), named("bpe-300")]
    assert len({plain, *cut}) == 3
    assert [named("bpe-300"), named("bytes")] == cut[::-1]


def test_the_harness_is_told_which_way_is_better(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepare_suite(corpus, 50, 128, tmp_path))
    tasks = TaskManager(include_path=".", include_defaults=False).load(["macro_zero_shot"])["tasks"]
    assert tasks
    for task in tasks.values():
        assert task.higher_is_better() == {"acc": True, "brier_score": False}


def test_a_folder_without_a_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no suite"):
        read_suite(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("suite.json", lambda path: path.write_text("")),
        ("suite.json", lambda path: path.write_text("[]")),
        ("spelling.test.jsonl", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("spelling_0_shot.yaml", lambda path: path.unlink()),
    ],
)
def test_a_damaged_suite_is_named_and_made_anew(
    name: str,
    damage: Callable[[Path], object],
    corpus: Corpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = prepare_suite(corpus, 50, 128, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    damage(folder / name)
    assert prepare_suite(corpus, 50, 128, tmp_path) == folder
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == before
    assert f"The suite in {folder.name} is damaged ({name} is" in capsys.readouterr().err


@pytest.mark.parametrize("earlier", ["no account of code", "other code"])
def test_a_suite_of_other_code_is_made_anew_with_the_hash_of_its_questions(
    earlier: str,
    corpus: Corpus,
    suite: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = prepare_suite(corpus, 50, 128, tmp_path)
    content = read_suite(folder)
    before = content.pop("code")
    (folder / "suite.json").write_text(
        json.dumps(content | ({"code": "c" * 64} if earlier == "other code" else {}))
    )
    fewer = replace(suite, tasks=suite.tasks[1:])
    for built in (suite, fewer):
        monkeypatch.setattr("lib.data.suite.build_suite", lambda *size, built=built: built)
        prepare_suite(corpus, 50, 128, tmp_path)
        assert (read_suite(folder)["hash"], read_suite(folder)["code"]) == (suite.hash, before)
    assert f"The suite in {folder.name} is of other code. It" in capsys.readouterr().err
    monkeypatch.setattr("lib.data.suite.asking_digest", lambda: "d" * 64)
    prepare_suite(corpus, 50, 128, tmp_path)
    assert read_suite(folder)["hash"] == fewer.hash != suite.hash
