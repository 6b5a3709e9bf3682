"""The root of the record, and the rules of the first records."""

import json
import subprocess
from pathlib import Path

import pytest

from lib.publish import archive, first_rules, verify
from lib.publish.archive import papers, read_index, results_file, root_hash, verdict_file
from lib.publish.first_rules import wrong_contrasts
from lib.study.git import is_checkout
from lib.study.paths import PAPER, ROOT


@pytest.mark.parametrize("path", [ROOT / "README.md", PAPER / "paper.tex"], ids=lambda p: p.name)
def test_the_root_stands_in_the_texts(path: Path) -> None:
    root, text = root_hash(PAPER), path.read_text("utf-8")
    assert root in text or all(
        half in text for half in (root[:32], root[32:])
    )  # as the paper has it


def test_the_root_covers_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    before, index = root_hash(PAPER), read_index(PAPER)
    for study in index:
        changed = index | {study: index[study] | {"manifest": "0" * 64}}
        monkeypatch.setattr(archive, "read_index", lambda _, changed=changed: changed)
        assert root_hash(PAPER) != before


def test_every_record_is_in_the_index_and_the_other_way_round() -> None:
    assert set(verify.recorded_studies()) == {
        study for paper in papers() for study in read_index(paper)
    }


def test_a_paper_that_is_deleted_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_checkout():
        pytest.skip("not a git checkout")
    assert list(verify.vanished()) == []
    monkeypatch.setattr(verify, "papers", list)
    gone = list(verify.vanished())
    for study in read_index(PAPER):
        assert any(line.startswith(f"study '{study}', recorded at") for line in gone)


def test_what_only_a_branch_recorded_has_vanished_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "papers/one/record/index.json"
    index.parent.mkdir(parents=True)

    def git(*words: str) -> None:
        person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *person, *words], check=True, capture_output=True)

    def commit(content: str) -> None:
        index.write_text(content, "utf-8")
        git("add", "--all")
        git("commit", "--message", "x")

    git("init", "--initial-branch", "main")
    commit('{"one": {"seeds": {}}}')
    git("checkout", "-b", "side")
    commit('{"two": {"seeds": {}}}')
    git("checkout", "main")
    commit('{"one": {"se')  # broken: names nothing
    git("merge", "--strategy", "ours", "side")
    monkeypatch.setattr("lib.study.git.ROOT", tmp_path)
    monkeypatch.setattr(verify, "papers", list)
    assert {line.partition(",")[0] for line in verify.vanished()} == {"study 'one'", "study 'two'"}


def test_a_record_that_is_missing_is_named() -> None:
    _, faults = verify.verify("nowhere")
    assert faults == ["papers/embedding-norm/record/nowhere/MANIFEST.sha256 is missing"]


def test_parameters_that_are_no_yaml_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("name: [bad", "utf-8")
    for module in ("publish.archive", "study.config", "study.paths"):
        monkeypatch.setattr(f"lib.{module}.PARAMS", tmp_path)
    _, (fault,) = verify.verify("bad")
    assert fault.startswith("its parameters or its plan cannot be read: ")


@pytest.mark.parametrize("file", ["record/index.json", "results/one.json"])
def test_json_that_was_cut_short_is_a_fault(file: str, tmp_path: Path) -> None:
    for name in ("record/index.json", "results/one.json", "results/one.verdict.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}", "utf-8")
    (tmp_path / "paper.md").write_text("", "utf-8")
    (tmp_path / file).write_text('{"runs', "utf-8")
    faults = list(verify.unfounded_texts(tmp_path))
    assert len(faults) == 1
    assert faults[0].startswith("the paper cannot be built: ")


def test_statistics_of_the_first_records_that_do_not_follow_are_named() -> None:
    runs = json.loads(results_file("confirmatory").read_text("utf-8"))["runs"]
    verdict = json.loads(verdict_file("confirmatory").read_text("utf-8"))
    assert list(wrong_contrasts(runs, verdict)) == []
    row = next(row for row in verdict["contrasts"] if row["family"])
    names = {"mean_delta", "sd_delta", "t_low", "t_p", "p_holm", "mean_arm"}
    row |= {name: row[name] * (1 + 1e-6) for name in names}
    place = f"{row['arm']} - {row['baseline']} in {row['measure']}"
    assert set(wrong_contrasts(runs, verdict)) == {f"{place}: {name}" for name in names}


@pytest.mark.slow
def test_no_other_record_may_claim_the_first_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify.verify("confirmatory") == ("the first rules", [])
    monkeypatch.setitem(first_rules.MANIFESTS, "confirmatory", "0" * 64)
    assert verify.verify("confirmatory")[1]


def test_a_superseded_study_is_its_results_and_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify.verify("horizon") == ("the first rules, superseded", [])
    monkeypatch.setitem(first_rules.SUPERSEDED, "horizon", "0" * 64)
    assert verify.verify("horizon")[1] == ["its results or its verdict have changed"]
