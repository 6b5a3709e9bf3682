"""The GPT and its embedding normalizations. Reads top to bottom; shapes in comments.

B = batch, T = time (characters), P = characters read before, C = n_embd, V = vocabulary size,
H = heads.

Parameter names are those of GPT-2, nanoGPT and Hugging Face (`transformer.wte.weight`,
`transformer.h.0.attn.c_attn.weight`, …). Only `transformer.emb_norm`, the layer under study, is
ours. The output projection shares the weights of `transformer.wte`, so it has no name of its own.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.study.constants import GRADIENT_SHARE, WPE_STD
from lib.study.fields import ModelConfig


class Center(nn.Module):
    """Subtract each token's mean over its features: the centring half of LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True)


class Scale(nn.Module):
    """Multiply by a constant that brings the RMS at initialisation to `rms`, without normalizing.

    Token and position embeddings are independent, so the expected RMS of their sum is
    `sqrt(embedding_std² + 0.02²)`.
    """

    def __init__(self, embedding_std: float, rms: float = 1.0) -> None:
        super().__init__()
        self.factor = rms / math.hypot(embedding_std, WPE_STD)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class GradShrink(nn.Module):
    """Keep the value and pass back only a share of its gradient (GLM-130B, arXiv 2210.02414)."""

    def forward(self, x: Tensor) -> Tensor:
        return GRADIENT_SHARE * x + (1 - GRADIENT_SHARE) * x.detach()


def embedding_normalization(config: ModelConfig) -> nn.Module:
    """Return the layer between the summed embeddings and block 1.

    A variant also needs a name in `EmbeddingNorm` and a look in `lib.study.variants`.
    """
    match config.embedding_norm:
        case "none":
            return nn.Identity()
        case "layernorm":  # Ba et al. 2016, arXiv 1607.06450
            return nn.LayerNorm(config.n_embd, eps=1e-5)
        case "rmsnorm":  # Zhang & Sennrich 2019, arXiv 1910.07467; gain, no bias
            return nn.RMSNorm(config.n_embd, eps=1e-6)
        case "center":
            return Center()
        case "scale":
            return Scale(config.embedding_std, config.embedding_rms)
        case "grad_shrink":
            return GradShrink()


