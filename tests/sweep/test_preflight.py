"""Everything that would stop a study is found before anything trains; its cost is estimated."""

import json
import math
import re
import shutil
import socket
import subprocess
from types import SimpleNamespace

import pytest
import torch
import yaml
from statsmodels.stats.power import TTestPower
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lib.config.errors import UserError
from lib.config.files import write_json
from lib.config.plan import Plan
from lib.config.schema import CorpusConfig, MachineConfig, RunConfig
from lib.config.study import Study, load_study
from lib.data.suite import INSTALL
from lib.data.text import load_corpus
from lib.data.tokens import learn
from lib.sweep import estimate as estimating
from lib.sweep import preflight
from lib.sweep.estimate import (
    Size,
    Trial,
    asks,
    estimate,
    memory,
    power,
    shortened,
    size_of,
    symbols_of,
)
from lib.sweep.preflight import (
    load_and_check,
    print_texts,
    require_as_frozen,
    require_executable,
    require_same_code,
    require_same_plan,
)
from lib.train.machine import autocast, prepare, random_stream
from lib.train.model import GPT, count_parameters
from lib.train.optim import optimizer_groups
from tests.config.samples import PLAN, STUDY, SUITE, TEXT, Parameters
from tests.conftest import TINY, change, refused
from tests.samples import sample_runs
from tests.stats.decay import decay_study
from tests.train.samples import own_task

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of parameter files, and the working folder."""
    monkeypatch.setattr("lib.config.study.PARAMS", tmp_path)
    monkeypatch.setattr("lib.config.plan.PLANS", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, **content):
    text = yaml.safe_dump(TINY | {"name": name, "seeds": [0]} | content)
    (folder / f"{name}.yaml").write_text(text, "utf-8")


def faults(*names):
    with pytest.raises(UserError) as error:
        require_executable(load_and_check(list(names)), is_local=True)
    return f"error: {error.value}".split("\n")


def test_sound_studies_are_returned_each_once(folder):
    write(folder, "one")
    write(folder, "two")
    studies = load_and_check(["one", "params/two.yaml", "one"])
    assert [study.name for study in studies] == ["one", "two"]


ALIKE = {"corpus.source": ["one.txt", "two.txt"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"plan": "absent.yaml"}, "plan: there is no params/plans/absent.yaml ("),
        ({"plan": "broken.yaml"}, "plans/broken.yaml must hold fields"),
        ({"corpus": "absent.txt"}, "corpus.source: 'absent.txt' is neither a text file"),
        ({"corpus": "socket"}, "corpus.source: 'socket' "),
        ({"factors": {"code": ["nowhere"]}}, "factors.code: "),
        (
            {"factors": ALIKE},
            "factors: source=one.txt and source=two.txt read the same text; leave",
        ),
        (
            {"factors": {"corpus.fraction": [0.9, 0.9001]}, "corpus": "one.txt"},
            "factors: fraction=0.9 and fraction=0.9001 read the same text; leave one out",
        ),
        ({"corpus": "empty.txt"}, "empty.txt: empty or too short: 0 characters"),
        ({"corpus": "latin.txt"}, "latin.txt: not UTF-8 at byte 0; unpack it, or convert it"),
        ({"corpus": "short.txt"}, "short.txt: too short: the dev part has 5 characters and"),
        ({"model": {"block_size": 60_000}}, "synthetic: too short: the train part"),
    ],
)
def test_trouble_is_found_early_and_never_hides_anothers(content, message, folder):
    (folder / "broken.yaml").write_text("[]")
    (folder / "empty.txt").touch()
    (folder / "latin.txt").write_bytes("é\n".encode("latin-1") * 100)
    (folder / "short.txt").write_text("a" * 100)
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text("The same text.\n" * 100)
    write(folder, "tried", **content)
    write(folder, "other", training={"iteration": 1})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        found = faults("other", "tried", "nosuch")
    assert found[0].startswith("error: other.yaml: training.iteration: 'iteration' is unknown")
    assert found[1].startswith("error: study: 'nosuch' is unknown")
    assert found[2].startswith(f"error: tried.yaml: {message}")
    assert len(found) == 3


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make a repository with three runs of a study under its frozen plan, one unfinished."""
    here = Parameters(tmp_path, monkeypatch)
    for name, folder in {"PLANS": here.plans, "PAPERS": here.top / "papers"}.items():
        monkeypatch.setattr(preflight, name, folder)
    here.study()
    here.plan()
    here.commit()
    here.plan_hash = here.freeze().hash
    here.made_at = here.commit()
    trained = {"plan": here.plan_hash, "commit": here.made_at}
    for seed, (file, content) in enumerate(
        [("result.json", {"provenance": {"trained": trained}})] * 2 + [("provenance.json", trained)]
    ):
        folder = here.top / "runs" / "trial" / "none" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / file).write_text(json.dumps(content), "utf-8")
    return here


