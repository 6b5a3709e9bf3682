"""Accuracies of six kinds of tasks equal those of the harness with a plain adapter, also if a
question's accuracy is a share."""

import json
from functools import partial

import pytest
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from lib.config.errors import ConfigError
from lib.config.schema import CorpusConfig, EvaluationConfig, stock_measures
from lib.data.text import load_corpus
from lib.results import RAW, STOCK, measures_of
from lib.train import lm_eval as harness
from tests.train.samples import make_model

pytestmark = pytest.mark.slow

SHARE = """
import numpy as np
def mc2(doc, results):
    ll, _ = zip(*results)
    p = np.exp(np.array(ll) - max(ll))
    return {"acc": p[np.array(doc["labels"]) == 1].sum() / p.sum()}
"""
TOP = """\
dataset_path: json
dataset_kwargs: {data_files: {test: "items [1].jsonl"}}
test_split: test
"""
ACC = "{metric: acc, aggregation: mean, higher_is_better: true}"
NORM = "{metric: acc_norm, aggregation: mean, higher_is_better: true}"
CHOICE = "output_type: multiple_choice\n"
TASKS = {
    "share": f"{CHOICE}num_fewshot: 0\ndoc_to_text: 'Q: {{{{q}}}}'\ndoc_to_target: 0\n"
    f"doc_to_choice: '{{{{choices}}}}'\nprocess_results: !function u.mc2\nmetric_list: [{ACC}]\n",
    "several": f"{CHOICE}num_fewshot: 0\ndoc_to_text: '{{{{q}}}}'\ndoc_to_target: '{{{{golds}}}}'"
    f"\ndoc_to_choice: '{{{{choices}}}}'\nmetric_list: [{ACC}, {NORM}]\n",
    "contexts": f"{CHOICE}num_fewshot: 0\ndoc_to_text: '{{{{gold % 2}}}}'\ntarget_delimiter: ''\n"
    f"doc_to_choice: '{{{{[one, two]}}}}'\ndoc_to_target: '{{{{tail}}}}'\nmetric_list: [{ACC}]\n",
    "scripts": f"{CHOICE}num_fewshot: 2\nfewshot_split: test\ndoc_to_text: '{{{{uq}}}}'\n"
    f"doc_to_target: '{{{{gold}}}}'\ndoc_to_choice: '{{{{uch}}}}'\nmetric_list: [{ACC}, {NORM}]\n",
    "prefixed": f"{CHOICE}num_fewshot: 1\nfewshot_split: test\ngen_prefix: 'So '\n"
    f'description: "Answer.\\n\\n"\ndoc_to_text: "Q: {{{{q}}}} "\ndoc_to_target: "{{{{gold}}}}"\n'
    f"doc_to_choice: '{{{{choices}}}}'\nmetric_list: [{ACC}, {NORM}]\n",
    "last_word": "output_type: loglikelihood\nnum_fewshot: 0\ndoc_to_text: '{{q}}'\n"
    f"doc_to_target: '{{{{tail}}}}'\ntarget_delimiter: ''\nmetric_list: [{ACC}]\n",
}


