from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lib.analysis import runs as collection
from lib.analysis.paired import contrast_table
from lib.analysis.runs import (
    ResultError,
    check,
    collect,
    melt_columns,
    next_look,
    other_settings,
    read_parquet,
    read_result,
    read_table,
    so_far,
    study_results,
    tidy,
)
from lib.analysis.tables import contrast_overview, provenance_table
from lib.results import MachineFacts, RunResult, Stretch
from lib.study.io import write_json
from lib.study.metrics import MEASURES
from lib.study.study import Study
from lib.workflow.rehearsal import lay_out
from tests.conftest import TINY
from tests.samples import sample_runs


@pytest.fixture
def runs(tiny_study: Study) -> list[RunResult]:
    return sample_runs(tiny_study)


def changed(runs: list[RunResult], index: int, **fields: Any) -> list[RunResult]:
    return [r.model_copy(update=fields) if i == index else r for i, r in enumerate(runs)]


def test_runs_that_belong_together_pass(tiny_study: Study, runs: list[RunResult]) -> None:
    check(tiny_study, runs)


def test_an_incomplete_study_is_refused_naming_every_missing_run(
    tiny_study: Study, runs: list[RunResult], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        collection, "run_folder", lambda s, arm, seed: tmp_path / s / arm / f"seed-{seed}"
    )
    present = runs[1:3]  # none seed 1, layernorm seed 0
    for run in present:
        write_json(
            tmp_path / "tiny" / run.arm / f"seed-{run.seed}" / "result.json", run.model_dump()
        )
    with pytest.raises(ResultError, match="no result of none seed 0; layernorm seed 1"):
        collect(tiny_study)
    for run in runs:
        path = tmp_path / "tiny" / run.arm / f"seed-{run.seed}" / "result.json"
        write_json(path, run.model_dump())
    assert collect(tiny_study) == runs


def provenance(**fields: Any) -> Callable[[RunResult], dict[str, Any]]:
    return lambda run: {"provenance": run.provenance | fields}


def config(section: str, **fields: Any) -> Callable[[RunResult], dict[str, Any]]:
    return lambda run: {"config": run.config | {section: run.config[section] | fields}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (lambda _: {"study_hash": "0" * 64}, "study hash is 000000000000"),
        (config("training", iterations=11), "training.iterations is 11, the study says 12"),
        (config("model", embedding_norm="none"), "model.embedding_norm is 'none'"),
        (lambda _: {"suite_hash": None}, "has suite_hash None and the others have 'dddd"),
        (lambda _: {"corpus_sha256": "f" * 64}, "has corpus_sha256 'ffff"),
        (provenance(precision="bf16"), "has precision 'bf16'"),
        (lambda _: {"measures": {"perplexity": 1.0}}, "has measures 'perplexity' and the others"),
    ],
)
def test_mixed_runs_are_refused_naming_the_offender(
    fields: Callable[[RunResult], dict[str, Any]],
    message: str,
    tiny_study: Study,
    runs: list[RunResult],
) -> None:
    mixed = changed(runs, 2, **fields(runs[2]))
    with pytest.raises(ResultError, match="run layernorm seed 0") as error:
        check(tiny_study, mixed)
    assert message in str(error.value)
    assert "delete runs/tiny/layernorm/seed-0/result.json" in str(error.value)


def stretch(start: int, end: int, **settings: Any) -> Stretch:
    machine = {"device": "cpu", "threads": 1, "micro_batch_size": 4, "evaluation_batch_size": 8}
    also = {"processes": 1, "device_name": "", "vector_level": "", "cores": 1, "platform": ""}
    account = MachineFacts.model_validate(machine | also | settings)
    return Stretch(start=start, end=end, machine=account, packages={"torch": "2.13.0"})


def executed(size: int) -> Callable[[RunResult], dict[str, Any]]:
    return provenance(executed={"machine": {"evaluation_batch_size": size}})


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        (provenance(device="cuda"), "torch 2.13.0, device cuda"),
        (provenance(threads=2), "torch 2.13.0, device cpu, threads 2"),
        (provenance(packages={"torch": "2.10.0"}), "torch 2.10.0, device cpu"),
        (provenance(processes=2), "torch 2.13.0, device cpu, processes 2"),
        (provenance(compile=True), "torch 2.13.0, device cpu, compile True"),
        (
            lambda _: {"stretches": [stretch(0, 5), stretch(5, 12, micro_batch_size=2)]},
            "torch 2.13.0, device cpu, micro_batch_size 4 (steps 1 to 5) and "
            "torch 2.13.0, device cpu, micro_batch_size 2 (steps 6 to 12)",
        ),
    ],
)
def test_runs_of_a_seed_from_unlike_machines_are_refused_naming_the_run_and_its_settings(
    fields: Callable[[RunResult], dict[str, Any]],
    settings: str,
    tiny_study: Study,
    runs: list[RunResult],
) -> None:
    with pytest.raises(ResultError) as error:
        check(tiny_study, changed(runs, 2, **fields(runs[2])))
    usual = "1 with torch 2.13.0, device cpu"
    assert f"differs: {usual}; layernorm seed 0 with {settings}. Write" in str(error.value)
    assert "delete runs/tiny/ARM/seed-SEED" in str(error.value)


