import re
from functools import partial

import numpy as np
import pytest

from lib.config.files import write_json
from lib.config.study import Study
from lib.results import MachineFacts, Stretch
from lib.stats import runs as of_runs
from lib.stats.paired import contrast_table
from lib.stats.runs import ResultError, check, study_results, tidy
from tests.conftest import TINY, refused
from tests.samples import EXECUTED, TRAINED, sample_runs


@pytest.fixture
def runs(tiny_study):
    return sample_runs(tiny_study)


def changed(runs, index, **fields):
    return [r.model_copy(update=fields) if i == index else r for i, r in enumerate(runs)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path)
    return tmp_path


def written(folder, run):
    path = folder / "tiny" / run.arm / f"seed-{run.seed}" / "result.json"
    write_json(path, run.model_dump())
    return path


def test_an_incomplete_study_is_refused_naming_every_missing_run(tiny_study, runs, here):
    for run in runs[1:3]:  # none seed 1, layernorm seed 0
        written(here, run)
    with pytest.raises(ResultError, match="no result of none seed 0; layernorm seed 1"):
        of_runs.collect(tiny_study)
    for run in runs:
        written(here, run)
    assert of_runs.collect(tiny_study) == runs


def account_of(part, **fields):
    """Return a function that changes fields in a part of a run's provenance, or in its machine."""

    def changed_account(run):
        told = run.provenance[part]
        of_machine = {name: value for name, value in fields.items() if name not in told}
        account = {
            **told,
            **{name: value for name, value in fields.items() if name in told},
            "machine": told["machine"] | of_machine,
        }
        return {"provenance": run.provenance | {part: account}}

    return changed_account


provenance = partial(account_of, "trained")
measured = partial(account_of, "executed")


def config(section, **fields):
    return lambda run: {"config": run.config | {section: run.config[section] | fields}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (lambda _: {"study_hash": "0" * 64}, "study hash is 000000000000"),
        (config("training", iterations=11), "training.iterations is 11, the study says 12"),
        (config("model", embedding_norm="none"), "model.embedding_norm is 'none'"),
        (lambda _: {"suite_hash": None}, "has suite_hash None and the others have 'dddd"),
        (lambda _: {"corpus_sha256": "f" * 64}, "has corpus_sha256 'ffff"),
        (provenance(tokenizer_sha256="f" * 64), "has tokenizer_sha256 'ffff"),
        (lambda _: {"measures": {"perplexity": 1.0}}, "has measures 'perplexity' and the others"),
    ],
)
def test_mixed_runs_are_refused_naming_the_offender(fields, message, tiny_study, runs):
    mixed = changed(runs, 2, **fields(runs[2]))
    said = refused(check, tiny_study, mixed)
    for part in ("run layernorm seed 0", message, "delete runs/tiny/layernorm/seed-0 and rerun"):
        assert part in said


def stretch(start, end, **settings):
    machine = {"device": "cpu", "threads": 1, "micro_batch_size": 4, "evaluation_batch_size": 8}
    also = {"processes": 1, "device_name": "", "vector_level": "AVX512", "cores": 1, "platform": ""}
    account = MachineFacts.model_validate(machine | also | settings)
    return Stretch(start=start, end=end, machine=account, packages=TRAINED["packages"])


MOVED = [stretch(0, 5), stretch(5, 12, micro_batch_size=2)]
RESUMED = [stretch(0, 5), stretch(5, 12)]
OLDER = [stretch(0, 5), stretch(5, 12, vector_level="AVX2")]


TRAIN = "delete runs/tiny/layernorm/seed-0"
MEASURE = "delete result.json in runs/tiny/layernorm/"


@pytest.mark.parametrize(
    ("fields", "settings", "remedy"),
    [
        (provenance(device="cuda"), "device cuda, device_name a processor", TRAIN),
        (provenance(threads=2), "threads 2", TRAIN),
        (provenance(vector_level="AVX2"), "vector_level AVX2", TRAIN),
        (provenance(packages={"torch": "2.10.0"}), "torch 2.10.0", TRAIN),
        (provenance(packages=TRAINED["packages"] | {"numpy": "2.0.0"}), "numpy 2.0.0", TRAIN),
        (provenance(processes=2), "processes 2", TRAIN),
        (provenance(compile=True), "compile True", TRAIN),
        (lambda _: {"stretches": MOVED}, "4 up to step 5, then micro_batch_size 2 up to", TRAIN),
        (lambda _: {"stretches": OLDER}, "AVX512 up to step 5, then vector_level AVX2 up", TRAIN),
        (measured(device="cuda"), "device cuda", MEASURE),
        (measured(vector_level="AVX2"), "vector_level AVX2", MEASURE),
        (measured(packages={"lm_eval": "0.4.9"}), "lm_eval 0.4.9", MEASURE),
    ],
)
def test_runs_of_a_seed_by_unlike_machines_are_refused_by_name(
    fields, settings, remedy, tiny_study, runs
):
    said = f"run layernorm seed 0 has settings .*{re.escape(settings)}.*others .*{remedy}"
    with pytest.raises(ResultError, match=said) as error:
        check(tiny_study, changed(runs, 2, **fields(runs[2])))
    assert "python 3.11.7 and" not in str(error.value)  # equal values are not listed


