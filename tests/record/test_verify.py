"""`verify` accepts an honest record and names any change in it, even if all other files were made
to fit."""

import functools
import json
import operator
import os
import shutil

import pandas as pd
import pytest
import yaml

from lib.config.files import read_json, sha256, write_json
from lib.record import archive
from lib.record.archive import MANIFEST, RAW, Record, pack
from lib.record.verify import Report, differences, verify, verify_record
from lib.results import attested, write_raw
from lib.sweep.estimate import begin_again
from tests.record.conftest import run_tiny

pytestmark = pytest.mark.slow


PRINTED = ("cells", 0, "outputs", 0, "data", "application/json")
"""Path in a run's notebook to the result that it prints."""


class Forger:
    """A copy of the recorded study in a paper of its own, to change."""

    def __init__(self, paper):
        self.record, self.raw = Record("tiny", paper), paper / "raw"
        shutil.copytree(self.record.raw, self.raw)

    def runs(self):
        return sorted(self.raw.glob("*/seed-*/result.json"))

    def edit(self, path, change, *place):
        """Change a value in a JSON or YAML file."""
        is_json = path.suffix != ".yaml"
        content = read_json(path) if is_json else yaml.safe_load(path.read_text("utf-8"))
        *outer, last = place
        inner = functools.reduce(operator.getitem, outer, content)
        inner[last] = change(inner[last])
        if is_json:
            write_json(path, content, indent=1 if path.name == "result.json" else None)
        else:
            path.write_text(yaml.safe_dump(content), "utf-8")

    def edit_result(self, path, change, *place):
        """Change a result, and the copy that its notebook prints."""
        self.edit(path, change, *place)
        run = read_json(path)
        notebook = self.record.run_notebook(run["arm"], run["seed"])
        self.edit(notebook, lambda _: attested(run), *PRINTED)

    def finish(self, sums=True):
        """Pack the raw tables, and write the manifest as the archive does."""
        files = [path for path in self.raw.rglob("*") if path.is_file()]
        pack(files, self.raw, self.record.folder / RAW)
        shutil.rmtree(self.raw)
        if sums:
            named = self.record.files.items()
            lines = (f"{sha256(path)}  {name}\n" for name, path in named)
            (self.record.folder / MANIFEST).write_text("".join(lines), "utf-8")


def nothing(forger):
    """Change nothing: an honest record."""


def raw(forger):
    """Lower a loss in the raw tables, and adapt the hashes in result, notebook and manifest."""
    path = forger.runs()[0]
    windows = pd.read_parquet(path.parent / "windows.parquet")
    file = write_raw(path.parent, "windows", windows.assign(nll=windows["nll"] * 0.9))
    forger.edit_result(path, lambda _: sha256(file), "files", file.name)


def raw_alone(forger):
    file = forger.runs()[0].parent / "trace.parquet"
    pd.read_parquet(file).to_parquet(file)


def measure(forger):
    forger.edit_result(forger.runs()[0], lambda _: 1.5, "measures", "loss")


def printed(forger):
    run = read_json(forger.runs()[0])
    notebook = forger.record.run_notebook(run["arm"], run["seed"])
    forger.edit(notebook, lambda _: 1.5, *PRINTED, "measures", "loss")


def contrast(forger):
    forger.edit(forger.record.verdict_file, lambda x: x + 1e-6, "contrasts", 0, "mean_delta")


def answer(forger):
    forger.edit(forger.record.verdict_file, lambda _: "refuted", "answers", "cost", "answer")


def summary(forger):
    place = ("summary", "none", "loss", "mean")
    forger.edit(forger.record.results_file, lambda x: x - 0.1, *place)


def plan(forger):
    place = ("smallest_effect_of_interest", "loss")
    forger.edit(forger.record.folder / "plan.yaml", lambda _: 0.3, *place)


def parameters(forger):
    place = ("training", "learning_rate")
    forger.edit(forger.record.folder / "parameters.yaml", lambda _: 2e-3, *place)


def seed(forger):
    """Give the runs of one seed the batches of another, in both arms."""
    of_seed = {run["seed"]: run for run in map(read_json, forger.runs())}
    first, second, *_ = of_seed
    for path in forger.runs():
        if path.parent.name == f"seed-{second}":
            forger.edit_result(path, lambda _: of_seed[first]["batches"], "batches")


def figure(forger):
    (forger.record.figures / "loss.png").write_bytes(b"another")


def vanished(forger):
    shutil.rmtree(forger.runs()[-1].parent)


