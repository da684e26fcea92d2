"""The tilted measure of attention and its derivatives, in closed form.

    Gamma(q, mu) = int y e^{beta<q,y>} dmu / Z ,   Z = int e^{beta<q,y>} dmu
    D_q Gamma(q, mu) = beta Cov ,   d_mu Gamma(q, mu)(v) = (e^{beta<q,Pv>}/Z) [ I + beta (Pv - Gamma) q^T ] DP(v)

with Cov the covariance of the tilted measure and P the radial projection on a ball (docs/mathematics.md, section 8;
arXiv 2605.11059, Lemmas 10 and 11).
"""

import dataclasses
import math
from typing import NamedTuple, TypeAlias, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.attention import Attention, AttentionTheta
from continua.operators.kernels import Dense
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Tilted:
    """The measure mu tilted by e^{beta <q, y>} for each query; tokens outside the ball of `radius` are drawn in."""

    cloud: Cloud
    queries: Float[Tensor, "batch queries width"]
    beta: float
    radius: float = math.inf

    @property
    def weights(self) -> Float[Tensor, "batch queries tokens"]:
        """alpha_j = w_j e^{beta <q, P x_j>} / Z."""
        logits = self.beta * self.queries @ self._inside.mT
        log_mass = self.cloud.measure.log_mass
        return torch.softmax(logits if log_mass is None else logits + log_mass[:, None, :], -1)

    @property
    def mean(self) -> Float[Tensor, "batch queries width"]:
        """Gamma(q, mu)."""
        return self.weights @ self._inside

    @property
    def slope(self) -> Float[Tensor, "batch queries width width"]:
        """D_q Gamma = beta Cov, of norm at most beta R^2."""
        away = self._inside[:, None] - self.mean[:, :, None]  # (batch queries tokens width)
        return self.beta * torch.einsum("bqt,bqti,bqtj->bqij", self.weights, away, away)

    def lions(self, v: Float[Tensor, "batch asked width"]) -> Float[Tensor, "batch queries asked width width"]:
        """d_mu Gamma(q, mu)(v) at any points v: how Gamma changes when mass at v moves, for each unit of mass."""
        core, _ = self._core(v)
        return self.density(v)[..., None, None] * core @ radial_slope(v, self.radius)[:, None]

    def query_slope_of_lions(
        self, v: Float[Tensor, "batch asked width"]
    ) -> Float[Tensor, "batch queries asked width width width"]:
        """D_q d_mu Gamma(q, mu)(v) = d_mu D_q Gamma(q, mu)(v); the last axis is the direction in q.

            rho(v) beta { [I + beta a q^T] a^T + a (x) I - (D_q Gamma) (x) q } ,   a = P v - Gamma

        with rho the density; in the ball of at most rho(v) beta R (4 + 5 beta R |q|) (arXiv 2605.11059, Lemma 13).
        """
        core, away = self._core(v)
        eye = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        tilt = torch.einsum("bqnij,bqnh->bqnijh", core, away) + torch.einsum("bqni,jh->bqnijh", away, eye)
        tilt = tilt - torch.einsum("bqih,bqj->bqijh", self.slope, self.queries)[:, :, None]
        whole = self.beta * self.density(v)[..., None, None, None] * tilt
        return torch.einsum("bqnijh,bnjk->bqnikh", whole, radial_slope(v, self.radius))

    def density(self, v: Float[Tensor, "batch asked width"]) -> Float[Tensor, "batch queries asked"]:
        """e^{beta <q, P v>}/Z: of the tilted measure with respect to mu, at most e^{2 beta R |q|}."""
        top = self.beta * self.queries @ self._inside.mT
        mass = self.cloud.measure.weights()
        shift = top.detach().amax(-1, keepdim=True)
        rises = (top - shift).exp()
        Z = rises.mean(-1) if mass is None else (rises * mass[:, None, :]).sum(-1)
        return (self.beta * self.queries @ radial(v, self.radius).mT - shift).exp() / Z[..., None]

    def _core(self, v: Float[Tensor, "batch asked width"]) -> tuple[Tensor, Float[Tensor, "batch queries asked width"]]:
        """I + beta a q^T, and a = P v - Gamma."""
        away = radial(v, self.radius)[:, None] - self.mean[:, :, None]
        eye = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        return eye + self.beta * away[..., :, None] * self.queries[:, :, None, None, :], away

    @property
    def _inside(self) -> Points:
        return radial(self.cloud.points, self.radius)


def radial(x: Float[Tensor, "*batch width"], radius: float) -> Float[Tensor, "*batch width"]:
    """P_R x = x min(1, R/|x|): the nearest point of the ball."""
    if math.isinf(radius):
        return x
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (radius / norm.clamp_min(radius))