def test_lm_eval_may_be_installed_later_if_no_task_was_asked(tiny_study, runs):
    runs = [run.model_copy(update={"suite_hash": None}) for run in runs]
    installed = {"packages": TRAINED["packages"] | {"lm_eval": "0.4.13"}}
    check(tiny_study, changed(runs, 2, **measured(**installed)(runs[2])))
    check(tiny_study, changed(runs, 2, **provenance(**installed)(runs[2])))


NEWER = {"training_digest": "3" * 64}, {"measuring_digest": "4" * 64}


@pytest.mark.parametrize(
    ("which", "fields", "named"),
    [
        ([2], provenance(**NEWER[0]), "run layernorm seed 0 has code trained by 333333333333 and"),
        ([2], measured(**NEWER[1]), "run layernorm seed 0 has code measured by 444444444444 and"),
        # Equally many of each: the message calls the first ones "the others".
        ([2, 3], provenance(**NEWER[0]), "runs layernorm seed 0; layernorm seed 1 have code train"),
        ([1, 3], measured(**NEWER[1]), "runs none seed 1; layernorm seed 1 have code measured by"),
    ],
)
def test_runs_by_more_than_one_code_are_refused_by_name(which, fields, named, tiny_study, runs):
    """Whichever runs have the other code: also a whole arm or a whole seed."""
    for at in which:
        runs = changed(runs, at, **fields(runs[at]))
    said = refused(check, tiny_study, runs)
    assert named in said
    assert "the others have" in said
    assert "./run_all.sh tiny repeats the runs that other code made" in said


def test_a_message_names_all_runs_that_differ_and_of_many_the_number(tiny_study):
    study = tiny_study.model_copy(update={"seeds": [*range(12)]})
    runs = sample_runs(study, {arm.id: [20.0] * 12 for arm in study.arms()})
    few = [runs[at].model_copy(update=provenance(**NEWER[0])(runs[at])) for at in (2, 5, 7)]
    said = refused(check, study, [run for i, run in enumerate(runs) if i not in (2, 5, 7)] + few)
    assert "runs none seed 2; none seed 5; none seed 7 have code" in said
    many = [run.model_copy(update=provenance(**NEWER[0])(run)) for run in runs[:10]]
    said = refused(check, study, many + runs[10:])
    assert "none seed 7; 2 more have code trained by 333333333333 and the others" in said


def test_machines_may_differ_between_seeds_and_where_they_move_no_weight(runs, tiny_study):
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    check(tiny_study, changed(changed(runs, 1, stretches=MOVED), 3, stretches=MOVED))
    for at in range(4):
        also = {"checkpoint_interval": 7, "cores": at + 1, "evaluation_batch_size": at + 1}
        runs = changed(runs, at, stretches=[stretch(0, 12, **also)])
    check(tiny_study, runs)
    check(tiny_study, changed(runs, 2, stretches=RESUMED))  # killed, and continued on its machine


def test_settings_that_follow_from_the_batch_may_differ_with_it():
    levels = {"training.batch_size": 8, "training.iterations": 6}
    grid = {"factors": {"training.batch_size": [4, 8]}, "exclude": [{"training.batch_size": 8}]}
    content = {"name": "s", "seeds": [0], "include": [{"levels": levels}]}
    study = Study.model_validate(TINY | grid | content)
    own = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    own = changed(own, 0, stretches=[stretch(0, 12)], tokens=768)
    own = changed(own, 1, stretches=[stretch(0, 6, micro_batch_size=2)], steps=6, tokens=768)
    check(study, own)
    for fields in (provenance(vector_level="AVX2"), measured(vector_level="AVX2")):
        with pytest.raises(ResultError, match=r"iterations=6 seed 0 has .* vector_level AVX2 and"):
            check(study, changed(own, 1, **{"stretches": []} | fields(own[1])))  # the chip does not
    both = {"batch_size=4": 1, "batch_size=8,iterations=6": -1}
    assert of_runs.budget_factors(of_runs.budgets(tidy(own)), both) == ""


def test_runs_of_a_seed_that_begin_differently_are_refused(tiny_study, runs):
    with pytest.raises(ResultError, match="layernorm seed 1 has initial_weights"):
        check(tiny_study, changed(runs, 3, initial_weights="0" * 64))
    for field, levels in (
        ("branch_multiplier", [1.0, 2.0]),
        ("embedding_roll", [0, 1]),
        ("backout", [False, True]),
    ):
        factors = {f"model.{field}": levels}
        study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
        runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
        with pytest.raises(ResultError, match=rf"{field}=\S+ seed 0 has initial_weights"):
            check(study, changed(runs, 1, initial_weights="0" * 64))


