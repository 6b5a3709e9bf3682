"""A person sees a bar; a log sees one line per evaluation."""

import pytest

from lib.run.progress import HEADLESS, training_progress

STEPS = [(1, ""), (2, "step 2: dev loss 3.9"), (3, ""), (4, "step 4: dev loss 3.7")]


def test_headless_prints_the_evaluations_and_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HEADLESS, "1")
    with training_progress(4) as report:
        for step, line in STEPS:
            report(step, line)
    assert capsys.readouterr() == ("step 2: dev loss 3.9\nstep 4: dev loss 3.7\n", "")


@pytest.mark.parametrize("steps", [STEPS, STEPS[:2]], ids=["to the total", "diverged"])
def test_a_person_sees_one_bar_that_closes_wherever_training_ends(
    steps: list[tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(HEADLESS, raising=False)
    with training_progress(4) as report:
        for step, line in steps:
            report(step, line)
        assert "\n" not in capsys.readouterr().err
    printed, bar = capsys.readouterr()
    assert printed == ""
    assert bar.endswith("\n")
    assert f"{len(steps)}/4" in bar
    assert steps[-1][1].partition(": ")[2] in bar


def test_a_resumed_run_counts_from_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(HEADLESS, raising=False)
    with training_progress(200) as report:
        report(150, "step 150: dev loss 3.1")
        assert "150/200" in capsys.readouterr().err
