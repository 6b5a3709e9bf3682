"""Studies as a user runs them: `./run_all.sh` in a copied tree."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import nbformat
import pytest
import yaml

from lib.publish import pages
from lib.record.archive import Record
from lib.results import status_of
from lib.study import io as paths
from lib.study.io import ROOT, write_json
from lib.study.plan import Commit
from lib.study.study import Study
from lib.study.yaml import UserError
from lib.workflow import cli, sweep
from lib.workflow.rehearsal import lay_out
from lib.workflow.sweep import Sweep
from tests.conftest import Tree, run_git
from tests.record.samples import move_to, write_samples

pytestmark = pytest.mark.slow
UNASKED = {"interval": 4, "dev_windows": 4, "items_per_task": 0}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "embedding-norm")


def seconds_of_children() -> float:
    """What processes have computed that were waited for, whatever else the machine did."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result(tree: Tree, study: str, arm: str, seed: int = 0) -> dict[str, Any]:
    path = tree.run_folder(study, arm, seed) / "result.json"
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def test_a_sweep_prints_its_progress_its_table_and_where_to_read_more(
    smoke_tree: tuple[Tree, str],
) -> None:
    text = smoke_tree[1]
    left = r"about \d+:\d\d left, \d+:\d\d elapsed"
    assert re.search(rf"^[1-4]/4 runs, \d/9 jobs done, {left}$", text, re.MULTILINE)
    assert "\n4/4 runs, 9/9 jobs done in " in text
    assert (
        len(re.findall(r"^(?:none|layernorm) · seed [01]: steps 20/20, val\. loss ", text, re.M))
        == 4
    )
    assert re.search(r"^layernorm +\d+\.\d{3} ± \d+\.\d{3} +\d\.\d{4} ± ", text, re.MULTILINE)
    assert re.search(r"^ +[+-]\d+\.\d{3} \[[+-]\d+\.\d{3}, [+-]\d+\.\d{3}\] ", text, re.MULTILINE)
    assert "\x1b" not in text
    assert "\nExecuted notebooks  papers/smoke/record/smoke/\n" in text
    assert "\nNumbers             papers/smoke/results/smoke.json\n" in text


def test_a_second_sweep_has_nothing_to_do_and_says_so_in_seconds(
    smoke_tree: tuple[Tree, str],
) -> None:
    start = seconds_of_children()
    status, text = smoke_tree[0].run_all("params/smoke.yaml")
    assert status == 0
    assert "Nothing to do" in text
    assert seconds_of_children() - start < 20


def test_every_executed_notebook_is_archived_clean_and_small(
    smoke_tree: tuple[Tree, str],
) -> None:
    record = smoke_tree[0].root / "papers/smoke/record/smoke"
    notebooks = sorted(record.rglob("*.ipynb"))
    assert len(notebooks) == 3 + 4
    for path in notebooks:
        assert status_of(path)["status"] == "completed"
        text = path.read_text("utf-8")
        assert str(smoke_tree[0].root) not in text, path
        assert "Traceback" not in text
        assert "Warning" not in text, path
        if path.name == "02_train.ipynb":
            assert path.stat().st_size <= 150_000


def test_a_sweep_builds_the_site(smoke_tree: tuple[Tree, str]) -> None:
    tree, text = smoke_tree
    assert "papers/smoke/site/index.html" in text
    assert (tree.root / "papers/smoke/site/smoke/none/seed-0.html").is_file()
    status, text = tree.run_all("record", "smoke")
    assert status == 0, text
    assert "papers/smoke/site/index.html (0 pages rendered anew)" in text


def test_arms_of_a_seed_are_paired_in_the_record(smoke_tree: tuple[Tree, str]) -> None:
    none, layernorm = (result(smoke_tree[0], "smoke", arm) for arm in ("none", "layernorm"))
    assert none["initial_weights"] == layernorm["initial_weights"]
    assert none["batches"] == layernorm["batches"]
    assert none["tokens"] == layernorm["tokens"] == 20 * 8 * 32


