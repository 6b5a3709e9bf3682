import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import papermill
import pytest
from lib.workflow.execution import ExecutionError, execute, main

from lib.results import status_of
from lib.study.study import Study
from lib.study.yaml import ConfigError
from lib.workflow import execution

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


@pytest.mark.slow
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
@pytest.mark.slow
def test_a_failed_notebook_is_kept_and_stamped_and_its_result_does_not_count(
    cell: str, reason: str, write_notebook: Callable[..., Path], tiny_study: Study, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    noted = f"open({str(count)!r}, 'a').write('x')"
    output = write_notebook(WRITE, noted, cell, "print('never reached')")
    with pytest.raises(ExecutionError, match=reason):
        execute("probe", tiny_study)
    stamp = status_of(output)
    assert stamp["status"] == "failed"
    assert reason in stamp["reason"]
    assert nbformat.read(output, 4).cells[0].source.startswith("# FAILED")
    assert not (output.parent / "result.json").exists()
    assert count.read_text() == "x"  # it is not tried again


@pytest.mark.slow
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


def test_a_parameter_that_the_notebook_does_not_declare_is_refused(
    write_notebook: Callable[..., Path], tiny_study: Study
) -> None:
    write_notebook(WRITE, parameters="studdy: str = ''")
    with pytest.raises(ConfigError, match="'study' is unknown; did you mean 'studdy'"):
        execute("probe", tiny_study)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["02_trian", "smoke"], "02_trian.ipynb"),
        (["02_train", "smok"], "did you mean 'smoke'"),
        (["02_train", "smoke", "layer"], "did you mean 'layernorm'"),
        (["02_train", "smoke", "none", "7"], "it has [0, 1]"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*words) == 1
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


