import pytest
import torch

from lib.config.schema import RunConfig
from tests.conftest import TINY
from tests.train.samples import train


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def undisturbed(corpus, tmp_path_factory):
    """The tiny run, trained without a break."""
    return train(RunConfig.model_validate(TINY), corpus, 0, tmp_path_factory.mktemp("undisturbed"))
