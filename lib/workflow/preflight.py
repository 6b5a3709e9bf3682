"""What would stop a study later is found before anything trains, for all studies at once."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lib.analysis.hypotheses import planned_measures
from lib.data.text import load_corpus
from lib.results import INSTALL, has_harness, trained_with
from lib.run.machine import require_devices
from lib.study.io import read_json, relative, study_folder
from lib.study.plan import Plan
from lib.study.preregistration import load_plan
from lib.study.study import Study, load_study
from lib.study.yaml import ConfigError, UserError
from lib.workflow.commits import with_commits
from lib.workflow.estimate import prepare_here, require_memory


def load_and_check(names: list[str], is_local: bool = True) -> list[Study]:
    """Load the studies named and check all that they name: plan, corpora, and the
    device, if they are to run `here`. Raises UserError with a line for each thing wrong."""
    faults: list[str] = []
    studies = []
    for name in dict.fromkeys(names):
        with _collecting(faults):
            studies.append(with_commits(load_study(name)))
    for study in studies:
        _check(study, is_local, faults)
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))
    return studies


@contextmanager
def _collecting(faults: list[str], where: str = "") -> Iterator[None]:
    """Go on after a UserError, and keep what it says."""
    try:
        yield
    except UserError as error:
        faults.append(f"{where}{error}")


def _check(study: Study, is_local: bool, faults: list[str]) -> None:
    file, configs, symbols = f"{study.name}.yaml: ", [arm.config for arm in study.arms()], {}
    with _collecting(faults, file):
        load_plan(study)
    for corpus in {config.corpus for config in configs}:
        with _collecting(faults, file):
            text = load_corpus(corpus)  # in sight, should it have to be downloaded
            symbols[corpus] = text.vocab_size
            text.require_length(max(c.model.block_size for c in configs if c.corpus == corpus))
    with _collecting(faults, file):
        if study.evaluation.tasks and not has_harness():
            raise ConfigError(f"evaluation.tasks: need lm_eval; {INSTALL}, or remove them")
        if study.evaluation.tasks:
            require_stock_tasks(study, load_plan(study))
    devices = _devices(study)
    for config in configs if is_local else ():
        with _collecting(faults, file):
            machine = prepare_here(config)
            require_devices(machine)
            if config.corpus in symbols:
                require_memory(config, symbols[config.corpus], machine)
            for other in sorted(devices - {machine.device}):
                raise ConfigError(
                    f"machine.device: runs of it were made on {other}, and this machine would "
                    f"continue on {machine.device}; runs of two devices are not compared: set "
                    f"machine.device: {other}, or delete {relative(study_folder(study.name))}"
                )


def require_stock_tasks(study: Study, plan: Plan | None) -> None:
    """Raise ConfigError for a stock task that cannot be asked, and for a measure of the plan that
    none of them gives."""
    from lib.run.lm_eval import require_tasks  # takes seconds, for few studies

    planned = planned_measures(plan) if plan else []
    tested = [name for name in study.stock_measures if name in planned]
    block_size = min(arm.config.model.block_size for arm in study.arms())
    require_tasks(study.evaluation, block_size, tested)


def _devices(study: Study) -> set[str]:
    """List the devices that a study's results were made on, as far as these can be read."""
    devices = set()
    for path in study_folder(study.name).glob("*/seed-*/result.json"):
        with suppress(ValueError, LookupError, TypeError, OSError):
            devices.add(trained_with(read_json(path)["provenance"])["device"])
    return devices
