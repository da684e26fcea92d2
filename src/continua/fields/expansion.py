"""Smooth fields: theta(z) = sum_k b_k(z / Z) C_k in a basis over depth; and between them and layers."""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import DepthValue, Float, Tensor
from continua.fields.constant import PiecewiseConstant
from continua.fields.field import AbstractField, generator_shape, parameter_dict, to_parameter, turn
from continua.operators import AttentionTheta, Filled, Role, Spec, Structure, Theta, leaves, rebuild
from continua.spaces.bases import AbstractBasis, BSpline, PlateauBasis, cell_of
from continua.spaces.parameter_spaces import AbstractParameterSpace, FlatSpace, SimplexSpace, StiefelSpace
from continua.spaces.quadrature import GaussLegendre


@final
class Expansion(AbstractField):
    """theta(z) = sum_k b_k(z/Z) C_k, the coefficients C_k being the parameters phi (docs/mathematics.md, section 3).

    At initialisation theta(z) has, on average over depth, the variance that the operator asked for, whatever the number
    of modes, and all coefficients are of one size: how rough theta is lies in the basis (`ScaledBasis`). Gains and
    biases start as constants. Two kinds of leaves are not sums over modes but functions of one, and stay what they are
    at every depth, in any basis:

    - masses of heads, p(z) = softmax( sum_k b_k C_k );
    - kernels with orthonormal columns, theta(z) = W exp( S(z) ), S(z) = sum_k b_k (A_k - A_k^H): `frames` holds W, on
      its Stiefel space, and the coefficients are the A_k, free and zero at the start.
    """

    def __init__(
        self, spec: Theta, basis: AbstractBasis, depth: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(spec)
        positive(depth=depth)
        self.basis = basis
        self.depth = self.reach = float(depth)
        self.breaks = tuple(self.depth * b for b in basis.breaks)
        self._turning = turning_leaves(self.structure)
        self.frames = parameter_dict(
            {key: leaf.law.draw(leaf.shape, generator) for key, leaf in self.structure.keyed if is_rigid(leaf)}
        )
        spread, constant = spread_of(basis), constant_coefficients(basis)
        self.coefficients = parameter_dict(
            {key: _coefficients(leaf, spread, constant, generator) for key, leaf in self.structure.keyed}
        )

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        coefficients = [*self.structure.read(self.coefficients)]
        if not coefficients:
            return self.spec
        b = modes_at(self.basis, self.depth, z, inside, coefficients[0])
        with torch.autocast(b.device.type, enabled=False):  # weights keep their own precision
            values = [(b @ C.flatten(1)).view(*b.shape[:-1], *C.shape[1:]) for C in coefficients]
            for i, key, space in self._turning:
                values[i] = turn(space, self.frames[key], values[i])
            return self._theta(values)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return modal_spaces(self.structure, SimplexSpace())


def modal_spaces(structure: Structure, masses: SimplexSpace) -> dict[str, AbstractParameterSpace]:
    """As the leaves themselves, before which modes stand, but for `masses`; generators of orthonormal kernels are
    free matrices."""
    spaces: dict[str, AbstractParameterSpace] = {}
    for key, leaf in structure.keyed:
        home = masses if leaf.role is Role.HEAD_MASS else leaf.home
        spaces[f"coefficients.{key}"] = FlatSpace(2) if is_rigid(leaf) else home
    return spaces | {f"frames.{key}": leaf.home for key, leaf in structure.keyed if is_rigid(leaf)}


def modes_at(
    basis: AbstractBasis, depth: float, z: DepthValue, inside: DepthValue | None, like: Tensor
) -> Float[Tensor, "*batched size"]:
    """b_k(z/Z) from the side of `inside`, in the dtype and on the device of `like`."""
    if isinstance(z, float | int) and not -1e-6 <= z / depth <= 1.0 + 1e-6:
        reject("z", z, f"this field goes from depth 0 to {depth:g}", "Pass a depth within, not a fraction of it.")
    unit = z / depth if isinstance(z, float | int) else z.to(like) / depth
    if inside is not None and basis.breaks:
        unit = _on_the_side_of(inside / depth, unit, basis.breaks)
    return basis.evaluate(unit, like.dtype, like.device)


def _on_the_side_of(inside: DepthValue, z: DepthValue, breaks: tuple[float, ...]) -> DepthValue:
    """z, moved by no more than rounding into the cell [break, next break) that holds `inside`."""
    edges = (-math.inf, *breaks, math.inf)
    if isinstance(z, Tensor):
        bounds = torch.tensor(edges, dtype=z.dtype, device=z.device)
        where = torch.as_tensor(inside, dtype=z.dtype, device=z.device)
        cell = torch.bucketize(where.detach(), bounds[1:-1], right=True)
        return z.clamp(bounds[cell], torch.nextafter(bounds[cell + 1], bounds[0]))
    assert not isinstance(inside, Tensor), "one depth, one side"
    cell = cell_of(inside, breaks)
    return min(max(z, edges[cell]), math.nextafter(edges[cell + 1], -math.inf))


def is_rigid(spec: Spec) -> bool:
    """Whether a leaf has orthonormal columns at every depth."""
    return isinstance(spec.home, StiefelSpace)


def turning_leaves(structure: Structure) -> list[tuple[int, str, StiefelSpace]]:
    """Place, key and space of the leaves with orthonormal columns."""
    return [(i, key, leaf.home) for i, (key, leaf) in enumerate(structure.keyed) if is_rigid(leaf)]


def spread_of(basis: AbstractBasis) -> Tensor:
    """s_k = 1/sqrt(sum_l int b_l^2): with coefficients s_k xi_k, xi of unit variance, int var theta(z) dz = 1."""
    # that of `inner`, so that a model starts alike, and with equal steps trains alike, with and without plateaus
    values, weights = _sample(basis.inner if isinstance(basis, PlateauBasis) else basis)
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
    if is_rigid(spec):
        return torch.zeros(spread.numel(), *generator_shape(spec.shape))
    if spec.role is Role.HEAD_MASS:
        return torch.zeros(spread.numel(), *spec.shape)
    if isinstance(spec.law, Filled):
        filled = spec.law.draw(spec.shape, None)
        return constant.to(filled.dtype).view(over_modes) * filled
    modes = torch.stack([spec.law.draw(spec.shape, generator) for _ in range(spread.numel())])
    return modes * spread.to(modes.dtype).view(over_modes)


def layer_depths(layers: int, depth: float) -> list[float]:
    """The depths of L layers in [0, Z]: the middles of L equal pieces."""
    return [depth * (layer + 0.5) / layers for layer in range(layers)]


@torch.no_grad()
def to_layers(field: AbstractField, layers: int, depth: float | None = None) -> PiecewiseConstant:
    """The field as `layers` equal pieces, each with theta at its middle: what a standard network of L layers holds.

    `depth` is the length of the flow: by default, and where the field has an end, that of the field. On its own piece
    each theta is off by O(1/L); its integral over the piece, and so the flow, by O(1/L^2).
    """
    at_least(1, layers=layers)
    reach = 1.0 if field.reach == math.inf else field.reach
    depth = reach if depth is None else depth
    if field.reach < math.inf and not math.isclose(depth, reach):
        reject("depth", depth, f"the field goes from 0 to {reach:g}, and would be cut", f"Pass {reach:g}, or none.")
    thetas = [field(z) for z in layer_depths(layers, depth)]
    return _fill_pieces(field.spec, [depth * layer / layers for layer in range(layers + 1)], thetas)


@torch.no_grad()
def join_layers(field: PiecewiseConstant, layers: int) -> PiecewiseConstant:
    """Fewer pieces, each the mean of as many equal ones: the nearest such field in least squares."""
    each, means = len(field.pieces) // layers, list[Theta]()
    thetas = [field(0.5 * (a + b)) for a, b in itertools.pairwise(field.edges)]
    for first in range(0, len(thetas), each):
        values = [dict(leaves(theta)) for theta in thetas[first : first + each]]
        means.append(rebuild(thetas[0], {name: torch.stack([v[name] for v in values]).mean(0) for name in values[0]}))
    return _fill_pieces(field.spec, field.edges[::each], means)


def _fill_pieces(spec: Theta, edges: Sequence[float], thetas: Sequence[Theta]) -> PiecewiseConstant:
    pieces, like = PiecewiseConstant(spec, edges), [leaf for _, leaf in leaves(thetas[0])]
    return (pieces.to(like[0]) if like else pieces).fill(thetas)


@torch.no_grad()
def from_layers(thetas: Sequence[Theta], depth: float, basis: AbstractBasis | None = None) -> Expansion:
    """A field in `basis` that passes through theta_l at the middle of each of L equal pieces of [0, depth].

    The inverse of `to_layers`. The basis needs as many functions as there are layers (by default as many cubic
    splines); with more, the field of least coefficients is taken.
    """
    layers = len(thetas)
    if layers == 0:
        reject("thetas", thetas, "there is no layer", "Pass one theta per layer.")
    basis = BSpline(layers, min(3, layers - 1)) if basis is None else basis
    if basis.size < layers:
        cure = f"Pass a basis of size {layers}, or refine the network to fewer layers first."
        reject("basis", basis, f"{basis.size} modes cannot pass through {layers} layers", cure)
    field = Expansion(_spec(thetas[0]), basis, depth)
    nodes = torch.tensor(layer_depths(layers, 1.0), dtype=torch.float64)
    lift = torch.linalg.pinv(basis.evaluate(nodes, nodes.dtype))  # (size, layers)
    values = [dict(leaves(theta)) for theta in thetas]
    shapes = [{name: tuple(leaf.shape) for name, leaf in theta.items()} for theta in values]
    for layer, shape in enumerate(shapes):
        if shape != shapes[0]:
            reject(f"thetas[{layer}]", shape, f"the first layer has {shapes[0]}", "Pass layers of one make.")
    for (key, spec), name in zip(field.structure.keyed, field.structure.names, strict=True):
        leaf = values[0][name]
        stacked = torch.stack([to_parameter(spec.home, v[name].double()) for v in values])
        field.coefficients[key] = nn.Parameter(torch.tensordot(lift.to(leaf.device), stacked, 1).to(leaf))
    return field


def _spec(theta: Theta) -> Theta:
    """What a field must know of given values: shapes, and which leaves are masses."""
    if isinstance(theta, AttentionTheta) and theta.p is not None:
        rest = _spec(theta._replace(p=None))
        return rest._replace(p=Spec(tuple(theta.p.shape), Filled(1.0 / theta.p.shape[-1]), Role.HEAD_MASS))
    if isinstance(theta, tuple):
        branches = [_spec(branch) for branch in theta]
        return type(theta)(*branches) if hasattr(theta, "_fields") else tuple(branches)
    return None if theta is None else Spec(tuple(theta.shape), Filled(0.0))
