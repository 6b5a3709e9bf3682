import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from lib.run.scoring import Likelihood, Question, score_questions
from lm_eval.api.instance import Instance
from sklearn.metrics import brier_score_loss

import lib.run.lm_eval
from lib.data.suite import Suite, build_suite, write_suite
from lib.data.text import Corpus, CorpusError
from lib.run.evaluate import score
from lib.run.lm_eval import CharacterLM, SuiteResult, evaluate_suite
from lib.run.model import GPT
from lib.study.schema import EmbeddingNorm
from tests.run.samples import direct, make_model


@pytest.fixture(scope="module")
def model(corpus: Corpus) -> GPT:
    return make_model(corpus)


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return build_suite(corpus, 60, 128)


@pytest.fixture(scope="module")
def folder(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(suite, tmp_path_factory.mktemp("harness") / "suite")


@pytest.fixture(scope="module")
def result(model: GPT, corpus: Corpus, folder: Path) -> SuiteResult:
    return evaluate_suite(model, corpus, folder)


def request(context: str, continuation: str, number: int = 0) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0, ("task", number, 1))


CASES = [
    ("To be, or not", " to be"),
    ("\n\nROMEO:\n", "\nAy me"),
    ("\n", "\n\n"),
    ("x", "y"),
    ("A line\n", "Another\n"),
    ("of a shared beginning ", "one"),
    ("of a shared beginning ", "three"),
    ("of a shared beginning ", "a"),
    ("of a shared beginning and", " more"),
]


@pytest.mark.parametrize(
    ("norm", "batch_size"),
    [*zip(get_args(EmbeddingNorm), [1, 4, 64] * 2, strict=True), ("none", 4), ("none", 64)],
)
def test_log_likelihoods_are_direct_sums(corpus: Corpus, norm: str, batch_size: int) -> None:
    model = make_model(corpus, embedding_norm=norm).double()
    adapter = CharacterLM(model, corpus, batch_size)
    found = adapter.loglikelihood([request(*case) for case in CASES])
    for case, (log, greedy) in zip(CASES, found, strict=True):
        expected = direct(model, corpus, *case)
        assert log == pytest.approx(expected[0], abs=1e-5)
        assert greedy is expected[1]


