import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lib.data.corpus import Corpus, load_corpus
from lib.data.suite import FEWEST_ITEMS, LeakageFilter, Suite, build_suite
from lib.data.suite_files import write_suite
from lib.data.tasks import CONTEXT, N_CHOICES, RULES, Lexicon, Passage
from lib.study.fields import CorpusConfig
from lib.study.paths import ROOT


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return build_suite(corpus, None, 128)


@pytest.fixture(scope="module")
def small(corpus: Corpus) -> Suite:
    return build_suite(corpus, 60, 128)


@pytest.fixture(scope="module")
def train(corpus: Corpus) -> str:
    return corpus.text[: len(corpus.text) - len(corpus.heldout)]


def choices_of(suite: Suite, name: str) -> list[tuple[str, list[str]]]:
    """The answer and the distractors of every item of a task."""
    task = next(task for task in suite.tasks if task.name == name)
    return [
        (item.choices[item.gold], [c for i, c in enumerate(item.choices) if i != item.gold])
        for item in task.items
    ]


@pytest.mark.slow
def test_shakespeare_carries_every_task_with_and_without_examples(shakespeare: Corpus) -> None:
    suite = build_suite(shakespeare, None, 128)
    assert [task.name for task in suite.tasks] == list(RULES)
    assert [task.shots for task in suite.tasks] == [[0, 2]] * 8
    assert suite.left_out == {}
    counts = {task.name: len(task.items) for task in suite.tasks}
    assert min(counts.values()) == counts["agreement"] == 166
    assert sum(counts.values()) == 10_124


@pytest.mark.slow
def test_no_item_stands_in_train_by_brute_force(suite: Suite, corpus: Corpus, train: str) -> None:
    test = corpus.decode(corpus.test)
    known_lines = set(train.splitlines())
    known = {train[i : i + 24] for i in range(len(train))}

    def shares(text: str) -> bool:
        return any(text[i : i + 24] in known for i in range(len(text) - 23))

    def lines_at(start: int, end: int) -> list[str]:
        begin, stop = test.rfind("\n", 0, start) + 1, test.find("\n", end)
        return [line for line in test[begin : stop if stop >= 0 else None].split("\n") if line]

    for task in suite.tasks:
        for item in task.items:
            text = item.context + item.choices[item.gold]
            assert not shares(text)
            # Its lines: of a turn's end, the one it is about and not the one after it.
            asked = item.context if task.name == "turn_end" else text.rstrip("\n")
            places = [match.start() for match in re.finditer(re.escape(text), test)]
            touched = [lines_at(place, place + len(asked)) for place in places]
            assert any(
                not any(line in known_lines or shares(line) for line in lines) for lines in touched
            ), (task.name, text)


def test_items_are_text_of_test_and_examples_of_dev(suite: Suite, corpus: Corpus) -> None:
    dev, test = corpus.decode(corpus.dev), corpus.decode(corpus.test)
    for task in suite.tasks:
        assert all(item.context + item.choices[item.gold] in test for item in task.items)
        assert len(task.exemplars) == 2
        assert all(item.context + item.choices[item.gold] in dev for item in task.exemplars)


def test_choices_are_distinct_equally_long_and_contexts_short(suite: Suite) -> None:
    for task in suite.tasks:
        assert task.chance == 1 / N_CHOICES[task.name]
        for item in task.items:
            assert len(set(item.choices)) == len(item.choices) == N_CHOICES[task.name]
            assert len(set(map(len, item.choices))) == 1
            assert 0 < len(item.context) <= CONTEXT + 1


def test_no_question_is_asked_twice(suite: Suite) -> None:
    for task in suite.tasks:
        asked = Counter((item.context, item.choices[item.gold]) for item in task.items)
        assert max(asked.values()) == 1


@pytest.mark.parametrize("n", [50, 166])
def test_gold_stands_in_every_place_equally_often(suite: Suite, n: int) -> None:
    for task in suite.tasks:
        counts = Counter(item.gold for item in task.items[:n])
        assert len(counts) == N_CHOICES[task.name]
        assert max(counts.values()) - min(counts.values()) <= 1
        assert len({tuple(i.gold for i in task.items[k : k + 8]) for k in range(0, 40, 8)}) > 1


