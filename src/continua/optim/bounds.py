"""How far one update of Adam can go (docs/mathematics.md, section 7; arXiv 2605.11059, Lemma 43)."""

import math

from continua.core.errors import reject
from continua.optim.numbers import check_betas


def update_bound(betas: tuple[float, float], k: int | None = None) -> float:
    """C_k, the bound on |b(mhat/sqrt(vhat))| in update k; with `None`, C for all updates.

        C_k = sqrt( (1 - b1)(1 - b2^k) / ((1 - b2)(1 - b1^k)) ) <= C = sqrt( (1 - b1)/(1 - b2) )

    By Cauchy and Schwarz with weights b1^i <= b2^i: it needs b1 <= b2.
    """
    b1, b2 = _ordered(betas)
    if k is not None and k < 1:
        reject("k", k, "updates are counted from one", "Pass k >= 1, or None for all updates.")
    if k is None:
        return math.sqrt((1.0 - b1) / (1.0 - b2))
    return math.sqrt((1.0 - b1) * (1.0 - b2**k) / ((1.0 - b2) * (1.0 - b1**k)))


def largest_update(betas: tuple[float, float]) -> float:
    """The supremum over all gradients and updates, (1 - b1)/sqrt((1 - b2)(1 - b1^2/b2)), for b1 <= b2.

    Approached by gradients that grow like (b2/b1)^k, the equality of Cauchy and Schwarz.
    """
    b1, b2 = _ordered(betas)
    return 1.0 if b2 == 0.0 else (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2))


def parameter_bound(betas: tuple[float, float], weight_decay: float, start: float) -> float:
    """max(|b(theta_0)|, C/lam): no parameter leaves it as long as 0 < eta lam <= 1."""
    if not weight_decay > 0:
        reject("weight_decay", weight_decay, "without decay nothing holds a parameter", "Pass weight_decay > 0.")
    return max(start, update_bound(betas) / weight_decay)


def _ordered(betas: tuple[float, float]) -> tuple[float, float]:
    check_betas(betas)
    if betas[0] > betas[1]:
        why = "for b1 > b2 an update forgets gradients later than their size, and no such bound holds"
        reject("betas", betas, why, "Pass b1 <= b2.")
    return betas
