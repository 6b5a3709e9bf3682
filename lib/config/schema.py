"""The parameters of a run, each with its type, default and limits.

Every error names the field, its value, the allowed values and the nearest valid name.
"""

import hashlib
import json
import math
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
"""A list with at least one item."""
LEAST = 1e-6


Std = Annotated[float, Field(ge=0, le=1e3)]
Ratio = Annotated[float, Field(ge=LEAST, le=1e6)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[int, Field(gt=0, le=65_536)]
OrAuto = Annotated[AtLeastOne | None, BeforeValidator(lambda v: None if v == "auto" else v)]
"""A positive number, or auto (None): the fastest number on this machine."""
_TOKENIZERS = r"^(characters|bytes|bpe-[1-9]\d+|[^\x00-\x1f]+\.json)$"
MIN_BPE, MAX_BPE = 257, 1_000_000


Level = str | bool | int | float | None
"""A value that a factor may take."""


# Constants of the method. A paper quotes them.
WPE_STD = 0.02
"""Standard deviation of GPT-2's initial weights. For token embeddings, see `embedding_std`."""
GRADIENT_SHARE = 0.1
"""Share of the embeddings' gradient that the variant `grad_shrink` lets through."""
TRAIN_SHARE = 0.9
"""The first 90 % of a text are the training part; the rest is held out (see `lib.data.split`)."""
GRAM = 24
"""A question may not share this many characters in a row with the training part."""
GPU_EVALUATION = 32_768
"""Most characters per forward pass of an evaluation on a GPU. It bounds the memory of the
logits."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class CorpusConfig(Section):
    source: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=1000)] = "tinyshakespeare"
    """A known corpus, or the path of any UTF-8 text, of a folder of texts, or of documents: JSON
    lines with a field `text`, or Parquet with a column `text`."""
    fraction: Share = 1.0
    """Train on this share of the training part, from its beginning; in characters, from the
    beginning of each file. The held-out part never changes."""
    tokenizer: Annotated[str, Field(pattern=_TOKENIZERS, max_length=1000)] = "characters"
    """characters, bytes, bpe-<size> (learned from the training part), or the path of a
    tokenizer.json of Hugging Face."""
    measured_characters: Annotated[int, Field(gt=0, le=2**26)] = 2**16
    """Measure at most this many characters of dev, and of test. Counted in characters, so that it
    is the same text with every tokenizer."""

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
    """Blocks, each of attention and an MLP."""
    n_head: Annotated[int, Field(gt=0, le=1_000)] = 8
    """Attention heads of a block, which must divide `n_embd`."""
    n_embd: Annotated[int, Field(gt=0, le=100_000)] = 128
    """Features of the residual stream."""
    block_size: Annotated[int, Field(gt=0, le=1_000_000)] = 128
    """Tokens of context."""
    mlp_ratio: Annotated[int, Field(gt=0, le=100)] = 4
    """Width of the MLP, in multiples of `n_embd`."""
    embedding_norm: EmbeddingNorm = "none"
    """What is between the embeddings and block 1: see the variants in lib/README.md."""
    embedding_std: Annotated[float, Field(ge=LEAST, le=1e3)] = 0.02
    """Standard deviation of the token embeddings at initialisation (GPT-2: 0.02)."""
    embedding_rms: Ratio = 1.0
    """Multiplies the output of `layernorm`, `rmsnorm` or `scale`, which bring its root mean square
    to 1."""
    branch_multiplier: Ratio = 1.0
    """Multiplies the output of every attention and MLP. The eps of every LayerNorm that reads the
    residual stream is multiplied by its square."""
    tied: bool = True
    """Whether the output projection shares its weights with the token embeddings."""
    embedding_norm_on: Literal["sum", "token"] = "sum"
    """The input of `embedding_norm`: token plus position embeddings, or token embeddings alone."""
    positions: Literal["learned", "rotary"] = "learned"
    """Position embeddings, or queries and keys rotated by their position (arXiv 2104.09864)."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """The norms inside the model: LayerNorm, or RMSNorm without parameters. With RMSNorm,
    `embedding_norm: rmsnorm` has no parameters either."""
    qk_norm: bool = False
    """Whether queries and keys are normalized, by RMSNorm without parameters."""
    activation: Literal["gelu", "relu2"] = "gelu"
    """Activation of the MLP; relu2 is the square of ReLU (arXiv 2109.08668)."""
    bias: bool = True
    """Whether linear layers and LayerNorms have biases."""
    position_std: Std = WPE_STD
    """Standard deviation of learned position embeddings at initialisation."""
    projection_std_ratio: Std = 1.0
    """Multiplies the initial residual projections (GPT-2: std 0.02 / sqrt(2 n_layer)); with 0 every
    block starts as the identity."""
    head_std: Std = WPE_STD
    """Standard deviation of an untied output projection at initialisation."""
    head_init: Literal["normal", "embeddings"] = "normal"
    """How an untied output projection starts: drawn from a normal distribution, or as a copy of the
    token embeddings, which then trains separately."""
    embedding_roll: Annotated[int, Field(ge=0, lt=100_000)] = 0
    """Shift the features of block 1's input by this many places (`torch.roll`). Lengths and angles
    stay, but a token's vector no longer lines up with its own row of a tied projection."""
    backout: bool = False
    """Whether block 1's input is subtracted from the residual stream before the last norm, so that
    the output projection reads only what the blocks added. (nanochat subtracts a later stream.)"""
    logit_softcap: Annotated[float, Field(ge=1e-2, le=1e4)] | None = None
    """The c in c · tanh(logits / c), which bounds the logits. None: off."""
    dropout: BelowOne = 0.0
    """Share of embeddings, attention weights and branch outputs set to 0 in training."""

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
        if self.head_init != "normal" and (self.tied or self.head_std != WPE_STD):
            raise ValueError(f"head_init: {self.head_init} needs tied: false, and no head_std")
        if self.embedding_roll >= self.n_embd:
            raise ValueError(f"embedding_roll must be below n_embd, which is {self.n_embd}")
        return self


class TrainingConfig(Section):
    iterations: Annotated[int, Field(gt=0, le=10**9)] = 300
    """Steps of the optimizer."""
    batch_size: Annotated[int, Field(gt=0, le=10**6)] = 16
    """Sequences of `block_size` tokens in a step."""
    learning_rate: Annotated[float, Field(ge=1e-10, le=1e30)] = 3e-4
    """The highest rate of the schedule."""
    schedule: Literal["constant", "warmup_cosine", "warmup_stable_decay"] = "constant"
    """`constant` neither warms up nor decays; the others do both."""
    warmup_iterations: Count = 30
    """Steps of linear warm-up, under every schedule but `constant`, which has none."""
    decay_fraction: Share = 0.2
    """`warmup_stable_decay` falls linearly over this last share of `iterations`; 1: from the end of
    the warm-up. nanochat: 0.65."""
    final_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end of a schedule that decays, as a share of `learning_rate`."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer of the weight matrices inside the blocks: AdamW, or Muon (Jordan et al. 2024;
    momentum 0.95), which sees query, key and value as one matrix. AdamW trains everything else."""
    muon_learning_rate_ratio: Ratio = 1.0
    """Multiplies `learning_rate` for Muon, in step and decay. The root mean square of an update is
    0.2 times the product, about that of AdamW (Liu et al. 2025, arXiv 2502.16982). nanochat's rate
    r, with n input features, corresponds to a product of 5 r / sqrt(n)."""
    beta1: BelowOne = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: BelowOne = 0.95
    """AdamW's decay of the mean of squared gradients."""
    eps: Annotated[float, Field(ge=1e-30, le=1)] = 1e-8
    """What AdamW adds to the root of the mean of squared gradients."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    """Decoupled weight decay of the weight matrices inside the blocks; nothing else decays."""
    embedding_learning_rate_ratio: Ratio = 1.0
    """Multiplies the learning rate of token and position embeddings."""
    gradient_clip: Annotated[float, Field(ge=LEAST, le=1e4)] | None = None
    """Largest gradient norm; the recorded norm is the one before clipping. None: off."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Precision of the training step; weights, and everything else, are in fp32. tf32 and bf16 need
    a GPU of compute capability 8.0 or higher (A100); bf16 also runs on a CPU."""

    @model_validator(mode="after")
    def _warmup_ends_before_training_does(self) -> Self:
        warmup, steps = self.warmup_iterations, self.iterations
        if self.schedule != "constant" and warmup >= steps:
            raise ValueError(f"warmup_iterations {warmup} must be below iterations {steps}")
        return self


class EvaluationConfig(Section):
    interval: Positive = 25
    """Steps between two points of the dev curve. Evaluation never changes training."""
    dev_windows: Annotated[int, Field(gt=0, le=10_000)] = 32
    """Windows of `block_size` tokens, evenly spaced over dev, for each point."""
    items_per_task: Count | None = 500
    """Most questions of each task of the suite (our multiple-choice tasks); None: all; 0: no suite.
    `01_data` says how small a difference 500 can show."""
    tasks: list[Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)]] = []
    """Tasks and groups of the LM-Eval harness, by its names, to evaluate beside the suite."""
    shots: list[Annotated[int, Field(ge=0, le=1000)]] = []
    """Numbers of solved examples to show before each question of `tasks`; each number is evaluated.
    Empty: each task's own number."""
    include_path: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")] | None = None
    """Folder in this repository with your own task files and their data."""