def test_both_sides_of_any_contrast_have_one_budget():
    """Whatever the first factor is; here it is not the embedding normalization."""
    factors = {"model.n_layer": [2, 4]}
    study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
    runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    for i, run in enumerate(runs):  # deeper models have other weights
        runs[i] = run.model_copy(update={"initial_weights": run.arm})
    check(study, runs)
    for field, value in (("tokens", 1), ("steps", 1), ("batches", "other")):
        with pytest.raises(ResultError, match=f"run n_layer=4 seed 0 has {field}"):
            check(study, changed(runs, 1, **{field: value}))


def test_where_the_budget_is_a_factor_its_contrasts_are_labelled_so():
    factors = {"training.iterations": [12, 24], "model.embedding_norm": ["none", "layernorm"]}
    study = Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": [0]})
    runs = sample_runs(study, {arm.id: [20.0] for arm in study.arms()})
    for i, run in enumerate(runs):
        steps = run.config["training"]["iterations"]
        spent = {"steps": steps, "tokens": 64 * steps, "batches": f"of {steps} steps"}
        runs[i] = run.model_copy(update=spent)
    check(study, runs)
    table = contrast_table(tidy(runs), ["perplexity"], np.random.default_rng(0))
    assert set(table["budget"]) == {"training.iterations"}
    within = [("iterations=12,layernorm", "iterations=12,none")]
    same = contrast_table(tidy(runs), ["perplexity"], np.random.default_rng(0), pairs=within)
    assert same["budget"].tolist() == [""]


def test_arms_that_are_commits_pair_where_their_hashes_agree_or_are_refused_by_name():
    content = {"name": "t", "seeds": [0, 1], "factors": {"code": ["base", "case"]}}
    study = Study.model_validate(TINY | content)
    runs = [
        run.model_copy(update={"provenance": {"trained": TRAINED | code, "executed": EXECUTED}})
        for run in sample_runs(study, {"base": [20.0, 22.0], "case": [19.0, 20.0]})
        for name in [run.levels["code"]]
        for code in [{"code": name * 10, "training_digest": name * 16}]
    ]
    check(study, runs)
    mixed = changed(runs, 3, **provenance(training_digest="base" * 16)(runs[3]))
    with pytest.raises(ResultError, match=r"run case seed 1 .*basebasebase.* delete runs/t/case"):
        check(study, mixed)
    more = config("model", added_by_the_patch=1)(runs[2])
    check(study, changed(runs, 2, **more))
    check(study, changed(runs, 2, initial_weights="e" * 64, parameters=2))  # another shape
    fields = ("initial_weights", "batches", "corpus_sha256", "suite_hash")
    refused = [({field: "e" * 64}, f"has {field} 'eee") for field in fields]
    refused += [({"tokens": 5}, "has tokens 5"), (config("model", n_layer=1)(runs[2]), "n_layer")]
    for fields, said in refused:
        with pytest.raises(ResultError, match=rf"run case seed 0 .*{said}.*commit casecasecase.*"):
            check(study, changed(runs, 2, **fields))


def test_diverged_run_may_have_a_smaller_budget(tiny_study, runs):
    diverged = {"status": "diverged", "diverged_at": 3, "tokens": 64, "steps": 3, "batches": "0"}
    check(tiny_study, changed(runs, 3, **diverged))


def test_an_arm_beside_the_grid_is_a_variant_of_its_own_name():
    levels = {"model.embedding_norm": "none", "training.iterations": 24}
    content = {"name": "s", "factors": {"model.embedding_norm": ["none"]}, "seeds": [0]}
    longer = {"name": "longer", "levels": levels, "baseline": "none"}
    study = Study.model_validate(TINY | content | {"include": [longer]})
    table = tidy(sample_runs(study, {"none": [20.0], "longer": [19.0]}))
    assert table["variant"].tolist() == ["none", "longer"]
    contrasts = contrast_table(table, ["perplexity"], np.random.default_rng(0))
    assert contrasts["budget"].tolist() == ["training.iterations"]


def test_study_results_leave_diverged_runs_out_of_means(tiny_study, runs):
    mixed = changed(runs, 0, status="diverged", diverged_at=3, measures={}, tables={})
    summary = study_results(tiny_study, mixed)["summary"]
    assert summary["none"]["perplexity"] == {
        "n": 1,
        "mean": runs[1].measures["perplexity"],
        "sd": None,
    }
    assert summary["layernorm"]["perplexity"]["n"] == 2


def test_the_settings_of_a_factor_are_the_levels_of_all_others_but_the_first():
    factors = {"model.embedding_norm": ["none", "center"], "training.weight_decay": [0.0, 0.1]}
    factors |= {"training.learning_rate": [1e-3, 1e-2]}
    study = Study.model_validate(TINY | {"name": "grid", "factors": factors, "seeds": [0]})
    found = [*of_runs.other_settings(study, "training.learning_rate").values()]
    assert found[:4] == ["weight_decay=0"] * 2 + ["weight_decay=0.1"] * 2
