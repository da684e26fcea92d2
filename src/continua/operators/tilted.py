"""The tilted measure of attention and its derivatives, in closed form.

    Gamma(q, mu) = int y e^{beta<q,y>} dmu / Z ,   Z = int e^{beta<q,y>} dmu
    D_q Gamma(q, mu) = beta Cov ,   d_mu Gamma(q, mu)(v) = (e^{beta<q,Pv>}/Z) [ I + beta (Pv - Gamma) q^T ] DP(v)

with Cov the covariance of the tilted measure and P the radial projection on a ball (docs/mathematics.md, section 8;
arXiv 2605.11059, Lemmas 10 and 11).
"""

import dataclasses
import math
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
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
        logits = self.beta * self.queries @ self._drawn.mT
        log_mass = self.cloud.measure.log_mass
        return torch.softmax(logits if log_mass is None else logits + log_mass[:, None, :], -1)

    @property
    def mean(self) -> Float[Tensor, "batch queries width"]:
        """Gamma(q, mu)."""
        return self.weights @ self._drawn

    @property
    def slope(self) -> Float[Tensor, "batch queries width width"]:
        """D_q Gamma = beta Cov, of norm at most beta R^2."""
        away = self._drawn[:, None] - self.mean[:, :, None]  # (batch queries tokens width)
        return self.beta * torch.einsum("bqt,bqti,bqtj->bqij", self.weights, away, away)

    def lions(self, v: Float[Tensor, "batch asked width"]) -> Float[Tensor, "batch queries asked width width"]:
        """d_mu Gamma(q, mu)(v) at any points v: how Gamma changes when mass at v moves, for each unit of mass."""
        drawn = radial(v, self.radius)
        top = self.beta * self.queries @ self._drawn.mT
        mass = self.cloud.measure.weights()
        shift = top.amax(-1, keepdim=True)
        rises = (top - shift).exp()
        Z = rises.mean(-1) if mass is None else (rises * mass[:, None, :]).sum(-1)
        density = (self.beta * self.queries @ drawn.mT - shift).exp() / Z[..., None]  # (batch queries asked)
        away = drawn[:, None] - self.mean[:, :, None]  # (batch queries asked width)
        eye = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        core = eye + self.beta * away[..., :, None] * self.queries[:, :, None, None, :]
        return density[..., None, None] * core @ radial_slope(v, self.radius)[:, None]

    @property
    def _drawn(self) -> Points:
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
