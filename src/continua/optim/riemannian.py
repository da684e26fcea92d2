"""Riemannian Adam on the Stiefel manifold, real and complex."""

import math
from typing import Any, final

import torch

from continua.core.shapes import Tensor
from continua.optim import foreach
from continua.optim.bounds import update_bound
from continua.optim.optimiser import AbstractOptimiser, Group, Held, counted, gathered
from continua.optim.retractions import AbstractRetraction, Polar
from continua.spaces import AbstractParameterSpace, FlatSpace, StiefelSpace


@final
class RiemannianAdam(AbstractOptimiser):
    """Adam along the manifold, with one second moment for each matrix (docs/mathematics.md, section 7).

        r = P_U g ,   m <- b1 P_U m + (1 - b1) r ,   v <- b2 v + (1 - b2) |r|^2
        U <- R_U( -eta mhat/(sqrt(vhat) + eps) )

    P_U transports the momentum of the last point. The retraction R is the last operation: anything after it would leave
    the manifold. On Euclidean space it is `BlockwiseAdamW(block=Frobenius(), weight_decay=0)`. Matrices of one
    shape are updated together.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        retraction: AbstractRetraction = Polar(),
        space: AbstractParameterSpace = StiefelSpace(),
    ) -> None:
        self.retraction = retraction
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, space)

    @property
    def serves(self) -> tuple[type, ...]:
        return (StiefelSpace, FlatSpace)

    @property
    def whole(self) -> bool:
        return True

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states = gathered(group, state, self._fresh)
        alike: dict[Any, list[int]] = {}
        for i, (p, k) in enumerate(zip(params, counted(states) if states else (), strict=True)):
            alike.setdefault((p.shape, p.dtype, p.device, k), []).append(i)
        for (*_, k), chosen in alike.items():
            old = [[xs[i] for i in chosen] for xs in (params, [s["m"] for s in states], [s["v"] for s in states])]
            x, m, v = (torch.stack(xs) if len(xs) > 1 else xs[0].unsqueeze(0) for xs in old)
            new = self._moved(group, k, (x, m, v), torch.stack([grads[i] for i in chosen]))
            for before, after in zip(old, new, strict=True):
                foreach.copy_(before, list(after.unbind(0)))

    def _moved(self, group: Group, k: int, old: tuple[Tensor, Tensor, Tensor], g: Tensor) -> tuple[Tensor, ...]:
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
        u = self.retraction.move(self.space.matrices(x), self.space.matrices(step), reach)
        return self.space.pack(u, x), m, v

    def _square(self, r: Tensor) -> Tensor:
        axes = tuple(range(-self.space.axes, 0))
        return (torch.linalg.vector_norm(r, dim=axes, keepdim=True) if axes else r.abs()) ** 2

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        return {"m": torch.zeros_like(p), "v": torch.zeros_like(self._square(p.detach()))}
