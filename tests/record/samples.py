"""A made-up record: notebooks and results of two recorded studies, and one left in `runs/`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from lib.analysis.rules import Answer, Decision, Evidence

from lib.analysis.paired import contrast_table
from lib.analysis.runs import study_results, tidy
from lib.analysis.verdict import Verdict
from lib.publish import catalogue, initial_rms, site
from lib.record import archive
from lib.record.record import Record, paper_of
from lib.results import RunResult, raw_file
from lib.study import io as paths
from lib.study.io import PAPERS, read_json, write_json
from lib.study.study import Study
from tests.conftest import TINY
from tests.samples import sample_runs

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
HOSTILE = """
<script>window.struck = "script"</script>
<img src="x" onerror="window.struck = 'handler'">
<img src="http://elsewhere.invalid/a.png" alt="from elsewhere">
<svg onload="window.struck = 'svg'"><script>window.struck = 'svg script'</script></svg>
<iframe srcdoc="<script>parent.struck = 'frame'</script>"></iframe>
<style>@import "http://elsewhere.invalid/a.css"; main { display: none }</style>
<link rel="stylesheet" href="http://elsewhere.invalid/b.css">
<meta http-equiv="refresh" content="0; url=http://elsewhere.invalid/">
<base href="http://elsewhere.invalid/">
<a href="javascript:window.struck = 'link'">a link</a>
<form action="http://elsewhere.invalid/"><input name="a"><button>send</button></form>
<p style="background: url(http://elsewhere.invalid/c.png)" onclick="struck = 'click'">kept</p>
</div></main></body><table><tr><td>4.2</td></tr></table>
"""


def hostile_notebook() -> nbformat.NotebookNode:
    """A notebook that tries to execute and to load things in every way a notebook can."""
    outputs = [
        nbformat.v4.new_output("display_data", data={"text/html": HOSTILE}),
        nbformat.v4.new_output("display_data", data={"text/markdown": HOSTILE}),
        nbformat.v4.new_output(
            "display_data",
            data={"application/javascript": "window.struck = 'js'", "text/plain": "plain instead"},
        ),
        nbformat.v4.new_output(
            "display_data",
            data={"image/png": PIXEL},
            metadata={"image/png": {"width": "1 onload=window.struck='width'"}},
        ),
        nbformat.v4.new_output(
            "display_data",
            data={
                "image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' onload='top.struck=1'/>"
            },
        ),
        nbformat.v4.new_output("stream", text="\x1b[31m<script>window.struck = 1</script>\x1b[0m"),
    ]
    cells = [
        nbformat.v4.new_markdown_cell("# Title\n![](http://elsewhere.invalid/d.png)\n" + HOSTILE),
        nbformat.v4.new_raw_cell(HOSTILE, metadata={"raw_mimetype": "text/html"}),
        nbformat.v4.new_code_cell("'<script>window.struck = 1</script>'", outputs=outputs),
        nbformat.v4.new_code_cell("write_result(design)"),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def plain_notebook(text: str) -> nbformat.NotebookNode:
    """A notebook with a heading and one printed line."""
    printed = nbformat.v4.new_output("stream", text=text)
    cells = [
        nbformat.v4.new_markdown_cell("# A notebook"),
        nbformat.v4.new_code_cell("print(continuations(text))", outputs=[printed]),
        *map(nbformat.v4.new_code_cell, ("write_result(design)", "display(claim, analysis)")),
        *map(nbformat.v4.new_code_cell, ("summary_table(runs)", "contrast_overview(contrasts)")),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def figures_notebook(study: str) -> nbformat.NotebookNode:
    """04 as it is executed: a text above each of two figures, all in one cell."""
    outputs = []
    for title in ("Effects", "Loss"):
        words = f"## {title}\n\nWhat does `{title}` of {study} *show*? <script>struck = 1</script>"
        outputs.append(nbformat.v4.new_output("display_data", data={"text/markdown": words}))
        outputs.append(nbformat.v4.new_output("display_data", data={"image/png": PIXEL}))
    cells = [
        nbformat.v4.new_markdown_cell("# 04 · Figures"),
        nbformat.v4.new_code_cell("for figure in figures: figure.draw()", outputs=outputs),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def in_json(path: Path, edit: Callable[[Any], object]) -> None:
    """Change what a JSON file holds, which is then written as the archive writes notebooks."""
    content = read_json(path)
    edit(content)
    write_json(path, content, indent=None)


def trace_of(seed: int, steps: int = 300) -> pd.DataFrame:
    """A falling loss with one spike, of height 9, at a step of the seed's own."""
    step = np.arange(1, steps + 1)
    loss = np.where(step == 150 + seed, 9.0, 2.0 + 2.0 * np.exp(-step / 50))
    return pd.DataFrame({"step": step, "loss": loss, "grad_norm": 1 / step, "tokens": 64 * step})


