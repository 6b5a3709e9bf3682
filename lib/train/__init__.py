"""One run: the model, its training and its measurement, up to `result.json`.

Imports `lib.config`, `lib.data` and `lib.results`. Start reading at `model`, then `trainer`. The
first lines of `trainer` have a diagram of a training step.
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
