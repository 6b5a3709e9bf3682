"""Whole sweeps, as a user runs them in a copied tree, and which results count."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import yaml

from lib.config.errors import TIME_UP, UserError
from lib.config.files import read_json, sha256, write_json
from lib.config.paths import ROOT
from lib.config.study import Study, load_study
from lib.sweep import execute, sweep
from lib.sweep.cli import STOPPED
from lib.sweep.estimate import clock
from lib.sweep.execute import turns
from lib.sweep.live import STEP_FILE
from lib.sweep.sweep import find_stale, follow, only_sweep
from tests.conftest import TINY, Tree, run_git

UNASKED = {"interval": 4, "dev_windows": 4, "items_per_task": 0}
TRAINED, MEASURED = "trained again", "measured again from its weights"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "embedding-norm")


@pytest.fixture
def copy(smoke_tree, tmp_path):
    """Copy the tree in which the smoke study has run."""
    shutil.copytree(smoke_tree[0].root, tmp_path / "copy", symlinks=True)
    result = object.__new__(Tree)
    result.root, result.environment = tmp_path / "copy", smoke_tree[0].environment
    return result


@pytest.fixture
def runs(smoke_tree, tmp_path, monkeypatch):
    """Copy the `runs/` of the smoke study, and let `lib` use the copy."""
    shutil.copytree(smoke_tree[0].root / "runs", tmp_path / "runs")
    monkeypatch.setattr("lib.record.archive.PAPERS", smoke_tree[0].root / "papers")
    for module in ("lib.config.paths", "lib.sweep.sweep", "lib.sweep.execute"):
        monkeypatch.setattr(f"{module}.RUNS", tmp_path / "runs")
    return tmp_path / "runs"


def smoke(**sections):
    content = load_study("smoke").model_dump(exclude={"commits"})
    merged = {n: content[n] | v if isinstance(v, dict) else v for n, v in sections.items()}
    return Study.model_validate(content | merged)


def reasons(study):
    """Return why results are stale, by arm and seed or by file."""
    found = {}
    for path, why in find_stale([study]).items():
        named = path.parent if path.name == "result.json" else path
        found[str(named.relative_to(sweep.RUNS / "smoke"))] = why
    return found


# ---- a whole sweep


@pytest.mark.slow
def test_a_sweep_prints_its_progress_its_table_and_where_to_read_more(smoke_tree):
    text = smoke_tree[1]
    assert re.search(r"^[1-3]/4 runs, [\d:]+( s)? left, [\d:]+( s)? elapsed$", text, re.MULTILINE)
    for part in ("analysis", "figures", "record", "paper"):
        assert re.search(rf"^4/4 runs, now the {part}, .* elapsed$", text, re.MULTILINE)
    assert re.search(r"^4/4 runs, [\d:]+( s)?$", text, re.MULTILINE)
    number = r"\d+\.\d{4}"
    assert re.search(rf"^layernorm +{number} ± {number} ", text, re.MULTILINE)
    difference = rf"^layernorm − none +[+-]{number} \[[+-]{number}, [+-]{number}\] "
    assert re.search(difference, text, re.MULTILINE)
    assert "\x1b" not in text
    first, *rest = re.findall(r"^(?:In a|An|Ex|Rec|Nu)[a-z ]+ {2,}(.*)$", text, re.MULTILINE)
    assert first == "runs/_site/index.html"
    assert rest == ["runs/smoke/03_analysis.ipynb", "runs/smoke/", "papers/smoke/record/smoke/",
                    "papers/smoke/results/smoke.json"]  # fmt: skip


@pytest.mark.slow
def test_a_second_sweep_has_nothing_to_do_and_says_so_in_seconds(smoke_tree):
    tree = smoke_tree[0]
    files = [path for path in tree.root.glob("runs/**/*.*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    used = sum(os.times()[2:4])
    status, text = tree.run_all("params/smoke.yaml")
    assert (status, "No run is missing or stale" in text) == (0, True), text
    assert sum(os.times()[2:4]) - used < 9  # core-seconds; about three on a quiet machine
    changed = [path.name for path, then in before.items() if path.stat().st_mtime_ns != then]
    assert set(changed) <= {"sweep.log"}


@pytest.mark.slow
def test_only_what_is_lost_is_made_again_whatever_the_clock_said(copy):
    """A run without its result ends with the same weights. If the clock was ahead, the times of
    files neither stop a sweep nor make anything stale."""
    (copy.root / "runs/smoke/03_analysis.json").unlink()
    assert "\nThen: analysis, figures, record, paper, pages\n" in copy.run_all("smoke", "-n")[1]
    lost = copy.run_folder("smoke", "none", 1) / "result.json"
    weights = read_json(lost)["final_weights"]
    lost.unlink()
    results = sorted(copy.root.glob("runs/smoke/*/seed-*/result.json"))
    before = {path: path.stat().st_ino for path in results}
    analysed = copy.root / "runs/smoke/03_analysis.ipynb"
    first = analysed.read_bytes()
    for path in copy.root.glob("runs/**/*.*"):
        os.utime(path, (time.time() + 86_400,) * 2)
    status, text = copy.run_all("params/smoke.yaml", "--until", "analysis")
    assert (status, "\n4/4 runs, " in text) == (0, True), text
    assert read_json(lost)["final_weights"] == weights
    assert {path: path.stat().st_ino for path in results} == before
    assert analysed.read_bytes() != first  # it holds the time of day
    assert "No run is missing or stale" in copy.run_all("smoke", "--until", "analysis")[1]


def test_braces_in_a_path_are_refused_in_one_line(tmp_path):
    (tmp_path / "{a}").mkdir()
    script = shutil.copy(ROOT / "run_all.sh", tmp_path / "{a}")
    done = subprocess.run([script, "smoke"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "has a { or } in its path; rename that folder" in done.stderr


@pytest.mark.slow
def test_a_dry_run_tells_and_runs_nothing(tree):
    tree.environment["SNAKEMAKE_PROFILE"] = "/nowhere"  # only --profile counts
    tree.environment["COLUMNS"] = "200"
    status, text = tree.run_all("params/smoke.yaml", "-n", "-j2")
    assert status == 0, text
    runs, time, later, last = text.splitlines()
    assert runs == "smoke: 4 of 4 runs to train (4 missing, 0 stale), 0 done"
    assert re.match(r"About 2\d s, 2 at once ", time)
    assert later == "Then: data, analysis, figures, record, paper, pages"
    assert last.startswith("Nothing was run")
    status, text = tree.run_all("params/smoke.yaml", "-n", "--verbose")
    assert status == 0, text
    assert set(re.findall(r"^(train_\d) +1$", text, re.M)) == {f"train_{i}" for i in range(4)}
    assert not (tree.root / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["smoke"], ["smoke", "-n"], ["final-embedded", "-n"]])
def test_neither_a_dry_run_nor_a_sweep_with_nothing_to_do_imports_torch(words, smoke_tree):
    if words == ["final-embedded", "-n"] and shutil.which("nvidia-smi"):
        pytest.skip("torch is asked what the GPU can do")
    program = "import sys; from lib.sweep.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    variables = smoke_tree[0].environment | {"PYTHONPATH": str(smoke_tree[0].root)}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(
        command, cwd=smoke_tree[0].root, env=variables, capture_output=True, text=True, check=True
    )
    *_, said, modules = done.stdout.splitlines()
    assert ("Nothing was run" in said) == (words[0] == "final-embedded"), done.stdout
    assert {"torch", "lm_eval", "snakemake"} & {*modules.split()} == set()


@pytest.mark.slow
def test_a_failed_run_keeps_its_notebook_and_the_others_finish_or_diverge(tree):
    levels = {"model.n_head": 2, "training.learning_rate": 1e30}
    wild = {"include": [{"name": "wild", "levels": levels}], "evaluation": UNASKED}
    tree.write_study("mixed", factors={"model.n_head": [2, 1]}, **wild)
    tree.environment["SNAKEMAKE_PROFILE"] = "/nowhere"
    model = tree.root / "lib/train/model.py"
    whole, line = model.read_text("utf-8"), "        net, config = self.transformer, self.config\n"
    assert whole.count(line) == 1
    broken = f"{line}        assert config.n_head == 2, 'it is broken'\n"
    model.write_text(whole.replace(line, broken), "utf-8")
    status, text = tree.run_all("params/mixed.yaml")
    assert status == 1
    said = "FAILED AssertionError: it is broken; see runs/mixed/n_head=1/seed-0/02_train.ipynb\n"
    assert said in text, text
    kept = nbformat.read(tree.run_folder("mixed", "n_head=1") / "02_train.ipynb", 4)
    assert any(o.output_type == "error" for c in kept.cells for o in c.get("outputs", []))
    for arm, outcome in (("n_head=2", "completed"), ("wild", "diverged")):
        assert read_json(tree.run_folder("mixed", arm) / "result.json")["status"] == outcome
    assert not (tree.root / "papers/embedding-norm/record/mixed").exists()


@pytest.mark.slow
def test_the_time_given_ends_a_sweep_which_a_rerun_continues(tree):
    tree.write_study("long", training={"iterations": 100_000}, evaluation=UNASKED)
    status, text = tree.run_all("long", "--stop-after", "0.0015", "--until", "train")
    assert status == TIME_UP, text
    assert text.endswith("stopped after 0.0015 hours; the same command continues\n")
    assert not psutil.Process().children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("lib.sweep.cli", signal.SIGHUP),
        ("snakemake", signal.SIGKILL),
        ("lib.sweep.execute", signal.SIGKILL),
        pytest.param("lib.sweep.cli", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("ipykernel_launcher", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_who_ends_a_sweep_or_a_part_of_it_ends_all_that_it_started(tree, victim, number):
    tree.write_study("long", training={"iterations": 100_000}, evaluation=UNASKED)
    process = tree.start("long", "--until", "train")
    folder = tree.run_folder("long", "baseline")
    while not (folder / STEP_FILE).exists():
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    running = [psutil.Process(process.pid), *started]
    killed, *_ = [one for one in running if victim in " ".join(one.cmdline())]
    killed.send_signal(number)
    text, _ = process.communicate(timeout=30)
    is_killed = number == signal.SIGKILL
    assert (process.returncode == STOPPED) != is_killed
    assert ("tries again" if is_killed else "command continues") in text.splitlines()[-1]
    assert psutil.wait_procs(started, timeout=10)[1] == []


@pytest.mark.long
def test_before_a_long_sweep_five_steps_go_all_the_way(tree):
    sweeping = tree.root / "lib/sweep/sweep.py"
    sweeping.write_text(sweeping.read_text("utf-8").replace("LONG = 600.0", "LONG = 0.0"), "utf-8")
    tree.write_study("hours", factors={"model.n_layer": [1, 2]}, seeds=[0, 1], evaluation=UNASKED)
    notebook = tree.root / "notebooks/04_figures.ipynb"
    whole = notebook.read_text("utf-8")
    notebook.write_text(whole.replace("design = load_study(study)", "design = lost"), "utf-8")
    status, text = tree.run_all("hours")
    assert status == 1
    assert "error: a sweep of five steps failed: FAILED NameError: name 'lost' is not" in text
    assert not list(tree.root.glob("runs/hours/*/seed-*"))
    notebook.write_text(whole, "utf-8")
    status, text = tree.run_all("hours", "--until", "train")
    assert (status, text.startswith("First a check of five steps: hours\n")) == (0, True), text


@pytest.mark.parametrize(
    ("clean", "of_runs", "due", "said"),
    [
        (True, [], True, ""),
        (False, [], True, "s: commit code and parameters first, or it will not be confirmatory\n"),
        (None, [], True, "s: commit code and parameters first, or it will not be confirmatory\n"),
        (True, ["a run"], True, "a run: it will not be confirmatory\n"),
        (False, [], False, ""),  # nothing is due
    ],
)
def test_what_keeps_a_study_from_being_confirmatory_is_said_before_it_runs(
    clean, of_runs, due, said, monkeypatch, capsys, tmp_path
):
    class Claim(SimpleNamespace):
        def __str__(self):
            return "; ".join(self.reasons)

    plan = SimpleNamespace(confirmatory=["s"], frozen={"s": SimpleNamespace(committed_code=True)})
    for seed in (0, 1):
        write_json(tmp_path / f"{seed}.json", {"seed": seed})
    paths = [tmp_path / f"{seed}.json" for seed in ((0, 1, 2) if due else (0, 1))]
    monkeypatch.setattr(sweep, "load_plan", lambda _: plan)
    monkeypatch.setattr(sweep, "is_replaceable", lambda _: True)
    monkeypatch.setattr(sweep, "runs_of", lambda _: dict.fromkeys(paths))
    monkeypatch.setattr(sweep, "git_state", lambda: {"clean": clean})

    def claim_status(study, plan, runs):
        return Claim(reasons=of_runs if runs == [{"seed": 1}] else [])

    monkeypatch.setattr(sweep, "claim_status", claim_status)
    sweep.print_reasons([SimpleNamespace(name="s")], {paths[0]: "edited"} if due else {})
    assert capsys.readouterr().out.partition("Stale: ")[0] == said


def test_what_is_stale_for_one_reason_is_told_once(tiny_study, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    paths = [*sweep.runs_of([tiny_study])]
    sweep.print_reasons([], dict.fromkeys(paths, "n_layer is 2 and was 1: trained again"))
    assert capsys.readouterr().out.splitlines() == [
        "Stale: runs/tiny/none/seed-0, runs/tiny/none/seed-1,",
        "  runs/tiny/layernorm/seed-0 and 1 more: n_layer is 2 and",
        "  was 1: trained again",
    ]


@pytest.mark.parametrize(("free", "inodes"), [(10**5, 10**5), (10**9, 0)])
def test_a_full_disk_is_one_line(free, inodes, tmp_path, monkeypatch):
    disk = SimpleNamespace(f_bavail=free, f_frsize=1, f_favail=inodes, f_files=10**6)
    monkeypatch.setattr("os.statvfs", lambda _: disk)
    with pytest.raises(UserError, match=r"runs/; free some, and run this again$"):
        sweep.print_failures(tmp_path)


def test_runs_start_seed_by_seed_and_baselines_first(tiny_study):
    """So a stopped sweep has pairs. All further seeds share one turn."""
    grid = {"model.embedding_norm": ["none", "layernorm"], "model.n_layer": [1, 2]}
    own = Study.model_validate(TINY | {"name": "own", "factors": grid, "seeds": [*range(18)]})
    parts = [(s.name, arms, seeds) for s, arms, seeds in turns([tiny_study, own]).values()]
    assert parts[:4] == [("tiny", [arm], [s]) for s in (0, 1) for arm in ("none", "layernorm")]
    bare, normed = (
        ["none,n_layer=1", "none,n_layer=2"],
        ["layernorm,n_layer=1", "layernorm,n_layer=2"],
    )
    assert parts[4:8] == [("own", arms, [seed]) for seed in (0, 1) for arms in (bare, normed)]
    assert parts[-2:] == [("own", arms, [15, 16, 17]) for arms in (bare, normed)]
    assert len(parts) == 4 + 2 * 16


# ---- edits while it runs


def edit(tree):
    """Change what a model computes, and break modules that later parts of the sweep import."""
    model = tree.root / "lib/train/model.py"
    whole = model.read_text("utf-8")
    assert whole.count("F.gelu(") == 1
    model.write_text(whole.replace("F.gelu(", "F.silu("), "utf-8")
    for name in ("stats/verdict", "record/archive", "publish/site"):
        (tree.root / f"lib/{name}.py").write_text("not Python", "utf-8")


def switch(tree):
    run_git(tree.root, "switch", "-q", "other")


def plan_of(study):
    """Return a plan with one hypothesis, not frozen yet."""
    test = {"test": ["layernorm", "none", "loss"], "direction": "differs", "says": "It matters."}
    return {"title": "A trial", "question": "Does it?", "confirmatory": [study],
            "hypotheses": {"matters": test}, "smallest_effect_of_interest": {"loss": 0.03},
            "spread": {"loss": 0.01}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", [switch, pytest.param(edit, marks=pytest.mark.long)])
def test_what_is_edited_while_a_sweep_runs_changes_nothing_of_it(change, tree):
    """Weights, recorded code and the confirmatory claim stay."""
    with_plan = change is switch
    content = {"factors": {"model.embedding_norm": ["none", "layernorm"]}, "evaluation": UNASKED}
    content |= {"seeds": {"count": 2}, "plan": "p.yaml"} if with_plan else {"seeds": [0, 1]}
    tree.write_study("own", paper="own", **content)
    git = partial(run_git, tree.root)
    git("init", "-q", "-b", "main")
    if with_plan:
        plan = yaml.safe_dump(plan_of("own"))
        (tree.root / "params/plans/p.yaml").write_text(plan, "utf-8")
        status, text = tree.run_all("freeze", "p")
        assert status == 0, text
    git("add", "--all")
    git("commit", "-qm", "As it is")
    git("switch", "-q", "-c", "other")
    with (tree.root / "lib/train/model.py").open("a", encoding="utf-8") as model:
        model.write("# a comment\n")
    git("commit", "-qam", "A comment")
    git("switch", "-q", "main")
    process = tree.start("own", "--jobs", "1", "--until", "archive")
    while not (done := list(tree.root.glob("runs/own/*/seed-*/result.json"))):
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.1)
    assert [file.parent.parent.name for file in done] == ["none"]
    change(tree)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    results = [read_json(file) for file in tree.root.glob("runs/own/*/seed-*/result.json")]
    trained = [result["provenance"]["trained"] for result in results]
    assert len(trained) == 4
    assert len({run["training_digest"] for run in trained}) == 1
    assert {(run["commit"], run["clean"]) for run in trained} == {(git("rev-parse", "main"), True)}
    assert ("\nCONFIRMATORY" if with_plan else "\nEXPLORATORY") in text
    assert (tree.root / "papers/own/record/own/MANIFEST.sha256").exists()


# ---- what is stale


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({}, ""),
        ({"machine": {"micro_batch_size": 2, "checkpoint_interval": 7}}, ""),
        ({"training": {"learning_rate": 2e-3}}, "training.learning_rate is 0.002 and was "),
        ({"model": {"n_layer": 1}}, "model.n_layer is 1 and was "),
        ({"corpus": {"fraction": 0.5}}, "corpus.fraction is 0.5 and was "),
        ({"evaluation": {"dev_windows": 6}}, "evaluation.dev_windows is 6 and was "),
        ({"evaluation": {"items_per_task": 49}}, "evaluation.items_per_task is 49 and was "),
        ({"plan": "preregistration.yaml"}, ""),  # refused earlier: see test_preflight
    ],
)
def test_a_changed_parameter_is_named_with_what_will_be_done(sections, reason, runs):
    found = reasons(smoke(**sections))
    said = [why for path, why in found.items() if "seed-" in path]
    done = MEASURED if "items_per_task" in reason else TRAINED
    assert len(said) == (4 if reason else 0)
    assert all(why.startswith(reason) and why.endswith(f": {done}") for why in said), said
    others = {path: why for path, why in found.items() if "seed-" not in path}
    what = "study and plan" if "plan" in sections else "study"
    expected = f"{what} changed: executed again"
    notebooks = ("01_data.json", "03_analysis.json", "04_figures.json")
    assert others == (dict.fromkeys(notebooks, expected) if sections else {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "done"),
    [("train_key", "training code", TRAINED), ("measure_key", "measuring code", MEASURED)],
)
def test_changed_code_is_named(name, code, done, runs, monkeypatch):
    was = getattr(sweep, name)()[:12]
    monkeypatch.setattr(sweep, name, lambda: "f" * 64)
    assert set(reasons(smoke()).values()) == {f"{code} is ffffffffffff and was {was}: {done}"}


@pytest.mark.slow
def test_another_text_is_named(runs, monkeypatch):
    real = execute.corpus_of(smoke().corpus)
    other = SimpleNamespace(sha256="e" * 64, tokenizer=real.tokenizer)
    monkeypatch.setattr(execute, "corpus_of", lambda _: other)
    said = f"corpus is eeeeeeeeeeee and was {real.sha256[:12]}: {TRAINED}"
    assert [why for path, why in reasons(smoke()).items() if "seed-" in path] == [said] * 4


@pytest.mark.slow
@pytest.mark.parametrize("file", ["MANIFEST.sha256", "02_train.ipynb", "figures/smoke/loss.png"])
def test_a_record_of_one_s_own_that_is_damaged_is_archived_again(
    file, smoke_tree, runs, tmp_path, monkeypatch
):
    shutil.copytree(smoke_tree[0].root / "papers", tmp_path / "papers")
    monkeypatch.setattr("lib.record.archive.PAPERS", tmp_path / "papers")
    assert reasons(smoke()) == {}
    next((tmp_path / "papers" / "smoke").rglob(file)).unlink()
    assert set(reasons(smoke())) == {"archived.txt"}


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def of_an_earlier_format(path):
    write_json(path, read_json(path) | {"provenance": {"device": "cpu"}})


def of_another_seed(path):
    content = read_json(path)
    content["provenance"]["trained"]["seed"] = 1
    write_json(path, content)


def of_another_loss(path):
    content = read_json(path)
    content["measures"]["loss"] += 0.5
    write_json(path, content)


def failed(path):
    metadata = {"study": {"status": "failed", "reason": "KeyError: 'x'"}}
    nbformat.write(nbformat.v4.new_notebook(metadata=metadata), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("result.json", cut, "result.json cannot be read, or is of another version"),
        ("result.json", of_an_earlier_format, "result.json cannot be read, or is of another"),
        ("result.json", of_another_seed, "seed is 0 and was 1: trained again"),
        ("result.json", of_another_loss, "result.json was changed: measured again"),
        ("trace.parquet", cut, "trace.parquet is missing or was changed"),
        ("items.parquet", Path.unlink, "items.parquet is missing or was changed"),
        ("02_train.ipynb", Path.unlink, "02_train.ipynb is unfinished (no readable notebook)"),
        ("02_train.ipynb", failed, "02_train.ipynb is failed (KeyError: 'x')"),
    ],
)
def test_a_damaged_run_is_named(name, damage, reason, runs):
    damage(runs / "smoke/none/seed-0" / name)
    ((path, said),) = reasons(smoke()).items()
    assert (path, said.startswith(reason)) == ("none/seed-0", True), said


@pytest.mark.slow
def test_a_notebook_whose_code_changed_or_that_is_damaged_is_executed_again(runs, monkeypatch):
    failed(runs / "smoke/04_figures.ipynb")
    assert reasons(smoke()) == {"04_figures.json": "its notebook is failed: executed again"}
    real = sweep.made_from
    monkeypatch.setattr(sweep, "made_from", lambda *of: real(*of) | {"code": "other"})
    found = reasons(smoke())
    assert found.pop("04_figures.json").startswith("its notebook is failed")
    said = "code changed: executed again"
    assert found == dict.fromkeys(("01_data.json", "03_analysis.json"), said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "notebook"),
    [
        ("verdict.json", "03_analysis"),
        ("figures/loss.png", "04_figures"),
        ("figures/effects.pdf", "04_figures"),
        ("03_analysis.ipynb", "03_analysis"),
        ("suite/*/*.jsonl", "01_data"),
    ],
)
@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_what_a_notebook_left_is_made_again_where_it_is_lost_or_changed(
    name, notebook, damage, runs
):
    assert reasons(smoke()) == {}
    path = min((runs / "smoke").glob(name))
    if path.suffix == ".ipynb":
        path.write_text(path.read_text("utf-8").replace("0.", "1."), "utf-8")
    else:
        damage(path)
    (found, said), *later = reasons(smoke()).items()
    assert found == f"{notebook}.json"
    assert {each for each, _ in later} <= {"04_figures.json"}  # it reads the verdict
    assert said.startswith(path.relative_to(runs / "smoke").as_posix())


@pytest.mark.slow
def test_another_result_makes_the_analysis_and_figures_stale(runs, monkeypatch):
    path = runs / "smoke/none/seed-0/result.json"
    path.write_text(path.read_text("utf-8").replace('"seconds"', ' "seconds"'), "utf-8")
    notebook = read_json(path.with_name("02_train.ipynb"))
    notebook["metadata"]["study"]["result"] = sha256(path)
    write_json(path.with_name("02_train.ipynb"), notebook)
    said = "results changed: executed again"
    assert reasons(smoke()) == {"03_analysis.json": said, "04_figures.json": said}


@pytest.mark.slow
def test_what_is_lost_heals_on_the_same_command_and_a_record_from_elsewhere_stays(copy):
    """Until --replace."""
    folder, record = copy.root / "runs/smoke", copy.root / "papers/smoke"
    before = {path: path.read_bytes() for path in record.rglob("*.*")}
    (folder / "archive.json").unlink()  # it says that the record was made from these runs
    (folder / "archived.txt").unlink()
    (folder / "verdict.json").unlink()
    shutil.copyfile(folder / "figures/effects.png", folder / "figures/loss.png")
    shutil.rmtree(folder / "suite")
    status, text = copy.run_all("smoke")
    assert (status, "The published record is kept" in text) == (0, True), text
    assert "Executed notebooks  runs/smoke/" in text
    assert {"verdict.json", "suite"} <= {path.name for path in folder.iterdir()}
    records = {path for path in before if "record" in path.parts}
    assert [path for path in records if path.read_bytes() != before[path]] == []
    status, text = copy.run_all("smoke", "--replace")
    assert (status, "Record              papers/smoke/record/smoke/" in text) == (0, True), text
    assert (record / "record/smoke/03_analysis.ipynb").read_bytes() not in before.values()
    figures = [path for path in before if "figures" in path.parts]
    assert {path: path.read_bytes() for path in figures} == {path: before[path] for path in figures}
    status, text = copy.run_all("verify", "smoke")
    assert (status, "smoke: as published" in text) == (0, True), text


# ---- parts of it


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOTSUP])
def test_one_sweep_at_a_time_without_flock(error, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(error, "")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    monkeypatch.setattr(sweep, "LOCK_TRIES", 2)
    with only_sweep():
        said = r"another sweep.* is running here .*delete sweep\.held\.lock"
        with pytest.raises(UserError, match=said), only_sweep():
            pass
    with only_sweep():
        pass


def test_one_sweep_at_a_time_and_orphans_of_a_killed_one_hold_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    monkeypatch.setattr(sweep, "LOCK_TRIES", 1)
    with only_sweep() as log:
        command = [sys.executable, "-c", "input()"]
        orphan = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log)
    said = f"another sweep.* is running here .process {os.getpid()}"
    with pytest.raises(UserError, match=said), only_sweep():
        pass
    orphan.kill()
    orphan.wait()
    with only_sweep():
        pass


def test_the_time_left_is_that_of_a_step_times_the_steps(tiny_study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path)
    due = sweep.runs_of([tiny_study])
    folders = [path.parent for path in due]
    later = {tmp_path / "03_analysis.json": "analysis"}
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / STEP_FILE).write_text("6", "utf-8")  # of 12: this run continues
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    moments = [lambda: None, lambda: (folders[0] / "result.json").touch(),
               lambda: (folders[1] / STEP_FILE).write_text("3", "utf-8"),
               lambda: [(folder / "result.json").touch() for folder in folders]]  # fmt: skip

    def poll():
        if not moments:
            return 0
        moments.pop(0)()
        now[0] += 6.0
        return None

    # Six of ten runs were done before.
    log = log_of([*due, *later], tmp_path)
    assert follow(SimpleNamespace(poll=poll), due, later, 10, None, log)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "7/10 runs, 0:01:12 left, 12 s elapsed"  # 6 steps took 12 s, and 36 are left
    assert second == "10/10 runs, now the analysis, 24 s elapsed"
    assert last == "10/10 runs, 24 s"
    moments = [lambda: None]
    assert not follow(SimpleNamespace(poll=poll), due, later, 10, 1e-4, log)


def log_of(begun, folder):
    """Write the lines that Snakemake logs when jobs start."""
    records = [f"localrule x:\n    output: {path}\n    jobid: 1\n" for path in begun]
    (folder / "sweep.log").write_text("".join(records), "utf-8")
    return folder / "sweep.log"


def test_only_what_has_begun_is_looked_at(tiny_study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    due, seen, stat = sweep.runs_of([tiny_study]), Counter(), Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: (seen.update([path]), stat(path))[1])
    first, *others = due
    half = f"    output: {others[0]}"[:-9]  # an incomplete line
    log = log_of([first], tmp_path)
    with log.open("a", encoding="utf-8") as file:
        file.write(half)
    ends = iter([None] * 9)

    def poll():
        if seen[first] == 5:
            with log.open("a", encoding="utf-8") as file:
                file.write("sult.json\n")
            first.parent.mkdir(parents=True)
            first.touch()
        return next(ends, 0)

    assert follow(SimpleNamespace(poll=poll), due, {}, 4, None, log)
    assert [seen[path] for path in due] == [
        6,
        7,
        2,
        2,
    ]  # jobs not started: only at the start and at the end
    assert capsys.readouterr().out.splitlines()[-1].startswith("1/4 runs")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "0:01:00"), (3725.2, "1:02:05")]
)
def test_a_time_below_a_minute_is_in_seconds(seconds, text):
    assert clock(seconds) == text
