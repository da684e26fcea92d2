"""Manifolds on which the states of tokens live, each acting on the last axis.

A vector without a direction (the zero vector; a constant vector on `CentredSphere`) cannot be projected.
Raising would synchronise with the device at every solver stage, and dividing would give NaN: it is sent to 0
with a zero gradient, so that padding stays harmless.
"""

import abc
import math
from dataclasses import dataclass
from typing import TypeAlias, final

import torch

from continua.core.checks import positive
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor

Vectors: TypeAlias = Float[Tensor, "*batch width"]


class AbstractManifold(abc.ABC):
    """A submanifold of R^width with the induced metric.

    `project(x + v)` follows the geodesic from x along the tangent v up to O(|v|^3): a projection is a second-order
    retraction (Absil and Malick, SIAM J. Optim. 22 (2012) 135-158).
    """

    @abc.abstractmethod
    def project(self, x: Vectors) -> Vectors:
        """The point of the manifold nearest to `x`."""

    @abc.abstractmethod
    def tangent(self, x: Vectors, v: Vectors) -> Vectors:
        """`P_x v`, the orthogonal projection of `v` on the tangent space at `x`."""


@final
@dataclass(frozen=True)
class Sphere(AbstractManifold):
    """`|x| = r`: `project(x) = r x/|x|`, `P_x v = v - u <u, v>` with `u = x/|x|`.

    With r = sqrt(width) the projection is a gain-1 RMSNorm; equivalent to `torch.nn.functional.normalize` for
    r = 1. Source: E. Hairer, C. Lubich, G. Wanner, Geometric Numerical Integration, section IV.4.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    def project(self, x: Vectors) -> Vectors:
        return self.radius * _direction(x)

    def tangent(self, x: Vectors, v: Vectors) -> Vectors:
        return _orthogonal(_direction(x), v)


@final
@dataclass(frozen=True)
class CentredSphere(AbstractManifold):
    """`mean(x) = 0` and `|x| = r`, with `r = sqrt(width)` by default.

        project(x) = r c/|c| ,   c = x - mean(x) ,   P_x v = (v - mean(v)) - u <u, v - mean(v)> ,   u = c/|c|

    The default is the image of a gain-1 LayerNorm: `project` is `torch.nn.functional.layer_norm`, eps = 0.
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    def project(self, x: Vectors) -> Vectors:
        if x.shape[-1] < 2:
            cure = "Use a width of at least 2, or Sphere()."
            reject("x.shape", tuple(x.shape), "one centred number is always 0 and lies on no sphere", cure)
        return (self.radius or math.sqrt(x.shape[-1])) * _direction(_centre(x))

    def tangent(self, x: Vectors, v: Vectors) -> Vectors:
        return _orthogonal(_direction(_centre(x)), v - v.mean(dim=-1, keepdim=True))


def _direction(x: Vectors) -> Vectors:
    """`x/|x|`, and 0 where `|x|` is too small to be squared in this dtype."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Dividing by infinity gives the value 0 and the gradient 0; adding a small eps, the gradient 1/eps.
    return x / torch.where(norm <= math.sqrt(torch.finfo(x.dtype).tiny), math.inf, norm)


def _centre(x: Vectors) -> Vectors:
    """`x - mean(x)`, and exactly 0 where nothing but the rounding of the mean is left."""
    centred = x - x.mean(dim=-1, keepdim=True)
    rounding = 8.0 * torch.finfo(x.dtype).eps * x.detach().abs().amax(dim=-1, keepdim=True)
    return torch.where(centred.detach().abs().amax(dim=-1, keepdim=True) <= rounding, 0.0, centred)


def _orthogonal(u: Vectors, v: Vectors) -> Vectors:
    return v - u * (u * v).sum(dim=-1, keepdim=True)
