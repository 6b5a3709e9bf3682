"""Strict, typed parameters: one YAML file is one study, a grid of arms × seeds.

Every error names the field, the value found, what is allowed and the nearest valid name.
"""

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AliasChoices, Field, ValidationError, model_validator

from lib.study.inputs import own_text, prepare_params, split_plan, write_copy
from lib.study.io import BESIDE_ARMS, PAPER, PARAMS, PLANS, read_json, study_folder, write_json
from lib.study.plan import Commit, Plan, read_plan
from lib.study.schema import (
    CODE,
    FIELDS,
    FileName,
    Level,
    RunConfig,
    Section,
    digest,
    stock_measures,
)
from lib.study.yaml import HEADLESS, ConfigError, explain, parse_yaml, read_yaml, short, suggest

STUDY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
StudyName = Annotated[str, Field(pattern=rf"^{STUDY_NAME.pattern}$", max_length=60)]
MAX_RUNS = 10_000
"""Of one study."""
MAX_ID = 120
MAX_PART = 255
"""Bytes of a file's name, as Linux has it."""
SCRATCH = ".scratch"
"""The study that scratch runs are of, a name that no parameter file may have: `runs/.scratch/`."""
MIN_AT_A_LOOK = 2
"""Seeds without which there is no spread."""
_SHARED = ("machine.", "evaluation.")
_COMMITS = "commits.json"
_ARM_ID = re.compile(rf"\w[\w .=,+()-]{{0,{MAX_ID - 1}}}")


@dataclass(frozen=True)
class Arm:
    """One cell of the design: a level of every factor, run once per seed."""

    id: str
    levels: dict[str, Level]
    config: RunConfig
    baseline: str
    """Id of the arm that this one is compared with; in the grid, the arm with the first factor at
    its first level and every other factor as here."""
    variant: str
    """What is compared: the level of the first factor, or the name of an included arm."""
    setting: str
    """The levels of all other factors, within which it is compared; "" when there are none."""


class IncludedArm(Section):
    """An arm beside the grid: a level of every factor, and any further fields."""

    levels: dict[str, Level]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.=,-]*$")] | None = None
    """Its name. None: made from its levels."""
    baseline: str | None = None
    """Id of the arm that it is compared with. None: as in the grid."""


class SeedCount(Section):
    """How many seeds to draw from the study's plan, instead of listing them, and `looks`."""

    count: Annotated[int, Field(gt=0, le=MAX_RUNS)]
    looks: list[int] = Field(default_factory=list)


