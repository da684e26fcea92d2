"""Optimisers under constraints: Riemannian Adam on the Stiefel manifold, mirror methods on the simplex."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from continua.core.shapes import Tensor
from continua.optim.blockwise import Frobenius, update_bound
from continua.optim.optimiser import AbstractOptimiser, Group, Held, collect, foreach
from continua.spaces import AbstractParameterSpace, FlatSpace, SimplexSpace, StiefelSpace

Retraction: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]
"""R_U(xi) = U + xi + O(|xi|^2) on the manifold, for matrices with no more columns than rows: of U, a tangent xi, and a
`reach` that no |xi| exceeds, which may be infinite."""


def polar_retraction(u: Tensor, xi: Tensor, reach: float) -> Tensor:
    """R_U(xi) = (U + xi)(I + xi^H xi)^{-1/2}, of the manifold the point nearest to U + xi.

    By Newton-Schulz iterations, matrix products alone. As xi is tangent, the singular values of U + xi lie in
    [1, sqrt(1 + reach^2)]: how many reach rounding is known before. Without a finite reach by a decomposition.
    """
    x = u + xi
    if not reach <= 1e3:
        left, _, right = torch.linalg.svd(x, full_matrices=False)
        return left @ right
    largest = math.sqrt(1.0 + reach * reach)
    x, smallest = x / largest, 1.0 / largest
    for _ in range(64):
        x = _newton_schulz(x)
        if 1.0 - smallest <= 0.25 * torch.finfo(u.dtype).eps:  # it was one to rounding before the last iteration
            break
        smallest = 0.5 * smallest * (3.0 - smallest * smallest)
    return x


def cayley_retraction(u: Tensor, xi: Tensor, reach: float) -> Tensor:
    """R_U(xi) = (I - W/2)^{-1} (I + W/2) U with the skew W = P xi U^H - U xi^H P, P = I - U U^H/2.

    A last Newton-Schulz iteration keeps the rounding of many updates from adding up. Source: Z. Wen and W. Yin, A
    feasible method for optimization with orthogonality constraints (2013).
    """
    half = (xi - 0.5 * (u @ (u.mH @ xi))) @ u.mH
    w = 0.5 * (half - half.mH)
    eye = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
    return _newton_schulz(torch.linalg.solve(eye - w, u + w @ u))


def _newton_schulz(x: Tensor) -> Tensor:
    """X <- X (3 I - X^H X)/2: singular values in (0, sqrt 3) tend to one, quadratically at the end."""
    return torch.add(1.5 * x, x @ (x.mH @ x), alpha=-0.5)


@final
class RiemannianAdam(AbstractOptimiser):
    """Adam along the manifold, with one second moment for each matrix (docs/mathematics.md, section 7).

        r = P_U g ,   m <- b1 P_U m + (1 - b1) r ,   v <- b2 v + (1 - b2) |r|^2
        U <- R_U( -eta mhat/(sqrt(vhat) + eps) )

    P_U transports the momentum of the last point. The retraction R is the last operation: anything after it would leave
    the manifold. On Euclidean space it is `BlockwiseAdamW(block=Frobenius(), weight_decay=0)`. Matrices of one
    shape are updated together.
    """

    serves = (StiefelSpace, FlatSpace)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        retraction: Retraction = polar_retraction,
        space: AbstractParameterSpace = StiefelSpace(),
    ) -> None:
        self.retraction = retraction
        super().__init__(params, space, lr=lr, betas=betas, eps=eps)

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states, steps = collect(group, state, self._fresh)
        alike: dict[Any, list[int]] = {}
        for i, (p, k) in enumerate(zip(params, steps, strict=True)):
            alike.setdefault((p.shape, p.dtype, p.device, k), []).append(i)
        for (*_, k), chosen in alike.items():
            old = [[xs[i] for i in chosen] for xs in (params, [s["m"] for s in states], [s["v"] for s in states])]
            x, m, v = (torch.stack(xs) if len(xs) > 1 else xs[0].unsqueeze(0) for xs in old)
            new = self._move(group, k, (x, m, v), torch.stack([grads[i] for i in chosen]))
            for before, after in zip(old, new, strict=True):
                foreach.copy_(before, list(after.unbind(0)))

    def _move(self, group: Group, k: int, old: tuple[Tensor, Tensor, Tensor], g: Tensor) -> tuple[Tensor, ...]:
        """Point, momentum and second moment after update k, with one leading axis for the matrices."""
        x, m, v = old
        (b1, b2), lr = group["betas"], float(group["lr"])
        r = self.space.tangent(x, g)
        m = torch.lerp(self.space.tangent(x, m), r, 1.0 - b1)
        v = torch.lerp(v, self._norm(r) ** 2, 1.0 - b2)
        step = m * (-lr / (1.0 - b1**k) / (torch.sqrt(v / (1.0 - b2**k)) + group["eps"]))
        if not isinstance(self.space, StiefelSpace):
            return x + step, m, v
        # |mhat| <= C_k sqrt(vhat) here as in BlockwiseAdamW, since transport by projection shrinks; but not where betas
        # have changed since the first update, so the step is measured too (`max` passes over a nan; the step keeps it)
        reach = max(lr * update_bound((b1, b2), k), float(self._norm(step).max())) if b1 <= b2 else math.inf
        u = self.retraction(self.space.matrices(x), self.space.matrices(step), reach)
        return self.space.pack(u, x), m, v

    def _norm(self, r: Tensor) -> Tensor:
        return Frobenius().size(r, self.space)

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        return {"m": torch.zeros_like(p), "v": torch.zeros_like(self._norm(p.detach()))}


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
        super().__init__(params, space, lr=lr, betas=betas, eps=eps)

    def advance(self, group: Group, state: Held) -> None:
        (b1, b2), lr, axis = group["betas"], float(group["lr"]), -self.space.axes
        for l, g, held, k in zip(*collect(group, state, self._fresh), strict=True):
            p, c = _gradient_by_masses(l, g, axis)
            held["m"].lerp_(c, 1.0 - b1)
            step = held["m"] * (-lr / (1.0 - b1**k))
            if self.adaptive:
                held["v"].lerp_((p * c * c).sum(axis, keepdim=True), 1.0 - b2)
                step /= torch.sqrt(held["v"] / (1.0 - b2**k)) + group["eps"]
            l.copy_(_keep_positive(l + step, axis))

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        held = {"m": torch.zeros_like(p)}
        return held | {"v": torch.zeros_like(p.detach().sum(-self.space.axes, keepdim=True))} if self.adaptive else held


@final
class DualAveraging(AbstractOptimiser):
    """Regularised dual averaging with the entropy: p_k ~ p_0 exp(-eta_k sum_{i <= k} g_i), eta_k = eta k^{-power}.

    Every gradient counts alike, however old. With power = 0 it is the method of multiplicative weights; power = 1/2 is
    the choice for gradients with noise. Source: L. Xiao, Dual averaging methods for regularized stochastic learning
    and online optimization (2010).
    """

    serves = (SimplexSpace,)

    def __init__(
        self, params: Any, lr: float = 0.1, power: float = 0.5, space: AbstractParameterSpace = SimplexSpace()
    ) -> None:
        super().__init__(params, space, lr=lr, power=power)

    def advance(self, group: Group, state: Held) -> None:
        lr, axis = float(group["lr"]), -self.space.axes
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
