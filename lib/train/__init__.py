"""One run: the model, its training, and its measurement.

Imports `lib.config`, `lib.data` and `lib.results`; ends in a `result.json`. Start at `model`, then
read `trainer`, whose first lines draw a step.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "evaluate": ["facts_of", "measure"],
        "machine": ["random_stream"],
        "trainer": ["train"],
    },
)