class Study(RunConfig):
    """A grid of runs: what all share, the factors' levels, and the seeds."""

    name: StudyName
    factors: dict[str, Annotated[list[Level], Field(min_length=1)]] = Field(default_factory=dict)
    """Dotted field, or `code` → its levels. The first level of the first factor is the baseline."""
    commits: dict[str, Commit] = Field(default_factory=dict, exclude_if=not_)
    """Of the factor `code`, by level. In no file: found when it is frozen, or else when it runs."""
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
    """In a file also `{count: n, looks: […]}`: drawn from the plan when the study is loaded."""
    looks: list[int] = Field(default_factory=list)
    """Numbers of seeds after which the study is looked at, and ends where every hypothesis of its
    plan is decided; the last is all. In a file they stand beside the count of seeds. None: once."""
    include: list[IncludedArm] = Field(default_factory=list)
    exclude: list[dict[str, Level]] = Field(default_factory=list)
    """Levels of some factors: arms of the grid that have them all are left out."""
    plan: FileName | None = Field(None, validation_alias=AliasChoices("plan", "preregistration"))
    """File in params/plans/ of the plan that the study is held against; None: exploratory."""
    paper: StudyName = PAPER.name
    """Folder in papers/ that takes the study's record, results and figures. Part of no hash."""
    reported: FileName | None = None
    """File in that folder of numbers reported elsewhere, for the paper's own notebook to read."""

    @model_validator(mode="after")
    def _grid_is_sound(self) -> Self:
        # How runs are executed and measured is one for all: else they could not be compared.
        allowed = [CODE, *(name for name in FIELDS if not name.startswith(_SHARED))]
        fields = {"factors": list(self.factors)}
        fields |= {f"include.{i}.levels": list(arm.levels) for i, arm in enumerate(self.include)}
        for field, names in fields.items():
            for name in names:
                if name.startswith(_SHARED):
                    section = name.partition(".")[0]
                    raise ValueError(f"{field}: {name} is one for all runs; set it under {section}")
                if name not in allowed:
                    raise ValueError(f"{field}: {suggest(name, allowed)}")
                if name == CODE and CODE not in self.factors:
                    raise ValueError(f"{field}: code must be a factor, if it is to have levels")
        included = (arm.levels[CODE] for arm in self.include if CODE in arm.levels)
        for level in {*self.factors.get(CODE, ()), *included}:
            if not isinstance(level, str):
                raise ValueError(f"factors.code: {level!r} is no text; write the commit in quotes")
            if not level.strip():
                raise ValueError("factors.code: '' names no commit; write a branch, tag or hash")
        runs = math.prod(map(len, self.factors.values())) * len(self.seeds)
        if runs > MAX_RUNS:
            raise ValueError(f"factors: {runs:,} runs; a study holds {MAX_RUNS:,} at the most")
        _refuse_repeats("seeds", self.seeds)
        if self.looks and (
            sorted(set(self.looks)) != self.looks
            or self.looks[0] < MIN_AT_A_LOOK
            or self.looks[-1] != len(self.seeds)
        ):
            raise ValueError(
                f"seeds.looks: {short(self.looks)} must rise, from {MIN_AT_A_LOOK} seeds or more "
                f"to all {len(self.seeds)}"
            )
        for factor, levels in self.factors.items():
            _refuse_repeats(f"factors.{factor}", levels)
        for i, excluded in enumerate(self.exclude):
            field = f"exclude.{i}"
            if not excluded:
                raise ValueError(f"{field}: names no level; give the levels of arms to leave out")
            for factor, level in excluded.items():
                if factor not in self.factors:
                    raise ValueError(f"{field}: {suggest(factor, list(self.factors))}")
                if level not in (levels := self.factors[factor]):
                    fault = f"{short(level)} is not one of its levels, {short(levels)}"
                    raise ValueError(f"{field}.{factor}: {fault}")
        # So that an impossible level is found now, not after an hour of runs.
        arms = list(self.arms())
        if not arms:
            raise ValueError("exclude: leaves no arm; exclude less")
        named = {arm.name: f"include.{i}.name" for i, arm in enumerate(self.include)}
        for arm in arms:
            if arm.id in BESIDE_ARMS:  # a notebook may write or clear it
                raise ValueError(
                    f"{named.get(arm.id, 'factors')}: '{arm.id}' is what a study's folder holds "
                    "beside its arms; include the arm under another name"
                )
            if not _ARM_ID.fullmatch(arm.id):
                raise ValueError(
                    f"factors: {short(arm.id)} cannot name an arm and its folder: use at most "
                    f"{MAX_ID} letters, digits, spaces and . = , + ( ) -; rename the file or "
                    "shorten the level, or include the arm under another name"
                )
        ids = [arm.id for arm in arms]
        _refuse_repeats("factors", ids)
        cells = [f"{arm.variant} {arm.setting}".strip() for arm in arms]
        _refuse_repeats("include (give one of the two a name)", cells)
        for arm in arms:
            if arm.baseline not in ids:
                hint = suggest(arm.baseline, ids)
                raise ValueError(f"arm {arm.id}: its baseline {hint}; include it or name another")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of what all runs share. Adding seeds or levels keeps it, so runs stay valid."""
        shared = self.changed()
        for section, _, field in (factor.partition(".") for factor in self.factors):
            shared.get(section, {}).pop(field, None)
        return digest({section: fields for section, fields in shared.items() if fields})

    @property
    def stock_measures(self) -> list[str]:
        """Name the accuracies of the stock tasks, which a plan may be about."""
        tasks, shots = self.evaluation.tasks, self.evaluation.shots
        return [name for task in tasks for name in stock_measures(task, shots)]

    def arms(self) -> Iterator[Arm]:
        """Yield every combination of levels, the last factor varying fastest, without those that
        are excluded; then the included ones.

        Raises ConfigError when a combination is not allowed, naming the factors that make it.
        """
        start = {factor: levels[0] for factor, levels in list(self.factors.items())[:1]}
        for values in itertools.product(*self.factors.values()):
            levels = dict(zip(self.factors, values, strict=True))
            if not any(excluded.items() <= levels.items() for excluded in self.exclude):
                yield self._arm(levels, arm_id(levels), arm_id(levels | start))
        for i, arm in enumerate(self.include):
            if missing := [factor for factor in self.factors if factor not in arm.levels]:
                raise ConfigError(f"include.{i}.levels: has no level of {', '.join(missing)}")
            grid = {factor: arm.levels[factor] for factor in self.factors}
            baseline = arm.baseline or arm_id(grid | start)
            yield self._arm(arm.levels, arm.name or arm_id(arm.levels), baseline, arm.name)

    def _arm(
        self, levels: dict[str, Level], name: str, baseline: str, variant: str | None = None
    ) -> Arm:
        config = self.model_dump(include=set(RunConfig.model_fields))
        fields = {factor: value for factor, value in levels.items() if factor != CODE}
        run = with_fields(config, fields, f"factors {short(levels, 200)}")
        compared, *within = self.factors or [""]
        return Arm(
            id=name,
            levels=levels,
            config=run,
            baseline=baseline,
            variant=variant or arm_id({compared: levels[compared]} if compared else {}),
            setting=arm_id({factor: levels[factor] for factor in within}) if within else "",
        )

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`; ConfigError with the nearest name when there is none."""
        arms = {arm.id: arm for arm in self.arms()}
        if not isinstance(name, str) or name not in arms:  # a notebook's parameter may be anything
            raise ConfigError(f"arm: {suggest(name, arms)} in study '{self.name}'")
        return arms[name]

    def commit_of(self, arm: Arm) -> Commit | None:
        """Return the commit by whose code an arm is run; None where that is the code at hand.

        Raises ConfigError where the study has not begun, so that none is fixed.
        """
        level = arm.levels.get(CODE)
        if level is not None and level not in self.commits:
            raise ConfigError(
                f"factors.code: which commit '{level}' is, is fixed when the study begins: "
                f"./run_all.sh params/{self.name}.yaml"
            )
        return None if level is None else self.commits[str(level)]

    def require_seed(self, seed: int) -> int:
        """Return `seed`; ConfigError when the study does not hold it, or it is no whole number."""
        if type(seed) is not int or seed not in self.seeds:  # 0.0 and False equal 0
            raise ConfigError(
                f"seed: {short(seed)} is not in study '{self.name}'; it has {short(self.seeds)}"
            )
        return seed


