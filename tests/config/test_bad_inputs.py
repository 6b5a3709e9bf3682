"""Impossible parameters in a file or a notebook are refused in one line without a traceback. It
names the field, the value found, what is allowed, and the remedy."""

import re

import pytest

from lib.config.errors import ConfigError
from lib.config.study import load_study, scratch
from tests.conftest import refused

MINIMAL = "name: little\nseeds: [0]\n"
# What a file adds to `MINIMAL`, and the message; … matches anything.
ADDED = [
    ("training: {iterations: 1000000001}", "training.iterations: 1000000001 is not allowed. Input"),
    *((f"factors: {{{field}: [0.5, {value}]}}", f"factors {{'{field}': {value}}}: {field}: {said}")
      for field, value, said in [
        ("training.gradient_clip", "1e+30", "1e+30 is not allowed. Input should be less"),
        ("training.learning_rate", "1e-30", "1e-30 is not allowed. Input should be greater"),
        ("training.eps", "1e-31", "1e-31 is not allowed. Input should be greater"),
        ("model.logit_softcap", "1e+20", "1e+20 is not allowed. Input should be less"),
      ]),
    ("factors: {code: [" + "9" * 4000 + "]}", "factors.code: 9999999999999999…9 names no commit"),
    ("model: {n_layers: 2}", "model.n_layers: 'n_layers' is unknown; did you mean 'n_layer'?"),
    ("include: [{levels: {}, nmae: x}]", "include.0.nmae: 'nmae' is unknown; did you mean 'name'?"),
    ("xyz: 1", "xyz: 'xyz' is unknown; there are corpus, model, training, evaluation, machine"),
    ("factors: {model.embeding_norm: [none]}",
     "factors: 'model.embeding_norm' is unknown; did you mean 'model.embedding_norm'?"),
    ("factors: {embedding_norm: [none]}",
     "factors: 'embedding_norm' is unknown; did you mean 'model.embedding_norm'?"),
    ("model: {embedding_norm: layer_norm}",
     "model.embedding_norm: 'layer_norm' is not allowed.…; did you mean 'layernorm'?"),
    ("training: {learning_rate: 1,3}", "training.3: 3 is not allowed. Keys should be strings"),
    ("training: {iterations: 1e3}",
     "training.iterations: 1000.0 is not allowed.…; write it without a decimal point or an exp"),
    ("training: {learning_rate: '3e-3'}",
     "training.learning_rate: '3e-3' is not allowed.…; write it without quotes"),
    ("model: {qk_norm: no}", "model.qk_norm: 'no' is not allowed.…; write true or false"),
    ("training: {weight_decay: .inf}", "training.weight_decay: inf is not allowed. Input should"),
    ("factors: {corpus.source: [a/x.txt, ./a/x.txt]}", "factors: 'source=x.txt' is there twice"),
    ("model: {embedding_norm: no}",
     "model.embedding_norm: 'no' is not allowed. Input should be 'none', 'layernorm', "
     "'rmsnorm',… did you mean 'none'?"),
    *((f"model: {{activation: {name}}}",
       f"model.activation: '{name}' is not allowed. Input should be 'gelu' or 'relu2'") 
      for name in ("swiglu", "geglu", "relu")),
    ("training: {iterations: 0}", "training.iterations: 0 is not allowed. Input should be greater"),
    ("corpus: {fraction: 1.5}", "corpus.fraction: 1.5 is not allowed. Input should be less than"),
    ("model:", "model: None holds no fields; write them below it, or leave it out"),
    ("factors: model.tied", "factors: 'model.tied' holds no fields; write them below it, or leave"),
    ("factors: {training.optimizer: 'adamw, muon'}",
     "factors.training.optimizer: 'adamw, muon' is no list; write [adamw, muon]"),
    ("factors: {model.tied: true}", "factors.model.tied: True is no list; write [true, …]"),
    ("factors: {model.tied: }", "factors.model.tied: None is no list; write [a, b]"),
    ("model: {n_head: 3, n_embd: 128}", "model: n_embd 128 must be a multiple of n_head 3"),
    ("model: {n_head: 2, n_embd: 6, positions: rotary}", "model: positions: rotary needs an even"),
    ("training: {batch_size: 16}\nmachine: {micro_batch_size: 3}",
     "machine.processes × machine.micro_batch_size is 3, which must divide training.batch_size 16"),
    ("training: {batch_size: 16}\nmachine: {processes: 2, micro_batch_size: 16}",
     "machine.processes × machine.micro_batch_size is 32, which must divide training"),
    ("training: {schedule: warmup_cosine, warmup_iterations: 300, iterations: 300}",
     "training: warmup_iterations 300 must be below iterations 300"),
    ("factors: {model.embedding_norm: []}", "factors.model.embedding_norm: [] is not allowed."),
    ("factors: {model.mlp_ratio: [1, 4, 1]}", "factors.model.mlp_ratio: 1 is there twice; list"),
    ("factors: {model.embedding_norm: [none, layernom]}",
     "factors {'model.embedding_norm': 'layernom'}: model.…did you mean 'layernorm'?"),
    ("factors: {model.n_embd: [128, 96], model.n_head: [8, 64]}",
     "factors {'model.n_embd': 96, 'model.n_head': 64}: model: n_embd 96 must be a multiple"),
    ("factors: {code: [main, 3512345]}", "factors.code: 3512345 names no commit; write a branch,"),
    ("factors: {model.n_layer: [2]}\ninclude: [{levels: {model.n_layer: 2, code: main}}]",
     "include.0.levels: code must be a factor"),
    ("factors: {code: [main]}\ncommits: {}", "commits: is set when the study…leave it out"),
    ("factors: {machine.threads: [1, 2]}", "factors: machine.threads is one…set it under machine"),
    ("include: [{levels: {evaluation.dev_windows: 1}}]",
     "include.0.levels: evaluation.dev_windows is one for all runs; set it under evaluation"),
    ("training: {learning_rate: nan}", "training.learning_rate: 'nan' is not allowed. Input"),
    ("factors: {model.n_layer: [2, 4]}\ninclude: [{levels: {training.beta1: 0.8}}]",
     "include.0.levels: has no level of model.n_layer"),
    ("include: [{levels: {model.n_layr: 2}}]",
     "include.0.levels: 'model.n_layr' is unknown; did you mean 'model.n_layer'?"),
    ("factors: {model.n_layer: [2]}\n"
     "include: [{levels: {model.n_layer: 2, training.beta1: 0.8}}]",
     "include (give one of the two a name): 'n_layer=2' is there twice"),
    ("factors: {model.n_layer: [2, 4]}\n"
     "include: [{name: x, levels: {model.n_layer: 4}, baseline: n_layer=3}]",
     "arm x: its baseline 'n_layer=3' is unknown; did you mean 'n_layer=4'?"),
    ("include:\n"
     "- {name: x, levels: {model.n_layer: 4}}\n- {name: figures, levels: {model.n_layer: 2}}",
     "factors: 'figures' cannot name an arm and its folder"),
    ("factors: {corpus.source: [synthetic, 'data/a,b.txt']}",
     "factors.corpus.source: 'data/a,b.txt' holds a comma; rename it"),
    ("factors: {model.tied: [true, false], model.n_layer: [2, 4]}\n"
     "include: [{name: tied=false, levels: {model.tied: false, model.n_layer: 2, "
     "training.beta1: 0.8}}]",
     "include.0.name: 'tied=false' names a level; take another"),
    ("factors: {model.n_layer: [2, 4]}\ninclude: [{name: x, levels: {model.n_layer: 4}}]",
     "factors: n_layer=4 and x are equal; leave one out"),
    ("factors: {training.batch_size: [16, 32]}", "factors: batch_size=16 sees 614,400…; exclude"),
    ("include: [{name: by-hand, levels: {model.n_layer: 2}}]", "factors: 'by-hand' cannot name an"),
    ("factors: {corpus.tokenizer: [bytes, verdict.json]}", "factors: 'verdict.json' cannot name"),
    ("factors: {model.n_layer: [2, 4]}\nexclude: [{model.n_layer: 3}]",
     "exclude.0: 3 is no level of 'model.n_layer'"),
    ("factors: {model.n_layer: [2, 4]}\nexclude: [{model.n_layer: 2}]",
     "arm n_layer=4: its baseline 'n_layer=2' is unknown; did you mean…; include it or name"),
    ("corpus: {tokenizer: bpe-256}", "corpus.tokenizer: 'bpe-256': a size must be 257 (all bytes"),
    ("corpus: {tokenizer: bpe-1000001}", "corpus.tokenizer: 'bpe-1000001': a size must be 257"),
    ("corpus: {tokenizer: bep-300}", "corpus.tokenizer: 'bep-300' is not allowed"),
    ("training: {lr: 1.0e-3}", "training.lr: 'lr' is unknown; there are iterations, batch_size"),
    ("factors: {training: [1]}", "factors: 'training' is unknown; there are training.iterations"),
    ("factors: {MODEL.N_LAYER: [2]}", "factors: 'MODEL.N_LAYER' is unknown; did you mean 'model"),
    ("factors: {code: [main, '']}", "factors.code: '' names no commit; write a branch, tag or"),
    ("factors: {training.learning_rate: [" + "y" * 3000 + "]}", "factors…yyy...yyy"),
    ("model: {n_head: 0}\ntraining: {schedul: constant}",
     "model.n_head: 0 is not allowed.…; training.schedul: 'schedul' is unknown; did you mean"),
]  # fmt: skip
# The whole file, and the message.
WHOLE = [("name: little", ": seeds: is missing; add it"),
    ("seeds: [0]", ": name: is missing; add it"),
    ("name: little\nseeds: []", ": seeds: [] is not allowed. List should have at least 1 item"),
    ("name: little\nseeds: [0, 1, 1]", ": seeds: 1 is there twice; list each value once"),
    ("name: little\nseeds: [0, -1]", ": seeds.1: -1 is not allowed. Input should be greater"),
     ("name: little\nseeds: 3", ": seeds: 3 is no list; write [0, 1, 2]"),
     ("name: other\nseeds: [0]", ": name: 'other' is not the file's name; write 'lit"),
    ("name: Two Words\nseeds: [0]", ": name: 'Two Words' is not allowed. String should match"),
    ("name: little\nseeds: [0]\npaper: ../x", ": paper: '../x' is not allowed. String should"),
    ("name: [", ", line 1 is not valid YAML"),
    ("name: !!python/name:os.system", ", line 1 is not valid YAML"),
    (b"name: \xff", " is not valid YAML in UTF-8: 'utf-8' codec can't decode byte 0xff in"),
    ("name: little\nseeds: [!!bool abc]", " is not valid YAML in UTF-8: 'abc'"),
    ("name: \"\\UFFFFFFFF\"", " is not valid YAML in UTF-8: …too large"),
    ("model: !!map [a]", ", line 1 is not valid YAML: expected a mapping"),
    ("name: little\nseeds: [0]\n---\nname: x", ", line 3 is not valid YAML: but found another"),
    ("name: little\nseeds:\n\t- 0", ", line 3 is not valid YAML: it holds a tab; indent with"),
    ("name: little\nmodel:\n  n_layer: 2\n\tn_head: 2", ", line 4 is not valid YAML: it holds"),
    ('name: little\nseeds: [0]\n"a\\nb": 1', ": 'a\\nb': 'a\\nb' is unknown; there are corpus"),
    ("name: little\nseeds: [0]\nmodel: {\"\\u2028\": 1}", ": 'model.\\u2028': '\\u2028' is"),
    ("name: little\nseeds: {cuont: " + str([1] * 3000) + "}", ": seeds: write a list, or {count:"),
    ("- little", " must hold fields"),
    ("", " must hold fields"),
]  # fmt: skip
BAD = [
    MINIMAL + "machine: {threads: 123456}",
    MINIMAL + "model: {embedding_std: 1.0e300}",
    MINIMAL + "model: {n_embd: 100000000000000000000, n_head: 1}",
    MINIMAL + "? [a, b]\n: 3",
    MINIMAL + "factors: {corpus.source: ['a{b}.txt', 'c.txt']}",
    MINIMAL + "1: 2",
    "name: little\nseeds: [99999999999999999999999]",
    MINIMAL + "training: {learning_rate: -0.0}",
    MINIMAL + "model: {n_layer: 100000000}",
    MINIMAL + "model: {block_size: 10000000000}",
    MINIMAL + "training: {batch_size: 1000000000}",
    MINIMAL + "model: {mlp_ratio: 1000000000}",
    MINIMAL + "training: {learning_rate: 1.0e308}",
    MINIMAL + "factors: {model.: [1]}",
    MINIMAL + "factors: {model.n_layer: [[1]]}",
    MINIMAL + "factors: {training.learning_rate: [.nan, 1.0e-3]}",
    "name: little\nseeds: [true]",
    "name: ../x\nseeds: [0]",
    "name: 'little\n\n'\nseeds: [0]",
    MINIMAL + "plan: /etc/passwd",
    MINIMAL + "include: [{levels: {model.n_layer: [1]}}]",
    MINIMAL + "include: [{levels: {}, name: 'A B'}]",
    MINIMAL + "factors: {model.n_layer: [1]}\nexclude: [{}]",
    MINIMAL + "factors: {model.n_layer: [1]}\nexclude: [{model.n_layer: 1}]",
    MINIMAL + "corpus: 3",
    MINIMAL + "corpus: ''",
    MINIMAL + 'corpus: "a\\nb"',
    MINIMAL + "corpus: {fraction: 0}",
    MINIMAL + "training: {beta1: 1.0}",
    MINIMAL + "training: {embedding_learning_rate_ratio: 1.0e+9}",
    MINIMAL + "training: {embedding_learning_rate_ratio: 1.0e-9}",
    MINIMAL + "model: {logit_softcap: 1.0e-9}",
    MINIMAL + "evaluation: {tasks: [piqa]}",
    MINIMAL + "evaluation: {tasks: piqa}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "evaluation: {tasks: ['a b']}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "evaluation: {tasks: [piqa], shots: [-1]}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "factors: {evaluation.tasks: [piqa]}\ncorpus: {tokenizer: bytes}",
    MINIMAL + "model: {<<: 3}",
    MINIMAL + "model: \x07",
    "name: little\nseeds: [" + "9" * 5000 + "]",
    "name: " + "a" * 300 + "\nseeds: [0]",
    MINIMAL + "factors: {corpus.source: [" + "x" * 250 + ".txt, y.txt]}",
    MINIMAL + "corpus: " + "x/" * 3000,
    f"name: little\nseeds: {list(range(20_001))}",
    MINIMAL + "evaluation: {dev_windows: 100000000}",
]
FILES = [*WHOLE, *((MINIMAL + text, f": {said}") for text, said in ADDED), *((t, "") for t in BAD)]


