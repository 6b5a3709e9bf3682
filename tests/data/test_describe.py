"""What a study reads is counted truly, and what a text alone tells follows from its counts."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from lib.config.files import write_json
from lib.config.schema import CorpusConfig
from lib.config.study import Study
from lib.data import describe
from lib.data.text import load_corpus
from lib.data.tokens import TOKEN_CLASSES
from lib.stats.tables import repetitions
from tests.conftest import TINY
from tests.data.conftest import nine_to_one


def test_classes_are_counted_and_those_that_a_part_lacks_are_not_available(from_text):
    table = describe.token_class_table(from_text("ab 1.\n" * 60 + "a" * 40))
    assert list(table.index) == list(TOKEN_CLASSES)
    train = {"alphabetic": 120, "numeric": 60, "punctuation": 60, "whitespace": 120}
    assert table["train"].dropna().to_dict() == train
    shares = {name: count / 360 for name, count in train.items()}
    assert table["train share"].dropna().to_dict() == pytest.approx(shares)
    for part in ("dev", "test"):
        assert table[part].dropna().to_dict() == {"alphabetic": 20}
        assert table[f"{part} share"].dropna().to_dict() == {"alphabetic": 1.0}


HELD_OUT_LINES = "the cat sat\n\na new line here\nthe cat sat"
TRAIN_LINES = "the cat sat\n\na new line, is here\n"


@pytest.mark.parametrize(("gram", "long_lines"), [(4, 2 / 3), (11, 2 / 3), (12, 0.0), (16, None)])
def test_duplication_agrees_with_a_search_by_hand(from_text, gram, long_lines):
    corpus = from_text(nine_to_one(TRAIN_LINES, HELD_OUT_LINES))
    train = corpus.decode(corpus.train)
    windows = [HELD_OUT_LINES[i : i + gram] for i in range(len(HELD_OUT_LINES) - gram + 1)]
    found = sum(window in train for window in windows) / len(windows)

    lines, long, grams = describe.duplication_report(corpus, gram)
    assert lines == 2 / 3
    assert math.isnan(long) if long_lines is None else long == long_lines
    assert grams == found
    assert 0 < found < 1


def test_duplication_searches_the_trained_fraction(from_text, monkeypatch):
    text = nine_to_one("abcdefghij\n" * 10, "abcdefghij\n" * 5)
    assert describe.duplication_report(from_text(text), gram=5).eq(1.0).all()
    assert describe.duplication_report(from_text(text, fraction=0.1), gram=5).eq(0.0).all()
    monkeypatch.setattr("lib.data.describe.MAX_SEARCHED", 100)
    assert describe.duplication_report(from_text(text), gram=5).isna().all()


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
@pytest.mark.parametrize(("most", "number"), [(1370, 2), (2**24, 3)])
def test_passages_in_both_parts_are_counted(tokenizer, most, number, tmp_path, kept, monkeypatch):
    """Documents, whatever white space is around them, and lines of a text without blank lines."""
    monkeypatch.setattr("lib.data.describe.MAX_SEARCHED", most)
    of_files = [
        ("own.jsonl", "\n\n", {152: 52, 181: 81, 190: 189}),
        ("own.txt", "\n", {183: 83, 190: 90, 199: 99}),
    ]
    for name, end, copies in of_files:
        documents = [f"document {i:04}" for i in range(200)]
        for i, other in copies.items():
            documents[i] = f" {documents[other]}\n"
        lines = [json.dumps({"text": text}) + "\n" for text in documents]
        content = "".join(lines) if end == "\n\n" else "\n".join(map(str.strip, documents))
        (tmp_path / name).write_text(content, "utf-8")
        corpus = load_corpus(CorpusConfig(source=str(tmp_path / name), tokenizer=tokenizer))
        n = len([*filter(str.strip, corpus.decode(corpus.heldout).split(end))])
        said = f"{name}: {number} of {n} held-out passages are also in the training part"
        if most < len(corpus.train):
            said += f" (only its first 1,370 {corpus.unit} were searched)"
        assert describe.repetition(corpus) == said
        assert describe.repetition(replace(corpus, train=corpus.train[:100])) == ""
        summary = {"repetition": said}
        for texts in ({"a": summary}, {"a": summary, "b": summary, "c": {"repetition": ""}}):
            write_json(tmp_path / "01.json", {"corpora": texts})
            assert repetitions(tmp_path / "01.json") == f"warning: {said}\n"


def test_warnings_are_computed_once_and_cached(from_text, kept, monkeypatch):
    corpus = from_text("to be or not to be\n" * 20 + "ξ" * 400 + "to be or not to be\n" * 10)
    found = describe.warnings_of(corpus)
    assert found["repetition"].startswith("own.txt: 5 of 6 held-out passages are also in the")
    monkeypatch.setattr(describe, "repetition", None)
    assert describe.warnings_of(corpus) == found
    assert {name: describe.corpus_summary(corpus)[name] for name in found} == found


def test_the_summary_is_strict_json_and_tells_identity_and_sizes(from_text, kept):
    corpus = from_text(nine_to_one(TRAIN_LINES, HELD_OUT_LINES))
    summary = describe.corpus_summary(corpus)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert {key: summary[key] for key in list(summary)[:9]} == {
        "corpus": "own.txt",
        "corpus_sha256": corpus.sha256,
        "characters": 400,
        "symbols": "\n ,acehilnrstw",
        "tokenizer_sha256": None,
        "train": 360,
        "heldout": 40,
        "dev": 13,
        "test": 27,
    }
    assert summary["duplication"] == {
        "lines found in train": 2 / 3,
        "lines of at least 24 characters found in train": None,
        "24-character windows found in train": 0.0,
    }
    in_bytes = from_text(nine_to_one(TRAIN_LINES, HELD_OUT_LINES), tokenizer="bytes")
    summary = describe.corpus_summary(in_bytes)
    assert (summary["symbols"], summary["characters"], summary["train"]) == (257, 400, 360)
    assert summary["tokenizer_sha256"] == in_bytes.tokenizer.sha256


def test_a_study_over_corpora_loads_each_once_under_a_name_of_its_own(tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("A line of text.\n\n" * 100, "utf-8")
    levels = {"model.embedding_norm": ["none", "layernorm"], "corpus.fraction": [1.0, 0.5]}
    levels |= {"corpus.source": ["synthetic", str(own)], "training.iterations": [1, 3]}
    study = Study.model_validate(TINY | {"name": "texts", "factors": levels, "seeds": [0]})
    corpora = describe.corpora_of(study)
    names = ["synthetic", str(own)]
    assert list(corpora) == [*names, *(f"{name}, fraction=0.5" for name in names)]
    assert [len(corpus.train) for corpus in corpora.values()] == [990_000, 1530, 495_000, 765]

    # 4 corpora × 2 budgets of 4 × 16 characters a step
    table = describe.sampling_table(study, corpora)
    assert list(table["characters drawn per run"]) == [64, 192] * 4
    assert list(table["passes"][str(own)]) == [64 / 1530, 192 / 1530]
    assert list(table["characters in the training part"][str(own)]) == [1530, 1530]


@pytest.mark.slow
def test_suites_are_one_per_text_and_context_length(tmp_path):
    long = {"model.block_size": 64, "training.batch_size": 1}
    fractions = {"less": 0.02, "more": 0.03}
    arms = [{"name": n, "levels": {"corpus.fraction": f, **long}} for n, f in fractions.items()]
    content = {"name": "contexts", "seeds": [0], "evaluation": {"items_per_task": 50}}
    content |= {"factors": {"corpus.fraction": [0.02, 0.03]}, "include": arms}
    study = Study.model_validate(TINY | content)
    suites = describe.suites_of(study, describe.corpora_of(study), tmp_path)
    assert [suite["block_size"] for suite in suites.values()] == [16, 64]
    assert {folder.name for folder in tmp_path.iterdir() if folder.is_dir()} == set(suites)


# ---- without a network


@pytest.mark.parametrize(("tokenizer", "times"), [("characters", 65_000), ("bytes", 40)])
def test_losses_follow_from_counts_by_hand(tokenizer, times, from_text, kept, monkeypatch):
    tiny = from_text("abcab\n\nbca abc cab\n" * times, tokenizer=tokenizer)
    monkeypatch.setattr("lib.data.describe.SLICE", 1000)  # counts are joined from slices
    found, n = describe.references(tiny, 8), tiny.vocab_size
    train, heldout = tiny.decode(tiny.train), tiny.decode(tiny.heldout)
    counts, pairs = Counter(train), Counter(itertools.pairwise(train))
    entropy = -sum(c / len(train) * math.log(c / len(train)) for c in counts.values())
    unigram = [-math.log((counts[c] + 1) / (len(train) + n)) for c in heldout[1:]]
    before = Counter(train[:-1])
    held = itertools.pairwise(heldout)
    bigram = [-math.log((pairs[a, b] + 1) / (before[a] + n)) for a, b in held]
    assert found["unigram_entropy"] == pytest.approx(entropy)
    assert found["unigram_loss"] == pytest.approx(sum(unigram) / len(unigram))
    assert found["bigram_loss"] == pytest.approx(sum(bigram) / len(bigram), rel=1e-10)
    assert found["uniform_loss"] == pytest.approx(math.log(n))
    assert "source_loss" not in found
    monkeypatch.setattr("lib.data.describe.MAX_PAIRS", n * n - 1)
    assert "bigram_loss" not in describe.references(tiny, 8)


def test_references_equal_those_of_published_runs(shakespeare):
    assert describe.references(shakespeare, 128) == pytest.approx(
        {
            "unigram_entropy": 3.3090842752741243,
            "unigram_loss": 3.3473053353689304,
            "uniform_loss": math.log(65),
            "bigram_loss": 2.4818894321158234,
        },
        rel=1e-12,
    )
    found = describe.references(load_corpus(CorpusConfig(source="synthetic")), 128)
    assert found["source_loss"] == 0.6953409433666945  # as in the results of the study `texts`
    assert 0.6664 < found["source_loss"] < found["bigram_loss"]