def stock_measures(task: str, shots: Collection[int]) -> list[str]:
    """Return the names of a stock task's accuracies with these numbers of shots."""
    return [f"{task}.acc@{n}" for n in shots] if len(shots) > 1 else [f"{task}.acc"]


class MachineConfig(Section):
    """Settings of the machine. They are not part of a study's hash and make no run stale, but runs
    that are compared must have equal ones. Add new settings at the end: notebooks print them in
    order."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Apple's MPS is missing: it lacks float64, in which diagnostics sum."""
    threads: Annotated[AtLeastOne, BeforeValidator(lambda v: 1 if v in (None, "auto") else v)] = 1
    """CPU threads of one run. auto: 1, because more runs side by side beat more threads."""
    micro_batch_size: OrAuto = None
    """Sequences per backward pass; gradients are summed over the batch. auto: the whole batch on a
    GPU; on a CPU up to 4, which fit into a core's cache."""
    evaluation_batch_size: OrAuto = None
    """Windows of held-out text, or questions of the suite, per forward pass. auto: 8 on a CPU; on a
    GPU 256, but at most 32,768 characters."""
    checkpoint_interval: Positive = 100
    """Steps between two checkpoints."""
    processes: OrAuto = 1
    """Processes that train one run together, each on its own device and its share of every batch.
    auto: on GPUs as many as divide the batch, on a CPU 1."""
    activation_checkpointing: bool = False
    """Compute activations inside the blocks again in the backward pass: less memory, a third more
    work."""
    compile: bool = False
    """Compile the training step with `torch.compile`, which needs a C++ compiler, or on a GPU
    Triton."""
    graph: Literal["auto", True, False] = "auto"
    """Replay a GPU's part of the training step as one CUDA graph, which gives the same bits in a
    tenth of the time. auto: if a graph can hold the step, but not in fp16, which no GPU has tried
    yet. true: also in fp16, and an error if no graph can hold the step."""


