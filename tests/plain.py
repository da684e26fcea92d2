"""The standard networks written out with plain torch, layer by layer, for the presets to be held against.

Nothing here calls torch's attention or continua: `nn.MultiheadAttention` and `nn.LayerNorm` only hold weights.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def allowed(present: Tensor, causal: bool, queries: int | None = None) -> Tensor:
    """(batch, queries, keys): which keys a query may read."""
    tokens = present.shape[1]
    seen = present[:, None, :].expand(-1, tokens if queries is None else queries, -1)
    return seen & torch.ones(tokens, tokens, dtype=torch.bool).tril() if causal else seen


def attention(weights: nn.MultiheadAttention, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """Multi-head attention, one head after the other."""
    heads, size = weights.num_heads, weights.head_dim
    q, k, v = (
        y @ w.T + b
        for y, w, b in zip(
            (x, memory, memory), weights.in_proj_weight.chunk(3), weights.in_proj_bias.chunk(3), strict=True
        )
    )
    outputs = []
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        scores = torch.einsum("bqc,bkc->bqk", q[..., columns], k[..., columns]) / math.sqrt(size)
        weighted = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) * mask
        outputs.append(weighted / weighted.sum(-1, keepdim=True) @ v[..., columns])
    return torch.cat(outputs, -1) @ weights.out_proj.weight.T + weights.out_proj.bias


def norm(weights: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm with the biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + weights.eps) * weights.weight + weights.bias


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), Phi the normal distribution function."""
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of GPT-2."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class Feedforward(nn.Module):
    """linear2(gelu(linear1(x)))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x @ self.linear1.weight.T + self.linear1.bias) @ self.linear2.weight.T + self.linear2.bias


class Layer(nn.Module):
    """Weights of one layer: an attention, some feed-forwards, some norms."""

    def __init__(self, width: int, heads: int, hidden: int, feedforwards: int, norms: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)
        self.feedforwards = nn.ModuleList(Feedforward(width, hidden) for _ in range(feedforwards))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(norms))


class Network(nn.Module):
    """Token and position tables, layers, a last norm and a linear readout; `block` is how a layer acts."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        layers: list[Layer],
        block: Callable[[Layer, Tensor, Tensor], Tensor],
        causal: bool,
        start: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> None:
        super().__init__()
        width = layers[0].attention.embed_dim
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.block, self.causal, self.start = block, causal, start

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        x = self.start(self.tokens.weight[tokens] + self.positions.weight[: tokens.shape[1]])
        mask = allowed(present, self.causal)
        for layer in self.layers:
            x = self.block(layer, x, mask)
        return norm(self.norm, x) @ self.head.weight.T + self.head.bias


def parallel_shared(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """GPT-J."""
    y = norm(layer.norms[0], x)
    return x + attention(layer.attention, y, y, mask) + layer.feedforwards[0](y)


def parallel_apart(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """GPT-NeoX."""
    y = norm(layer.norms[0], x)
    return x + attention(layer.attention, y, y, mask) + layer.feedforwards[0](norm(layer.norms[1], x))


def macaron(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """Half a feed-forward, attention, half another feed-forward."""
    x = x + 0.5 * layer.feedforwards[0](norm(layer.norms[0], x))
    y = norm(layer.norms[1], x)
    x = x + attention(layer.attention, y, y, mask)
    return x + 0.5 * layer.feedforwards[1](norm(layer.norms[2], x))


def unit(x: Tensor) -> Tensor:
    """On the unit sphere."""
    return x / x.norm(dim=-1, keepdim=True)


def standardised(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the embedding axis."""
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


def sphere_in_turn(project: Callable[[Tensor], Tensor]) -> Callable[[Layer, Tensor, Tensor], Tensor]:
    """Back to the sphere after each branch."""

    def block(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
        x = project(x + attention(layer.attention, x, x, mask))
        return project(x + layer.feedforwards[0](x))

    return block


def sphere_together(project: Callable[[Tensor], Tensor]) -> Callable[[Layer, Tensor, Tensor], Tensor]:
    """Back to the sphere after both branches."""

    def block(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
        return project(x + attention(layer.attention, x, x, mask) + layer.feedforwards[0](x))

    return block


class GPT2(nn.Module):
    """GPT-2 with the names and layout of the published weights: kernels are (inputs, outputs), logits use `wte`."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Parameter(torch.randn(vocabulary, width)), nn.Parameter(torch.randn(length, width))
        self.h = nn.ModuleList(nn.ParameterDict(_gpt2_block(width)) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        x = self.wte[tokens] + self.wpe[torch.arange(tokens.shape[1])]
        mask = allowed(present, causal=True)
        for block in self.h:
            x = x + self._attention(block, _gpt2_norm(block, "ln_1", x), mask)
            y = _gpt2_norm(block, "ln_2", x) @ block["mlp_c_fc_w"] + block["mlp_c_fc_b"]
            x = x + gelu_tanh(y) @ block["mlp_c_proj_w"] + block["mlp_c_proj_b"]
        return norm(self.ln_f, x) @ self.wte.T

    def _attention(self, block: nn.ParameterDict, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x @ block["attn_c_attn_w"] + block["attn_c_attn_b"]).split(x.shape[-1], -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mixed = torch.softmax(scores.masked_fill(~mask[:, None], -torch.inf), -1) @ v
        return mixed.transpose(1, 2).flatten(2) @ block["attn_c_proj_w"] + block["attn_c_proj_b"]


def _gpt2_block(width: int) -> dict[str, nn.Parameter]:
    shapes = {"attn_c_attn": 3 * width, "attn_c_proj": width, "mlp_c_fc": 4 * width}
    block = {f"{name}_w": torch.randn(width, outputs) / math.sqrt(width) for name, outputs in shapes.items()}
    block |= {f"{name}_b": torch.randn(outputs) for name, outputs in shapes.items()}
    block |= {"mlp_c_proj_w": torch.randn(4 * width, width) / math.sqrt(4 * width), "mlp_c_proj_b": torch.randn(width)}
    for name in ("ln_1", "ln_2"):
        block |= {f"{name}_g": 1.0 + 0.3 * torch.randn(width), f"{name}_b": 0.3 * torch.randn(width)}
    return {name: nn.Parameter(value) for name, value in block.items()}


def _gpt2_norm(block: nn.ParameterDict, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * block[f"{name}_g"] + block[f"{name}_b"]
