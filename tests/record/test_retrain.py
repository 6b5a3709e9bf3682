"""How runs are named, trained again, and what is said of each."""

import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from safetensors.torch import save_file

from lib.record import retrain
from lib.record.replay import ReplayError, execute
from lib.record.retrain import (
    Judgement,
    kept_weights,
    other_machine,
    other_outputs,
    other_parts,
    other_rounding,
)
from lib.run.machine import random_stream
from lib.run.model import GPT, count_parameters, weights_digest
from lib.study.io import PAPERS, read_json
from lib.study.schema import ModelConfig
from lib.study.yaml import UserError
from lib.workflow import cli, verify


def notebook(path: Path, *printed: str, picture: str = "AAAA") -> Path:
    """A 02_train whose cells print these, the last beside a picture."""
    cells = []
    for text in printed:
        outputs = [nbformat.v4.new_output("stream", text=text)]
        cells.append(nbformat.v4.new_code_cell("print(text)", outputs=outputs))
    cells[0].source = "trained = train(config)"
    data = {"image/png": picture}
    cells[-1].outputs.append(nbformat.v4.new_output("display_data", data=data))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_all_that_a_notebook_shows_but_times_is_compared(tmp_path: Path) -> None:
    stated = notebook(tmp_path / "a.ipynb", "3 s", "a sample", "a table")
    slower = notebook(tmp_path / "b.ipynb", "4 s", "a sample", "a table")
    assert list(other_outputs(*map(read_json, (stated, slower)))) == []
    forged = notebook(tmp_path / "c.ipynb", "3 s", "another", "a table", picture="BBBB")
    said = "code cell {} of 02_train.ipynb shows something else"
    assert list(other_outputs(*map(read_json, (stated, forged)))) == [
        said.format(2),
        said.format(3),
    ]


def test_weights_are_those_of_the_hash_or_none(tmp_path: Path) -> None:
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=8), 65, random_stream(0, "weights"))
    digest = weights_digest(model, all_weights=True)
    assert kept_weights(tmp_path, digest) is None
    for step, weights in enumerate((model.state_dict(), {"other": torch.ones(3)})):
        folder = tmp_path / "checkpoints" / "identity" / f"step-{step}"
        folder.mkdir(parents=True)
        save_file(weights, folder / "weights.safetensors")
    kept = kept_weights(tmp_path, digest)
    assert kept is not None
    assert len(kept) == count_parameters(model)
    assert kept_weights(tmp_path, "0" * 64) is None


@pytest.mark.parametrize(
    ("share", "now", "other"), [(16, 4, 2), (16, 1, 16), (6, 3, 1), (9, 9, 1), (1, 1, None)]
)
def test_batches_are_summed_in_parts_of_another_size(
    share: int, now: int, other: int | None
) -> None:
    assert other_parts(share, now) == other


def test_one_sequence_is_summed_by_other_instructions() -> None:
    machine = {"device": "cpu", "threads": 1, "micro_batch_size": 1}
    assert other_rounding(2, machine) == ({"micro_batch_size": 2}, "")
    assert other_rounding(1, machine) == ({"threads": 2}, "default")
    assert other_rounding(1, machine | {"device": "cuda"}) is None


def test_a_machine_is_another_where_that_of_any_stretch_is() -> None:
    machine = {"device": "cpu", "threads": 1}
    began = {"machine": machine, "packages": {"torch": "2"}}
    run = {"provenance": {"trained": began | {"parameters": {"training": {"precision": "fp32"}}}}}
    moved = began | {"machine": machine | {"threads": 2}}
    for stretches, others in (([], []), ([began], []), ([began, moved], ["threads"])):
        assert other_machine(run | {"stretches": stretches}, run) == others
    upgraded = began | {"packages": {"torch": "3"}}
    assert other_machine(run | {"stretches": [upgraded, upgraded]}, run) == ["packages"]


