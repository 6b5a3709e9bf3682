"""The plan fixed in advance: what it may say, its hash, and the seeds that follow from the hash.

The hash covers all but `deviations`, so that a deviation can be recorded without pretending that
the plan was another one. Fields that came later enter it only where a plan has them.
"""

import hashlib
from itertools import count
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from lib.study.errors import ConfigError, explain, read_yaml
from lib.study.fields import Positive, PositiveFloat, Section, digest
from lib.study.paths import PLANS

ALPHA, POWER = 0.05, 0.8
"""Level of tests, and power, where a study names no plan."""
Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(strip_whitespace=True)]  # how YAML folds it is no content
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Contrast = Annotated[list[str], Field(min_length=2, max_length=2)]


class Sensitivity(Section):
    factor: Literal["training.learning_rate"]
    loss: Literal["dev_loss"]


class Instability(Section):
    """When a run is unstable: by transients, or, in the first plan, by spikes in a window."""

    rise: PositiveFloat | None = None
    """Nats above the running minimum of the training loss that make a transient."""
    last: Positive | None = None
    """Steps at the end whose mean loss tells whether a run recovered."""
    start: PositiveFloat | None = None
    """Nats above ln V. An arm whose loss starts higher is not judged: it falls from a height."""
    window: Positive | None = None
    """Steps before the one judged."""
    threshold: PositiveFloat | None = None
    """Standard deviations above that window's mean."""
    tolerated_share: Share
    """Of an arm's runs, for the arm to count as stable."""
    sensitivity: Sensitivity | None = None

    @model_validator(mode="after")
    def _one_definition(self) -> Self:
        transients, spikes = {self.rise, self.last, self.start}, {self.window, self.threshold}
        if (None in transients) == (None in spikes) or {None} not in (transients, spikes):
            raise ValueError("give rise, last and start, or window and threshold, not both")
        return self


INSTABILITY = Instability(rise=0.5, last=10, start=0.5, tolerated_share=0.0)
"""Where a study names no plan."""


class Cost(Section):
    accuracy: Share
    throughput: Share | None = None
    """Of the first plan. No decision rests on speed."""


class Family(Section):
    """Tests that share one level: every contrast in every measure, adjusted by Holm's method."""

    contrasts: Annotated[list[Contrast], Field(min_length=1)]
    measures: Annotated[list[str], Field(min_length=1)]
    test: Literal["t", "equivalence", "exact"] = "t"
    """t: paired t; equivalence: two one-sided t tests against the plan's margins; exact: sign
    flips, which for runs that are stable or not is McNemar's exact test."""


class Change(Section):
    what: Text
    why: Text


class Deviation(Section):
    date: str
    what: Text
    why: Text


class Frozen(Section):
    """What a plan fixes of a confirmatory study, beside its rules. `./run_all.sh freeze` writes
    it; one changed by hand makes another plan, with other seeds."""

    seeds: Positive
    """How many are drawn."""
    used_seeds: list[int]
    """Those of all studies before: none of them is drawn."""
    parameters: Sha256
    """Of the parameters of all arms, machine and seeds apart."""
    corpus: dict[str, Sha256]
    """Of the text, by its source."""
    suite: list[Sha256]
    """Hashes of the task suites; more than one where corpus or block size is a factor."""
    training_digest: Sha256
    measuring_digest: Sha256
    analysing_digest: Sha256 | None = None
    """None: the plan was frozen before this was fixed."""


class Plan(Section):
    """A pre-registration. See params/plans/preregistration.yaml for what each field means."""

    title: str
    question: str
    confirmatory: list[str]
    seeds: list[int] | None = None
    """Of plans that list them. Those of a frozen plan are drawn."""
    hypotheses: dict[Literal["H0", "H1a", "H1b"], str]
    estimand: str
    primary: Annotated[list[str], Field(min_length=1)]
    secondary: list[str]
    families: dict[str, list[Contrast] | Family]
    """In the first plan contrasts alone, each in the primary measures."""
    alpha: Annotated[float, Field(gt=0, lt=1)]
    power: Annotated[float, Field(gt=0, lt=1)]
    minimum_detectable_effect: PositiveFloat
    margins: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Measure → the largest difference that does not matter. Of accuracies that are not named it
    is the minimum detectable effect."""
    smoothness: str | None = None
    """The measure that tells whether an arm smooths training."""
    tests: str
    exclusions: str
    imputation: dict[str, Finite]
    instability: Instability
    cost: Cost
    predictions: dict[str, Text] = Field(default_factory=dict)
    """What is expected, by name, to be followed up one by one."""
    procedures: dict[str, Text] = Field(default_factory=dict)
    """How what is not fixed yet will be chosen, and how what is exploratory will be read."""
    changes: list[Change] = Field(default_factory=list)
    """From the plan before this one."""
    deviations: list[Deviation]
    frozen: dict[str, Frozen] = Field(default_factory=dict)
    """What is fixed of each confirmatory study."""

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's content without its deviations. A field that is added to the
        schema later has a default, and changes it for no older plan."""
        return digest(self.model_dump(exclude={"deviations"}, exclude_defaults=True))

    @property
    def tests_of(self) -> dict[str, Family]:
        """Every family with its measures and its test."""
        return {
            name: family
            if isinstance(family, Family)
            else Family(contrasts=family, measures=self.primary)
            for name, family in self.families.items()
        }

    def draw(self, study: str, n: int) -> list[int]:
        """Draw the seeds of a study that the plan is frozen for: the first `n` of 31 bits from
        SHA-256 of "<hash of the plan>/<study>/<0, 1, …>", those used before left out."""
        seeds: list[int] = []
        for i in count():
            if len(seeds) == n:
                break
            drawn = hashlib.sha256(f"{self.hash}/{study}/{i}".encode()).digest()
            seed = int.from_bytes(drawn[:4], "big") >> 1
            if seed not in [*self.frozen[study].used_seeds, *seeds]:
                seeds.append(seed)
        return seeds


def read_plan(file: str) -> Plan:
    """Read a plan of `params/plans/`; ConfigError when it is missing or faulty."""
    path = PLANS / file
    if not path.is_file():
        raise ConfigError(
            f"plan: there is no params/plans/{file}; name an existing plan, "
            "or leave the field out for an exploratory study"
        )
    try:
        return Plan.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error, Plan)}") from None
