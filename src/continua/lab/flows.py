"""Flows that the experiments share, built from the project's own attention, fields and solver."""

from collections.abc import Sequence
from typing import TypeAlias

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import AbstractTokenIntegral, Attention, AttentionTheta, Exact
from continua.solve import (
    AbstractController,
    AbstractStepper,
    Adaptive,
    Direct,
    DormandPrince,
    Projected,
    Solution,
    integrate,
)
from continua.spaces import Cloud, Sphere

Queries: TypeAlias = Float[Tensor, "batch queries width"]


def attention_flow(operator: Attention, theta: AttentionTheta, depth: float = 1.0) -> Flow:
    """dx/dz = A(x, mu, nu) with one theta at all depths, in float64."""
    field = Constant(operator.spec(theta.q.shape[-1])).double().fill(theta)
    return Flow([Part(operator, field)], depth).double().eval().requires_grad_(False)


def identity_theta(width: int) -> AttentionTheta:
    """One head with Q = K = V = O = I."""
    eye = torch.eye(width, dtype=torch.float64)[None]
    return AttentionTheta(eye, eye, eye, eye)


def softmax_mean(q: Queries, cloud: Cloud, beta: float, integral: AbstractTokenIntegral = Exact()) -> Queries:
    """Gamma(q, mu) = int y e^{beta <q, y>} dmu(y) / int e^{beta <q, y>} dmu(y), by the project's attention."""
    width = q.shape[-1]
    operator, theta = Attention(1, width, beta=beta, biased=False, integral=integral), identity_theta(width)
    return operator.velocity(theta, Cloud(q), cloud)


def solve_flow(
    flow: Flow, cloud: Cloud, stepper: AbstractStepper, controller: AbstractController, save_at: Sequence[float] = ()
) -> Solution:
    """The flow from depth 0 to its end; gradients, where they are wanted, pass through every step."""
    bound = flow.bind(cloud)
    return integrate(bound, bound.initial(), (0.0, flow.depth), stepper, controller, Direct(), save_at)


@torch.no_grad()
def on_sphere(
    points: Points, beta: float, depth: float, save_at: Sequence[float] = (), rtol: float = 1e-11
) -> Solution:
    """Tokens on the unit sphere under attention with Q = K = V = I: the tangential flow, by projected steps."""
    width = points.shape[-1]
    flow = attention_flow(Attention(heads=1, key_size=width, beta=beta, biased=False), identity_theta(width), depth)
    # n orthonormal tokens have n entries each, of which all but one begin at zero: the absolute tolerance judges them.
    controller = Adaptive(rtol=rtol, atol=rtol / width, max_steps=1_000_000)
    return solve_flow(flow, Cloud(points), Projected(DormandPrince(), Sphere(), tangent=True), controller, save_at)


def random_theta(heads: int, key: int, width: int, scale: float, seed: int) -> AttentionTheta:
    """Heads with mass 1/heads whose four matrices have Frobenius norm `scale`, in random directions."""
    generator = generator_of(seed)
    q, k, v, o = (torch.randn(heads, key, width, generator=generator, dtype=torch.float64) for _ in "qkvo")
    q, k, v, o = (scale * w / w.flatten(1).norm(dim=-1)[:, None, None] for w in (q, k, v, o))
    return AttentionTheta(q, k, v, o, p=torch.full((heads,), 1.0 / heads, dtype=torch.float64))


def in_ball(shape: Sequence[int], radius: float, seed: int) -> Tensor:
    """Points uniform in the ball of R^width, width being the last size."""
    generator = generator_of(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    r = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) ** (1.0 / shape[-1])
    return radius * r * x / x.norm(dim=-1, keepdim=True)
