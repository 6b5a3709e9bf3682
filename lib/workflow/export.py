"""A run's model as a folder of Hugging Face.

    ./run_all.sh export STUDY/ARM/SEED --to DIR

`transformers` loads it as a GPT-2, or as a nanochat, without code of ours. What neither can express
is refused.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from lib.data.tokenizer_json import end_name, tokenizer_json
from lib.run.finished import Finished, UnfinishedError, read_finished
from lib.run.hugging_face import config_json, named_weights
from lib.study.errors import ConfigError, exit_status
from lib.study.measures import MEASURES, measures_in
from lib.study.provenance import history
from lib.study.record import write_json
from lib.study.variants import variant
from lib.workflow.texts import text_of


def export(run: Finished, folder: Path) -> None:
    """Write a run's model to a folder that does not exist yet.

    Raises InexpressibleError for a model that neither can express, UnfinishedError for a diverged
    run, and FileExistsError.
    """
    if run.result.diverged_at is not None:
        raise UnfinishedError(f"{run.name} diverged at step {run.result.diverged_at}: no model")
    tokenizer = run.corpus.tokenizer
    config = config_json(run.model.config, run.corpus.vocab_size, tokenizer.end_of_document)
    if folder.exists():
        raise FileExistsError(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _write(run, partial, config)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(run: Finished, folder: Path, config: dict[str, Any]) -> None:
    corpus, end = run.corpus, end_name(run.corpus)
    write_json(folder / "config.json", config)
    save_file(named_weights(run.model), folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer_json(corpus) + "\n", "utf-8")
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.config.block_size,
        "clean_up_tokenization_spaces": False,
    }
    ends = {"bos_token": end, "eos_token": end} if end else {}
    write_json(folder / "tokenizer_config.json", described | ends)
    (folder / "README.md").write_text(model_card(run), "utf-8")


def model_card(run: Finished) -> str:
    """Say what the model is, how to load it, what was measured of it and where it comes from."""
    result, origin = run.result, run.result.origin
    found = result.measures | result.throughput
    measures = [
        (MEASURES[name].title, MEASURES[name].text(value))
        for name in measures_in("summary")
        if (value := found.get(name)) is not None
    ]
    return text_of(
        "model-card.md.j2",
        run=run,
        result=result,
        origin=origin,
        variant=variant(result.variant),
        measures=measures,
        history=history(result.provenance),
        packages=[f"{name} {version}" for name, version in origin["packages"].items() if version],
    )


@exit_status
def main(words: list[str]) -> None:
    """Export one run."""
    parser = argparse.ArgumentParser(prog="./run_all.sh export", description=__doc__)
    parser.add_argument("run", help="STUDY/ARM/SEED")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    options = parser.parse_args(words)
    study, arm, seed = [*options.run.split("/"), "", ""][:3]
    if not seed.isdecimal() or options.run.count("/") != 2:
        raise ConfigError(f"run: '{options.run}' names none; give STUDY/ARM/SEED, as final/none/0")
    if options.to.exists():
        raise ConfigError(f"--to: {options.to} exists, and nothing is replaced; name another")
    export(read_finished(study, arm, int(seed)), options.to)
    print(f"{options.run} lies in {options.to}, for AutoModelForCausalLM.from_pretrained")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
