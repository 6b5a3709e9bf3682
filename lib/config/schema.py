"""The fields that decide a run, each typed, with its default and its limits.

Every error names the field, the value found, what is allowed and the nearest valid name.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lib.config.errors import short
from lib.config.yaml import Json

EmbeddingNorm = Literal["none", "layernorm", "rmsnorm", "center", "scale", "grad_shrink"]
Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]
"""A list of one or more."""
LEAST = 1e-6


def _acts(value: Any) -> Any:
    if isinstance(value, float) and 0 < value < LEAST:
        raise ValueError(f"{value} is too small to act; write 0, or {LEAST:g} at least")
    return value


Std = Annotated[float, Field(ge=0, le=1e3), BeforeValidator(_acts)]
Ratio = Annotated[float, Field(ge=LEAST, le=1e6)]
BelowOne = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_acts)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[int, Field(gt=0, le=65_536)]
OrAuto = Annotated[AtLeastOne | None, BeforeValidator(lambda v: None if v == "auto" else v)]
"""A positive number, or auto (None): what is fastest on the machine at hand."""
_TOKENIZERS = r"^(characters|bytes|bpe-[1-9]\d+|[^\x00-\x1f]+\.json)$"
MIN_BPE, MAX_BPE = 257, 1_000_000


Level = str | bool | int | float | None
"""A value that a factor may take."""


# Constants of the method, which a paper quotes.
WPE_STD = 0.02
"""Standard deviation of GPT-2's initial weights. For token embeddings it is `embedding_std`."""
GRADIENT_SHARE = 0.1
"""How much of the embeddings' gradient the variant `grad_shrink` lets through."""
TRAIN_SHARE = 0.9
"""Leading share of a text that is for training; the rest is held out (see `lib.data.split`)."""
GRAM = 24
"""Characters that a question may not have in common with the training part."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CorpusConfig(Section):
    source: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=1000)] = "tinyshakespeare"
    """A known corpus, or the path of any UTF-8 text, of a folder of texts, or of documents: JSON
    lines with a field `text`, or Parquet with a column `text`."""
    fraction: Share = 1.0
    """Leading share of the training part that is trained on; the held-out part never changes."""
    tokenizer: Annotated[str, Field(pattern=_TOKENIZERS, max_length=1000)] = "characters"
    """characters, bytes, bpe-<size> (learned from the training part), or the path of a
    tokenizer.json of Hugging Face."""

    @field_validator("tokenizer")
    @classmethod
    def _size_is_possible(cls, value: str) -> str:
        size = value.removeprefix("bpe-")
        if size.isdecimal() and not MIN_BPE <= int(size) <= MAX_BPE:
            sizes = f"{MIN_BPE} (all bytes and the end of a document) to {MAX_BPE:,}"
            raise ValueError(f"{short(value)}: a size must be {sizes}")
        return value


class ModelConfig(Section):
    n_layer: Annotated[int, Field(gt=0, le=1_000)] = 8
    n_head: Annotated[int, Field(gt=0, le=1_000)] = 8
    n_embd: Annotated[int, Field(gt=0, le=100_000)] = 128
    block_size: Annotated[int, Field(gt=0, le=1_000_000)] = 128
    mlp_ratio: Annotated[int, Field(gt=0, le=100)] = 4
    embedding_norm: EmbeddingNorm = "none"
    embedding_std: Annotated[float, Field(ge=LEAST, le=1e3)] = 0.02
    """Standard deviation of the token embeddings at initialisation (GPT-2: 0.02)."""
    embedding_rms: Ratio = 1.0
    """What the stream is multiplied by after `layernorm`, `rmsnorm` or `scale`, which bring its
    root mean square to 1."""
    branch_multiplier: Ratio = 1.0
    """What the output of every attention and MLP is multiplied by; the eps of every LayerNorm that
    reads the stream grows with its square."""
    tied: bool = True
    """Whether the output projection shares its weights with the token embeddings."""
    embedding_norm_on: Literal["sum", "token"] = "sum"
    """What `embedding_norm` reads: token plus position embeddings, or token embeddings alone."""
    positions: Literal["learned", "rotary"] = "learned"
    """Position embeddings, or queries and keys turned by their position (arXiv 2104.09864)."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """What reads the stream: LayerNorm, or RMSNorm without parameters; with the latter
    `embedding_norm: rmsnorm` has none either."""
    qk_norm: bool = False
    """Whether queries and keys are normalized, by RMSNorm without parameters."""
    activation: Literal["gelu", "relu2"] = "gelu"
    """Of the MLP; relu2 is the square of ReLU (arXiv 2109.08668)."""
    bias: bool = True
    """Whether linear layers and LayerNorms have biases."""
    position_std: Std = WPE_STD
    """Standard deviation of learned position embeddings at initialisation."""
    projection_std_ratio: Std = 1.0
    """What the initial residual projections (GPT-2: std 0.02 / sqrt(2 n_layer)) are multiplied by;
    0 starts every block as the identity."""
    head_std: Std = WPE_STD
    """Standard deviation of an output projection of its own at initialisation."""
    logit_softcap: Annotated[float, Field(ge=1e-2, le=1e4)] | None = None
    """c in c · tanh(logits / c), which bounds the logits. None: off."""
    dropout: BelowOne = 0.0
    """Share of embeddings, attention weights and branch outputs that training sets to 0."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.embedding_rms != 1 and self.embedding_norm not in ("layernorm", "rmsnorm", "scale"):
            raise ValueError("embedding_rms is for layernorm, rmsnorm and scale; leave it at 1")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} must be a multiple of n_head {self.n_head}")
        width = self.n_embd // self.n_head
        if self.positions == "rotary" and width % 2:
            raise ValueError(f"positions: rotary needs an even n_embd / n_head, and it is {width}")
        if self.positions == "rotary" and self.position_std != WPE_STD:
            raise ValueError(f"position_std is for positions: learned; leave it at {WPE_STD}")
        if self.tied and self.head_std != WPE_STD:
            raise ValueError(f"head_std is for tied: false; leave it at {WPE_STD}")
        return self


