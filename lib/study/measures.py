"""The registry of measures: how each is called, read and printed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """How a measure is called, read and printed."""

    label: str
    lower_is_better: bool | None
    digits: int


MEASURES = {
    "perplexity": Measure("validation perplexity", True, 3),
    "perplexity_test": Measure("test perplexity", True, 3),
    "accuracy": Measure("next-token accuracy", False, 4),
    "macro_accuracy_zero_shot": Measure("macro accuracy, zero-shot", False, 4),
    "macro_accuracy_few_shot": Measure("macro accuracy, few-shot", False, 4),
    "ece": Measure("expected calibration error", True, 4),
    "brier": Measure("Brier score", True, 4),
    "temperature": Measure("best temperature (dev)", None, 3),
    "grad_norm": Measure("final gradient norm", None, 4),
    "grad_norm_last_tenth": Measure("gradient norm, mean of last tenth", None, 4),
    "embedding_norm": Measure("mean embedding norm", None, 3),
    "training_tokens_per_second": Measure("training tokens/s", False, 0),
    "inference_tokens_per_second": Measure("inference tokens/s, batched", False, 0),
    "inference_tokens_per_second_batch_1": Measure("inference tokens/s, batch 1", False, 0),
}
"""Measures in the order in which tables show them."""
