"""Blockwise AdamW: one second moment for each block of a parameter, and how far one update can go."""

import abc
import dataclasses
import math
from typing import Any, ClassVar, final

import torch

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim.optimiser import AbstractOptimiser, Group, Held, check_betas, collect, foreach
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, FlatSpace


class AbstractBlock(abc.ABC):
    """b(g), whose square the second moment averages."""

    whole: ClassVar[bool]
    """Whether b(g) mixes entries."""
    rate: ClassVar[float]
    """The rate that suits updates of this size."""

    @abc.abstractmethod
    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        """b(g), with one entry for each block, so that it meets g by broadcasting."""


@final
@dataclasses.dataclass(frozen=True)
class Entrywise(AbstractBlock):
    """b(g) = |g| entry by entry (real and imaginary part apart): AdamW itself."""

    whole = False
    rate = 1e-3

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        return g.abs()


@final
@dataclasses.dataclass(frozen=True)
class Frobenius(AbstractBlock):
    """b(g) = the Frobenius norm of each matrix, spread over it: one second moment per matrix.

    A matrix is what the space says, its last axes; what has fewer, as a vector, is one block. Updates of a matrix have
    norm O(1) in all, so each entry moves less than AdamW's by sqrt(numel): hence a larger rate.
    """

    whole = True
    rate = 3e-2

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        axes = tuple(range(-min(space.axes, g.ndim), 0))
        return torch.linalg.vector_norm(g, dim=axes, keepdim=True) if axes else g.abs()


@final
class BlockwiseAdamW(AbstractOptimiser):
    """Adam with decoupled weight decay and a second moment for each block (arXiv 2605.11059, Algorithm 1).

        m <- b1 m + (1 - b1) g ,   v <- b2 v + (1 - b2) b(g)^2
        theta <- (1 - eta lam) theta - eta mhat/(sqrt(vhat) + eps)

    With `Entrywise` blocks it equals `torch.optim.AdamW`. For b1 <= b2 an update obeys
    |b(mhat/sqrt(vhat))| <= `update_bound(betas, k)`, and with decay |b(theta)| <= max(|b(theta_0)|, C/lam).

    Without a `space` parameters may have any number of axes: matrices, vectors and numbers, each by its last two axes.
    """

    serves = (AbstractFlatSpace,)

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
        self.block, self.whole = block, block.whole
        self.blocks = FlatSpace(2) if space is None else space
        rate = block.rate if lr is None else lr
        super().__init__(params, space or FlatSpace(0), lr=rate, betas=betas, eps=eps, weight_decay=weight_decay)

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states, steps = collect(group, state, self._fresh)
        if not params:
            return
        (b1, b2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        m, v = [s["m"] for s in states], [s["v"] for s in states]
        if not self.whole:  # real and imaginary part have second moments of their own
            params, grads, m, v = (
                [torch.view_as_real(x) if x.is_complex() else x for x in xs] for xs in (params, grads, m, v)
            )
        if decay != 0.0:
            foreach.mul_(params, 1.0 - lr * decay)
        foreach.lerp_(m, grads, 1.0 - b1)
        # of single entries |g|^2 = g^2: one pass less
        blocks = [self.block.size(g, self.blocks) for g in grads] if self.whole else grads
        foreach.mul_(v, b2)
        foreach.addcmul_(v, blocks, blocks, 1.0 - b2)
        # mhat/(sqrt(vhat) + eps) = (s/c) m/(sqrt(v) + s eps) with s^2 = 1 - b2^k, c = 1 - b1^k: one pass less
        roots = [math.sqrt(1.0 - b2**k) for k in steps]
        sizes = foreach.sqrt(v)
        foreach.add_(sizes, [s * group["eps"] for s in roots])
        foreach.addcdiv_(params, m, sizes, [-lr * s / (1.0 - b1**k) for s, k in zip(roots, steps, strict=True)])

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        size = self.block.size(p.detach(), self.blocks) if self.whole else p
        return {"m": torch.zeros_like(p), "v": torch.zeros_like(size)}


def update_bound(betas: tuple[float, float], k: int | None = None) -> float:
    """C_k, the bound on |b(mhat/sqrt(vhat))| in update k; with `None`, C for all updates (arXiv 2605.11059, Lemma 43).

        C_k = sqrt( (1 - b1)(1 - b2^k) / ((1 - b2)(1 - b1^k)) ) <= C = sqrt( (1 - b1)/(1 - b2) )

    By Cauchy and Schwarz with weights b1^i <= b2^i: it needs b1 <= b2.
    """
    b1, b2 = betas
    check_betas(betas)
    if b1 > b2:
        why = "for b1 > b2 an update forgets gradients later than their size, and no such bound holds"
        reject("betas", betas, why, "Pass b1 <= b2.")
    at_least(1, k=k)
    if k is None:
        return math.sqrt((1.0 - b1) / (1.0 - b2))
    return math.sqrt((1.0 - b1) * (1.0 - b2**k) / ((1.0 - b2) * (1.0 - b1**k)))


def parameter_bound(betas: tuple[float, float], weight_decay: float, start: float) -> float:
    """max(|b(theta_0)|, C/lam): no parameter leaves it as long as 0 < eta lam <= 1."""
    positive(weight_decay=weight_decay)
    return max(start, update_bound(betas) / weight_decay)