def with_fields(content: dict[str, Any], fields: Mapping[str, Any], where: str) -> RunConfig:
    """Set dotted fields in the content of a config; ConfigError, beginning with `where`, where that
    gives none that is allowed."""
    for name, value in fields.items():
        section, _, field = name.partition(".")
        content[section][field] = value
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, RunConfig)}") from None


def arm_id(levels: dict[str, Level]) -> str:
    """Write levels as a readable, path-safe name, e.g. `layernorm,embedding_std=0.02`."""
    parts = []
    for factor, value in levels.items():
        text = f"{value:.12g}" if isinstance(value, float) else str(value).lower()
        text = str(value).replace("/", "-") if factor == CODE else text  # a branch may be a/b
        named = isinstance(value, str) and factor != "corpus.source"
        parts.append(text if named else f"{factor.rpartition('.')[2]}={Path(text).name}")
    return ",".join(parts) or "baseline"


def scratch(study: Study, arm: Arm, changes: dict[str, Any]) -> tuple[Study, Arm]:
    """Return the study and the arm to train: with changes (dotted field → value) a scratch run, to
    play with, which no record takes and no study sees, whose baseline is the arm as it was, under
    no plan; without, and in a notebook that a sweep executes, the study's own.

    Raises ConfigError for a field that does not exist, or a value that is not allowed.
    """
    if not isinstance(changes, dict):
        raise ConfigError('changes: write fields with values: {"training.learning_rate": 0.01}')
    if not changes or os.environ.get(HEADLESS):
        return study, arm
    for name in changes:
        if name not in FIELDS:
            raise ConfigError(f"changes: {suggest(name, FIELDS)}")
    config = with_fields(arm.config.model_dump(), changes, "changes")
    name = f"{study.name},{arm.id},{arm_id(changes)}".replace("/", "-")
    if len(name) > MAX_ID:
        name = f"{name[: MAX_ID - 13]}-{digest(changes)[:12]}"
    scratch_study = study.model_copy(update={"name": SCRATCH, "plan": None})
    return scratch_study, replace(arm, id=name, config=config, baseline=arm.id)


