"""How a command says what stopped it."""

import errno
from pathlib import Path

import pytest

from lib.study.yaml import ConfigError, UserError, exit_status, read_yaml


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


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("seeds: {count: 010}", "010"),
        ("seeds: [0, -010]", "-010"),
        ("a:\n- b: 1:30", "1:30"),
        ("a: {<<: {b: 1_0}}", "1_0"),
        ("a: 0x1F", "0x1F"),
        ("a: !!int '010'", "010"),
    ],
)
def test_a_number_that_other_readers_read_otherwise_is_refused(
    written: str, number: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(f"# first\n{written}", "utf-8")
    with pytest.raises(ConfigError) as error:
        read_yaml(tmp_path / "a.yaml")
    line = 1 + f"# first\n{written}".count("\n")
    said = f"{number!r} is no decimal number; write one, or a text in quotes"
    assert str(error.value) == f"a.yaml, line {line} is not valid YAML: {said}"


def test_decimal_numbers_and_quoted_texts_are_read_as_they_stand(tmp_path: Path) -> None:
    text = "a: [0, -3, +5, 10, 1.0, .5, 00.5, 1.0e-3, -2.5E+3, .inf, '010', \"1_0\", 08, 1-2]"
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    numbers = [0, -3, 5, 10, 1.0, 0.5, 0.5, 1e-3, -2500.0, float("inf")]
    assert read_yaml(tmp_path / "a.yaml") == {"a": [*numbers, "010", "1_0", "08", "1-2"]}


def test_a_mapping_merged_with_an_override_may_be_merged_anywhere(tmp_path: Path) -> None:
    text = "i: [{l: &a {n: 2, m: 1}}, {l: &b {<<: *a, n: 4}}]\ne: [{<<: *b}, {<<: [*b, *a], m: 3}]"
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    content = read_yaml(tmp_path / "a.yaml")
    assert content["i"] == [{"l": {"n": 2, "m": 1}}, {"l": {"n": 4, "m": 1}}]
    assert content["e"] == [{"n": 4, "m": 1}, {"n": 4, "m": 3}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a {n: 1}\nb: &b {n: 2}\nc: {<<: *a, <<: *b}", "line 3 is not valid YAML: field '<<'"),
        ("a: &a {n: 1}\nc: {<<: *a, m: 1, m: 2}", "line 2 is not valid YAML: field 'm'"),
        ("a: 1\nb: 2\na: 3", "line 3 is not valid YAML: field 'a'"),
    ],
)
def test_a_field_that_stands_twice_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        read_yaml(tmp_path / "a.yaml")
    assert str(error.value) == f"a.yaml, {said} stands twice"
