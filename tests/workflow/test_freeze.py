"""A plan is frozen once, before there are runs under it."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.study.digests import analysing_digest
from statsmodels.stats.power import TTestPower

from lib.study import inputs
from lib.study.plan import read_plan
from lib.study.preregistration import claim_status, load_plan
from lib.study.study import load_study
from lib.workflow import cli
from lib.workflow import freeze as module
from tests.conftest import Tree, run_git
from tests.study.samples import CONTENT, TEXT, Parameters, Repository

BOUND = {"says": "…", "test": ["layernorm", "none", "loss"], "direction": "less"}
LITTLE = {
    "corpus": "synthetic",
    "model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 96},
    "evaluation": {"items_per_task": 0},
}


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    """A study whose seeds are drawn, another with listed seeds, and a plan that is not frozen."""
    parameters = Parameters(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "PARAMS", parameters.folder)
    monkeypatch.setattr(module, "PLANS", parameters.plans)
    monkeypatch.setattr(module, "PAPERS", tmp_path / "papers")
    monkeypatch.setattr("lib.study.preregistration.PAPERS", tmp_path / "papers")
    monkeypatch.setattr("lib.study.preregistration.RUNS", tmp_path / "runs")
    monkeypatch.setattr(module, "study_folder", lambda name: tmp_path / "runs" / name)
    parameters.study(**LITTLE)
    parameters.study(name="other", seeds=[5, 7], plan=None)
    parameters.plan()
    return parameters


def main(words: list[str]) -> int:
    return cli.main(["freeze", *words])


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["freeze", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


@pytest.mark.slow
def test_a_plan_is_frozen_and_its_study_is_confirmatory(
    parameters: Parameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = parameters.plans / "p.yaml"
    parameters.study(**LITTLE | {"evaluation": {"items_per_task": 50}})
    path.write_text("# Why: a comment.\n" + path.read_text("utf-8") + "# The end.\n", "utf-8")
    index = {"gone": {"seeds": {"none": [9]}}}
    write(tmp_path / "papers" / "two" / "record" / "index.json", index)
    assert cli.main(["freeze", "params/plans/p.yaml"]) == 0
    plan, said = read_plan("p.yaml"), capsys.readouterr().out
    assert plan.hash in said
    assert f"Seeds of trial: {', '.join(map(str, load_study('trial').seeds))}" in said
    assert "Next: commit params/plans/p.yaml, params/trial.yaml.\nPublish the hash" in said
    text = path.read_text("utf-8")
    assert text.startswith("# Why: a comment.\n")
    assert "# The end.\n" in text
    kept = {name: value for name, value in yaml.safe_load(text).items() if name != "frozen"}
    assert kept == CONTENT
    frozen = plan.frozen["trial"]
    assert (frozen.seeds, frozen.used_seeds) == (3, [5, 7, 9])
    assert list(frozen.corpus) == ["synthetic"]
    (suite,) = frozen.suite
    assert frozen.analysing_digest == analysing_digest()
    (written,) = (tmp_path / "runs" / "trial" / "suite").glob("*/suite.json")
    assert json.loads(written.read_text("utf-8"))["hash"] == suite
    study = load_study("trial")
    assert claim_status(study, load_plan(study)).name == "CONFIRMATORY"


def test_a_new_plan_asks_only_for_what_its_user_knows(
    parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {"training.weight_decay": [0.0, 0.1, 0.3]}
    parameters.study(
        **LITTLE | {"name": "decay", "factors": factors, "seeds": [0, 1], "plan": None}
    )
    assert main(["--new", "decay", "--study", "decay"]) == 0
    said = capsys.readouterr().out
    assert "In params/decay.yaml write:\n  plan: decay.yaml\n  seeds: {count: 2}\n" in said
    path = parameters.plans / "decay.yaml"
    text = path.read_text("utf-8")
    assert "weight_decay=0; weight_decay=0.1; weight_decay=0.3" in text
    assert max(map(len, text.splitlines())) <= 100
    assert main(["--new", "decay", "--study", "decay"]) == 1  # what was filled in is not lost
    assert path.read_text("utf-8") == text
    assert main(["--new", "another"]) == 2
    capsys.readouterr()

    assert main(["decay"]) == 1  # all that is missing at once
    assert capsys.readouterr().err.splitlines() == [
        "error: decay.yaml: title: is missing; add it",
        "error: decay.yaml: question: is missing; add it",
        "error: decay.yaml: hypotheses.weight_decay=0.1.says: is missing; add it",
        "error: decay.yaml: hypotheses.weight_decay=0.3.says: is missing; add it",
        "error: decay.yaml: smallest_effect_of_interest: has none of perplexity; write the "
        "smallest difference that matters",
        "error: decay.yaml: plan is None, and decay.yaml names the study; write plan: decay.yaml",
        "error: decay.yaml: seeds are listed, and those of a frozen plan are drawn; "
        "write seeds: {count: 2}",
    ]
    path.write_text(text.replace("confirmatory:", "confirmatry:"), "utf-8")  # what is no sentence
    assert main(["decay"]) == 1
    assert "confirmatry: 'confirmatry' is unknown; did you mean" in capsys.readouterr().err


def test_freezing_a_filled_in_plan_says_what_its_seeds_can_show(
    parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {"training.weight_decay": [0.0, 0.1, 0.3]}
    decay = LITTLE | {"name": "decay", "factors": factors, "plan": "decay.yaml"}
    parameters.study(**decay | {"seeds": {"count": 5}})
    assert main(["--new", "decay", "--study", "decay"]) == 0
    assert "In params/decay.yaml" not in capsys.readouterr().out
    path = parameters.plans / "decay.yaml"
    text = re.sub(r"(title|question|says):$", r"\1: As said.", path.read_text("utf-8"), flags=re.M)
    text = text.replace("    # Instead of", "    exact: true\n    # Instead of")
    text = text.replace("perplexity:", "perplexity: 0.5").replace(
        "spread:", "spread: {perplexity: 0.4}"
    )
    path.write_text(text, "utf-8")
    assert main(["decay"]) == 0
    said = capsys.readouterr().out
    assert "warning: hypotheses.weight_decay=0.3: the p of an exact test of 5 seeds" in said
    power = TTestPower().power(0.5 / 0.4, 5, 0.025)
    found = re.search(r"warning: weight_decay=0.1: 5 seeds have a power of (\S+), and 0.80", said)
    assert found
    assert float(found[1]) == pytest.approx(power, abs=0.02)
    study = load_study("decay")
    assert claim_status(study, load_plan(study)).name == "CONFIRMATORY"


def test_tasks_of_one_s_own_are_frozen_and_edited_they_are_others(
    parameters: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "ROOT", tmp_path)
    monkeypatch.setattr(module, "has_harness", lambda: False)  # nor is it needed
    files = {"sciq.yaml": b"task: own_sciq", "items.jsonl": b"{}"}
    for name, content in files.items():
        (tmp_path / "tasks" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).write_bytes(content)
    asked = {"items_per_task": 0, "tasks": ["own_sciq"], "include_path": "tasks"}
    corpus = {"source": "synthetic", "tokenizer": "bytes"}
    parameters.study(**LITTLE | {"corpus": corpus, "evaluation": asked})
    claim = {"says": "…", "test": ["layernorm", "none", "own_sciq.acc"], "direction": "greater"}
    effect = {"smallest_effect_of_interest": {"own_sciq.acc": 0.02}}
    parameters.plan(hypotheses={"knows": claim}, primary=[], families={}, rules="none", **effect)
    assert main(["p"]) == 0

    (frozen,) = read_plan("p.yaml").frozen.values()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    listed = json.dumps(hashes, sort_keys=True, separators=(",", ":"))
    assert frozen.tasks == hashlib.sha256(listed.encode()).hexdigest()
    assert frozen.suite == []
    study = load_study("trial")
    assert claim_status(study, load_plan(study)).name == "CONFIRMATORY"
    (tmp_path / "tasks" / "items.jsonl").write_bytes(b"{} ")
    (because,) = claim_status(study, load_plan(study)).reasons
    assert re.fullmatch(f"tasks is \\w{{12}}, frozen was {frozen.tasks[:12]}", because)


@pytest.mark.slow  # imports the harness
def test_a_plan_fixes_no_task_that_cannot_be_asked(
    parameters: Parameters,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would be found by the first run, after the plan was published."""
    from lib.run import lm_eval as harness
    from tests.run.test_own_tasks import write_tasks

    write_tasks(tmp_path)
    manager = harness.TaskManager(include_path=tmp_path / "tasks/own", include_defaults=False)
    monkeypatch.setattr(inputs, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "_manager", lambda _: manager)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def freezing(task: str) -> list[str]:
        asked = {"items_per_task": 0, "tasks": [task], "include_path": "tasks/own"}
        corpus = {"source": "synthetic", "tokenizer": "bytes"}
        parameters.study(**LITTLE | {"corpus": corpus, "evaluation": asked})
        claim = {"says": "…", "test": ["layernorm", "none", f"{task}.acc"], "direction": "greater"}
        effect = {"smallest_effect_of_interest": {f"{task}.acc": 0.02}}
        parameters.plan(hypotheses={"h": claim}, primary=[], families={}, rules="none", **effect)
        assert main(["p"]) == bool(task != "own_sciq")
        return capsys.readouterr().err.splitlines()

    assert freezing("own_scig") == [
        "error: trial.yaml: evaluation.tasks: 'own_scig' is unknown; did you mean 'own_sciq'?"
    ]
    assert read_plan("p.yaml").frozen == {}
    assert freezing("own_sciq") == []


