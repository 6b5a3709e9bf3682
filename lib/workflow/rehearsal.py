"""A study's analysis, rehearsed before anything trains: 03 and 04 are executed on made-up results
of its own design, so that no error of theirs waits until all training is over.

    python -m lib.workflow.rehearsal STUDY …

It has a process and a folder of its own, and touches neither runs/ nor the record. Made-up results
are what runs would leave, in the same form. Their numbers are plausible, differ between arms and
seeds, and are the same every time. Traces and curves are thinned out, and a task of the suite has
few questions.
"""

import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from traitlets.config import Config

from lib.analysis import resampling
from lib.data.tasks import N_CHOICES
from lib.figures import style
from lib.results import (
    BINNINGS,
    STOCK,
    Execution,
    MachineFacts,
    Origin,
    Provenance,
    RunResult,
    code_state,
    identity_fields,
    json_rows,
    measures_of,
    raw_names,
    write_raw,
)
from lib.study import io as paths
from lib.study.digests import training_digest
from lib.study.io import NOTEBOOKS, ROOT, nan_to_none, read_json, run_folder, sha256, write_json
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.schema import RunConfig, digest
from lib.study.study import Arm, Study, load_study
from lib.study.yaml import HEADLESS, UserError, exit_status

SEEDS = 3
"""With two, nothing is interpolated: quartiles and medians of three are not ends of the range."""
Raw = dict[str, pd.DataFrame]
REFERENCES = {"unigram_entropy": 3.3, "unigram_loss": 3.35, "bigram_loss": 2.5, "uniform_loss": 4.2}
"""Losses of the text that the runs are said to be of, in nats."""
STEPS, QUESTIONS, TOKENS = 100, 20, 1000
"""Most rows of a trace; questions of a task; predictions in a window of text, or a bin."""
_MIN_CONTEXT, _MIN_ITEMS = 32, 50
"""Tokens of context, and questions of a task, below which the suite has no task."""
_PARTS = ("wte", "wpe", "emb_norm", "attn", "mlp", "ln", "lm_head")
_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
"""As `lib.run.diagnostics` and `lib.data.text` list them, which take seconds to import."""


class _Shell(InteractiveShell):
    """Executes cells as a kernel does, and keeps the first error, also of what a cell shows."""

    error: BaseException | None = None

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        self.error = self.error or (exc_tuple or sys.exc_info())[1]


def rehearse(study: Study) -> None:
    """Execute 03 as if every run had completed, then with an unstable run and a diverged one, then
    with none that completed. Execute 04 after the last, which has few figures, and after the one of
    the others that has more to show. Of a study under no plan that names its seeds, a few suffice:
    no code depends on how many more there are."""
    plan = load_plan(study)
    if not plan or study.name not in plan.confirmatory:
        study = study.model_copy(update={"seeds": study.seeds[:SEEDS]})
    runs = len(list(study.arms())) * len(study.seeds)
    for diverged in sorted({0, 1, runs}):
        rehearse_once(study, diverged, figures=diverged in (runs, int(len(study.seeds) > 2)))


def rehearse_once(study: Study, diverged: int, figures: bool) -> None:
    """Execute 03, and perhaps 04, on made-up results, of which some diverged. Raises UserError,
    which says in one line where an analysis fails and why."""
    with (
        tempfile.TemporaryDirectory(prefix="rehearsal-") as folder,
        patch.multiple(paths, RUNS=Path(folder)),
        patch.multiple("lib.study.study", load_study=lambda _: study),  # for the notebooks' cells
        # What takes the time, and depends on no design: many resamples, and files of figures.
        patch.multiple(resampling, RESAMPLES=99),
        patch.multiple(style, save=_render, show=plt.close),
    ):
        lay_out(study, load_plan(study), diverged)
        for notebook in ["03_analysis"] + ["04_figures"] * figures:
            if error := _execute(notebook):
                case = {0: "all completed", 1: "one of them diverged"}.get(diverged, "all diverged")
                raise UserError(
                    f"{study.name}: {notebook} fails on made-up runs of this study, {case}: "
                    f"{_one_line(error)}; nothing was trained"
                )


def _render(figure: Any, folder: Path, name: str) -> None:
    """Do all that drawing a figure does, but write none."""
    figure.draw_without_rendering()