def write_notebook(path: Path, notebook: nbformat.NotebookNode, **stamp: object) -> None:
    """Write a notebook stamped as `lib.workflow.execution` does; completed unless said else."""
    notebook.metadata["study"] = {"status": "completed", "seconds": 3.0} | stamp
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # random otherwise
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def design(name: str, **factors: list[Any]) -> Study:
    """A study of the tiny model over the model's embedding norm and other fields of a section."""
    levels = {"model.embedding_norm": ["none", "layernorm"]}
    levels |= {key.replace("__", "."): value for key, value in factors.items()}
    return Study.model_validate(TINY | {"name": name, "factors": levels, "seeds": [0, 1, 2]})


def made_up(study: Study) -> list[RunResult]:
    """One consistent run per arm and seed; layernorm's seed 1 has diverged."""
    like = sample_runs(design("like").model_copy(update={"seeds": [0]}))[0]
    runs = []
    for number, arm in enumerate(study.arms()):
        for seed in study.seeds:
            own = {"study": study.name, "arm": arm.id, "baseline": arm.baseline, "seed": seed}
            own |= {"variant": arm.variant, "setting": arm.setting}
            own |= {"levels": arm.levels, "study_hash": study.hash}
            own["measures"] = like.measures | {
                "perplexity": 20 - number + 0.1 * (1 + number) * seed**2
            }
            own["measures"] |= {"macro_accuracy_zero_shot": 0.5 + 0.01 * number * (seed + 1)}
            if seed == 1 and arm.levels["model.embedding_norm"] == "layernorm":
                own |= {"status": "diverged", "diverged_at": 7, "measures": {}, "tables": {}}
            runs.append(like.model_copy(update=own))
    return runs


def write_record(study: Study, standing: str) -> None:
    """Write a study's record, results and verdict where the archive would. Of seed s, the second
    arm's dev loss is 0.1 (1 + s) above the first's, the third's twice as much, and so on."""
    arms = [arm.id for arm in study.arms()]
    runs, folder = made_up(study), Record(study.name).place
    for name in ("01_data", "03_analysis"):
        write_notebook(folder / f"{name}.ipynb", plain_notebook(f"{name} of {study.name}"))
    write_notebook(folder / "04_figures.ipynb", figures_notebook(study.name))
    for run in runs:
        place = folder / run.arm / f"seed-{run.seed}" / "02_train.ipynb"
        write_notebook(place, plain_notebook(f"{run.arm}, seed {run.seed}"))
        trace = trace_of(run.seed)
        trace.to_parquet(raw_file(place.parent, "trace"))
        curve = trace[trace["step"] % 50 == 0].rename(columns={"loss": "dev_loss"})
        curve["dev_loss"] += 0.1 * arms.index(run.arm) * (1 + run.seed)
        curve.to_parquet(raw_file(place.parent, "curve"))
    (folder / "parameters.yaml").write_text(f"name: {study.name}\n", "utf-8")
    write_json(Record(study.name).results_file, study_results(study, runs))
    head: dict[str, Any] = {"standing": standing, "deviations": []}
    write_json(Record(study.name).verdict_file, head | verdict(runs).as_json())
    archive.write_manifest(study.name)