def record(here):
    """Replace the runs by a record."""
    shutil.rmtree(here.top / "runs")
    place = here.top / "papers" / "one" / "record" / "trial"
    place.mkdir(parents=True)
    shutil.copyfile(here.plans / "plän.yaml", place / "plan.yaml")
    lines = [f"{'0' * 64}  none/seed-{seed}/02_train.ipynb\n" for seed in range(3)]
    (place / "MANIFEST.sha256").write_text("".join(lines), "utf-8")


def edit(here, file="plän.yaml"):
    path = here.plans / file
    path.write_text(path.read_text("utf-8").replace("0.03", "0.02"), "utf-8")


def edit_and_commit(here):
    edit(here)
    here.commit()


def edit_and_stage(here):
    edit(here)
    here.git("add", "--all")


def edit_without_git(here):
    edit(here)
    shutil.rmtree(here.top / ".git")


def edit_what_is_recorded(here):
    record(here)
    edit(here)


def edit_what_is_recorded_without_git(here):
    record(here)
    edit_without_git(here)


def amend(here):
    edit(here)
    here.git("commit", "-q", "-a", "--amend", "-m", "another plan")


def name_none(here):
    here.study(plan=None, seeds=[0, 1, 2])


def name_none_any_more(here):
    name_none(here)
    (here.plans / "plän.yaml").unlink()


def name_another(here):
    here.write("plans/other.yaml", PLAN | {"title": "Another"})
    here.study(plan="other.yaml", seeds=[0, 1, 2])


def rename(here):
    (here.plans / "plän.yaml").rename(here.plans / "q.yaml")
    here.write("trial.yaml", STUDY | {"plan": "q.yaml"})


def rename_and_edit(here):
    rename(here)
    edit(here, "q.yaml")


def deviate(here):
    text = (here.plans / "plän.yaml").read_text("utf-8")
    more = "# A word.\ndeviations: [{date: '2026-12-01', what: a, why: b}]\n"
    (here.plans / "plän.yaml").write_text(text + more, "utf-8")


def delete_runs(here):
    shutil.rmtree(here.top / "runs")
    edit(here)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit, "plän.yaml changed after 3 runs (made under HASH): `git checkout 'params/plans/p"),
        (edit_and_commit, "plän.yaml changed after 3 runs (made under HASH): `git checkout COMMIT"),
        (edit_and_stage, "plän.yaml changed after 3 runs (made under HASH): `git checkout HEAD"),
        (amend, "plän.yaml changed after 3 runs (made under HASH): `git checkout COMMIT "),
        (edit_without_git, "plän.yaml changed after 3 runs (made under HASH): undo that; git know"),
        (edit_what_is_recorded, "plän.yaml changed after 3 runs (made under HASH): `git checkout"),
        (
            edit_what_is_recorded_without_git,
            "plän.yaml changed after 3 runs (made under HASH): `cp papers/one/record/trial/plan.y",
        ),
        (name_none, "the plan changed after 3 runs (made under HASH): write `plan: plän.yaml` in"),
        (name_none_any_more, "the plan changed after 3 runs (made under HASH): `git checkout "),
        (name_another, "other.yaml changed after 3 runs (made under HASH): write `plan: plän.yaml"),
        (rename_and_edit, "q.yaml changed after 3 runs (made under HASH): `git show 'HEAD:params"),
        (rename, ""),
        (deviate, ""),
        (record, ""),
        (delete_runs, ""),
    ],
)
def test_a_plan_that_changed_after_its_runs_stops_a_sweep_and_can_be_restored(change, said, made):
    """Otherwise other seeds would be drawn, all runs trained again, and the record replaced."""
    change(made)
    study = load_study("trial")
    if not said:
        require_same_plan(study)
        return
    fault = refused(require_same_plan, study)
    said = said.replace("HASH", made.plan_hash[:8]).replace("COMMIT", made.made_at[:12])
    assert fault.startswith(f"plan: {said}")
    assert fault.endswith("; for another plan, give the study and its plan new names")
    for command in re.findall("`([^`]* params/[^`]*)`", fault):
        subprocess.run(command, cwd=made.top, shell=True, check=True)
        made.study(plan=load_study("trial").plan or "plän.yaml")
        require_same_plan(load_study("trial"))


