"""Made-up runs of a study, consistent with one another."""

from lib.study.config import Study
from lib.study.result import RunResult

PERPLEXITY = {"none": [20.0, 22.0], "layernorm": [19.0, 20.0]}


def sample_runs(study: Study, perplexity: dict[str, list[float]] = PERPLEXITY) -> list[RunResult]:
    """One completed run per arm and seed; `perplexity` per arm and seed."""
    return [
        RunResult(
            study=study.name,
            study_hash=study.hash,
            arm=arm.id,
            baseline=arm.baseline,
            levels=arm.levels,
            variant=arm.variant,
            setting=arm.setting,
            seed=seed,
            config=arm.config.model_dump(exclude={"machine"}),
            corpus_sha256="c" * 64,
            suite_hash="d" * 64,
            status="completed",
            diverged_at=None,
            resumed_at=[],
            steps=12,
            tokens=768,
            parameters=1000,
            initial_weights=f"weights of seed {seed}",
            batches=f"batches of seed {seed}",
            final_weights=f"{arm.id} {seed}",
            measures={
                "perplexity": perplexity[arm.id][seed],
                "perplexity_dev": 20.0,
                "perplexity_test": 21.0,
                "accuracy": 0.25 + 0.01 * seed,
                "accuracy_test": 0.25,
                "embedding_norm": 0.3,
                "grad_norm": 0.5,
                "grad_norm_last_tenth": 0.6,
            },
            tables={
                "tasks": [
                    {
                        "task": "spelling",
                        "shots": 0,
                        "n": 100,
                        "accuracy": 0.5 + 0.1 * seed,
                        "stderr": 0.05,
                        "chance": 0.5,
                        "normalised_accuracy": 0.2 * seed,
                        "brier": 0.5,
                    }
                ],
                "token_classes": [
                    {"token_class": "alphabetic", "mean": 1.0 + seed},
                    {"token_class": "numeric", "mean": None},
                ],
            },
            throughput={
                "training_tokens_per_second": 1e4,
                "inference_tokens_per_second": 1e5,
                "inference_tokens_per_second_batch_1": 1e4,
            },
            references={
                "unigram_entropy": 3.3,
                "unigram_loss": 3.35,
                "bigram_loss": 2.5,
                "uniform_loss": 4.2,
            },
            seconds={"training": 1.5, "perplexity": 0.5},
            provenance={
                "device": "cpu",
                "device_name": "a processor",
                "precision": "fp32",
                "threads": 1,
                "cores": 2,
                "platform": "Linux x86_64",
                "packages": {"python": "3.11.7", "torch": "2.13.0"},
                "git_commit": "a" * 40,
                "git_clean": True,
                "preregistration": None,
            },
        )
        for arm in study.arms()
        for seed in study.seeds
    ]
