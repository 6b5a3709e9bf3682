"""A study: one YAML file, one grid of arms × seeds.

Every error names the field, its value, the allowed values and the nearest valid name.
"""

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from lib.config.contrasts import Grid, arm_id, level_name, short_names
from lib.config.errors import ConfigError, explain, short, suggest
from lib.config.files import prepare_params, read_json, write_text
from lib.config.paths import PAPER, PARAMS, listed, study_folder
from lib.config.plan import read_plan
from lib.config.schema import CODE, FIELDS, Level, RunConfig, Section, Some, digest, stock_measures
from lib.config.yaml import Json, read_yaml

StudyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)]
PlanFile = Annotated[
    str,
    Field(pattern=r"^\w[\w.-]*\.yaml$", max_length=100),
    BeforeValidator(lambda v: f"{v.removesuffix('.yaml')}.yaml" if isinstance(v, str) else v),
]
MAX_RUNS = 10_000
"""Most runs that one study may have."""
MAX_ID = 120
SCRATCH = ".scratch"
"""Name of the study of scratch runs, in `runs/.scratch/`. No parameter file may have it."""
COMMITS = "commits.json"
"""File in a study's folder of `runs/`: level of the factor `code` → hash of its commit. A sweep
writes it when it starts."""
COPY = "# A copy, made anew whenever the study is loaded by its path: change that file.\n"
"""First line of a copy in `params/`."""
_BESIDE_ARMS = {
    "01_data",
    "03_analysis",
    "04_figures",
    "MANIFEST",
    "archive",
    "by-hand",
    "commits",
    "figures",
    "parameters",
    "plan",
    "raw",
    "suite",
    "verdict",
}
"""Names, without suffixes, that no arm may have: in `runs/` or a record, files and folders with
these names are next to the folders of the arms."""
_ARM_ID = re.compile(rf"\w[\w .=,+()-]{{0,{MAX_ID - 1}}}")


@dataclass(frozen=True)
class Arm:
    """One cell of the design: a level of every factor, run once per seed."""

    id: str
    levels: dict[str, Level]
    config: RunConfig
    baseline: str
    """Id of the arm that this one is compared with. In the grid, it is the arm with the first level
    of the first factor, and the same levels of all other factors."""
    variant: str
    """The level of the first factor, or the name of an included arm. Variants are compared."""
    setting: str
    """The levels of all other factors. A comparison is within one setting. "" if there are none."""


class IncludedArm(Section):
    """An arm outside the grid: a level of every factor, and any further fields."""

    levels: dict[str, Level]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.=,-]*$")] | None = None
    """None: the name is made from the levels."""
    baseline: str | None = None
    """Id of the arm that this one is compared with. None: as in the grid."""


