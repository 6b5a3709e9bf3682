"""Sources are mixed by their shares, each document whole and once, and the account says so."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from lib.data.corpus import Corpus, CorpusError, load_corpus
from lib.data.mixture import find_mixture
from lib.study.fields import CorpusConfig


@pytest.fixture(autouse=True)
def _kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.data.tokenised.output_root", lambda: tmp_path / "kept")


def write(path: Path, letter: str, lengths: list[int]) -> str:
    lines = [json.dumps({"text": f"{i:04d}{letter * (n - 4)}"}) for i, n in enumerate(lengths)]
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[str, str]:
    """4,000 characters of a in 100 documents, and 9,000 of b in 300."""
    a = write(tmp_path / "a.jsonl", "a", [40] * 100)
    return a, write(tmp_path / "b.jsonl", "b", [30] * 300)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
def test_every_beginning_of_a_mixture_has_the_shares(
    share: float, sources: tuple[str, str]
) -> None:
    texts = list(find_mixture("mixed", dict(zip(sources, (share, 1 - share), strict=True))))
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
    account = corpus.account["sources"]
    # 9,000 characters of b are three quarters of 12,000: 3,000 of a, in 75 documents
    assert account[sources[0]] == {
        **{"share": 0.25, "characters": 3000, "documents": 75, "of_documents": 100}
    }
    assert account[sources[1]] == {
        **{"share": 0.75, "characters": 9000, "documents": 300, "of_documents": 300}
    }
    assert sum(corpus.account["documents"].values()) == 375
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


def test_all_parts_hold_all_sources_however_long_their_documents_are(tmp_path: Path) -> None:
    long = write(tmp_path / "long.jsonl", "a", [4000] * 20)
    short = write(tmp_path / "short.jsonl", "b", [40] * 3000)
    shares = {long: 0.4, short: 0.6}
    corpus = load_corpus(CorpusConfig(source="m", sources=shares, tokenizer="bytes"))
    assert corpus.account["documents"] == {"train": 18 + 2700, "dev": 1 + 150, "test": 1 + 150}
    for part in (corpus.train, corpus.dev, corpus.test):
        letters = Counter(corpus.decode(part[:]))
        assert letters["a"] / (letters["a"] + letters["b"]) == pytest.approx(0.4, abs=0.03)

    few = write(tmp_path / "few.jsonl", "a", [4000] * 5)
    asked = CorpusConfig(source="m", sources={few: 0.4, short: 0.6}, tokenizer="bytes")
    with pytest.raises(CorpusError, match=r"sources: '.*few.jsonl': too few documents: 5, .* cut"):
        load_corpus(asked)


def test_a_document_held_out_of_one_source_counts_where_another_trains_on_it(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "one.jsonl", "a", [40] * 20)
    other = write(tmp_path / "other.jsonl", "a", [40] * 20 + [50] * 180)
    corpus = load_corpus(
        CorpusConfig(source="m", sources={one: 0.1, other: 0.9}, tokenizer="bytes")
    )
    assert corpus.account["duplicates"] == 18
    assert corpus.account["heldout_in_train"] == 2  # the last two of one, among other's first


def test_a_source_without_documents_is_named(tmp_path: Path, sources: tuple[str, str]) -> None:
    (tmp_path / "one.txt").write_text("to be or not to be")
    empty = write(tmp_path / "empty.jsonl", "c", [])
    (tmp_path / "folder").mkdir()
    for source, message in [
        (str(tmp_path / "gone"), "gone' holds no documents"),
        (str(tmp_path / "one.txt"), "one.txt' holds no documents"),
        (empty, "empty.jsonl' is empty"),
        (str(tmp_path / "folder"), "folder 'folder' is empty; put .txt"),
        ("x" * 300, f"'{'x' * 300}' cannot be read: File name too long; give another path"),
        ("~nobody-at-all/a", "'~nobody-at-all/a' names no user's folder"),
    ]:
        with pytest.raises(CorpusError, match=rf"^corpus\.sources: .*{message}"):
            load_corpus(CorpusConfig(source="m", sources={source: 0.5, sources[0]: 0.5}))