def load_study(study: str | Path, *, undrawn: bool = False) -> Study:
    """Load and validate a study of `params/`, by name (`final`) or path (`params/final.yaml`); or
    one of one's own, by its text or a path elsewhere, of which `params/` gets a copy.

    With `undrawn`, 0, 1, … stand for seeds that are to be drawn, as before the plan is frozen.
    Raises ConfigError when the file is missing, is not valid YAML, holds an unknown or impossible
    field, or is called otherwise than the study in it; or draws seeds from a plan not yet frozen.
    """
    prepare_params()
    where, plan, text = "study", "", own_text(_reference(study))
    name: str | None = None
    if text is None:
        path = _study_file(study)
        where, name, content = path.name, path.stem, read_yaml(path)
    else:
        text, plan = split_plan(text)
        content = parse_yaml(text.encode(), where)
    try:
        count = None
        if isinstance(content.get("seeds"), dict):
            drawn = _seed_count(content["seeds"])
            count = drawn.count
            content |= {"seeds": list(range(count)), "looks": drawn.looks}
        if "commits" in content:
            raise ConfigError("commits: are found when the study is frozen or run; leave them out")
        result = Study.model_validate(content)
        if text is not None:
            _write_params(result, text, plan)
        if count and not undrawn:
            result = result.model_copy(update={"seeds": _drawn_seeds(result, count)})
        if CODE in result.factors and not undrawn:
            result = result.model_copy(update={"commits": read_commits(result)})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, Study)}") from None
    if name not in (None, result.name):
        raise ConfigError(f"{where}: name is '{result.name}'; it must be '{name}'")
    return result


def fixed_commits(study: Study) -> dict[str, Commit]:
    """Return the commits that the study's plan has fixed; none where it is not frozen for it."""
    plan = read_plan(study.plan) if study.plan else None
    return plan.frozen[study.name].commits if plan and study.name in plan.frozen else {}


def read_commits(study: Study) -> dict[str, Commit]:
    """Return the commits of a study's levels of `code`: those that its plan has fixed, and of
    others those that `write_commits` wrote when it began."""
    commits: dict[str, Commit] = {}
    with suppress(OSError, ValueError, AttributeError):  # it has not begun, or the file is damaged
        content = read_json(study_folder(study.name) / _COMMITS)
        commits = {level: Commit.model_validate(commit) for level, commit in content.items()}
    return commits | fixed_commits(study)


def write_commits(commits: Mapping[str, Commit], folder: Path) -> None:
    """Write which commit each level of `code` is into a study's folder of `runs/`."""
    if commits:
        write_json(folder / _COMMITS, {level: c.model_dump() for level, c in commits.items()})


def _reference(study: Any) -> str | Path:
    """Return what names or holds a study, which a notebook's parameter may be; ConfigError for what
    cannot."""
    if not isinstance(study, str | Path) or not str(study).strip():
        remedy = "a name in params/, a file, or the text of a study"
        raise ConfigError(f"study: {short(study)} names none; write {remedy}")
    if "\n" not in str(study) and any(len(part) > MAX_PART for part in Path(study).parts):
        raise ConfigError(f"study: {short(study)} is too long for a name; write a text in lines")
    return study


def _study_file(study: str | Path) -> Path:
    """Return the file of a study in `params/`; ConfigError where there is none."""
    file = Path(study)
    if file.parent not in (Path(), Path("params")) and file.resolve().parent != PARAMS.resolve():
        raise ConfigError(f"study: there is no {file}; name a study of params/, or a file")
    path = PARAMS / f"{file.name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        names = [p.stem for p in sorted(PARAMS.glob("*.yaml"))]
        raise ConfigError(f"study: {suggest(path.stem, names)} in params/")
    return path


def _write_params(study: Study, text: str, plan: str) -> None:
    """Keep a study of one's own, and the plan that stands below it, in `params/`."""
    if plan and not study.plan:
        raise ConfigError("plan: is missing, and one stands below; name it, as plan: mine.yaml")
    if plan:
        name = str(study.plan)
        try:
            Plan.model_validate(parse_yaml(plan.encode(), name))
        except ValidationError as error:
            raise ConfigError(f"{name}: {explain(error, Plan)}") from None
        write_copy(plan, PLANS / name)
    write_copy(text, PARAMS / f"{study.name}.yaml")


def _seed_count(content: dict[str, Any]) -> SeedCount:
    try:
        return SeedCount.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"seeds.{explain(error, SeedCount)}") from None


def _drawn_seeds(study: Study, count: int) -> list[int]:
    if study.plan is None:
        raise ConfigError("seeds: are drawn from a plan, and none is named; name one, or list them")
    plan = read_plan(study.plan)
    if study.name not in plan.frozen:
        raise ConfigError(
            f"seeds: are drawn from {study.plan} when it is frozen for this study: "
            f"./run_all.sh freeze {study.plan}"
        )
    return plan.draw(study.name, count)


def _refuse_repeats(field: str, values: list[Any]) -> None:
    repeated = [value for value, n in Counter(values).items() if n > 1]
    if repeated:
        raise ValueError(f"{field}: {short(repeated[0])} stands twice; list each value once")
