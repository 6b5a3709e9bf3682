import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from lib.study.config import Study
from lib.study.errors import ConfigError
from lib.study.record import status_of
from lib.workflow import execution
from lib.workflow.execution import ExecutionError, execute, main

pytestmark = pytest.mark.slow
WRITE = "from pathlib import Path; Path(result).write_text('{}')"


@pytest.fixture
def write_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a notebook `probe` whose variable `result` is where its result belongs; everything that
    executing it makes goes to a folder of the test's. Return the executed notebook's path."""
    output, result = tmp_path / "out" / "probe.ipynb", tmp_path / "out" / "result.json"
    monkeypatch.setattr(execution, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(execution, "executed_notebook", lambda *_: output)
    monkeypatch.setattr(execution, "result_file", lambda *_: result)
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def write(*cells: str, parameters: str = "study: str = ''") -> Path:
        notebook = nbformat.v4.new_notebook()
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}  # noqa: E501  # fmt: skip
        first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        sources = [f"result = {str(result)!r}", *cells]
        notebook.cells = [first, *map(nbformat.v4.new_code_cell, sources)]
        nbformat.write(notebook, tmp_path / "probe.ipynb")
        return output

    return write


def test_a_notebook_that_completes_is_stamped_and_leaves_its_result(
    write_notebook: Callable[..., Path], tiny_study: Study, tmp_path: Path
) -> None:
    output = write_notebook("print(study)", WRITE)
    assert execute("probe", tiny_study).read_text() == "{}"
    assert status_of(output)["status"] == "completed"
    assert "tiny\n" in output.read_text("utf-8").replace("\\n", "\n")
    assert str(tmp_path) not in str(nbformat.read(output, 4).metadata)  # no folder of a machine


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("raise ValueError('no such luck')", "ValueError: no such luck"),
        ("import os; os.kill(os.getpid(), 9)", "DeadKernelError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_failed_notebook_is_kept_and_stamped_and_its_result_does_not_count(
    cell: str, reason: str, write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    output = write_notebook(WRITE, cell, "print('never reached')")
    with pytest.raises(ExecutionError, match=reason):
        execute("probe", tiny_study)
    stamp = status_of(output)
    assert stamp["status"] == "failed"
    assert reason in stamp["reason"]
    assert nbformat.read(output, 4).cells[0].source.startswith("# FAILED")
    assert not (output.parent / "result.json").exists()


def test_a_notebook_without_its_result_has_failed(
    write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    write_notebook("1 + 1")
    with pytest.raises(ExecutionError, match=r"wrote no result\.json"):
        execute("probe", tiny_study)


def test_an_earlier_result_does_not_pass_for_a_later_failure(
    write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    write_notebook(WRITE)
    execute("probe", tiny_study)
    write_notebook("1 + 1")
    with pytest.raises(ExecutionError, match="wrote no"):
        execute("probe", tiny_study)


def test_a_timeout_is_a_failure_though_papermill_leaves_every_cell_completed(
    write_notebook: Callable[..., Path], tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = papermill.execute_notebook
    limited = lambda *a, **k: real(*a, **k, execution_timeout=1)  # noqa: E731
    monkeypatch.setattr(papermill, "execute_notebook", limited)
    output = write_notebook(WRITE, "import time; time.sleep(60)")
    with pytest.raises(ExecutionError, match="CellTimeoutError"):
        execute("probe", tiny_study)
    assert status_of(output)["status"] == "failed"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({}, None),
        ({"status": "running"}, "code cell 2 is running"),
        ({"status": "pending"}, "code cell 2 is pending"),
        ({"status": "failed"}, "code cell 2 is failed"),
        ({"status": None}, "code cell 2 is not executed"),
        ({"execution_count": None}, "code cell 2 is completed"),
        ({"outputs": [nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[])]},
         "code cell 2 raised an error"),
    ],
)  # fmt: skip
def test_a_notebook_counts_only_with_every_cell_completed_though_papermill_saw_no_error(
    cell: dict[str, Any],
    reason: str | None,
    write_notebook: Callable[..., Path],
    tiny_study: Study,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = write_notebook(WRITE)
    result = output.with_name("result.json")

    def leave(*_: object) -> None:
        """Leave what papermill may: no exception, and a result."""
        cells = [nbformat.v4.new_markdown_cell("text")]
        for fault in ({}, cell):
            fields = {"status": "completed", "execution_count": 1, "outputs": []} | fault
            status = fields.pop("status")
            metadata = {"papermill": {"status": status}} if status else {}
            cells.append(nbformat.v4.new_code_cell("1", metadata=metadata, **fields))
        nbformat.write(nbformat.v4.new_notebook(cells=cells), output)
        result.write_text("{}", "utf-8")

    monkeypatch.setattr(execution, "_run_papermill", leave)
    if reason is None:
        assert execute("probe", tiny_study) == result
        return
    with pytest.raises(ExecutionError, match=f"^{reason}"):
        execute("probe", tiny_study)
    assert (status_of(output)["status"], result.exists()) == ("failed", False)


def test_a_parameter_that_the_notebook_does_not_declare_is_refused(
    write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    write_notebook(WRITE, parameters="studdy: str = ''")
    with pytest.raises(ConfigError, match="'study' is unknown; did you mean 'studdy'"):
        execute("probe", tiny_study)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["02_trian", "--study", "smoke"], "did you mean '02_train'"),
        (["02_train", "--study", "smok"], "did you mean 'smoke'"),
        (["02_train", "--study", "smoke", "--arm", "layer"], "did you mean 'layernorm'"),
        (["02_train", "--study", "smoke", "--arm", "none", "--seed", "7"], "it has [0, 1]"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert message in capsys.readouterr().err


def refusing(attempts: list[int], refusals: int) -> Callable[..., Any]:
    """Stand for papermill: the kernel does not start so many times."""
    real = papermill.execute_notebook

    def execute_notebook(*words: Any, **options: Any) -> Any:
        attempts.append(1)
        if len(attempts) <= refusals:
            raise RuntimeError("Kernel died before replying to kernel_info")
        return real(*words, **options)

    return execute_notebook


def test_a_kernel_that_does_not_start_is_tried_again(
    write_notebook: Callable[..., Path], tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(papermill, "execute_notebook", refusing(attempts, 2))
    write_notebook(WRITE)
    execute("probe", tiny_study)
    assert len(attempts) == 3


def test_a_kernel_that_never_starts_is_given_up(
    write_notebook: Callable[..., Path], tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(papermill, "execute_notebook", refusing(attempts, 99))
    write_notebook(WRITE)
    with pytest.raises(ExecutionError, match="Kernel died before replying"):
        execute("probe", tiny_study)
    assert len(attempts) == 3


def test_a_kernel_that_dies_at_work_is_not_tried_again(
    write_notebook: Callable[..., Path], tiny_study: Study, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    write_notebook(
        f"open({str(count)!r}, 'a').write('x')", "import os; os.kill(os.getpid(), 9)", WRITE
    )
    with pytest.raises(ExecutionError, match="DeadKernelError"):
        execute("probe", tiny_study)
    assert count.read_text() == "x"


def test_the_kernel_gets_pinned_threads_and_no_progress_bars(
    write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "STUDY_HEADLESS"]
    write_notebook(
        f"import os, json; values = [os.environ[n] for n in {names}]",
        "open(result, 'w').write(json.dumps(values))",
    )
    assert execute("probe", tiny_study).read_text() == '["1", "1", "1"]'


def test_the_kernel_is_of_this_python_whatever_the_machine_calls_python3(
    write_notebook: Callable[..., Path],
    tiny_study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text('{"argv": ["/bin/false"], "display_name": "", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    write_notebook("import sys; from pathlib import Path; Path(result).write_text(sys.prefix)")
    assert execute("probe", tiny_study).read_text() == sys.prefix


def test_a_notebook_still_running_is_unfinished(tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "n.ipynb")
    assert status_of(tmp_path / "n.ipynb")["status"] == "unfinished"
    assert status_of(tmp_path / "absent.ipynb")["status"] == "unfinished"
