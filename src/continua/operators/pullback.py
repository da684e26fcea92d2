"""The derivative of attention, transposed, in closed form: adjoint and gradient map without a graph."""

from typing import NamedTuple, TypeAlias

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.attention import Attention, AttentionTheta
from continua.operators.kernels import Dense
from continua.spaces import Cloud

_Seen: TypeAlias = Float[Tensor, "batch heads key tokens"]
"""Tokens in the space of each head, one a column."""


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
    beta, x, tokens = operator.inverse_temperature, cloud.points, cloud.points.shape[1]
    a, b, y, e = _seen(theta.q, x), _seen(theta.k, x), _seen(theta.v, x), _seen(theta.o, costate)
    alpha = torch.softmax((beta * a).mT @ b, -1)  # (batch heads queries tokens)
    mean = y @ alpha.mT
    w = beta * alpha * (e.mT @ y - (e * mean).sum(-2).unsqueeze(-1))
    slopes = (b @ w.mT, a @ w, e @ alpha)  # of a, b and y
    points = sum((_gathered(s, t, theta.p) for s, t in zip(slopes, theta[:3], strict=True)), torch.zeros_like(x))
    pairs = zip((*slopes, mean), (x, x, x, costate), strict=True)
    return Pullback(points, AttentionTheta(*(_outer(s, z) / tokens for s, z in pairs)))


def _seen(w: Float[Tensor, "*batched heads key width"], x: Points) -> _Seen:
    """W x of every head, transposed: one product for all heads, and no copy of the tokens for each."""
    return (w.flatten(-3, -2) @ x.mT).unflatten(1, (w.shape[-3], -1))


def _gathered(
    s: _Seen, w: Float[Tensor, "*batched heads key width"], p: Float[Tensor, "*batched heads"] | None
) -> Points:
    """sum_k p_k W_k^T s_k."""
    s = s if p is None else s * p[..., None, None]
    return s.flatten(1, 2).mT @ w.flatten(-3, -2)


def _outer(s: _Seen, x: Points) -> Float[Tensor, "batch heads key width"]:
    """sum_i s_i x_i^T of every head."""
    return (s.flatten(1, 2) @ x).unflatten(1, (s.shape[1], -1))


def _check(operator: Attention, theta: AttentionTheta, cloud: Cloud) -> None:
    plain = operator.kernel == Dense() and operator.rotary is None and not operator.causal
    if not plain or any(b is not None for b in (theta.bq, theta.bk, theta.bv, theta.bo)):
        cure = "Differentiate with autograd, or use Attention(heads, key, biased=False)."
        reject("operator", operator, "the closed form is for plain attention without biases", cure)
    if cloud.measure.log_mass is not None or cloud.measure.log_own is not None:
        reject("cloud", "masses differ", "the closed form is for tokens of equal mass", "Use autograd.")