def test_frozen_again_before_any_run_it_stands_once(parameters: Parameters) -> None:
    assert cli.main(["freeze", "p"]) == 0
    text, first = (parameters.plans / "p.yaml").read_text("utf-8"), load_study("trial").seeds
    assert cli.main(["freeze", "p"]) == 0
    assert (parameters.plans / "p.yaml").read_text("utf-8") == text  # no other seeds for trying
    parameters.study(**LITTLE | {"seeds": {"count": 4}})
    assert cli.main(["freeze", "p.yaml"]) == 0
    again = (parameters.plans / "p.yaml").read_text("utf-8")
    assert again.count("frozen:") == text.count("frozen:") == 1
    assert again.partition("\nfrozen:")[0] == text.partition("\nfrozen:")[0]
    assert read_plan("p.yaml").frozen["trial"].used_seeds == [5, 7]
    assert len(set(load_study("trial").seeds) - set(first)) == 4
    assert sorted(parameters.plans.glob("**/*p*")) == [parameters.plans / "p.yaml"]  # no remains


def origin(plan: str | None) -> dict[str, Any]:
    parameters = {"training": {"precision": "fp32"}}
    return {"trained": {"plan": plan, "parameters": parameters, "machine": {}}}


@pytest.mark.parametrize("of", ["the plan", "another plan"])
def test_a_plan_edited_after_a_run_is_frozen_no_more(
    of: str, parameters: Parameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a second; from where else runs are known, the tests below say."""
    parameters.plan(frozen={"trial": parameters.frozen()})
    hash_ = read_plan("p.yaml").hash if of == "the plan" else TEXT
    run = tmp_path / "runs" / "trial" / "none" / "seed-1" / "result.json"
    write(run, {"provenance": origin(hash_)})
    parameters.plan(alpha=0.01)
    before = (parameters.plans / "p.yaml").read_text("utf-8")
    assert "runs of 'trial' under a plan exist" in refusal(capsys, "p")
    assert (parameters.plans / "p.yaml").read_text("utf-8") == before


@pytest.mark.parametrize("place", ["result", "checkpoint", "record"])
def test_a_plan_with_runs_is_frozen_no_more(
    place: str, parameters: Parameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frozen again after a look at results, it would draw seeds until some pleased."""
    assert cli.main(["freeze", "p"]) == 0
    run = tmp_path / "runs" / "trial" / "none" / "seed-1"
    path, of = {
        "result": (run / "result.json", lambda hash: {"provenance": origin(hash)}),
        "checkpoint": (
            run / "checkpoints" / "a" / "step-1" / "provenance.json",
            lambda hash: origin(hash)["trained"],
        ),
        "record": (
            tmp_path / "papers" / "one" / "record" / "trial" / "none" / "seed-1" / "02_train.ipynb",
            lambda hash: {
                "metadata": {
                    "study": {"preregistration": hash, "commit": "c" * 40},
                    "papermill": {"start_time": "2026-01-31T23:59:59+00:00"},
                }
            },
        ),
    }[place]
    plan = read_plan("p.yaml")
    write(path, of(plan.hash))
    before = (parameters.plans / "p.yaml").read_text("utf-8")
    capsys.readouterr()
    assert "runs of 'trial' under a plan exist" in refusal(capsys, "p")
    assert (parameters.plans / "p.yaml").read_text("utf-8") == before
    parameters.plan(alpha=0.01)  # edited by hand, and to be frozen again
    assert "runs of 'trial' under a plan exist" in refusal(capsys, "p")
    write(path, of(TEXT))  # of another plan: under this one the study would be exploratory
    assert "runs of 'trial' under a plan exist" in refusal(capsys, "p")
    write(path, of(None))  # of none: they say nothing about this one
    assert cli.main(["freeze", "p"]) == 0


def test_a_committed_plan_edited_after_runs_is_frozen_no_more(
    parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the study that has the runs was renamed in the edit."""
    repository = Repository(parameters)
    assert cli.main(["freeze", "p"]) == 0
    hash_ = read_plan("p.yaml").hash
    repository.commit_all()
    run = repository.top / "runs" / "trial" / "none" / "seed-1" / "result.json"
    write(run, {"provenance": origin(hash_)})
    parameters.study(**LITTLE | {"name": "renamed"})
    parameters.plan(alpha=0.01, confirmatory=["renamed"])
    assert "runs of 'trial' under a plan exist, since before;" in refusal(capsys, "p")
    run.unlink()
    assert cli.main(["freeze", "p"]) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"seeds": [1, 2]},
            "trial.yaml: seeds are listed, and those of a frozen plan are drawn; write",
        ),
        ({"plan": "q.yaml"}, "trial.yaml: plan is q.yaml, and p.yaml names the study"),
        ({"training": {"iteratoins": 3}}, "trial.yaml: training.iteratoins: 'iteratoins' is unkn"),
        ({"corpus": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_cannot_be_frozen_is_said_in_one_line(
    change: dict[str, Any], said: str, parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters.plan("q.yaml")
    before = (parameters.plans / "p.yaml").read_text("utf-8")
    parameters.study(**LITTLE | change)
    assert said in refusal(capsys, "p")
    assert (parameters.plans / "p.yaml").read_text("utf-8") == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spread": "fnal"}, "spread: 'fnal' is unknown; did you mean 'final'?; name a recorded"),
        ({"spread": {"los": 0.4}}, "spread: 'los' is unknown; did you mean 'loss'?"),
        (
            {"hypotheses": {"h": BOUND | {"test": ["none", "none", "loss"]}}},
            "hypotheses.h.test: holds none against itself; name two arms",
        ),
    ],
)
def test_what_a_plan_says_in_vain_is_said_before_it_is_fixed(
    change: dict[str, Any], said: str, parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    of = {"hypotheses": {"h": BOUND}, "smallest_effect_of_interest": {"loss": 0.1}}
    parameters.plan(**of | {"primary": [], "families": {}, "rules": "none"} | change)
    assert refusal(capsys, "p").startswith(f"p.yaml: {said}")
    assert read_plan("p.yaml").frozen == {}


def test_what_judges_runs_is_said_in_the_plan(
    parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run is unstable without a definition, none harmful without an effect that matters, and no
    plateau of byte pairs is above what is a plateau of characters."""
    pair = [arm.id for arm in load_study("trial", undrawn=True).arms()][1::-1]
    tests = {
        name: {"says": "…", "test": [*pair, name], "direction": "less"}
        for name in ("unstable", "harmful", "plateau")
    }
    parameters.study(**LITTLE | {"corpus": {"tokenizer": "bpe-300"}, "seeds": [1, 2]})

    def said(effects: dict[str, float], **instability: Any) -> str:
        of = {"smallest_effect_of_interest": effects, "instability": instability}
        content = CONTENT | of | {"hypotheses": tests}
        write(parameters.plans / "p.yaml", content)
        assert main(["p"]) == 1
        return capsys.readouterr().err

    lacking = said({"plateau": 10})
    for fault in (
        "instability: does not say when a run is unstable; write noise: {times: 12.0, window: 50}",
        "smallest_effect_of_interest: has none of loss, beyond which a run is harmful",
        "instability.plateau.below: 3 nats is for characters, and trial reads bpe-300; write the",
    ):
        assert f"error: p.yaml: {fault}" in lacking
    whole = {"plateau": 10.0, "loss": 0.03}
    left = said(whole, noise={}, plateau={"below": 4.5})
    assert "p.yaml: instability" not in left
    assert "p.yaml: smallest" not in left
    usual = {"rise": 0.5, "last": 10, "start": 0.5}
    for faulty in ({"noise": {}} | usual, {"rise": 0.5}):
        assert "p.yaml: instability: give one definition: noise; or rise" in said(whole, **faulty)


def test_the_first_plan_s_instability_is_not_frozen_anew_and_goes_on_to_be_read(
    parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters.study(**LITTLE)
    parameters.plan(instability={"window": 64, "threshold": 6.0})
    assert refusal(capsys, "p") == (
        "p.yaml: instability: window and threshold were the first plan's, and judge no run; write "
        "noise: {times: 12.0, window: 50} in their place"
    )
    read = read_plan("p.yaml").instability
    assert read
    assert (read.window, read.threshold) == (64, 6.0)


def test_a_plan_must_be_there_and_name_a_study(
    parameters: Parameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "'q' is unknown; there are p"
    assert f"there is no params/plans/q.yaml ({hint})" in refusal(capsys, "q")
    parameters.plan(confirmatory=[])
    assert "there is nothing to freeze" in refusal(capsys, "p")
    parameters.plan(primary=["perplexty"])
    assert main(["p"]) == 1
    assert "p.yaml: primary: 'perplexty' is unknown" in capsys.readouterr().err
    parameters.plan()
    write(index := tmp_path / "papers" / "one" / "record" / "index.json", {})
    index.write_text("{", "utf-8")
    assert "index.json cannot be read" in refusal(capsys, "p")


@pytest.mark.long
@pytest.mark.slow
def test_a_frozen_study_runs_as_confirmatory_and_an_edited_plan_has_no_runs(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "embedding-norm")
    plan = tree.root / "params" / "plans" / "p.yaml"
    measures = {"primary": ["perplexity"], "secondary": [], "imputation": {"perplexity": 65.0}}
    families = {"primary": [["layernorm", "none"]]}
    plan.write_text(yaml.safe_dump(CONTENT | measures | {"families": families}), "utf-8")
    brief = {"interval": 4, "dev_windows": 4, "items_per_task": 0}
    planned = {"factors": {"model.embedding_norm": ["none", "layernorm"]}, "plan": "p.yaml"}
    tree.write_study("trial", evaluation=brief, seeds={"count": 2}, **planned)
    status, text = tree.run_all("params/trial.yaml")
    assert (status, text.count("\n")) == (1, 1)
    assert "./run_all.sh freeze p.yaml" in text

    status, text = tree.run_all("freeze", "p.yaml")
    assert status == 0, text
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "work"]):
        run_git(tree.root, *words)
    status, text = tree.run_all("params/trial.yaml")
    assert status == 0, text
    assert "\nCONFIRMATORY\n  H0: " in text
    verdict = json.loads((tree.root / "runs" / "trial" / "verdict.json").read_text("utf-8"))
    assert (verdict["standing"], verdict["exploratory_because"]) == ("CONFIRMATORY", [])
    assert verdict["plan_precedes"].startswith("yes: plan fixed at ")
    runs = list((tree.root / "runs" / "trial").glob("*/seed-*/result.json"))
    assert len(runs) == 4

    plan.write_text(plan.read_text("utf-8").replace("alpha: 0.05", "alpha: 0.06"), "utf-8")
    status, text = tree.run_all("freeze", "p.yaml")
    assert (status, "under a plan exist" in text) == (1, True)
    _, text = tree.run_all("params/trial.yaml", "-n")
    assert "trial: would make 4 of 4 runs" in text  # every run anew, of other seeds