@pytest.mark.parametrize(
    "changes",
    [{"training": {"learning_rate": 2e-3}}, {"seeds": {"count": 4}}, {"seeds": [0, 1, 2]}],
)
@pytest.mark.parametrize("standing", ["CONFIRMATORY", "EXPLORATORY"])
def test_parameters_that_changed_after_a_confirmatory_study_stop_a_sweep(changes, standing, made):
    verdict = made.top / "runs" / "trial" / "verdict.json"
    verdict.write_text(json.dumps({"standing": standing}), "utf-8")
    require_as_frozen(load_study("trial"))
    made.study(**changes)
    if standing == "EXPLORATORY":
        require_as_frozen(load_study("trial"))
        return
    assert "are not those that plän.yaml froze" in refused(require_as_frozen, load_study("trial"))
    made.git("checkout", "-q", "params/trial.yaml")
    require_as_frozen(load_study("trial"))


@pytest.mark.parametrize(
    ("trained", "executed", "said"),
    [
        ({}, {}, ""),
        ({"training_digest": "3" * 64}, {}, "`git checkout COMMIT -- lib notebooks` restores it"),
        ({}, {"measuring_digest": "3" * 64}, "`git checkout COMMIT -- lib notebooks` restores it"),
        ({"training_digest": "3" * 64, "clean": False}, {}, ""),  # exploratory
        ({"training_digest": "3" * 64, "clean": None}, {}, "undo that edit"),  # unverified
    ],
)
def test_code_that_changed_after_a_confirmatory_study_stops_a_sweep(
    trained, executed, said, made, monkeypatch
):
    """Otherwise all runs would be trained again, and the record replaced."""
    monkeypatch.setattr(preflight, "study_folder", lambda name: made.top / "runs" / name)
    monkeypatch.setattr(preflight, "train_key", lambda: "1" * 64)
    monkeypatch.setattr(preflight, "measure_key", lambda: "2" * 64)
    study = load_study("trial")
    for run in sample_runs(
        study, dict.fromkeys(["none", "layernorm"], dict.fromkeys(study.seeds, 1))
    ):
        content = run.model_dump() | {"corpus_sha256": TEXT, "suite_hash": SUITE}
        by = {"commit": made.made_at, "clean": True}
        content["provenance"]["trained"] |= by | trained
        content["provenance"]["executed"] |= by | executed
        write_json(made.top / f"runs/trial/{run.arm}/seed-{run.seed}/result.json", content)
    if not said:
        require_same_code(study)
        return
    fault = refused(require_same_code, study)
    assert fault.startswith("code: 6 runs under plän.yaml were made by other code than today's; ")
    assert f"; {said.replace('COMMIT', made.made_at[:12])}; --replace makes them again" in fault


@pytest.mark.parametrize("replaces", [False, True])
def test_other_code_is_asked_for_by_replace(replaces, monkeypatch):
    def require_same_code(study):
        raise UserError("made by other code")

    monkeypatch.setattr(preflight, "require_same_code", require_same_code)
    if replaces:
        load_and_check(["smoke"], replaces=True)
        return
    assert refused(load_and_check, ["smoke"]) == "smoke.yaml: made by other code"


