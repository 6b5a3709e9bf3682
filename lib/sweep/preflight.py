"""Pre-flight checks: find everything that would stop a study later, before anything trains."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lib.config.claim import claim_status, load_plan, parameters_digest, require_plan_of_runs
from lib.config.environment import total_memory
from lib.config.errors import ConfigError, UserError
from lib.config.files import read_json
from lib.config.paths import PAPERS, PLANS, listed, relative, study_folder
from lib.config.plan import Plan
from lib.config.provenance import measure_key, train_key
from lib.config.schema import CODE, CorpusConfig, digest
from lib.config.study import Arm, Study, load_study
from lib.config.yaml import read_yaml
from lib.data.describe import untrained, warnings_of
from lib.data.suite import INSTALL, has_harness
from lib.data.text import KNOWN
from lib.record.archive import Record
from lib.results import PROVENANCE, RunResult, trained_with
from lib.sweep.code import resolve
from lib.sweep.estimate import memory, model_of, size_of
from lib.sweep.execute import corpus_of

Check = Callable[[Study], Any]


def load_and_check(names: list[str], *, replaces: bool = False) -> list[Study]:
    """Load studies, and check their plans, commits and corpora. Raises UserError with a line for
    each fault.

    With `replaces`, other code may make confirmatory runs again.
    """
    faults: list[str] = []
    studies: list[Study] = []
    for name in dict.fromkeys(names):
        with _collecting(faults):
            studies.append(load_study(name))
    checks: list[Check] = [load_plan, require_same_plan, require_as_frozen, resolve]
    checks += [_require_equal_texts, *([] if replaces else [require_same_code])]
    for study in studies:
        where = f"{study.name}.yaml: "
        for check in checks:
            with _collecting(faults, where):
                check(study)
        for arm in study.arms():
            with _collecting(faults, where):
                corpus_of(arm.config.corpus).require_length(arm.config.model.block_size)
    _raise(faults)
    return studies


def require_executable(studies: list[Study], *, is_local: bool) -> None:
    """Check the tasks, and if runs train on this machine (`is_local`), devices and memory. Raises
    UserError with a line for each fault. Call this only before a sweep: task files may run Python.
    """
    faults: list[str] = []
    for study in studies:
        where = f"{study.name}.yaml: "
        with _collecting(faults, where):
            _require_tasks(study)
        for arm in study.arms() if is_local else []:
            with _collecting(faults, where):
                _require_machine(study, arm)
    _raise(faults)


def print_texts(studies: list[Study]) -> None:
    """Print what is held out of the user's own texts, and warnings about any text."""
    configs = [arm.config for study in studies for arm in study.arms()]
    corpora = [corpus_of(text) for text in {config.corpus for config in configs}]
    own = [corpus for corpus in corpora if corpus.name not in KNOWN]
    for said in sorted({f"{corpus.name}: {corpus.held_out}" for corpus in own}):
        print(f"held out of {said}")
    warnings = {said for corpus in corpora for said in warnings_of(corpus).values()}
    warnings |= {untrained(corpus_of(c.corpus), c.model.block_size) for c in configs}
    for said in sorted(warnings - {""}):
        print(f"warning: {said}")


def require_same_plan(study: Study) -> None:
    """Raise ConfigError if runs of a study, in `runs/` or in a record, were made under another plan
    than it names now. Renaming the plan's file, or adding deviations and comments, is allowed."""
    plan = load_plan(study)
    begun = [made for made in _begun(study.name) if made[0] != (plan and plan.hash)]
    require_plan_of_runs(study, begun)
    # Hash the file itself: a published plan always has its published hash.
    content = Plan.content_hash(read_yaml(PLANS / study.plan)) if study.plan else None
    for path in PAPERS.glob(f"*/record/{study.name}"):
        was, number, kept = _plan_of_record(Record(study.name, path.parents[1]))
        require_plan_of_runs(study, [(was, None)] * number * (was != content), kept)


def require_as_frozen(study: Study) -> None:
    """Raise ConfigError if a confirmatory study has other parameters or seeds than its plan froze.
    Otherwise its runs would be made again, and its record replaced."""
    plan = load_plan(study)
    if plan is None or study.name not in plan.frozen:
        return
    frozen = plan.frozen[study.name]
    standings = []
    for file in (study_folder(study.name) / "verdict.json", Record(study.name).verdict_file):
        with suppress(OSError, UserError, LookupError, TypeError):
            standings.append(read_json(file)["standing"])
    drawn = plan.draw(study.name, frozen.seeds)
    as_frozen = (parameters_digest(study), study.seeds) == (frozen.parameters, drawn)
    if "CONFIRMATORY" in standings and not as_frozen:
        raise ConfigError(
            f"parameters: are not those that {study.plan} froze, and the study is confirmatory; "
            f"`git checkout params/{study.name}.yaml` restores them; for others, write a new study"
        )


