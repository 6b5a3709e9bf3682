"""The harness's tasks, with small data in their format, asked of our model, and of the same model
in Hugging Face's GPT-2 through the harness's adapter: same likelihoods, same answers."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import datasets
import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from lib.config.errors import ConfigError
from lib.config.paths import ROOT
from lib.config.schema import CorpusConfig, EvaluationConfig
from lib.data.text import load_corpus
from lib.train import lm_eval as harness
from lib.train.lm_eval import TokenLM, evaluate_tasks, require_tasks
from tests.conftest import refused
from tests.train.samples import as_loaded, make_model

pytestmark = pytest.mark.slow

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "A question has an answer; an answer has a reason, and the reason 7 words.",
    "Heat the water. Then add the leaves, wait 3 minutes, and pour.",
]
DATA = {
    "EleutherAI/lambada_openai": [{"text": text} for text in TEXTS],
    "Rowan/hellaswag": [
        {
            "activity_label": "Making tea",
            "ctx_a": "Someone heats water.",
            "ctx_b": "they",
            "endings": ["add leaves and wait.", "sing.", "fly to the moon [title] now.", "sleep"],
            "label": str(label),
        }
        for label in (0, 3, 1)
    ],
    "baber/piqa": [
        {"goal": f"To open a jar {n},", "sol1": "twist the lid.", "sol2": "eat it", "label": n % 2}
        for n in range(4)
    ],
    "allenai/ai2_arc": [
        {
            "question": f"What is {n} more than 2?",
            "choices": {"text": ["two", "three", str(n + 2), "a dog "], "label": list("ABCD")},
            "answerKey": "C",
        }
        for n in range(5)
    ],
    "openai/gsm8k": [{"question": f"{n} + 2 = ?", "answer": f"#### {n + 2}"} for n in range(3)],
}
"""What each task downloads, as little of it as it takes."""
SHARED = "dataset_path: own\ntest_split: test\noutput_type: multiple_choice\n"
CHOICES = "doc_to_target: label\ndoc_to_choice: '{{[sol1, sol2]}}'\n"
AMID = "doc_to_target: 0\ndoc_to_choice: [' a', e]\n"
ACC = "metric_list: [{metric: acc, aggregation: %s, higher_is_better: true}]\n"
OWN = {
    "unjudged": f"doc_to_text: '{{{{goal}}}}'\n{CHOICES}{ACC % 'median'}",
    "joined": f"doc_to_text: over th\ntarget_delimiter: ''\n{AMID}{ACC % 'mean'}",
}
"""Tasks of one's own: one of which the accuracy is no share, and one whose contexts end amid a word
that its last choice goes on with."""
DATA["own"] = DATA["baber/piqa"] + [{"goal": "a", "sol1": "b", "sol2": "ly, at " * 9, "label": 0}]
TASKS = ["lambada_openai", "hellaswag", "piqa", "arc_easy", "arc_challenge"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of documents, in byte pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "texts").mkdir()
    for number in range(30):
        (folder / "texts" / f"{number}.txt").write_text(TEXTS[number % 3] * 3, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.data.cache.output_root", lambda: folder)
        return load_corpus(CorpusConfig(source=str(folder / "texts"), tokenizer="bpe-300"))


@pytest.fixture(scope="module")
def model(corpus):
    return make_model(corpus, block_size=384)


@pytest.fixture(scope="module")
def peer(model, corpus, tmp_path_factory):
    """Hugging Face's model, loaded from a folder, in the harness's own adapter."""
    from transformers import PreTrainedTokenizerFast

    if "accelerate" not in sys.modules:  # plays no part on one CPU, but is imported
        for name in ("accelerate", "accelerate.utils"):
            sys.modules[name] = ModuleType(name)
        for name in ("Accelerator", "InitProcessGroupKwargs", "find_executable_batch_size"):
            setattr(sys.modules["accelerate"], name, None)
        sys.modules["accelerate.utils"].get_max_memory = None
    from lm_eval.models.huggingface import HFLM

    folder, end = tmp_path_factory.mktemp("peer"), corpus.tokenizer.end_of_document
    (folder / "tokenizer.json").write_text(corpus.tokenizer.to_json(), "utf-8")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    gpt2 = as_loaded(model, folder, end)
    return HFLM(pretrained=gpt2, tokenizer=tokenizer, batch_size=4)


@pytest.fixture(scope="module", autouse=True)
def tasks(tmp_path_factory):
    """The harness's own tasks with data from this file, and a group of two of them."""
    own = Path(lm_eval.__file__).parent / "tasks"
    group = tmp_path_factory.mktemp("group")
    (group / "pair.yaml").write_text(
        "group: pair\ntask: [piqa, arc_easy]\n"
        "aggregate_metric_list: [{metric: acc, aggregation: mean, weight_by_size: true}]\n"
        "metadata: {version: 3}\n",
        "utf-8",
    )
    for name, task in OWN.items():
        (group / f"{name}.yaml").write_text(f"task: {name}\n{task}{SHARED}", "utf-8")
    names = ("lambada", "hellaswag", "piqa", "arc", "gsm8k")
    folders = [str(own / name) for name in names] + [str(group)]
    manager = TaskManager(include_path=folders, include_defaults=False)

    def local(path, name=None, **_):
        rows = datasets.Dataset.from_list(DATA[path])
        return datasets.DatasetDict({part: rows for part in ("train", "validation", "test")})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.api.task.datasets.load_dataset", local)
        patch.setattr(harness, "_manager", lambda _: manager)
        patch.setenv("DISABLE_MULTIPROC", "1")  # as the manager itself does
        yield manager


