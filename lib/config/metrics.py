"""Each measure's name, unit, direction and format, and where it is shown.

Every list of measures comes from this registry: `measures_in` returns the measures of a group. The
registry also knows the accuracies of stock tasks, such as `sciq.acc`: see
`lib.config.schema.stock_measures`.

To add a measure, add it here and compute it: in `lib.results` if raw tables suffice, so that
`verify` computes it again; otherwise in `lib.train.evaluate`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

MeasureGroup = Literal["summary", "headline", "comparison", "calibration"]
"""summary: the table of all arms; headline: the site, the sentence about a run, and the contrasts
of a study without a plan; comparison: seed by seed; calibration: the table of calibration."""


@dataclass(frozen=True)
class Measure:
    """A measure's name, unit, direction and format, and the groups that show it."""

    label: str
    unit: str
    """"" for a plain number."""
    better: Literal["lower", "higher"] | None
    """Which direction is better; None: neither."""
    digits: int
    groups: tuple[MeasureGroup, ...] = ()

    @property
    def title(self) -> str:
        """The label with its unit, for a row or an axis."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def gain(self, change: float) -> float:
        """Return a change, with its sign turned so that more is better; NaN if neither direction is
        better."""
        return {"lower": -change, "higher": change, None: nan}[self.better]

    def text(self, value: float, sign: str = "") -> str:
        """Write a value with the measure's digits. `sign` is as in Python's formats."""
        return f"{value:{sign},.{self.digits}f}"

    def estimate(self, row: Mapping[Any, Any]) -> str:
        """Write a paired difference with its t interval, from `mean_delta`, `t_low`, `t_high`."""
        delta, low, high = (self.text(row[key], "+") for key in ("mean_delta", "t_low", "t_high"))
        if isnan(row["mean_delta"]):
            return "n/a"
        return f"{delta} (no interval)" if isnan(row["t_low"]) else f"{delta} [{low}, {high}]"


_EVERYWHERE: tuple[MeasureGroup, ...] = ("summary", "headline", "comparison")


class _Registry(dict[str, Measure]):
    """Knows the accuracy of any stock task, although it does not list them."""

    def __contains__(self, name: object) -> bool:
        with suppress(KeyError):
            return bool(self[str(name)])
        return False

    def __missing__(self, name: str) -> Measure:
        task, _, shots = name.rpartition(".acc")
        if not task or shots[:1] not in ("", "@"):
            raise KeyError(name)
        label = f"{task} accuracy" + (f", {shots[1:]}-shot" if shots else "")
        return Measure(label, "", "higher", 4)


MEASURES = _Registry({
    "perplexity": Measure("held-out perplexity", "", "lower", 3, _EVERYWHERE),
    "perplexity_dev": Measure("dev perplexity", "", "lower", 3),
    "perplexity_test": Measure("test perplexity", "", "lower", 3, ("summary",)),
    "loss": Measure("held-out loss", "nats", "lower", 4, ("summary", "headline")),
    "loss_test": Measure("test loss", "nats", "lower", 4),
    "bits_per_character": Measure("bits per character", "", "lower", 4, ("summary",)),
    "accuracy": Measure("next-token accuracy", "", "higher", 4, _EVERYWHERE),
    "accuracy_test": Measure("test next-token accuracy", "", "higher", 4),
    "macro_accuracy_zero_shot": Measure("macro accuracy, zero-shot", "", "higher", 4, _EVERYWHERE),
    "macro_accuracy_few_shot": Measure("macro accuracy, few-shot", "", "higher", 4,
                                       ("summary", "headline")),
    "ece": Measure("expected calibration error", "", "lower", 4, (*_EVERYWHERE, "calibration")),
    "ece_null": Measure("ECE of a perfectly calibrated model", "", None, 4, ("calibration",)),
    "ece_equal_width": Measure("ECE, 15 equal-width bins", "", "lower", 4, ("calibration",)),
    "brier": Measure("Brier score", "", "lower", 4, ("summary", "calibration")),
    "temperature": Measure("best temperature (dev)", "", None, 3, ("summary", "calibration")),
    "ece_test": Measure("test ECE", "", "lower", 4, ("calibration",)),
    "ece_test_tempered": Measure("test ECE at that temperature", "", "lower", 4, ("calibration",)),
    "nll_test_tempered": Measure("test loss at that temperature", "nats", "lower", 4,
                                 ("calibration",)),
    "grad_norm": Measure("final gradient norm", "", None, 4, ("summary",)),
    "grad_norm_last_tenth": Measure("gradient norm, mean of last tenth", "", None, 4, ("summary",)),
    "gradient_cosine": Measure("mean cosine between gradients of two parts of dev", "", "higher",
                               3, ("summary", "comparison")),
    "severity": Measure("largest rise of the training loss", "nats", "lower", 3, ("summary",)),
    "unstable": Measure("unstable runs, as a share", "", "lower", 2, ("summary",)),
    "plateau": Measure("plateau of the training loss", "steps", "lower", 1, ("summary",)),
    "harmful": Measure("runs of harmful instability, as a share", "", "lower", 2, ("summary",)),
    "embedding_norm": Measure("mean embedding norm", "", None, 3, ("summary",)),
    "embedding_angle": Measure("mean turn of a token embedding in a step", "rad", None, 5),
    "log_residual_norm_1": Measure("log length of the stream after block 1, steps 50 to 100", "",
                                   None, 3),
    "training_tokens_per_second": Measure("training speed", "tokens/s", "higher", 0, ("summary",)),
    "peak_memory": Measure("peak memory of a training process", "GB", "lower", 2),
    "inference_tokens_per_second": Measure("inference speed, batched", "tokens/s", "higher", 0,
                                           ("summary",)),
    "inference_tokens_per_second_batch_1": Measure("inference speed, batch 1", "tokens/s",
                                                   "higher", 0, ("summary",)),
})  # fmt: skip
"""Measures in the order in which tables show them."""

MAIN = ("loss", "perplexity")
"""The measures that are shown first in a study without a plan."""

PER_TOKEN = frozenset(
    name
    for name in MEASURES
    if name.startswith(("loss", "perplexity", "accuracy", "ece", "brier", "nll", "temperature"))
)
"""Measures per token. They cannot be compared between tokenizers, whose tokens hold different
amounts of text."""

JUDGED = ("unstable", "harmful")
"""Measures that are 1 or 0 for a run, by the plan's definition, so that a mean is a share of
runs."""


def measures_in(group: MeasureGroup) -> list[str]:
    """List the measures of a group, in order."""
    return [name for name, measure in MEASURES.items() if group in measure.groups]