def manifest(forger):
    path = forger.record.folder / MANIFEST
    path.write_text(path.read_text("utf-8").replace("plan.yaml", "plans.yaml"), "utf-8")


CASES = {
    raw: ["layernorm seed ", "loss is ", "its raw tables give"],
    raw_alone: ["layernorm seed ", "trace.parquet is not the file"],
    measure: ["layernorm seed ", "loss is 1.5, but its raw tables give"],
    contrast: ["tiny.verdict.json: contrasts[layernorm none loss].mean_delta is ", "its runs give"],
    answer: ["tiny.verdict.json: answers.cost.answer is refuted, but its runs give supported"],
    summary: ["tiny.json: none.loss.mean is ", "its runs give"],
    seed: ["seed ", "batches are ", "its seed gives "],
    plan: ["plan: smallest_effect_of_interest.loss is 0.3, params/plans/plan.yaml says 0.03"],
    parameters: ["parameters: training.learning_rate is 0.002, params/tiny.yaml says 0.001"],
    figure: ["../../figures/tiny/loss.png has the SHA-256 ", f"{MANIFEST} says "],
    printed: ["layernorm seed ", "its notebook prints measures.loss 1.5, result.json says "],
    vanished: ["none seed ", "its result.json is missing in raw.tar.xz"],
    manifest: ["plans.yaml is missing"],
}
UNSUMMED = (figure, manifest)
"""Cases in which the manifest is not adapted."""


@pytest.fixture(scope="session")
def reports(tiny):
    """The reports for all cases; each is a paper next to the honest one."""
    for case in (nothing, *CASES):
        paper = tiny / "papers" / case.__name__
        shutil.copytree(tiny / "papers" / "paper", paper)
        forger = Forger(paper)
        case(forger)
        forger.finish(sums=case not in UNSUMMED)
    done = run_tiny(tiny, "verify")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("paper", ["paper", "nothing"])
def test_an_honest_record_is_recomputed_as_it_was_published(reports, paper):
    report = reports[paper]
    assert report["faults"] == []
    number = report["recomputed"]
    assert (number["runs"], number["initial weights and batches"], number["answers"]) == (6, 6, 1)
    assert number["measures"] == 6 * 19
    assert number["files"] == 6 + 3 + 1 + 4 + 2 + 1  # 02, shared, 04's, others, results, figure
    assert {*report["unchecked"]} == {
        *("ece_null", "temperature", "nll_test_tempered", "reason", "sentence"),
        "standing",  # no commit holds its plan
    }


@pytest.mark.parametrize("case", CASES)
def test_what_was_changed_is_named(reports, case):
    line, *_ = reports[case.__name__]["faults"]
    assert all(part in line for part in CASES[case]), line
    assert "\n" not in line


def test_what_is_not_checked_is_said_once_for_all_studies(capsys):
    assert verify(["modern-gpu", "confirmatory-2"], nowhere) == 0
    *studies, line = capsys.readouterr().out.splitlines()
    assert [study.partition(":")[0] for study in studies] == ["modern-gpu", "confirmatory-2"]
    assert line.startswith("not checked: ")
    assert "46 initial weights and batches (text not on this machine)" in line
    assert "46 temperature" in line


def test_arms_that_are_commits_are_verified_but_for_how_they_begin(capsys):
    assert verify(["self-vote-axes"], nowhere) == 0
    assert "24 initial weights and batches (of another commit)" in capsys.readouterr().out


def test_numbers_agree_to_a_billionth():
    assert not [*differences({"a": [1.0, None]}, {"a": [1.0 + 1e-10, None]})]
    assert [*differences({"a": [1.0]}, {"a": [1.0 + 1e-8]})] == [("a", "1.0", "1.00000001")]
    assert [*differences({"a": 1}, {"a": 1, "b": 2})] == [("b", "None", "2")]
    assert [*differences([1, 2], [1])] == [("", "[1, 2]", "[1]")]
    report = Report("tiny")
    assert not [*differences({"t": [{"old": 1}], "reason": "so"}, {"t": [{"new": 2}]}, report)]
    assert dict(report.unchecked) == {"old": 1, "reason": 1}


def test_what_git_cannot_tell_is_one_line_and_no_fault(monkeypatch, capsys):
    monkeypatch.setattr("lib.config.claim.is_checkout", lambda: False)
    assert verify(["modern", "modern-gpu", "trained"], begin_again) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "UNVERIFIED" in line)
    said = "UNVERIFIED: were plans committed before runs? (modern, trained): git tells nothing"
    assert line.startswith(said)


