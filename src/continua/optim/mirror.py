"""Optimisers on the simplex: entropic mirror Adam and dual averaging."""

import math
from typing import Any, final

import torch

from continua.core.shapes import Tensor
from continua.optim.optimiser import AbstractOptimiser, Group, Held, collect
from continua.spaces import AbstractParameterSpace, SimplexSpace


@final
class MirrorAdam(AbstractOptimiser):
    """Entropic mirror descent with Adam's moments, one second moment per simplex (docs/mathematics.md, section 7).

        c = g - <p, g> ,   m <- b1 m + (1 - b1) c ,   v <- b2 v + (1 - b2) sum_k p_k c_k^2
        p <- p exp(-eta mhat/(sqrt(vhat) + eps)), normalised

    The parameters are logits l, p = softmax(l), and the step is one of l: l <- l - eta mhat/(sqrt(vhat) + eps). With
    g = dJ/dp the gradient they get is dJ/dl = p c, so that c = (dJ/dl)/p is known, and centred already. A gradient on
    the simplex means something up to a constant only: adding one changes nothing. A mass of zero stays zero, any other
    stays positive. Without `adaptive` the second moment is left out; with b1 = 0 that is the method of multiplicative
    weights, p_k ~ p_0 exp(-eta sum g).
    """

    serves = (SimplexSpace,)
    whole = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adaptive: bool = True,
        space: AbstractParameterSpace = SimplexSpace(),
    ) -> None:
        self.adaptive = adaptive
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, space)

    def advance(self, group: Group, state: Held) -> None:
        assert isinstance(self.space, SimplexSpace)
        (b1, b2), lr, axis = group["betas"], float(group["lr"]), self.space.axis
        for l, g, held, k in zip(*collect(group, state, self._fresh), strict=True):
            p, c = _gradient_by_masses(l, g, axis)
            held["m"].lerp_(c, 1.0 - b1)
            step = held["m"] * (-lr / (1.0 - b1**k))
            if self.adaptive:
                held["v"].lerp_((p * c * c).sum(axis, keepdim=True), 1.0 - b2)
                step /= torch.sqrt(held["v"] / (1.0 - b2**k)) + group["eps"]
            l.copy_(_keep_positive(l + step, axis))

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        assert isinstance(self.space, SimplexSpace)
        held = {"m": torch.zeros_like(p)}
        return held | {"v": torch.zeros_like(p.detach().sum(self.space.axis, keepdim=True))} if self.adaptive else held


@final
class DualAveraging(AbstractOptimiser):
    """Regularised dual averaging with the entropy: p_k ~ p_0 exp(-eta_k sum_{i <= k} g_i), eta_k = eta k^{-power}.

    Every gradient counts alike, however old. With power = 0 it is the method of multiplicative weights; power = 1/2 is
    the choice for gradients with noise. Source: L. Xiao, Dual averaging methods for regularized stochastic learning
    and online optimization (2010).
    """

    serves = (SimplexSpace,)
    whole = True

    def __init__(
        self, params: Any, lr: float = 0.1, power: float = 0.5, space: AbstractParameterSpace = SimplexSpace()
    ) -> None:
        super().__init__(params, {"lr": lr, "power": power}, space)

    def advance(self, group: Group, state: Held) -> None:
        assert isinstance(self.space, SimplexSpace)
        lr, axis = float(group["lr"]), self.space.axis
        each = collect(group, state, lambda l: {"start": l.detach().clone(), "sum": torch.zeros_like(l)})
        for l, g, held, k in zip(*each, strict=True):
            held["sum"] += _gradient_by_masses(l, g, axis)[1]
            l.copy_(_keep_positive(held["start"] - held["sum"] * (lr * k ** -group["power"]), axis))


def _gradient_by_masses(l: Tensor, g: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """p and dJ/dp - <p, dJ/dp> from dJ/dl; nothing, and not 0/0, where a mass is zero."""
    p = torch.softmax(l, axis)
    return p, g / p.clamp_min(torch.finfo(p.dtype).tiny)


def _keep_positive(l: Tensor, axis: int) -> Tensor:
    """Logits not so far below the largest that their mass would vanish: it has no gradient to come back by.

    The mass of zero that a logit of minus infinity means remains zero.
    """
    lowest = l.amax(axis, keepdim=True) + 0.5 * math.log(torch.finfo(l.dtype).tiny)
    return torch.where(torch.isinf(l), l, torch.maximum(l, lowest))
