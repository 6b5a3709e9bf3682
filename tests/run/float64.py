"""The processes of a run, at float64 throughout: differences of rounding shrink to 1e-16."""

import sys

import torch

from lib.run import distributed


def at_float64() -> None:
    """Make float64 the type of weights, and of what is widened to be summed."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]


if __name__ == "__main__":
    at_float64()
    sys.exit(distributed.main(sys.argv[1:]))
