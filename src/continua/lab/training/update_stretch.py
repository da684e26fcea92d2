"""How much AdamW stretches differences of gradients: Lemmas 28 and 44, with their constants."""

import math
from typing import TypeAlias, final

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Tensor
from continua.lab.sweep import AbstractCell, Row
from continua.lab.training.problem import UpdateRule
from continua.optim import update_bound

_Gradients: TypeAlias = Float[Tensor, "updates pairs rows columns"]
_ROWS = 3


@final
class UpdateStretch(AbstractCell):
    """The largest distance of two trainings by other gradients and starts, of its bound, that gradient ascent finds.

    With u_k = mhat/(sqrt(vhat) + eps), w_i = (1 - b_i) b_i^{k-s} / (1 - b_i^k) and C_k of Lemma 43,

        |u_k - u_k'| <= (1/eps) [ sum_s w_1 |g_s - g_s'| + C_k ( sum_s w_2 |g_s - g_s'|^2 )^{1/2} ]
        |theta_K - theta_K'| <= (1 - eta lam)^K |theta_0 - theta_0'| + sum_k eta (1 - eta lam)^{K-k} |u_k - u_k'|

    for every block. The first needs |mhat'|/(sqrt(vhat') + eps) <= C_k, and that sqrt(vhat) is a norm of the gradients.
    The last line is judged with the project's optimiser.
    """

    rule: UpdateRule
    updates: int
    pairs: int
    ascent: int

    def measure(self) -> Row:
        generator = generator_of(81)
        shape = (self.updates, self.pairs, _ROWS, _ROWS)
        # gradients from far below eps, where an update is g/eps, to far above
        sizes = self.rule.eps * torch.logspace(-2.0, 1.0, self.pairs, dtype=torch.float64)[:, None, None]
        g = sizes * torch.randn(shape, generator=generator, dtype=torch.float64)
        other = g + 0.1 * sizes * torch.randn(shape, generator=generator, dtype=torch.float64)
        start = torch.zeros(2, self.pairs, _ROWS, _ROWS, dtype=torch.float64)
        drawn = self._ratio(start, g, other)
        for step in range(self.ascent):
            both = [w.detach().requires_grad_() for w in (g, other)]
            own = self._move_by(both[0]) - self._move_by(both[1])
            found = self._size(own) / self._allow(torch.zeros_like(own), both[0] - both[1])
            slopes = torch.autograd.grad(found.clamp_min(1e-12).log().sum(), both)
            length = 0.2 * 0.97**step * sizes
            g, other = (
                w.detach() + length * s / s.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-300)
                for w, s in zip(both, slopes, strict=True)
            )
        parity = float((self._move_by(g) - self._train_by(start[0], g)).abs().max())
        shifted = torch.stack([start[0], start[1] + 0.1 * torch.randn(shape[1:], generator=generator).double()])
        best = max(float(self._ratio(starts, g, other).max()) for starts in (start, shifted))
        return {"blockwise": self.rule.blockwise, "drawn": float(drawn.max()), "found": best, "parity": parity}

    def _ratio(self, starts: Tensor, g: _Gradients, other: _Gradients) -> Float[Tensor, " pairs"]:
        moved = self._train_by(starts[0], g) - self._train_by(starts[1], other)
        return self._size(moved) / self._allow(starts[0] - starts[1], g - other)

    def _train_by(self, start: Tensor, g: _Gradients) -> Tensor:
        """Parameters after all updates, by the project's optimiser."""
        w = start.clone()
        optimiser = self.rule.build([w])
        for own in g:
            w.grad = own.detach().clone()
            optimiser.step()
        return w

    def _move_by(self, g: _Gradients) -> Tensor:
        """The same from zero, in one differentiable formula."""
        b1, b2 = self.rule.betas
        total = torch.zeros_like(g[0])
        for k in range(1, self.updates + 1):
            squares = g[:k].square().sum((-1, -2), keepdim=True) if self.rule.blockwise else g[:k].square()
            m = (_weights(b1, k)[:, None, None, None] * g[:k]).sum(0)
            v = (_weights(b2, k)[:, None, None, None] * squares).sum(0)
            total = self._shrinkage * total - self.rule.learning_rate * m / (v.clamp_min(1e-60).sqrt() + self.rule.eps)
        return total

    def _allow(self, start: Tensor, gap: _Gradients) -> Float[Tensor, " pairs"]:
        b1, b2 = self.rule.betas
        sizes = torch.linalg.matrix_norm(gap)[..., None, None] if self.rule.blockwise else gap.abs()
        total = torch.linalg.matrix_norm(start)[:, None, None] if self.rule.blockwise else start.abs()
        for k in range(1, self.updates + 1):
            first = (_weights(b1, k)[:, None, None, None] * sizes[:k]).sum(0)
            second = (_weights(b2, k)[:, None, None, None] * sizes[:k].square()).sum(0).clamp_min(1e-60).sqrt()
            update = (first + update_bound(self.rule.betas, k) * second) / self.rule.eps
            total = self._shrinkage * total + self.rule.learning_rate * update
        return total.square().sum((-1, -2)).clamp_min(1e-60).sqrt()

    @property
    def _shrinkage(self) -> float:
        return 1.0 - self.rule.learning_rate * self.rule.weight_decay

    def _size(self, gap: Tensor) -> Float[Tensor, " pairs"]:
        return gap.square().sum((-1, -2)).clamp_min(1e-60).sqrt()


def _weights(b: float, k: int) -> Float[Tensor, " updates"]:
    """(1 - b) b^{k-s} / (1 - b^k), s = 1, ..., k."""
    powers = torch.tensor([b ** (k - s) for s in range(1, k + 1)], dtype=torch.float64)
    return powers * ((1.0 - b) / (1.0 - math.pow(b, k)))
