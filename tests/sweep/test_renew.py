"""A record is made again from its raw tables, and replaced only if every number comes out equal."""

import json
import shutil

import pytest

from lib.config.files import read_json, sha256, write_json
from lib.config.paths import listed
from lib.record.archive import MANIFEST, RAW, Record, pack
from lib.sweep import renew
from tests.record.conftest import run_tiny, tiny  # noqa: F401
from tests.record.kills import contents

pytestmark = pytest.mark.slow


@pytest.fixture
def papers(tiny, tmp_path):  # noqa: F811
    """Copy the tiny study's paper twice: as recorded, and as made again."""
    for name in ("recorded", "again"):
        shutil.copytree(tiny / "papers" / "paper", tmp_path / name)
    again = Record("tiny", tmp_path / "again")
    (again.folder / "03_analysis.ipynb").write_text('{"cells": []}', "utf-8")
    (again.folder / "parameters.yaml").write_text("of today", "utf-8")
    (again.figures / "loss.png").write_bytes(b"drawn again")
    return tmp_path


def edit(change):
    """Return a function that changes the verdict of the new record."""

    def apply(record):
        content = read_json(record.verdict_file)
        change(content)
        write_json(record.verdict_file, content, indent=None)

    return apply


def of(record):
    """Return the old record of a new one."""
    return Record("tiny", record.paper.with_name("recorded"))


CASES = {
    "contrasts[layernorm none loss].mean_delta is ": edit(
        lambda v: v["contrasts"][0].update(mean_delta=1.0)
    ),
    "contrasts[layernorm none loss] is {": edit(lambda v: v["contrasts"].pop(0)),
    "today's analysis lacks its tests": edit(lambda v: v.pop("tests")),
    "answers.cost.answer is ": edit(lambda v: v["answers"]["cost"].update(answer="refuted")),
    "none.perplexity.mean is ": lambda record: record.results_file.write_text(
        record.results_file.read_text("utf-8").replace('"mean":49.', '"mean":59.'), "utf-8"
    ),
    "loss.png is no longer drawn": lambda record: (record.figures / "loss.png").unlink(),
    "trace.parquet differs or is missing": lambda record: pack(
        set(listed(of(record).raw, "*/*/*")) - set(listed(of(record).raw, "none/*/trace.*")),
        of(record).raw,
        record.folder / RAW,
    ),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_record_of_which_anything_differs_is_kept_as_it_was(fault, papers, monkeypatch, capsys):
    CASES[fault](Record("tiny", papers / "again"))
    before = contents(papers / "recorded")
    monkeypatch.setattr(renew, "made_again", lambda *_: Record("tiny", papers / "again"))
    monkeypatch.setattr(renew, "Record", lambda name: Record(name, papers / "recorded"))
    assert renew.renew(["tiny"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tiny: kept as it was; ")
    assert fault in line
    assert contents(papers / "recorded") == before


def test_of_an_equal_one_come_shared_notebooks_figures_results_and_manifest(
    papers, monkeypatch, capsys
):
    edit(lambda v: v.update(of_today=[]))(
        Record("tiny", papers / "again")
    )  # new values are no fault
    before, again = contents(papers / "recorded"), contents(papers / "again")
    monkeypatch.setattr(renew, "made_again", lambda *_: Record("tiny", papers / "again"))
    monkeypatch.setattr(renew, "Record", lambda name: Record(name, papers / "recorded"))
    assert renew.renew(["tiny"]) == 0
    assert "tiny: renewed; compared: " in capsys.readouterr().out
    after = contents(papers / "recorded")
    changed = {path for path in after if after[path] != before[path]}
    names = {"03_analysis.ipynb", "loss.png", "tiny.verdict.json", MANIFEST}
    assert {path.name for path in changed} == names
    assert all(after[path] == again[path] for path in changed if path.name != MANIFEST)
    record = Record("tiny", papers / "recorded")
    assert len(record.manifest) == len(record.files)


def test_01_of_runs_that_answered_another_suite_stays_under_its_commit(papers, monkeypatch, capsys):
    recorded, again = (Record("tiny", papers / name) for name in ("recorded", "again"))
    runs = [run | {"suite_hash": "d6201eb81780" + "0" * 52} for run in recorded.runs]
    monkeypatch.setattr(recorded, "runs", runs)
    stamp = {"status": "completed", "commit": "418ea1b81de3" + "0" * 28, "clean": True}
    write_json(recorded.folder / "01_data.ipynb", {"cells": [], "metadata": {"study": stamp}})
    before = contents(papers / "recorded")
    monkeypatch.setattr(renew, "made_again", lambda *_: again)
    monkeypatch.setattr(renew, "Record", lambda _: recorded)
    assert renew.renew(["tiny"]) == 0
    assert "01 is kept: the runs answered its suite d6201eb81780" in capsys.readouterr().out
    after = contents(papers / "recorded")
    kept = next(path for path in after if path.name == "01_data.ipynb")
    assert after[kept] == before[kept]
    lines = (recorded.folder / "README.md").read_text("utf-8").splitlines()
    assert lines[0].startswith("Each 02_train.ipynb is kept as it was.")
    assert lines[1:] == [
        "So is 01_data.ipynb. Executed at commit 418ea1b81de3; imports are of that commit."
    ]
    record = Record("tiny", papers / "recorded")
    assert all(sha256(path) == record.manifest[name] for name, path in record.files.items())


@pytest.mark.long
def test_a_record_is_made_again_from_its_raw_tables_by_the_notebooks_of_today(tiny):  # noqa: F811
    paper = tiny / "papers" / "paper"
    before = contents(paper)
    done = run_tiny(tiny, "renew")
    assert done.stdout.startswith("tiny: renewed; compared: "), done.stdout + done.stderr
    after = contents(paper)
    kept = [path for path in after if path.name in ("02_train.ipynb", RAW, "plan.yaml")]
    assert len(kept) == 6 + 2
    assert all(after[path] == before[path] for path in kept)
    notebook = json.loads((paper / "record/tiny/03_analysis.ipynb").read_text("utf-8"))
    assert len(notebook["cells"]) > 10
    assert {*Record("tiny", paper).manifest} == {*Record("tiny", paper).files}
    said = read_json(tiny / "runs/tiny/archive.json")["manifest"]  # it is still ours
    assert said == sha256(paper / "record/tiny" / MANIFEST)