@pytest.mark.parametrize(("content", "said"), FILES, ids=range(len(FILES)))
def test_a_bad_file_is_refused_in_one_line(content, said, load):
    message = refused(load, content)
    assert re.match(".*".join(map(re.escape, f"little.yaml{said}".split("…"))), message)
    assert not said or ("did you mean" in message) == ("did you mean" in said)
    assert len(message) < 700


@pytest.mark.parametrize("value", ["0", "0.0", "false", "off", "none"])
@pytest.mark.parametrize("field", ["model: {logit_softcap", "training: {gradient_clip"])
def test_error_says_how_to_switch_a_field_off(field, value, load):
    with pytest.raises(ConfigError, match=r"for none, write null$"):
        load(f"{MINIMAL}{field}: {value}}}")
    load(f"{MINIMAL}{field}: null}}")


@pytest.mark.parametrize("field", ["machine: {threads: 0}", "evaluation: {items_per_task: none}"])
def test_null_is_named_for_no_field_that_has_another_word_for_it(field, load):
    with pytest.raises(ConfigError, match=r"^((?!write null).)*$"):
        load(MINIMAL + field)


@pytest.mark.parametrize(
    "value", [None, 3, 0.0, True, float("nan"), "", " ", "\n", b"little", [], ["x"], {"name": "x"}]
)
def test_anything_that_is_no_study_is_refused(value):
    remedy = "write a name in params/, or the path of a YAML, such as ./mine.yaml"
    assert refused(load_study, value) == f"study: {value!r} names none; {remedy}"