def test_machines_may_differ_between_seeds_and_stretches_where_paired_runs_moved_alike(
    runs: list[RunResult], tiny_study: Study
) -> None:
    moved = [stretch(0, 5), stretch(5, 12, threads=2)]
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    mixed = changed(changed(runs, 1, stretches=moved), 3, stretches=moved)
    check(tiny_study, mixed)
    rounding = provenance_table(mixed).loc["rounding"].item()
    assert rounding.startswith("2 runs with torch 2.13.0, device cpu; 2 runs with torch 2.13.0, ")
    assert rounding.count("threads 2") == rounding.count("(steps 6 to 12)") == 1
    alike = [run.model_copy(update={"stretches": moved}) for run in runs]
    assert provenance_table(alike).loc["rounding"].item().startswith("4 runs with ")
    assert "rounding" not in provenance_table(runs).index
    later = [stretch(0, 6), stretch(6, 12, threads=2)]
    with pytest.raises(ResultError, match=r"layernorm seed 1 with .* \(steps 1 to 6\) and "):
        check(tiny_study, changed(mixed, 3, stretches=later))


def test_windows_may_be_batched_otherwise_in_fp32_and_not_in_half_precision(
    runs: list[RunResult], tiny_study: Study
) -> None:
    check(tiny_study, changed(runs, 2, **executed(4)(runs[2])))
    half = [run.model_copy(update=provenance(precision="bf16")(run)) for run in runs]
    check(tiny_study, half)
    with pytest.raises(ResultError, match=r"layernorm seed 0 with .* evaluation_batch_size 4"):
        check(tiny_study, changed(half, 2, **executed(4)(half[2])))


def test_stretches_that_change_no_bit_and_arms_of_other_batches_are_no_mix(
    runs: list[RunResult], tiny_study: Study
) -> None:
    moved = [stretch(0, 5), stretch(5, 12, checkpoint_interval=7, cores=4)]
    for at in range(4):
        runs = changed(runs, at, stretches=moved)
    check(tiny_study, runs)
    factors = {"training.batch_size": [4, 8]}
    study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
    own = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    own = changed(own, 0, stretches=[stretch(0, 12)], tokens=768)
    own = changed(own, 1, stretches=[stretch(0, 12, micro_batch_size=2)], tokens=1536)
    check(study, own)
    with pytest.raises(ResultError, match="threads 2"):
        check(study, changed(own, 1, stretches=[stretch(0, 12, threads=2)]))


def test_where_duplicates_are_left_out_another_suite_is_asked() -> None:
    factors = {"corpus.deduplicate": [False, True]}
    study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
    runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    check(study, changed(runs, 1, suite_hash="e" * 64))


@pytest.mark.parametrize("field", ["initial_weights", "batches", "tokens", "steps"])
def test_unpaired_or_unequally_trained_runs_are_refused(
    field: str, tiny_study: Study, runs: list[RunResult]
) -> None:
    other: Any = 1 if field in ("tokens", "steps") else "0" * 64
    with pytest.raises(ResultError, match=f"has {field}"):
        check(tiny_study, changed(runs, 3, **{field: other}))


def test_both_sides_of_any_contrast_have_one_budget() -> None:
    """Whatever the first factor is: here it is not the embedding's normalization."""
    study = Study.model_validate(
        TINY | {"name": "s", "factors": {"model.n_layer": [2, 4]}, "seeds": [0]}
    )
    runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    for i, run in enumerate(runs):  # deeper models have other weights
        runs[i] = run.model_copy(update={"initial_weights": run.arm})
    check(study, runs)
    for field, value in (("tokens", 1), ("steps", 1), ("batches", "other")):
        with pytest.raises(ResultError, match=f"run n_layer=4 seed 0 has {field}"):
            check(study, changed(runs, 1, **{field: value}))


