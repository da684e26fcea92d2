"""Flows that the experiments share, built from the project's own attention, fields and solver."""

from collections.abc import Sequence

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import Attention, AttentionTheta
from continua.solve import Adaptive, Direct, DormandPrince, Projected, Solution, integrate
from continua.spaces import Cloud, Sphere


def attention_flow(operator: Attention, theta: AttentionTheta, depth: float = 1.0) -> Flow:
    """dx/dz = A(x, mu, nu) with one theta at all depths, in float64."""
    field = Constant(operator.spec(theta.q.shape[-1])).double().fill(theta)
    return Flow([Part(operator, field)], depth).double().eval().requires_grad_(False)


def identity_theta(width: int) -> AttentionTheta:
    """One head with Q = K = V = O = I."""
    eye = torch.eye(width, dtype=torch.float64)[None]
    return AttentionTheta(eye, eye, eye, eye)


def identity_flow(width: int, beta: float, depth: float) -> Flow:
    """dx_i/dz = sum_j softmax_j(beta <x_i, x_j>) x_j."""
    operator = Attention(heads=1, key=width, beta=beta, biased=False)
    return attention_flow(operator, identity_theta(width), depth)


def on_sphere(points: Points, beta: float, depth: float, at: Sequence[float] = (), rtol: float = 1e-11) -> Solution:
    """Tokens on the unit sphere under attention with Q = K = V = I: the tangential flow, by projected steps."""
    flow = identity_flow(points.shape[-1], beta, depth)
    method = Projected(DormandPrince(), Sphere(), tangent=True)
    # n orthonormal tokens have n entries each, of which all but one begin at zero.
    control = Adaptive(rtol=rtol, atol=rtol / points.shape[-1], max_steps=1_000_000)
    bound = flow.bind(Cloud(points))
    with torch.no_grad():
        return integrate(bound, bound.initial(), (0.0, depth), method, control, Direct(), at)


def random_theta(heads: int, key: int, width: int, scale: float, seed: int) -> AttentionTheta:
    """Heads with mass 1/heads whose four matrices have Frobenius norm `scale`, in random directions."""
    generator = generator_of(seed)
    q, k, v, o = (
        _normed(torch.randn(heads, key, width, generator=generator, dtype=torch.float64), scale) for _ in "qkvo"
    )
    return AttentionTheta(q, k, v, o, p=torch.full((heads,), 1.0 / heads, dtype=torch.float64))


def in_ball(shape: Sequence[int], radius: float, seed: int) -> Tensor:
    """Points uniform in the ball of R^width, width being the last size."""
    generator = generator_of(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    r = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) ** (1.0 / shape[-1])
    return radius * r * x / x.norm(dim=-1, keepdim=True)


def _normed(w: Float[Tensor, "heads key width"], scale: float) -> Float[Tensor, "heads key width"]:
    return scale * w / w.flatten(1).norm(dim=-1)[:, None, None]
