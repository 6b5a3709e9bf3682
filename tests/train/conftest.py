import pytest

from lib.config.schema import RunConfig
from lib.data.text import Corpus
from lib.train.trainer import Trainer
from tests.conftest import TINY
from tests.train.samples import train


@pytest.fixture(scope="session")
def undisturbed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The tiny run, trained at one go."""
    return train(RunConfig.model_validate(TINY), corpus, 0, tmp_path_factory.mktemp("undisturbed"))
