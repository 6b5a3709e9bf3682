"""Parameter files that cannot be run: each is refused in one line without a traceback."""

from itertools import pairwise
from pathlib import Path

import pytest

from lib.study.config import load_study
from lib.study.errors import ConfigError

MINIMAL = "name: little\nseeds: [0]\n"
THOUSAND = list(range(1, 1001))
SHARED = "".join(f"{k}: &{k} [*{j}, *{j}, *{j}]\n" for j, k in pairwise("abcdefghij"))
BAD = [
    MINIMAL + "machine: {threads: 123456}",
    MINIMAL + "model: {embedding_std: 1.0e300}",
    MINIMAL + "model: {n_embd: 100000000000000000000, n_head: 1}",
    MINIMAL + "? [a, b]\n: 3",
    MINIMAL + "? {a: b}\n: 3",
    MINIMAL + "factors: {corpus.source: ['a{b}.txt', 'c.txt']}",
    MINIMAL + "factors: {evaluation.dev_windows: [1, 4]}",
    "name:\tlittle\nseeds:\n\t- 0",
    MINIMAL + "a: &a [*a]",
    MINIMAL + "---\nname: x",
    MINIMAL + "model: {n_layer: 2020-01-01}",
    MINIMAL + "1: 2",
    MINIMAL + "~: 2",
    MINIMAL + "yes: 2",
    "name: little\nseeds: [99999999999999999999999]",
    MINIMAL + "training: {learning_rate: -0.0}",
    MINIMAL + "training: {iterations: 1000000000000}",
    MINIMAL + "model: {n_layer: 100000000}",
    MINIMAL + "model: {block_size: 10000000000}",
    MINIMAL + "training: {batch_size: 1000000000}",
    MINIMAL + "model: {mlp_ratio: 1000000000}",
    MINIMAL + "training: {learning_rate: 1.0e308}",
    MINIMAL + "training: {eps: 1.0e-320}",
    MINIMAL + "training: {weight_decay: 1.0e300}",
    MINIMAL + "factors: {model.: [1]}",
    MINIMAL + "factors: model.n_layer",
    MINIMAL + "factors: {1: [2]}",
    MINIMAL + "factors: {? [a] : [1]}",
    MINIMAL + "factors: {model.n_layer: [[1]]}",
    MINIMAL + "factors: {model.n_layer: [{a: 1}]}",
    MINIMAL + "factors: {training.learning_rate: [.nan, 1.0e-3]}",
    MINIMAL + "factors: {training.learning_rate: [.inf]}",
    "name: little\nseeds: ['0']",
    "name: little\nseeds: [true]",
    "name: little\nseeds: [1.0]",
    "name: little\nseeds: {count: 8}",
    "name: 3\nseeds: [0]",
    "name:\nseeds: [0]",
    "name: ../x\nseeds: [0]",
    "name: a/b\nseeds: [0]",
    "name: 'little\n\n'\nseeds: [0]",
    MINIMAL + "plan: 3",
    MINIMAL + "plan: /etc/passwd",
    MINIMAL + "plan: ../x.yaml",
    MINIMAL + "reported: /etc/passwd",
    MINIMAL + "include: 3",
    MINIMAL + "include: [3]",
    MINIMAL + "include: [{levels: 3}]",
    MINIMAL + "include: [{levels: {model.n_layer: [1]}}]",
    MINIMAL + "include: [{levels: {}, name: 'A B'}]",
    MINIMAL + "exclude: {a: b}",
    MINIMAL + "exclude: [3]",
    MINIMAL + "factors: {model.n_layer: [1]}\nexclude: [{}]",
    MINIMAL + "factors: {model.n_layer: [1]}\nexclude: [{model.n_layer: 1}]",
    MINIMAL + "corpus: [a]",
    MINIMAL + "corpus: 3",
    MINIMAL + "corpus: ''",
    MINIMAL + 'corpus: "a\\nb"',
    MINIMAL + "corpus: {fraction: 0}",
    MINIMAL + "corpus: {fraction: .nan}",
    MINIMAL + "training: {schedule: warmup_cosine, warmup_iterations: 10000000}",
    MINIMAL + "training: {beta1: 1.0}",
    MINIMAL + "training: {gradient_clip: 0}",
    MINIMAL + "training: {gradient_clip: off}",
    MINIMAL + "training: {embedding_learning_rate_ratio: 1.0e+9}",
    MINIMAL + "training: {embedding_learning_rate_ratio: 1.0e-9}",
    MINIMAL + "model: {logit_softcap: 1.0e-9}",
    MINIMAL + "model: {logit_softcap: 1.0e+9}",
    MINIMAL + "training: {precision: fp64}",
    MINIMAL + "model: {n_läyer: 3}",
    MINIMAL + "evaluation: {tasks: [piqa]}",
    MINIMAL + "evaluation: {tasks: piqa}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "evaluation: {tasks: ['a b']}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "evaluation: {shots: [5]}",
    MINIMAL + "evaluation: {tasks: [piqa], shots: [-1]}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "factors: {evaluation.tasks: [piqa]}\ncorpus: {tokenizer: bytes}",
    "\ufeffname: little\nseeds: [0]\nx: 1",
    "name: little\r\nseeds: [0]\r\nx: 1",
    MINIMAL + "factors: {a: [1], a: [2]}",
    MINIMAL + "model: {<<: 3}",
    MINIMAL + "model: {<<: [1]}",
    MINIMAL + "model: !!set {a}",
    MINIMAL + "name2: !!binary aGVsbG8=",
    MINIMAL + "x: !!omap [a: 1]",
    "name: little: x",
    "name: 'little",
    "name: little\n  seeds: [0]\n seeds: [1]",
    "%YAML 3.0\n---\nname: x",
    MINIMAL + "model: @x",
    MINIMAL + "model: `x`",
    MINIMAL + "model: *x",
    MINIMAL + "model: !x y",
    MINIMAL + "model: \x07",
    MINIMAL + "model: " + "{a: " * 3000 + "1" + "}" * 3000,
    MINIMAL + "seeds2: " + "[" * 5000 + "]" * 5000,
    "name: little\nseeds: [" + "9" * 5000 + "]",
    "name: " + "a" * 300 + "\nseeds: [0]",
    MINIMAL + "factors: {corpus.source: [" + "x" * 250 + ".txt, y.txt]}",
    MINIMAL + "corpus: " + "x/" * 3000,
    f"name: little\nseeds: {list(range(20_001))}",
    MINIMAL + f"factors: {{training.iterations: {THOUSAND}, model.n_layer: {THOUSAND}}}",
    "a: &a [x, x, x, x]\n" + SHARED,
    MINIMAL + 'corpus: "a\\0b"',
    MINIMAL + "evaluation: {dev_windows: 100000000}",
    MINIMAL + "training: {device: cpu}\nmachine: cpu",
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_file_is_refused_in_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.study.config.PARAMS", tmp_path)
    (tmp_path / "little.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        load_study("little")
    message = str(error.value)
    assert message.startswith("little.yaml")
    assert "\n" not in message
    assert len(message) < 700


@pytest.mark.parametrize("value", ["0", "0.0", "false", "off", "none"])
@pytest.mark.parametrize("field", ["model: {logit_softcap", "training: {gradient_clip"])
def test_what_switches_a_field_off_is_said(
    field: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.study.config.PARAMS", tmp_path)
    path = tmp_path / "little.yaml"
    path.write_text(f"{MINIMAL}{field}: {value}}}", "utf-8")
    with pytest.raises(ConfigError, match=r"for none, write null$"):
        load_study("little")
    path.write_text(f"{MINIMAL}{field}: null}}", "utf-8")
    load_study("little")


def test_null_is_named_for_no_field_that_has_another_word_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.study.config.PARAMS", tmp_path)
    for field in ("machine: {threads: 0}", "evaluation: {items_per_task: none}"):
        (tmp_path / "little.yaml").write_text(MINIMAL + field, "utf-8")
        with pytest.raises(ConfigError) as error:
            load_study("little")
        assert "write null" not in str(error.value)
