"""What went wrong in several processes is said in one line."""

import pytest

from lib.run.processes import _reason

AGENT = """\
W1121 20:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 2
============================================================
lib.run.distributed FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_20:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 3)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 3
============================================================
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (AGENT, "training process 1 ended with status -9"),
        ("noise\nerror: no such device\nerror: it\n" + AGENT, "no such device"),
        ("", "the training processes could not be started"),
    ],
)
def test_the_first_reason_is_found(log: str, reason: str) -> None:
    assert _reason(log) == reason
