"""Riemannian Adam on the Stiefel manifold, real and complex, and its retractions: along a tangent, on the manifold."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from continua.core.shapes import Tensor
from continua.optim.blockwise import update_bound
from continua.optim.optimiser import AbstractOptimiser, Group, Held, collect, foreach
from continua.spaces import AbstractParameterSpace, FlatSpace, StiefelSpace

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
    whole = True

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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, space)

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
        v = torch.lerp(v, self._square(r), 1.0 - b2)
        step = m * (-lr / (1.0 - b1**k) / (torch.sqrt(v / (1.0 - b2**k)) + group["eps"]))
        if not isinstance(self.space, StiefelSpace):
            return x + step, m, v
        # |mhat| <= C_k sqrt(vhat) here as in BlockwiseAdamW, since transport by projection shrinks; but not where betas
        # have changed since the first update, so the step is measured too (nan is no more, and is handed on)
        reach = max(lr * update_bound((b1, b2), k), float(self._square(step).max().sqrt())) if b1 <= b2 else math.inf
        u = self.retraction(self.space.matrices(x), self.space.matrices(step), reach)
        return self.space.pack(u, x), m, v

    def _square(self, r: Tensor) -> Tensor:
        axes = tuple(range(-self.space.axes, 0))
        return (torch.linalg.vector_norm(r, dim=axes, keepdim=True) if axes else r.abs()) ** 2

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        return {"m": torch.zeros_like(p), "v": torch.zeros_like(self._square(p.detach()))}
