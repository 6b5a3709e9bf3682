import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lib.analysis.paired import minimum_detectable_effect
from lib.data import suite as suite_of
from lib.data.suite import MIN_ITEMS, Item, LeakageFilter, Suite, Task, build_suite, write_suite
from lib.data.tasks import CONTEXT, N_CHOICES, RULES
from lib.data.text import Corpus, load_corpus
from lib.study.io import ROOT
from lib.study.schema import CorpusConfig


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return build_suite(corpus, None, 128)


@pytest.fixture(scope="module")
def small(corpus: Corpus) -> Suite:
    return build_suite(corpus, 60, 128)


@pytest.fixture(scope="module")
def train(corpus: Corpus) -> str:
    return corpus.text[: len(corpus.text) - len(corpus.heldout)]


def task_of(suite: Suite, name: str) -> Task:
    return next(task for task in suite.tasks if task.name == name)


def sets_of(task: Task) -> list[list[Item]]:
    """The questions of a task, set by set."""
    n = N_CHOICES[task.name]
    return [task.items[i : i + n] for i in range(0, len(task.items), n)]


@pytest.mark.slow
def test_shakespeare_carries_every_task_with_and_without_examples(shakespeare: Corpus) -> None:
    suite = build_suite(shakespeare, None, 128)
    assert [task.name for task in suite.tasks] == list(RULES)
    assert [task.shots for task in suite.tasks] == [[0, 2]] * len(RULES)
    assert suite.left_out == {}
    counts = {task.name: len(task.items) for task in suite.tasks}
    assert min(counts.values()) == counts["agreement"] == 200
    assert sum(counts.values()) == 9_738

    def detected(most: int) -> float:
        """The effect on macro accuracy that eight seeds detect, as `01_data` says."""
        noise = np.sqrt(sum(0.2 / min(n, most) for n in counts.values())) / len(counts)
        return minimum_detectable_effect(noise, 8)

    assert detected(500) < 0.01 < 0.0125 < detected(250) < 0.0135


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shakespeare", "corpus"])
def test_no_look_at_the_places_alone_is_right_more_often_than_chance(
    name: str, request: pytest.FixtureRequest
) -> None:
    text: Corpus = request.getfixturevalue(name)
    words = Counter(text.training_text.split())
    looks: list[Callable[[str], float]] = [
        lambda c: np.mean([np.log1p(words[word]) for word in c.split()]),
        len,
        lambda c: hashlib.sha256(c.encode()).digest()[0],
        lambda _: 0.0,
    ]
    for task in build_suite(text, 100, 128).tasks:
        gold = [item.gold for item in task.items]
        contexts = [c for item in task.items for c in item.contexts]
        likely = suite_of.NGrams(text.training_text).scores([""] * len(contexts), contexts)
        by_look = [*likely.T / [*map(len, contexts)], *([*map(look, contexts)] for look in looks)]
        for found in by_look:
            scores = np.reshape(found, (len(task.items), -1))
            for answers in (scores.argmax(axis=1), scores.argmin(axis=1)):
                assert (answers == gold).mean() == pytest.approx(task.chance)


def test_a_task_that_its_contexts_give_away_is_known_by_them() -> None:
    ngrams = suite_of.NGrams("abab" * 50 + "q")
    items = [Item("x", contexts, contexts.index("qq")) for contexts in (["ab", "qq"], ["qq", "ba"])]
    assert suite_of._baselines(items, ngrams)["choice_alone"] == 0.0
    longer = [Item("x", ["aba", "ab"], 0), Item("x", ["ba", "bab"], 1)]
    assert suite_of._baselines(longer, ngrams)["choice_alone"] == 1.0


def test_each_place_of_a_set_is_right_once_and_one_continuation_is_compared(suite: Suite) -> None:
    for task in suite.tasks:
        assert task.chance == 1 / N_CHOICES[task.name]
        assert len(task.items) % N_CHOICES[task.name] == 0
        for questions in sets_of(task):
            assert all(item.contexts == questions[0].contexts for item in questions)
            assert sorted(item.gold for item in questions) == [*range(N_CHOICES[task.name])]
            assert len({item.continuation for item in questions}) == len(questions)
            assert len(set(questions[0].contexts)) == len(questions)
        orders = {tuple(item.gold for item in questions) for questions in sets_of(task)}
        assert len(orders) > 1


def test_what_is_reached_without_a_network_stands_beside_chance(suite: Suite) -> None:
    table = suite.table().set_index("task")
    assert table["choice_alone"].tolist() == table["chance"].tolist()
    # Every continuation follows a blank, or a line break: one character before it tells nothing.
    for task in ("word_order", "agreement", "turn_end", "last_word", "next_line"):
        assert table.loc[task, "bigram"] == table.loc[task, "chance"]
    assert table.loc["spelling", "five_gram"] > 0.9
    assert 0.5 < table.loc["agreement", "five_gram"] < 0.9
    n = len(task_of(suite, "agreement").items)
    assert table.loc["agreement", "stderr"] == pytest.approx(0.5 / np.sqrt(n))


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
            text = item.text
            assert not shares(text)
            # Its lines: of a turn's end, the one it is about and not the one after it.
            asked = item.contexts[item.gold] if task.name == "turn_end" else text
            asked = asked.rstrip("\n")
            places = [match.start() for match in re.finditer(re.escape(text), test)]
            touched = [lines_at(place, place + len(asked)) for place in places]
            assert any(
                not any(line in known_lines or shares(line) for line in lines) for lines in touched
            ), (task.name, text)