@pytest.mark.parametrize("refusals", [2, 99])
def test_a_kernel_that_does_not_start_is_tried_again_and_then_given_up(
    refusals: int,
    write_notebook: Callable[..., Path],
    tiny_study: Study,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[int] = []
    result = write_notebook().parent / "result.json"
    monkeypatch.setattr(papermill, "execute_notebook", played([("completed", 1)], result, {}))
    monkeypatch.setattr(papermill, "execute_notebook", refusing(attempts, refusals))
    if refusals == 2:
        assert execute("probe", tiny_study) == result
    else:
        with pytest.raises(ExecutionError, match="Kernel died before replying"):
            execute("probe", tiny_study)
    assert len(attempts) == 3


@pytest.mark.slow
def test_the_kernel_is_of_this_python_and_has_its_variables_whatever_the_machine_calls_python3(
    write_notebook: Callable[..., Path],
    tiny_study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text('{"argv": ["/bin/false"], "display_name": "", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "STUDY_HEADLESS"]
    write_notebook(
        f"import os, sys, json; values = [sys.prefix, *(os.environ[n] for n in {names})]",
        "open(result, 'w').write(json.dumps(values))",
    )
    assert json.loads(execute("probe", tiny_study).read_text()) == [sys.prefix, "1", "1", "1"]


def test_a_notebook_still_running_is_unfinished(tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "n.ipynb")
    assert status_of(tmp_path / "n.ipynb")["status"] == "unfinished"
    assert status_of(tmp_path / "absent.ipynb")["status"] == "unfinished"


def played(cells: list[tuple[str, int | None]], write: Path | None, options: dict[str, Any]) -> Any:
    """Stand for papermill: leave code cells of some status and count, and perhaps a result."""

    def execute_notebook(source: str, output: str, parameters: Any, **words: Any) -> None:
        options.update(words, parameters=parameters)
        notebook = nbformat.v4.new_notebook()
        notebook.metadata["papermill"] = {"input_path": source, "output_path": output}
        for status, count in cells:
            cell = nbformat.v4.new_code_cell("1", execution_count=count)
            cell.metadata["papermill"] = {"status": status, "start_time": "2026-01-01"}
            if status == "raised":
                cell.metadata["papermill"]["status"] = "completed"
                cell.outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
            notebook.cells.append(cell)
        nbformat.write(notebook, output)
        if write:
            write.write_text("{}")

    return execute_notebook


@pytest.mark.parametrize(
    ("cells", "written", "reason"),
    [
        ([("completed", 1), ("completed", 2)], True, None),
        ([("completed", 1), ("completed", 2)], False, r"the notebook wrote no .*result\.json"),
        *(
            ([("completed", 1), (status, 2)], True, f"code cell 2 is {status}")
            for status in ("running", "pending", "failed")
        ),
        ([("completed", 1), ("completed", None)], True, "code cell 2 is completed"),
        ([("", None)], True, "code cell 1 is not executed"),
        ([("completed", 1), ("raised", 2)], True, "code cell 2 raised an error"),
    ],
)
def test_a_notebook_counts_only_where_every_cell_completed_and_its_result_is_there(
    cells: list[tuple[str, int | None]],
    written: bool,
    reason: str | None,
    write_notebook: Callable[..., Path],
    tiny_study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, options = write_notebook(), {}
    result = output.parent / "result.json"
    output.parent.mkdir()
    result.write_text("of an earlier execution")
    stand_in = played(cells, result if written else None, options)
    monkeypatch.setattr(papermill, "execute_notebook", stand_in)
    (output.parent / "live.html").touch()
    monkeypatch.setattr(execution, "live_file", lambda folder: folder / "live.html")
    if reason is None:
        assert execute("probe", tiny_study) == result
        assert result.read_text() == "{}"
    else:
        with pytest.raises(ExecutionError, match=f"{reason}; see .*probe.ipynb"):
            execute("probe", tiny_study)
    assert (result.is_file(), (output.parent / "live.html").exists()) == (not reason, bool(reason))
    notebook, stamp = nbformat.read(output, 4), status_of(output)
    assert stamp["status"] == ("failed" if reason else "completed")
    assert (stamp["preregistration"], stamp["seconds"] >= 0) == (None, True)
    assert {"commit", "clean"} <= stamp.keys()
    assert notebook.cells[0].source.startswith("# FAILED") == bool(reason)
    assert not list(output.parent.glob(".*"))
    assert options["parameters"] == {"study": "tiny"}
    assert options["config"].KernelManager.transport == "ipc"  # ports clash


def test_a_run_is_given_its_arm_and_seed_and_the_hash_of_its_plan(
    write_notebook: Callable[..., Path], tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, options = write_notebook(parameters="study = ''\narm = ''\nseed = 0"), {}
    plan = SimpleNamespace(hash="f" * 64)
    monkeypatch.setattr(execution, "load_plan", lambda study: plan)
    stand_in = played([("completed", 1)], output.parent / "result.json", options)
    monkeypatch.setattr(papermill, "execute_notebook", stand_in)
    execute("probe", tiny_study, "none", 1)
    assert options["parameters"] == {"study": "tiny", "arm": "none", "seed": 1}
    assert status_of(output)["preregistration"] == "f" * 64
    for arm, seed in (("layer", 1), ("none", 7)):
        with pytest.raises(ConfigError):
            execute("probe", tiny_study, arm, seed)


@pytest.mark.parametrize(("threads", "devices"), [(1, None), (2, "0,1")])
def test_a_kernel_inherits_threads_and_devices(
    threads: int, devices: str | None, tiny_study: Study
) -> None:
    machine = tiny_study.machine.model_copy(update={"threads": threads})
    study = tiny_study.model_copy(update={"machine": machine})
    given = execution.kernel_environment(study, devices)
    assert {given[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {str(threads)}
    assert (given["STUDY_HEADLESS"], given.get("CUDA_VISIBLE_DEVICES")) == ("1", devices)
    assert given["JUPYTER_PATH"].startswith(sys.prefix)


def test_a_cell_that_raised_is_not_executed_again(
    write_notebook: Callable[..., Path], tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def execute_notebook(source: str, output: str, *_: Any, **__: Any) -> None:
        calls.append(source)
        played([("running", 1)], None, {})(source, output, {})
        if len(calls) > 1:
            raise papermill.PapermillExecutionError(1, 1, "1", "ValueError", "no luck", [])
        raise RuntimeError("the kernel died at work")

    write_notebook()
    monkeypatch.setattr(papermill, "execute_notebook", execute_notebook)
    for said in ("RuntimeError: the kernel died at work", "ValueError: no luck"):
        with pytest.raises(ExecutionError, match=said):
            execute("probe", tiny_study)
    assert len(calls) == 2