def test_a_plan_that_is_named_after_runs_without_one_stops_a_sweep(made):
    for path in made.top.glob("runs/trial/*/*/*.json"):
        path.write_text(path.read_text("utf-8").replace(f'"{made.plan_hash}"', "null"), "utf-8")
    fault = refused(require_same_plan, load_study("trial"))
    assert fault.startswith("plan: 3 runs made without a plan came before plän.yaml: remove `plan:")
    name_none(made)
    require_same_plan(load_study("trial"))


def test_held_out_passages_that_stand_in_training_are_warned_of(folder, capsys):
    (folder / "twice.txt").write_text("".join(f"Passage {n % 90:02}.\n\n" for n in range(100)))
    write(folder, "tried", corpus="twice.txt", factors={"model.n_embd": [16, 32]})
    print_texts(load_and_check(["tried"]))
    said = "held out of twice.txt: the last tenth\n"
    said += "warning: twice.txt: 10 of 10 held-out passages are also in the training part\n"
    assert capsys.readouterr().out == said


@WITHOUT_GPU
def test_all_that_is_wrong_with_a_study_is_said(folder):
    write(folder, "bad", plan="a.yaml", corpus="c.txt")
    assert [fault.split()[2] for fault in faults("bad")] == ["plan:", "corpus.source:"]
    write(folder, "far", machine={"device": "cuda"})
    assert [fault.split()[2] for fault in faults("far")] == ["machine.device:"]
    require_executable(load_and_check(["far"]), is_local=False)


def test_what_needs_more_memory_than_the_machine_has_is_refused(folder, monkeypatch):
    sizes = {"SC_PHYS_PAGES": 32 * 10**9 // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    write(folder, "large", factors={"model.n_embd": [16, 64_000]}, machine={"device": "cpu"})
    (fault,) = faults("large")
    assert fault.startswith("error: large.yaml: model: a run of n_embd=64000 needs 1,57")
    require_executable(load_and_check(["large"]), is_local=False)


@pytest.mark.slow  # imports the harness
def test_a_stock_task_that_cannot_be_asked_is_found(folder, monkeypatch):
    monkeypatch.setattr("lib.train.lm_eval._manager", lambda _: SimpleNamespace(all_tasks=["piqa"]))
    evaluation = TINY["evaluation"] | {"tasks": ["piqq"]}
    write(folder, "asks", corpus=TINY["corpus"] | {"tokenizer": "bytes"}, evaluation=evaluation)
    monkeypatch.setattr("lib.data.cache.output_root", lambda: folder)
    (fault,) = faults("asks")
    assert fault == "error: asks.yaml: evaluation.tasks: 'piqq' is unknown; did you mean 'piqa'?"


@pytest.mark.slow  # imports the harness
@pytest.mark.parametrize(
    ("longest", "aggregation", "message"),
    [
        (17, "mean", "evaluation.tasks: own, 0-shot: a continuation has 18 tokens; it must have 1"),
        (15, "median", "plan: in evaluation.tasks, 'own.acc' is unknown; there are none"),
    ],
)
def test_what_cannot_be_asked_or_said_is_found(longest, aggregation, message, folder, monkeypatch):
    """The last answer of the last question is too long for the shorter context."""
    items = {"Which?" * n: ["a", "b" * n] for n in (1, longest)}
    manager = own_task(folder, "", items, aggregation)
    monkeypatch.setattr("lib.train.lm_eval._manager", lambda _: manager)
    monkeypatch.setattr("lib.data.cache.output_root", lambda: folder)
    plan = SimpleNamespace(primary_measures=["loss", "own.acc"], frozen={})
    monkeypatch.setattr(preflight, "load_plan", lambda _: plan)
    evaluation = TINY["evaluation"] | {"tasks": ["own"]}
    corpus, model = TINY["corpus"] | {"tokenizer": "bytes"}, TINY["model"] | {"block_size": 64}
    short = {"model.block_size": 16, "training.batch_size": 16}
    content = {"corpus": corpus, "evaluation": evaluation, "model": model}
    write(folder, "asks", **content, include=[{"name": "short", "levels": short}])
    (fault,) = faults("asks")
    assert fault.startswith(f"error: asks.yaml: {message}")
    monkeypatch.setattr(preflight, "has_harness", lambda: False)
    (fault,) = faults("asks")
    assert fault == f"error: asks.yaml: evaluation.tasks: need lm_eval; {INSTALL}, or remove them"


def test_a_study_begun_on_another_device_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "study_folder", lambda name: tmp_path / name)
    result = tmp_path / "smoke" / "none" / "seed-0" / "result.json"
    result.parent.mkdir(parents=True)
    for device in ("cpu", "cuda"):
        trained = {"machine": {"device": device}, "parameters": {"training": {"precision": "fp32"}}}
        result.write_text(json.dumps({"provenance": {"trained": trained}}), "utf-8")
        if device == prepare(load_study("smoke")).device:
            require_executable([load_study("smoke")], is_local=True)
        else:
            with pytest.raises(UserError, match=f"some runs were made on {device}, and") as error:
                require_executable([load_study("smoke")], is_local=True)
            assert f"; set machine.device: {device}, or delete smoke" in str(error.value)


