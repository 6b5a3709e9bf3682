"""The file in which a run in training writes its steps, as those who watch read it."""

from pathlib import Path

from lib.study.live import live_file, read_live


def test_a_run_that_has_written_nothing_has_no_steps(tmp_path: Path) -> None:
    assert read_live(tmp_path).empty
    live_file(tmp_path).write_text("", "utf-8")
    assert read_live(tmp_path).empty


def test_what_a_killed_run_did_after_its_checkpoint_is_left_out(tmp_path: Path) -> None:
    """Killed at step 7, taken up at 4, killed at 6, taken up at 5; the last line is not whole."""
    lines = [
        f"{step},{execution}.5,nan,{64 * step},0.1"
        for execution, steps in enumerate([range(1, 8), range(4, 7), range(5, 7)], start=1)
        for step in steps
    ]
    live_file(tmp_path).write_text("\n".join([*lines, "7,3.5,na"]), "utf-8")
    rows = read_live(tmp_path)
    assert rows["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows["loss"].tolist() == [1.5, 1.5, 1.5, 2.5, 3.5, 3.5]
    assert rows["grad_norm"].isna().all()