def table_of(model, corpus, names, shots):
    """Return the table of a model's results."""
    return evaluate_tasks(model, corpus, EvaluationConfig(tasks=names, shots=shots), 8)[0]


def asked(lm, manager, names, shots):
    loaded = manager.load(names)
    for task in loaded["tasks"].values():
        task.set_config("num_fewshot", shots)
        task.set_fewshot_seed(1234)
    return evaluate(lm=lm, task_dict=loaded, bootstrap_iters=0)


@pytest.mark.parametrize("shots", [0, 2])
def test_likelihoods_and_accuracies_equal_the_harness(shots, model, corpus, peer, tasks):
    adapter = TokenLM(model, corpus)
    ours, theirs = (asked(lm, tasks, TASKS, shots) for lm in (adapter, peer))
    assert not adapter.overflows
    compared = 0
    for name in TASKS:
        for one, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert one["doc_id"] == other["doc_id"]
            responses = one["filtered_resps"], other["filtered_resps"]
            for (log, greedy), (expected, expected_greedy) in zip(*responses, strict=True):
                assert log == pytest.approx(expected, abs=1e-4)
                assert greedy == expected_greedy
                compared += 1
        for metric in ("acc,none", "acc_norm,none"):
            if metric in theirs["results"][name]:
                assert ours["results"][name][metric] == theirs["results"][name][metric]
    assert compared == 3 + 3 * 4 + 4 * 2 + 2 * 5 * 4
    table = table_of(model, corpus, TASKS, [shots]).set_index(["task", "metric"])
    for name in TASKS:
        stated = table.loc[(name, "acc")]
        assert (stated["value"], stated["shots"]) == (theirs["results"][name]["acc,none"], shots)


def test_long_contexts_and_white_space_are_read_as_by_the_harness_own_adapter(model, corpus, peer):
    choices = [" a", " a longer answer than the first.", " an answer of " + "many words " * 20]
    joined = [("The quick bro", "wn fox and the dog"), ("an answ", "er has"), ("wat", "er. Then")]
    contexts = ["A question, and white space: ", TEXTS[1] * 15, TEXTS[2] * 30]
    requests = [
        Instance("loglikelihood", {}, (context, choice.lstrip()), 0, ("task", place, 1))
        for place, context in enumerate(contexts)
        for choice in choices
    ]
    requests += [Instance("loglikelihood", {}, pair, 0, ("task", 0, 1)) for pair in joined]
    adapter = TokenLM(model, corpus)
    ours, theirs = adapter.loglikelihood(requests), peer.loglikelihood(requests)
    np.testing.assert_allclose([log for log, _ in ours], [log for log, _ in theirs], atol=1e-4)
    assert adapter.overflows == {("task", 1), ("task", 2)}