def _execute(notebook: str) -> BaseException | None:
    """Execute a notebook's cells, whatever study its parameters name; return the first error."""
    quiet = Config({"HistoryManager": {"enabled": False}})
    shell: Any = _Shell.instance(config=quiet, user_module=ModuleType("rehearsed"))
    try:
        with capture_output():
            for cell in read_json(NOTEBOOKS / f"{notebook}.ipynb")["cells"]:
                if cell["cell_type"] == "code" and not shell.error:
                    shell.run_cell("".join(cell["source"]))
    finally:
        _Shell.clear_instance()
    error: BaseException | None = shell.error
    return error


def _one_line(error: BaseException) -> str:
    """Write an error in one line, with the place in this repository that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    lib_frames = [f for f in frames if Path(f.filename).is_relative_to(ROOT / "lib")]
    line = (
        f" ({paths.relative(Path(lib_frames[-1].filename))}:{lib_frames[-1].lineno})"
        if lib_frames
        else ""
    )
    return f"{type(error).__name__}: {' '.join(str(error).split())}{line}"


def _loss(arm: Arm, seed: int) -> float:
    """Make up a loss: arms shift it, and seeds do, nearly alike in all arms."""
    run_rng, arm_rng = default_rng([*arm.id.encode(), seed]), default_rng([*arm.id.encode()])
    seed_effect = default_rng(seed).normal()
    return float(2.4 + 0.03 * arm_rng.normal() + 0.02 * seed_effect + 0.005 * run_rng.normal())


def lay_out(study: Study, plan: Plan | None, diverged: int) -> None:
    """Write a result of every run of a study, with its raw files, where a sweep would."""
    for result, raw in made_up(study, plan, diverged):
        folder = run_folder(study.name, result.arm, result.seed)
        folder.mkdir(parents=True)
        paths = [write_raw(folder, name, table) for name, table in raw.items()]
        files = {path.name: sha256(path) for path in paths}
        write_json(folder / "result.json", result.model_dump(mode="json") | {"files": files})


def made_up(
    study: Study, plan: Plan | None = None, diverged: int = 0
) -> Iterator[tuple[RunResult, Raw]]:
    """Make up result and raw files of every run of a study, of a frozen one as the plan fixes them.
    The last `diverged` runs diverge; then, too, the loss of the first run rises for a step."""
    runs = [(arm, seed) for arm in study.arms() for seed in study.seeds]
    for number, (arm, seed) in enumerate(runs):
        diverges = number >= len(runs) - diverged
        raw = _raw(arm.config, _loss(arm, seed), default_rng(number), diverges)
        if diverged and number == 0:
            raw["trace"]["loss"] += 2.0 * (raw["trace"].index == len(raw["trace"]) // 4)
        yield _result(study, arm, seed, plan, raw), raw


def _raw(config: RunConfig, loss: float, rng: Generator, diverged: bool) -> Raw:
    """Make up the raw files of a run, as `lib.results` lists them."""
    training, size = config.training, config.model.block_size
    steps = np.unique(np.linspace(1, training.iterations, STEPS).astype(int))
    steps = steps[: len(steps) // 2 + 1] if diverged else steps
    n = len(steps)
    trace = pd.DataFrame({"step": steps, "loss": _falling(steps, training.iterations, loss)})
    trace["learning_rate"], trace["grad_norm"] = training.learning_rate, 0.5 + rng.random(n)
    trace["tokens"] = steps * training.batch_size * size
    trace["second_moment_mean"], trace["second_moment_max"] = 1e-7, 1e-5
    trace["seconds"] = 0.1 + 0.01 * rng.random(n)
    if training.precision == "fp16":
        trace["skipped"] = False
    curve = _curve(config, np.unique([0, *steps[:-1:8], steps[-1]]), loss, rng)
    raw = dict.fromkeys(raw_names(config.model_dump()), pd.DataFrame())
    raw |= {"trace": trace, "curve": curve}
    if diverged:
        trace.loc[n - 1, ["loss", "grad_norm"]] = np.nan
        return raw

    hits = rng.integers(400, 500, 15)
    sums: dict[str, Any] = {"n": TOKENS, "confidence": hits + 9.0, "correct": hits}
    bins = [pd.DataFrame({"binning": name, "bin": range(15), **sums}) for name in BINNINGS]
    sums = {"start": TOKENS * np.arange(15), "n": TOKENS, "nll": TOKENS * loss, "correct": hits}
    sums |= {"embedding_norm": TOKENS * curve["embedding_norm"].iloc[-1], "brier": 0.7 * TOKENS}
    if config.corpus.tokenizer != "characters":
        sums["characters"] = 4 * TOKENS
    context = np.arange(1, size + 1)
    raw["bins"] = pd.concat(bins, ignore_index=True)
    raw["windows"] = pd.DataFrame(sums | {"test": np.arange(15) >= 7})
    raw["positions"] = pd.DataFrame({"context": context, "position_loss": loss + 1 / context})
    n_items = config.evaluation.items_per_task
    if size >= _MIN_CONTEXT and (n_items is None or n_items >= _MIN_ITEMS):
        blocks = [_items(task, shots, rng) for task in N_CHOICES for shots in (0, 2)]
        raw["items"] = pd.concat(blocks, ignore_index=True)
    if stock_tasks := config.evaluation.tasks:
        shots = config.evaluation.shots or [0]
        blocks = [_items(task, n, rng) for task, n in itertools.product(stock_tasks, shots)]
        raw[STOCK] = pd.concat(blocks, ignore_index=True)
    return raw


def _falling(steps: NDArray[np.int64], n: int, loss: float) -> NDArray[np.float64]:
    start = REFERENCES["uniform_loss"]
    return loss + (start - loss) * np.exp(-6 * steps / n)


def _curve(
    config: RunConfig, steps: NDArray[np.int64], loss: float, rng: Generator
) -> pd.DataFrame:
    """Make up the dev curve. Before the first step there are no second moments."""
    norm = config.model.embedding_norm
    affine = {"layernorm": ["gain", "bias"], "rmsnorm": ["gain"]}.get(norm, [])
    absent = ([] if affine else ["emb_norm"]) + (["lm_head"] if config.model.tied else [])
    length = 0.3 if norm in ("none", "center", "grad_shrink") else config.model.n_embd**0.5
    columns = {"embedding_norm": length, "embedding_cosine": 0.1, "input_cosine": 0.5}
    columns |= {f"residual_norm_{k}": length + 0.1 * k for k in range(config.model.n_layer + 1)}
    columns |= {"logit_max": 4.0, "logit_sd": 1.0} | {f"norm_{name}": 0.9 for name in affine}
    columns |= {"gradient_cosine": 0.3} if config.evaluation.dev_windows > 2 else {}
    moments = [f"second_moment_{name}" for name in _PARTS if name not in absent]
    columns |= {"seconds": 0.1} | dict.fromkeys(moments, 1e-7)
    varied = {name: value * (1 + 0.1 * rng.random(len(steps))) for name, value in columns.items()}
    falling = _falling(steps, config.training.iterations, loss)
    table = pd.DataFrame({"step": steps, "dev_loss": falling} | varied)
    table.loc[table["step"] == 0, moments] = np.nan
    return table


def _items(task: str, shots: int, rng: Generator) -> pd.DataFrame:
    """Make up answers to the questions of a task."""
    choice = rng.integers(0, N_CHOICES.get(task, 4), QUESTIONS)
    block = {"task": task, "shots": shots, "item": np.arange(QUESTIONS), "choice": choice}
    return pd.DataFrame(block | {"correct": rng.random(QUESTIONS) < 0.6})


def _tables(config: RunConfig, raw: Raw, rng: Generator) -> Iterator[tuple[str, pd.DataFrame]]:
    """Make up the tables of a completed run's result, as `lib.run.measure` lists them."""
    loss = float(raw["positions"]["position_loss"].iloc[-1])
    lengths = [16, config.model.block_size]
    yield "lengths", pd.DataFrame({"length": lengths, "loss": loss, "perplexity": np.exp(loss)})
    heat = np.array([0.5, 0.8, 0.9, 1.0, 1.1, 2.0])
    ece = np.abs(heat - 0.9) / 9
    yield "temperatures", pd.DataFrame({"temperature": heat, "nll": loss + ece, "ece": ece})
    norms = ["mean", "sd", "q25", "median", "q75"]
    classes = pd.DataFrame({"token_class": _CLASSES, "n": TOKENS})
    classes[norms] = 1.0 + rng.random()
    classes.loc[1, ["n", *norms]] = [0, *[np.nan] * len(norms)]  # a text without digits
    yield "token_classes", classes
    share = np.linspace(0, 1, 9)
    logits = {"quantile": share, "logit": 8 * share - 4, "largest_logit": 4 * share}
    yield "logits", pd.DataFrame(logits)
    if config.evaluation.items_per_task != 0:
        yield "tasks", _task_table(raw["items"])
    if config.evaluation.tasks:
        answers = raw[STOCK].astype({"correct": float}).groupby(["task", "shots"], sort=False)
        table = answers["correct"].agg(n="size", value="mean", stderr="sem").reset_index()
        table["metric"], table["filter"] = "acc", "none"
        table["task_version"], table["truncated"] = "1", 0.0
        yield "stock_tasks", table