class Study(RunConfig):
    """A grid of runs: their common parameters, the factors with their levels, and the seeds.

    It inherits the fields of a run, because a parameter file has both.
    """

    __hash__ = object.__hash__  # equal studies may have been loaded beside different plans

    name: StudyName
    """The name of the study's file, without `.yaml`."""
    factors: dict[str, Some[Level]] = Field({})
    """Dotted field, or `code` → its levels. The first level of the first factor is the baseline."""
    commits: dict[str, str] = Field({}, exclude_if=not_)
    """Commit of each level of the factor `code`, looked up when the study starts. Never in a file.
    """
    seeds: Some[Annotated[int, Field(ge=0, lt=2**63)]]
    """A file may also say `{count: n}`: then loading the study draws them from the plan."""
    drawn: bool = Field(False, exclude=True)
    """Whether the seeds are drawn from the plan. Never in a file."""
    include: list[IncludedArm] = Field([])
    """Arms outside the grid, each with a level of every factor, and any further fields."""
    exclude: list[dict[str, Level]] = Field([])
    """Each entry has levels of some factors. Arms of the grid that have all of them are left out.
    """
    plan: PlanFile | None = None
    """The study's plan, a file in params/plans/; None: exploratory."""
    paper: StudyName = PAPER.name
    """Folder in papers/ for the study's record, results and figures. Not part of the hash."""

    @model_validator(mode="before")
    @classmethod
    def _seeds_by_count(cls, content: Json) -> Json:
        if not isinstance(content.get("seeds"), dict):
            return content
        count = content["seeds"].get("count")
        if type(count) is not int or not 0 < count <= MAX_RUNS:
            raise ValueError("seeds: write a list, or {count: 8} to draw so many from the plan")
        return content | {"seeds": list(range(count)), "drawn": True}

    @model_validator(mode="after")
    def _factors_are_sound(self) -> Self:
        # All runs must be executed and measured in the same way. Otherwise we could not compare
        # them.
        named = [("factors", name) for name in self.factors]
        for i, arm in enumerate(self.include):
            named += [(f"include.{i}.levels", name) for name in arm.levels]
        for field, name in named:
            section = name.partition(".")[0]
            if name not in (CODE, *FIELDS):
                raise ValueError(f"{field}: {suggest(name, [CODE, *FIELDS])}")
            if section in ("machine", "evaluation"):
                raise ValueError(f"{field}: {name} is one for all runs; set it under {section}")
            if name == CODE and CODE not in self.factors:
                raise ValueError(f"{field}: code must be a factor, if it is to have levels")
        for level in self.factors.get(CODE, ()):
            if not isinstance(level, str) or not level.strip():
                fault = f"factors.code: {short(level)} names no commit"
                raise ValueError(f"{fault}; write a branch, tag or hash, in quotes")
        runs = math.prod(map(len, self.factors.values())) * len(self.seeds)
        if runs > MAX_RUNS:
            raise ValueError(f"factors: {runs:,} runs; a study holds {MAX_RUNS:,} at the most")
        _refuse_repeats("seeds", self.seeds)
        for factor, levels in self.factors.items():
            _refuse_repeats(f"factors.{factor}", levels)
            if commas := [x for x in levels if "," in level_name(factor, x, self.paths)]:
                raise ValueError(f"factors.{factor}: {short(commas[0])} holds a comma; rename it")
        return self

    @model_validator(mode="after")
    def _arms_are_sound(self) -> Self:
        for i, excluded in enumerate(self.exclude):
            for factor, level in excluded.items():
                if level not in self.factors.get(factor, ()):
                    raise ValueError(f"exclude.{i}: {short(level)} is no level of {short(factor)}")
        arms = self.arms()  # finds an impossible level now, not after an hour of runs
        if not arms:
            raise ValueError("exclude: leaves no arm; exclude less")
        for arm in arms:
            if Path(arm.id).stem in _BESIDE_ARMS or not _ARM_ID.fullmatch(arm.id):
                fault = f"factors: {short(arm.id)} cannot name an arm and its folder"
                raise ValueError(f"{fault}; include it under a name of letters and digits")
        names_of_levels = Grid({arm.id: arm.levels for arm in arms}).level_names()
        for i, included in enumerate(self.include):
            if included.name in names_of_levels:
                raise ValueError(f"include.{i}.name: '{included.name}' names a level; take another")
        cells = [f"{arm.variant} {arm.setting}".strip() for arm in arms]
        _refuse_repeats("include (give one of the two a name)", cells)
        for arm in arms:
            if arm.baseline not in self._arms:
                hint = suggest(arm.baseline, self._arms)
                raise ValueError(f"arm {arm.id}: its baseline {hint}; include it or name another")
        self._require_what_differs_and_compares(arms)
        return self

    def _require_what_differs_and_compares(self, arms: list[Arm]) -> None:
        """Raise ValueError if two arms are equal, or if they see different numbers of tokens in the
        same number of steps."""
        configs = dict[str, str]()
        first = dict[int, Arm]()
        for arm in arms:
            config = digest([arm.levels.get(CODE), arm.config.model_dump(exclude={"machine"})])
            if (same := configs.setdefault(config, arm.id)) != arm.id:
                raise ValueError(f"factors: {same} and {arm.id} are equal; leave one out")
            other = first.setdefault(arm.config.training.iterations, arm)
            seen, tokens = other.config.tokens, arm.config.tokens
            if tokens != seen:
                fault = f"factors: {other.id} sees {seen:,} tokens, {arm.id} {tokens:,}"
                remedy = "exclude that arm and include it with training.iterations that match"
                raise ValueError(f"{fault}; {remedy}, or keep batch_size and block_size")

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the parameters that all runs share. More seeds or levels do not change it, so
        existing runs stay valid."""
        shared = self.changed()
        for factor in self.factors:
            section, _, field = factor.partition(".")
            shared.get(section, {}).pop(field, None)
        return digest({section: fields for section, fields in shared.items() if fields})

    @property
    def stock_measures(self) -> list[str]:
        """The accuracies of the stock tasks, which a plan may test."""
        tasks, shots = self.evaluation.tasks, self.evaluation.shots
        return [name for task in tasks for name in stock_measures(task, shots)]

    def arms(self) -> list[Arm]:
        """List the arms: first every combination of levels that is not excluded (the last factor
        varies fastest), then the included arms."""
        return list(self._arms.values())

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`. Raises ConfigError, with the nearest name, if there is
        none."""
        # A notebook may pass anything.
        if not isinstance(name, str) or name not in self._arms:
            raise ConfigError(f"arm: {suggest(name, self._arms)} in study '{self.name}'")
        return self._arms[name]

    @cached_property
    def _arms(self) -> dict[str, Arm]:
        """Id → arm, made when the study is validated. Raises ConfigError for a combination that is
        not allowed; the message names its factors."""
        arms = list(self._each_arm())
        _refuse_repeats("factors", [arm.id for arm in arms])
        return {arm.id: arm for arm in arms}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the study. The copy makes its own arms and hash, unless only seeds or commits
        change: these do not affect arms or hash."""
        copied = super().model_copy(update=update, deep=deep)
        if update and not update.keys() <= {"seeds", "commits"}:
            for name in copied.__dict__.keys() - type(self).model_fields.keys():
                del copied.__dict__[name]
        return copied

    def _each_arm(self) -> Iterator[Arm]:
        for values in itertools.product(*self.factors.values()):
            levels = dict(zip(self.factors, values, strict=True))
            if not any(excluded.items() <= levels.items() for excluded in self.exclude):
                yield self._arm(IncludedArm(levels=levels))
        for i, arm in enumerate(self.include):
            if missing := [factor for factor in self.factors if factor not in arm.levels]:
                raise ConfigError(f"include.{i}.levels: has no level of {', '.join(missing)}")
            yield self._arm(arm)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Levels that are paths → their short names: see `short_names`."""
        included = (arm.levels.items() for arm in self.include)
        levels = [level for of in self.factors.values() for level in of]
        return short_names(*levels, *(level for arm in included for _, level in arm))

    def arm_id(self, levels: dict[str, Level]) -> str:
        """Write levels as a name: see `lib.config.contrasts.arm_id`."""
        return arm_id(levels, self.paths)

    def _arm(self, cell: IncludedArm) -> Arm:
        config = self.model_dump(include=set(RunConfig.model_fields))
        fields = {factor: level for factor, level in cell.levels.items() if factor != CODE}
        levels = {factor: cell.levels[factor] for factor in self.factors}
        start = {factor: levels[0] for factor, levels in list(self.factors.items())[:1]}
        within = {factor: level for factor, level in levels.items() if factor not in start}
        return Arm(
            id=cell.name or self.arm_id(cell.levels),
            levels=cell.levels,
            config=with_fields(config, fields, f"factors {short(cell.levels, 200)}", RunConfig),
            baseline=cell.baseline or self.arm_id(levels | start),
            variant=cell.name or self.arm_id({factor: levels[factor] for factor in start}),
            setting=self.arm_id(within) if within else "",
        )

    def commit_of(self, arm: Arm) -> str | None:
        """Return the commit with the code of an arm; None if the arm runs with today's code.

        Raises ConfigError if the study has not started, because commits are looked up at the start.
        """
        level = arm.levels.get(CODE)
        if level is not None and level not in self.commits:
            fault = f"factors.code: '{level}' has no commit yet"
            raise ConfigError(f"{fault}; run the study, which looks it up when it starts")
        return None if level is None else self.commits[str(level)]

    def require_seed(self, seed: int) -> int:
        """Return `seed`. Raises ConfigError if it is not a seed of the study, or not a whole
        number."""
        if type(seed) is not int or seed not in self.seeds:  # 0.0 and False equal 0
            has = short(self.seeds)
            raise ConfigError(f"seed: {short(seed)} is not in study '{self.name}'; it has {has}")
        return seed


