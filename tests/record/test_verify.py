"""Whether a record's files are those of manifest, index and archive, and its notebooks those of
their place: each check on a copy of a recorded study that passes them all, after one change."""

import copy
import hashlib
import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from lib.publish import paper as publishing
from lib.record import archive, provenance, record, verify
from lib.record.notebook import without_warnings
from lib.record.record import (
    MANIFEST,
    SHARED,
    Record,
    as_table,
    papers,
    read_index,
    recorded_studies,
    root_hash,
)
from lib.study.code import is_checkout
from lib.study.io import PAPER, ROOT, read_json, sha256, write_json
from lib.study.preregistration import ATTEMPTS
from lib.study.yaml import UserError
from tests.conftest import run_git
from tests.record.samples import in_json

STUDY = "example"


@pytest.fixture
def folder(example: Path) -> Path:
    return example / "record" / STUDY


def test_a_sound_record_has_no_faults(folder: Path) -> None:
    assert verify.verify(STUDY, again=False) == []


ROWS = [{"arm": "layernorm", "n": 3, "t_low": None}, {"arm": "scale", "n": 2, "t_low": 0.1}]


def test_a_verdict_reads_the_same_from_rows_and_from_tables(folder: Path) -> None:
    verdict = {
        "standing": "EXPLORATORY",
        "contrasts": ROWS,
        "uneven": [*ROWS, {"n": 3, "arm": "center", "t_low": 0.2}],
        "one": ROWS[:1],
        "none": [],
        "names": ["a", "b"],
    }
    file = Record(STUDY).verdict_file
    tables = {name: as_table(each) for name, each in verdict.items()}
    for content in (verdict, tables):
        write_json(file, content)
        assert Record(STUDY).verdict == verdict
    assert {name for name in verdict if tables[name] != verdict[name]} == {"contrasts"}
    assert_frame_equal(pd.DataFrame(**tables["contrasts"]), pd.DataFrame(ROWS))


@pytest.mark.parametrize(
    ("columns", "data"),
    [
        (["arm", "n"], [["scale", 3], ["none"]]),
        (["arm"], [["scale", 3]]),
        (["arm", "arm"], [["scale", "none"]]),
        (["arm", "n"], None),
        (["arm", "n"], [3]),
        ([["arm"]], [["scale"]]),
    ],
)
def test_a_broken_table_is_named(folder: Path, columns: Any, data: Any) -> None:
    file = Record(STUDY).verdict_file
    write_json(file, {"contrasts": {"columns": columns, "data": data}})
    with pytest.raises(UserError, match=f"{file.name} holds a table whose rows do not fit"):
        Record(STUDY).verdict  # noqa: B018


def test_a_file_changed_lost_or_added_is_named(folder: Path) -> None:
    (folder / "01_data.ipynb").write_text("{}", "utf-8")
    (folder / "02_more.ipynb").write_text("{}", "utf-8")
    (folder / "parameters.yaml").unlink()
    assert sorted(Record(STUDY).check_files()) == [
        "01_data.ipynb has changed",
        "02_more.ipynb is not in the manifest",
        "parameters.yaml is missing",
    ]
    (folder / "MANIFEST.sha256").write_text("", "utf-8")
    faults = list(Record(STUDY).check_files())
    assert faults[0] == "its MANIFEST.sha256 is missing or empty"
    assert set(faults[1:]) == {f"{name} is not in the manifest" for name in Record(STUDY).files}


