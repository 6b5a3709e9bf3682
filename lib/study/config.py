"""Strict, typed parameters: one YAML file is one study, a grid of arms × seeds.

Every error names the field, the value found, what is allowed and the nearest valid name.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lib.study.errors import ConfigError, explain, read_yaml, unknown
from lib.study.paths import PARAMS

EmbeddingNorm = Literal["none", "layernorm", "rmsnorm", "center", "scale", "grad_shrink"]
Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Level = str | bool | int | float | None
"""A value that a factor may take."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CorpusConfig(Section):
    source: str = "tinyshakespeare"
    """A known corpus, or the path of any UTF-8 text file."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Leading share of the training part that is trained on; the held-out part never changes."""


class ModelConfig(Section):
    n_layer: Positive = 8
    n_head: Positive = 8
    n_embd: Positive = 128
    block_size: Positive = 128
    mlp_ratio: Positive = 4
    embedding_norm: EmbeddingNorm = "none"
    embedding_std: PositiveFloat = 0.02
    """Standard deviation of the token embeddings at initialisation (GPT-2: 0.02)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} must be a multiple of n_head {self.n_head}")
        return self


class TrainingConfig(Section):
    iterations: Positive = 300
    batch_size: Positive = 16
    micro_batch_size: Positive | None = None
    """Sequences per backward pass; the gradient is summed up to `batch_size`. None: all at once."""
    learning_rate: PositiveFloat = 3e-4
    schedule: Literal["constant", "warmup_cosine"] = "constant"
    warmup_iterations: Annotated[int, Field(ge=0)] = 30
    """Linear warm-up of `warmup_cosine`."""
    final_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Where `warmup_cosine` ends, as a share of `learning_rate`."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    gradient_clip: PositiveFloat | None = None
    """Largest gradient norm that is applied; the norm is recorded before it. None: off."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Positive = 1
    """CPU threads of one run; more runs side by side beat more threads."""
    checkpoint_interval: Positive = 100

    @model_validator(mode="after")
    def _micro_batches_fill_the_batch(self) -> Self:
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of "
                f"micro_batch_size {self.micro_batch_size}"
            )
        return self

    @model_validator(mode="after")
    def _warmup_ends_before_training_does(self) -> Self:
        if self.schedule == "warmup_cosine" and self.warmup_iterations >= self.iterations:
            raise ValueError(
                f"warmup_iterations {self.warmup_iterations} must be below "
                f"iterations {self.iterations}"
            )
        return self


class EvaluationConfig(Section):
    interval: Positive = 25
    """Steps between two points of the dev-loss curve; never changes training."""
    dev_windows: Positive = 32
    """Windows of `block_size` characters, evenly spaced over dev, behind each point."""
    batch_size: Positive = 16
    items_per_task: Annotated[int, Field(ge=0)] | None = 500
    """Questions asked of each task of the suite; None: all there are; 0: the suite is left out."""


