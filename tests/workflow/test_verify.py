"""What `./run_all.sh verify` says of a study, and with which exit status."""

from types import SimpleNamespace

import pytest

from lib.workflow import verify as module
from lib.workflow.verify import check

SAID = "its plan also names 'second', of which there is no record under it"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What is missing beside each study, of a record without a fault."""
    beside: dict[str, list[str]] = {}
    monkeypatch.setattr(module, "missing_beside", lambda study: beside.get(study, []))
    monkeypatch.setattr(module, "verify", lambda study, **_: [])
    monkeypatch.setattr(module, "Record", lambda study: SimpleNamespace(files={"a": 1, "b": 2}))
    monkeypatch.setattr(module, "papers", lambda: [])
    return beside


def test_a_verified_study_is_named_with_what_is_missing_beside_it(
    missing: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A second confirmatory study that nobody recorded is no fault of the first, and is said."""
    missing |= {"trial": [SAID, "another"]}
    assert not check(["trial", "other"], redraw=False, fresh=True)
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"trial: 2 files verified; {SAID}; another",
        "other: 2 files verified",
    ]
    assert said.err == ""


def test_of_a_faulty_study_the_faults_are_said_alone(
    missing: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing |= {"trial": [SAID]}
    faults = {"trial": ["a has changed", "b is missing"]}
    monkeypatch.setattr(module, "verify", lambda study, **_: faults.get(study, []))
    assert check(["trial", "other"], redraw=False, fresh=True)
    said = capsys.readouterr()
    assert said.out == "other: 2 files verified\n"
    assert said.err == "error: trial: a has changed\nerror: trial: b is missing\n"