def test_a_manifest_is_what_sha256sum_checks(folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256"]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0
    assert Record(STUDY).manifest_text() == (folder / "MANIFEST.sha256").read_text("utf-8")


def test_a_key_that_stands_twice_and_a_comment_are_named(folder: Path) -> None:
    changed = {"01_data.ipynb": "cells", "04_figures.json": "trend"}
    for name, key in changed.items():
        text = (folder / name).read_text("utf-8")
        assert f'"{key}":' in text
        (folder / name).write_text(text.replace("{", f'{{"{key}":"It helps.",', 1), "utf-8")
    with (folder / "parameters.yaml").open("a") as file:
        file.write("# It helps.\n")
    assert sorted(verify.check_format(Record(STUDY))) == [
        f"{name} is not written as the archive writes it" for name in [*changed, "parameters.yaml"]
    ]


def parameters(**others: Any) -> Callable[[Any], None]:
    return lambda notebook: notebook["metadata"]["papermill"]["parameters"].update(others)


def injected(notebook: Any) -> Any:
    tags = [cell["metadata"].get("tags", []) for cell in notebook["cells"]]
    return notebook["cells"][next(n for n, of in enumerate(tags) if "injected-parameters" in of)]


def moved(notebook: Any) -> None:
    cell = injected(notebook)
    notebook["cells"].remove(cell)
    notebook["cells"].append(cell)


def doubled(notebook: Any) -> None:
    notebook["cells"].append(copy.deepcopy(injected(notebook)))


def in_code(notebook: Any) -> None:
    next(c for c in notebook["cells"] if c["cell_type"] == "code")["source"] = "wishful = 1"


PLACE = "was executed with other parameters than those of its place"


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda nb: nb["metadata"]["study"].update(status="failed"), "did not complete"),
        (in_code, "executed other code than the index says"),
        (parameters(seed=7), PLACE),
        (parameters(arm="layernorm"), PLACE),
        (parameters(hours=1), PLACE),
        (lambda nb: injected(nb).update(source="# Parameters\nstudy = 'other'"), PLACE),
        (lambda nb: injected(nb).update(cell_type="markdown"), PLACE),
        (lambda nb: injected(nb).update(id="it-helps"), PLACE),
        (lambda nb: injected(nb)["outputs"].append({"output_type": "stream"}), PLACE),
        (moved, PLACE),
        (doubled, PLACE),
        (
            lambda nb: nb["metadata"]["papermill"].update(output_path="It helps."),
            "names another place than its own",
        ),
        (
            lambda nb: nb.update(note="It helps."),
            "holds what no execution writes: note",
        ),
    ],
)
def test_a_notebook_of_another_place_or_code_is_named(
    edit: Callable[[Any], object], fault: str, folder: Path
) -> None:
    assert list(verify.check_notebooks(Record(STUDY))) == []
    path = next(folder.glob("*/seed-*/02_train.ipynb"))
    in_json(path, edit)
    assert f"{path.relative_to(folder).as_posix()} {fault}" in verify.check_notebooks(Record(STUDY))


