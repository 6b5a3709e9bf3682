"""What the pages of a study say of it in short."""

import pytest

from lib.publish import overlay
from lib.publish.catalogue import StudyEntry

STUDY = StudyEntry("sample", True, [], [], {}, None, "")


def test_over_several_settings_it_is_counted_what_a_variant_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals = [(1.0, 2.0), (-2.0, -1.0), (-1.0, 1.0), (None, None), (-8e-6, -6e-6)]
    rows = [
        {"measure": "perplexity", "mean_delta": 0.0 if low is None else (low + high) / 2}
        | {"t_low": low, "t_high": high, "n": 3}
        for low, high in intervals
    ]
    rows[3]["mean_delta"] = 1.5
    found = [
        overlay.Difference(STUDY, row, "scale", "none", str(i), True) for i, row in enumerate(rows)
    ]
    monkeypatch.setattr(overlay, "differences", lambda _: found)
    assert list(overlay.in_short(STUDY)) == [
        "<b>scale</b>, in five settings: lowers validation perplexity in one; raises validation "
        "perplexity in one; does not detectably change validation perplexity in one; changes, with "
        "too few seeds for an interval, validation perplexity in one; changes no digit shown of "
        "validation perplexity in one."
    ]
