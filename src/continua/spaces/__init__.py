"""Floor 0: quadrature rules, clouds of tokens, bases and manifolds - the spaces everything else is a function on."""

from continua.spaces.axis import Axis
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
from continua.spaces.splines import BSpline, Fourier

__all__ = [
    "AbstractBasis",
    "AbstractCausalRule",
    "AbstractManifold",
    "AbstractNodalRule",
    "AbstractRule",
    "AbstractSampleRule",
    "AbstractSmoothBasis",
    "Axis",
    "BSpline",
    "BackwardRectangle",
    "CausalTrapezoid",
    "CentredSphere",
    "Chebyshev",
    "ClenshawCurtis",
    "Cloud",
    "Cosine",
    "Counting",
    "Euclidean",
    "Fourier",
    "GaussLegendre",
    "Legendre",
    "Measure",
    "Midpoint",
    "Sphere",
    "Trapezoid",
    "Uniform",
]