def test_both_answers_of_turn_end_are_right_equally_often(suite: Suite) -> None:
    answers = Counter(answer == "\n\n" for answer, _ in choices_of(suite, "turn_end"))
    assert abs(answers[True] - answers[False]) < 30  # duplicates go after balancing


def test_word_order_permutes_words_and_spelling_letters(suite: Suite) -> None:
    for answer, wrong in choices_of(suite, "word_order"):
        assert all(sorted(other.split()) == sorted(answer.split()) for other in wrong)
    for answer, wrong in choices_of(suite, "spelling"):
        assert all(sorted(other) == sorted(answer) for other in wrong)


def test_distractors_of_spelling_and_lexical_decision_are_no_words(
    suite: Suite, train: str
) -> None:
    words = set(re.findall(r"(?<![\w'’-])[a-z]+(?![\w'’-])", train))
    for name in ("spelling", "lexical_decision"):
        for answer, wrong in choices_of(suite, name):
            assert answer[1:] in words
            assert not words.intersection(other[1:] for other in wrong)
    for answer, wrong in choices_of(suite, "lexical_decision"):
        assert all(sum(a != b for a, b in zip(answer, w, strict=True)) == 1 for w in wrong)


def test_distractors_of_last_word_are_about_as_frequent(suite: Suite, train: str) -> None:
    frequency = Counter(re.findall(r"(?<![\w'’-])[a-z]+(?![\w'’-])", train))
    ratios = [
        abs(
            np.log(
                frequency[other[1:].rstrip("\n.,;:!?")] / frequency[answer[1:].rstrip("\n.,;:!?")]
            )
        )
        for answer, wrong in choices_of(suite, "last_word")
        for other in wrong
        if frequency[other[1:].rstrip("\n.,;:!?")]
    ]
    assert np.median(ratios) < 0.2
    assert np.mean(ratios) < 0.5


def test_agreement_tells_person_and_number(suite: Suite) -> None:
    task = next(task for task in suite.tasks if task.name == "agreement")
    for item in task.items:
        text = item.context + item.choices[item.gold]
        assert not re.search(r"\b(thou|Thou) (are|have|will|shall|is)$", text)
        assert not re.search(r"\b(I|we|We|they) (art|hast|is|hath)$", text)
    assert {" art", " are", " hast", " am"} <= {
        answer for answer, _ in choices_of(suite, "agreement")
    }


def test_line_break_differs_in_breaks_and_capitals_only(suite: Suite) -> None:
    for answer, wrong in choices_of(suite, "line_break"):
        assert all(other.lower().split() == answer.lower().split() for other in wrong)
        assert all(other.count("\n") == 1 for other in (answer, *wrong))


@pytest.mark.slow
def test_a_smaller_suite_is_the_beginning_of_a_larger_one(suite: Suite, small: Suite) -> None:
    for task, whole in zip(small.tasks, suite.tasks, strict=True):
        assert task.items == whole.items[:60]
        assert task.exemplars == whole.exemplars


