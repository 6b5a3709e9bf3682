"""A session on Kaggle runs a study from read-only inputs, and the next one continues it. At home
their runs enter the record only if they are unchanged."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from lib.config.paths import ROOT
from lib.sweep import kaggle
from tests.conftest import TINY, Tree, copy_repository, environment, refused
from tests.record.conftest import run_tiny, tiny  # noqa: F401


def rewritten(file, name, where, change):
    """Write a copy of a zip with a file, or all files of a folder, changed; None leaves it out."""
    to = file.with_name(f"{name}.zip")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            changed = change(content) if member.startswith(where) else content
            if changed is not None:
                new.writestr(member, changed)
    return to


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_zip_leaves_nothing_outside_its_folder(tmp_path):
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as content:
        for name in ("../out", "a/../../out", f"{tmp_path}/out"):
            content.writestr(name, "x")
    kaggle.unpack(file, tmp_path / "folder")
    assert {*tmp_path.iterdir()} == {file, tmp_path / "folder"}
    file.write_text("PK no zip")
    assert refused(kaggle.unpack, file, tmp_path / "folder").startswith("x.zip: cannot be unpack")


@pytest.fixture(scope="session")
def packed(tiny):  # noqa: F811
    """The zip of the tiny study."""
    done = run_tiny(tiny, "pack")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("at home: ./run_all.sh import tiny.zip\n")
    return tiny / "tiny.zip"


@pytest.mark.slow
def test_the_zip_holds_all_of_a_study_but_checkpoints_of_finished_runs(packed):
    with zipfile.ZipFile(packed) as content:
        names = content.namelist()
    assert {"params/tiny.yaml", "params/plans/plan.yaml", "runs/tiny/03_analysis.ipynb"} <= {*names}
    assert sum(name.endswith("02_train.ipynb") for name in names) == 6
    assert not [name for name in names if "checkpoints" in name or name.endswith(".lock")]


@pytest.mark.slow
def test_an_import_takes_in_what_was_made_and_nothing_else(packed, tmp_path):
    with zipfile.ZipFile(packed) as content:
        run = next(name for name in content.namelist() if "/none/seed-" in name)
    folder, seed = "/".join(run.split("/")[:4]), run.split("/")[3].removeprefix("seed-")
    names = ("trace.parquet", "result.json", "02_train.ipynb")
    trace, result, notebook = (f"{folder}/{name}" for name in names)

    def lower(content):
        run = json.loads(content)
        run["measures"]["loss"] = 1.5
        return json.dumps(run).encode()

    def better(content):
        verdict = json.loads(content)
        verdict["contrasts"][0]["mean_delta"] = -9.0
        return json.dumps(verdict).encode()

    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"no zip")
    refused = {
        broken: "broken.zip: cannot be unpacked",
        rewritten(packed, "cut", trace, lambda c: c[:-1]): f"{seed}: trace.parquet is not the file",
        rewritten(packed, "forged", result, lower): f"none seed {seed}: its notebook",
        rewritten(packed, "gone", notebook, lambda _: None): "02_train.ipynb",
        rewritten(
            packed, "told", "runs/tiny/verdict.json", better
        ): "contrasts[layernorm none loss].mean_delta is -9.0",
        rewritten(packed, "nameless", "params/tiny.yaml", lambda _: None): "tiny",
        rewritten(packed, "list", result, lambda _: b"[1]"): "list.zip: TypeError",
        rewritten(packed, "latin", "params/plans/plan.", lambda _: b"\xff"): "is not valid YAML",
        rewritten(packed, "planless", "params/plans/plan.", lambda _: None): "No such file",
        rewritten(packed, "half", "runs/tiny/04", lambda _: None): "04_figures.ipynb is unfinished",
        rewritten(packed, "empty", "runs", lambda _: None): "does not hold one study",
    }
    home = tmp_path / "home"
    (home / "params" / "plans").mkdir(parents=True)
    lines = run_tiny(home, "import", *map(str, refused)).stdout.splitlines()
    assert len(lines) == len(refused)
    for line, (file, said) in zip(lines, refused.items(), strict=True):
        assert line.startswith(file.name)
        assert said in line
    assert not [*home.glob("runs/*")]
    assert not [*home.glob("papers/*/*/*")]
    assert not list((home / "params").rglob("*.yaml"))

    (home / "params" / "tiny.yaml").write_text("name: tiny\n", "utf-8")
    assert "params/tiny.yaml: is another study" in run_tiny(home, "import", str(packed)).stdout
    (home / "params" / "tiny.yaml").unlink()
    more = rewritten(packed, "more", "-", lambda c: c)
    with zipfile.ZipFile(more, "a") as content:
        content.writestr("runs/tiny/suite/own/evil.yaml", "process_docs: !function os.abort")
    twice = run_tiny(home, "import", str(more), str(packed)).stdout.splitlines()
    assert twice == [
        "tiny: imported; its record is papers/paper/record/tiny/",
        "tiny: was imported before; its record is papers/paper/record/tiny/",
    ]
    (home / "runs" / "tiny" / "verdict.json").write_text("{}", "utf-8")
    said = run_tiny(home, "import", str(packed)).stdout
    assert said == "tiny.zip: 'tiny' is already in runs/ or in the record; nothing was imported\n"
    assert not [*(home / "runs").rglob("evil.yaml")]
    verified = json.loads(run_tiny(home, "verify").stdout.splitlines()[-1])
    assert verified["paper"]["faults"] == []


def test_of_what_sessions_left_the_furthest_run_is_taken_up(tmp_path, monkeypatch):
    def write(place, *files):
        for file in files:
            path = tmp_path / "input" / place / "runs" / "probe" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(place, "utf-8")

    write("a", "none/seed-0/result.json", "none/seed-1/checkpoints/x/step-0000000010-abc.pt")
    write("b", "none/seed-0/checkpoints/x/step-0000000090-abc.pt", "none/seed-2/provenance.json")
    write("b", "none/seed-1/checkpoints/x/step-0000000020-abc.pt")
    write("c", "none/seed-3/result.json", "suite/seed-4/evil.yaml")
    with zipfile.ZipFile(tmp_path / "input" / "probe.zip", "w") as packed:
        packed.write(tmp_path / "input/c/runs/probe/none/seed-3/result.json",
                     "runs/probe/none/seed-4/result.json")  # fmt: skip
    here = tmp_path / "working" / "runs" / "probe"
    (here / "none" / "seed-2").mkdir(parents=True)
    monkeypatch.setattr(kaggle, "kaggle_folder", lambda: tmp_path)
    monkeypatch.setattr(kaggle, "study_folder", lambda study: here.with_name(study))
    assert kaggle.resume_from_inputs("probe") == "4 runs continue from earlier sessions"
    assert contents(here) == {
        here / "none/seed-0/result.json": b"a",
        here / "none/seed-1/checkpoints/x/step-0000000020-abc.pt": b"b",
        here / "none/seed-3/result.json": b"c",
        here / "none/seed-4/result.json": b"c",
    }
    assert kaggle.resume_from_inputs("probe") == "0 runs continue from earlier sessions"
    monkeypatch.setattr(kaggle, "kaggle_folder", lambda: None)
    assert kaggle.resume_from_inputs("probe") == "0 runs continue from earlier sessions"


def test_a_sweep_in_a_cell_has_nothing_that_a_kernel_sets_for_itself(tmp_path, monkeypatch, capsys):
    script = 'echo "$@ ${MPLBACKEND-no} ${FORCE_COLOR-no} ${CLICOLOR_FORCE-no}"; exit 7'
    (tmp_path / "run_all.sh").write_text(script, "utf-8")
    monkeypatch.setattr(kaggle, "ROOT", tmp_path)
    for name in ("MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    assert kaggle.run_study("probe", 1.5) == 7
    assert capsys.readouterr().out == "probe --here --stop-after 1.5 no no no\n"


def set_writable(folder, writable):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod((0o755 if path.is_dir() else 0o644) & (0o777 if writable else 0o555))


def run_session(top, hours, *outputs):
    """Run 00_kaggle for a study beside it, as by hand, from read-only inputs. Return the working
    folder, and all output as text."""
    inputs, working = top / "input", top / "working"
    repository = inputs / "datasets" / "owner" / "embedding-norm"
    copy_repository(repository)
    templates = Path("papers", "embedding-norm", "templates")
    shutil.copytree(ROOT / templates, repository / templates)
    for number, output in enumerate(outputs):
        shutil.copytree(output, inputs / "notebooks" / f"output-{number}")
    working.mkdir()
    study = TINY | {
        "name": "mine",
        "factors": {"model.embedding_norm": ["none", "layernorm"]},
        "seeds": [3],
        "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0},
    }
    (working / "mine.yaml").write_text(yaml.safe_dump(study), "utf-8")
    content = nbformat.read(repository / "notebooks" / "00_kaggle.ipynb", 4)
    (cell,) = (c for c in content.cells if "parameters" in c.metadata.get("tags", []))
    cell.source = f"study = './mine.yaml'\nhours = {hours}"
    set_writable(inputs, False)
    before = contents(inputs)
    try:
        client = NotebookClient(content, kernel_name="python3", timeout=600, allow_errors=True)
        client.execute(cwd=str(working))
    finally:
        set_writable(inputs, True)
    assert contents(inputs) == before
    outputs_of = [output for cell in content.cells for output in cell.get("outputs", [])]
    shown = [output.get("text", "") or str(output.get("data", "")) for output in outputs_of]
    assert "error" not in {output.output_type for output in outputs_of}, "".join(shown)
    return working, "".join(shown)


@pytest.mark.long
@pytest.mark.slow
def test_a_study_of_one_s_own_runs_goes_on_in_another_session_and_comes_home(tmp_path, monkeypatch):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setenv("PATH", f"{environment() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # so that nothing can be downloaded
    for name in ("PYTHONPATH", "STUDY_HEADLESS", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    first, text = run_session(tmp_path / "one", 1.0)
    assert "0 runs continue from earlier sessions" in text
    assert "EXPLORATORY" in text
    assert "image/png" in text
    assert "\x1b" not in text
    assert text.endswith("at home: ./run_all.sh import mine.zip\n")

    half = tmp_path / "half"
    shutil.copytree(first, half, ignore=shutil.ignore_patterns("*.zip", "papers", "0[134]*"))
    (half / "runs/mine/layernorm/seed-3/result.json").unlink()
    second, text = run_session(tmp_path / "two", 1.0, half)
    assert "2 runs continue from earlier sessions" in text
    results = {
        (top, arm): json.loads((top / f"runs/mine/{arm}/seed-3/result.json").read_text())
        for top in (first, second)
        for arm in ("none", "layernorm")
    }
    assert results[first, "none"] == results[second, "none"]  # so it was not made again
    again = results[second, "layernorm"]
    assert again["final_weights"] == results[first, "layernorm"]["final_weights"]

    monkeypatch.undo()
    home = Tree(tmp_path / "home")
    status, text = home.run_all("import", str(second / "mine.zip"))
    assert (status, "mine: imported" in text) == (0, True), text
    assert re.search(r"^layernorm - none +[+-]", text, re.MULTILINE), text
    assert "\nAnalysis            runs/mine/03_analysis.ipynb\n" in text
    status, text = home.run_all("verify", "mine")
    assert status == 0, text
    assert re.search("mine: as published: .* 2 runs, 2 initial weights and", text), text
