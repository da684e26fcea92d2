"""Between layers and smooth fields: a field sampled as layers, and layers lifted to a field that reproduces them."""

from collections.abc import Sequence

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields.constant import PiecewiseConstant
from continua.fields.expansion import Expansion
from continua.fields.field import AbstractField, key
from continua.operators import Filled, Spec, Theta, leaves, map_leaves
from continua.spaces import AbstractBasis, BSpline


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
