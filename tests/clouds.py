"""Keys, values and measures for tests of the token integral, without an operator around them."""

import dataclasses

import torch
from torch import Tensor

from continua.operators import AbstractTokenIntegral, Binding, Exact, KeyValues
from continua.spaces import Cloud, Measure


@dataclasses.dataclass(frozen=True)
class Asked:
    """Queries q on `asked`, the keys and values that answer, and the cloud that an estimate is bound to."""

    q: Tensor
    asked: Measure
    kv: KeyValues
    cloud: Cloud

    def by(self, integral: AbstractTokenIntegral, seed: int | None = 0, causal: bool = False) -> Tensor:
        """The means under one draw."""
        bound = integral.bind(Binding(self.cloud, seed=seed))
        return bound.means(self.q, self.asked, self.kv, 1.0, causal)

    def exact(self, causal: bool = False) -> Tensor:
        return self.by(Exact(), None, causal)


def rough(tokens: int, rows: int = 1, queries: int | None = None) -> Asked:
    """One sequence of random tokens, repeated `rows` times; queries are the tokens themselves, or `queries` others."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    keys, mass = draw(1, 1, tokens, 2), 0.2 + draw(1, tokens).abs()
    values = keys + 0.3 * draw(1, 1, tokens, 2)
    times = draw(1, tokens).abs().cumsum(-1)
    q = 1.5 * draw(1, 1, queries or tokens, 2)
    return _asked(q, keys, values, mass, times, rows, queries)


def smooth(tokens: int, rows: int = 1, queries: int | None = None) -> Asked:
    """Samples of a smooth signal at equal times, on the counting measure."""
    t = (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens
    keys = torch.stack([torch.sin(5 * t), torch.cos(3 * t)], -1).view(1, 1, tokens, 2)
    values = torch.stack([torch.exp(t), t * t], -1).view(1, 1, tokens, 2)
    few = slice(None) if queries is None else torch.linspace(0, tokens - 1, queries).long()
    return _asked(keys[:, :, few].flip(-1), keys, values, None, t.view(1, -1), rows, queries)


def _asked(
    q: Tensor, keys: Tensor, values: Tensor, mass: Tensor | None, times: Tensor, rows: int, queries: int | None
) -> Asked:
    many = lambda x: None if x is None else x.expand(rows, *x.shape[1:])  # noqa: E731
    cloud = Cloud(many(keys[:, 0]), many(mass), many(times))
    asked = cloud.measure
    if queries is not None:
        late = times[:, -1:] * torch.linspace(0.5, 1.0, queries, dtype=torch.float64)
        asked = Measure.of((rows, queries), q, None, many(late))
    return Asked(many(q), asked, KeyValues(many(keys), many(values), cloud.measure), cloud)


def t_statistic(samples: Tensor) -> float:
    """mean / standard error, of independent samples."""
    return float(samples.mean() / (samples.std() / samples.numel() ** 0.5))
