"""What earlier sessions left is taken up, and no zip reaches out of its folder."""

import stat
import zipfile
from pathlib import Path

import pytest

from lib.study import inputs
from lib.study.inputs import ZipError, resume_from_inputs, unpack


def packed(folder: Path, **members: str) -> Path:
    """A zip of files, `__` in a name standing for `/`."""
    with zipfile.ZipFile(folder / "s.zip", "w") as content:
        for name, text in members.items():
            content.writestr(name.replace("__", "/"), text)
    return folder / "s.zip"


def test_a_sound_zip_is_unpacked(tmp_path: Path) -> None:
    unpack(packed(tmp_path, runs__s__a="1"), tmp_path / "out")
    assert (tmp_path / "out" / "runs" / "s" / "a").read_text("utf-8") == "1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../up.txt", "'../up.txt' leads out of it"),
        ("a/../../up.txt", "leads out of it"),
        ("/etc/up.txt", "leads out of it"),
        ("a\\..\\up.txt", "leads out of it"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as content:
        content.writestr("good.txt", "1")
        content.writestr(name, "2")
    with pytest.raises(ZipError) as error:
        unpack(tmp_path / "s.zip", tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_links_doubles_large_and_broken_zips_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "l.zip", "w") as content:
        content.writestr(link, "/etc/passwd")
    with pytest.raises(ZipError, match="'link' is a link"):
        unpack(tmp_path / "l.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as content:
        content.writestr("a", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            content.writestr("a", "2")
    with pytest.raises(ZipError, match="two files of one name"):
        unpack(tmp_path / "d.zip", tmp_path / "out")
    file = packed(tmp_path, a="1" * 100)
    (tmp_path / "broken.zip").write_bytes(file.read_bytes()[:40])
    with pytest.raises(ZipError, match="cannot be read as a zip"):
        unpack(tmp_path / "broken.zip", tmp_path / "out")
    damaged = bytearray(file.read_bytes())
    damaged[40] ^= 1
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(ZipError, match="cannot be read as a zip"):
        unpack(tmp_path / "damaged.zip", tmp_path / "out")
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "packed.zip", "w", method) as content:
            content.writestr("a", "".join(map(str, range(999))))
        damaged = bytearray((tmp_path / "packed.zip").read_bytes())
        damaged[40:240] = b"\xff" * 200  # no stream that can be unpacked
        (tmp_path / "packed.zip").write_bytes(damaged)
        with pytest.raises(ZipError, match="cannot be read as a zip"):
            unpack(tmp_path / "packed.zip", tmp_path / "out")
    monkeypatch.setattr(inputs, "MAX_BYTES", 99)
    with pytest.raises(ZipError, match="more than 100,000 files or 99 bytes"):
        unpack(file, tmp_path / "out")


@pytest.fixture
def kaggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "working").mkdir()
    monkeypatch.setattr(inputs, "kaggle_folder", lambda: tmp_path)
    monkeypatch.setattr(inputs, "study_folder", lambda name: tmp_path / "working" / "runs" / name)
    monkeypatch.delenv("STUDY_HEADLESS", raising=False)
    return tmp_path


def write_run(top: Path, seed: int, *files: str) -> None:
    for name in ("provenance.json", *files):
        path = top / "runs" / "s" / "none" / f"seed-{seed}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(top.name, "utf-8")


def test_of_a_run_the_copy_that_got_furthest_is_taken_and_can_be_written(kaggle: Path) -> None:
    one, two = kaggle / "input" / "one", kaggle / "input" / "datasets" / "me" / "two"
    write_run(one, 0, "result.json")
    write_run(two, 0, "checkpoints/x/step-00000300/state.pt")
    write_run(one, 1, "checkpoints/x/step-00000100/state.pt")
    write_run(two, 1, "checkpoints/x/step-00000200/state.pt", "a.lock")
    (two / "runs/s/01_data.json").write_text("{}", "utf-8")
    (two / "runs/s/archive.json").write_text("{}", "utf-8")
    (two / "__notebook__.ipynb").write_text("{}", "utf-8")
    for path in (kaggle / "input").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert resume_from_inputs("s") == [
        "2 runs taken up from datasets/me/two/runs/s",
        "1 runs taken up from one/runs/s",
    ]
    working = kaggle / "working" / "runs" / "s"
    runs = [working / "none" / f"seed-{seed}" for seed in (0, 1)]
    assert [(run / "provenance.json").read_text("utf-8") for run in runs] == ["one", "two"]
    assert (runs[1] / "checkpoints/x/step-00000200/state.pt").is_file()
    assert not (runs[1] / "a.lock").exists()
    assert [path.name for path in sorted(working.glob("*.json"))] == ["01_data.json"]
    assert len(list((working / "by-hand").glob("*.ipynb"))) == 1
    (runs[0] / "provenance.json").write_text("changed", "utf-8")
    assert resume_from_inputs("s") == []
    for path in (kaggle / "input").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_checkpoint_that_was_set_aside_is_no_progress(kaggle: Path) -> None:
    there = kaggle / "input" / "one"
    write_run(kaggle / "working", 0, "checkpoints/x/step-00000290/state.pt")
    for step in ("step-00000100", "step-00000300-damaged-2"):
        write_run(there, 0, f"checkpoints/x/{step}/state.pt")
    assert resume_from_inputs("s") == []
    assert (kaggle / "working/runs/s/none/seed-0/checkpoints/x/step-00000290").is_dir()


def test_of_two_that_got_equally_far_the_newer_is_taken(kaggle: Path) -> None:
    for number, name in enumerate(("a", "c", "b")):
        write_run(kaggle / "input" / name, 0, "result.json")
        account = kaggle / "input" / name / "runs/s/none/seed-0/provenance.json"
        account.write_text(f'{{"started": "2026-01-0{number + 1} 00:00:00 UTC"}}', "utf-8")
    resume_from_inputs("s")
    taken = kaggle / "working/runs/s/none/seed-0/result.json"
    assert taken.read_text("utf-8") == "b"


def test_a_zip_that_is_broken_is_named(kaggle: Path) -> None:
    (kaggle / "input").mkdir()
    (kaggle / "input" / "s.zip").write_bytes(b"no zip")
    with pytest.raises(
        ZipError, match=r"^s\.zip: it cannot be read as a zip .*; attach a sound one"
    ):
        resume_from_inputs("s")


def test_a_zip_is_taken_up_where_no_folder_is(kaggle: Path) -> None:
    (kaggle / "input" / "old").mkdir(parents=True)
    packed(kaggle / "input" / "old", **{"runs__s__none__seed-0__provenance.json": "{}"})
    assert resume_from_inputs("s") == ["1 runs taken up from s.zip"]
    assert (kaggle / "working/runs/s/none/seed-0/provenance.json").is_file()


def test_elsewhere_and_in_a_sweep_nothing_is_taken_up(
    kaggle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(kaggle / "input" / "one", 0, "result.json")
    monkeypatch.setenv("STUDY_HEADLESS", "1")
    assert resume_from_inputs("s") == []
    monkeypatch.delenv("STUDY_HEADLESS")
    monkeypatch.setattr(inputs, "kaggle_folder", lambda: None)
    assert resume_from_inputs("s") == []
    assert not (kaggle / "working" / "runs").exists()
