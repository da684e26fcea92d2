"""A basis in which rough functions weigh less: the prior that weights are smooth along depth."""

import dataclasses
from typing import Any, final

from continua.core.errors import reject
from continua.spaces.bases import AbstractBasis, AbstractSmoothBasis, Number


@final
@dataclasses.dataclass(frozen=True)
class DampedBasis(AbstractSmoothBasis):
    """phi_k(z) = ratio^k psi_k(z), psi_k the functions of `inner`, ordered from smooth to rough.

    The same functions, other coefficients. An `Expansion` draws coefficients of one size, and an optimiser such as Adam
    moves them by one size: with a ratio below 1 the parameters start nearly constant in depth, and turn rough only
    where many updates agree. Weight decay then is a penalty sum_k ratio^(-2k) |c_k|^2 on the coefficients c_k in
    psi_k, a smoothness norm. Without it every mode varies as fast as the slowest one, and a few depth steps cannot
    resolve the flow (docs/logbook.md, "Training on MNIST-1D").
    """

    size: int = dataclasses.field(init=False)
    inner: AbstractBasis
    ratio: float

    def __post_init__(self) -> None:
        if not isinstance(self.inner, AbstractSmoothBasis):
            cure = "Pass Legendre(size), Chebyshev(size), Cosine(size) or Fourier(size)."
            reject("inner", self.inner, "its functions are not ordered from smooth to rough", cure)
        if not 0.0 < self.ratio <= 1.0:
            reject("ratio", self.ratio, "rough functions weigh less, not nothing", "Pass 0 < ratio <= 1.")
        object.__setattr__(self, "size", self.inner.size)

    def _terms(self, z: Number) -> list[Number]:
        terms: list[Any] = self.inner._terms(z)
        return [self.ratio**k * term for k, term in enumerate(terms)]