@pytest.mark.parametrize("name", ["smokee", "params/smokee.yaml", "smokee.yaml"])
def test_the_nearest_study_is_named_for_a_name_and_for_a_path(name):
    said = "study: 'smokee' is unknown; did you mean 'smoke'?"
    assert refused(load_study, name) == said


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300 + ".yaml"])
def test_a_name_longer_than_a_file_may_have_is_refused(name):
    with pytest.raises(ConfigError, match=r"^study: 'x{27}\.{3}.* is unknown; there are "):
        load_study(name)


@pytest.mark.parametrize(
    "value", [None, 3, True, b"none", [], ["none"], {}, "x" * 5000, "a\u2028b"]
)
def test_anything_that_is_no_arm_is_refused(value):
    message = refused(load_study("final").arm, value)
    assert re.match(r"arm: .{1,80} is unknown; (there are none|did you mean 'none')", message)
    assert message.endswith("in study 'final'")


@pytest.mark.parametrize("value", [None, 0.0, True, False, "0", b"0", [0], {}, float("nan"), -1, 9])
def test_only_a_whole_number_is_a_seed(value):
    assert load_study("final").require_seed(0) == 0
    said = f"seed: {value!r} is not in study 'final'; it has [0, 1, 2, 3, 4]"
    assert refused(load_study("final").require_seed, value) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *((value, 'write fields with values: {"training.learning_rate": 0.01}')
          for value in (None, 0, "", [], "training.learning_rate", [("training.beta1", 0.9)])),
        ({3: 1}, "3 is unknown; there are corpus.source, "),
        ({("a",): 1}, "('a',) is unknown; there are corpus.source, "),
        ({"a\nb": 1}, "'a\\nb' is unknown; "),
        ({"training.lr": 1.0}, "'training.lr' is unknown; there are training.iterations, "),
        ({"training": {"beta1": 0.9}}, "'training' is unknown; there are training.iterations, "),
        ({"training.beta1": float("nan")}, "training.beta1: nan is not allowed. Input should"),
        ({"training.beta1": [0.9]}, "training.beta1: [0.9] is not allowed. Input should"),
        ({"training.beta1": None}, "training.beta1: None is not allowed. Input should"),
    ],
)  # fmt: skip
def test_impossible_changes_are_refused(changes, said):
    study = load_study("final")
    message = refused(scratch, study, study.arm("none"), changes)
    assert message.startswith(f"changes: {said}")
    assert len(message) < 700
