"""The GPT and its embedding normalizations. Read it from top to bottom; comments give the shapes.

B = batch, T = time (tokens), P = tokens read before, C = n_embd, V = vocabulary size, H = heads,
D = C / H.

Parameters are named as in GPT-2, nanoGPT and Hugging Face (`transformer.wte.weight`,
`transformer.h.0.attn.c_attn.weight`, …). Only `transformer.emb_norm`, the layer under study, is
ours. A tied output projection shares the weights of `transformer.wte`, and has no name of its own.
By default the model is GPT-2. `ModelConfig` can also describe nanochat's.
"""

import hashlib
import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lib.config.schema import GRADIENT_SHARE, WPE_STD, ModelConfig

ROTARY_BASE = 10_000.0
RMS_EPS = 1e-6
LOGITS_AT_ONCE = 2**24
"""The largest number of logits to compute at once when a trained model is measured: 64 MB in fp32.
With a vocabulary of 50,000, the logits of a whole batch take gigabytes, and a loss needs several
copies of them."""


class Center(nn.Module):
    """Subtract each token's mean over its features: the centring half of LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True)


class Scale(nn.Module):
    """Multiply by a constant, so that the RMS at initialisation is `embedding_rms`. The constant
    never changes, so nothing is normalized.

    Token and position embeddings are independent. So the expected RMS of their sum is
    `sqrt(embedding_std² + position_std²)`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        tokens_alone = config.positions == "rotary" or config.embedding_norm_on == "token"
        position_std = 0.0 if tokens_alone else config.position_std
        initial_rms = math.hypot(config.embedding_std, position_std)
        self.factor = config.embedding_rms / initial_rms

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class GradShrink(nn.Module):
    """Return the input unchanged, but pass back only a share of its gradient (GLM-130B, arXiv
    2210.02414). No gradient flows through the detached part."""

    def forward(self, x: Tensor) -> Tensor:
        return GRADIENT_SHARE * x + (1 - GRADIENT_SHARE) * x.detach()


def embedding_normalization(config: ModelConfig) -> nn.Module:
    """Return the layer between the embeddings and block 1.

    To add a variant, also add its name to `EmbeddingNorm`, and its look to `lib.figures.style`.
    """
    match config.embedding_norm:
        case "none":
            return nn.Identity()
        case "layernorm":  # Ba et al. 2016, arXiv 1607.06450
            return nn.LayerNorm(config.n_embd, eps=1e-5, bias=config.bias)
        case "rmsnorm":  # Zhang & Sennrich 2019, arXiv 1910.07467; gain, no bias
            gain = config.norm != "rmsnorm"
            return nn.RMSNorm(config.n_embd, eps=RMS_EPS, elementwise_affine=gain)
        case "center":
            return Center()
        case "scale":
            return Scale(config)
        case "grad_shrink":
            return GradShrink()


class KVCache(dict[nn.Module, Tensor]):
    """Keys and values of the tokens read so far: attention layer → (2, B, H, P, D).

    Calling the model with a cache extends the cache. To keep the old state, pass a copy,
    `KVCache(cache)`. The copy shares its tensors, which are never written to.

    A cache of one text (B = 1) can be extended by a batch of texts.
    """

    @property
    def length(self) -> int:
        return next((past.shape[3] for past in self.values()), 0)

    def take(self, rows: list[int]) -> None:
        """Keep only these rows (texts) of the batch. A row that is listed twice is repeated."""
        for layer, past in self.items():
            self[layer] = past[:, rows]

    def extend(self, layer: nn.Module, keys: Tensor, values: Tensor) -> Tensor:
        """Append a layer's keys and values (B, H, T, D). Return all so far, (2, B, H, P + T, D)."""
        new = torch.stack((keys, values))  # (2, B, H, T, D)
        if layer in self:
            past = self[layer].expand(-1, len(keys), -1, -1, -1)  # if it has one text, repeat it
            new = torch.cat((past, new), dim=3)
        self[layer] = new
        return new


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, (T, D/2) each, of the angles by which positions rotate pairs of features."""


def rotation(positions: Tensor, head_size: int, dtype: torch.dtype) -> Rotation:
    """Return the cosine and sine of the rotation at each position. `positions` is (T,); cosine and
    sine are (T, D/2) each (Su et al. 2021, arXiv 2104.09864)."""
    exponents = torch.arange(0, head_size, 2, dtype=dtype, device=positions.device) / head_size
    angles = positions[:, None].to(dtype) / ROTARY_BASE**exponents  # (T, D/2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos_sin: Rotation) -> Tensor:
    """Rotate queries or keys (B, H, T, D). Feature i of a head is paired with feature i + D/2."""
    cos, sin = cos_sin
    first, second = x.chunk(2, dim=-1)  # (B, H, T, D/2) each
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class CausalSelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qk_norm = config.qk_norm
        self.dropout = config.dropout
        # Query, key and value projections, in one matrix
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KVCache | None, cos_sin: Rotation | None
    ) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=-1)  # (B, T, C) each
        heads = (B, T, self.n_head, C // self.n_head)
        q = q.view(heads).transpose(1, 2)  # (B, H, T, D)
        k = k.view(heads).transpose(1, 2)
        v = v.view(heads).transpose(1, 2)
        if cos_sin is not None:
            q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        if self.qk_norm:
            q = F.rms_norm(q, q.shape[-1:], eps=RMS_EPS)
            k = F.rms_norm(k, k.shape[-1:], eps=RMS_EPS)
        if cache is not None:
            k, v = cache.extend(self, k, v)  # (B, H, P + T, D) each
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=mask is None)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.squared = config.activation == "relu2"
        self.c_fc = nn.Linear(config.n_embd, config.mlp_ratio * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.mlp_ratio * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)  # (B, T, mlp_ratio · C)
        x = F.relu(x).square() if self.squared else F.gelu(x)
        return self.c_proj(x)  # type: ignore[no-any-return]


def pre_norm(config: ModelConfig) -> nn.Module:
    """Return the normalization before an attention, an MLP or the output projection.

    `branch_multiplier` multiplies the residual stream by this factor, and its variance by the
    square of the factor. So eps is also multiplied by the square. Then the output is the same as
    for a stream that was not scaled.
    """
    factor = config.branch_multiplier**2
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd, eps=RMS_EPS * factor, elementwise_affine=False)
    return nn.LayerNorm(config.n_embd, eps=1e-5 * factor, bias=config.bias)


class Block(nn.Module):
    """Pre-LN: normalize, transform, add (Xiong et al. 2020, arXiv 2002.04745)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.branch_multiplier = config.branch_multiplier
        self.ln_1 = pre_norm(config)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = pre_norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        cos_sin: Rotation | None = None,
    ) -> Tensor:
        x = x + self._scaled(self.attn(self.ln_1(x), mask, cache, cos_sin))
        return x + self._scaled(self.mlp(self.ln_2(x)))

    def _scaled(self, branch: Tensor) -> Tensor:
        branch = self.dropout(branch)
        return branch if self.branch_multiplier == 1 else branch * self.branch_multiplier


