"""What the temporary tree of an import holds, and how what it archived is brought home."""

import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lib import results as provenance
from lib.record import archive, replay
from lib.record import record as records
from lib.record.record import Record
from lib.study import config, git, inputs, paths
from lib.study.yaml import UserError
from lib.workflow import cli, importing
from tests.conftest import TINY, run_git
from tests.samples import sample_runs
from tests.study.samples import CONTENT, Parameters


def test_a_parameter_file_not_yet_committed_is_in_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, packed, executed = tmp_path / "home", tmp_path / "probe.zip", []
    for name in ("lib/file", "notebooks/file", "params/file"):
        (home / name).parent.mkdir(parents=True)
        (home / name).touch()
    for words in (["init"], ["add", "--all"], ["commit", "--message", "x"]):
        run_git(home, *words)
    study = TINY | {"name": "probe", "seeds": [0]}
    (home / "params" / "probe.yaml").write_text(json.dumps(study), "utf-8")
    with zipfile.ZipFile(packed, "w") as content:
        content.writestr("runs/probe/none/seed-0/result.json", "{}")

    for module in (replay, git, provenance):
        monkeypatch.setattr(module, "ROOT", home)
    for module in (records, config):
        monkeypatch.setattr(module, "PARAMS", home / "params")
    monkeypatch.setattr("lib.record.record.PAPERS", home / "papers")
    monkeypatch.setattr(importing, "output_root", lambda: home)
    monkeypatch.setattr(importing, "_file_by_hand", lambda *_: None)
    monkeypatch.setattr(importing, "_copy_record", lambda *_: None)
    execute = replay.execute

    def stub(folder: Path, *command: str) -> str:
        if command[0] != sys.executable:
            return execute(folder, *command)
        executed.append((folder / "params" / "probe.yaml").is_file())
        return ""

    monkeypatch.setattr(replay, "execute", stub)
    provenance.git_state.cache_clear()
    try:
        assert importing._import(packed) == "probe"
    finally:
        provenance.git_state.cache_clear()
    assert executed == [True]


RUN = "runs/smoke/none/seed-0"
RESULT = sample_runs(config.load_study("smoke"))[0].model_dump_json()