def test_a_result_names_groups_shots_versions_and_the_harness(model, corpus):
    table = table_of(model, corpus, ["pair"], [0, 1])
    rows = table.set_index(["task", "metric"])
    piqa, arc = rows.loc[("piqa", "acc")], rows.loc[("arc_easy", "acc")]
    assert piqa["shots"].tolist() == arc["shots"].tolist() == [0, 1]
    assert (piqa["n"].tolist(), arc["n"].tolist()) == ([4, 4], [5, 5])
    for number in range(2):
        of_group = rows.loc[("pair", "acc")].iloc[number]
        weighted = (4 * piqa["value"].iloc[number] + 5 * arc["value"].iloc[number]) / 9
        assert of_group["value"] == pytest.approx(weighted)
        assert of_group["task_version"] == "3"
    for one, n in ((piqa.iloc[0], 4), (arc.iloc[0], 5)):
        expected = np.sqrt(one["value"] * (1 - one["value"]) / (n - 1))
        assert one["stderr"] == pytest.approx(expected)
        assert one["task_version"] == "1.0"
    assert (table["truncated"].dropna() == 0).all()


@pytest.mark.parametrize(
    ("task", "measure", "message"),
    [
        ("hellaswagg", "", "evaluation.tasks: 'hellaswagg' is unknown; did you mean 'hellaswag'?"),
        ("gsm8k", "", "evaluation.tasks: gsm8k: it needs more than the likelihood of given"),
        ("pair", "pair.acc@0", "plan: in evaluation.tasks, 'pair.acc@0' is"),  # a group has none
        ("pair", "gsm8k.acc@0", "plan: in evaluation.tasks, 'gsm8k.acc@0' is"),
        ("pair", "piqa.acc", "plan: in evaluation.tasks, 'piqa.acc' is"),
    ],
)
def test_a_task_or_measure_that_cannot_be_asked_is_refused_in_one_line(task, measure, message):
    require_tasks(EvaluationConfig(tasks=["pair"], shots=[0, 1]), ["piqa.acc@1", "arc_easy.acc@0"])
    asked = EvaluationConfig(tasks=[task], shots=[0, 1])
    assert refused(require_tasks, asked, [measure] if measure else []).startswith(message)


def test_a_task_without_a_share_of_right_choices_has_no_answers(model, corpus):
    table, answers = evaluate_tasks(model, corpus, EvaluationConfig(tasks=["unjudged", "piqa"]), 8)
    assert {"unjudged", "piqa"} == {*table["task"]}
    assert {*answers["task"]} == {"piqa"}
    with pytest.raises(ConfigError, match=r"'unjudged.acc' is unknown"):
        require_tasks(EvaluationConfig(tasks=["unjudged", "piqa"]), ["unjudged.acc"])


@pytest.mark.parametrize(
    ("task", "shots", "block_size", "said"),
    [
        ("unjudged", 0, 54, "a continuation has 55 tokens; it must have 1 to 54 (model.block"),
        ("joined", 0, 64, "a continuation has 0 tokens; it must have 1 to 384 (model.block"),
        ("unjudged", 9, 64, "unjudged, 9-shot: "),  # there are five
    ],
)
def test_questions_that_no_arm_can_be_asked_are_found_first(task, shots, block_size, said, corpus):
    config = EvaluationConfig(tasks=[task], shots=[0, shots] if shots else [0])
    arms = [TokenLM(make_model(corpus, block_size=n), corpus) for n in (384, block_size)]
    found = refused(require_tasks, config, adapters=arms)
    assert found.startswith(f"evaluation.tasks: {task}, {shots}-shot: ")
    assert said in found


def test_truncated_contexts_are_counted_before_and_after_training(model, corpus):
    config = EvaluationConfig(tasks=["arc_easy"], shots=[0, 2])
    small = make_model(corpus, block_size=40)
    lines = require_tasks(config, adapters=[TokenLM(m, corpus) for m in (small, model)])
    table = evaluate_tasks(small, corpus, config, 8)[0].query("metric == 'acc'")
    assert dict(zip(table["shots"], table["truncated"], strict=True)) == {0: 0.0, 2: 1.0}
    said = "5 of 5 contexts lose their beginning, because model.block_size is 40"
    assert lines == [f"evaluation.tasks: arc_easy, 2-shot: {said}"]


def test_without_a_network_the_data_is_asked_for_in_one_line(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", offline)
    with pytest.raises(
        ConfigError, match="piqa cannot be loaded: Couldn't reach the Hub; download"
    ):
        require_tasks(EvaluationConfig(tasks=["piqa"]))


def test_studies_without_stock_tasks_do_not_load_them():
    code = "import sys, lib.train.evaluate, lib.sweep.preflight\n"
    code += "sys.exit('lib.train.lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