def test_a_missing_shared_notebook_is_named(folder: Path) -> None:
    (folder / "01_data.ipynb").unlink()
    assert list(verify.check_notebooks(Record(STUDY))) == ["01_data.ipynb is missing"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda nb: nb["cells"][0].update(source="# It helps."),
        lambda nb: nb["cells"][0].update(id="helps"),
        lambda nb: nb["cells"][0].update(cell_type="raw"),
        lambda nb: nb["cells"][0].update(attachments={}),
        lambda nb: nb["cells"][0]["metadata"].update(tags=["it-helps"]),
        lambda nb: nb["metadata"]["kernelspec"].update(display_name="It helps."),
        lambda nb: nb["metadata"]["jupytext"].update(note="It helps."),
        lambda nb: nb.update(nbformat_minor=4),
    ],
    ids=["text", "name", "kind", "attachment", "tag", "kernel", "jupytext", "format"],
)
def test_whatever_is_not_executed_is_that_of_the_commit(
    edit: Callable[[Any], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_checkout():
        pytest.skip("not a git checkout")
    in_json(folder / "01_data.ipynb", edit)
    (fault,) = provenance.check_code(Record(STUDY))
    assert fault.startswith("01_data.ipynb holds other code or text than that of commit")
    monkeypatch.setattr(provenance, "is_checkout", lambda: False)
    assert list(provenance.check_code(Record(STUDY))) == []


def test_code_is_that_of_its_commit_or_where_it_was_not_committed_of_this_checkout(
    folder: Path,
) -> None:
    def faults(**stamp: Any) -> list[str]:
        in_json(folder / "03_analysis.ipynb", lambda nb: nb["metadata"]["study"].update(stamp))
        return list(provenance.check_code(Record(STUDY)))

    in_json(folder / "03_analysis.ipynb", lambda nb: nb["cells"][0].update(source="It helps."))
    says = "03_analysis.ipynb holds other code or text than that of this checkout"
    assert faults(clean=False) == [says]
    shutil.copyfile(ROOT / "notebooks" / "03_analysis.ipynb", folder / "03_analysis.ipynb")
    commit = read_json(folder / "01_data.ipynb")["metadata"]["study"]["commit"]
    in_json(folder / "03_analysis.ipynb", lambda nb: nb["metadata"].update(study={}))
    assert faults(status="completed", commit=commit, clean=False) == []
    says = f"03_analysis.ipynb names commit {'0' * 12}, which this history does not hold"
    assert faults(commit="0" * 40) == [says]


def test_results_that_no_notebook_shows_are_named(folder: Path) -> None:
    record = Record(STUDY)
    first = record.runs[0]
    first["tokens"] = 1
    name = f"{first['arm']} seed {first['seed']}"
    assert list(verify.check_results(record)) == [f"the result of run {name} is not its notebook's"]
    record.runs.remove(first)
    place = f"{first['arm']}/seed-{first['seed']}"
    said = f"{place}/02_train.ipynb is no file of this record"
    assert list(verify.check_names(record)) == [said]
    assert all(f"raw.zip holds {place}/" in fault for fault in archive.check_raw_zip(record))


@pytest.mark.parametrize("name", ["plan.yaml", "other-versions.json", "summary", "01_data.ipynb"])
def test_a_plan_of_a_study_without_one_and_a_link_are_no_files_of_a_record(
    name: str, folder: Path
) -> None:
    assert list(verify.check_names(Record(STUDY))) == []
    path = folder / name
    path.unlink(missing_ok=True)
    if path.suffix in (".yaml", ".json"):
        path.write_text("It helps.", "utf-8")
    else:
        path.symlink_to(folder)
    assert list(verify.check_names(Record(STUDY))) == [f"{name} is no file of this record"]


KEPT_OF = {"plan": "a" * 64, "study": "trial", "commit": "b" * 40}
KEPT_OF["started"] = "2026-12-01 10:00:00 UTC"


@pytest.mark.parametrize(
    "said",
    [
        *({"note": "It helps."}, {"plan": "It helps."}, {"study": "It helps."}),
        *({"started": "2026-12-01 It helps."}, {"commit": "It helps."}, {"plan": ""}),
    ],
)
def test_of_other_versions_a_record_says_which_and_no_more(
    said: dict[str, str], folder: Path
) -> None:
    others = [KEPT_OF, KEPT_OF | {"started": "2026-12-01T10:00:00.123456+00:00", "commit": ""}]
    for content, faults in ((others, 0), ([*others, KEPT_OF | said], 1), (["It helps."], 1)):
        write_json(folder / ATTEMPTS, content, indent=None)
        found = list(provenance.check_versions(Record(STUDY)))
        assert [fault.partition(":")[0] for fault in found] == [ATTEMPTS] * faults


def test_a_line_or_a_name_that_stands_twice_is_named(folder: Path) -> None:
    """Of two the last one is read, and a reader sees both."""
    manifest, index = folder / MANIFEST, folder.with_name("index.json")
    before = manifest.read_text("utf-8")
    manifest.write_text(f"It helps.  parameters.yaml\n{before}", "utf-8")
    assert list(Record(STUDY).check_files()) == []
    said = f"{MANIFEST} is not written as the archive writes it"
    assert list(verify.check_format(Record(STUDY))) == [said]
    manifest.write_text(before, "utf-8")
    assert list(verify.check_format(Record(STUDY))) == []
    text = index.read_text("utf-8")
    index.write_text(text.replace("{", f'{{"{STUDY}": "It helps.",', 1), "utf-8")
    assert json.loads(index.read_text("utf-8")) == json.loads(text)
    (fault,) = verify.strays(folder.parents[1])
    assert fault.endswith("index.json is not written as the archive writes it")


def test_warnings_and_bars_go_into_no_record() -> None:
    def cell(*names: str) -> dict[str, Any]:
        return {"outputs": [{"output_type": "stream", "name": name} for name in names]}

    notebook = {"cells": [{"source": "text"}, cell("stderr", "stdout", "stderr")]}
    kept = without_warnings(json.loads(json.dumps(notebook)))
    assert kept == {"cells": [{"source": "text"}, cell("stdout")]}


def test_a_sealed_record_is_verified_as_its_folder_is_and_shows_the_notebooks_of_the_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: path.read_bytes() for name, path in Record(STUDY).files.items()}
    Record(STUDY).paper.joinpath("paper.md").write_text("{file=example/loss.pdf}", "utf-8")
    file = archive.seal(STUDY)
    assert file == folder.with_name("example.zip")
    shared = [f"{name}.ipynb" for name in SHARED]
    assert sorted(path.name for path in folder.iterdir()) == shared
    whole = zipfile.ZipFile(file)
    assert whole.namelist() == ["record.zip"]
    names = zipfile.ZipFile(whole.open("record.zip")).namelist()
    assert {*shared}.isdisjoint(names)
    assert {"raw.zip", "parameters.yaml"} <= {*names}
    sealed = Record(STUDY)
    figures = {name: before.pop(name) for name in [*before] if name.startswith("../../figures/")}
    shown = "../../figures/example/loss.pdf"  # by the paper; the others are dropped
    before[shown] = figures[shown]
    assert {name: path.read_bytes() for name, path in sealed.files.items()} == before
    assert figures.keys() <= sealed.manifest.keys()
    assert sealed.entry["sealed"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert verify.verify(STUDY, again=False) == []
    assert list(verify.strays(file.parents[1])) == []
    assert archive.seal(STUDY) == file  # a second time changes nothing
    content, notebook = file.read_bytes(), folder / "03_analysis.ipynb"
    notebook.write_bytes(notebook.read_bytes() + b" ")
    assert verify.verify(STUDY, again=False) == ["03_analysis.ipynb has changed"]
    notebook.write_bytes(before["03_analysis.ipynb"])
    (folder / "parameters.yaml").write_text("It helps.", "utf-8")
    (fault,) = verify.verify(STUDY, again=False)
    assert fault.endswith("parameters.yaml is in example.zip, too; restore both from git")
    (folder / "parameters.yaml").unlink()
    (folder / "more.md").write_text("It helps.", "utf-8")
    assert verify.verify(STUDY, again=False) == ["more.md is not in the manifest"]
    (folder / "more.md").unlink()
    for name, said in (("trend", "has changed"), ("better", "is not in the manifest")):
        figure = sealed.figures / f"{name}.pdf"
        figure.write_bytes(b"It helps.")
        assert f"../../figures/example/{name}.pdf {said}" in verify.verify(STUDY, again=False)
        figure.unlink()
    file.write_bytes(content + b"It helps.")
    assert verify.verify(STUDY, again=False) == ["the index says otherwise of its sealed"]
    archive.write_index_entry(STUDY)
    assert verify.verify(STUDY, again=False) == ["example.zip holds bytes beside its files"]
    file.write_bytes(content[:1000])
    (fault,) = verify.verify(STUDY, again=False)
    assert "example.zip: it cannot be read as a zip" in fault


def packed(**files: bytes) -> bytes:
    """Zip files as an archive does."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as to:
        for name, text in files.items():
            to.writestr(zipfile.ZipInfo(name), text)
    return content.getvalue()


@pytest.mark.parametrize(
    ("hide", "fault"),
    [
        (lambda whole: packed(**{"record.zip": whole}), None),
        (
            lambda whole: packed(**{"record.zip": whole + b"It helps."}),
            "record.zip in example.zip holds bytes beside its files",
        ),
        (
            lambda whole: packed(**{"parameters.yaml": b"It helps.", "record.zip": whole}),
            "example.zip holds files beside record.zip",
        ),
        (
            lambda whole: packed(**{"record.zip": added(whole, "record.zip", b"It helps.")}),
            "record.zip is not in the manifest",
        ),
    ],
)
def test_nothing_is_hidden_in_or_beside_the_zip_in_a_sealed_one(
    hide: Callable[[bytes], bytes], fault: str | None, folder: Path
) -> None:
    file = archive.seal(STUDY)
    file.write_bytes(hide(zipfile.ZipFile(file).read("record.zip")))
    archive.write_index_entry(STUDY)
    assert verify.verify(STUDY, again=False) == ([fault] if fault else [])


def added(content: bytes, name: str, text: bytes) -> bytes:
    """Add a file to a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        return packed(**{each: old.read(each) for each in old.namelist()}, **{name: text})


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_record_that_is_sealed_as_a_whole_is_one_file(folder: Path, is_sealed: bool) -> None:
    files = {name: path.read_bytes() for name, path in Record(STUDY).files.items()}
    if is_sealed:  # which leaves the notebooks of the study outside
        archive.seal(STUDY)
    file = archive.seal(STUDY, whole=True)
    assert not folder.exists()
    assert not file.with_name(".example.open").exists()
    sealed = {name: path.read_bytes() for name, path in Record(STUDY).files.items()}
    assert sealed == {name: text for name, text in files.items() if "figures/" not in name}
    assert verify.verify(STUDY, again=False) == []
    content = file.read_bytes()
    assert archive.seal(STUDY, whole=True).read_bytes() == content


def test_notebooks_are_sealed_only_with_their_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        archive.main([STUDY, "--whole"])
    assert "--whole goes with --seal" in capsys.readouterr().err
    assert archive.main([STUDY, "--whole", "--seal"]) == 0
    assert not folder.exists()


def test_the_same_record_is_sealed_in_the_same_bytes_and_a_faulty_one_is_not(folder: Path) -> None:
    kept, figures = shutil.copytree(folder, folder.with_name(".kept")), Record(STUDY).figures
    drawn = {path: path.read_bytes() for path in figures.iterdir()}
    first = archive.seal(STUDY).read_bytes()
    folder.with_name("example.zip").unlink()
    shutil.rmtree(folder)
    shutil.move(kept, folder)
    for path, content in drawn.items():
        path.write_bytes(content)
    (folder / "01_data.ipynb").touch()
    assert archive.seal(STUDY).read_bytes() == first
    shutil.copytree(Record(STUDY).folder, folder, dirs_exist_ok=True)
    folder.with_name("example.zip").unlink()
    (folder / "01_data.ipynb").write_text("{}", "utf-8")
    for path, content in drawn.items():
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"example: 01_data.ipynb has changed; nothing was sealed"):
        archive.seal(STUDY)
    assert folder.is_dir()


@pytest.mark.parametrize(
    "path", [ROOT / "papers" / "README.md", PAPER / "paper.tex"], ids=lambda p: p.name
)
def test_the_root_stands_in_the_texts(path: Path) -> None:
    root, text = root_hash(PAPER), path.read_text("utf-8")
    assert root in text or all(
        half in text for half in (root[:32], root[32:])
    )  # as the paper has it


def test_the_root_covers_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    before, index = root_hash(PAPER), read_index(PAPER)
    for study in index:
        changed = index | {study: index[study] | {"manifest": "0" * 64}}
        monkeypatch.setattr(record, "read_index", lambda _, changed=changed: changed)
        assert root_hash(PAPER) != before


def test_every_record_is_in_the_index_and_the_other_way_round() -> None:
    assert set(recorded_studies()) == {study for paper in papers() for study in read_index(paper)}


def test_a_paper_that_is_deleted_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_checkout():
        pytest.skip("not a git checkout")
    assert list(verify.vanished()) == []
    monkeypatch.setattr(verify, "papers", list)
    gone = list(verify.vanished())
    for study in read_index(PAPER):
        assert any(line.startswith(f"study '{study}', recorded at") for line in gone)


@pytest.mark.parametrize("name", ["paper.md", "templates/answers.md"])
def test_what_a_paper_or_the_readmes_were_made_of_has_vanished_if_it_is_deleted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, nobody would compare what was made of it with anything."""
    path = tmp_path / "papers/one" / name
    path.parent.mkdir(parents=True)
    path.write_text("It is {{ n }}.", "utf-8")
    run_git(tmp_path, "init")
    run_git(tmp_path, "add", "--all")
    run_git(tmp_path, "commit", "--message", "x")
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    monkeypatch.setattr("lib.study.io.PAPERS", tmp_path / "papers")
    assert list(verify.vanished()) == []
    run_git(tmp_path, "rm", "-r", "papers")
    run_git(tmp_path, "commit", "--message", "x")
    assert list(verify.vanished()) == [f"papers/one/{name}, which was committed, has vanished"]


def test_what_only_a_branch_recorded_has_vanished_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "papers/one/record/index.json"
    index.parent.mkdir(parents=True)

    def commit(content: str) -> None:
        index.write_text(content, "utf-8")
        run_git(tmp_path, "add", "--all")
        run_git(tmp_path, "commit", "--message", "x")

    run_git(tmp_path, "init", "--initial-branch", "main")
    commit('{"one": {"seeds": {}}}')
    run_git(tmp_path, "checkout", "-b", "side")
    commit('{"two": {"seeds": {}}}')
    run_git(tmp_path, "checkout", "main")
    commit('{"one": {"se')  # broken: names nothing
    run_git(tmp_path, "merge", "--strategy", "ours", "side")
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    monkeypatch.setattr(verify, "papers", list)
    assert {line.partition(",")[0] for line in verify.vanished()} == {"study 'one'", "study 'two'"}


def test_a_record_that_is_missing_is_named() -> None:
    assert verify.verify("nowhere") == ["its MANIFEST.sha256 is missing or empty"]


def test_parameters_that_are_no_yaml_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("name: [bad", "utf-8")
    for module in ("record.record", "study.study", "study.io"):
        monkeypatch.setattr(f"lib.{module}.PARAMS", tmp_path)
    (fault,) = verify.verify("bad")
    assert fault.startswith("its parameters or its plan cannot be read: ")


@pytest.mark.parametrize("file", ["record/index.json", "results/one.json"])
def test_json_that_was_cut_short_is_a_fault(file: str, tmp_path: Path) -> None:
    for name in ("record/index.json", "results/one.json", "results/one.verdict.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}", "utf-8")
    (tmp_path / "paper.md").write_text("", "utf-8")
    (tmp_path / file).write_text('{"runs', "utf-8")
    faults = list(publishing.check_texts(tmp_path))
    assert len(faults) == 1
    assert faults[0].startswith("the paper cannot be built: ")


@pytest.mark.parametrize("study", [pytest.param("confirmatory", marks=pytest.mark.slow), "horizon"])
def test_a_study_of_the_first_record_is_what_its_hash_says(
    study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify.verify(study) == []
    monkeypatch.setitem(verify.FIRST_RECORD, study, "0" * 64)
    assert verify.verify(study) == ["its files have changed"]
    monkeypatch.delitem(verify.FIRST_RECORD, study)
    assert verify.verify(study)  # by the rules of all others


def test_a_file_of_the_first_record_is_as_the_manifest_says_that_was_hashed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(verify.FIRST_RECORD, STUDY, sha256(folder / MANIFEST))
    archive.seal(STUDY)  # which drops figures
    assert verify.verify(STUDY) == []
    results = Record(STUDY).results_file
    results.write_text("{}", "utf-8")
    assert verify.verify(STUDY) == [f"../../results/{results.name} has changed"]
    (folder / MANIFEST).write_text("", "utf-8")
    assert "its files have changed" in verify.verify(STUDY)


def test_hidden_files_beside_the_plans_are_no_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PLANS", tmp_path)
    (tmp_path / "p.yaml").write_text("title: a plan\n", "utf-8")
    root = root_hash(tmp_path)
    (tmp_path / ".p.yaml.123.yaml").write_text("left by a kill\n", "utf-8")
    assert root_hash(tmp_path) == root
    (tmp_path / "q.yaml").write_text("title: another\n", "utf-8")
    assert root_hash(tmp_path) != root
