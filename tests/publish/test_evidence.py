"""Whether a record says what its files, notebooks and code say: each check on a copy of a recorded
study that passes them all, after one change."""

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.publish import archive, evidence, raw_zip, replay
from lib.study.paths import PAPERS, ROOT
from lib.study.record import read_json, status_of, write_json

STUDY = "example"


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copied paper, which is where records are looked for."""
    monkeypatch.setattr(archive, "PAPERS", tmp_path)
    for name in ("record", "results", "figures"):
        shutil.copytree(PAPERS / "example" / name, tmp_path / "example" / name)
    return tmp_path / "example"


def in_json(path: Path, edit: Callable[[Any], object]) -> None:
    content = read_json(path)
    edit(content)
    write_json(path, content)


def code_of(paper: Path) -> dict[str, list[str]]:
    code: dict[str, list[str]] = archive.read_index(paper)[STUDY]["code"]
    return code


def accounts(paper: Path) -> dict[Path, dict[str, Any]]:
    return {path: status_of(path) for path in (paper / "record" / STUDY).rglob("*.ipynb")}


def test_a_sound_record_has_no_faults(paper: Path) -> None:
    runs = archive.read_runs(STUDY)
    assert list(evidence.changed_files(STUDY)) == []
    assert list(evidence.foreign_notebooks(STUDY, code_of(paper))) == []
    assert list(evidence.uncommitted_code(STUDY, accounts(paper))) == []
    assert list(evidence.unfounded_results(STUDY, runs)) == []
    assert list(evidence.foreign_files(STUDY, runs)) == []


def test_a_file_changed_lost_or_added_is_named(paper: Path) -> None:
    record = paper / "record" / STUDY
    (record / "01_data.ipynb").write_text("{}", "utf-8")
    (record / "02_more.ipynb").write_text("{}", "utf-8")
    (record / "parameters.yaml").unlink()
    assert sorted(evidence.changed_files(STUDY)) == [
        "01_data.ipynb has changed",
        "02_more.ipynb is not in the manifest",
        "parameters.yaml is missing",
    ]
    (record / "MANIFEST.sha256").write_text("", "utf-8")
    faults = list(evidence.changed_files(STUDY))
    assert faults[0] == "its MANIFEST.sha256 is missing or empty"
    assert set(faults[1:]) == {f"{name} is not in the manifest" for name in archive.files_of(STUDY)}


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
        (lambda nb: injected(nb)["outputs"].append({"output_type": "stream"}), PLACE),
        (moved, PLACE),
        (doubled, PLACE),
    ],
)
def test_a_notebook_of_another_place_or_code_is_named(
    edit: Callable[[Any], object], fault: str, paper: Path
) -> None:
    code, path = code_of(paper), next((paper / "record" / STUDY).glob("*/seed-*/02_train.ipynb"))
    in_json(path, edit)
    name = path.relative_to(paper / "record" / STUDY).as_posix()
    assert f"{name} {fault}" in evidence.foreign_notebooks(STUDY, code)
    by_first_rules = list(evidence.foreign_notebooks(STUDY, None))
    assert (f"{name} {fault}" in by_first_rules) is ("index" not in fault)


def test_a_missing_shared_notebook_is_named(paper: Path) -> None:
    (paper / "record" / STUDY / "01_data.ipynb").unlink()
    assert list(evidence.foreign_notebooks(STUDY, None)) == ["01_data.ipynb is missing"]


def test_code_and_text_that_were_not_committed_are_named(
    paper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = paper / "record" / STUDY / "03_analysis.ipynb"
    in_json(path, lambda nb: nb["cells"].append(nbformat.v4.new_markdown_cell("It helps.")))
    told, account = accounts(paper), status_of(path)
    commit = account["commit"]
    fault = f"03_analysis.ipynb holds other code or text than that of commit {commit[:12]}"
    assert list(evidence.uncommitted_code(STUDY, told)) == [fault]
    dirty = {path: account | {"clean": False}}
    fault = "03_analysis.ipynb holds other code or text than that of this checkout"
    assert list(evidence.uncommitted_code(STUDY, dirty)) == [fault]
    away = {path: account | {"commit": "0" * 40}}
    fault = f"03_analysis.ipynb names commit {'0' * 12}, which this history does not hold"
    assert list(evidence.uncommitted_code(STUDY, away)) == [fault]
    shutil.copyfile(ROOT / "notebooks" / path.name, path)  # as it is in this checkout
    assert list(evidence.uncommitted_code(STUDY, dirty)) == []
    monkeypatch.setattr(evidence, "is_checkout", lambda: False)
    assert list(evidence.uncommitted_code(STUDY, away)) == []


def test_results_that_no_notebook_shows_are_named(paper: Path) -> None:
    runs = archive.read_runs(STUDY)
    first = runs[0]
    name = f"{first['arm']} seed {first['seed']}"
    changed = [{**first, "tokens": 1}, *runs[1:]]
    fault = f"run {name} in the results is not its notebook's"
    assert list(evidence.unfounded_results(STUDY, changed)) == [fault]
    left_out = list(evidence.unfounded_results(STUDY, runs[1:]))
    place = f"{first['arm']}/seed-{first['seed']}"
    assert left_out[0] == f"{place}/02_train.ipynb is of no run in the results"
    assert all(f"{raw_zip.FILE} holds {place}/" in fault for fault in left_out[1:])
    assert f"{place}/02_train.ipynb is no file of a record" in evidence.foreign_files(
        STUDY, runs[1:]
    )


def test_a_summary_not_of_the_runs_is_named() -> None:
    results = read_json(PAPERS / "example" / "results" / f"{STUDY}.json")
    assert list(evidence.wrong_summary(results)) == []
    measures = next(iter(results["summary"].values()))
    next(iter(measures.values()))["mean"] += 1e-6
    fault = "the summary in the results does not follow from the runs"
    assert list(evidence.wrong_summary(results)) == [fault]


@pytest.fixture
def again(paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What executing a notebook again leaves: what the record holds."""
    folder, record = tmp_path / "again", paper / "record" / STUDY
    shutil.copytree(record, folder)
    shutil.copyfile(paper / "results" / f"{STUDY}.json", folder / "03_analysis.json")
    shutil.copyfile(paper / "results" / f"{STUDY}.verdict.json", folder / "verdict.json")
    shutil.copytree(paper / "figures" / STUDY, folder / "figures")

    @contextmanager
    def replayed(study: str, notebook: str) -> Iterator[Path]:
        assert (folder / f"{notebook}.ipynb").is_file()
        yield folder

    monkeypatch.setattr(replay, "replayed", replayed)
    return folder