class RunConfig(Section):
    """All that decides a run, except its seed."""

    corpus: CorpusConfig = CorpusConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @field_validator("corpus", mode="before")
    @classmethod
    def _corpus_by_name(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class Arm:
    """One cell of the design: a level of every factor, run once per seed."""

    id: str
    levels: dict[str, Level]
    config: RunConfig
    baseline: str
    """Id of the arm with the first factor at its first level and every other factor as here."""


class Study(RunConfig):
    """A grid of runs: what all share, the factors' levels, and the seeds."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    factors: dict[str, Annotated[list[Level], Field(min_length=1)]] = {}
    """Dotted field → its levels. The first level of the first factor is the baseline."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    preregistration: str | None = None
    """File in params/ of the plan that the study is held against; None: exploratory."""
    reported: str | None = None
    """File in papers/embedding-norm/ of numbers reported elsewhere, to set beside the study's."""

    @model_validator(mode="after")
    def _grid_is_sound(self) -> Self:
        known = field_names(RunConfig)
        for factor, levels in self.factors.items():
            if factor not in known:
                raise ValueError(f"factors: {unknown(factor, known)}")
            _refuse_repeats(f"factors.{factor}", levels)
        _refuse_repeats("seeds", self.seeds)
        # An impossible level is an error now, not after an hour of runs.
        _refuse_repeats("factors", [arm.id for arm in self.arms()])
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of what all runs share. Adding seeds or levels keeps it, so runs stay valid."""
        shared = self.shared_config()
        for factor in self.factors:
            section, _, field = factor.partition(".")
            del shared[section][field]
        return digest(shared)

    def shared_config(self) -> dict[str, dict[str, Any]]:
        return {name: getattr(self, name).model_dump() for name in RunConfig.model_fields}

    def arms(self) -> Iterator[Arm]:
        """Yield every combination of levels, the last factor varying fastest.

        Raises ConfigError when a combination is not allowed, naming the factors that make it.
        """
        for values in itertools.product(*self.factors.values()):
            levels = dict(zip(self.factors, values, strict=True))
            config = self.shared_config()
            for factor, value in levels.items():
                section, _, field = factor.partition(".")
                config[section][field] = value
            try:
                run = RunConfig.model_validate(config)
            except ValidationError as error:
                raise ConfigError(f"factors {levels}: {explain(error, RunConfig)}") from None
            first = next(iter(self.factors), None)
            reference = levels | ({first: self.factors[first][0]} if first else {})
            yield Arm(arm_id(levels), levels, run, arm_id(reference))

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`; ConfigError with the nearest name when there is none."""
        arms = {arm.id: arm for arm in self.arms()}
        if name not in arms:
            raise ConfigError(f"arm: {unknown(name, list(arms))} in study '{self.name}'")
        return arms[name]

    def require_seed(self, seed: int) -> int:
        """Return `seed`; ConfigError when the study does not hold it."""
        if seed not in self.seeds:
            raise ConfigError(f"seed: {seed!r} is not in study '{self.name}'; it has {self.seeds}")
        return seed


def arm_id(levels: dict[str, Level]) -> str:
    """Write levels as a readable, path-safe name, e.g. `layernorm,embedding_std=0.02`."""
    parts = []
    for factor, value in levels.items():
        text = f"{value:.12g}" if isinstance(value, float) else str(value).lower()
        named = isinstance(value, str) and factor != "corpus.source"
        parts.append(text if named else f"{factor.rpartition('.')[2]}={Path(text).name}")
    return ",".join(parts) or "baseline"


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON: sorted keys, no white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def field_names(schema: type[BaseModel]) -> list[str]:
    """List every dotted field of a nested schema."""
    names = []
    for section, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += [f"{section}.{name}" for name in field.annotation.model_fields]
    return names


def load_study(study: str | Path) -> Study:
    """Load and validate a study of `params/`, by name (`final`) or path (`params/final.yaml`).

    Raises ConfigError when the file is missing, is not valid YAML, holds an unknown or impossible
    field, or is called otherwise than the study in it.
    """
    given = Path(study)
    if given.parent not in (Path(), Path("params")) and given.resolve().parent != PARAMS.resolve():
        raise ConfigError(f"study: {given} is elsewhere; copy it into params/")
    path = PARAMS / f"{given.name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        names = [p.stem for p in sorted(PARAMS.glob("*.yaml")) if p.stem != "preregistration"]
        raise ConfigError(f"study: {unknown(path.stem, names)} in params/")
    content = read_yaml(path)
    try:
        result = Study.model_validate(content)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error, Study)}") from None
    if result.name != path.stem:
        raise ConfigError(f"{path.name}: name is '{result.name}'; it must be '{path.stem}'")
    return result


def _refuse_repeats(field: str, values: list[Any]) -> None:
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise ValueError(f"{field}: {repeated[0]!r} stands twice; list each value once")