def test_a_damaged_result_is_no_reason_to_stop(tmp_path, monkeypatch):
    """Its run is made again."""
    monkeypatch.setattr(preflight, "study_folder", lambda name: tmp_path / name)
    for arm, damage in (("none", "{"), ("layernorm", "[]")):
        result = tmp_path / "smoke" / arm / "seed-0" / "result.json"
        result.parent.mkdir(parents=True)
        result.write_text(damage, "utf-8")
    require_executable(load_and_check(["smoke"]), is_local=True)


WHOLE = [
    {},
    {"n_layer": 8, "mlp_ratio": 1, "block_size": 256, "V": 20},
    {"optimizer": "muon", "n_embd": 256},
]


@pytest.mark.slow  # imports a compiler
@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "rotary"},
        {"qk_norm": True},
        {"mlp_ratio": 2},
        {"n_layer": 1},
        *({"precision": name} | fields for name in ("fp32", "tf32", "bf16") for fields in WHOLE),
    ],
    ids=str,
)
def test_memory_is_within_a_tenth_of_what_torch_counts(fields):
    from torch.distributed._tools.mem_tracker import MemTracker  # slow

    model = {"n_layer": 4, "n_head": 4, "n_embd": 64, "block_size": 64} | fields
    symbols, optimizer = model.pop("V", 500), model.pop("optimizer", "adamw")
    precision = model.pop("precision", "fp32")
    training = {"precision": precision, "batch_size": 4, "optimizer": optimizer}
    config = RunConfig.model_validate({"model": model, "training": training})
    net = GPT(config.model, symbols, random_stream(0, "weights"))
    groups = optimizer_groups(net, 0.1)
    optimizers = [torch.optim.Muon([groups.pop(0)])] if optimizer == "muon" else []
    optimizers += [torch.optim.AdamW(groups, fused=True)]

    def micro_batch():
        x = torch.randint(symbols, (4, model["block_size"]))
        with autocast(precision, "cpu"):
            loss = F.cross_entropy(net(x).flatten(0, 1).float(), x.flatten())
        loss.backward()  # type: ignore[no-untyped-call]

    micro_batch()
    for each in optimizers:
        each.step()
    net.zero_grad()
    tracker = MemTracker()
    tracker.track_external(net, *optimizers)
    with tracker:
        micro_batch()
        tracker.reset_mod_stats()
        micro_batch()  # now all gradients are allocated
    counted = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    stated = memory(config, Size(symbols, count_parameters(net), 0.0))
    assert sum(stated.values()) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("tied", [True, False])
def test_operations_and_parameters_are_those_of_the_model_s_matrices(tied, tiny):
    """Torch counts matrix products; attention is added."""
    config = change(tiny, "model", tied=tied)
    size, model = size_of(config), config.model
    net = GPT(model, size.symbols, random_stream(0, "weights"))
    assert size.parameters == sum(p.numel() for p in net.parameters() if p.ndim == 2)
    with FlopCounterMode(display=False) as counted:
        net(torch.zeros((2, 12), dtype=torch.long)).sum().backward()
    attention = 12 * model.n_layer * model.n_embd * model.block_size
    tokens = config.training.batch_size * model.block_size
    assert size.flops / tokens == counted.get_total_flops() / (2 * 12) + attention


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300", "own.json"])
def test_the_symbols_of_a_text_that_is_not_here_follow_from_its_tokenizer(
    tokenizer, folder, monkeypatch
):
    monkeypatch.setattr("lib.data.cache.output_root", lambda: folder)
    (folder / "own.json").write_text(learn("bpe-260", ["ab cd " * 9]), "utf-8")
    absent = CorpusConfig(source="nowhere", tokenizer=tokenizer)
    here = load_corpus(CorpusConfig(source="synthetic", tokenizer=tokenizer))
    stand_in = load_corpus(estimating.stand_in(absent, folder))
    assert symbols_of(absent) == here.vocab_size == stand_in.vocab_size