_NOT_OF_WEIGHTS = ("checkpoint_interval", "evaluation_batch_size", "graph")
OF_WEIGHTS = [name for name in MachineConfig.model_fields if name not in _NOT_OF_WEIGHTS]
"""Settings of the machine that may change weights."""


class Machine(MachineConfig):
    """The settings of a run's machine, with every `auto` resolved."""

    device: Literal["cpu", "cuda"]
    micro_batch_size: int
    evaluation_batch_size: int
    processes: int = 1
    graph: bool = False


class RunConfig(Section):
    """All parameters of a run, except its seed."""

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
        """Number of tokens that a run is trained on."""
        training = self.training
        return training.iterations * training.batch_size * self.model.block_size

    def machine_on(self, device: str, devices: int = 1) -> Machine:
        """Resolve every `auto` for a number of devices of one kind. `graph` stays off."""
        settings = self.machine
        processes = settings.processes
        if processes is None:  # the most GPUs that divide the batch
            batch, smallest = self.training.batch_size, settings.micro_batch_size or 1
            most = devices if device == "cuda" else 1
            processes = max(n for n in range(1, most + 1) if batch % (n * smallest) == 0)
        share = self.training.batch_size // processes
        if device == "cpu":
            micro_batch_size = max(math.gcd(share, n) for n in (3, 4))  # fits into a core's cache
            evaluation_batch_size = 8
        else:
            micro_batch_size = share
            evaluation_batch_size = min(256, max(1, GPU_EVALUATION // self.model.block_size))
        resolved = {
            "device": device,
            "micro_batch_size": settings.micro_batch_size or micro_batch_size,
            "evaluation_batch_size": settings.evaluation_batch_size or evaluation_batch_size,
            "processes": processes,
            "graph": False,
        }
        return Machine.model_validate(settings.model_dump() | resolved)

    def changed(self) -> dict[str, Json]:
        """Return the values that differ from the schema's defaults, without the machine's. So a
        field that is added later changes no older study's hash."""
        sections = set(RunConfig.model_fields) - {"machine"}
        return self.model_dump(include=sections, exclude_defaults=True)

    def changes_from(self, other: "RunConfig") -> list[str]:
        """Write each field with another value than in `other`, such as `model.tied: True → False`.
        Leave out the machine's fields."""
        one, own = (config.model_dump(exclude={"machine"}) for config in (other, self))
        return [
            f"{section}.{name}: {one[section][name]} → {value}"
            for section, fields in own.items()
            for name, value in fields.items()
            if value != one[section][name]
        ]


def vocabulary(corpus: Mapping[str, Any]) -> str:
    """Return a string that identifies the vocabulary of a corpus: its tokenizer, and for a BPE that
    is learned, the text that it is learned from."""
    tokenizer = str(corpus.get("tokenizer", "characters"))
    learned = [str(corpus[name]) for name in ("source", "fraction") if tokenizer.startswith("bpe-")]
    return " ".join([tokenizer, *learned])


def recorded_config(content: dict[str, Json]) -> RunConfig:
    """Read the config of a recorded run. Ignore fields that no longer exist, such as
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
"""A factor that is no field. Its levels are commits, and each arm runs with its commit's code."""