class PlainLM(TemplateLM):
    """Scores each choice by its own forward pass."""

    eot_token_id = 10
    loglikelihood_rolling = generate_until = None

    def __init__(self, model, corpus):
        super().__init__()
        self.model, self.corpus = model, corpus

    def tok_encode(self, string, **_):
        return self.corpus.encode(string).tolist()

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests, **_):
        found = []
        for _, context, choice in requests:
            ids = torch.tensor([*context, *choice][-self.model.config.block_size - 1 :])
            log = self.model(ids[None, :-1])[0].log_softmax(dim=-1)[-len(choice) :]
            targets = torch.tensor(choice)
            likelihood = float(log[torch.arange(len(choice)), targets].double().sum())
            found.append((likelihood, bool((log.argmax(dim=-1) == targets).all())))
        return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A model with clear preferences, its answers with our adapter, and with the plain one."""
    folder = tmp_path_factory.mktemp("folder [a]")
    text = load_corpus(CorpusConfig(source="synthetic"))
    lines = [line for line in text.decode(text.test).split("\n") if 25 < len(line) < 60]
    rows = [
        {
            "q": lines[6 * i],
            "choices": [lines[6 * i + k].split()[-1] for k in range(1, 5)],
            "labels": [1, 1, 0, 0],
            "gold": i % 4,
            "golds": [i % 4, (i + 1) % 4],
            "one": lines[6 * i + 1][:20],
            "two": lines[6 * i + 2][:20],
            "tail": " " + lines[6 * i + 3][:2],
            "uq": "السلام عليكم 你好 " + lines[6 * i][:10] + " 😀",
            "uch": ["نعم", "你好吗", "😀😀", "naïve"],
        }
        for i in range(30)
    ]
    (folder / "items [1].jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong = json.dumps(rows[0] | {"gold": 0}) + "\n"
    (folder / "items 1.jsonl").write_text(wrong)  # the other name, as a pattern, matches it
    (folder / "u.py").write_text(SHARE)
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{TOP}{task}", "utf-8")
    (folder / "._several.yaml").write_bytes(b"\0\5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "CHECKOUT", folder.parent)
        patch.setattr(harness, "TaskManager", partial(TaskManager, include_defaults=False))
        manager = harness._manager.__wrapped__(folder.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.data.cache.output_root", lambda: folder)
        patch.setattr(harness, "_manager", lambda _: manager)
        patch.setenv("DISABLE_MULTIPROC", "1")
        corpus = load_corpus(CorpusConfig(source="synthetic", tokenizer="bytes", fraction=0.1))
        model = make_model(corpus, block_size=512)
        config = EvaluationConfig(tasks=[*TASKS])
        table, items = harness.evaluate_tasks(model, corpus, config, 8)
        with harness.quiet():
            tasks = harness._load(config)
            for task in tasks["tasks"].values():
                task.set_fewshot_seed(1234)
            plain = evaluate(lm=PlainLM(model, corpus), task_dict=tasks, bootstrap_iters=0)
    return table, items, plain


def test_a_hidden_task_file_is_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "hidden").mkdir()
    for name in ("own", ".own"):
        (tmp_path / "hidden" / f"{name}.yaml").write_text(f"task: own\n{TOP}{TASKS['last_word']}")
    monkeypatch.setattr(harness, "CHECKOUT", tmp_path)
    monkeypatch.setattr(harness, "TaskManager", partial(TaskManager, include_defaults=False))
    config = EvaluationConfig(tasks=["own"], include_path="hidden")
    said = r"^evaluation.include_path: \.own.yaml is hidden; rename or remove it$"
    with pytest.raises(ConfigError, match=said):
        harness.require_tasks(config)


@pytest.mark.parametrize("name", [*TASKS])
def test_own_task_accuracy_equals_the_harness(name, asked, tables):
    table, items, plain = asked
    expected = plain["results"][name]["acc,none"]
    stated = table.set_index(["task", "metric"]).loc[(name, "acc"), "value"]
    assert stated == pytest.approx(expected, abs=1e-6)
    assert len(plain["samples"][name]) == 30
    own = items[items["task"] == name]
    (measure,) = stock_measures(name, [])
    measured = measures_of(tables | {STOCK: own})[measure]
    assert measured == pytest.approx(expected, abs=1e-6)
    assert (set(own["correct"]) <= {0, 1}) == (name != "share")


@pytest.fixture(scope="module")
def tables():
    """Return raw tables that hold no more than measures need."""
    import pandas as pd

    windows = {"nll": [1.0], "n": [1], "correct": [1], "brier": [0.0], "embedding_norm": [1.0]}
    bins = {"n": [1], "confidence": [1.0], "correct": [1]}
    raw = dict.fromkeys(RAW, pd.DataFrame())
    raw["windows"] = pd.concat([pd.DataFrame(windows | {"test": t}) for t in (False, True)])
    raw["bins"] = pd.concat(
        pd.DataFrame(bins | {"binning": b})
        for b in ("equal_mass", "equal_width", "test", "test_tempered")
    )
    raw["trace"] = pd.DataFrame({"loss": [1.0], "grad_norm": [1.0]})
    raw["curve"] = pd.DataFrame({"step": [1]})
    return raw
