"""Made-up runs of a study, of few numbers that a test can check by hand."""

from lib.results import RunResult
from lib.study.study import Study
from lib.workflow.rehearsal import made_up

PERPLEXITY = {"none": [20.0, 22.0], "layernorm": [19.0, 20.0]}
_PROVENANCE = {
    **{"device": "cpu", "device_name": "a processor", "precision": "fp32", "threads": 1},
    **{"cores": 2, "platform": "Linux x86_64", "preregistration": None},
    "packages": {"python": "3.11.7", "torch": "2.13.0"},
    **{"git_commit": "a" * 40, "git_clean": True},
}
"""As results had it before format 4."""


def sample_runs(study: Study, perplexity: dict[str, list[float]] = PERPLEXITY) -> list[RunResult]:
    """One completed run per arm and seed; `perplexity` per arm and seed."""
    runs = []
    for run, _ in made_up(study):
        seed = run.seed
        measures = {
            **{"perplexity": perplexity[run.arm][seed], "perplexity_dev": 20.0},
            **{"perplexity_test": 21.0, "accuracy": 0.25 + 0.01 * seed, "accuracy_test": 0.25},
            **{"embedding_norm": 0.3, "grad_norm": 0.5, "grad_norm_last_tenth": 0.6},
        }
        task = {
            **{"task": "spelling", "shots": 0, "n": 100, "accuracy": 0.5 + 0.1 * seed},
            **{"stderr": 0.05, "chance": 0.5, "normalised_accuracy": 0.2 * seed, "brier": 0.5},
        }
        classes = [
            {"token_class": "alphabetic", "mean": 1.0 + seed},
            {"token_class": "numeric", "mean": None},
        ]
        own = {"measures": measures, "tables": {"tasks": [task], "token_classes": classes}}
        own |= {"seconds": {"training": 1.5, "perplexity": 0.5}, "provenance": _PROVENANCE}
        own |= {"suite_hash": "d" * 64}
        runs.append(run.model_copy(update=own))
    return runs
