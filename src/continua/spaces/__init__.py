"""Floor 0: quadrature rules, clouds of tokens, bases and manifolds - the spaces everything else is a function on."""

from continua.spaces.axis import Axis, place
from continua.spaces.bases import AbstractBasis, AbstractSmoothBasis, Chebyshev, Cosine, Legendre
from continua.spaces.causal import AbstractCausalRule, BackwardRectangle, CausalTrapezoid
from continua.spaces.cloud import Cloud
from continua.spaces.damped import DampedBasis
from continua.spaces.manifolds import AbstractManifold, CentredSphere, Euclidean, Sphere
from continua.spaces.measure import Measure
from continua.spaces.parameter_spaces import (
    AbstractFlatSpace,
    AbstractParameterSpace,
    FlatSpace,
    GeneratedSpace,
    SimplexSpace,
    SpectralSpace,
)
from continua.spaces.positions import checked_samples
from continua.spaces.quadrature import (
    AbstractNodalRule,
    AbstractRule,
    ClenshawCurtis,
    GaussLegendre,
    MidpointRule,
)
from continua.spaces.samples import AbstractSampleRule, Counting, Trapezoid, Uniform
from continua.spaces.splines import BSpline, Fourier
from continua.spaces.stiefel import StiefelSpace

__all__ = [
    "AbstractBasis", "AbstractCausalRule", "AbstractFlatSpace", "AbstractManifold", "AbstractNodalRule",
    "AbstractParameterSpace", "AbstractRule", "AbstractSampleRule", "AbstractSmoothBasis", "Axis", "BSpline",
    "BackwardRectangle", "CausalTrapezoid", "CentredSphere", "Chebyshev", "ClenshawCurtis", "Cloud", "Cosine",
    "Counting", "Damped", "Euclidean", "FlatSpace", "Fourier", "GaussLegendre", "GeneratedSpace", "Legendre",
    "Measure", "Midpoint", "SimplexSpace", "SpectralSpace", "Sphere", "StiefelSpace", "Trapezoid", "Uniform",
    "checked_samples", "placed",
]  # fmt: skip
