"""Parameters made by a network of depth: theta(z) = base + G(z)."""

import itertools
import math
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Tensor
from continua.fields.field import AbstractField, check_depth, key, parameters_of, refuse_masses, refuse_orthonormal
from continua.operators import Spec, Theta, draw_theta, leaves, rebuild
from continua.spaces import AbstractParameterSpace, GeneratedSpace


@final
class Hypernetwork(AbstractField):
    """theta(z) = theta_0 + G(z), G an MLP on the features 1, sin(pi r z/Z), cos(pi r z/Z), r = 1, ..., `frequencies`.

    Two hidden layers of `hidden` units, and one linear map for each leaf of theta. With `rank` the generated part of a
    kernel of m rows and n columns is U(z) V(z), of that rank, so that the last map has hidden * rank * (m + n) weights
    instead of hidden * m * n. At initialisation G = 0: at every depth theta has the law that the operator asked for.
    Masses of heads are generated like any other parameter: nothing keeps their sum at one, as `ContinuousHeads` does.
    """

    def __init__(
        self,
        spec: Theta,
        depth: float = 1.0,
        frequencies: int = 4,
        hidden: int = 32,
        rank: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("frequencies", frequencies), ("hidden", hidden), ("rank", 1 if rank is None else rank)):
            if value < 1:
                reject(name, value, "a hypernetwork needs at least one", f"Pass {name} >= 1.")
        check_depth(depth)
        refuse_orthonormal(spec, "a generated kernel is not one")
        self.spec, self.depth, self.frequencies, self.hidden, self.rank = spec, float(depth), frequencies, hidden, rank
        self.base = parameters_of(draw_theta(spec, generator))
        self.makers = nn.ModuleDict({key(name): _Maker(leaf, hidden, rank, generator) for name, leaf in leaves(spec)})
        sizes = (1 + 2 * frequencies, hidden, hidden) if self.makers else ()  # an operator without parameters
        self.trunk = nn.ModuleList(_linear(m, n, generator) for m, n in itertools.pairwise(sizes))

    @property
    def breaks(self) -> tuple[float, ...]:
        return ()

    @property
    def reach(self) -> float:
        return self.depth

    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        if not self.makers:
            return self.spec
        hidden = self._features(z)
        names = [name for name, _ in leaves(self.spec)]
        return rebuild(self.spec, {n: self.base[key(n)] + self.makers[key(n)](hidden) for n in names})

    def _features(self, z: Depth) -> Float[Tensor, "*batched hidden"]:
        like = next(self.trunk.parameters()).detach()
        ratio = torch.as_tensor(z, dtype=like.dtype, device=like.device).unsqueeze(-1) / self.depth
        angles = ratio * (math.pi * torch.arange(1, self.frequencies + 1, dtype=like.dtype, device=like.device))
        features = torch.cat([torch.ones_like(ratio), torch.sin(angles), torch.cos(angles)], -1)
        for layer in self.trunk:
            features = F.gelu(layer(features))
        return features

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        refuse_masses(self.spec, "generated masses may become negative")
        return {name: GeneratedSpace(min(2, value.ndim)) for name, value in self.named_parameters()}

    def arguments(self) -> dict[str, Any]:
        names = ("spec", "depth", "frequencies", "hidden", "rank")
        return {name: getattr(self, name) for name in names}


@final
class _Maker(nn.Module):
    """One leaf of theta from the hidden features: whole, or as a product U V of low rank."""

    def __init__(self, spec: Spec, hidden: int, rank: int | None, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = spec.shape
        rows, columns = math.prod(spec.shape[:-1]), spec.shape[-1]
        self.rank = None if rank is None or len(spec.shape) < 2 or rank * (rows + columns) >= rows * columns else rank
        if self.rank is None:
            self.whole = nn.Parameter(torch.zeros(spec.numel, hidden))
            return
        # U starts at zero and V does not: with both at zero neither would ever get a gradient
        self.u = nn.Parameter(torch.zeros(rows * self.rank, hidden))
        self.v = nn.Parameter(torch.randn(self.rank * columns, hidden, generator=generator) / math.sqrt(hidden))

    def forward(self, hidden: Float[Tensor, "*batched hidden"]) -> Tensor:
        batch = hidden.shape[:-1]
        if self.rank is None:
            return F.linear(hidden, self.whole).view(*batch, *self.shape)
        u = F.linear(hidden, self.u).view(*batch, -1, self.rank)
        v = F.linear(hidden, self.v).view(*batch, self.rank, -1)
        return (u @ v).view(*batch, *self.shape)


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) * math.sqrt(2.0 / inputs))
        layer.bias.zero_()
    return layer