def test_items_are_text_of_test_and_examples_of_dev(suite: Suite, corpus: Corpus) -> None:
    dev, test = corpus.decode(corpus.dev), corpus.decode(corpus.test)
    for task in suite.tasks:
        assert all(item.text in test for item in task.items)
        assert len(task.exemplars) == 2
        assert all(item.text in dev for item in task.exemplars)


def test_contexts_are_short_and_no_question_is_asked_twice(suite: Suite) -> None:
    for task in suite.tasks:
        # Else the place at which what all begin with is likeliest would look right for all.
        assert len({item.continuation[0] for item in task.items}) > 1
        assert all(0 < len(c) <= CONTEXT + 1 for item in task.items for c in item.contexts)
        assert len({item.text for item in task.items}) == len(task.items)


def test_places_of_word_order_are_of_one_line(suite: Suite, corpus: Corpus) -> None:
    lines = corpus.decode(corpus.test).split("\n")
    for questions in sets_of(task_of(suite, "word_order"))[:50]:
        assert any(all(item.text in line for item in questions) for line in lines)
        assert all(re.fullmatch(r"\S+ ", item.continuation) for item in questions)


def test_halves_of_words_make_a_word_with_their_own_and_with_no_other(
    suite: Suite, train: str
) -> None:
    words = set(re.findall(r"(?<![\w'’-])[a-z]+(?![\w'’-])", train))
    for item in task_of(suite, "spelling").items:
        made = [f"{c.rsplit(' ')[-1]}{item.continuation[:-1]}" in words for c in item.contexts]
        assert made == [place == item.gold for place in range(4)]
        assert len({context[-1] for context in item.contexts}) == 1


WRONG = r"\b([Tt]hou (are|have|will|shall|is|am)|(I|[Ww]e|[Tt]hey) (art|hast|is|hath)|[Hh]e are)$"


def test_agreement_tells_person_and_number(suite: Suite) -> None:
    seen = Counter[bool]()
    for item in task_of(suite, "agreement").items:
        for place, context in enumerate(item.contexts):
            wrong = re.search(WRONG, context + item.continuation)
            assert not (wrong and place == item.gold)
            seen[bool(wrong)] += 1
    assert seen[True] > 20
    asked = {item.continuation for item in task_of(suite, "agreement").items}
    assert {"art", "are", "am", "thou", "he"} <= asked


def test_one_place_of_two_ends_a_turn_or_a_line(suite: Suite) -> None:
    for one, other in sets_of(task_of(suite, "turn_end")):
        ended, going_on = sorted((one.continuation, other.continuation))
        assert ended == "\n"
        assert re.fullmatch(r"\S", going_on)
    for one, other in sets_of(task_of(suite, "line_break")):
        assert {one.continuation, other.continuation} == {"\n", " "}
        marks = {"a" if c[-1].isalpha() else c[-1] for c in one.contexts}
        assert len(marks) == 1


@pytest.mark.slow
def test_a_smaller_suite_is_the_beginning_of_a_larger_one(suite: Suite, small: Suite) -> None:
    for task, whole in zip(small.tasks, suite.tasks, strict=True):
        assert task.items == whole.items[: len(task.items)]
        assert len(task.items) == 60
        assert task.exemplars == whole.exemplars


@pytest.mark.slow
def test_the_hash_is_the_same_in_another_process_and_for_any_training_share(small: Suite) -> None:
    code = (
        "from lib.data.suite import build_suite\n"
        "from lib.study.schema import CorpusConfig\n"
        "from lib.data.text import load_corpus\n"
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
    assert {"spelling", "word_order", "last_word"} <= asked
    assert {"agreement", "line_break"} <= made_up_suite.left_out.keys()
    reason = made_up_suite.left_out["agreement"]
    assert reason == f"0 questions, {MIN_ITEMS} needed: give a longer text"


def test_a_task_with_just_the_fewest_questions_is_asked(
    made_up: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_of, "N_CHOICES", {"spelling": 4})
    (task,) = build_suite(made_up, None, 128).tasks
    n = len(task.items)
    for fewest, left_out in (
        (n, {}),
        (n + 1, {"spelling": f"{n} questions, {n + 1} needed: give a longer text"}),
    ):
        monkeypatch.setattr(suite_of, "MIN_ITEMS", fewest)
        assert build_suite(made_up, None, 128).left_out == left_out


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [24, 64, 100])
def test_prompts_that_do_not_fit_are_left_out_by_name(corpus: Corpus, block_size: int) -> None:
    suite = build_suite(corpus, 200, block_size)
    for task in suite.tasks:
        longest = max(len(c + i.continuation) for i in task.items for c in i.contexts)
        for shots in task.shots:
            examples = task.exemplars[:shots]
            before = sum(len(e.text) + 1 for e in examples)
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


def test_the_suite_is_written_for_the_harness(made_up_suite: Suite, tmp_path: Path) -> None:
    folder = write_suite(made_up_suite, tmp_path / "suite")
    described = json.loads((folder / "suite.json").read_text("utf-8"))
    assert described["hash"] == made_up_suite.hash
    assert described["left_out"] == made_up_suite.left_out
    for task in made_up_suite.tasks:
        lines = (folder / f"{task.name}.test.jsonl").read_text("utf-8").splitlines()
        assert [Item(**json.loads(line)) for line in lines] == task.items
    written = " ".join(path.read_text("utf-8") for path in folder.iterdir())
    assert str(tmp_path) not in written


def test_no_suite_is_made_of_no_questions(corpus: Corpus) -> None:
    suite = build_suite(corpus, 0, 128)
    assert (suite.tasks, list(suite.left_out)) == ([], ["all tasks"])
    assert suite.table().empty
