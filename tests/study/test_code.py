"""What is said where git cannot tell."""

import pytest

from lib.study.code import GitError, ask_git
from tests.study.samples import Parameters, Repository


def test_an_error_names_its_cause_and_no_hint(parameters: Parameters) -> None:
    repository = Repository(parameters)
    repository.parameters.plan()
    first, _ = repository.commit()
    repository.commit(alpha=0.01)
    (repository.top / ".git" / "objects" / first[:2] / first[2:]).unlink()
    with pytest.raises(GitError, match=f"^(error|fatal): .*{first}"):
        ask_git("log", "--format=%H")