def test_a_large_study_is_estimated_without_its_text():
    """On a CPU, no step is measured."""
    study = load_study("scale", undrawn=True)
    lines = [line.split(maxsplit=1) for line in estimate(study, None, None)]
    said = {words[0]: words[1] for words in lines if len(words) == 2}
    parameters = 50_000 * 1024 + 2048 * 1024 + 24 * (12 * 1024**2 + 13 * 1024) + 2 * 1024
    assert int(said["parameters"].replace(",", "")) == parameters
    assert said["tokens"] == f"{95_367 * 256 * 2048:,}"
    assert said["on"].startswith("disk     200.0 GB")
    assert said["checkpoint"].startswith(f"{12 * parameters / 1e9:.1f} GB")
    with pytest.raises(UserError, match=r"corpus\.source: 'nowhere' is neither"):
        size_of(RunConfig(corpus=CorpusConfig(source="nowhere")))


def test_runs_ask_a_cluster_for_three_times_what_the_largest_takes(tiny_study, monkeypatch):
    monkeypatch.setattr(estimating, "trial", lambda arm: Trial(100.0, 0.0, 200.0))
    minutes, megabytes = map(int, asks(tiny_study, tries=True).split(":"))
    assert minutes == 10 + 3 * (12 * 100 + 200) / 60
    largest = max(sum(memory(a.config, size_of(a.config)).values()) for a in tiny_study.arms())
    assert megabytes == pytest.approx(3 * (6e8 + largest) / 1e6, abs=1)
    on_gpu = tiny_study.model_copy(update={"machine": MachineConfig(device="cuda")})
    if not torch.cuda.is_available():  # without a GPU nothing is measured
        assert asks(on_gpu, tries=True).startswith("11:")


def test_the_cost_of_a_study_is_counted_and_measured(tiny_study, monkeypatch):
    monkeypatch.setattr(estimating, "trial", lambda arm: Trial(0.5, 10.0, 2.0))
    monkeypatch.setattr(estimating, "cores", lambda: 2)
    monkeypatch.setattr(estimating, "gpus", lambda *_: [])
    lines = list(estimate(tiny_study, None, None))
    config = tiny_study.arm("none").config
    model = GPT(config.model, size_of(config).symbols, None)
    assert lines[0] == "tiny: 2 arms × 2 seeds; the largest run has:"
    assert lines[1].split() == ["parameters", f"{count_parameters(model):,}"]
    assert lines[2].split() == ["tokens", str(12 * 4 * 16)]
    # 12 steps, four points of the curve and the rest; four runs, two at once.
    said = r"500\.0 ms a step, 172,800 steps a day,\n +48 s a run, 0:01:36 in all, 2 at once,"
    assert re.search(said, "\n".join(lines))
    assert lines[-2].startswith("Power: write a plan")
    (*_, row) = estimate(tiny_study, 0.5, "0.5", "perplexity")  # without a plan: the proposed one
    assert row == "warning: 2 seeds are too few for layernorm"
    for spread, measure, fault in (("0.5", "lossy", "--measure: 'lossy'"), ("-1", "loss", "--sp")):
        with pytest.raises(UserError, match=fault):
            list(estimate(tiny_study, 0.5, spread, measure))


@pytest.mark.slow
def test_a_trial_is_a_run_of_a_few_steps(tiny_study):
    assert min(estimating.trial(tiny_study.arm("layernorm"))) > 0
    absent = CorpusConfig(source="nowhere", tokenizer="bpe-300")
    elsewhere = {"corpus": absent, "machine": MachineConfig(device="cuda")}  # not on this machine
    (arm, _) = Study.model_validate(tiny_study.model_dump() | elsewhere).arms()
    assert min(estimating.trial(arm)) > 0


