"""Answer all that is asked of one commit about one study, in one process in that commit's tree.

    python -c "$(cat lib/record/asked.py)" STUDY PROGRAMS

PROGRAMS is JSON: for each question the program that prints its answer. Printed is JSON as well: for
each question `[answer, ""]`, or `[null, what went wrong]`. It names nothing of `lib`, which is that
of the tree.
"""

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any


def analysis(study: str) -> dict[str, Any]:
    """Execute the cells of 03_analysis in this process; return them with what they show, and what
    they write: result and verdict."""
    import pandas as pd
    from ipykernel.inprocess.manager import InProcessKernelManager
    from nbformat.v4 import output_from_msg

    pd.set_option("display.max_columns", 20)  # as in a kernel: it may have been imported before

    notebook = json.loads(Path("notebooks/03_analysis.ipynb").read_text("utf-8"))
    manager: Any = InProcessKernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            is_parameters = "parameters" in cell["metadata"].get("tags", [])
            more = f"\nstudy = {study!r}" if is_parameters else ""
            client.execute("".join(cell["source"]) + more)
            told = client.iopub_channel.get_msgs()
            shown = ("stream", "display_data", "execute_result", "error")
            cell["outputs"] = [output_from_msg(msg) for msg in told if msg["msg_type"] in shown]
            for out in cell["outputs"]:
                if out["output_type"] == "error":
                    raise SystemExit(f"{out['ename']}: {out['evalue']}")
    folder = Path("runs", study)
    written = {"result": "03_analysis.json", "verdict": "verdict.json"}
    files = {what: json.loads((folder / name).read_text("utf-8")) for what, name in written.items()}
    return {"notebook": notebook, **files}


def answer(study: str, question: str, program: str) -> tuple[Any, str]:
    """Run the program of a question; return what its last line says, and what went wrong."""
    printed, errors = io.StringIO(), io.StringIO()
    sys.argv[1:] = [study]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            if question == "analysis":
                return analysis(study), ""
            exec(program, {"__name__": "__main__"})
    except SystemExit as end:
        if end.code:
            said = end.code if isinstance(end.code, str) else errors.getvalue()
            return None, said or f"{question} failed"
    except Exception:
        return None, traceback.format_exc()
    return json.loads(printed.getvalue().rstrip().rpartition("\n")[2]), ""


if __name__ == "__main__":
    study, programs = sys.argv[1:]
    asked = json.loads(programs)
    print(json.dumps({question: answer(study, question, asked[question]) for question in asked}))