@pytest.fixture
def copy(smoke_tree: tuple[Tree, str], tmp_path: Path) -> Tree:
    """A copy of the tree in which the smoke study has run."""
    root = tmp_path / "copy"
    shutil.copytree(smoke_tree[0].root, root)
    result = object.__new__(Tree)
    result.root, result.environment = root, smoke_tree[0].environment
    return result


def test_a_record_from_elsewhere_stays_until_it_is_to_be_replaced(copy: Tree) -> None:
    runs, record = copy.root / "runs/smoke", copy.root / "papers/smoke/record/smoke"
    (runs / "archive.json").unlink()  # which says that the record was made of these runs
    own = runs / "01_data.ipynb"
    own.write_text(own.read_text("utf-8").replace("# 01 · Data", "# 01 · Own data", 1), "utf-8")
    published = record.parents[1].rglob("*")
    before = {
        path: path.read_bytes() for path in published if "site" not in path.parts and path.is_file()
    }
    for said in ("its record came from elsewhere and stays as it is", "Nothing to do"):
        status, text = copy.run_all("params/smoke.yaml")
        assert (status, said in text) == (0, True), text
        assert {path: path.read_bytes() for path in before} == before
    value = r"\d+\.\d{3} ± \d+\.\d{3}"  # of the same runs
    assert re.search(
        rf"here +in the record *\n─+\nnone +({value}) +\1 *\nlayernorm +({value}) +\2 *\n", text
    )
    assert "Executed notebooks  runs/smoke/, and" in text
    status, text = copy.run_all("params/smoke.yaml", "--replace")
    assert status == 0, text
    assert re.search(r"\b2/2 jobs done", text), text  # the archive and the pages
    assert "Executed notebooks  papers/smoke/record/smoke/" in text
    assert "Own data" in (record / "01_data.ipynb").read_text("utf-8")
    assert "Nothing to do" in copy.run_all("params/smoke.yaml")[1]


def test_a_record_is_analysed_again_and_then_a_changed_file_of_it_is_found(copy: Tree) -> None:
    shutil.rmtree(copy.root / "runs")
    paper, record = copy.root / "papers/smoke", copy.root / "papers/smoke/record/smoke"
    kept = [record / "raw.zip", *record.glob("*/seed-*/*")]
    runs = {path: path.read_bytes() for path in kept}
    notebook = copy.root / "notebooks" / "03_analysis.ipynb"
    notebook.write_text(notebook.read_text().replace("## Verdict", "## What is found"))
    status, text = copy.run_all("analyse", "smoke")
    assert status == 0, text
    assert "smoke: 03_analysis, 04_figures\n" in text
    assert "## What is found" in (record / "03_analysis.ipynb").read_text()
    assert {path: path.read_bytes() for path in kept} == runs
    assert not (copy.root / "runs" / "smoke").exists()
    status, text = copy.run_all("verify", "smoke")
    assert (status, "files verified" in text) == (0, True), text

    places = ["results/smoke.json"]
    places += [f"record/smoke/{name}" for name in ("none/seed-0/02_train.ipynb", "raw.zip")]
    for path in (paper / place for place in places):
        path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    status, text = copy.run_all("verify", "smoke")
    assert status == 1
    for place in places:
        assert f"{place.removeprefix('record/smoke/')} has changed" in text


def test_what_is_wrong_with_studies_is_said_once_before_anything_runs(tree: Tree) -> None:
    tree.write_study("bad", training={"learning_rat": 1.0})
    tree.write_study("lost", corpus={"source": "nowhere.txt"})
    status, text = tree.run_all("params/bad.yaml", "params/lost.yaml")
    assert status == 1
    assert text.count("training.learning_rat: ") == 1
    assert "did you mean 'learning_rate'?" in text
    assert text.count("'nowhere.txt' is neither a text file nor a known corpus") == 1
    assert not (tree.root / "runs").exists()


