import numpy as np
import pytest

from lib.run.quantiles import quantiles


@pytest.mark.parametrize("n", [1, 2, 1000, 65_537])
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1.0, 1e30])
def test_quantiles_of_parts_are_numpys_of_the_whole_to_the_bit(n: int, scale: float) -> None:
    numbers = (np.random.default_rng(n).normal(size=n) * scale).astype(np.float32)
    numbers[:: max(1, n // 7)] = numbers[0]  # some are equal
    probabilities = [0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0]
    expected = np.quantile(numbers, probabilities)
    for parts in (1, 3):
        split = np.array_split(numbers, parts)
        assert quantiles(lambda split=split: split, probabilities) == expected.tolist()
