"""Held-out text is of the whole corpus: of every language, file and source that it holds."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch

from lib.config.schema import CorpusConfig
from lib.data.describe import unlikeness, untrained
from lib.data.suite import build_suite
from lib.data.text import PARTS, evenly_spaced_windows, load_corpus, sample_batch
from tests.conftest import refused
from tests.data.conftest import is_mapped

SENTENCES = {
    "de": "der hund schläft unter dem großen baum und träumt von würsten",
    "en": "the dog sleeps below a large tree while it dreams of sausages",
    "el": "ο σκύλος κοιμάται κάτω από το μεγάλο δέντρο και ονειρεύεται",
}
WORDS = {name: sentence.split() for name, sentence in SENTENCES.items()}


def prose(language, n, seed=0, end="\n\n"):
    """So many passages of five words."""
    draw = np.random.default_rng(seed)
    return end.join(" ".join(draw.choice(WORDS[language], 5)) for _ in range(n))


@pytest.fixture
def load(tmp_path, kept):
    """Write files, by name, and load the folder; or the one file, of documents."""

    def load(files, tokenizer="characters", place="own", **fields):
        folder = tmp_path / place
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode())
        source = folder / "own.jsonl" if "own.jsonl" in files else folder
        return load_corpus(CorpusConfig(source=str(source), tokenizer=tokenizer, **fields))

    return load


def lines(documents):
    return {"own.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in documents)}


def shares(text):
    """How much of a text is of each language."""
    found = {name: sum(text.count(word) for word in words) for name, words in WORDS.items()}
    return {name: n / sum(found.values()) for name, n in found.items()}


SORTED = [prose(language, 4, i) for language in WORDS for i in range(100)]
BY_TURNS = [prose(language, 4, i) for i in range(100) for language in WORDS]
IN_TWO = [prose(language, 4, i) for i in range(150) for language in ("de", "en")]
THREE = {f"{name}.txt": prose(name, 300) for name in WORDS}


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe-300"])
@pytest.mark.parametrize("documents", [SORTED, BY_TURNS, IN_TWO], ids=["sorted", "turns", "two"])
def test_every_language_of_documents_is_held_out(documents, tokenizer, load):
    corpus = load(lines(documents), tokenizer)
    whole = shares("".join(documents))
    for part in (corpus.train, corpus.dev, corpus.test):
        for language, share in shares(corpus.decode(part)).items():
            assert share == pytest.approx(whole[language], abs=0.07)
    assert re.fullmatch(r"32 of 300 documents, about every tenth \(1[01]% of .*", corpus.held_out)
    assert not unlikeness(corpus)


@pytest.mark.parametrize("end", ["\n\n", "\n", " ", "\r\n\r\n"])
def test_the_end_of_every_file_is_held_out(end, load):
    corpus = load({f"{name}.txt": prose(name, 300, end=end) for name in WORDS})
    for part in (corpus.train, corpus.dev, corpus.test):
        assert min(shares(corpus.decode(part)).values()) > 0.25
    assert corpus.held_out == "the last tenth of each of 3 files"
    assert len(corpus.heldout) / corpus.whole.n_characters == pytest.approx(0.1, abs=0.01)
    assert not unlikeness(corpus)
    if end != " ":  # no line is cut
        kept = {line for text in THREE.values() for line in text.split("\n")}
        assert {*corpus.decode(corpus.heldout).split("\n")} <= kept


@pytest.mark.parametrize(("most", "files"), [(3000, 3), (2**15, 40), (2**16, 3)])
def test_measured_characters_are_divided_among_files(most, files, load):
    names = [[*WORDS][i * 3 // files] for i in range(files)]
    texts = {f"{i:02}.txt": prose(name, 1000 + i, i) for i, name in enumerate(names)}
    corpus = load(texts, measured_characters=most)
    for part in (corpus.dev, corpus.test):
        assert len(part) <= most
        assert len(part) > 0.9 * min(most, 0.05 * corpus.whole.n_characters)
        assert min(shares(corpus.decode(part)).values()) > 0.2


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_measured_documents_cover_a_large_corpus(tokenizer, load):
    corpus = load(lines(SORTED * 3), tokenizer, measured_characters=1500)
    for part in (corpus.dev, corpus.test):
        assert 1200 < len(corpus.decode(part)) <= 1500
        assert min(shares(corpus.decode(part)).values()) > 0.15
    more = load(lines(SORTED * 3), tokenizer, measured_characters=6000)
    assert len(more.decode(more.dev)) > 3000  # not what was kept of fewer
    again = load(lines(SORTED * 3), tokenizer, measured_characters=1500)
    assert corpus.dev.tolist() == again.dev.tolist()


FILES = {f"{name}.txt": prose(name, 100 + 50 * i, i, " ") for i, name in enumerate(WORDS)}


def test_windows_never_span_two_files(load):
    """In training, dev and test: here a line ends only where a file does."""
    corpus = load(FILES)
    for part in PARTS:
        ids, ends = getattr(corpus, part), corpus.ends[part]
        text = corpus.decode(ids)
        places, n = np.arange(len(ids)), len(ids) - 128
        within = [i for i in range(n) if not re.search(r"\n.", text[i : i + 129])]
        drawn, _ = sample_batch(places, ends, 20 * n, 128, torch.Generator().manual_seed(0))
        assert set(drawn[:, 0].tolist()) == set(within)
        spaced = evenly_spaced_windows(torch.from_numpy(places), ends, len(within), 128)
        assert spaced[:, 0].tolist() == within


def test_windows_may_span_documents(load):
    """Many are shorter than a window, in characters as with any tokenizer."""
    for tokenizer in ("characters", "bytes"):
        corpus = load(lines(SORTED), tokenizer)
        assert {part: [*ends] for part, ends in corpus.ends.items()} == {
            part: [len(getattr(corpus, part))] for part in PARTS
        }


def test_a_fraction_is_the_beginning_of_each_file(load):
    whole, part = load(FILES), load(FILES, fraction=0.4)
    files = np.split(whole.train, whole.ends["train"][:-1])
    kept = [file[: int(0.4 * len(file))] for file in files]
    assert part.train.tolist() == np.concatenate(kept).tolist()
    assert is_mapped(part.train)
    assert part.ends["train"].tolist() == np.cumsum([len(file) for file in kept]).tolist()
    assert part.symbols == whole.symbols
    assert part.heldout.equal(whole.heldout)


def test_files_without_a_window_are_counted_and_too_many_are_refused(load):
    short = {f"t{i:02}.txt": prose("de", 1, i) for i in range(30)}
    said = untrained(load(FILES | short), 128)
    assert said.startswith("own: 26 of 29 files are not trained on: they are shorter than model.b")
    assert untrained(load(FILES), 128) == ""
    told = refused(load(short).require_length, 128)
    assert "the train part has 34 characters of its longest file and model.block_size 128" in told


@pytest.mark.parametrize(
    ("tokenizer", "names", "said"),
    [
        ("bytes", ["a/{}.txt", "b/{}.txt"], ", none of own/b"),
        ("characters", ["a/{}.txt", "b/{}.txt"], ", none of own/b"),
        ("characters", ["a/{}.txt", "a/{}.txt"], ""),
    ],
)
def test_sources_without_heldout_text_are_named(tokenizer, names, said, load):
    """Of 33 documents those numbered 0, 10, 19 and 29 are held out."""
    files = {names[i > 29].format(f"{i:02}"): prose("de", 2, i) for i in range(33)}
    assert load(files, tokenizer).held_out.endswith(f"of their text){said}")


def test_one_huge_file_and_many_tiny_ones(load):
    """Tiny ones are whole in one part, the huge one is in all three."""
    tiny = {f"t{i:03}.txt": f"number {i} {prose('de', 2, i)}" for i in range(60)}
    corpus = load({"huge.txt": prose("en", 3000), "nothing.txt": ""} | tiny)
    said = "7 of 60 short files, about every tenth (12% of their text)"
    assert corpus.held_out == f"{said} and the last tenth of each of 1 files"
    parts = [corpus.decode(part) for part in (corpus.train, corpus.dev, corpus.test)]
    for text in tiny.values():
        assert [part.count(f"{text}\n\n") for part in parts].count(1) == 1
        assert sum(text in part for part in parts) == 1
    assert all("sausages" in part for part in parts)


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_heldout_share_of_a_long_document_is_reported(tokenizer, load):
    corpus = load(lines([prose("en", 400), *(prose("en", 2, i) for i in range(40))]), tokenizer)
    assert corpus.held_out == "5 of 41 documents, about every tenth (85% of their text)"


@pytest.mark.parametrize(("n", "tokenizer"), [(11, "bytes"), (11, "characters"), (12, "bpe-260")])
def test_eleven_documents_are_enough(n, tokenizer, load):
    corpus = load({f"{i:02}.txt": f"text {i:02} " + "abc 0123456789" for i in range(n)}, tokenizer)
    assert corpus.decode(corpus.dev).startswith("text 00")
    assert corpus.decode(corpus.test).startswith("text 10")


def test_split_depends_only_on_names_and_bytes(load, tmp_path):
    """Not of the tokenizer, the folder's place, or times."""
    found = []
    documents = {f"{i}/{i}.txt": text for i, text in enumerate(SORTED)}
    for tokenizer, place in (("bytes", "own"), ("bpe-300", "own"), ("bytes", "a [1]/own")):
        corpus = load(dict(reversed(documents.items())), tokenizer, place)
        for number, path in enumerate(sorted((tmp_path / place).rglob("*.txt"))):
            os.utime(path, (number, number))
        found.append([corpus.decode(part) for part in (corpus.train, corpus.dev, corpus.test)])
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_no_question_spans_two_files(load):
    """Questions about what follows a line are asked within a file alone."""
    text = load_corpus(CorpusConfig(source="synthetic")).training_text
    step = len(text) // 12
    files = {f"{i:02}.txt": text[i * step : (i + 1) * step] for i in range(12)}
    suite = build_suite(load(files), None, 128)
    assert len(suite.tasks) >= 5
    for task in suite.tasks:
        for item in task.items:
            assert any(item.text.rstrip("\n") in own for own in files.values())


def test_warns_if_heldout_is_another_kind_of_text(tmp_path):
    (tmp_path / "own.txt").write_text("\n\n".join(THREE[f"{name}.txt"] for name in WORDS), "utf-8")
    said = unlikeness(load_corpus(CorpusConfig(source=str(tmp_path / "own.txt"))))
    assert said.startswith("own.txt: dev, which is held out, is another kind of text")
    for tokenizer in ("characters", "bpe-400"):
        assert not unlikeness(load_corpus(CorpusConfig(source="synthetic", tokenizer=tokenizer)))


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"a.txt": "ab\n\n" * 999, "b.txt": "ab\n\n" * 990 + "aξb\n\n" * 9}, "own/b.txt"),
        ({f"{i:02}.txt": "a ξ" if i == 10 else "a b c" for i in range(12)}, "own/10.txt"),
    ],
)
def test_unseen_symbol_is_reported_with_its_file(files, where, load):
    said = refused(load, files)
    assert "symbol 'ξ' was unseen in training: only the held-out part of " + where in said
