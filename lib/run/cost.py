"""What a run costs, by formula: arithmetic, memory, disk; and what devices can do."""

import time
from dataclasses import dataclass

import torch

from lib.study.schema import ModelConfig, RunConfig

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class GPU:
    """A GPU by its data sheet."""

    device_name: str
    """The part of its name in torch by which it is recognised."""
    memory: float
    """Bytes."""
    peaks: dict[str, float]
    """FLOP/s of dense matrix products by precision, without TF32."""


_HOPPER = {"fp32": 67e12, "bf16": 989e12, "fp16": 989e12}
GPUS = {
    "T4": GPU("Tesla T4", 16e9, {"fp32": 8.1e12, "fp16": 65e12}),
    "A100": GPU("A100", 80e9, {"fp32": 19.5e12, "bf16": 312e12, "fp16": 312e12}),
    "H100": GPU("H100 80GB HBM3", 80e9, _HOPPER),
    "H200": GPU("H200", 141e9, _HOPPER),
}


def flops_per_token(model: ModelConfig, vocab_size: int, parameters: int) -> float:
    """Operations that one token of training needs: 6 N + 12 L H Q T (Chowdhery et al. 2022, arXiv
    2204.02311, appendix B), with L layers, H heads of size Q and T tokens of context. N is without
    the embeddings that are only looked up, since no product is taken with them."""
    positions = model.block_size if model.positions == "learned" else 0
    looked_up = model.n_embd * (positions + (0 if model.tied else vocab_size))
    return 6 * (parameters - looked_up) + 12 * model.n_layer * model.n_embd * model.block_size


def peak_flops(device_name: str, precision: str, device: str) -> float:
    """Return a device's FLOP/s: by its data sheet, or else in a large matrix product."""
    for gpu in GPUS.values():
        if gpu.device_name in device_name and precision in gpu.peaks:
            return gpu.peaks[precision]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    size, seconds = 1024 if device == "cpu" else 8192, []
    square = torch.ones(size, size, device=device, dtype=dtype)
    for _ in range(4):
        start = time.perf_counter()
        (square @ square)[0, 0].item()  # a number on the CPU ends the clock on every device
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def memory(
    config: RunConfig, vocab_size: int, parameters: int, sequences: int, device: str
) -> dict[str, float]:
    """Bytes on each device at the peak of a step, with so many sequences per backward pass: weights
    (those in use also in half precision), gradients, AdamW's two moments, and activations. Every
    process holds all parameters.

    Activations per token, with C features, H heads, an MLP m times as wide, V symbols and b bytes
    per number (4, or 2 where products are taken in half precision): a block keeps 8 C of inputs of
    its two LayerNorms, b (6 + 2 m) C of what its products and its MLP read, and 4 (H + 4) of sums.
    After the blocks come 4 C + b C + 16, the log-probabilities, 4 V, and when the backward pass
    begins the logits and two gradients of theirs, (b + 8) V. Recomputed, blocks keep 4 C each, and
    while one is computed again, its activations, the gradients of its MLP, 2 b m C (of relu2 half
    as many more), and the logits take the place of what comes after the blocks. A normalization of
    the embeddings adds at most 8 C + 8, and a softcap its tanh, b V.

    Queries and keys that are turned or normalized are copies, as is what attention returns of them:
    3 b C; normalized, they are also kept before it in fp32, with 8 H of sums. Dropout keeps masks,
    2 b C of branches and 4 C of embeddings, and on a CPU, which then attends without a fused
    kernel, 12 H T of weights over T tokens of context, whose gradient in half
    precision takes 4 H T, and queries, keys and values in fp32.
    """
    model, b = config.model, _BYTES[config.training.precision]
    C, L, H, m = model.n_embd, model.n_layer, model.n_head, model.mlp_ratio
    rotary = model.positions == "rotary"
    gradients = (3 if model.activation == "relu2" else 2) * b * m * C
    block = 8 * C + b * (6 + 2 * m) * C + 4 * (H + 4)
    head = 4 * C + b * C + 16 + 4 * vocab_size + (b + 8) * vocab_size
    if model.logit_softcap is not None:
        head += b * vocab_size
    if model.qk_norm:
        block += 8 * H + (8 * C if rotary or b == 2 else 0)
    if model.dropout:
        block, head = block + 2 * b * C, head + 4 * C
    if model.dropout and device == "cpu":
        block += 12 * H * model.block_size + (12 - 3 * b) * C
        gradients = max(gradients, 4 * H * model.block_size if b == 2 else 0)
    elif rotary or model.qk_norm:
        block += 3 * b * C
    per_token, copied = L * block + head, parameters
    if config.machine.activation_checkpointing:
        again = block + gradients + b * vocab_size
        per_token, copied = L * 4 * C + max(head, again), vocab_size * C
    return {
        "weights": 4.0 * parameters + (2.0 * copied if b == 2 else 0.0),
        "gradients": parameters * 4.0,
        "AdamW": parameters * 8.0,
        "activations": float(sequences * model.block_size * per_token),
    }


CHECKPOINTS_AT_ONCE = 3
"""Two are kept, and a third is written before the first of them goes."""
_TRACE_ROW, _NOTEBOOK = 70, 300_000


def disk(parameters: int, iterations: int) -> dict[str, float]:
    """Bytes that a run writes: checkpoints of weights and AdamW's moments, each with the trace so
    far; and what the record keeps, which is the trace (about 70 bytes a step), and 300 kB of
    notebook and tables."""
    trace = iterations * _TRACE_ROW
    return {
        "checkpoints": CHECKPOINTS_AT_ONCE * (12.0 * parameters + trace),
        "record": float(trace + _NOTEBOOK),
    }