C = TypeVar("C", bound=RunConfig)


def with_fields(content: Json, fields: Mapping[str, Any], where: str, kind: type[C]) -> C:
    """Set dotted fields in the config of a run or a study, and return the config. Raises
    ConfigError if a value is not allowed; the message starts with `where`."""
    for name, value in fields.items():
        section, _, field = name.partition(".")
        content[section][field] = value
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(explain(error, kind))}") from None


def scratch(study: Study, arm: Arm, changes: Json) -> tuple[Study, Arm]:
    """Return the study and the arm to train. Without changes, these are `study` and `arm`. With
    changes (dotted field → value), they are those of a scratch run to play with: it has no plan,
    its baseline is the unchanged arm, and no record or study includes it.

    Raises ConfigError for a field that does not exist, or a value that is not allowed.
    """
    if not isinstance(changes, dict):
        raise ConfigError('changes: write fields with values: {"training.learning_rate": 0.01}')
    if not changes:
        return study, arm
    for name in changes:
        if name not in FIELDS:
            raise ConfigError(f"changes: {suggest(name, FIELDS)}")
    config = with_fields(arm.config.model_dump(), changes, "changes", RunConfig)
    name = f"{study.name},{arm.id},{arm_id(changes)}".replace("/", "-")
    if len(name) > MAX_ID:
        name = f"{name[: MAX_ID - 13]}-{digest(changes)[:12]}"
    scratch_study = study.model_copy(update={"name": SCRATCH, "plan": None})
    return scratch_study, replace(arm, id=name, config=config, baseline=arm.id)


