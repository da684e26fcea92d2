"""Blockwise AdamW: one second moment for each block of a parameter."""

import math
from typing import Any, final

import torch

from continua.core.shapes import Tensor
from continua.optim import foreach
from continua.optim.blocks import AbstractBlock, Entrywise
from continua.optim.bounds import update_bound
from continua.optim.optimiser import AbstractOptimiser, Group, Held, counted, gathered
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, FlatSpace


@final
class BlockwiseAdamW(AbstractOptimiser):
    """Adam with decoupled weight decay and a second moment for each block (arXiv 2605.11059, Algorithm 1).

        m <- b1 m + (1 - b1) g ,   v <- b2 v + (1 - b2) b(g)^2
        theta <- (1 - eta lam) theta - eta mhat/(sqrt(vhat) + eps)

    With `Entrywise` blocks it equals `torch.optim.AdamW`. For b1 <= b2 an update obeys
    |b(mhat/sqrt(vhat))| <= `update_bound(k)`, and with decay |b(theta)| <= max(|b(theta_0)|, C/lam).

    Without a `space` parameters may have any number of axes: matrices, vectors and numbers, each by its last two axes.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        block: AbstractBlock = Entrywise(),
        space: AbstractParameterSpace | None = None,
    ) -> None:
        self.block = block
        self.blocks = FlatSpace(2) if space is None else space
        rate = block.rate if lr is None else lr
        super().__init__(
            params, {"lr": rate, "betas": betas, "eps": eps, "weight_decay": weight_decay}, space or FlatSpace(0)
        )

    @property
    def serves(self) -> tuple[type, ...]:
        return (AbstractFlatSpace,)

    @property
    def whole(self) -> bool:
        return self.block.whole

    def update_bound(self, k: int | None = None) -> float:
        """C_k of the first group: the most that b(mhat/sqrt(vhat)) can be in update k, or ever."""
        return update_bound(self.param_groups[0]["betas"], k)

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states = gathered(group, state, self._fresh)
        if not params:
            return
        (b1, b2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        steps = counted(states)
        m, v = [s["m"] for s in states], [s["v"] for s in states]
        if not self.block.whole:  # real and imaginary part have second moments of their own
            params, grads, m, v = (_real(x) for x in (params, grads, m, v))
        if decay != 0.0:
            foreach.mul_(params, 1.0 - lr * decay)
        foreach.lerp_(m, grads, 1.0 - b1)
        self.block.average(v, grads, b2, self.blocks)
        # mhat/(sqrt(vhat) + eps) = (s/c) m/(sqrt(v) + s eps) with s^2 = 1 - b2^k, c = 1 - b1^k: one pass less
        roots = [math.sqrt(1.0 - b2**k) for k in steps]
        sizes = foreach.sqrt(v)
        foreach.add_(sizes, [s * group["eps"] for s in roots])
        foreach.addcdiv_(params, m, sizes, [-lr * s / (1.0 - b1**k) for s, k in zip(roots, steps, strict=True)])

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        m = torch.zeros_like(p, memory_format=torch.preserve_format)
        return {"m": m, "v": self.block.moment(p, self.blocks)}


def _real(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
