import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure


@pytest.fixture
def ax():
    before = dict(mpl.rcParams)
    yield Figure().add_subplot()
    assert dict(mpl.rcParams) == before  # no function touches global state


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows."""
    shown = []
    for module in ("style", "training"):
        monkeypatch.setattr(
            f"lib.figures.{module}.show", lambda figure, **_: shown.append(figure) or b"PNG"
        )
    yield shown
    plt.close("all")