def test_what_git_could_not_tell_when_a_study_was_archived_is_no_fault_later(monkeypatch):
    untold = dict(Record("trained").verdict) | {"standing": "UNVERIFIED"}
    untold["exploratory_because"] = ["no clone"]
    monkeypatch.setattr(Record, "verdict", untold)
    report = verify_record(Record("trained"), lambda *_: None)
    assert (report.faults, report.unchecked["standing"]) == ([], 1)


def test_every_fault_is_printed(capsys):
    assert verify(["nowhere", "neither"], begin_again) == 1
    said = capsys.readouterr().out
    assert ["error: nowhere: " in said, "error: neither: " in said] == [True, True]


# ---- if this machine refuses something, that is not a fault of a record


def refuse(error):
    def call(*_, **__):
        raise error

    return call


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("tempfile.mkdtemp", OSError(28, ""), "No space left on device; free some space"),
        ("tempfile.mkdtemp", FileNotFoundError(2, "No usable folder"), "name a folder"),
        ("tarfile.TarFile.extractall", OSError(27, "", "x"), "File too large (x); free some space"),
        ("tarfile.TarFile.extractall", OSError(30, "", "x"), "Read-only file system (x); free"),
        ("lib.record.verify.sha256", OSError(13, "", "x"), "Permission denied (x); give yourself"),
        ("lib.record.verify.sha256", OSError(24, "", "x"), "Too many open files (x); allow more"),
        ("lib.record.verify.sha256", OSError(5, "", "x"), "Input/output error (x); try again"),
        ("lib.record.verify.measures_of", MemoryError(), "Cannot allocate memory; end other"),
        (
            "lib.record.verify.analyse",
            RuntimeError("can't allocate memory: 8"),
            "end other programs",
        ),
        ("subprocess.run", OSError(11, ""), "Resource temporarily unavailable; end other"),
    ],
)
def test_what_this_machine_refuses_is_told_with_a_status_of_its_own(
    place, error, said, monkeypatch, capsys
):
    monkeypatch.setattr(f"{verify.__module__}.ProcessPoolExecutor", refuse(OSError(13, "no shm")))
    monkeypatch.setattr(place, refuse(error))
    study = "trained" if place == "subprocess.run" else "modern-gpu"
    archive._unpacked.cache_clear()
    assert verify([study], nowhere) == 5
    text = capsys.readouterr().out
    assert f"{study}: could not be verified here: " in text
    assert said in text
    assert "FAULTY" not in text
    assert "as published" not in text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "", "x.parquet"), "it cannot be read: FileNotFoundError"),
        (IsADirectoryError(21, "", "x.parquet"), "it cannot be read: IsADirectoryError"),
        (OSError("Unexpected end of stream"), "it cannot be read: OSError"),  # pyarrow's message
    ],
)
def test_a_file_that_is_missing_or_broken_is_a_fault(error, said, monkeypatch):
    monkeypatch.setattr("lib.record.verify.read_raw", refuse(error))
    report = verify_record(Record("modern-gpu"), nowhere)
    assert (report.faults[0].startswith(said), report.refused, report.status) == (True, "", 1)


def nowhere(*_):
    return None


def killed(config, seed, steps):
    """Kill this process at a run of modern-gpu."""
    if (seed, steps) in {(run["seed"], run["steps"]) for run in Record("modern-gpu").runs}:
        os.kill(os.getpid(), 9)


def test_no_outcome_is_lost_with_a_process_that_is_killed_or_without_a_pool(monkeypatch, capsys):
    assert verify(["modern-gpu", "texts"], killed) == 5
    one, other = capsys.readouterr().out.split("texts: ", 1)
    assert (
        one
        == "modern-gpu: could not be verified here: the process was killed; end other programs\n"
    )
    assert other.startswith("as published")
    monkeypatch.setattr(f"{verify.__module__}.ProcessPoolExecutor", refuse(OSError(13, "no shm")))
    assert verify(["modern-gpu", "nowhere"], nowhere) == 1
    text = capsys.readouterr().out
    assert "modern-gpu: as published" in text
    assert "nowhere: FAULTY" in text


def test_a_folder_that_cannot_be_listed_is_no_missing_file(monkeypatch):
    record, files = Record("trained"), Record.files.fget
    monkeypatch.setattr(Record, "files", property(lambda of: dict([*files(of).items()][3:])))
    report = verify_record(record, nowhere)
    assert (report.faults, report.refused[:17]) == ([], "Permission denied")
