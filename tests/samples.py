"""Made-up runs of a study, with few numbers, so that a test can check them by hand."""

from lib.results import RunResult, identity_fields

PERPLEXITY = {"none": [20.0, 22.0], "layernorm": [19.0, 20.0]}
REFERENCES = {"uniform_loss": 4.2, "unigram_loss": 3.35, "bigram_loss": 2.5, "unigram_entropy": 3.3}
MACHINE = {
    "device": "cpu",
    "device_name": "a processor",
    "threads": 1,
    "cores": 2,
    "vector_level": "AVX512",
    "platform": "Linux x86_64",
}
PACKAGES = {"python": "3.11.7", "torch": "2.13.0"}
TRAINED = {
    "commit": "a" * 40,
    "clean": True,
    "started": "2026-11-21 12:00:00 UTC",
    "plan": None,
    "machine": MACHINE,
    "packages": PACKAGES,
    "training_digest": "1" * 64,
    "parameters": {"training": {"precision": "fp32"}},
}
EXECUTED = {
    "commit": "b" * 40,
    "clean": False,
    "finished": "2026-11-22 09:30:00 UTC",
    "from_checkpoint": False,
    "measuring_digest": "2" * 64,
    "machine": MACHINE,
    "packages": PACKAGES,
}
PROVENANCE = {"trained": TRAINED, "executed": EXECUTED}


def made_up(study, arm, seed):
    """Return a completed run without measures."""
    training = arm.config.training
    made = {
        "corpus_sha256": "c" * 64,
        "suite_hash": "d" * 64,
        "status": "completed",
        "diverged_at": None,
        "resumed_at": [],
        "steps": training.iterations,
        "parameters": 1000,
        "tokens": training.iterations * training.batch_size * arm.config.model.block_size,
        "initial_weights": f"of seed {seed}",
        "batches": f"of seed {seed}",
        "final_weights": f"of {arm.id}, {seed}",
        "measures": {},
        "tables": {},
        "references": REFERENCES,
        "seconds": {"training": 1.5, "perplexity": 0.5},
        "throughput": {},
        "provenance": PROVENANCE,
    }
    return RunResult.model_validate(identity_fields(study, arm, seed) | made)


def sample_runs(study, perplexity=PERPLEXITY):
    """Return a completed run per arm and seed; `perplexity` maps these to its value."""
    runs = []
    for arm in study.arms():
        for seed in study.seeds:
            measures = {
                "perplexity": perplexity[arm.id][seed],
                "perplexity_dev": 20.0,
                "perplexity_test": 21.0,
                "accuracy": 0.25 + 0.01 * seed,
                "accuracy_test": 0.25,
                "embedding_norm": 0.3,
                "grad_norm": 0.5,
                "grad_norm_last_tenth": 0.6,
            }
            task = {
                "task": "spelling",
                "shots": 0,
                "n": 100,
                "accuracy": 0.5 + 0.1 * seed,
                "stderr": 0.05,
                "chance": 0.5,
                "normalised_accuracy": 0.2 * seed,
                "brier": 0.5,
            }
            means = {"alphabetic": 1.0 + seed, "numeric": None}
            classes = [{"token_class": name, "mean": mean} for name, mean in means.items()]
            own = {"measures": measures, "tables": {"tasks": [task], "token_classes": classes}}
            runs.append(made_up(study, arm, seed).model_copy(update=own))
    return runs