def list_initial_rms() -> None:
    """The page of the initial RMS, for the paper of the test's own."""
    shutil.copyfile(
        PAPERS / "embedding-norm" / initial_rms.FILE, paper_of("dose") / initial_rms.FILE
    )


def write_initial_rms() -> None:
    """A record named as a study of that page: without a layer the stream starts at an RMS of 0.05
    and ends at 6 times as much, with LayerNorm at 1 and at 1.5 times as much; seeds are 1 % apart,
    and with LayerNorm 0.01 nats from their mean."""
    study = design("dose").model_copy(update={"seeds": [0, 2]})  # those that completed
    write_record(study, "EXPLORATORY")
    model = next(study.arms()).config.model
    for arm, rms, grown in (("none", 0.05, 6.0), ("layernorm", 1.0, 1.5)):
        for seed in study.seeds:
            folder, step = Record("dose").place / arm / f"seed-{seed}", np.array([0, 50, 100])
            start = np.full(3, rms * model.n_embd**0.5)
            growth = np.array([1.0, grown, grown]) * (1 + 0.01 * (seed - 1))
            last = 2.0 + rms + 0.01 * (seed - 1) * (arm == "layernorm")
            curve = {"step": step, "dev_loss": [4.0, 3.0, last], "residual_norm_0": start}
            curve[f"residual_norm_{model.n_layer}"] = start * growth
            pd.DataFrame(curve).to_parquet(raw_file(folder, "curve"))
    archive.write_manifest("dose")
    list_initial_rms()


def verdict(runs: list[RunResult]) -> Verdict:
    """Keep every baseline, for a made-up reason."""
    measures = ["macro_accuracy_zero_shot", "perplexity"]
    contrasts = contrast_table(tidy(runs), measures, np.random.default_rng(0))
    contrasts = contrasts.assign(family="primary", test="t", p_holm=0.0123)
    evidence = [
        Evidence(
            arm=arm,
            primary={"macro_accuracy_zero_shot": "regression"},
            facts={"quality": ["regression"]},
            numbers={"quality": ["zero-shot macro accuracy: a loss"]},
        )
        for arm in dict.fromkeys(contrasts["arm"])
    ]
    decided = [Decision(e.arm, "R1", "keep the baseline", "it loses accuracy") for e in evidence]
    answers = {"H1a": Answer("supported", "supported (layernorm)")}
    nothing = contrasts.iloc[:0]
    return Verdict(tidy(runs), contrasts, *[nothing] * 4, evidence, decided, answers)


def move_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the record, the runs and the site lie under a folder of the test's own."""
    monkeypatch.setattr("lib.record.record.PAPERS", folder)
    monkeypatch.setattr("lib.record.record.PAPER", folder / "paper")
    monkeypatch.setattr("lib.record.record.RUNS", folder / "runs")
    monkeypatch.setattr(site, "PAPER", folder / "paper")
    monkeypatch.setattr(paths, "RUNS", folder / "runs")
    monkeypatch.setattr(catalogue, "RUNS", folder / "runs")


def write_samples(folder: Path) -> None:
    """Under a folder that `move_to` was given: `alpha`, confirmatory; `beta`, of two factors, with
    levels that an address must escape; `gamma`, in progress, a run of it failed, one hostile."""
    write_record(design("alpha"), "CONFIRMATORY")
    write_record(design("beta", corpus__source=["a b (1).txt", "a+b.txt"]), "EXPLORATORY")
    runs = folder / "runs" / "gamma"
    reason = "DeadKernelError: <b>Kernel</b> died"
    failed = plain_notebook("as far as it came")
    write_notebook(
        runs / "none" / "seed-0" / "02_train.ipynb", failed, status="failed", reason=reason
    )
    write_notebook(runs / "none" / "seed-1" / "02_train.ipynb", hostile_notebook())
    result = made_up(design("gamma"))[1].model_dump(mode="json")
    (runs / "none" / "seed-1" / "result.json").write_text(json.dumps(result), "utf-8")