NAMED = {
    "final/nome/0": "run: 'final/nome/0' is unknown; did you mean 'final/none/0'?",
    "finl/none/0": "study: 'finl' is unknown; did you mean 'final'? in papers/",
    "horizon/none,fraction=1/0": "run: the record keeps no run of 'horizon'",
    "final": "--retrain: 'final' is no number of runs, and no STUDY/ARM/SEED",
    "0": "--retrain: '0' is no number of runs, and no STUDY/ARM/SEED",
}


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_trained_is_named_before_anything_is_verified(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "check", lambda *_: pytest.fail("it verified first"))
    assert cli.main(["verify", "--retrain", name]) == 2
    assert capsys.readouterr().err == f"error: {NAMED[name]}\n"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("record/index.json", "[1]", "index.json must hold an entry per study; restore it"),
        ("record/index.json", "null", "index.json must hold an entry per study; restore it"),
        ("record/example/raw.zip", "", "example: its runs cannot be read; "),
        ("record/example/parameters.yaml", "a: 1", "example: its runs cannot be read; "),
        ("results/example.json", "null", "example: its runs cannot be read; "),
    ],
)
def test_a_damaged_record_is_said_in_a_line(
    file: str, content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = tmp_path / "papers"
    shutil.copytree(PAPERS / "example", papers / "example")
    monkeypatch.setattr("lib.record.record.PAPERS", papers)
    monkeypatch.setattr("lib.record.record.PAPER", papers / "example")
    (papers / "example" / file).write_text(content, "utf-8")
    with pytest.raises(UserError, match=re.escape(said)):
        verify.verify_record([], False, ["example/constant/0"])


def test_so_is_an_unknown_study(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--retrain", "1", "pilott"], ["pilott"]):
        assert cli.main(["verify", *words]) == 2
        out, err = capsys.readouterr()
        assert err == "error: study: 'pilott' is unknown; did you mean 'pilot'? in papers/\n"
        assert not out


@pytest.mark.parametrize(
    ("found", "status", "last"),
    [
        (Judgement([], bits=True), 0, "1 equal to the bit"),
        (Judgement(["device_name"]), 0, "1 within tolerance"),
        (Judgement(["device_name"], unjudged=["ece"]), 4, "1 cannot be judged"),
        (Judgement(["device_name"], unjudged=["ece"], differing=["loss"]), 1, "1 differs"),
        (Judgement([], bits=True, differing=["loss"]), 1, "1 differs"),
        (None, 1, "1 not trained again"),
    ],
)
def test_status_and_last_line_tell_how_it_was_compared(
    found: Judgement | None,
    status: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(run: dict[str, Any]) -> Judgement:
        if found is None:
            raise ReplayError("too old")
        return found

    monkeypatch.setattr(retrain, "retrain", train)
    for verified in (0, 1):
        monkeypatch.setattr(verify, "check", lambda *_, status=verified: status)
        assert cli.main(["verify", "--retrain", "final/none/0"]) == (status if not verified else 1)
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == f"Trained again: {last}"
        if found:
            assert f"final/none/0: trained again, {found.words}\n" in said.out
            for fault in found.differing:
                assert f"error: final/none/0, trained again: {fault}\n" in said.err


@pytest.mark.parametrize(
    ("faulty", "found", "message", "colour"),
    [
        (False, [[]] * 2, "2 of 2 runs equal to the bit", "brightgreen"),
        (False, [["device_name"]], "1 of 1 run within tolerance", "brightgreen"),
        (True, [[]], "verify finds faults, 1 of 1 run equal to the bit", "red"),
        (False, [[], None], "1 of 2 runs equal to the bit, 1 of 2 runs not trained again", "red"),
    ],
)
def test_a_badge_says_how_many_runs_were_reproduced_when_and_by_which_commit(
    faulty: bool,
    found: list[list[str] | None],
    message: str,
    colour: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(found)

    def train(_: dict[str, Any]) -> Judgement:
        if (machine := next(left)) is None:
            raise ReplayError("too old")
        return Judgement(machine, bits=not machine)

    monkeypatch.setattr(retrain, "retrain", train)
    monkeypatch.setattr(verify, "check", lambda *_: faulty)
    monkeypatch.setattr(verify, "git", lambda *_: "0123456")
    badge = tmp_path / "badge.json"
    names = [f"final/none/{seed}" for seed in range(len(found))]
    status = cli.main(["verify", "--retrain", *names, "--badge", str(badge)])
    assert status == (colour == "red")
    when = f"{datetime.now(UTC):%Y-%m-%d} 0123456"
    assert read_json(badge) == {
        "schemaVersion": 1,  # as https://shields.io/badges/endpoint-badge asks
        "label": "reproduced",
        "message": f"{message}, {when}",
        "color": colour,
    }


def test_a_badge_of_no_run_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "check", lambda *_: False)
    badge = tmp_path / "badge.json"
    assert cli.main(["verify", "horizon", "--retrain", "2", "--badge", str(badge)]) == 0
    assert read_json(badge)["message"].startswith("no run, ")
    assert read_json(badge)["color"] == "lightgrey"


def test_a_badge_without_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "--badge", str(tmp_path / "badge.json")]) == 2
    assert capsys.readouterr().err == (
        "error: --badge: it says how runs that are trained again compare; add --retrain\n"
    )


def test_a_study_may_stand_after_the_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[tuple[list[str], bool, bool]] = []
    monkeypatch.setattr(verify, "check", lambda *of: bool(verified.append(of)))
    assert (
        cli.main(["verify", "--redraw", "--retrain", "2", "horizon"]) == 0
    )  # of which no run is kept
    assert verified == [(["horizon"], True, True)]


def test_what_failed_in_a_temporary_tree_names_no_file_there(tmp_path: Path) -> None:
    script = "import sys; sys.exit('error: KeyError: a; see runs/x/03_analysis.ipynb')"
    with pytest.raises(ReplayError, match=r"^KeyError: a$"):
        execute(tmp_path, sys.executable, "-c", script)


@pytest.mark.parametrize(
    ("words", "studies", "again"),
    [
        (["--retrain", "final/none/0", "final/none/1"], ["final"], False),
        (["--retrain", "final/none/0", "pilot"], ["pilot"], True),
        (["--retrain", "1", "final/none/0"], [], True),
    ],
)
def test_of_runs_that_are_named_only_the_records_are_looked_at(
    words: list[str], studies: list[str], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[tuple[Any, ...]] = []
    monkeypatch.setattr(verify, "check", lambda *of: bool(verified.append(of)))
    monkeypatch.setattr(retrain, "retrain", lambda _: Judgement([], bits=True))
    assert cli.main(["verify", *words]) == 0
    assert verified == [(studies, False, False, *([] if again else [False]))]


def test_it_says_that_their_analysis_was_not_executed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, bool]] = []
    monkeypatch.setattr(verify, "verify", lambda _, **how: asked.append(how) or [])
    monkeypatch.setattr(verify, "strays", lambda _: pytest.fail("it looked at the whole record"))
    monkeypatch.setattr(retrain, "retrain", lambda _: Judgement([], bits=True))
    assert cli.main(["verify", "--fresh", "--retrain", "final/none/0"]) == 0
    assert [(each["again"], each["redraw"]) for each in asked] == [(False, False)]
    said = capsys.readouterr().out
    assert "files verified (its analysis was not executed again)" in said
    assert said.splitlines()[-1] == "Trained again: 1 equal to the bit"


@pytest.mark.parametrize(
    "odd", [{"stretches": [{}]}, {"tables": {"tasks": "none"}}, {"provenance": {"trained": 3}}]
)
def test_a_result_that_no_run_leaves_is_not_trained_again(odd: dict[str, Any]) -> None:
    run = retrain.recorded_runs(["example"])["example/constant/0"]
    said = "its result is none that a run leaves; ./run_all.sh verify example says why"
    with pytest.raises(ReplayError, match=re.escape(said)):
        retrain.retrain(run | odd)