def test_without_its_text_the_embedded_study_runs_and_a_named_one_does_not(tree: Tree) -> None:
    tree.environment |= {"HTTPS_PROXY": "http://127.0.0.1:9"}  # nobody answers there
    status, text = tree.run_all("--summary")
    assert status == 0, text
    missing, instead = text.splitlines()[:2]
    assert missing.startswith("tinyshakespeare: not found and not downloaded (ProxyError). Provide")
    assert instead == "Running final-embedded instead, the same study of the synthetic text."
    assert "runs/final-embedded/01_data.json\t" in text
    status, text = tree.run_all("final", "-n")
    assert status == 1
    assert text == f"error: final.yaml: {missing}\n"


@pytest.mark.long
def test_texts_of_different_vocabularies_are_a_factor(tree: Tree) -> None:
    (tree.root / "line.txt").write_text("all work and no play. " * 800, "utf-8")
    random_text = random.Random(0).choices("äöü🌍e\u0301\0\r", k=9000)
    (tree.root / "odd.txt").write_text("".join(random_text), "utf-8", newline="")
    factors = {
        "model.embedding_norm": ["none", "layernorm"],
        "corpus.source": ["line.txt", "odd.txt"],
    }
    tree.write_study("own", corpus={}, factors=factors)
    status, text = tree.run_all("own")
    assert status == 0, text
    runs = [
        result(tree, "own", f"{norm},source={name}")
        for name in ("line.txt", "odd.txt")
        for norm in ("none", "layernorm")
    ]
    vocabularies = [len({*"all work and no play. "}), len({*"äöü🌍e\u0301\0\r"})]
    assert [run["initial_weights"] for run in runs[::2]] == [
        r["initial_weights"] for r in runs[1::2]
    ]
    assert runs[0]["initial_weights"] != runs[2]["initial_weights"]
    difference = runs[2]["parameters"] - runs[0]["parameters"]
    assert difference == 16 * (vocabularies[1] - vocabularies[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (f"{command} {flag}", f"{command}: '{flag}' is no argument of this command; see "
             f"./run_all.sh {command} --help")
            for command, flag in {"paper": "-x", "record": "--open", "verify": "--all"}.items()
        ),
        ("tset", "study: 'tset' is unknown; did you mean 'test'?"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_answered_in_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(words.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_odd_surroundings_do_not_matter(tree: Tree) -> None:
    tree.environment |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": "/nowhere", "HOME": "/dev/null"}
    status, text = tree.run_all("smoke", "--summary")
    assert status == 0, text
    said = "HOME is no folder that can be written; using runs/.home\n"
    assert text.startswith(said)
    del tree.environment["HOME"]
    wrong = "error: study: 'tset' is unknown; did you mean 'test'?\n"
    assert tree.run_all("tset") == (2, said + wrong)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            "No space left on device (runs); free some space and rerun, which continues",
        ),
        (errno.EROFS, "Read-only file system (runs); the repository must be writable, copy it"),
    ],
)
def test_a_full_or_read_only_disk_is_said_to_be(
    number: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "runs")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(["smoke"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


def test_a_disk_that_filled_up_is_all_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "sweep.log"
    log.write_text("Traceback\n  File nbformat.py, line 1, cut off by the full disk\n", "utf-8")
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match="is full; free some space and rerun"):
        sweep._report({}, log)
    assert capsys.readouterr() == ("", "")


def test_a_dry_run_tells_and_runs_nothing(tree: Tree) -> None:
    status, text = tree.run_all("params/smoke.yaml", "-n")
    assert status == 0
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "smoke: would make 4 of 4 runs"
    assert {"none       0, 1   not made yet", "layernorm  0, 1   not made yet"} < set(lines)
    assert re.search(r"^At least 0:\d\d with \d+ at once, by training steps made now", text, re.M)
    assert not (tree.root / "runs" / "smoke").exists()


@pytest.fixture
def bare(tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study whose sweep, in a folder of its own, finds nothing wrong and starts nothing."""
    monkeypatch.setattr("lib.workflow.preflight.load_and_check", lambda *_: [tiny_study])
    monkeypatch.setattr("lib.workflow.staleness.stale", lambda _: [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    for name, put in {
        "RUNS": tmp_path,
        "SWEEP_FILE": tmp_path / ".sweep.json",
        "LOCK_TIMEOUT": 0,
    }.items():
        monkeypatch.setattr(sweep, name, put)
    for name, answer in (("rehearse", None), ("print_summaries", None), ("run_snakemake", (0, []))):
        monkeypatch.setattr(sweep, name, lambda *_, answer=answer: answer)
    return tiny_study


def test_only_what_runs_writes_which_commits_its_arms_are(
    bare: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {"training_digest": "1" * 64, "measuring_digest": "2" * 64}
    study = bare.model_copy(update={"commits": {"a": Commit(commit="a" * 40, **digests)}})
    monkeypatch.setattr("lib.workflow.preflight.load_and_check", lambda *_: [study])
    assert sweep.run_sweep(Sweep(is_dry_run=True)) == 0
    assert not (tmp_path / "tiny").exists()
    assert sweep.run_sweep(Sweep(forks_kernels=False)) == 0
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["commits.json"]


def test_what_will_be_trained_is_rehearsed_and_nothing_else(
    bare: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed: list[list[Study]] = []
    monkeypatch.setattr(sweep, "rehearse", rehearsed.append)
    assert sweep.run_sweep(Sweep(is_dry_run=True)) == 0
    assert sweep.run_sweep(Sweep(forks_kernels=False)) == 0
    lay_out(bare, None, 0)
    assert sweep.run_sweep(Sweep(forks_kernels=False)) == 0
    assert rehearsed == [[bare], []]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    "ends", [(1, [Path("02_train.ipynb")]), UserError("the disk is full"), KeyboardInterrupt()]
)
def test_however_a_sweep_ends_it_has_let_go_of_its_lock_before_pages_are_rendered(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rendering takes minutes, in which a rerun would be refused."""
    rendered = []

    def show(failed: list[Path]) -> None:
        with sweep.only_sweep():  # UserError where the lock is held
            rendered.append(failed)

    def run(*_: Any) -> tuple[int, list[Path]]:
        with pytest.raises(UserError, match="another sweep"), sweep.only_sweep():
            pass
        if isinstance(ends, BaseException):
            raise ends
        return ends

    monkeypatch.setattr(sweep, "_update_pages", show)
    monkeypatch.setattr(sweep, "run_snakemake", run)
    if isinstance(ends, BaseException):
        with pytest.raises(type(ends)):
            sweep.run_sweep(Sweep(forks_kernels=False))
        show([])
    else:  # the warm process, too, has let go
        assert sweep.run_sweep(Sweep()) == 1
    assert rendered == ([[]] if isinstance(ends, BaseException) else [ends[1]])


@pytest.mark.parametrize(
    ("words", "is_first"),
    [
        ([], True),
        (["--jobs", "1"], True),
        (["--until", "data"], False),
        (["--prioritize", "data"], False),
    ],
)
def test_snakemake_is_told_which_runs_come_first(
    words: list[str],
    is_first: bool,
    tiny_study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[list[str]] = []

    @contextmanager
    def start(call: list[str], *_: object) -> Iterator[SimpleNamespace]:
        called.append(call)
        yield SimpleNamespace(returncode=0)

    for name, put in {"RUNS": tmp_path, "PROGRESS_FILE": tmp_path / "progress"}.items():
        monkeypatch.setattr(sweep, name, put)
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    monkeypatch.setattr(sweep.processes, "start", start)
    monkeypatch.setattr(sweep, "follow", lambda *_: ({}, False))
    factors = {"training.iterations": [12, 120]}
    study = Study.model_validate(tiny_study.model_dump() | {"factors": factors})
    with (tmp_path / "sweep.log").open("wb") as log:
        asked = cli.parse_sweep(["--forcerun", "data", *words])
        assert sweep.run_snakemake([study], asked, {}, log, 0.0) == (0, [])
    long = [str(tmp_path / f"tiny/iterations=120/seed-{seed}/result.json") for seed in (0, 1)]
    own = ["--prioritize", *long, "--forcerun", "data"]
    assert (called[0][-len(own) :] == own) == is_first
    assert called[0].count("--prioritize") == (is_first or "--prioritize" in words)


@pytest.mark.long  # which runs Snakemake is told to begin with, is asked above
def test_the_longest_runs_begin_first(tree: Tree) -> None:
    tree.write_study("unequal", factors={"training.iterations": [12, 120]}, evaluation=UNASKED)
    tree.spare_rehearsals()
    status, text = tree.run_all("params/unequal.yaml", "--jobs", "1")
    assert status == 0, text
    short, long = (tree.run_folder("unequal", f"iterations={n}") for n in (12, 120))
    ended = [(folder / "result.json").stat().st_mtime for folder in (long, short)]
    assert ended == sorted(ended)


def test_a_failed_run_keeps_its_notebook_and_the_others_finish_or_diverge(tree: Tree) -> None:
    levels = {"model.block_size": 16, "training.learning_rate": 1e30}
    wild = {"include": [{"name": "wild", "levels": levels}], "evaluation": UNASKED}
    tree.write_study("mixed", factors={"model.block_size": [16, 24]}, **wild)
    tree.spare_rehearsals()
    model = tree.root / "lib/run/model.py"
    whole, forward = model.read_text("utf-8"), "        x = net.dropout("
    broken = f"        config.block_size == 16 or broken\n{forward}"
    assert whole.count(forward) == 1
    model.write_text(whole.replace(forward, broken), "utf-8")
    status, text = tree.run_all("params/mixed.yaml")
    assert status != 0
    assert "FAILED mixed/block_size=24/seed-0/02_train.ipynb: NameError: name 'broken'" in text
    kept = nbformat.read(tree.run_folder("mixed", "block_size=24") / "02_train.ipynb", 4)
    assert any(o.output_type == "error" for c in kept.cells for o in c.get("outputs", []))
    assert result(tree, "mixed", "block_size=16")["status"] == "completed"
    assert result(tree, "mixed", "wild")["status"] == "diverged"  # its notebook says so to the end
    assert not (tree.root / "papers/embedding-norm/record/mixed").exists()
    site = tree.root / "papers/embedding-norm/site"
    page = site / "mixed/block_size=24/seed-0.html"
    assert '<span class="stamp failed">failed</span>' in page.read_text("utf-8")
    assert "NameError" in page.read_text("utf-8").partition("<article")[2]
    assert "Lab record          papers/embedding-norm/site/mixed/index.html" in text
    other = (site / "mixed/block_size=16/seed-0.html").read_text("utf-8")
    assert "Not rendered yet: <code>./run_all.sh record</code> renders it." in other
    assert tree.run_all("record")[0] == 0
    assert "Not rendered yet" not in (site / "mixed/block_size=16/seed-0.html").read_text("utf-8")


def test_of_a_failed_sweep_only_what_failed_is_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    move_to(tmp_path, monkeypatch)
    write_samples(tmp_path)
    monkeypatch.setattr(sweep, "RUNS", tmp_path / "runs")
    real, rendered = pages.notebook_html, []
    note = lambda path: rendered.append(path) or real(path)  # noqa: E731
    monkeypatch.setattr(pages, "notebook_html", note)
    failed = tmp_path / "runs/gamma/none/seed-0/02_train.ipynb"
    sweep._update_pages([failed, tmp_path / "runs/record-paper.log"])
    assert rendered == [failed]
    site = tmp_path / "paper/site"
    assert {path.name for path in site.iterdir() if path.is_dir()} == {"gamma"}
    for page in site.rglob("*.html"):  # no link of theirs leads nowhere
        for href in re.findall(r'<a [^>]*href="([^"#]+)"', page.read_text("utf-8")):
            assert (page.parent / unquote(href)).is_file(), f"{page}: {href}"
    assert capsys.readouterr().out == "Lab record          index.html\n"


def test_a_damaged_record_fails_the_last_step_and_the_pages_say_so(copy: Tree) -> None:
    site = copy.root / "papers/smoke/site"
    shutil.rmtree(site)
    packed = copy.root / "papers/smoke/record/smoke/raw.zip"
    packed.write_bytes(packed.read_bytes()[:1000])
    status, text = copy.run_all("smoke")
    assert status == 1
    said = "raw.zip has changed; restore it, or record the study again"
    assert f"FAILED record-smoke.log: smoke: {said}\n" in text
    assert "Traceback" not in text
    assert f"Damaged: {said}" in (site / "smoke/index.html").read_text("utf-8")
    assert "smoke/index.html" in (site / "index.html").read_text("utf-8")


@pytest.mark.long
def test_a_study_can_have_a_paper_of_its_own(tree: Tree) -> None:
    own, house = tree.root / "papers/own", tree.root / "papers/embedding-norm"
    factors = {"training.weight_decay": [0.1, 0.0]}
    tree.write_study("decay", paper="own", factors=factors, seeds=[0, 1])
    status, text = tree.run_all("params/decay.yaml")
    assert status == 0, text
    assert "To begin a paper    ./run_all.sh paper own" in text
    names = {path.relative_to(own).as_posix() for path in own.glob("*/*")}
    assert names >= {"record/decay", "record/index.json", "results/decay.json", "figures/decay"}
    assert names >= {"site/index.html", "results/decay.verdict.json"}
    assert {path.name for path in house.iterdir()} == {"studies.yaml", "templates"}

    status, text = tree.run_all("paper", "own")
    assert status == 0, text
    assert "First manuscript    papers/own/paper.md" in text
    results = json.loads((own / "results/decay.json").read_text("utf-8"))
    mean = results["summary"]["weight_decay=0"]["perplexity"]["mean"]
    assert f"{mean:.3f} ±" in (own / "paper.tex").read_text("utf-8")
    (own / "paper.md").write_text("---\ntitle: Mine\n---\n\nText.\n", "utf-8")
    status, text = tree.run_all("params/decay.yaml")
    assert status == 0, text
    assert "papers/own/paper.pdf" in text
    assert "Mine" in (own / "paper.tex").read_text("utf-8")
    assert "paper.pdf" in (own / "site/index.html").read_text("utf-8")
    status, text = tree.run_all("verify")
    assert status == 0, text


@pytest.mark.long
def test_paper_and_pages_follow_what_they_are_made_of(tree: Tree) -> None:
    paper = tree.root / "papers/embedding-norm"
    (paper / "paper.md").write_text("---\ntitle: First\n---\n\nText.\n", "utf-8")
    (paper / "references.bib").write_text("", "utf-8")
    tree.write_study("one", factors={"model.embedding_norm": ["none", "layernorm"]})
    status, text = tree.run_all("params/one.yaml")
    assert status == 0, text
    assert "papers/embedding-norm/paper.pdf" in text
    first = (paper / "paper.pdf").read_bytes()
    assert (paper / "site/paper.pdf").read_bytes() == first

    (paper / "paper.md").write_text("---\ntitle: Second\n---\n\nOther text.\n", "utf-8")
    status, text = tree.run_all("params/one.yaml")
    assert status == 0, text
    assert "2/2 jobs done" in text  # paper and record
    assert "Other text." in (paper / "paper.tex").read_text("utf-8")
    second = (paper / "paper.pdf").read_bytes()
    assert first != second == (paper / "site/paper.pdf").read_bytes()

    (paper / "paper.md").write_text("A cited @nobody.\n", "utf-8")
    for _ in range(2):  # a rerun tries again
        status, text = tree.run_all("params/one.yaml")
        assert status == 1
        assert "FAILED paper-embedding-norm.log: paper.md" in text
        assert "nobody" in text
        assert (paper / "paper.pdf").read_bytes() == second  # the last good one stays


@pytest.mark.long
def test_jobs_do_not_change_results_and_a_new_seed_redoes_nothing(tree: Tree) -> None:
    factors = {"model.n_layer": [1, 2]}  # any field can be a factor, with no code
    for name, jobs in (("one", "1"), ("two", "2")):
        tree.write_study(name, factors=factors)
        status, text = tree.run_all(f"params/{name}.yaml", "--jobs", jobs)
        assert status == 0, text
    for arm in ("n_layer=1", "n_layer=2"):
        one, two = (result(tree, name, arm) for name in ("one", "two"))
        assert one["final_weights"] == two["final_weights"]
        assert one["measures"] == two["measures"]

    before = (tree.run_folder("two", "n_layer=1") / "result.json").stat().st_mtime_ns
    tree.write_study("two", factors=factors, seeds=[0, 1])
    status, text = tree.run_all("params/two.yaml")
    assert status == 0, text
    assert (tree.run_folder("two", "n_layer=1") / "result.json").stat().st_mtime_ns == before
    assert result(tree, "two", "n_layer=2", seed=1)["seed"] == 1


@pytest.mark.long
def test_a_changed_analysis_is_executed_and_nothing_trained(tree: Tree) -> None:
    tree.write_study("one", factors={"model.n_layer": [1, 2]})
    status, text = tree.run_all("params/one.yaml")
    assert status == 0, text
    runs = {path: path.read_bytes() for path in tree.root.glob("runs/one/*/seed-*/result.json")}
    assert len(runs) == 2
    with (tree.root / "lib/analysis/paired.py").open("a", encoding="utf-8") as file:
        file.write("\nLAST = 0\n")
    status, text = tree.run_all("params/one.yaml")
    assert status == 0, text
    # 03, 04, the archive, the record's pages
    assert re.search(r"\b4/4 jobs done", text), text
    assert {path: path.read_bytes() for path in runs} == runs
    assert "Nothing to do" in tree.run_all("params/one.yaml")[1]


@pytest.mark.long
def test_the_recipes_study_runs_through_all_notebooks_with_no_code(tree: Tree) -> None:
    example = re.search(r"```yaml\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.S)
    assert example is not None
    study = yaml.safe_load(example.group(1))
    assert study["factors"]["model.n_layer"] == [4, 8]
    tree.write_study(study["name"], factors=study["factors"], seeds=[0, 1])  # else at test size
    status, text = tree.run_all(f"params/{study['name']}.yaml")
    assert status == 0, text
    verdict = Record("depth", tree.root / "papers/embedding-norm").verdict
    pairs = {(row["arm"], row["baseline"]) for row in verdict["contrasts"]}
    assert pairs == {("layernorm,n_layer=4", "none,n_layer=4"), ("layernorm,n_layer=8", "none,n_layer=8")}  # noqa: E501  # fmt: skip
    assert {row["n"] for row in verdict["contrasts"] if row["measure"] == "loss"} == {2}


@pytest.mark.long
def test_a_study_of_learning_rates_is_judged_though_runs_diverge(tree: Tree) -> None:
    factors = {"model.embedding_norm": ["none", "scale"], "training.learning_rate": [1e-3, 1e30]}
    tree.write_study(
        "rates",
        factors=factors,
        seeds=[0, 1],
        evaluation=UNASKED,
        plan="preregistration.yaml",
    )
    status, text = tree.run_all("params/rates.yaml")
    assert status == 0, text
    assert re.search(r"^none +1e\+30 +2 of 2 +n/a ", text, re.MULTILINE), text
    assert "seed 0: steps 2/12, diverged, " in text
    diverged = result(tree, "rates", "none,learning_rate=1e+30")
    assert (diverged["status"], diverged["diverged_at"]) == ("diverged", 2)
    assert diverged["measures"] == diverged["tables"] == {}
    verdict = Record("rates", tree.root / "papers/embedding-norm").verdict
    assert (verdict["standing"], verdict["answers"]) == ("EXPLORATORY", {})
    assert {row["n"] for row in verdict["imputed"]} == {2}
    assert verdict["decisions"] == []  # no task was asked


def test_an_undecided_look_is_followed_by_the_next_and_a_decided_one_is_not(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.model_validate(tiny_study.model_dump() | {"seeds": [5, 6, 7], "looks": [2, 3]})
    monkeypatch.setattr("lib.study.io.RUNS", tmp_path)
    assert sweep.seeds_due(study) == 2
    first = study.model_copy(update={"seeds": [5, 6]})
    lay_out(first, None, 0)
    assert sweep.seeds_due(study) == 2  # it is to be analysed
    write_json(tmp_path / "tiny/03_analysis.json", {"runs": [{"seed": 5}, {"seed": 6}]})
    for answer, asked in (("undecided", 3), ("supported", 2)):
        verdict = {"hypothesis_tests": [{"answer": answer}]}
        write_json(tmp_path / "tiny/verdict.json", verdict)
        assert sweep.seeds_due(study) == asked
    assert sweep.seeds_due(tiny_study) == 2  # all it has


@pytest.mark.long
def test_a_study_ends_at_the_look_that_decides(tree: Tree) -> None:
    """An arm that hardly learns differs at once; five seeds are too few for an exact test."""
    rates = {"training.learning_rate": [1e-2, 1e-6], "training.weight_decay": [0.0]}
    shared = {"evaluation": UNASKED, "seeds": {"count": 5, "looks": [4, 5]}, "plan": "looks.yaml"}
    tree.write_study("clear", factors=rates, **shared)
    decays = {"training.weight_decay": [0.0, 0.1]}
    tree.write_study("unclear", factors=decays, **shared)
    arm = "learning_rate=1e-06,weight_decay=0"
    less = {"says": "It learns less.", "direction": "greater", "family": "a"}
    less |= {"test": [arm, "learning_rate=0.01,weight_decay=0", "loss"]}
    same = {"says": "Nothing changes.", "direction": "differs", "family": "b", "exact": True}
    same |= {"test": ["weight_decay=0.1", "weight_decay=0", "loss"]}
    plan = {"title": "T", "question": "Q", "smallest_effect_of_interest": {"loss": 1e-9}}
    plan |= {"confirmatory": ["clear", "unclear"], "hypotheses": {"less": less, "same": same}}
    (tree.root / "params/plans/looks.yaml").write_text(yaml.safe_dump(plan), "utf-8")
    status, text = tree.run_all("freeze", "looks")
    assert status == 0, text
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "work"]):
        run_git(tree.root, *words)
    status, text = tree.run_all("clear", "unclear")
    assert status == 0, text
    assert "unclear: undecided after 4 seeds, so it goes on" in text
    assert "Reached at look 1 of 2." in " ".join(text.split())
    for study, seeds in (("clear", 4), ("unclear", 5)):
        assert len(list((tree.root / "runs" / study).glob("*/seed-*/result.json"))) == 2 * seeds
        status, said = tree.run_all("verify", study)
        assert status == 0, said
    status, text = tree.run_all("clear", "unclear")  # nothing is left to do
    assert status == 0, text
    assert "undecided after" not in text
