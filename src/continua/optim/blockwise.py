"""Blockwise AdamW: one second moment for each block of a parameter, and how far one update can go."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim.optimiser import AbstractOptimiser, Group, Held, check_betas, collect, count_updates, foreach
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

    @abc.abstractmethod
    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        """A second moment of zero."""

    @abc.abstractmethod
    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        """v <- b2 v + (1 - b2) b(g)^2, for all parameters at once."""


@final
@dataclasses.dataclass(frozen=True)
class Entrywise(AbstractBlock):
    """b(g) = |g| entry by entry (real and imaginary part apart): AdamW itself."""

    whole = False
    rate = 1e-3

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        return g.abs()

    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        return torch.zeros_like(p, memory_format=torch.preserve_format)

    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        foreach.mul_(v, b2)
        foreach.addcmul_(v, g, g, 1.0 - b2)


@final
@dataclasses.dataclass(frozen=True)
class Frobenius(AbstractBlock):
    """b(g) = the Frobenius norm of each matrix, spread over it: one second moment a matrix.

    A matrix is what the space says, its last axes; what has fewer, as a vector, is one block. Updates of a matrix have
    norm O(1) in all, so each entry moves less than AdamW's by sqrt(numel): hence a larger rate.
    """

    whole = True
    rate = 3e-2

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        axes = tuple(range(-min(space.axes, g.ndim), 0))
        return torch.linalg.vector_norm(g, dim=axes, keepdim=True) if axes else g.abs()

    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        return torch.zeros_like(self.size(p.detach(), space))

    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        sizes = [self.size(x, space) for x in g]
        foreach.mul_(v, b2)
        foreach.addcmul_(v, sizes, sizes, 1.0 - b2)


@final
class BlockwiseAdamW(AbstractOptimiser):
    """Adam with decoupled weight decay and a second moment for each block (arXiv 2605.11059, Algorithm 1).

        m <- b1 m + (1 - b1) g ,   v <- b2 v + (1 - b2) b(g)^2
        theta <- (1 - eta lam) theta - eta mhat/(sqrt(vhat) + eps)

    With `Entrywise` blocks it equals `torch.optim.AdamW`. For b1 <= b2 an update obeys
    |b(mhat/sqrt(vhat))| <= `update_bound(k)`, and with decay |b(theta)| <= max(|b(theta_0)|, C/lam).

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
        super().__init__(
            params, {"lr": rate, "betas": betas, "eps": eps, "weight_decay": weight_decay}, space or FlatSpace(0)
        )

    def update_bound(self, k: int | None = None) -> float:
        """C_k of the first group: the most that b(mhat/sqrt(vhat)) can be in update k, or ever."""
        return update_bound(self.param_groups[0]["betas"], k)

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states = collect(group, state, self._fresh)
        if not params:
            return
        (b1, b2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        steps = count_updates(states)
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


def update_bound(betas: tuple[float, float], k: int | None = None) -> float:
    """C_k, the bound on |b(mhat/sqrt(vhat))| in update k; with `None`, C for all updates (arXiv 2605.11059, Lemma 43).

        C_k = sqrt( (1 - b1)(1 - b2^k) / ((1 - b2)(1 - b1^k)) ) <= C = sqrt( (1 - b1)/(1 - b2) )

    By Cauchy and Schwarz with weights b1^i <= b2^i: it needs b1 <= b2.
    """
    b1, b2 = _check_order(betas)
    at_least(1, k=k)
    if k is None:
        return math.sqrt((1.0 - b1) / (1.0 - b2))
    return math.sqrt((1.0 - b1) * (1.0 - b2**k) / ((1.0 - b2) * (1.0 - b1**k)))


def largest_update(betas: tuple[float, float]) -> float:
    """The supremum over all gradients and updates, (1 - b1)/sqrt((1 - b2)(1 - b1^2/b2)), for b1 <= b2.

    Approached by gradients that grow like (b2/b1)^k, the equality of Cauchy and Schwarz.
    """
    b1, b2 = _check_order(betas)
    return 1.0 if b2 == 0.0 else (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2))


def parameter_bound(betas: tuple[float, float], weight_decay: float, start: float) -> float:
    """max(|b(theta_0)|, C/lam): no parameter leaves it as long as 0 < eta lam <= 1."""
    positive(weight_decay=weight_decay)
    return max(start, update_bound(betas) / weight_decay)


def _check_order(betas: tuple[float, float]) -> tuple[float, float]:
    check_betas(betas)
    if betas[0] > betas[1]:
        why = "for b1 > b2 an update forgets gradients later than their size, and no such bound holds"
        reject("betas", betas, why, "Pass b1 <= b2.")
    return betas