def first_text(path: Path) -> None:
    """Change the first thing that a notebook prints or displays."""

    def change(notebook: Any) -> None:
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                if "text" in output and "injected-parameters" not in cell["metadata"].get(
                    "tags", []
                ):
                    output["text"] = ["It helps.\n"]
                    return
        raise AssertionError("nothing is printed")

    in_json(path, change)


def test_an_analysis_that_says_otherwise_is_named(again: Path) -> None:
    assert list(evidence.other_analysis(STUDY)) == []
    in_json(again / "verdict.json", lambda verdict: verdict.update(standing="CONFIRMATORY", more=1))
    in_json(again / "03_analysis.json", lambda results: results["summary"].popitem())
    says = "is not what the analysis says of the record"
    assert list(evidence.other_analysis(STUDY)) == [
        f"summary in {STUDY}.json {says}",
        f"more in {STUDY}.verdict.json {says}",
        f"standing in {STUDY}.verdict.json {says}",
    ]


def test_a_key_of_nothing_that_no_analysis_writes_is_named(again: Path, paper: Path) -> None:
    verdict = paper / "results" / f"{STUDY}.verdict.json"
    in_json(verdict, lambda content: content.update(confirmatory_after_all=None))
    (fault,) = evidence.other_analysis(STUDY)
    assert fault.startswith(f"confirmatory_after_all in {verdict.name} is not what the analysis")


def test_an_output_that_executing_it_does_not_show_is_named(again: Path) -> None:
    first_text(again / "03_analysis.ipynb")
    (fault,) = evidence.other_analysis(STUDY)
    assert fault.startswith("code cell ")
    assert fault.endswith(" of 03_analysis.ipynb shows what executing it does not")


def test_a_picture_drawn_otherwise_is_named(again: Path, paper: Path) -> None:
    assert list(evidence.redrawn(STUDY)) == []
    picture = next((again / "figures").glob("*.png"))
    picture.write_bytes(b"another")
    first_text(again / "01_data.ipynb")
    printed, *drawn = evidence.redrawn(STUDY)
    assert printed.endswith(" of 01_data.ipynb shows what executing it does not")
    assert set(drawn) == {f"figure {picture.name} is not what 04_figures draws"}


def test_figures_of_other_data_or_words_are_named(
    paper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, figures = paper / "record" / STUDY, paper / "figures" / STUDY
    words = [
        output["text/markdown"]
        for cell in replay.outputs(record / "04_figures.ipynb")
        for output in cell
        if "text/markdown" in output
    ]
    data = read_json(record / "04_figures.json")
    drawn = {name: {"data": of, "words": text} for (name, of), text in zip(data.items(), words, strict=True)}  # noqa: E501  # fmt: skip
    monkeypatch.setattr(replay, "asked", lambda *_: drawn)
    assert list(evidence.other_figures(STUDY)) == []
    one, other, *_ = data
    drawn[one]["data"], drawn[other]["words"] = "0" * 64, "It helps."
    (figures / f"{one}.pdf").unlink()
    (figures / "better.png").write_bytes(b"")
    assert list(evidence.other_figures(STUDY)) == [
        f"figure {one} was drawn from other data than the record holds",
        *sorted(
            [f"figure {one}.pdf is missing", "figure better.png is not drawn by 04_figures"],
            key=lambda fault: fault.split()[1],
        ),
        "04_figures.ipynb says of its figures what the record does not",
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": [1.0, {"b": 2}]}, {"a": [1.0 + 1e-12, {"b": 2}]}, True),
        ({"a": [1.0, {"b": 2}]}, {"a": [1.0 + 1e-6, {"b": 2}]}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [1, 2, 3], False),
        (2.0, 2, True),
        ("2.0", 2.0, False),
        (None, 0, False),
    ],
)
def test_numbers_are_compared_up_to_their_last_digits(one: Any, other: Any, same: bool) -> None:
    assert evidence._same(one, other) is same