def write_zip(folder: Path, files: dict[str, Any]) -> Path:
    with zipfile.ZipFile(folder / "smoke.zip", "w") as content:
        for name, text in files.items():
            content.writestr(name, text)
    return folder / "smoke.zip"


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zip with runs of `smoke`, which whatever is executed in a tree archives there."""
    monkeypatch.setattr("lib.record.record.PAPERS", tmp_path / "home" / "papers")
    monkeypatch.setattr(importing, "output_root", lambda: tmp_path / "home")
    monkeypatch.setattr(replay, "link_inputs", lambda *_: None)

    @contextmanager
    def tree_at(*_: Any) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            yield Path(folder)

    def execute(tree: Path, *_: Any) -> None:
        for place in (
            *("record/smoke/MANIFEST.sha256", "results/smoke.json"),
            *("results/smoke.verdict.json", "figures/smoke/loss.pdf"),
        ):
            path = tree / "papers" / "smoke" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("new", "utf-8")

    monkeypatch.setattr(replay, "tree_at", tree_at)
    monkeypatch.setattr(replay, "execute", execute)
    return write_zip(tmp_path, {f"{RUN}/result.json": RESULT, f"{RUN}/02_train.ipynb": "{}"})


def test_an_import_that_was_interrupted_is_repeated_and_a_whole_one_is_not(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(study: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importing, "write_index_entry", killed)
        with pytest.raises(KeyboardInterrupt):
            importing._import(packed)
    record = Record("smoke").place
    (record / "MANIFEST.sha256").write_text("half", "utf-8")
    assert importing._import(packed) == "smoke"
    assert (record / "MANIFEST.sha256").read_text("utf-8") == "new"
    assert (Record("smoke").figures / "loss.pdf").is_file()
    assert records.read_index(record.parents[1])["smoke"] == archive.index_entry(Record("smoke"))
    assert [path.name for path in record.parent.iterdir() if path.is_dir()] == ["smoke"]
    with pytest.raises(UserError, match="already holds 'smoke', and nothing is replaced"):
        importing._import(packed)


BROKEN = "none/seed-0: result.json cannot be read, or is of another version; pack the study again"
BAD = ["[]", "[1]", "3", "null", "{}", "", "{", "[" * 10_000, "\udcff", RESULT[:-1] + ', "x": 1}']


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"notes.txt": "1"}, "it must hold the runs of one study, as runs/STUDY/, and holds none"),
        (
            {f"runs/{name}/none/seed-0/result.json": RESULT for name in ("smoke", "pilot")},
            "it must hold the runs of one study, as runs/STUDY/, and holds pilot, smoke",
        ),
        (
            {f"{place}/{RUN}/result.json": RESULT for place in ("old", "new")},
            "it must hold the runs of one study, as runs/STUDY/, and holds smoke, smoke",
        ),
        (
            {"runs/smok/none/seed-0/result.json": RESULT},
            "study: 'smok' is unknown; did you mean 'smoke'? in params/",
        ),
        ({f"{RUN}/result.json": RESULT}, "none/seed-0: no notebook shows its result"),
        *(({f"{RUN}/result.json": text, f"{RUN}/02_train.ipynb": "{}"}, BROKEN) for text in BAD),
        ({f"{RUN}/result.json/x": RESULT, f"{RUN}/02_train.ipynb": "{}"}, BROKEN),
    ],
)
def test_a_zip_that_is_no_studys_is_refused_at_once_in_one_line(
    files: dict[str, Any],
    fault: str,
    tmp_path: Path,
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def execute(*_: Any) -> None:
        raise AssertionError("something was executed")

    monkeypatch.setattr(replay, "execute", execute)
    files = {name: text.encode("utf-8", "surrogateescape") for name, text in files.items()}
    assert cli.main(["import", str(write_zip(tmp_path, files))]) == 1
    assert capsys.readouterr() == ("", f"error: smoke.zip: {fault}\n")
    assert not (tmp_path / "home").exists()


def test_what_is_no_file_is_named_with_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "smoke.zip", tmp_path):  # a folder: as a browser that unpacks leaves it
        assert cli.main(["import", str(path)]) == 1
        told = f"error: file: {path} is no file; give the zip that 00_kaggle leaves\n"
        assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("imported_before", [False, True])
def test_a_refused_study_of_ones_own_leaves_parameters_as_they_were(
    imported_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = Parameters(tmp_path, monkeypatch)
    for module in (importing, records):
        monkeypatch.setattr(module, "PARAMS", parameters.folder)
    monkeypatch.setattr(config, "PLANS", parameters.plans)
    parameters.study()
    if imported_before:  # which left copies that may be replaced
        earlier = yaml.safe_dump(TINY | {"name": "mine", "seeds": [5]})
        (parameters.folder / "mine.yaml").write_text(inputs.MARK + earlier, "utf-8")
        (parameters.plans / "mine.yaml").write_text(inputs.MARK + "title: earlier\n", "utf-8")
    before = {path: path.read_bytes() for path in parameters.folder.rglob("*.yaml")}
    text = yaml.safe_dump(TINY | {"name": "mine", "seeds": [0], "plan": "mine.yaml"})
    files = {
        "params/mine.yaml": f"{text}{inputs.PLAN_BELOW}{yaml.safe_dump(CONTENT)}",
        "runs/mine/baseline/seed-0/result.json": RESULT,
    }
    with pytest.raises(UserError, match="no notebook shows its result"):
        importing.import_study(write_zip(tmp_path, files))
    assert {path: path.read_bytes() for path in parameters.folder.rglob("*.yaml")} == before


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in the temporary tree, with nothing behind it."""
    taken: list[str] = []
    monkeypatch.setattr(importing, "stale", lambda *_: [])
    monkeypatch.setattr(importing, "execute", lambda notebook, study: taken.append(notebook))
    monkeypatch.setattr(importing, "archive", lambda study: taken.append("archive"))
    monkeypatch.setattr(importing, "verify", lambda study: [])
    return taken


