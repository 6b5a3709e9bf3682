"""The suite asks fair questions of held-out text that do not leak, the same ones anywhere, and its
files are made anew when they are damaged."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from lib.config.schema import CorpusConfig
from lib.data import suite as suite_of
from lib.data.suite import MIN_ITEMS, Item, build_suite, prepare_suite
from lib.data.tasks import CONTEXT, N_CHOICES, RULES, Lexicon
from lib.data.text import load_corpus


@pytest.fixture(scope="module")
def suite(corpus):
    return build_suite(corpus, None, 128)


def task_of(suite, name):
    return next(task for task in suite.tasks if task.name == name)


def sets_of(task):
    """The questions of a task, set by set."""
    n = N_CHOICES[task.name]
    return [task.items[i : i + n] for i in range(0, len(task.items), n)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hash", "few"),
    [
        ("shakespeare", "97f7d045c7b69e505d74902976f36ec653a17c2bb654016811f9598e56733068", 200),
        ("corpus", "b578e776798100dc099c0510ab256570652f6b533faf3c03077b628e730d8bc2", 164),
    ],
)
def test_questions_equal_those_of_published_runs(name, hash, few, request):
    """Golden; of the second text a sliver is trained on. Both carry every task."""
    text = request.getfixturevalue(name)
    suite = build_suite(text, 500, 128)
    assert suite.hash == hash
    assert [task.name for task in suite.tasks] == list(RULES)
    assert [task.shots for task in suite.tasks] == [[0, 2]] * len(RULES)
    assert suite.left_out == {}
    assert min(len(task.items) for task in suite.tasks) == few


def test_each_place_of_a_set_is_right_once_and_one_continuation_is_compared(suite):
    for task in suite.tasks:
        orders = set()
        for questions in sets_of(task):
            assert all(item.contexts == questions[0].contexts for item in questions)
            assert sorted(item.gold for item in questions) == [*range(N_CHOICES[task.name])]
            assert len({item.continuation for item in questions}) == len(questions)
            assert len(set(questions[0].contexts)) == len(questions)
            orders.add(tuple(item.gold for item in questions))
        assert len(orders) > 1


@pytest.mark.slow
def test_no_item_occurs_in_train_by_brute_force(suite, corpus):
    test, train = corpus.decode(corpus.test), corpus.training_text
    known_lines = set(train.splitlines())
    known = {train[i : i + 24] for i in range(len(train))}

    def shares(text):
        return any(text[i : i + 24] in known for i in range(len(text) - 23))

    def lines_at(start, end):
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


def test_items_are_short_texts_of_test_and_examples_of_dev(suite, corpus):
    dev, test = corpus.decode(corpus.dev), corpus.decode(corpus.test)
    for task in suite.tasks:
        assert all(item.text in test for item in task.items)
        assert len(task.exemplars) == 2
        assert all(item.text in dev for item in task.exemplars)
        # Else the place at which what all begin with is likeliest would look right for all.
        assert len({item.continuation[0] for item in task.items}) > 1
        assert all(0 < len(c) <= CONTEXT + 1 for item in task.items for c in item.contexts)
        assert len({item.text for item in task.items}) == len(task.items)


WRONG = r"\b([Tt]hou (are|have|will|shall|is|am)|(I|[Ww]e|[Tt]hey) (art|hast|is|hath)|[Hh]e are)$"


def test_each_rule_makes_questions_with_one_right_place(suite, corpus):
    """By what each task promises of its places and continuations."""
    lines = corpus.decode(corpus.test).split("\n")
    for questions in sets_of(task_of(suite, "word_order"))[:50]:
        assert any(all(item.text in line for item in questions) for line in lines)
        assert all(re.fullmatch(r"\S+ ", item.continuation) for item in questions)
    words = set(re.findall(r"(?<![\w'’-])[a-z]+(?![\w'’-])", corpus.training_text))
    for item in task_of(suite, "spelling").items:
        made = [f"{c.rsplit(' ')[-1]}{item.continuation[:-1]}" in words for c in item.contexts]
        assert made == [place == item.gold for place in range(4)]
        assert len({context[-1] for context in item.contexts}) == 1
    disagreeing = 0
    for item in task_of(suite, "agreement").items:
        wrong = [re.search(WRONG, context + item.continuation) for context in item.contexts]
        assert not wrong[item.gold]
        disagreeing += any(wrong)
    assert disagreeing > 20
    for one, other in sets_of(task_of(suite, "turn_end")):
        ended, going_on = sorted((one.continuation, other.continuation))
        assert ended == "\n"
        assert re.fullmatch(r"\S", going_on)
    for one, other in sets_of(task_of(suite, "line_break")):
        assert {one.continuation, other.continuation} == {"\n", " "}
        assert len({"a" if c[-1].isalpha() else c[-1] for c in one.contexts}) == 1


def test_a_smaller_suite_is_the_beginning_of_a_larger_one(corpus, suite):
    small = [replace(task, items=task.items[:60]) for task in suite.tasks]
    assert build_suite(corpus, 60, 128).hash == replace(suite, tasks=small).hash


# ---- texts and block sizes that do not carry all


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
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


def test_left_out_suite_says_why(made_up, monkeypatch):
    monkeypatch.setattr("lib.data.text.Corpus.training_text", "")
    for items, said in ((0, "items_per_task is 0"), (50, "too long"), (None, "too long")):
        assert said in build_suite(made_up, items, 128).left_out["all tasks"]


def test_tasks_with_too_few_questions_are_left_out(made_up, monkeypatch):
    suite = build_suite(made_up, 60, 128)
    asked = {task.name for task in suite.tasks}
    assert {"spelling", "word_order", "last_word"} <= asked
    assert suite.left_out["agreement"] == f"0 questions, {MIN_ITEMS} needed: give a longer text"
    n = len(build_suite(made_up, None, 128).tasks[0].items)
    for fewest in (n, n + 1):  # with just the fewest questions it is asked
        monkeypatch.setattr(suite_of, "MIN_ITEMS", fewest)
        left_out = build_suite(made_up, None, 128).left_out
        assert (suite.tasks[0].name in left_out) == (fewest > n)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [24, 100])
def test_prompts_that_do_not_fit_are_left_out_by_name(corpus, block_size):
    suite = build_suite(corpus, 200, block_size)
    for task in suite.tasks:
        longest = max(len(c + i.continuation) for i in task.items for c in i.contexts)
        for shots in task.shots:
            before = sum(len(e.text) + 1 for e in task.exemplars[:shots])
            assert before + longest - 1 <= block_size
        if max(task.shots) < 2:
            assert f"{task.name}, {max(task.shots) + 1}-shot" in suite.left_out
            more = task.exemplars[: max(task.shots) + 1]
            assert sum(len(e.text) + 1 for e in more) + longest - 1 > block_size
    names = {task.name for task in suite.tasks}
    assert names.isdisjoint(suite.left_out)
    assert names | {name.partition(",")[0] for name in suite.left_out} == set(RULES)
    assert all(str(block_size) in reason for reason in suite.left_out.values())


@pytest.mark.slow
def test_question_that_fills_the_context_exactly_is_kept(corpus):
    (task, *_) = build_suite(corpus, 200, 100).tasks
    longest = max(len(c + i.continuation) for i in task.items for c in i.contexts)
    fits, does_not = (build_suite(corpus, 200, longest - n) for n in (1, 2))
    assert task.name in {each.name for each in fits.tasks}  # the last character is never read
    assert task.name in does_not.left_out


def test_no_suite_is_made_of_no_questions_or_of_a_text_too_long(corpus, monkeypatch):
    for items, characters in ((0, 2**24), (60, 1000)):
        monkeypatch.setattr("lib.data.text.MAX_SEARCHED", characters)
        suite = build_suite(corpus, items, 128)
        assert (suite.tasks, list(suite.left_out)) == ([], ["all tasks"])


def test_the_leakage_filter_finds_lines_and_24_grams():
    lexicon = Lexicon("short line\nabcdefghijklmnopqrstuvwxyz\n")
    assert lexicon.leaks("short line")
    assert not lexicon.leaks("short lin")
    assert lexicon.leaks("... abcdefghijklmnopqrstuvwx ...")
    assert lexicon.leaks("... abcdefghijklmnopqrstuvwx")  # at the text's end
    assert Lexicon("... abcdefghijklmnopqrstuvwx").leaks("abcdefghijklmnopqrstuvwx ...")
    assert not lexicon.leaks("... abcdefghijklmnopqrstuvw ...")


# ---- files


@pytest.mark.slow
def test_each_text_and_size_has_its_own_suite(corpus, kept):
    folder, described = prepare_suite(corpus, 50, 48)
    assert (described["corpus_sha256"], described["block_size"]) == (corpus.sha256, 48)
    shorter = replace(corpus, test=corpus.test[:-4000])
    asked = [(corpus, 50, 64), (corpus, 0, 48), (shorter, 50, 48)]
    assert len({folder, *(prepare_suite(*one)[0] for one in asked)}) == 4


def test_a_suite_is_built_once_for_all_runs_until_its_code_changes(corpus, kept, monkeypatch):
    build = Mock(wraps=build_suite)
    monkeypatch.setattr(suite_of, "build_suite", build)
    made = [prepare_suite(corpus, 50, 48) for _ in range(2)]
    assert made[0] == made[1]
    more = replace(corpus, train=corpus.train[:1000])  # another fraction is asked the same
    assert prepare_suite(more, 50, 48) == made[0]
    assert build.call_count == 1
    code = suite_of.imported_code() | {"lib/data/tasks.py": "edited"}
    monkeypatch.setattr(suite_of, "imported_code", lambda: code)
    folder, described = prepare_suite(corpus, 50, 48)
    assert (build.call_count, described) == (2, made[0][1])
    assert folder != made[0][0]


def test_the_suite_is_written_for_the_harness(corpus, suite, kept, tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager  # seconds

    monkeypatch.setattr(suite_of, "build_suite", lambda *size: suite)
    folder, _ = prepare_suite(corpus, 50, 128)
    for path in [*folder.iterdir(), folder / "more.yaml"]:  # written again, whatever is there
        path.write_bytes(b"other")
    _, described = prepare_suite(corpus, 50, 128)
    assert (described["hash"], described["left_out"]) == (suite.hash, suite.left_out)
    for task, row in zip(suite.tasks, described["tasks"], strict=True):
        lines = (folder / f"{task.name}.test.jsonl").read_text("utf-8").splitlines()
        assert [Item(**json.loads(line)) for line in lines] == task.items
        assert (row["task"], row["items"], row["shots"]) == (task.name, len(task.items), "0, 2")
        chance = 1 / N_CHOICES[task.name]
        assert row["stderr"] == pytest.approx(math.sqrt(chance * (1 - chance) / len(task.items)))
    assert str(tmp_path) not in " ".join(path.read_text("utf-8") for path in folder.iterdir())
    monkeypatch.chdir(folder)
    groups = ["macro_zero_shot", "macro_few_shot"]
    (mean,) = json.loads(Path("macro_zero_shot.yaml").read_text("utf-8"))["aggregate_metric_list"]
    assert not mean["weight_by_size"]  # each task counts the same
    tasks = TaskManager(include_path=".", include_defaults=False).load(groups)["tasks"]
    assert len(tasks) == 2 * len(suite.tasks)
    for harness_task in tasks.values():
        assert harness_task.higher_is_better() == {"acc": True, "brier_score": False}