def _task_table(items: pd.DataFrame) -> pd.DataFrame:
    if items.empty:
        return items
    table = items.groupby(["task", "shots"])["correct"].agg(n="size", accuracy="mean").reset_index()
    chance = 1 / table["task"].map(N_CHOICES)
    score = (table["accuracy"] - chance) / (1 - chance)
    without = dict.fromkeys(("choice_alone", "bigram", "five_gram"), chance)
    return table.assign(stderr=0.1, chance=chance, normalised_accuracy=score, brier=0.5, **without)


def _origin(study: Study, arm: Arm, seed: int, plan: Plan | None, corpus: str) -> Origin:
    """Say what a run is made with: the code at hand, on a machine of no kind."""
    counts = ("threads", "cores", "processes", "micro_batch_size", "evaluation_batch_size")
    machine_texts = {"device": "cpu", "device_name": "made up", "vector_level": "", "platform": ""}
    machine = MachineFacts.model_validate(machine_texts | dict.fromkeys(counts, 1))
    commit = study.commit_of(arm)
    measuring = {"measuring_digest": commit.measuring_digest} if commit else {}
    env = {**code_state(), **measuring, "machine": machine, "packages": {"torch": "made up"}}
    trained = Provenance(
        study=study.name,
        arm=arm.id,
        seed=seed,
        plan=plan.hash if plan else None,
        training_digest=commit.training_digest if commit else training_digest(),
        corpus_sha256=corpus,
        parameters=arm.config.model_dump(exclude={"machine"}),
        **env,
    )
    return Origin(trained=trained, executed=Execution(from_checkpoint=False, **env))


