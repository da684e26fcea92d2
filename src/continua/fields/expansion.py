"""Smooth fields: theta(z) = sum_k b_k(z / Z) C_k in a basis over depth; and between them and layers."""

import bisect
import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Tensor
from continua.fields.constant import PiecewiseConstant
from continua.fields.field import AbstractField, check_depth, key, refuse_masses, refuse_orthonormal
from continua.operators import Filled, Spec, Theta, leaves, map_leaves, rebuild
from continua.spaces import AbstractBasis, AbstractParameterSpace, BSpline, GaussLegendre


@final
class Expansion(AbstractField):
    """theta(z) = sum_k b_k(z/Z) C_k, the coefficients C_k being the parameters phi (docs/mathematics.md, section 3).

    At initialisation theta(z) has, on average over depth, the variance that the operator asked for, whatever the number
    of modes, and all coefficients are of one size: how rough theta is lies in the basis (`DampedBasis`). Gains and
    biases start as constants. Masses of heads are expanded like any other parameter: they sum to one at initialisation,
    and nothing keeps them there; attention is linear in them. `ContinuousHeads` keeps them.
    """

    def __init__(
        self, spec: Theta, basis: AbstractBasis, depth: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_depth(depth)
        refuse_orthonormal(spec, "a sum over modes of such kernels is not one")
        self.spec = spec
        self.basis = basis
        self.depth = float(depth)
        spread, constant = spread_of(basis), constant_coefficients(basis)
        self.coefficients = nn.ParameterDict(
            {key(name): nn.Parameter(_coefficients(leaf, spread, constant, generator)) for name, leaf in leaves(spec)}
        )

    @property
    def breaks(self) -> tuple[float, ...]:
        return tuple(self.depth * b for b in self.basis.breaks)

    @property
    def reach(self) -> float:
        return self.depth

    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        if len(self.coefficients) == 0:
            return self.spec
        b = modes_at(self.basis, self.depth, z, inside, next(iter(self.coefficients.values())))
        names = [name for name, _ in leaves(self.spec)]
        with torch.autocast(b.device.type, enabled=False):  # weights keep their own precision
            return rebuild(self.spec, {name: _mix(b, self.coefficients[key(name)]) for name in names})

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """As the leaves themselves: modes stand before them. Masses need modes that are positive and sum to one."""
        if not isinstance(self.basis, BSpline):
            refuse_masses(self.spec, f"with modes of {type(self.basis).__name__} masses may become negative")
        return {f"coefficients.{key(name)}": leaf.home for name, leaf in leaves(self.spec)}

    def arguments(self) -> dict[str, Any]:
        return {"spec": self.spec, "basis": self.basis, "depth": self.depth}


def modes_at(
    basis: AbstractBasis, depth: float, z: Depth, inside: Depth | None, like: Tensor
) -> Float[Tensor, "*batched size"]:
    """b_k(z/Z) from the side of `inside`, in the dtype and on the device of `like`."""
    unit = z / depth if isinstance(z, float | int) else z.to(like) / depth
    if inside is not None and basis.breaks:
        unit = _on_the_side_of(inside / depth, unit, basis.breaks)
    return basis.evaluate(unit, like.dtype, like.device)


def _on_the_side_of(inside: Depth, z: Depth, breaks: tuple[float, ...]) -> Depth:
    """z, moved by no more than rounding into the cell [break, next break) that holds `inside`."""
    edges = (-math.inf, *breaks, math.inf)
    if isinstance(z, Tensor):
        bounds = torch.tensor(edges, dtype=z.dtype, device=z.device)
        where = torch.as_tensor(inside, dtype=z.dtype, device=z.device)
        cell = torch.bucketize(where.detach(), bounds[1:-1], right=True)
        return z.clamp(bounds[cell], torch.nextafter(bounds[cell + 1], bounds[0]))
    assert not isinstance(inside, Tensor), "one depth, one side"
    cell = bisect.bisect_right(breaks, inside)
    return min(max(z, edges[cell]), math.nextafter(edges[cell + 1], -math.inf))


def _mix(b: Tensor, C: Tensor) -> Tensor:
    """sum_k b_k C_k."""
    return (b @ C.flatten(1)).view(*b.shape[:-1], *C.shape[1:])


def spread_of(basis: AbstractBasis) -> Tensor:
    """s_k = 1/sqrt(sum_l int b_l^2): with coefficients s_k xi_k, xi of unit variance, int var theta(z) dz = 1."""
    values, weights = _sample(basis)
    return torch.rsqrt((weights[:, None] * values**2).sum()).expand(basis.size)


def constant_coefficients(basis: AbstractBasis) -> Tensor:
    """The coefficients of the function 1, or of the nearest function that the basis has."""
    values, _ = _sample(basis)
    # not the default driver: what it gives for the same numbers depends, by rounding, on where they lie in memory
    return torch.linalg.lstsq(values, torch.ones_like(values[:, :1]), driver="gels").solution[:, 0]


def _sample(basis: AbstractBasis) -> tuple[Tensor, Tensor]:
    nodes, weights = GaussLegendre().nodes(4 * basis.size + 16)  # exact for polynomials, and for cosines to rounding
    return basis.evaluate(nodes), weights


def _coefficients(spec: Spec, spread: Tensor, constant: Tensor, generator: torch.Generator | None) -> Tensor:
    over_modes = (-1, *(1 for _ in spec.shape))
    if isinstance(spec.law, Filled):
        return (spec.law.value * constant).to(torch.get_default_dtype()).view(over_modes).repeat(1, *spec.shape)
    modes = torch.stack([spec.law.draw(spec.shape, generator) for _ in range(spread.numel())])
    return modes * spread.to(modes.dtype).view(over_modes)


def layer_depths(layers: int, depth: float) -> list[float]:
    """The depths of L layers in [0, Z]: the middles of L equal pieces."""
    return [depth * (layer + 0.5) / layers for layer in range(layers)]


@torch.no_grad()
def refine(field: AbstractField, layers: int, depth: float) -> PiecewiseConstant:
    """The field as `layers` equal pieces, each with theta at its middle: what a standard network of L layers holds.

    On its own piece each theta is off by O(1/L); its integral over the piece, and so the flow, by O(1/L^2).
    """
    if layers < 1:
        reject("layers", layers, "a network has at least one layer", "Pass layers >= 1.")
    thetas = [field(z) for z in layer_depths(layers, depth)]
    pieces = PiecewiseConstant(field.spec, [depth * layer / layers for layer in range(layers + 1)])
    like = [leaf for _, leaf in leaves(thetas[0])]
    return (pieces.to(like[0]) if like else pieces).fill(thetas)


@torch.no_grad()
def from_layers(thetas: Sequence[Theta], depth: float, basis: AbstractBasis | None = None) -> Expansion:
    """A field in `basis` that passes through theta_l at the middle of each of L equal pieces of [0, depth].

    The inverse of `refine`. The basis needs as many functions as there are layers (by default as many cubic
    splines); with more, the field of least coefficients is taken.
    """
    layers = len(thetas)
    if layers == 0:
        reject("thetas", thetas, "there is no layer", "Pass one theta a layer.")
    basis = BSpline(layers, min(3, layers - 1)) if basis is None else basis
    if basis.size < layers:
        cure = f"Pass a basis of size {layers}, or refine the network to fewer layers first."
        reject("basis", basis, f"{basis.size} modes cannot pass through {layers} layers", cure)
    field = Expansion(_spec(thetas[0]), basis, depth)
    nodes = torch.tensor(layer_depths(layers, 1.0), dtype=torch.float64)
    lift = torch.linalg.pinv(basis.evaluate(nodes, nodes.dtype))  # (size, layers)
    values = [dict(leaves(theta)) for theta in thetas]
    _check_alike(values)
    for name, leaf in leaves(thetas[0]):
        stacked = torch.stack([v[name].double() for v in values])
        field.coefficients[key(name)] = torch.nn.Parameter(torch.tensordot(lift.to(leaf.device), stacked, 1).to(leaf))
    return field


def _check_alike(values: Sequence[dict[str, Tensor]]) -> None:
    shapes = [{name: tuple(leaf.shape) for name, leaf in theta.items()} for theta in values]
    for layer, shape in enumerate(shapes):
        if shape != shapes[0]:
            reject(f"thetas[{layer}]", shape, f"the first layer has {shapes[0]}", "Pass layers of one make.")


def _spec(theta: Theta) -> Theta:
    return map_leaves(lambda leaf: Spec(tuple(leaf.shape), Filled(0.0)), theta)
