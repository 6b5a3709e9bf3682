"""YAML is read as version 1.2 says, without surprises, and a command says what stopped it."""

import signal
import subprocess
import sys
from errno import ENOSPC

import pytest

from lib.config.errors import ConfigError, UsageError, UserError, exit_status
from lib.config.paths import ROOT
from lib.config.yaml import read_yaml
from tests.conftest import refused


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such thing; name another"), 1, "no such thing; name another"),
        (ConfigError("model: is missing; add it"), 1, "model: is missing; add it"),
        (UsageError("flag -x"), 2, "flag -x"),
        (OSError(ENOSPC, "No space left on device", "runs"), 1, "No space left on device (runs)"),
    ],
)
def test_command_error_is_one_line_and_a_status(error, status, said, capsys):
    @exit_status
    def command():
        raise error

    assert command() == status
    assert capsys.readouterr() == ("", f"error: {said}\n")


def test_a_command_whose_output_nobody_reads_any_more_ends_in_silence():
    """As `./run_all.sh … | head -1` does."""
    code = (
        "from lib.config.errors import exit_status as e; exit(e(lambda: print('x\\n' * 10**6))())"
    )
    command = f'set -o pipefail; "{sys.executable}" -c "{code}" | head -1'
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGPIPE, "x\n", "")


def test_command_returns_its_status_and_bugs_keep_their_traceback():
    @exit_status
    def command(answer):
        """Answer."""
        if answer == 9:
            raise ValueError("a bug")
        return answer

    assert [command(answer) for answer in (None, 0, 3)] == [0, 0, 3]
    assert command.__doc__ == "Answer."
    with pytest.raises(ValueError, match="a bug"):
        command(9)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        (".inf", float("inf")),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("2026-01-31", "2026-01-31"),
        ("true", True),
        ("null", None),
        ("'010'", "010"),
    ],
)
def test_a_value_is_read_as_yaml_1_2_says(written, read, tmp_path):
    (tmp_path / "a.yaml").write_text(f"a: {written}", "utf-8")
    (value,) = read_yaml(tmp_path / "a.yaml").values()
    assert (value, type(value)) == (read, type(read))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", ', line 3 is not valid YAML: found duplicate key "a"'),
        ("a: {n: 1, m: 1, m: 2}", ', line 1 is not valid YAML: found duplicate key "m"'),
        ("[" * 2_000, " is not valid YAML in UTF-8: maximum recursion depth"),
        ("a: [1", ", line 1 is not valid YAML: "),
    ],
)
def test_ambiguous_yaml_is_refused(text, said, tmp_path):
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    assert refused(read_yaml, tmp_path / "a.yaml").startswith(f"a.yaml{said}")


def test_what_was_read_may_be_changed(tmp_path):
    (tmp_path / "a.yaml").write_text("a: {b: 1}", "utf-8")
    read_yaml(tmp_path / "a.yaml")["a"]["b"] = 2
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"b": 1}}
