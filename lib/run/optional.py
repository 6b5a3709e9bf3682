"""What the task suite needs, and a stock image lacks."""

import importlib.util

INSTALL = "pip install lm_eval==0.4.13"


def has_harness() -> bool:
    """Tell whether the LM-Eval harness is installed."""
    return importlib.util.find_spec("lm_eval") is not None