def test_where_the_budget_is_a_factor_its_contrasts_are_labelled_so() -> None:
    factors = {"training.iterations": [12, 24], "model.embedding_norm": ["none", "layernorm"]}
    study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
    runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    for i, run in enumerate(runs):
        steps = run.config["training"]["iterations"]
        runs[i] = run.model_copy(
            update={"steps": steps, "tokens": 64 * steps, "batches": f"of {steps} steps"}
        )
    check(study, runs)
    table = contrast_table(tidy(runs), ["perplexity"], np.random.default_rng(0))
    assert set(table["budget"]) == {"training.iterations"}
    assert "(training.iterations differs)" in contrast_overview(table).index[0]
    within = [("iterations=12,layernorm", "iterations=12,none")]
    same = contrast_table(tidy(runs), ["perplexity"], np.random.default_rng(0), pairs=within)
    assert same["budget"].tolist() == [""]


def test_arms_that_are_commits_pair_where_their_hashes_agree_or_are_refused_by_name() -> None:
    own = {"training_digest": "a" * 64, "measuring_digest": "b" * 64}
    commits = {name: own | {"commit": name[0] * 40} for name in ("base", "case")}
    content = {"name": "t", "seeds": [0, 1], "factors": {"code": [*commits]}, "commits": commits}
    study = Study.model_validate(TINY | content)
    runs = [
        run.model_copy(update={"provenance": origin})
        for run in sample_runs(study, {"base": [20.0, 22.0], "case": [19.0, 20.0]})
        for origin in [run.provenance | {"code": run.levels["code"] * 10}]
    ]
    check(study, runs)
    more = config("model", added_by_the_patch=1)(runs[2])
    check(study, changed(runs, 2, **more))
    check(study, changed(runs, 2, initial_weights="e" * 64, parameters=2))  # another shape
    refused: list[tuple[dict[str, Any], str]] = [
        ({field: "e" * 64}, f"has {field} 'eee")
        for field in ("initial_weights", "batches", "corpus_sha256", "suite_hash")
    ]
    refused += [({"tokens": 5}, "has tokens 5"), (config("model", n_layer=1)(runs[2]), "n_layer")]
    for fields, said in refused:
        with pytest.raises(ResultError, match=rf"run case seed 0 .*{said}.*commit casecasecase.*"):
            check(study, changed(runs, 2, **fields))
    both = [r.model_copy(update={"initial_weights": r.levels["code"]}) for r in runs]
    assert [r.seed for r in runs if r.arm == "case"] == [0, 1]
    with pytest.raises(ResultError, match="has initial_weights 'case' and the others have 'base'"):
        check(study, both)


def test_a_diverged_run_may_have_spent_less(tiny_study: Study, runs: list[RunResult]) -> None:
    diverged = {"status": "diverged", "diverged_at": 3, "tokens": 64, "steps": 3, "batches": "0"}
    check(tiny_study, changed(runs, 3, **diverged))


def test_the_tidy_table_has_one_row_per_run_and_every_measure(
    tiny_study: Study, runs: list[RunResult]
) -> None:
    table = tidy(runs)
    assert table[["arm", "seed"]].to_numpy().tolist() == [
        ["none", 0], ["none", 1], ["layernorm", 0], ["layernorm", 1]
    ]  # fmt: skip
    assert set(MEASURES) <= set(table.columns)
    assert table["perplexity"].tolist() == [r.measures["perplexity"] for r in runs]


def test_an_arm_beside_the_grid_is_a_variant_of_its_own_name() -> None:
    levels = {"model.embedding_norm": "none", "training.iterations": 24}
    content = {"name": "s", "factors": {"model.embedding_norm": ["none"]}, "seeds": [0]}
    longer = {"name": "longer", "levels": levels, "baseline": "none"}
    study = Study.model_validate(TINY | content | {"include": [longer]})
    table = tidy(sample_runs(study, {"none": [20.0], "longer": [19.0]}))
    assert table["variant"].tolist() == ["none", "longer"]
    contrasts = contrast_table(table, ["perplexity"], np.random.default_rng(0))
    assert contrasts["budget"].tolist() == ["training.iterations"]


def test_study_results_leave_diverged_runs_out_of_means(
    tiny_study: Study, runs: list[RunResult]
) -> None:
    mixed = changed(runs, 0, status="diverged", diverged_at=3, measures={}, tables={})
    summary = study_results(tiny_study, mixed)["summary"]
    assert summary["none"]["perplexity"] == {
        "n": 1,
        "mean": runs[1].measures["perplexity"],
        "sd": None,
    }
    assert summary["layernorm"]["perplexity"]["n"] == 2


