"""The synthetic text is one text, a play that carries the tasks, and no model beats its floor."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from lib.data import synthetic
from lib.data.corpus import Corpus, load_corpus
from lib.data.description import duplication_report
from lib.data.suite import build_suite
from lib.data.synthetic import LENGTH, SHA256, play, synthetic_text
from lib.data.tasks import RULES
from lib.study.fields import CorpusConfig
from lib.study.paths import ROOT


@pytest.fixture(scope="module")
def whole() -> Corpus:
    return load_corpus(CorpusConfig(source="synthetic"))


@pytest.fixture(scope="module")
def heldout(whole: Corpus) -> str:
    return whole.decode(whole.heldout)


@pytest.fixture(scope="module")
def floor(heldout: str) -> np.ndarray:
    return play().nll(heldout, 128)


def test_the_text_is_the_same_in_any_process() -> None:
    code = (
        "import sys; from lib.data.synthetic import synthetic_text\n"
        "print(synthetic_text()[-1000:], 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    other = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    text = synthetic_text()
    assert other.stdout == text[-1000:] + " False\n"
    assert (len(text), hashlib.sha256(text.encode()).hexdigest()) == (LENGTH, SHA256)


def test_another_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_SEED", b"another")
    with pytest.raises(ValueError, match=r"^synthetic: lib/data/synthetic.py writes another text"):
        synthetic_text()


def test_it_is_written_with_nothing_but_integers() -> None:
    """Floating-point numbers would leave its hash to the machine."""
    rules = synthetic._rules()
    assert all(type(weight) is int for strings in rules.values() for weight, _, _ in strings)


def test_its_words_are_many_and_of_few_symbols(whole: Corpus) -> None:
    frequency = Counter(re.findall("[a-z]+", whole.text))
    assert len(frequency) > 1500
    assert 50 <= whole.vocab_size <= 65
    assert set(play().symbols) == set(whole.symbols) == set(whole.text)
    ranked = sorted(frequency.values(), reverse=True)
    slope, _ = np.polyfit(np.log(np.arange(10, 1000)), np.log(ranked[10:1000]), 1)
    assert -1.3 < slope < -1  # Zipf's law; tinyshakespeare has -1.1


def test_it_is_laid_out_as_a_play(whole: Corpus) -> None:
    turns = whole.text.split("\n\n")[1:-1]
    names = {name for names in synthetic._SPEAKERS.values() for name in names.split(", ")}
    for turn in turns:
        speaker, *lines = turn.split("\n")
        assert speaker.removesuffix(":") in names
        assert lines
        assert all(re.fullmatch(r"('T|[A-Z]).*[\w,.;:!?]", line) for line in lines)
    longest = max(len(line) for line in whole.text.split("\n"))
    assert 30 < np.median([len(line) for turn in turns for line in turn.split("\n")[1:]]) < 50
    assert longest < 300


def test_verbs_agree_and_questions_end_with_their_mark(whole: Corpus) -> None:
    words = whole.text.lower()
    assert not re.search(r"\bthou (are|is|have|hath|will|shall|do|doth)\b", words)
    assert not re.search(r"\b(he|she|it) (are|art|have|hast|am|wilt|shalt|do)\b", words)
    assert not re.search(r"\b(we|you|ye|they) (is|art|hath|hast|am|wilt|shalt|doth)\b", words)
    assert not re.search(r"\bevery \w+ (are|have|do)\b", words)
    distant = re.findall(r"\bthe (\w+) that \w+s the \w+ (is|hath|are|have)\b", words)
    assert len(distant) > 50
    assert {verb for _, verb in distant} == {"is", "hath"}
    for line in whole.text.split("\n")[:-1]:
        assert line.startswith(("Why ", "How ")) == line.endswith("?")


def test_the_casts_differ_in_thou_and_you(whole: Corpus) -> None:
    said: dict[str, Counter[str]] = {"court": Counter(), "town": Counter()}
    for turn in whole.text.split("\n\n")[1:-1]:
        speaker, _, speech = turn.partition(":\n")
        cast = "court" if speaker in synthetic._SPEAKERS["court"] else "town"
        said[cast].update(re.findall(r"\b(thou|you)\b", speech.lower()))
    assert said["court"]["thou"] > 5 * said["court"]["you"]
    assert said["town"]["you"] > 5 * said["town"]["thou"]


@pytest.mark.slow
def test_it_carries_every_task_with_and_without_examples(whole: Corpus) -> None:
    suite = build_suite(whole, 500, 128)
    assert [task.name for task in suite.tasks] == list(RULES)
    assert [task.shots for task in suite.tasks] == [[0, 2]] * len(RULES)
    assert min(len(task.items) for task in suite.tasks) >= 100
    assert suite.left_out == {}


def test_no_long_line_of_the_heldout_part_stands_in_train(whole: Corpus) -> None:
    _, long_lines, windows = duplication_report(whole)
    assert long_lines < 0.001
    assert windows < 0.05


def test_the_floor_is_finite_everywhere_and_falls_to_the_entropy_rate(
    floor: np.ndarray, heldout: str
) -> None:
    assert floor.shape == (len(heldout) - 1,)
    assert np.isfinite(floor).all()
    assert floor.min() >= 0
    whole_windows = floor[: len(floor) // 128 * 128].reshape(-1, 128)
    by_position = whole_windows.mean(axis=0)
    assert by_position[0] > 2
    settled = whole_windows[:, 32:].mean(axis=1)
    error = settled.std() / np.sqrt(len(settled))
    assert -4 * error < settled.mean() - play().entropy_rate < 4 * error + 0.02
    assert floor.mean() > settled.mean()


def test_longer_windows_lower_the_floor(floor: np.ndarray, heldout: str) -> None:
    text = heldout[:20_000]
    means = [play().nll(text, block_size).mean() for block_size in (16, 64, 256)]
    assert means[0] > means[1] > means[2]
    assert means[2] == pytest.approx(play().entropy_rate, abs=0.05)


@pytest.mark.slow
def test_no_count_of_ngrams_gets_below_the_floor(
    whole: Corpus, heldout: str, floor: np.ndarray
) -> None:
    """Counts after up to 5 characters of a window, interpolated (Jelinek and Mercer 1980)."""
    train = whole.decode(whole.train[:500_000])
    v = whole.vocab_size
    counts: dict[str, Counter[str]] = {}
    for order in range(1, 6):
        for place in range(len(train) - order):
            following = train[place + order]
            counts.setdefault(train[place : place + order], Counter())[following] += 1
    totals = {context: following.total() for context, following in counts.items()}
    losses = []
    for place in range(1, 20_001):
        begin = (place - 1) // 128 * 128
        p = 1 / v
        for order in range(1, min(5, place - begin) + 1):
            context = heldout[place - order : place]
            if context in totals:
                trust = totals[context] / (totals[context] + 3)
                p = (1 - trust) * p + trust * counts[context][heldout[place]] / totals[context]
        losses.append(-np.log(p))
    above = np.array(losses) - floor[:20_000]
    error = above[:19_968].reshape(-1, 128).mean(axis=1).std() / np.sqrt(156)
    assert above.mean() > 4 * error
    assert above.mean() < 0.7  # and it is a model worth the name