def radial_slope(x: Float[Tensor, "*batch width"], radius: float) -> Float[Tensor, "*batch width width"]:
    """DP_R(x): the identity inside the ball, (R/|x|)(I - u u^T) with u = x/|x| outside."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape, x.shape[-1])
    if math.isinf(radius):
        return eye
    norm = torch.linalg.vector_norm(x, dim=-1)[..., None, None]
    u = x[..., None] / norm.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(norm > radius, (radius / norm.clamp_min(radius)) * (eye - u @ u.mT), eye)


def wasserstein_bound(beta: float, radius: float, query: float, p: float = math.inf) -> float:
    """(1 + 2 beta R|q|) e^{2 beta R|q|/p}: how much Gamma(q, .) stretches W_p on the ball of radius R.

    Without an exponential at p = infinity (arXiv 2605.11059, Corollary 2).
    """
    if not p >= 1:
        reject("p", p, "a Wasserstein distance has p >= 1", "Pass p=2.0, or math.inf.")
    tilt = 2.0 * beta * radius * query
    return (1.0 + tilt) * math.exp(tilt / p)


_InHeads: TypeAlias = Float[Tensor, "batch heads key tokens"]
"""Tokens in the space of each head, one a column."""
_Slopes: TypeAlias = tuple[_InHeads, _InHeads, Float[Tensor, "batch heads value tokens"]]
"""Of queries, keys and values."""
_Weight: TypeAlias = Float[Tensor, "*batched heads key width"]


class Pullback(NamedTuple):
    """What a costate becomes: `points` = Psi, the slope of the adjoint, and `theta` = the gradient map of each head."""

    points: Points
    theta: AttentionTheta


def pullback(operator: Attention, theta: AttentionTheta, cloud: Cloud, costate: Points) -> Pullback:
    """Psi and the gradient map for one costate: `AttentionAdjoint` where only one is asked for."""
    adjoint = AttentionAdjoint(operator, theta, cloud)
    slopes = adjoint.slopes(costate)
    return Pullback(adjoint.points(slopes), adjoint.gradients(slopes, costate))


@final
class AttentionAdjoint:
    """Psi(x, p, gamma, nu) and the gradient map of A(x, mu, nu) for any costates p, for tokens of equal mass.

        Psi_j = [d_x A]^T p_j + int [d_mu A(x')(x_j)]^T p' dgamma(x', p')

    with p the costate for each unit of mass (N times the cotangent). In the space of each head, a = Qx, b = Kx, y = Vx,
    e = Op, alpha the attention and w_ij = alpha_ij <e_i, y_j - sum_l alpha_il y_l>,

        Psi_j = sum_k p_k ( Q^T beta sum_i w_ji b_i + K^T beta sum_i w_ij a_i + V^T sum_i alpha_ij e_i )

    The gradient of head k is that of its own term, its mass p_k left out, and a mean over tokens: g_O = (V u) p^T,
    g_V = (O p) u^T, g_K = (Q x) q^T, g_Q = (K q) x^T with u = Gamma, q = beta Cov V^T O p (docs/mathematics.md, section
    8). Equal to autograd through `operator.velocity`. Parameters may have a batch axis, one set per sequence.
    """

    def __init__(self, operator: Attention, theta: AttentionTheta, cloud: Cloud) -> None:
        _check(operator, theta, cloud)
        self.theta, self.x, self.beta = theta, cloud.points, operator.inverse_temperature
        self.a, self.b, self.y = (_in_heads(w, self.x) for w in theta[:3])
        self.alpha = torch.softmax((self.beta * self.a).mT @ self.b, -1)  # (batch heads queries tokens)
        self.mean = self.y @ self.alpha.mT

    def slopes(self, costate: Points) -> _Slopes:
        """What the costate becomes in the space of each head: the slopes of a, b and y."""
        e = _in_heads(self.theta.o, costate)
        w = self.beta * self.alpha * (e.mT @ self.y - (e * self.mean).sum(-2).unsqueeze(-1))
        return self.b @ w.mT, self.a @ w, e @ self.alpha

    def points(self, slopes: _Slopes) -> Points:
        """Psi."""
        own = zip(slopes, self.theta[:3], strict=True)
        return sum((_from_heads(s, t, self.theta.p) for s, t in own), torch.zeros_like(self.x))

    def gradients(self, slopes: _Slopes, costate: Points) -> AttentionTheta:
        """sum_i s_i z_i^T of every head, a mean over tokens."""
        pairs, tokens = zip((*slopes, self.mean), (self.x, self.x, self.x, costate), strict=True), self.x.shape[1]
        return AttentionTheta(*((s.flatten(1, 2) @ z).unflatten(1, (s.shape[1], -1)) / tokens for s, z in pairs))


def _in_heads(w: _Weight, x: Points) -> _InHeads:
    """W x of every head, transposed: one product for all heads, and no copy of the tokens for each."""
    return (w.flatten(-3, -2) @ x.mT).unflatten(1, (w.shape[-3], -1))


def _from_heads(s: _InHeads, w: _Weight, p: Float[Tensor, "*batched heads"] | None) -> Points:
    """sum_k p_k W_k^T s_k."""
    s = s if p is None else s * p[..., None, None]
    return s.flatten(1, 2).mT @ w.flatten(-3, -2)


def _check(operator: Attention, theta: AttentionTheta, cloud: Cloud) -> None:
    plain = operator.kernel == Dense() and operator.rotary is None and not operator.causal
    if not plain or any(b is not None for b in (theta.bq, theta.bk, theta.bv, theta.bo)):
        cure = "Differentiate with autograd, or use Attention(heads, key, biased=False)."
        reject("operator", operator, "the closed form is for plain attention without biases", cure)
    if cloud.measure.log_mass is not None or cloud.measure.log_own is not None:
        reject("cloud", "masses differ", "the closed form is for tokens of equal mass", "Use autograd.")