class TrainingConfig(Section):
    iterations: Annotated[int, Field(gt=0, le=10**9)] = 300
    batch_size: Annotated[int, Field(gt=0, le=10**6)] = 16
    learning_rate: Annotated[float, Field(ge=1e-10, le=1e30)] = 3e-4
    schedule: Literal["constant", "warmup_cosine", "warmup_stable_decay"] = "constant"
    """`constant` neither warms up nor decays; the others do both."""
    warmup_iterations: Count = 30
    """Steps of linear warm-up, under every schedule but `constant`, which has none."""
    decay_fraction: Share = 0.2
    """Share of `iterations`, the last ones, over which `warmup_stable_decay` falls linearly; with 1
    from the end of the warm-up on. nanochat: 0.65."""
    final_learning_rate_ratio: Annotated[float, Field(ge=0, le=1), BeforeValidator(_acts)] = 0.1
    """Where a schedule that decays ends, as a share of `learning_rate`."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Of the weight matrices inside the blocks: AdamW, or Muon (Jordan et al. 2024; momentum 0.95)
    which takes query, key and value as the one matrix that they are. AdamW has all the rest."""
    muon_learning_rate_ratio: Ratio = 1.0
    """What `learning_rate` is multiplied by for Muon, in step and decay. An update's root mean
    square is 0.2 times the product, as AdamW's is about (Liu et al. 2025, arXiv 2502.16982); a rate
    r of nanochat's, on inputs of n features, is a product of 5 r / sqrt(n)."""
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    eps: Annotated[float, Field(ge=1e-30, le=1)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0, le=1e6), BeforeValidator(_acts)] = 0.1
    embedding_learning_rate_ratio: Ratio = 1.0
    """What the learning rate of token and position embeddings is multiplied by."""
    gradient_clip: Annotated[float, Field(ge=LEAST, le=1e4)] | None = None
    """Largest gradient norm that is applied; the norm is recorded before it. None: off."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    @model_validator(mode="after")
    def _warmup_ends_before_training_does(self) -> Self:
        warmup, steps = self.warmup_iterations, self.iterations
        if self.schedule != "constant" and warmup >= steps:
            raise ValueError(f"warmup_iterations {warmup} must be below iterations {steps}")
        return self


class EvaluationConfig(Section):
    interval: Positive = 25
    """Steps between two points of the dev-loss curve; never changes training."""
    dev_windows: Annotated[int, Field(gt=0, le=10_000)] = 32
    """Windows of `block_size` characters, evenly spaced over dev, behind each point."""
    items_per_task: Count | None = 500
    """Most questions asked of each task of the suite; None: all there are; 0: the suite is left
    out. `01_data` says what 500 are enough for."""
    tasks: list[Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)]] = []
    """Stock tasks and groups of the LM-Eval harness, by its names, asked beside the suite."""
    shots: list[Annotated[int, Field(ge=0, le=1000)]] = []
    """Solved examples before each question of `tasks`, one number after the other; none given: as
    many as each task says."""
    include_path: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")] | None = None
    """Folder in this repository with task files of one's own, and their data."""