class Transformer(nn.Module):
    """The layers of a GPT, by the names that GPT-2 gives them."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        # Empty, because `GPT` draws all weights. `nn.Embedding(…)` would draw here as well. On the
        # "meta" device, drawing imports torch's compiler, which takes a second.
        tokens = torch.empty(vocab_size, config.n_embd)
        self.wte = nn.Embedding.from_pretrained(tokens, freeze=False)  # type: ignore[no-untyped-call]
        if config.positions == "learned":
            positions = torch.empty(config.block_size, config.n_embd)
            self.wpe = nn.Embedding.from_pretrained(positions, freeze=False)  # type: ignore[no-untyped-call]
        self.emb_norm = embedding_normalization(config)
        self.config = config
        # Instead of a shift: a rotation, drawn with this seed.
        drawn = torch.randn(
            config.n_embd,
            config.n_embd,
            generator=torch.Generator().manual_seed(config.embedding_roll),
        )
        self.register_buffer("rotation", torch.linalg.qr(drawn).Q, persistent=False)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = pre_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Map token ids (B, T) at positions start, start + 1, … to the input of block 1,
        (B, T, C)."""
        x = self.wte(ids)  # (B, T, C)
        if self.config.embedding_norm_on == "token":
            x = self._normalized(x)
        if self.config.positions == "learned":
            positions = torch.arange(start, start + ids.shape[1], device=ids.device)
            x = x + self.wpe(positions)  # (B, T, C) + (T, C)
        if self.config.embedding_norm_on == "sum":
            x = self._normalized(x)
        if self.config.embedding_roll:
            x = x @ self.rotation
        return x  # type: ignore[no-any-return]

    def _normalized(self, x: Tensor) -> Tensor:
        x = self.emb_norm(x)
        # These two make the RMS 1. (The factor of `Scale` already includes `embedding_rms`.)
        normalizes = self.config.embedding_norm in ("layernorm", "rmsnorm")
        if normalizes and self.config.embedding_rms != 1:
            x = x * self.config.embedding_rms
        return x


