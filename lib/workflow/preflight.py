"""What would stop a study later is found before anything trains, for all studies at once."""

import contextlib
from collections.abc import Iterator

from lib.data.corpus import CorpusError, load_corpus
from lib.run.machine import require_devices
from lib.study.claim import load_plan
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError, UserError
from lib.study.files import read_json
from lib.study.paths import shown, study_folder
from lib.study.provenance import INSTALL, has_harness, trained_with
from lib.workflow.estimate import prepared, require_memory


def ready(names: list[str], here: bool = True) -> list[Study]:
    """Load the studies named and check all that they name: plan, corpora, and the
    device, if they are to run `here`. Raises UserError with a line for each thing wrong."""
    studies, faults = [], []
    for name in dict.fromkeys(names):
        try:
            studies.append(load_study(name))
        except ConfigError as error:
            faults.append(str(error))
    for study in studies:
        faults += [f"{study.name}.yaml: {fault}" for fault in _faults(study, here)]
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))
    return studies


def _faults(study: Study, here: bool) -> Iterator[str]:
    try:
        load_plan(study)
    except ConfigError as error:
        yield str(error)
    configs, symbols = [arm.config for arm in study.arms()], {}
    for corpus in {config.corpus for config in configs}:
        try:
            text = load_corpus(corpus)  # in sight, should it have to be downloaded
            symbols[corpus] = text.vocab_size
            text.require_length(max(c.model.block_size for c in configs if c.corpus == corpus))
        except CorpusError as error:
            yield str(error)
    for evaluation in {tuple(config.evaluation.tasks) for config in configs}:
        if evaluation and not has_harness():
            yield f"evaluation.tasks: need lm_eval; {INSTALL}, or remove them"
        elif evaluation:
            from lib.run.harness import require_tasks  # takes seconds, for few studies

            try:
                require_tasks(list(evaluation), min(config.model.block_size for config in configs))
            except ConfigError as error:
                yield str(error)
    if here:
        for config in {(c.machine.device, c.training.precision): c for c in configs}.values():
            try:
                machine = prepared(config)
                require_devices(machine)
                for one in configs:
                    if one.corpus in symbols:
                        require_memory(one, symbols[one.corpus], prepared(one))
            except ConfigError as error:
                yield str(error)
                continue
            for made in sorted(_devices(study) - {machine.device}):
                yield (
                    f"machine.device: runs of it were made on {made}, and this machine would "
                    f"continue on {machine.device}; runs of two devices are not compared: set "
                    f"machine.device: {made}, or delete {shown(study_folder(study.name))}"
                )


def _devices(study: Study) -> set[str]:
    """The devices that a study's results, as far as they can be read, were made on."""
    devices = set()
    for path in study_folder(study.name).glob("*/seed-*/result.json"):
        with contextlib.suppress(ValueError, LookupError, TypeError, OSError):
            content = read_json(path)
            devices.add(trained_with(content["provenance"])["device"])
    return devices
