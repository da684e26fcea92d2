"""The derivative of attention, transposed, in closed form: adjoint and gradient map without a graph."""

from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Points
from continua.operators.attention import Attention, AttentionTheta
from continua.operators.kernels import Dense
from continua.spaces.cloud import Cloud


class Pullback(NamedTuple):
    """What a costate becomes: `points` = Psi, the slope of the adjoint, and `theta` = the gradient map of each head."""

    points: Points
    theta: AttentionTheta


def pullback(operator: Attention, theta: AttentionTheta, cloud: Cloud, costate: Points) -> Pullback:
    """Psi(x, p, gamma, nu) and the gradient map of A(x, mu, nu), for tokens of equal mass.

        Psi_j = [d_x A]^T p_j + int [d_mu A(x')(x_j)]^T p' dgamma(x', p')

    with p the costate for each unit of mass (N times the cotangent). In the space of each head, a = Qx, b = Kx, y = Vx,
    e = Op, alpha the attention and w_ij = alpha_ij <e_i, y_j - sum_l alpha_il y_l>,

        Psi_j = sum_k p_k ( Q^T beta sum_i w_ji b_i + K^T beta sum_i w_ij a_i + V^T sum_i alpha_ij e_i )

    The gradient of head k is that of its own term, its mass p_k left out, and a mean over tokens: g_O = (V u) p^T,
    g_V = (O p) u^T, g_K = (Q x) q^T, g_Q = (K q) x^T with u = Gamma, q = beta Cov V^T O p (docs/mathematics.md, section
    8). Equal to autograd through `operator.velocity`. Parameters may have a batch axis, one set a sequence.
    """
    _check(operator, theta, cloud)
    beta, x = operator.inverse_temperature, cloud.points[:, None]  # (batch 1 tokens width)
    a, b, y, e = x @ theta.q.mT, x @ theta.k.mT, x @ theta.v.mT, costate[:, None] @ theta.o.mT
    alpha = torch.softmax(beta * (a @ b.mT), -1)  # (batch heads queries tokens)
    mean = alpha @ y
    w = alpha * (e @ y.mT - (e * mean).sum(-1, keepdim=True)) * beta
    da, db, dy = w @ b, w.mT @ a, alpha.mT @ e
    p = costate.new_ones(()) if theta.p is None else theta.p[..., None, None]
    points = ((da @ theta.q + db @ theta.k + dy @ theta.v) * p).sum(1)
    tokens = x.shape[-2]
    g = AttentionTheta(
        q=da.mT @ x / tokens, k=db.mT @ x / tokens, v=dy.mT @ x / tokens, o=mean.mT @ costate[:, None] / tokens
    )
    return Pullback(points, g)


def _check(operator: Attention, theta: AttentionTheta, cloud: Cloud) -> None:
    plain = operator.kernel == Dense() and operator.rotary is None and not operator.causal
    if not plain or any(b is not None for b in (theta.bq, theta.bk, theta.bv, theta.bo)):
        cure = "Differentiate with autograd, or use Attention(heads, key, biased=False)."
        reject("operator", operator, "the closed form is for plain attention without biases", cure)
    if cloud.measure.log_mass is not None or cloud.measure.log_own is not None:
        reject("cloud", "masses differ", "the closed form is for tokens of equal mass", "Use autograd.")
