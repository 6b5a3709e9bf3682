"""Ways out: a run's model as a folder of Hugging Face, a study's weights as one archive, and what
its runs left by step, for TensorBoard or as tables.

`transformers` loads the folder as a GPT-2, or as a nanochat, without code of ours; what neither can
express is refused. The archive is fit for a release page: the same runs give the same bytes. Every
column of `trace` and `curve` keeps its name, after that of its file: `trace/loss`,
`curve/dev_loss`. A run is named STUDY/ARM/SEED.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors.torch import save, save_file

from lib.figures.style import variant
from lib.record.record import MANIFEST, Record, Run, raw_folder, require_recorded
from lib.record.retrain import recorded_runs
from lib.results import history, read_raw_file, trained_with
from lib.run.finished import FinishedRun, UnfinishedError, read_finished
from lib.run.hugging_face import config_json, named_weights
from lib.study.io import PARAMS, RUNS, TEMPLATES, atomic_write, relative, write_json
from lib.study.metrics import MEASURES, measures_in
from lib.study.study import Study
from lib.study.yaml import ConfigError, UserError


def export(name: str, folder: Path) -> None:
    """Write the model of a run, named as STUDY/ARM/SEED, to a folder that does not exist yet.

    Raises ConfigError for a name or a folder that will not do, InexpressibleError for a model that
    neither can express, and UnfinishedError for a run that diverged or has no weights.
    """
    study, arm, seed = [*name.split("/"), "", ""][:3]
    if not seed.isdecimal() or name.count("/") != 2:
        raise ConfigError(f"run: '{name}' names none; give STUDY/ARM/SEED, as final/none/0")
    if folder.exists():
        raise ConfigError(f"--to: {folder} exists, and nothing is replaced; name another")
    run = read_finished(study, arm, int(seed))
    if run.result.diverged_at is not None:
        raise UnfinishedError(f"{run.name} diverged at step {run.result.diverged_at}: no model")
    tokenizer = run.corpus.tokenizer
    config = config_json(run.model.config, run.corpus.vocab_size, tokenizer.end_of_document)
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        _write(run, temporary, config)


def _write(run: FinishedRun, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = run.corpus.tokenizer
    write_json(folder / "config.json", config)
    save_file(named_weights(run.model), folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer.to_json() + "\n", "utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.config.block_size,
        "clean_up_tokenization_spaces": False,
    }
    end = tokenizer.end_name
    end_tokens = {"bos_token": end, "eos_token": end} if end else {}
    write_json(folder / "tokenizer_config.json", tokenizer_config | end_tokens)
    (folder / "README.md").write_text(model_card(run), "utf-8")


def model_card(run: FinishedRun) -> str:
    """Say what the model is, how to load it, what was measured of it and where it comes from."""
    result, origin = run.result, run.result.origin
    values = result.measures | result.throughput
    measures = [
        (MEASURES[name].title, MEASURES[name].text(value))
        for name in measures_in("summary")
        if (value := values.get(name)) is not None
    ]
    return render(
        "model-card.md.j2",
        run=run,
        result=result,
        origin=origin,
        variant=variant(result.variant),
        measures=measures,
        history=history(result.provenance),
        packages=[f"{name} {version}" for name, version in origin["packages"].items() if version],
    )


def pack(study: Study, target: Path) -> int:
    """Write the archive of a study; return how many files it holds beside its manifest.

    Raises UnfinishedError for a run whose result or weights are not there, and CorpusError.
    """
    hashes = []
    with (
        atomic_write(target) as temporary,
        tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in _contents(study):
            hashes.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            _add(archive, f"{study.name}/{name}", content)
        _add(archive, f"{study.name}/{MANIFEST}", "".join(hashes).encode())
    return len(hashes)


def _contents(study: Study) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive, by their names in it."""
    seeds = study.seeds
    runs = {f"{arm.id}/seed-{seed}": (arm.id, seed) for arm in study.arms() for seed in seeds}
    readme = render("archive.md.j2", study=study, manifest=MANIFEST, folders=list(runs))
    yield "README.md", readme.encode()
    yield f"{study.name}.yaml", (PARAMS / f"{study.name}.yaml").read_bytes()
    for folder, (arm, seed) in runs.items():
        run = read_finished(study.name, arm, seed)
        yield f"{folder}/result.json", (run.folder / "result.json").read_bytes()
        yield f"{folder}/tokenizer.json", run.corpus.tokenizer.to_json().encode()
        yield f"{folder}/weights.safetensors", save(run.model.state_dict())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file that tells nothing of when and by whom it was written."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def render(template: str, **content: Any) -> str:
    """Fill in one of the templates; UndefinedError for a name that is not there."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "weights"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = json.dumps
    return environment.get_template(template).render(content)


def export_traces(study: str, to: str, out: Path | None) -> Path:
    """Write the traces of a study, given by name or path, to a new folder of its name in `out`
    (None: in `runs/`); return that folder. `to` is a name in `WRITERS`.

    Raises UsageError for a study that is not recorded, ConfigError for a folder that is there, and
    UserError for a study of which no traces are kept, or where TensorBoard is not installed.
    """
    (study,) = require_recorded([study])
    runs = recorded_runs([study])
    if not runs:
        raise UserError(f"{study}: only its results are kept, and no traces")
    place = out or RUNS / "traces" / to
    if place.exists() and not place.is_dir():
        raise ConfigError(f"--out: {relative(place)} is no folder; name one")
    folder = place / study
    if folder.exists():
        raise ConfigError(f"--out: {relative(folder)} exists, and nothing is replaced; delete it")
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        WRITERS[to](runs, temporary)
    return folder


def steps_table(run: Run) -> pd.DataFrame:
    """Read all that a recorded run left by step, a row per step: NaN where there is nothing."""
    folder = raw_folder(Record(run["study"]).run_notebook(run))
    trace, curve = (
        read_raw_file(folder, name).set_index("step").add_prefix(f"{name}/")
        for name in ("trace", "curve")
    )
    return trace.join(curve, how="outer")


def hyperparameters(run: Run) -> dict[str, Any]:
    """Name what a run was asked and how it ended: arm, seed, status, each field of its
    configuration, as in `training.learning_rate`, and the levels of its factors."""
    about = {name: run[name] for name in ("arm", "seed", "status")}
    fields = pd.json_normalize(run["config"])
    return {**about, **dict(zip(fields, fields.to_numpy(object)[0], strict=True)), **run["levels"]}


def known_measures(run: Run) -> dict[str, float]:
    """Name the measures that a run has."""
    return {f"measure/{name}": v for name, v in run["measures"].items() if v is not None}


def _tensorboard(runs: dict[str, Run], folder: Path) -> None:
    """Write a folder of events for each run. A step has the time at which it was made, so that
    TensorBoard's axis of time is that of the training."""
    try:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ModuleNotFoundError as error:
        raise UserError(f"--to tensorboard: {error}; pip install tensorboard") from None
    for run in runs.values():
        table, measures = steps_table(run), known_measures(run)
        started = pd.Timestamp(trained_with(run["provenance"])["started"]).timestamp()
        times = started + table["trace/seconds"].fillna(0).cumsum()
        hyperparams = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in hyperparameters(run).items()
        }
        with SummaryWriter(folder / run["arm"] / str(run["seed"])) as writer:
            for name in table:
                rows = table[name].dropna()
                for step, value, time in zip(rows.index, rows, times[rows.index], strict=True):
                    writer.add_scalar(name, value, step, time)
            for name, value in measures.items():
                writer.add_scalar(name, value, run["steps"], times.iloc[-1])
            for summary in hparams(hyperparams, measures):
                writer.file_writer.add_summary(summary)


def _csv(runs: dict[str, Run], folder: Path) -> None:
    """Write every digit to `traces.csv`, a row per run and step, and `runs.csv`, a row per run."""
    steps = pd.concat({name: steps_table(run) for name, run in runs.items()}, names=["run"])
    steps.to_csv(folder / "traces.csv")
    rows = {name: hyperparameters(run) | known_measures(run) for name, run in runs.items()}
    pd.DataFrame.from_dict(rows, "index").to_csv(folder / "runs.csv", index_label="run")


WRITERS = {"tensorboard": _tensorboard, "csv": _csv}