def test_tables_of_all_runs_are_joined_and_diverged_runs_have_none(
    tiny_study: Study, runs: list[RunResult]
) -> None:
    mixed = changed(runs, 0, status="diverged", diverged_at=3, measures={}, tables={})
    tasks = read_table(mixed, "tasks")
    assert tasks[["variant", "seed"]].to_numpy().tolist() == [
        ["none", 1], ["layernorm", 0], ["layernorm", 1]
    ]  # fmt: skip
    assert read_table(mixed, "no such table").empty
    wider = [row | {"more": 1} for row in mixed[2].tables["tasks"]]
    mixed = changed(mixed, 2, tables={"tasks": wider})
    named = ["arm", "seed", "variant", "setting"]
    assert [*read_table(mixed, "tasks")] == [*mixed[1].tables["tasks"][0], *named, "more"]


def test_last_point_gathers_the_columns_of_a_prefix() -> None:
    curve = pd.DataFrame(
        [
            {"arm": arm, "variant": arm, "setting": "", "seed": 0, "step": step}
            | {"residual_norm_0": step + 1.0, "residual_norm_1": step + 2.0, "other": 9.0}
            for arm, last in (("a", 2), ("b", 4))
            for step in (0, last)
        ]
    )
    table = melt_columns(curve, "residual_norm_", "block")
    assert table.set_index(["arm", "block"])["value"].to_dict() == {
        ("a", "0"): 3.0, ("a", "1"): 4.0, ("b", "0"): 5.0, ("b", "1"): 6.0,
    }  # fmt: skip


def test_a_result_of_another_version_is_refused_by_name(
    runs: list[RunResult], tmp_path: Any
) -> None:
    content = runs[0].model_dump()
    del content["tables"]
    content["measures"]["loss"] = "low"
    write_json(tmp_path / "result.json", content)
    said = r"result\.json was written by another version \(see measures, tables\)"
    with pytest.raises(ResultError, match=said):
        read_result(tmp_path / "result.json")


@pytest.mark.parametrize("content", [b'{"arm": ', b"", b'{"arm": "\xff"}'])
def test_a_result_that_was_cut_short_is_refused_by_name(content: bytes, tmp_path: Any) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(ResultError, match=r"result\.json was written by another version \(see "):
        read_result(tmp_path / "result.json")


def test_other_settings_name_neither_the_variant_nor_the_factor() -> None:
    factors = {"model.embedding_norm": ["none", "layernorm"], "training.learning_rate": [0.1, 1.0]}
    two = Study.model_validate(TINY | {"name": "two", "factors": factors, "seeds": [0]})
    arms = pd.DataFrame({"arm": [arm.id for arm in two.arms()]})
    assert set(other_settings(arms, two, "training.learning_rate")) == {""}
    factors |= {"training.gradient_clip": [None, 1.0]}
    three = Study.model_validate(TINY | {"name": "three", "factors": factors, "seeds": [0]})
    arms = pd.DataFrame({"arm": [arm.id for arm in three.arms()]})
    names = other_settings(arms, three, "training.learning_rate")
    assert list(dict.fromkeys(names)) == ["gradient_clip=none", "gradient_clip=1"]


@pytest.fixture
def looked_at(tiny_study: Study) -> Study:
    """Three seeds, with a look after two."""
    return Study.model_validate(tiny_study.model_dump() | {"seeds": [5, 6, 7], "looks": [2, 3]})


def test_a_study_with_looks_is_read_up_to_the_last_that_is_complete(
    looked_at: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.study.io.RUNS", tmp_path)
    lay_out(looked_at, None, 0)
    assert so_far(looked_at).seeds == [5, 6, 7]
    (tmp_path / "tiny" / "layernorm" / "seed-7" / "result.json").unlink()
    assert so_far(looked_at).seeds == [5, 6]
    assert {run.seed for run in collect(looked_at)} == {5, 6}
    assert set(read_parquet(looked_at, "trace")["seed"]) == {5, 6}
    (tmp_path / "tiny" / "none" / "seed-5" / "result.json").unlink()
    with pytest.raises(ResultError, match=r"no result of none seed 5\. Run"):
        collect(looked_at)


@pytest.mark.parametrize(
    ("answers", "n", "following"),
    [
        (["undecided", "supported"], 2, 3),
        (["undecided", "supported"], 3, None),
        (["refuted", "supported"], 2, None),
        ([], 2, 3),  # exploratory: nothing ends it
    ],
)
def test_a_study_is_looked_at_again_while_a_hypothesis_is_undecided(
    looked_at: Study, tiny_study: Study, answers: list[str], n: int, following: int | None
) -> None:
    verdict = {"hypothesis_tests": [{"answer": answer} for answer in answers]}
    assert next_look(looked_at, n, verdict) == following
    assert next_look(tiny_study, 2, {}) is None  # without looks
