import numpy as np
import pandas as pd
import pytest

from lib.stats import tables
from lib.stats.factorial import factor_effects, with_signs
from lib.stats.paired import contrast_table
from lib.stats.runs import tidy
from lib.stats.tables import seed_tables, summary_table
from tests.samples import PROVENANCE, TRAINED, sample_runs
from tests.stats.samples import NORM, NORMS, crossed, design, runs_of


@pytest.fixture
def runs(tiny_study):
    return tidy(sample_runs(tiny_study))


def test_the_summary_gives_mean_and_sample_standard_deviation(runs):
    table = summary_table(runs)
    assert [*table] == ["none", "layernorm"]
    perplexity = table.loc["held-out perplexity"]
    assert perplexity.tolist() == ["21.000 ± 1.414", "19.500 ± 0.707"]  # sqrt(2), sqrt(1/2)
    assert table.loc["diverged"].tolist() == ["0", "0"]


def test_diverged_runs_are_counted_and_not_averaged_but_in_shares(runs):
    runs["unstable"] = [1.0, 0.0, 0.0, 0.0]
    runs.loc[0, ["status", "perplexity"]] = ["diverged", float("nan")]
    column = summary_table(runs)["none"]
    assert (column["runs"], column["diverged"]) == ("2", "1")
    assert column["held-out perplexity"] == "22.000 ± n/a"
    assert column["unstable runs, as a share"] == "0.50"


def test_differences_are_paired_by_seed_and_a_diverged_baseline_leaves_its_seed_out(runs):
    assert seed_tables(runs, ["perplexity"])[0]["layernorm"].tolist() == [
        "-1.000",
        "-2.000",
        "-1.500",
        "0.707",
    ]
    runs.loc[0, "perplexity"] = float("nan")
    assert seed_tables(runs, ["perplexity"])[0]["layernorm"].tolist() == [
        "n/a",
        "-2.000",
        "-2.000",
        "n/a",
    ]


def test_contrasts_are_laid_out_with_what_differs_in_their_budget(runs):
    contrasts = contrast_table(runs, ["perplexity", "accuracy"], np.random.default_rng(0))
    table = tables.contrast_overview(contrasts)
    assert [*table] == ["held-out perplexity", "next-token accuracy"]
    assert table.index.tolist() == ["layernorm - none"]
    assert table.iloc[0, 0].startswith("-1.500 [")
    longer = tables.contrast_overview(contrasts.assign(budget="training.iterations"))
    assert longer.index.tolist() == ["layernorm - none (training.iterations differs)"]
    one_arm = contrast_table(runs[runs["arm"] == "none"], ["perplexity"], np.random.default_rng(0))
    assert tables.contrast_overview(one_arm).empty


def test_an_effect_that_changes_sign_has_no_mean_and_one_that_does_not_has():
    _, runs = crossed(4)
    effects = factor_effects(runs, ["loss"])
    cells = tables.contrast_overview(effects)["held-out loss (nats)"]
    assert cells[NORM] == "changes sign"
    assert cells[f"{NORM} at optimizer=muon,tied=true"].startswith("+0.5")
    assert cells["embedding_norm=layernorm × optimizer=muon"].startswith("+0.5")
    n = cells.str.contains("[", regex=False).sum()
    lines = tables.cautions(with_signs(effects.to_dict("records"))).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{n} intervals; none is adjusted for their number.", "Changes sign",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("n", "said"),
    [(1, "One seed shows no spread"), (2, "Two seeds show no spread"), (3, "")],
)
def test_differences_over_one_or_two_seeds_are_called_so(n, said):
    study = design(factors=NORMS, seeds=list(range(n)))
    runs = runs_of(study, lambda arm, seed: 2 + 0.1 * seed * (arm.id == "none"))
    contrasts = contrast_table(runs, ["loss"], np.random.default_rng(0))
    found = tables.cautions(contrasts.to_dict("records"))
    assert found.startswith(said)
    assert bool(found) == bool(said)  # a single interval needs no words


ALIKE = "none and scale ended at equal weights: what sets them apart changed no training."