def test_what_is_sound_is_analysed_archived_and_verified(steps: list[str]) -> None:
    assert importing.main("import", "smoke") == 0
    assert steps == ["01_data", "03_analysis", "04_figures", "archive"]


def test_runs_that_a_sweep_would_make_anew_are_not_analysed(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = paths.study_folder("smoke") / "none" / "seed-1" / "result.json"
    why = "model.n_layer is 1 and was 2: trained anew"
    monkeypatch.setattr(importing, "stale", lambda *_: [(path, why), (path, "another: x")])
    assert importing.main("import", "smoke") == 1
    said = "error: none/seed-1/result.json: model.n_layer is 1 and was 2\n"
    assert (capsys.readouterr().err, steps) == (said, [])


def test_a_fault_of_its_own_verification_refuses_an_import(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importing, "verify", lambda study: [f"{study} is faulty", "x"])
    assert importing.main("import", "smoke") == 1
    assert capsys.readouterr().err == "error: smoke is faulty\n"
    assert steps[-1] == "archive"


def test_a_fault_in_the_temporary_tree_leaves_the_record_untouched(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []

    def execute(*words: Any) -> None:
        calls.append(words)
        runs = words[0] / "runs" / "smoke"
        assert (runs / "none" / "seed-0" / "result.json").read_text("utf-8") == RESULT
        raise replay.ReplayError("smoke is faulty")

    monkeypatch.setattr(replay, "execute", execute)
    assert cli.main(["import", str(packed)]) == 1
    assert capsys.readouterr() == ("", "error: smoke.zip: smoke is faulty\n")
    module = (sys.executable, "-m", "lib.workflow.importing", "import", "smoke")
    assert [words[1:] for words in calls] == [module]
    assert not Record("smoke").place.exists()


def test_an_import_says_what_it_took_in(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", str(packed)]) == 0
    assert capsys.readouterr().out.startswith("smoke: imported, and its ")


def test_a_recorded_study_is_analysed_again_from_its_runs(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "stale", lambda *_: pytest.fail("its runs stay as they are"))
    assert importing.main("analyse", "smoke") == 0
    assert steps == ["03_analysis", "04_figures", "archive"]


def test_of_an_analysis_that_fails_the_notebook_is_kept_and_the_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record("example")
    before = {path: path.read_bytes() for path in record.files.values()}
    monkeypatch.setattr(importing, "RUNS", tmp_path / "runs")
    execute = replay.execute

    def fail(tree: Path, *command: str) -> str:
        if command[0] != sys.executable:
            return execute(tree, *command)
        assert command[-2:] == ("analyse", "example")
        folder = tree / "runs" / "example"
        assert (folder / "constant/seed-0/result.json").is_file()
        assert (folder / "constant/seed-0/trace.parquet").is_file()
        stamp = {"metadata": {"study": {"status": "failed"}}}
        (folder / "03_analysis.ipynb").write_text(json.dumps(stamp), "utf-8")
        raise replay.ReplayError("KeyError: a")

    monkeypatch.setattr(replay, "execute", fail)
    assert cli.main(["analyse", "example"]) == 1
    assert capsys.readouterr().err.startswith("error: KeyError: a (kept: ")
    assert (tmp_path / "runs/example.failed.ipynb").is_file()
    assert {path: path.read_bytes() for path in before} == before


def test_what_has_no_record_or_is_of_the_first_is_not_analysed_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["analyse", "example", "final-embedded"]) == 2
    out, error = capsys.readouterr()
    remedy = "run it first: ./run_all.sh params/final-embedded.yaml"
    assert (out, error) == ("", f"error: study: 'final-embedded' has no record yet; {remedy}\n")
    assert cli.main(["analyse", "horizon"]) == 1
    assert "study: 'horizon' is unknown" in capsys.readouterr().err
    assert cli.main(["analyse", "confirmatory"]) == 1
    assert "'confirmatory' is of the first record" in capsys.readouterr().err
    assert cli.main(["analyse", "exampel"]) == 2
    assert "did you mean 'example'? in papers/" in capsys.readouterr().err