class GPT(nn.Module):
    """A decoder-only Pre-LN Transformer.

    All weights are drawn from `generator` in one fixed order. The embedding normalization draws
    none, so all variants of a seed start from the same weights. Without a generator, the model is
    made on the "meta" device: it has shapes, but no weights until some are loaded.

    The model is in evaluation mode. The trainer calls `train()` only if there is dropout.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        device = "meta" if generator is None else "cpu"
        # Layers draw weights from torch's global generator when they are made. We overwrite these
        # weights below. Forking the generator keeps the caller's draws the same.
        with torch.random.fork_rng(devices=[]), torch.device(device):
            self.transformer = Transformer(config, vocab_size)
            if not config.tied:  # drawn last, so that all other weights equal a tied model's
                self.lm_head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.config = config
        if generator is not None:
            self._initialise(generator)
        self.eval()

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Initialise the weights as in GPT-2: N(0, 0.02²), residual projections divided by
        sqrt(2 n_layer), biases 0, gains 1. `WPE_STD` is this standard deviation of 0.02."""
        config = self.config
        residual_std = WPE_STD / math.sqrt(2 * config.n_layer) * config.projection_std_ratio
        stds = {
            "transformer.wte.weight": config.embedding_std,
            "transformer.wpe.weight": config.position_std,
            "lm_head.weight": config.head_std,
        }
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = residual_std if name.endswith("c_proj.weight") else WPE_STD
                # Draw even if the std is 0, so that later draws stay the same.
                parameter.normal_(0.0, stds.get(name, std), generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        if config.head_init == "embeddings":
            self.lm_head.weight.copy_(self.transformer.wte.weight)

    def forward(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Map token ids (B, T) to logits (B, T, V); position t predicts token t + 1. With a
        `cache`, `ids` continue the text in the cache.

        Raises ValueError if the text is longer than `block_size`.
        """
        return self.logits(self.hidden(ids, cache))

    def hidden(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Map token ids (B, T) to the input of the output projection, (B, T, C). For `cache` and
        errors, see `forward`."""
        net, config = self.transformer, self.config
        start = 0 if cache is None else cache.length
        end = start + ids.shape[1]
        if end > config.block_size:
            raise ValueError(
                f"the text is {end} tokens long and model.block_size is "
                f"{config.block_size}: shorten it, or train with a larger block_size"
            )
        x = embedded = net.dropout(net.embed(ids, start))  # (B, T, C)
        cos_sin = None  # with rotary positions, (T, D/2) each
        if config.positions == "rotary":
            positions = torch.arange(start, end, device=ids.device)
            cos_sin = rotation(positions, config.n_embd // config.n_head, x.dtype)
        mask = None  # attention then uses its own causal mask, which is faster
        if start:
            # Row t may look at the P tokens in the cache, and at the first t + 1 of `ids`.
            mask = ids.new_ones(ids.shape[1], end, dtype=torch.bool).tril(start)  # (T, P + T)
        for block in net.h:
            x = block(x, mask, cache, cos_sin)  # (B, T, C)
        if config.backout:
            x = x - embedded
        return net.ln_f(x)  # type: ignore[no-any-return]

    def recompute_activations(self) -> None:
        """Make the forward pass keep only the inputs of blocks. The backward pass then computes the
        rest again, with the same dropout masks (Chen et al. 2016, arXiv 1604.06174)."""
        for block in self.transformer.h:
            block.forward = partial(
                checkpoint,
                block.forward,
                use_reentrant=False,
                preserve_rng_state=self.config.dropout > 0,
            )

    def logits(self, hidden: Tensor) -> Tensor:
        """Project the output of `hidden`, or rows of it, (…, C), to logits, (…, V)."""
        projection = self.transformer.wte if self.config.tied else self.lm_head
        logits = F.linear(hidden, projection.weight)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def logits_in_parts(self, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the logits of `hidden` (N, C), a few rows at a time. Yield logits (n, V) in fp32,
        and the `targets` (n,) of the same rows. `LOGITS_AT_ONCE` bounds n · V."""
        n = max(1, LOGITS_AT_ONCE // self.transformer.wte.num_embeddings)
        for rows, target in zip(hidden.split(n), targets.split(n), strict=True):  # type: ignore[no-untyped-call]
            yield self.logits(rows).float(), target

    @torch.no_grad()
    def generate(
        self, ids: Tensor, n: int, generator: torch.Generator, temperature: float = 1.0
    ) -> Tensor:
        """Append `n` sampled tokens to `ids` (B, T). Return (B, T + n). A low temperature favours
        likely tokens.

        Raises ValueError for a temperature that is not positive.
        """
        if temperature <= 0:
            raise ValueError(f"temperature {temperature}: must be above 0; 0.01 is nearly greedy")
        cache = KVCache()
        ids = ids.to(self.transformer.wte.weight.device)
        for _ in range(n):
            if ids.shape[1] > self.config.block_size:
                # The window slides, so each token in it has a new position. Read all of them again.
                cache = KVCache()
            unread = ids[:, cache.length :]
            unread = unread[:, -self.config.block_size :]
            logits = self(unread, cache=cache)[:, -1].float() / temperature  # (B, V)
            # Draw on the CPU, so that the same generator gives the same text on every device.
            probabilities = logits.softmax(dim=-1).cpu()
            chosen = torch.multinomial(probabilities, 1, generator=generator).to(
                ids.device
            )  # (B, 1)
            ids = torch.cat((ids, chosen), dim=1)
        return ids


def weights_digest(model: GPT, *, all_weights: bool = False) -> str:
    """Compute the SHA-256 over names and bytes of the weights. Include the embedding norm's weights
    only with `all_weights`: arms differ in them, but must agree in all others."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if all_weights or not name.startswith("transformer.emb_norm"):
            result.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters. Shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