def stock_measures(task: str, shots: Collection[int]) -> list[str]:
    """Name the accuracies of a stock task that is asked with these numbers of shots."""
    return [f"{task}.acc@{n}" for n in shots] if len(shots) > 1 else [f"{task}.acc"]


class MachineConfig(Section):
    """Settings of the machine, the one list of them. None is part of a study's hash or of what
    makes a run stale; runs that are compared must have been made with equal ones. A setting that
    came later stands below: notebooks print them in order."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Without Apple's (MPS), which lacks the float64 that diagnostics sum in."""
    threads: Annotated[AtLeastOne, BeforeValidator(lambda v: 1 if v in (None, "auto") else v)] = 1
    """CPU threads of one run. auto: 1, since more runs side by side beat more threads."""
    micro_batch_size: OrAuto = None
    """Sequences per backward pass; the gradient is summed up to the batch. auto: on a CPU up to 4,
    which stay in a core's cache; on a GPU the whole batch."""
    evaluation_batch_size: OrAuto = None
    """Windows of held-out text, or questions of the suite, per forward pass. auto: on a CPU 8; on a
    GPU 256, or as many as hold 32,768 characters."""
    checkpoint_interval: Positive = 100
    """Steps between two checkpoints."""
    processes: OrAuto = 1
    """Processes that train one run together, each on a device of its own and on its share of every
    batch. auto: on GPUs as many as divide the batch, on a CPU 1."""
    activation_checkpointing: bool = False
    """Compute the activations inside the blocks again for the backward pass: less memory, and a
    third more work."""
    compile: bool = False
    """Compile the training step with `torch.compile`, which needs a C++ compiler, or on a GPU
    Triton."""
    graph: Literal["auto", False] = "auto"
    """Replay a GPU's part of the training step as one CUDA graph, to the same bits in a tenth of
    the time. auto: wherever a graph can hold the step."""


_NOT_OF_WEIGHTS = ("checkpoint_interval", "evaluation_batch_size", "graph")
OF_WEIGHTS = [name for name in MachineConfig.model_fields if name not in _NOT_OF_WEIGHTS]
"""The settings of the machine that may move weights."""


class Machine(MachineConfig):
    """What a run computes on: the settings with every `auto` resolved."""

    device: Literal["cpu", "cuda"]
    micro_batch_size: int
    evaluation_batch_size: int
    processes: int = 1
    graph: bool = False  # type: ignore[assignment]


class RunConfig(Section):
    """All that decides a run, except its seed."""

    corpus: CorpusConfig = CorpusConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    machine: MachineConfig = MachineConfig()

    @field_validator("corpus", mode="before")
    @classmethod
    def _corpus_by_name(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        if self.evaluation.tasks and self.corpus.tokenizer == "characters":
            remedy = "set corpus.tokenizer to bytes or bpe-<size>"
            raise ValueError(f"evaluation.tasks: hold characters that the corpus lacks; {remedy}")
        batch, machine = self.training.batch_size, self.machine
        parts = (machine.processes or 1) * (machine.micro_batch_size or 1)
        if batch % parts:
            fault = f"machine.processes × machine.micro_batch_size is {parts}"
            raise ValueError(f"{fault}, which must divide training.batch_size {batch}")
        return self

    @property
    def tokens(self) -> int:
        """How many a run is trained on."""
        training = self.training
        return training.iterations * training.batch_size * self.model.block_size

    def changed(self) -> dict[str, Json]:
        """Return the values that differ from the schema's defaults, the machine's apart. A field
        that is added to the schema later changes it for no older study."""
        sections = set(RunConfig.model_fields) - {"machine"}
        return self.model_dump(include=sections, exclude_defaults=True)


def vocabulary(corpus: Mapping[str, Any]) -> str:
    """Name the vocabulary of a corpus: its tokenizer, and the text that a BPE is learned from."""
    tokenizer = str(corpus.get("tokenizer", "characters"))
    learned = [str(corpus[name]) for name in ("source", "fraction") if tokenizer.startswith("bpe-")]
    return " ".join([tokenizer, *learned])


def recorded_config(content: dict[str, Json]) -> RunConfig:
    """Read the config of a recorded run, without the fields that were dropped since, such as
    `corpus.deduplicate`."""
    return RunConfig.model_validate(content, extra="ignore")


def digest(value: Any) -> str:
    """Compute the SHA-256 of a value's canonical JSON: sorted keys, no white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


FIELDS = [
    f"{name}.{field}" for name, section in RunConfig() for field in type(section).model_fields
]
"""Every dotted field."""
CODE = "code"
"""A factor beside the fields: its levels are commits, by whose own code their arms are run."""