class Past:
    """Keys and values of the characters read so far; every call of the model extends it.

    The past of one text can be continued by a batch of texts.
    """

    def __init__(self) -> None:
        self._layers: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        return next((keys.shape[2] for keys, _ in self._layers.values()), 0)

    def copy(self) -> "Past":
        """Return a past that can be continued without extending this one."""
        result = Past()
        result._layers = dict(self._layers)
        return result

    def extend(self, layer: nn.Module, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys and values (B, H, T, C/H); return all, (B, H, P + T, C/H)."""
        if layer in self._layers:
            before = [part.expand(len(keys), -1, -1, -1) for part in self._layers[layer]]
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        self._layers[layer] = keys, values
        return keys, values


class CausalSelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)  # query, key and value in one
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, mask: Tensor | None = None, past: Past | None = None) -> Tensor:
        B, T, C = x.shape
        heads = (B, T, self.n_head, C // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(C, dim=-1))
        if past is not None:
            k, v = past.extend(self, k, v)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)  # (B, H, T, C/H)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.mlp_ratio * config.n_embd)
        self.c_proj = nn.Linear(config.mlp_ratio * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))  # type: ignore[no-any-return]


def reader_norm(config: ModelConfig) -> nn.LayerNorm:
    """Return a LayerNorm that reads the residual stream. With a stream and branches s times as
    large and eps s² times, it gives the same output, so the model is the same function."""
    return nn.LayerNorm(config.n_embd, eps=1e-5 * config.branch_multiplier**2)


class Block(nn.Module):
    """Pre-LN: normalize, transform, add (Xiong et al. 2020, arXiv 2002.04745)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.branch_multiplier = config.branch_multiplier
        self.ln_1 = reader_norm(config)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = reader_norm(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, mask: Tensor | None = None, past: Past | None = None) -> Tensor:
        x = x + self._scaled(self.attn(self.ln_1(x), mask, past))
        return x + self._scaled(self.mlp(self.ln_2(x)))

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.branch_multiplier == 1 else branch * self.branch_multiplier


class Transformer(nn.Module):
    """The layers of a GPT, by the names that GPT-2 gives them."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.emb_norm = embedding_normalization(config)
        normalized = config.embedding_norm in ("layernorm", "rmsnorm")
        self.embedding_rms = config.embedding_rms if normalized else 1.0
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = reader_norm(config)

    def embed(self, ids: Tensor, positions: Tensor | None = None, start: int = 0) -> Tensor:
        """Map character ids (B, T) to the input of block 1 (B, T, C).

        Positions count from `start` unless given.
        """
        end = start + ids.shape[1] if positions is None else int(positions.max()) + 1
        if end > self.wpe.num_embeddings:
            raise ValueError(
                f"the text is {end} characters long and model.block_size is "
                f"{self.wpe.num_embeddings}: shorten it, or train with a larger block_size"
            )
        if positions is None:
            positions = torch.arange(start, end, device=ids.device)  # (T,)
        x: Tensor = self.emb_norm(self.wte(ids) + self.wpe(positions))
        return x if self.embedding_rms == 1 else x * self.embedding_rms


class GPT(nn.Module):
    """A decoder-only Pre-LN Transformer over characters.

    All weights are drawn from `generator` in one fixed order. The embedding normalization draws
    none, so all variants of a seed start from the same numbers. Without a generator the model has
    shapes and no weights.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        with torch.device("meta"):  # no values yet, so torch's global generator is not touched
            self.transformer = Transformer(config, vocab_size)
            if not config.tied:  # drawn last, so all other weights are those of a tied model
                self.lm_head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.config = config
        if generator is not None:
            self.to_empty(device="cpu")
            self._initialise(generator)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """GPT-2: N(0, 0.02²), residual projections over sqrt(2 n_layer), biases 0, gains 1."""
        residual_std = WPE_STD / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if name == "transformer.wte.weight":
                parameter.normal_(0.0, self.config.embedding_std, generator=generator)
            elif parameter.ndim == 2:
                std = residual_std if name.endswith("c_proj.weight") else WPE_STD
                parameter.normal_(0.0, std, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        past: Past | None = None,
        places: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Map character ids (B, T) to logits (B, T, V); position t predicts character t + 1.

        The text continues `past`, which is extended. `positions`, (T,) or (B, T), count on from
        there unless given. `mask` is True where a reader may look and broadcasts to
        (B, H, T, P + T); without it attention is causal. `places`, row and column of each
        prediction that is wanted, (N,) and (N,), makes the logits (N, V).

        Raises ValueError when a position reaches `block_size`.
        """
        net = self.transformer
        start = 0 if past is None else past.length
        x = net.embed(ids, positions, start)  # (B, T, C)
        if start and mask is None:  # causal, and all of the past is seen
            mask = ids.new_ones(ids.shape[1], start + ids.shape[1], dtype=torch.bool).tril(start)
        if mask is not None:  # as numbers, which attention would else make of it in every block
            mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -math.inf)
        for block in net.h:
            x = block(x, mask, past)
        x = net.ln_f(x if places is None else x[places])
        return F.linear(x, (net.wte if self.config.tied else self.lm_head).weight)

    @torch.no_grad()
    def generate(self, ids: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Continue `ids` (B, T) by `n` characters sampled at temperature 1; return (B, T + n)."""
        past = Past()
        for _ in range(n):
            if ids.shape[1] > self.config.block_size:
                past = Past()  # the window slides, and every character in it gets a new position
            unread = ids[:, past.length :][:, -self.config.block_size :]
            logits = self(unread, past=past)[:, -1]  # (B, V)
            probabilities = logits.float().softmax(dim=-1).cpu()  # one generator on every device
            chosen = torch.multinomial(probabilities, 1, generator=generator).to(ids.device)
            ids = torch.cat((ids, chosen), dim=1)
        return ids


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weight_decay_groups(model: GPT, weight_decay: float) -> list[dict[str, object]]:
    """Split the parameters into AdamW groups: weight matrices inside blocks decay; embeddings,
    norm gains and biases do not."""

    def decays(name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim == 2 and name.startswith("transformer.h.")

    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if decays(n, p)], "weight_decay": weight_decay},
        {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
    ]