def load_study(study: str | Path, *, undrawn: bool = False) -> Study:
    """Load and validate a study: by name (`final`), by path (`params/final.yaml`), or by the path
    of a YAML elsewhere, which is copied to `params/`.

    With `undrawn`, use 0, 1, … instead of drawing seeds from the plan. This also works before the
    plan is frozen.

    Raises ConfigError if the file is missing, is not valid YAML, has an unknown or impossible
    field, or is not named like the study, or if its seeds are drawn from a plan that is not frozen.
    """
    prepare_params()
    path = _study_file(study)
    content = read_yaml(path)
    try:
        for name in {"commits", "drawn"} & content.keys():
            raise ConfigError(f"{name}: is set when the study starts; leave it out")
        result = Study.model_validate(content)
        if result.name != path.stem:
            fault = f"name: '{result.name}' is not the file's name"
            raise ConfigError(f"{fault}; write '{path.stem}'")
        if path.parent != PARAMS:
            _keep_copy(path)
        if undrawn:
            return result
        seeds = _drawn_seeds(result) if result.drawn else result.seeds
        return result.model_copy(update={"seeds": seeds, "commits": _read_commits(result)})
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {'; '.join(explain(error, Study))}") from None
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _study_file(study: Any) -> Path:
    """Find the file of a study, which may be anything that a notebook passes. Raises ConfigError if
    there is none."""
    if not isinstance(study, str | Path) or not str(study).strip():
        remedy = "write a name in params/, or the path of a YAML, such as ./mine.yaml"
        raise ConfigError(f"study: {short(study)} names none; {remedy}")
    file = Path(study)
    names = [path.stem for path in listed(PARAMS, "*.yaml")]
    # Unlike `Path.is_file`, this is False for a name that is too long for a file.
    if file.suffix == ".yaml" and os.path.isfile(file):  # noqa: PTH113
        return file
    is_of_params = file.parent in (Path(), Path("params"))
    if file.stem not in names or not is_of_params:
        asked = file.name.removesuffix(".yaml") if is_of_params else str(study)
        raise ConfigError(f"study: {suggest(asked, names)}")
    return PARAMS / f"{file.stem}.yaml"


def _keep_copy(path: Path) -> None:
    """Copy a study from elsewhere to `params/`, so that every process of a sweep finds it. Raises
    ConfigError if there is another file with its name."""
    text, target = path.read_text("utf-8"), PARAMS / path.name
    present = target.read_text("utf-8") if target.is_file() else COPY
    if present != text and not present.startswith(COPY):
        raise ConfigError(f"there is another params/{path.name}; give yours another name")
    if present not in (text, COPY + text):
        write_text(target, COPY + text)


def _drawn_seeds(study: Study) -> list[int]:
    plan = read_plan(study.plan) if study.plan else None
    if plan is None or study.name not in plan.frozen:
        file = study.plan or "PLAN, and name it here"
        raise ConfigError(f"seeds: a count needs a frozen plan; run ./run_all.sh freeze {file}")
    return plan.draw(study.name, len(study.seeds))


def _read_commits(study: Study) -> dict[str, str]:
    """Read the commits of the levels of `code`; none if the study has not started."""
    file = study_folder(study.name) / COMMITS
    return dict(read_json(file)) if CODE in study.factors and file.is_file() else {}


def _refuse_repeats(field: str, values: list[Any]) -> None:
    repeated = [value for value, n in Counter(values).items() if n > 1]
    if repeated:
        raise ValueError(f"{field}: {short(repeated[0])} is there twice; list each value once")