@pytest.mark.parametrize(
    ("hashes", "said"),
    [
        ({"none": "ab", "layernorm": "cd", "scale": "ab"}, ALIKE),
        ({"none": "ab", "layernorm": "cd", "scale": "ad"}, ""),  # in one seed only
        ({"none": "ab", "layernorm": "ba", "scale": "cd"}, ""),  # each in another seed
    ],
)
def test_arms_that_end_at_equal_weights_in_every_seed_are_named(hashes, said):
    study = design(factors={"model.embedding_norm": [*hashes]}, seeds=[0, 1])
    runs = runs_of(study, lambda *_: 2.0)
    runs["final_weights"] = [hashes[run.arm][run.seed] for run in runs.itertuples()]
    runs = runs.sort_values("seed", ascending=False, kind="stable")
    assert tables.cautions([], runs) == said
    assert tables.cautions([], runs_of(study, lambda *_: 2.0)) == ""


OPTIMIZERS, RATE = {"training.optimizer": ["adamw", "muon"]}, "training.learning_rate"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"factors": OPTIMIZERS}, "either optimizer"),
        ({"factors": OPTIMIZERS | NORMS}, "either optimizer"),
        ({"factors": OPTIMIZERS | {RATE: [1e-3, 1e-2]}}, ""),
        ({"factors": NORMS}, ""),
        ({"factors": NORMS | {RATE: [1e-3, 1e-2]}}, ""),
        ({"factors": OPTIMIZERS, "training": {"muon_learning_rate_ratio": 0.5}}, ""),
        (
            {"factors": {"training.optimizer": ["adamw"]}}
            | {"include": [{"levels": {"training.optimizer": "muon", RATE: 0.5}, "name": "own"}]},
            "",
        ),
        (
            {"factors": OPTIMIZERS}
            | {"include": [{"levels": {"training.optimizer": "adamw", RATE: 0.5}, "name": "own"}]},
            "muon",
        ),
    ],
)
def test_optimizers_at_one_rate_are_called_untuned(content, said):
    """Not if each has several rates, or its own."""
    found = tables.untuned(runs_of(design(**content), lambda *_: 2.0))
    assert found.startswith(f"No rate was tuned for {said}:" if said else "")
    assert bool(found) == bool(said)


def test_references_have_their_perplexity_and_the_arms_above_them():
    study = design(factors={"model.embedding_norm": ["none", "layernorm", "scale"]})
    losses = {"none": 2.0, "layernorm": 3.0, "scale": 4.0}
    runs = runs_of(study, lambda arm, seed: losses[arm.id])
    table = tables.reference_table(runs).set_index("reference")
    assert table["nats"].tolist() == [4.2, 3.35, 2.5]
    assert table.loc["a bigram model", "perplexity"] == pytest.approx(np.exp(2.5))
    assert table["arms_above"].tolist() == [0, 1, 2]
    other = runs.assign(**{"corpus.source": "other", "bigram_loss": 1.0})
    joined = tables.reference_table(pd.concat([runs, other]))
    assert joined.groupby("text", sort=False)["nats"].min().tolist() == [2.5, 1.0]
    assert tables.reference_table(runs_of(study, lambda *_: 2.0, references={})).empty


def test_provenance_shows_every_value_that_occurs(tiny_study):
    runs = sample_runs(tiny_study)
    trained = TRAINED | {"commit": "b" * 40}
    changed = {"provenance": PROVENANCE | {"trained": trained}, "resumed_at": [5]}
    column = tables.provenance_table([runs[0].model_copy(update=changed), *runs[1:]]).iloc[:, 0]
    assert column["commit"] == f"{'b' * 40}, {'a' * 40}"
    assert (column["device"], column["torch"]) == ("cpu", "2.13.0")
    assert column["resumed after a stop"] == "True, False"


def test_a_run_is_listed_with_what_it_measured(tiny_study):
    speed = {"throughput": {"training_tokens_per_second": 9.0}}
    rows = tables.result_table(sample_runs(tiny_study)[0].model_copy(update=speed))["this run"]
    assert rows["held-out perplexity"] == "20.000"
    assert rows["training speed (tokens/s)"] == "9"
    assert not [name for name in rows.index if "macro" in name]  # the sample was asked no task