def _result(study: Study, arm: Arm, seed: int, plan: Plan | None, raw: Raw) -> RunResult:
    """Make up the result of a run with these raw files; of a frozen study of a text and, by the
    run's text and length, a suite that the plan lists."""
    config, trace, completed = arm.config, raw["trace"], len(raw["windows"]) > 0
    text, items = config.corpus, config.evaluation.items_per_task
    suite = digest([text.source, text.tokenizer, text.deduplicate, config.model.block_size, items])
    corpus = digest(text.source)
    if frozen := plan.frozen.get(study.name) if plan else None:
        corpus = frozen.corpus.get(text.source, corpus)
        suite = frozen.suite[int(suite, 16) % len(frozen.suite)] if frozen.suite else suite
    measures: dict[str, float | None] = dict(measures_of(raw))
    speeds = {"training_tokens_per_second": 1e4, "model_flop_utilisation": 0.1, "peak_memory": 1.0}
    if completed:
        measures |= {"ece_null": 0.002, "temperature": 0.9, "nll_test_tempered": measures["loss"]}
        speeds |= {"inference_tokens_per_second_batch_1": 1e4, "inference_tokens_per_second": 1e5}
    has_suite = completed and items != 0
    if has_suite:
        none = dict.fromkeys(("macro_accuracy_zero_shot", "macro_accuracy_few_shot"))
        measures = {**none, "suite_overflows": 0.0, **measures}
    tables = _tables(config, raw, default_rng(seed)) if completed else ()
    last = {name: int(trace[name].iloc[-1]) for name in ("step", "tokens")}
    return RunResult(
        **identity_fields(study, arm, seed),
        corpus_sha256=corpus,
        suite_hash=suite if has_suite else None,
        status="completed" if completed else "diverged",
        diverged_at=None if completed else last["step"],
        resumed_at=[],
        steps=last["step"],
        tokens=last["tokens"],
        parameters=1_000_000,
        initial_weights=digest(["weights", seed]),
        batches=digest(["batches", seed]),
        final_weights=digest([arm.id, seed]),
        measures=nan_to_none(measures),
        tables={name: json_rows(table) for name, table in tables},
        references=REFERENCES | ({"source_loss": 1.5} if text.source == "synthetic" else {}),
        throughput=speeds,
        seconds={"training": 10.0, "perplexity": 1.0},
        provenance=_origin(study, arm, seed, plan, corpus).model_dump(mode="json"),
    )


@exit_status
def main(names: list[str]) -> None:
    """Rehearse the analysis of the studies named."""
    os.environ[HEADLESS] = "1"
    for name in names:
        rehearse(load_study(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
