"""How a command says what stopped it."""

import errno

import pytest

from lib.study.errors import ConfigError, UserError, exit_status


class RefusedError(UserError):
    status = 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such thing; name another"), 1, "no such thing; name another"),
        (ConfigError("model: is missing; add it"), 1, "model: is missing; add it"),
        (RefusedError("flag -x"), 2, "flag -x"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs"),
            1,
            "No space left on device (runs); free some space and rerun, which continues",
        ),
    ],
)
def test_what_stops_a_command_is_one_line_and_a_status(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @exit_status
    def command() -> None:
        raise error

    assert command() == status
    assert capsys.readouterr() == ("", f"error: {said}\n")


def test_a_command_says_its_own_status_and_a_bug_stays_one() -> None:
    @exit_status
    def command(answer: int | None) -> int | None:
        """Answer."""
        if answer == 9:
            raise ValueError("a bug")
        return answer

    assert [command(answer) for answer in (None, 0, 3)] == [0, 0, 3]
    assert command.__doc__ == "Answer."
    with pytest.raises(ValueError, match="a bug"):
        command(9)