def require_same_code(study: Study) -> None:
    """Raise ConfigError if runs of a study may be confirmatory and were made by other code.
    Otherwise they would be made again, and the record replaced."""
    plan = load_plan(study)
    if plan is None or study.name not in plan.frozen:
        return
    runs = list(_results(study.name))
    if claim_status(study, plan, [run.model_dump() for run in runs]).name == "EXPLORATORY":
        return
    commits, remedies = resolve(study), Counter[str]()
    for run in runs:
        trained, executed = run.provenance["trained"], run.provenance["executed"]
        keys = trained["training_digest"], executed["measuring_digest"]
        remedy = "undo that edit"
        if level := run.levels.get(CODE):
            is_same = trained["code"] == commits.get(level)
            remedy = f"`git branch --force {level} {trained['code'][:12]}` restores it"
        else:
            is_same = keys == (train_key(), measure_key())
            if trained["clean"]:
                remedy = f"`git checkout {trained['commit'][:12]} -- lib notebooks` restores it"
        if not is_same:
            remedies[remedy] += 1
    if remedies:
        ((remedy, _),) = remedies.most_common(1)
        fault = f"{remedies.total()} runs under {study.plan} were made by other code than today's"
        again = "--replace makes them again, and replaces the study's record"
        raise ConfigError(f"code: {fault}; {remedy}; {again}")


def _results(study: str) -> Iterator[RunResult]:
    """Yield the results of a study's runs in `runs/`. Skip damaged ones: they are made again."""
    for path in listed(study_folder(study), "*/seed-*/result.json"):
        with suppress(OSError, ValueError):
            yield RunResult.model_validate(read_json(path))


def _begun(study: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield the plan's hash and the commit of each run of a study in `runs/` that has started."""
    for folder in study_folder(study).glob("*/seed-*"):
        for file in (
            folder / "result.json",
            folder / PROVENANCE,
        ):  # an unfinished run has no result
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                content = read_json(file)
                trained = content.get("provenance", {}).get("trained", content)
                yield trained["plan"], trained["commit"]
                break


def _plan_of_record(record: Record) -> tuple[str | None, int, Path | None]:
    """Return the hash of a record's plan, the number of its runs (0 if the record is damaged), and
    the plan's file."""
    with suppress(OSError, UserError):
        file = record.folder / "plan.yaml"
        was = Plan.content_hash(read_yaml(file)) if file.is_file() else None
        number = sum(name.endswith("/02_train.ipynb") for name in record.manifest)
        return was, number, file
    return None, 0, None


def _require_equal_texts(study: Study) -> None:
    """Raise ConfigError if two equal arms read one text under two names, or if two arms hold out
    different parts of one source (characters and byte pairs split documents differently)."""
    first, configs = dict[str, CorpusConfig](), dict[str, str]()
    for arm in study.arms():
        content = arm.config.model_dump(exclude={"machine"})
        corpus = corpus_of(arm.config.corpus)
        content["corpus"] = corpus.sha256, len(corpus.train), corpus.tokenizer.sha256
        same = configs.setdefault(digest([arm.levels.get(CODE), content]), arm.id)
        if same != arm.id:
            raise ConfigError(f"factors: {same} and {arm.id} read the same text; leave one out")
    for text in dict.fromkeys(arm.config.corpus for arm in study.arms()):
        other = first.setdefault(text.source, text)
        if corpus_of(other).sha256 != corpus_of(text).sha256:
            raise ConfigError(
                f"corpus.tokenizer: {other.tokenizer} and {text.tokenizer} split the documents of "
                f"{text.source} in different ways; leave one out"
            )


def _raise(faults: list[str]) -> None:
    if faults:
        raise UserError("\nerror: ".join(dict.fromkeys(faults)))


@contextmanager
def _collecting(faults: list[str], where: str = "") -> Iterator[None]:
    """Add a UserError of the block to `faults` instead of raising it."""
    try:
        yield
    except UserError as error:
        faults.append(f"{where}{error}")


def _require_tasks(study: Study) -> None:
    """Raise ConfigError if a stock task cannot be evaluated for some arm, or lacks a measure that
    the plan tests."""
    if not study.evaluation.tasks:
        return
    if not has_harness():
        raise ConfigError(f"evaluation.tasks: need lm_eval; {INSTALL}, or remove them")
    # Importing the harness takes seconds, so only studies that need it wait.
    from lib.train.lm_eval import TokenLM, require_tasks

    plan = load_plan(study)
    tested = {*plan.primary_measures} & {*study.stock_measures} if plan else ()
    configs = {(a.config.corpus, a.config.model.block_size): a.config for a in study.arms()}
    adapters = [TokenLM(model_of(c), corpus_of(c.corpus)) for c in configs.values()]
    for said in require_tasks(study.evaluation, tested, adapters):
        print(f"warning: {said}")


def _require_machine(study: Study, arm: Arm) -> None:
    """Raise ConfigError if this machine lacks devices or memory for an arm, or if some of its runs
    were made on another type of device."""
    from lib.train.machine import prepare, require_devices

    machine, folder = prepare(arm.config), study_folder(study.name)
    require_devices(machine)
    for path in folder.glob(f"{arm.id}/seed-*/result.json"):
        device = machine.device
        with suppress(UserError, LookupError, TypeError):  # damaged results are made again
            device = trained_with(read_json(path)["provenance"])["device"]
        if device != machine.device:
            raise ConfigError(
                f"machine.device: some runs were made on {device}, and this machine would continue "
                f"on {machine.device}, but runs of two devices are not compared; set "
                f"machine.device: {device}, or delete {relative(folder)}"
            )
    needed = sum(memory(arm.config, size_of(arm.config)).values())
    available = total_memory()
    if machine.device == "cuda":
        import torch

        available = torch.cuda.get_device_properties(0).total_memory
    if needed > available:
        raise ConfigError(
            f"model: a run of {arm.id} needs {needed / 1e9:,.2f} GB of memory, and this machine "
            f"has {available / 1e9:,.2f} GB; reduce n_embd, n_layer, block_size, the symbols of "
            "the tokenizer, or machine.micro_batch_size"
        )
