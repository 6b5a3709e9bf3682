"""A pre-registered plan: its fields, its hash, and the seeds that follow from the hash.

Its hypotheses are sentences in the author's own words, each with a test. The hash covers all fields
except `deviations`, so a deviation can be recorded at any time without changing the plan.
"""

import hashlib
import shlex
from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, StringConstraints, ValidationError, model_validator

from lib.config.errors import ConfigError, explain, suggest
from lib.config.files import read_json
from lib.config.paths import PLANS, listed
from lib.config.provenance import git
from lib.config.schema import Positive, PositiveFloat, Section, Some, digest
from lib.config.yaml import Json, parse_yaml

ALPHA, POWER = 0.05, 0.8
"""Level and power of tests in a study without a plan."""
Text = Annotated[str, StringConstraints(strip_whitespace=True)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Probability = Annotated[float, Field(gt=0, lt=1)]
Contrast = Annotated[list[str], Field(min_length=2, max_length=2)]


class Noise(Section):
    """A transient (a rise of the loss that makes a run unstable), in units of the run's own batch
    noise, so that the definition fits every batch size, model and vocabulary."""

    times: PositiveFloat = 12.0
    """A transient rises above the running minimum of the training loss by more than this many
    standard deviations of the noise."""
    window: Annotated[int, Field(ge=10)] = 50
    """The noise is estimated from the differences over this many steps before the judged one."""


class Plateau(Section):
    """How long a run's training loss stays high at its start, and how long is harmful."""

    below: PositiveFloat = 3.0
    """The plateau ends when the mean training loss of five steps falls below this many nats. 3 is
    for a vocabulary of characters; another needs its own."""
    longest: Positive = 60
    """A plateau of at most this many steps is never harmful, however the run ends."""


class Instability(Section):
    """The definition of an unstable run: its loss rises by so many nats, or by so many times its
    noise. If neither is given, no run is called unstable."""

    rise: PositiveFloat | None = None
    """A rise of more than this many nats above the running minimum is a transient."""
    last: Positive | None = None
    """The mean loss over this many steps at the end tells whether a run recovered."""
    start: PositiveFloat | None = None
    """An arm whose loss starts more than this many nats above ln V is not judged."""
    noise: Noise | None = None
    plateau: Plateau = Plateau()
    tolerated_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """An arm counts as stable if at most this share of its runs is unstable; None: 0."""

    @model_validator(mode="after")
    def _one_definition(self) -> Self:
        transient = [value is not None for value in (self.rise, self.last, self.start)]
        if len(set(transient)) > 1 or (transient[0] and self.noise):
            raise ValueError("give one definition: noise; or rise, last and start")
        return self

    @property
    def is_defined(self) -> bool:
        """Whether there is a definition of an unstable run."""
        return bool(self.rise or self.noise)


class Hypothesis(Section):
    """A sentence in the author's words, and the test that answers it."""

    says: str
    test: Annotated[list[str], Field(min_length=3, max_length=3)] | None = None
    """[arm, the arm that it is compared with, measure]. The test is about the first arm minus the
    second, as a mean over seeds. A level such as `tied=false` means every arm that has it; each is
    compared with the arm that differs in nothing else. None: only in old plans, which had rules."""
    minus: Contrast | None = None
    """For an interaction: subtract the difference of these two arms from the difference of `test`.
    """
    minus_share: PositiveFloat = 1.0
    """Subtract this share of that difference. With 0.5 and `direction: less`, the claim is that the
    difference of `test` is less than half as large."""
    direction: Literal["greater", "less", "differs"] | None = None
    beyond: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The difference is larger than this, in the measure's units."""
    equivalent_within: PositiveFloat | None = None
    """Instead of a direction: the difference is smaller than this, in both directions."""
    exact: bool = False
    """Use the sign-flip test, which only assumes symmetry, instead of the t test."""
    family: str = "hypotheses"
    """The hypotheses of a family share the plan's alpha, by Holm's method."""
    if_supported: Text = ""
    if_refuted: Text = ""
    if_negligible: Text = ""
    if_undecided: Text = ""
    """The sentence to print for each outcome."""

    @property
    def measure(self) -> str:
        """The measure of the test; "" without one."""
        return self.test[2] if self.test else ""

    @property
    def pairs(self) -> list[list[str]]:
        """The pair of arms of `test`, and the pair of `minus` if there is one."""
        return [names[:2] for names in (self.test, self.minus) if names]

    @model_validator(mode="before")
    @classmethod
    def _a_sentence_alone(cls, value: Any) -> Any:
        return {"says": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_claim(self) -> Self:
        if self.test is None and self.model_fields_set == {"says"}:
            return self
        if self.test is None:
            raise ValueError("test: is missing; write [arm, the arm to compare with, measure]")
        if (self.direction is None) == (self.equivalent_within is None):
            raise ValueError("give either direction or equivalent_within")
        if self.beyond and self.direction is None:
            raise ValueError("beyond goes with direction; equivalent_within has its own margin")
        if self.minus_share != 1 and self.minus is None:
            raise ValueError("minus_share goes with minus")
        return self


class Family(Section):
    """Tests that share alpha by Holm's method: every contrast in every measure."""

    contrasts: Some[Contrast]
    measures: Some[str]
    test: Literal["t", "equivalence", "exact"] = "t"
    """t: paired t test; equivalence: two one-sided t tests against the plan's margins; exact: the
    sign-flip test, which for runs that are stable or unstable is McNemar's exact test."""


class Deviation(Section):
    date: str
    what: Text
    why: Text


class Frozen(Section):
    """Everything that a plan fixes in a confirmatory study. `./run_all.sh freeze` writes it. If you
    change it by hand, the plan is another plan, with other seeds."""

    seeds: Positive
    """Number of seeds to draw."""
    used_seeds: list[int]
    """Seeds of all earlier studies, which are not drawn again."""
    parameters: Sha256
    """Hash of all arms' parameters, without machine and seeds."""
    corpus: dict[str, Sha256]
    """Hash of each text, by its source."""
    suite: list[Sha256]
    """Hashes of the task suites; more than one if corpus or block size is a factor."""
    tasks: Sha256 | None = Field(None, exclude_if=not_)
    """Hash of the files in `evaluation.include_path`."""
    committed_code: bool = Field(False, exclude_if=not_)
    """Whether the study is confirmatory only if git shows that code and parameters were committed.
    `freeze` writes true; older plans lack it."""


class Plan(Section):
    """A pre-registration. Fields with a usual value have a default."""

    title: str
    question: str
    confirmatory: Some[str]
    """The studies that may be confirmatory; every other one is exploratory."""
    hypotheses: Annotated[dict[str, Hypothesis], Field(min_length=1)]
    smallest_effect_of_interest: dict[str, PositiveFloat] = Field({})
    """Measure → the smallest difference that matters, in its units. Power is computed for it, and a
    difference shown to be smaller is negligible."""
    spread: str | dict[str, PositiveFloat] | None = None
    """Measure → the sd over seeds of the difference of two arms, to compute power from. Or the name
    of a recorded study, such as a pilot, to estimate this sd from."""
    primary: list[str] = Field([])
    """Primary measures. Empty: the measures of the hypotheses."""
    secondary: list[str] = Field([])
    families: dict[str, Family] = Field({})
    """Tests without a hypothesis of their own."""
    small_effects: Literal["negligible"] | None = None
    """The answer to a claim of a difference, if the difference is shown to be smaller than the
    smallest effect of interest. `freeze` writes negligible. None, in older plans: refuted."""
    tests: Text = ""
    """How hypotheses are tested and answered, in words. `freeze` writes it; older plans have none.
    """
    alpha: Probability = ALPHA
    power: Probability = POWER
    instability: Instability | None = None
    """None: no run is called unstable, and `Plateau` has its defaults."""
    predictions: dict[str, Text] = Field({})
    """What you expect, and what you already know or suspect, by name."""
    procedures: dict[str, Text] = Field({})
    """Anything else that is fixed in words: exclusions, how open choices will be made, changes from
    an earlier plan."""
    deviations: list[Deviation] = Field([])
    frozen: dict[str, Frozen] = Field({})
    """Hashes of each confirmatory study's parameters and data."""
    _hash: str = PrivateAttr("")

    @model_validator(mode="wrap")
    @classmethod
    def _hash_of_content(cls, content: Any, handler: Any) -> Self:
        content = without_blanks(content)
        plan: Self = handler(content)
        plan._hash = cls.content_hash(content)
        return plan

    @staticmethod
    def content_hash(content: Json) -> str:
        """Hash a plan as YAML loads it, without its deviations and blanks."""
        content = without_blanks(content)
        return digest({name: value for name, value in content.items() if name != "deviations"})

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's file, without deviations and blanks. A plan in `published.json` has
        the hash of its publication."""
        return self._hash

    @property
    def bound(self) -> dict[str, Hypothesis]:
        """The hypotheses that have a test."""
        return {name: h for name, h in self.hypotheses.items() if h.test}

    @property
    def primary_measures(self) -> list[str]:
        """The primary measures; if the plan names none, the measures of the hypotheses."""
        return self.primary or list(dict.fromkeys(h.measure for h in self.bound.values()))

    def smallest_of(self, h: Hypothesis) -> float:
        """The smallest effect of interest in a hypothesis's measure; 0 if the plan has none."""
        return self.smallest_effect_of_interest.get(h.measure, 0.0)

    def draw(self, study: str, n: int) -> list[int]:
        """Draw `n` seeds for a study that is frozen in the plan: the first 31 bits of the SHA-256
        of "<hash of the plan>/<study>/<0, 1, …>", without seeds that were used before."""
        seeds: list[int] = []
        i = 0
        while len(seeds) < n:
            drawn = hashlib.sha256(f"{self.hash}/{study}/{i}".encode()).digest()
            seed = int.from_bytes(drawn[:4], "big") >> 1
            if seed not in [*self.frozen[study].used_seeds, *seeds]:
                seeds.append(seed)
            i += 1
        return seeds


def without_blanks(content: Any) -> Any:
    """Drop all fields of a mapping, and of mappings in it, that are empty or only white space."""
    if not isinstance(content, dict):
        return content
    filled = {}
    for name, value in content.items():
        bare = value.strip() if isinstance(value, str) else value
        if bare not in (None, ""):
            filled[name] = without_blanks(value)
    return filled


def published_plans() -> Json:
    """Read for each published plan its hash, the fields that have other names today, and the drawn
    and skipped seeds of each study."""
    file = PLANS / "published.json"
    return dict(read_json(file)["plans"]) if file.is_file() else {}


def read_plan(file: str) -> Plan:
    """Read a plan in `params/plans/`. Raises ConfigError, with a line per fault, if it is missing
    or faulty. In a published plan, fields that no longer exist are ignored."""
    path = PLANS / file
    if not path.is_file():
        hint = suggest(path.stem, [plan.stem for plan in listed(PLANS, "*.yaml")])
        remedy = f"write it with ./run_all.sh freeze --new {path.stem} --study NAME, or name none"
        # The newest version, on any branch.
        log = ("log", "--all", "--max-count=1", "--diff-filter=AM", "--format=%h")
        if commit := (git(*log, "--", f"params/plans/{file}") or "").strip():
            command = shlex.join(["git", "checkout", commit, "--", f"params/plans/{file}"])
            remedy = f"`{command}` restores it"
        raise ConfigError(f"plan: there is no params/plans/{file} ({hint}); {remedy}")
    content = parse_yaml(path.read_bytes(), f"plans/{file}")
    published = published_plans().get(file, {})
    content |= published.get("fields", {})
    try:
        plan = Plan.model_validate(content, extra="ignore" if published else "forbid")
    except ValidationError as error:
        faults = explain(error, Plan, most=30)
        if not without_blanks(content).get("smallest_effect_of_interest"):
            faults.append("smallest_effect_of_interest: write the smallest difference that matters")
        faults = [f"plans/{path.name}: {fault}" for fault in faults]
        raise ConfigError("\nerror: ".join(faults)) from None
    plan._hash = published.get("hash", plan._hash)
    return plan