@pytest.mark.slow
def test_the_hash_is_the_same_in_another_process_and_for_any_training_share(small: Suite) -> None:
    code = (
        "from lib.data.suite import build_suite\n"
        "from lib.study.fields import CorpusConfig\n"
        "from lib.data.corpus import load_corpus\n"
        "print(build_suite(load_corpus(CorpusConfig(source='synthetic')), 60, 128).hash)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", code]
    other = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == small.hash


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Prose of nonsense words: no verse, no pronouns, but words, lines and paragraphs."""
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("aeioulrnst"), size=n)) for n in [3, 5, 6, 7, 8] * 40]
    paragraphs = []
    for _ in range(400):
        lines = [" ".join(generator.choice(words, size=7)) + "." for _ in range(4)]
        paragraphs.append("\n".join(lines))
    path = tmp_path_factory.mktemp("corpus") / "nonsense.txt"
    path.write_text("\n\n".join(paragraphs), "utf-8")
    return load_corpus(CorpusConfig(source=str(path)))


@pytest.fixture(scope="module")
def made_up_suite(made_up: Corpus) -> Suite:
    return build_suite(made_up, 60, 128)


def test_tasks_that_a_text_does_not_carry_are_left_out_by_name(made_up_suite: Suite) -> None:
    asked = {task.name for task in made_up_suite.tasks}
    assert {"spelling", "lexical_decision", "last_word"} <= asked
    assert {"agreement", "line_break"} <= made_up_suite.left_out.keys()
    reason = made_up_suite.left_out["agreement"]
    assert reason == f"0 questions, {FEWEST_ITEMS} needed: give a longer text"


def test_another_corpus_gives_another_hash(small: Suite, made_up_suite: Suite) -> None:
    assert made_up_suite.hash != small.hash


def test_a_text_too_short_for_any_task_leaves_all_out(tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("one two three\n" * 30, "utf-8")
    suite = build_suite(load_corpus(CorpusConfig(source=str(path))), 500, 128)
    assert suite.tasks == []
    assert set(suite.left_out) == set(RULES)
    assert list(suite.table().columns) == ["task", "items", "shots", "chance", "rule"]


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [24, 64, 100])
def test_prompts_that_do_not_fit_are_left_out_by_name(corpus: Corpus, block_size: int) -> None:
    suite = build_suite(corpus, 200, block_size)
    for task in suite.tasks:
        longest = max(len(item.context + item.choices[0]) for item in task.items)
        for shots in task.shots:
            examples = task.exemplars[:shots]
            before = sum(len(e.context + e.choices[e.gold]) + 1 for e in examples)
            assert before + longest - 1 <= block_size
        if max(task.shots) < 2:
            assert f"{task.name}, {max(task.shots) + 1}-shot" in suite.left_out
    names = {task.name for task in suite.tasks}
    assert names.isdisjoint(suite.left_out)
    assert names | {name.partition(",")[0] for name in suite.left_out} == set(RULES)
    assert all(str(block_size) in reason for reason in suite.left_out.values())


def test_the_leakage_filter_finds_lines_and_24_grams() -> None:
    leakage = LeakageFilter("short line\nabcdefghijklmnopqrstuvwxyz\n")
    assert leakage.leaks("short line")
    assert not leakage.leaks("short lin")
    assert leakage.leaks("... abcdefghijklmnopqrstuvwx ...")
    assert not leakage.leaks("... abcdefghijklmnopqrstuvw ...")


def test_pairs_of_lines_need_both_lines() -> None:
    passage = Passage(["a", "b", "c", "d"], [True, True, False, True])
    assert passage.usable_pairs() == [("a", "b")]
    assert passage.usable_lines() == ["a", "b", "d"]


def test_a_word_inside_a_line_keeps_the_capital_of_a_name() -> None:
    lexicon = Lexicon("And thus and thus and Richard\nAnd I and I\n")
    assert lexicon.inside_a_line("And") == "and"
    assert lexicon.inside_a_line("Richard,") == "Richard,"
    assert lexicon.inside_a_line("I") == "I"


def test_the_suite_is_written_for_the_harness(made_up_suite: Suite, tmp_path: Path) -> None:
    folder = write_suite(made_up_suite, tmp_path / "suite")
    described = json.loads((folder / "suite.json").read_text("utf-8"))
    assert described["hash"] == made_up_suite.hash
    assert described["left_out"] == made_up_suite.left_out
    for task in made_up_suite.tasks:
        lines = (folder / f"{task.name}.test.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line)["context"] for line in lines] == [i.context for i in task.items]
    written = " ".join(path.read_text("utf-8") for path in folder.iterdir())
    assert str(tmp_path) not in written


def test_no_suite_is_made_of_no_questions(corpus: Corpus) -> None:
    suite = build_suite(corpus, 0, 128)
    assert (suite.tasks, list(suite.left_out)) == ([], ["all tasks"])
    assert suite.table().empty
