"""Preconditioners with one factor for each axis: AdamW in the eigenbasis of the modes, SOAP and Shampoo."""

import abc
import math
from typing import Any, ClassVar, final

import torch

from continua.core.errors import reject
from continua.core.extras import extra
from continua.core.shapes import Float, Tensor
from continua.optim.optimiser import AbstractOptimiser, Group, Held, check_numbers, collect
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, SpectralSpace

Rows = Float[Tensor, "rows modes rest"]
"""A spectral weight unfolded along one axis of modes: what stands before it, the modes, what stands after."""
Bases = Float[Tensor, "points modes modes"]
"""One basis for each weight."""


@final
class ModalAdamW(AbstractOptimiser):
    """AdamW on the gradient turned into the eigenbasis of its modes, and turned back.

        r = Q^T g ,   m <- b1 m + (1 - b1) r ,   v <- b2 v + (1 - b2) r^2
        theta <- (1 - eta lam) theta - eta Q mhat/(sqrt(vhat) + eps)

    Q acts along one `axis` of modes: the first, -4, of the modes i that a kernel C_ij writes and of the frequencies of
    multipliers, or the second, -3, of the modes j that it reads. It holds the eigenvectors of S, an average of G G^T,
    G being the gradient unfolded along that axis. Every `interval` updates, the first among them,
    S <- S + w (G G^T - S) with w = max(1/n, 1 - keep) at the n-th time; then m <- R m and v <- R^2 v, with
    R = Q_new^T Q_old, and R^2 taken entry by entry: the second moments of what is uncorrelated in the old basis.

    This is SOAP (arXiv 2409.11321) on one axis: modes that are correlated are what AdamW cannot see. Turning n modes
    there and back costs 4n operations per number, one product each, and statistics are gathered with the bases alone.
    Updates do not depend on the basis in which the modes of the axis are written, up to rounding: in float32 directions
    that no gradient has are filled by it, as they are by AdamW in another basis. `interval` and `axis` may differ from
    group to group; a state is loaded only by groups of the axis that it was saved with. Axes before the last four count
    weights of their own, each with its own basis. Costs and gains are measured in docs/benchmarks.md.
    """

    serves = (SpectralSpace,)

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        interval: int = 10,
        axis: int = -4,
        space: AbstractParameterSpace = SpectralSpace(),
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, space, **numbers, interval=interval, axis=axis)

    def advance(self, group: Group, state: Held) -> None:
        each = collect(group, state, lambda p: _fresh(p, group["axis"]))
        (b1, b2), lr, decay, interval = group["betas"], float(group["lr"]), group["weight_decay"], group["interval"]
        # one after the other, not as lists: each has a product of its own, and finds its numbers still in the cache
        for p, gradient, held, k in zip(*each, strict=True):
            g = gradient.reshape(held["m"].shape)
            if (k - 1) % interval == 0:
                _renew(held, g, max(1.0 / ((k - 1) // interval + 1), 1.0 - KEEP))
            q, m, v = _each(held["basis"], g), held["m"], held["v"]
            r = torch.bmm(q.mT, g)
            m.lerp_(r, 1.0 - b1)
            v.mul_(b2).addcmul_(r, r, value=1.0 - b2)
            # mhat/(sqrt(vhat) + eps) = (s/c) m/(sqrt(v) + s eps) with s^2 = 1 - b2^k, c = 1 - b1^k: one pass less
            s, c = math.sqrt(1.0 - b2**k), 1.0 - b1**k
            u = torch.div(m, torch.sqrt(v, out=r).add_(s * group["eps"]), out=r)
            theta = p.reshape(m.shape).baddbmm_(q, u, beta=1.0 - lr * decay, alpha=-lr * s / c)
            if not p.is_contiguous():  # theta is a copy
                p.copy_(theta.view(p.shape))


KEEP = 0.95
"""The fraction of the old statistics that is kept when new ones come: with the default interval, 200 updates count."""


def _fresh(p: Tensor, axis: int) -> dict[str, Any]:
    if p.is_complex():
        cure = "Assign another optimiser: Recipe(spectral=use(BlockwiseAdamW))."
        reject("params", p.dtype, "the eigenbasis of modes is that of real weights", cure)
    modes = p.shape[axis]
    rows = math.prod(p.shape[:axis]), modes, math.prod(p.shape[axis + 1 :])
    basis = torch.eye(modes, dtype=p.dtype, device=p.device).repeat(math.prod(p.shape[:-4]), 1, 1)
    moments = {"m": p.new_zeros(rows), "v": p.new_zeros(rows)}
    return {**moments, "basis": basis, "statistics": torch.zeros_like(basis)}


def _each(bases: Bases, like: Rows) -> Float[Tensor, "rows modes modes"]:
    """The basis of every row."""
    rows, points = like.shape[0], bases.shape[0]
    return bases.repeat_interleave(rows // points, 0) if rows > points else bases


def _renew(held: dict[str, Any], g: Rows, weight: float) -> None:
    """New statistics, a new basis, and both moments in it."""
    old, statistics = held["basis"], held["statistics"]
    statistics.lerp_((g @ g.mT).unflatten(0, (len(old), -1)).sum(1), weight)
    # what is not finite reaches the parameters through the moments, as in AdamW, and not the eigensolver
    new = torch.linalg.eigh(torch.nan_to_num(statistics, 0.0, 0.0, 0.0)).eigenvectors
    turn = _each(new.mT @ old, g)
    held.update(m=turn @ held["m"], v=turn.square() @ held["v"])
    old.copy_(new)


class AbstractLibraryOptimiser(AbstractOptimiser):
    """One of pytorch-optimizer (extra `optim`), on the groups and the state of this one."""

    serves = (AbstractFlatSpace,)
    frequency: ClassVar[str]
    """The library's name for the `interval`, in updates, between two roots or eigenbases of the preconditioner."""

    @abc.abstractmethod
    def __init__(self, params: Any, space: AbstractParameterSpace, interval: int, **numbers: Any) -> None:
        check_numbers(numbers | {"interval": interval})
        self.interval, self.options = interval, numbers | {self.frequency: interval}
        super().__init__(params, space, **self._inner().defaults)

    @final
    def advance(self, group: Group, state: Held) -> None:
        inner = getattr(self, "_made", None) or self._inner()
        inner.param_groups, inner.state = [group], state
        inner.step()

    def _inner(self) -> Any:
        """The library's optimiser; made anew in a copy, as torch's copies forget what is not in their groups."""
        kind = getattr(extra("pytorch_optimizer", "optim"), type(self).__name__)
        self._made = kind([torch.nn.Parameter(torch.zeros(1))], **self.options)
        return self._made


@final
class SOAP(AbstractLibraryOptimiser):
    """Adam in the eigenbasis of Shampoo's preconditioner, one factor per axis (N. Vyas et al., arXiv 2409.11321).

    The first update only measures. Axes longer than `largest` stay as they are.
    """

    frequency = "precondition_frequency"

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        weight_decay: float = 1e-2,
        interval: int = 10,
        largest: int = 1024,
        space: AbstractParameterSpace = SpectralSpace(),
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "max_precondition_dim": largest}
        super().__init__(params, space, interval, **numbers)


@final
class Shampoo(AbstractLibraryOptimiser):
    """g multiplied along each axis by (sum G G^T)^{-1/(2 axes)} (V. Gupta et al., arXiv 1802.09568).

    With an `interval` above 1 its preconditioner lags behind, and rates must be smaller: it has been seen to diverge
    with interval 5 at lr 0.1.
    """

    frequency = "preconditioning_compute_steps"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        interval: int = 1,
        space: AbstractParameterSpace = SpectralSpace(),
    ) -> None:
        super().__init__(params, space, interval, lr=lr, weight_decay=weight_decay, weight_decouple=True)
