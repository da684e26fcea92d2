"""Floor 0: quadrature rules, clouds of tokens, bases and manifolds - the spaces everything else is a function on."""

from continua.spaces.bases import AbstractBasis, AbstractSmoothBasis, Chebyshev, Cosine, Legendre
from continua.spaces.causal import AbstractCausalRule, BackwardRectangle, CausalTrapezoid
from continua.spaces.cloud import Cloud
from continua.spaces.manifolds import AbstractManifold, CentredSphere, Euclidean, Sphere
from continua.spaces.measure import Measure
from continua.spaces.quadrature import (
    AbstractNodalRule,
    AbstractRule,
    ClenshawCurtis,
    GaussLegendre,
    Midpoint,
)
from continua.spaces.samples import AbstractSampleRule, Counting, Trapezoid, Uniform

__all__ = [
    "AbstractBasis",
    "AbstractCausalRule",
    "AbstractManifold",
    "AbstractNodalRule",
    "AbstractRule",
    "AbstractSampleRule",
    "AbstractSmoothBasis",
    "BackwardRectangle",
    "CausalTrapezoid",
    "CentredSphere",
    "Chebyshev",
    "ClenshawCurtis",
    "Cloud",
    "Cosine",
    "Counting",
    "Euclidean",
    "GaussLegendre",
    "Legendre",
    "Measure",
    "Midpoint",
    "Sphere",
    "Trapezoid",
    "Uniform",
]
