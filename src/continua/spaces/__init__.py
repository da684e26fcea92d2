"""Floor 0: quadrature rules, clouds of tokens, bases and manifolds - the spaces everything else is a function on."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.spaces.axis import Axis, TensorTable
from continua.spaces.bases import (
    AbstractBasis,
    BSpline,
    Chebyshev,
    Cosine,
    Fourier,
    Legendre,
    PlateauBasis,
    ScaledBasis,
)
from continua.spaces.cloud import Cloud
from continua.spaces.manifolds import AbstractManifold, CentredSphere, Sphere
from continua.spaces.measure import Measure
from continua.spaces.parameter_spaces import (
    AbstractFlatSpace, AbstractParameterSpace, FlatSpace, GeneratedSpace, SimplexSpace, SpectralSpace, StiefelSpace,
)  # fmt: skip
from continua.spaces.quadrature import AbstractNodalRule, ClenshawCurtis, GaussLegendre, MidpointRule
from continua.spaces.samples import (
    AbstractCausalRule, AbstractSampleRule, BackwardRectangle, CausalTrapezoid, Counting, Trapezoid, Uniform,
)  # fmt: skip

__all__ = [
    "AbstractBasis", "AbstractCausalRule", "AbstractFlatSpace", "AbstractManifold", "AbstractNodalRule",
    "AbstractParameterSpace", "AbstractSampleRule", "Axis", "BSpline", "BackwardRectangle", "CausalTrapezoid",
    "CentredSphere", "Chebyshev", "ClenshawCurtis", "Cloud", "Cosine", "Counting", "FlatSpace", "Fourier",
    "GaussLegendre", "GeneratedSpace", "Legendre", "Measure", "MidpointRule", "SimplexSpace", "SpectralSpace", "Sphere",
    "StiefelSpace", "TensorTable", "Trapezoid", "Uniform", "PlateauBasis", "ScaledBasis",
]  # fmt: skip