def test_batches_share_a_beginning_without_changing_a_value(model: GPT, corpus: Corpus) -> None:
    shared = "First example, solved.\nSecond example, solved.\n"
    pairs = [
        (shared + text, choice) for text in ("What", "Who", "When is") for choice in (" a", " bc")
    ]
    requests = [request(*pair, number=i // 2) for i, pair in enumerate(pairs)]
    for (log, _), pair in zip(
        CharacterLM(model, corpus).loglikelihood(requests), pairs, strict=True
    ):
        assert log == pytest.approx(direct(model, corpus, *pair)[0], abs=1e-5)


def test_an_empty_context_is_a_line_break(model: GPT, corpus: Corpus) -> None:
    empty, line_break = (
        CharacterLM(model, corpus).loglikelihood([request(c, "O Romeo")]) for c in ("", "\n")
    )
    assert empty == line_break


def test_rolling_perplexity_is_that_of_evaluation(model: GPT, corpus: Corpus) -> None:
    body = corpus.decode(corpus.heldout[: 5 * 128])  # whole windows: here the two agree
    rolling = CharacterLM(model, corpus).loglikelihood_rolling(
        [Instance("loglikelihood_rolling", {}, (body,), 0)]
    )
    expected = np.exp(score(model, corpus.encode("\n" + body), 4).columns["nll"].mean())
    assert np.exp(-rolling[0] / len(body)) == pytest.approx(expected, rel=1e-4)


def test_rolling_scores_every_character_of_a_short_last_window_once(
    model: GPT, corpus: Corpus
) -> None:
    text = corpus.decode(corpus.heldout[:200])
    first = direct(model, corpus, "\n", text[:128])[0]
    last = direct(model, corpus, text[71:128], text[128:])[0]
    rolling = CharacterLM(model, corpus).loglikelihood_rolling(
        [Instance("loglikelihood_rolling", {}, (text,), 0)]
    )
    assert rolling[0] == pytest.approx(first + last, abs=1e-3)


def test_a_context_too_long_loses_its_beginning_and_is_counted(corpus: Corpus) -> None:
    model = make_model(corpus, block_size=16)
    adapter = CharacterLM(model, corpus)
    context = "A context that is too long for it"
    fits = adapter.loglikelihood([request(context[-10:], " yes it")])
    assert not adapter.overflows
    (log, _), (short, _) = adapter.loglikelihood(
        [request(context, " yes it"), request(context, " no")]
    )
    assert len(adapter.overflows) == 1  # question
    assert log == pytest.approx(fits[0][0], abs=1e-5)
    assert short == pytest.approx(direct(model, corpus, context[-14:], " no")[0], abs=1e-5)


def test_errors_name_the_remedy(model: GPT, corpus: Corpus) -> None:
    adapter = CharacterLM(model, corpus)
    with pytest.raises(CorpusError, match="'é' was unseen"):
        adapter.loglikelihood([request("caf", "é")])
    with pytest.raises(ValueError, match="has 0 characters"):
        adapter.loglikelihood([request("a", "")])
    with pytest.raises(ValueError, match="has 129 characters"):
        adapter.loglikelihood([request("a", "b" * 129)])
    with pytest.raises(ValueError, match=r"larger model\.block_size than 128"):
        adapter.generate_until([Instance("generate_until", {}, ("a", {}), 0)])
    with pytest.raises(ValueError, match="block_size is 128"):
        score_questions(model, [Question([1] * 128, [[1, 2]])], 1)


@pytest.mark.slow
def test_a_suite_written_over_another_is_the_one_that_is_asked(
    model: GPT, corpus: Corpus, suite: Suite, tmp_path: Path
) -> None:
    for task in suite.tasks[:2]:
        suite = replace(suite, tasks=[task])
        result = evaluate_suite(model, corpus, write_suite(suite, tmp_path))
        assert result.suite_hash == suite.hash
        assert result.table.task.tolist() == [task.name] * len(task.shots)


def test_every_question_is_asked_and_none_overflows(result: SuiteResult, suite: Suite) -> None:
    assert result.overflows == 0
    assert list(zip(result.table.task, result.table.shots, strict=True)) == [
        (task.name, shots) for shots in (0, 2) for task in suite.tasks
    ]
    assert (result.table.n == 60).all()
    for task in suite.tasks:
        rows = result.items[(result.items.task == task.name) & (result.items.shots == 2)]
        assert rows.item.tolist() == list(range(60))
        right = [item.gold for item in task.items]
        assert rows.correct.tolist() == (rows.choice == right).tolist()


def test_accuracies_are_those_of_direct_sums_over_fixed_prompts(
    result: SuiteResult, suite: Suite, model: GPT, corpus: Corpus
) -> None:
    task = next(task for task in suite.tasks if task.name == "last_word")
    before = "".join(f"{e.text}\n" for e in task.exemplars)
    log = np.array(
        [
            [direct(model, corpus, before + c, item.continuation)[0] for c in item.contexts]
            for item in task.items
        ]
    )
    gold = np.array([item.gold for item in task.items])
    probability = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
    row = result.table.query("task == 'last_word' and shots == 2").iloc[0]
    items = result.items.query("task == 'last_word' and shots == 2")
    assert row.accuracy == pytest.approx((log.argmax(axis=1) == gold).mean())
    assert row.stderr == pytest.approx(np.sqrt(row.accuracy * (1 - row.accuracy) / 59))
    assert row.normalised_accuracy == pytest.approx((row.accuracy - 0.25) / 0.75)
    assert row.accuracy == items.correct.mean()
    assert items.choice.tolist() == log.argmax(axis=1).tolist()
    by_hand = ((probability - np.eye(4)[gold]) ** 2).sum(axis=1).mean()
    assert row.brier == pytest.approx(by_hand, abs=1e-4)
    assert row.brier == pytest.approx(
        brier_score_loss(gold, probability, scale_by_half=False), abs=1e-4
    )


def test_a_model_that_knows_the_answers_is_always_right(
    model: GPT, corpus: Corpus, suite: Suite, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {item.text for task in suite.tasks for item in task.items}

    def knowing(_: GPT, questions: list[Question], batch_size: int) -> list[list[Likelihood]]:
        scores = []
        for question in questions:
            context = corpus.decode(torch.tensor(question.context))
            choices = [corpus.decode(torch.tensor(choice)) for choice in question.choices]
            hits = [any((context + c)[s:] in right for s in range(len(context))) for c in choices]
            scores.append([Likelihood(0.0 if hit else -9.0, False) for hit in hits])
        return scores

    monkeypatch.setattr(lib.run.lm_eval, "score_questions", knowing)
    result = evaluate_suite(model, corpus, folder)
    assert (result.table.accuracy == 1).all()
    assert result.items.correct.all()


def test_a_model_without_preferences_is_at_chance(corpus: Corpus, folder: Path) -> None:
    uniform = make_model(corpus)
    with torch.no_grad():
        uniform.transformer.wte.weight.zero_()  # tied: all characters are equally likely
    table = evaluate_suite(uniform, corpus, folder).table
    # All places tie, the first is chosen, and each of a set is right once.
    np.testing.assert_allclose(table.accuracy, table.chance)
    np.testing.assert_allclose(table.brier, 1 - table.chance, atol=1e-6)
    np.testing.assert_allclose(table.normalised_accuracy, 0, atol=1e-12)


@pytest.mark.slow
def test_a_suite_for_short_contexts_says_what_it_asks(corpus: Corpus, tmp_path: Path) -> None:
    model = make_model(corpus, block_size=32)
    for block_size, tasks in ((32, ["spelling", "agreement", "turn_end", "line_break"]), (16, [])):
        folder = write_suite(build_suite(corpus, 50, block_size), tmp_path / str(block_size))
        result = evaluate_suite(model, corpus, folder)
        assert list(result.table.get("task", [])) == tasks


def test_evaluation_prints_nothing_and_leaves_the_folder_it_ran_in(
    model: GPT, corpus: Corpus, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = Path.cwd()
    evaluate_suite(model, corpus, folder)
    assert Path.cwd() == here
    assert capfd.readouterr() == ("", "")


def test_the_harness_own_task_format_runs_through_the_adapter(
    model: GPT, corpus: Corpus, tmp_path: Path
) -> None:
    texts = ["Good morrow, cousin.", "Is the day so young?"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(lines, "utf-8")
    (tmp_path / "stock.yaml").write_text(
        "task: stock\ndataset_path: json\n"
        "dataset_kwargs: {data_files: {test: texts.jsonl}, cache_dir: .datasets}\n"
        "test_split: test\noutput_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: text\n'
        "metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte,"
        " higher_is_better: false}]\n",
        "utf-8",
    )
    results = lib.run.lm_eval._run(CharacterLM(model, corpus), tmp_path, ["stock"])
    total = sum(direct(model, corpus, "\n", text)[0] for text in texts)
    expected = -total / sum(map(len, texts)) / np.log(2)
    assert results["results"]["stock"]["bits_per_byte,none"] == pytest.approx(expected, rel=1e-5)