def test_an_unfilled_plan_leaves_the_cost_and_is_named(tiny_study, monkeypatch):
    monkeypatch.setattr(estimating, "trial", lambda arm: Trial(0.5, 0.1, 2.0))
    lines = list(estimate(tiny_study.model_copy(update={"plan": "absent.yaml"}), None, None))
    assert any("500.0 ms a step" in line for line in lines)
    assert "there is no params/plans/absent.yaml" in lines[-1]


def test_the_power_is_the_textbook_s():
    test = {"says": "…", "test": ["weight_decay=0.3", "weight_decay=0", "loss"]}
    content = {"title": "t", "question": "q", "confirmatory": ["decay"]}
    content |= {"hypotheses": {"h": test | {"direction": "differs"}}}
    content |= {"smallest_effect_of_interest": {"loss": 0.05}}
    study = decay_study(8)
    _, table, warning = power(Plan.model_validate(content), study, 0.5, "0.5")
    header, row = table.splitlines()
    assert header.split() == ["hypothesis", "measure", "difference", "sd", "power", "seeds"]
    *_, found, seeds = row.split()
    assert float(found) == pytest.approx(TTestPower().power(1.0, 8, 0.05), abs=0.015)
    assert float(seeds) == math.ceil(TTestPower().solve_power(1.0, None, 0.05, 0.8))
    assert warning == "warning: 8 seeds are too few for h"


def test_a_shortened_study_has_two_arms_two_seeds_and_five_steps():
    factors = {"model.embedding_norm": ["none", "layernorm", "center"]}
    factors |= {"training.learning_rate": [1e-3, 1e-2, 1e-1]}
    training = {"iterations": 300, "schedule": "warmup_cosine"}
    content = TINY | {"name": "long", "seeds": [3, 4, 5], "factors": factors, "training": training}
    short = shortened(Study.model_validate(content | {"plan": "preregistration.yaml"}))
    ids = ["none,learning_rate=0.001", "none,learning_rate=0.01"]
    assert ([arm.id for arm in short.arms()], short.seeds, short.plan) == (ids, [3, 4], None)
    assert (short.training.iterations, short.training.schedule) == (5, "warmup_cosine")
    horizons = {"training.iterations": [300, 600, 1200]}
    short = shortened(Study.model_validate(content | {"factors": horizons}))
    assert [arm.config.training.iterations for arm in short.arms()] == [5, 6]


@pytest.mark.parametrize(
    ("cores", "gigabytes", "runs"), [(2, 16, 2), (16, 4, 5), (16, 16, 16), (16, 0.5, 1)]
)
def test_as_many_runs_at_once_as_cores_and_memory_have_room_for(
    cores, gigabytes, runs, tiny_study, monkeypatch
):
    monkeypatch.setattr(estimating, "cores", lambda: cores)
    monkeypatch.setattr(estimating, "total_memory", lambda: gigabytes * 1e9)
    assert estimating.side_by_side([tiny_study]) == runs


@pytest.mark.parametrize(
    ("cores", "gigabytes", "processes", "jobs", "places"),
    [
        (4, 16.0, 1, None, ["0", "1", "0", "1"]),  # two T4s: as many as cores
        (16, 3.1, 1, None, ["0", "1", "0", "1", "0", "1"]),  # as many as memory
        (1, 0.1, 1, None, ["0", "1"]),  # at least one each
        (16, 80.0, 1, 3, ["0", "1", "0"]),
        (16, 80.0, 2, None, ["0,1"]),
    ],
)
def test_runs_share_gpus_as_far_as_cores_and_memory_go(
    cores, gigabytes, processes, jobs, places, tiny_study, monkeypatch
):
    on_gpu = tiny_study.machine_on("cuda")
    found = SimpleNamespace(total_memory=gigabytes * 1e9)
    monkeypatch.setattr(estimating, "machine_of", lambda _: on_gpu)
    monkeypatch.setattr(estimating, "cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = tiny_study.machine.model_copy(update={"processes": processes})
    assert estimating.gpus([tiny_study.model_copy(update={"machine": machine})], jobs) == places
