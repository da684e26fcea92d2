"""How smooth a stack of layers is in depth, and how it moves tokens."""

import math

import torch

from continua.core.shapes import Float, Points, Tensor
from continua.fields import PiecewiseConstant
from continua.lab.variations.action import SPHERE, Path, PathAction, tangential
from continua.model import ContinuousTransformer, Flow
from continua.solve import State
from continua.spaces import Cloud

MODES = 4
"""Of the smooth fields that layers are compared with: as many as our models have."""
MATRICES = ("inner_q", "inner_k", "inner_v", "inner_o", "inner_w1", "inner_w2")
"""Of attention and feed-forward."""
_ALIKE = 0.9
"""The cosine above which two tokens belong together."""


def layer_weights(model: ContinuousTransformer) -> Float[Tensor, "layers numbers"]:
    """The matrices of every layer, in one row; biases, which begin at zero, and gains are left out."""
    rows = []
    for field in model.flow.fields:
        assert isinstance(field, PiecewiseConstant)
        own = [[w.flatten() for name, w in piece.items() if name in MATRICES] for piece in field.pieces]
        rows.append(torch.stack([torch.cat(matrices) for matrices in own]))
    return torch.cat(rows, 1).detach().double()


def roughness(layers: Float[Tensor, "layers numbers"]) -> float:
    """mean_l |W_{l+1} - W_l|^2 over the mean of |W_k - W_l|^2 over all pairs.

    The second is the mean of the first over all orders of the layers (the permuted stack): 1 for layers in no order,
    O(L^-2) for a smooth field. J. von Neumann, Distribution of the ratio of the mean square successive difference to
    the variance, Ann. Math. Statist. 12 (1941).
    """
    count = len(layers)
    neighbours = (layers[1:] - layers[:-1]).square().sum() / (count - 1)
    pairs = 2.0 * (layers - layers.mean(0)).square().sum() / (count - 1)
    return float(neighbours / pairs.clamp_min(1e-300)) if float(pairs) > 0.0 else 0.0


def distance_to_smooth(layers: Float[Tensor, "layers numbers"]) -> tuple[float, float]:
    """|W - Pi W| / |W|, Pi the nearest field of `MODES` cosine modes, and its mean over all orders of the layers.

    Of layers in any order Pi keeps their mean, and (modes - 1)/(L - 1) of the squares around it.
    """
    count, modes = len(layers), min(MODES, len(layers))
    u = (torch.arange(count, dtype=layers.dtype) + 0.5) / count
    basis = torch.linalg.qr(torch.stack([torch.cos(math.pi * k * u) for k in range(modes)], 1)).Q
    left, whole = (layers - basis @ (basis.mT @ layers)).square().sum(), layers.square().sum()
    around = (layers - layers.mean(0)).square().sum()
    permuted = around * (1.0 - (modes - 1) / (count - 1))
    return float((left / whole).sqrt()), float((permuted / whole).sqrt())


def velocities(flow: Flow, points: Points, layers: int) -> Float[Tensor, "layers numbers"]:
    """f_l(x) of every layer at the same states: what layers do, however their heads and neurons are numbered."""
    z = (torch.arange(layers, dtype=points.dtype) + 0.5) * (flow.depth / layers)
    many = points.repeat(layers, 1, 1)
    slopes = flow.bind(Cloud(many), random=False)(z.repeat_interleave(len(points)), State(many)).x
    return slopes.unflatten(0, (layers, -1)).flatten(1)


def turning(path: Path) -> float:
    """|P (v_{k+1} - v_k)| over |v|, root mean squares along a path on the sphere: P x'' = 0, in units of a layer.

    The square root of 2 where every layer goes its own way, O(1/L) along a smooth path.
    """
    on = SPHERE.project(path)
    steps = len(on) - 1
    residual, speed = PathAction(1.0 / steps).residuals(on), PathAction(1.0 / steps).defects(on)
    return float((residual.square().sum(-1).mean() / speed.square().sum(-1).mean()).sqrt()) / steps


def extremality(flow: Flow, path: Path) -> float:
    """The Euler-Lagrange residual of the path by its own flow, of that of the kinetic action alone."""
    radii, on = path.norm(dim=-1, keepdim=True), SPHERE.project(path)
    h = flow.depth / (len(path) - 1)
    G = tangential(flow, radii=0.5 * (radii[1:] + radii[:-1]))
    full, kinetic = (PathAction(h, velocity).residuals(on).square().mean().sqrt() for velocity in (G, None))
    return float(full / kinetic.clamp_min(1e-300))


def count_clusters(path: Path) -> list[float]:
    """Groups of tokens at each depth, a mean over sequences: chains of tokens whose neighbours' cosine is over 0.9."""
    on = SPHERE.project(path)
    linked = (on @ on.mT > _ALIKE).to(path.dtype)
    for _ in range(max(1, math.ceil(math.log2(path.shape[2])))):  # friends of friends
        linked = (linked @ linked > 0.5).to(path.dtype)
    return (1.0 / linked.sum(-1)).sum(-1).mean(-1).tolist()
