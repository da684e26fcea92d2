"""Parameters made by a network of depth: theta(z) = base + G(z), and of the head: theta(h, z) = base(h) + G(h, z)."""

import itertools
import math
from typing import final

import torch
import torch.nn.functional as F
from torch import nn

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import DepthValue, Float, Tensor
from continua.fields.expansion import is_rigid
from continua.fields.field import AbstractField, parameter_dict, parameters_of
from continua.fields.heads import AbstractHeadField, draw_modes, head_factors, own_shape
from continua.operators import Role, Spec, Structure, Theta
from continua.spaces.bases import AbstractBasis, Legendre
from continua.spaces.parameter_spaces import AbstractParameterSpace, GeneratedSpace
from continua.spaces.quadrature import AbstractNodalRule, GaussLegendre


@final
class Hypernetwork(AbstractField):
    """theta(z) = theta_0 + G(z), G an MLP on the features 1, sin(pi r z/Z), cos(pi r z/Z), r = 1, ..., `frequencies`.

    Two hidden layers of `hidden` units, and one linear map for each leaf of theta. With `rank` the generated part of a
    kernel of m rows and n columns is U(z) V(z), of that rank, so that the last map has hidden * rank * (m + n) numbers
    instead of hidden * m * n. At initialisation G = 0: at every depth theta has the law that the operator asked for.
    Of masses of heads the logits are generated.
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
        super().__init__(spec)
        _check(self.structure, depth, frequencies, hidden, rank)
        self.depth = self.reach = float(depth)
        self.frequencies, self.hidden, self.rank = frequencies, hidden, rank
        self.base = parameters_of(self.structure, generator)
        shapes = {key: leaf.shape for key, leaf in self.structure.keyed}
        self.makers, self.trunk = _network(1 + 2 * frequencies, shapes, hidden, rank, generator)

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        if not self.makers:
            return self.spec
        base = [*self.structure.read(self.base)]
        hidden = _run(self.trunk, _waves(z, self.depth, self.frequencies, base[0]))
        return self._theta([b + make(hidden) for b, make in zip(base, self.makers.values(), strict=True)])

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {name: GeneratedSpace(min(2, value.ndim)) for name, value in self.named_parameters()}


@final
class HeadHypernetwork(AbstractHeadField):
    """theta(h,z) = base(h) + G(h,z): a hypernetwork of continuous heads.

    base(h) is expanded in `over_h`, and G is an MLP on the same functions of h, beside 1, sin, cos of pi r z/Z, asked
    at the nodes h_k of the rule: how rough heads are along h lies in that basis (`ScaledBasis`). What does not depend
    on h - leaves without heads, and the logits of the density over the Bernstein polynomials - is made from the mean
    of the hidden features, int (.) dh by the rule. All of it is a function of h, so that outputs converge when nodes
    are refined (`at_nodes`). At initialisation G = 0.
    """

    def __init__(  # noqa: PLR0913 - the sizes of a network and those of a measure of heads
        self,
        spec: Theta,
        depth: float = 1.0,
        frequencies: int = 4,
        hidden: int = 32,
        rank: int | None = None,
        over_h: AbstractBasis = Legendre(4),
        degree: int = 3,
        rule: AbstractNodalRule = GaussLegendre(),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(spec, degree, rule, over_h)
        _check(self.structure, depth, frequencies, hidden, rank)
        self.depth = self.reach = float(depth)
        self.frequencies, self.hidden, self.rank = frequencies, hidden, rank
        self.base = parameter_dict({key: self._initial(leaf, generator) for key, leaf in self.structure.keyed})
        shapes = {key: self._made_shape(leaf) for key, leaf in self.structure.keyed}
        self.makers, self.trunk = _network(1 + 2 * frequencies + over_h.size, shapes, hidden, rank, generator)

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        base = [*self.structure.read(self.base)]
        nodes = self._nodes(base[0])
        over_z = _waves(z, self.depth, self.frequencies, base[0])
        rows = (*over_z.shape[:-1], self.heads, -1)
        hidden = _run(self.trunk, torch.cat([over_z.unsqueeze(-2).expand(rows), nodes.theta.expand(rows)], -1))
        mean = nodes.weights @ hidden  # (..., hidden)
        values = []
        for spec, b, make in zip(self.structure.specs, base, self.makers.values(), strict=True):
            if spec.role is Role.HEAD_MASS:
                values.append(torch.softmax(b + make(mean), -1) @ nodes.masses.mT)
            elif spec.role is Role.HEAD:
                values.append((nodes.theta @ b.flatten(1)).view(spec.shape) + make(hidden))
            else:
                values.append(b + make(mean))
        return self.structure.unflatten(values)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {name: GeneratedSpace(min(2, value.ndim)) for name, value in self.named_parameters()}

    def _made_shape(self, spec: Spec) -> tuple[int, ...]:
        """What the network makes for a leaf, at one node."""
        return (self.degree + 1,) if spec.role is Role.HEAD_MASS else own_shape(spec)

    def _initial(self, spec: Spec, generator: torch.Generator | None) -> Tensor:
        shape = self._made_shape(spec)
        if spec.role is Role.HEAD_MASS:
            return torch.zeros(shape)
        factors = [head_factors(spec, self.over_h)] if spec.role is Role.HEAD else []
        return draw_modes(spec, shape, factors, generator)


@final
class _Maker(nn.Module):
    """One leaf of theta from the hidden features: whole, or as a product U V of low rank."""

    def __init__(
        self, shape: tuple[int, ...], hidden: int, rank: int | None, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.shape, self.hidden = shape, hidden
        rows, columns = math.prod(shape[:-1]), shape[-1]
        self.rank = None if rank is None or len(shape) < 2 or rank * (rows + columns) >= rows * columns else rank
        if self.rank is None:
            self.whole = nn.Parameter(torch.zeros(rows * columns, hidden))
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


def _network(
    inputs: int, shapes: dict[str, tuple[int, ...]], hidden: int, rank: int | None, generator: torch.Generator | None
) -> tuple[nn.ModuleDict, nn.ModuleList]:
    """The makers of all leaves and the layers before them; none for an operator without parameters."""
    makers = nn.ModuleDict({key: _Maker(shape, hidden, rank, generator) for key, shape in shapes.items()})
    sizes = (inputs, hidden, hidden) if makers else ()
    return makers, nn.ModuleList(_linear(m, n, generator) for m, n in itertools.pairwise(sizes))


def _waves(z: DepthValue, depth: float, frequencies: int, like: Tensor) -> Float[Tensor, "*batched features"]:
    """1, sin(pi r x), cos(pi r x) of x = z/Z for r = 1, ..., `frequencies`."""
    x = torch.as_tensor(z, dtype=like.dtype, device=like.device) / depth
    angles = x.unsqueeze(-1) * (math.pi * torch.arange(1, frequencies + 1, dtype=x.dtype, device=x.device))
    return torch.cat([torch.ones_like(x).unsqueeze(-1), torch.sin(angles), torch.cos(angles)], -1)


def _run(trunk: nn.ModuleList, features: Tensor) -> Tensor:
    for layer in trunk:
        features = F.gelu(layer(features))
    return features


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) * math.sqrt(2.0 / inputs))
        layer.bias.zero_()
    return layer


def _check(structure: Structure, depth: float, frequencies: int, hidden: int, rank: int | None) -> None:
    positive(depth=depth)
    at_least(1, frequencies=frequencies, hidden=hidden, rank=rank)
    for name, leaf in structure.named:
        if is_rigid(leaf):
            cure = "Use Expansion or ContinuousHeads, which turn such kernels by an exponential, or a free kernel."
            reject(name, leaf.home, "a generated kernel has no orthonormal columns", cure)
