"""Closed forms of attention's derivatives against autograd, and bounds that they obey."""

import math

import pytest
import torch

from continua.lab.derivatives import Tilted, pullback, radial, radial_slope, wasserstein_bound
from continua.operators import Attention, AttentionTheta, Exact
from continua.spaces import Cloud


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(batch, count, key, width, value=None):
    lead = () if batch is None else (batch,)
    sizes = (key, key, value or key, value or key)
    q, k, v, o = (normal(*lead, count, size, width, seed=10 + i) for i, size in enumerate(sizes))
    return AttentionTheta(q, k, v, o, p=torch.full((*lead, count), 1.0 / count, dtype=torch.float64))


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("value", [None, 2])
def test_the_pullback_is_the_gradient_of_autograd(batch, value):
    operator = Attention(5, 4, value, beta=1.3, biased=False, head_masses=True)
    theta = heads(batch, 5, 4, 6, value)
    x, p = normal(3, 7, 6, seed=1).requires_grad_(), normal(3, 7, 6, seed=2)
    tracked = AttentionTheta(*(w.clone().requires_grad_() for w in theta[:4]), p=theta.p)
    pairing = (p * operator.velocity(tracked, Cloud(x))).sum() / 7
    wanted = torch.autograd.grad(pairing, (x, *tracked[:4]))
    found = pullback(operator, theta, Cloud(x.detach()), p)
    torch.testing.assert_close(found.points, 7 * wanted[0], rtol=1e-12, atol=1e-12)
    for gradient, cotangent in zip(found.theta[:4], wanted[1:], strict=True):
        own = gradient if batch else gradient.sum(0)  # shared parameters collect from every sequence
        torch.testing.assert_close(own, 5 * cotangent, rtol=1e-11, atol=1e-12)


def test_the_pullback_refuses_what_it_does_not_know():
    theta, cloud, p = heads(None, 2, 2, 2), Cloud(normal(1, 3, 2)), normal(1, 3, 2)
    with pytest.raises(ValueError, match="operator"):
        pullback(Attention(2, 2, biased=False, head_masses=True, causal=True), theta, cloud, p)
    uneven = Cloud(cloud.points, torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match="masses"):
        pullback(Attention(2, 2, biased=False, head_masses=True), theta, uneven, p)


def gamma(q, x, beta, mass=None):
    eye = torch.eye(x.shape[-1], dtype=torch.float64)[None]
    theta = AttentionTheta(eye, eye, eye, eye)
    operator = Attention(1, x.shape[-1], beta=beta, biased=False, integral=Exact(materialised=True))
    return operator.velocity(theta, Cloud(q), Cloud(x, mass))


@pytest.mark.parametrize("mass", [None, torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)])
def test_the_tilted_measure_is_that_of_attention(mass):
    x, q = normal(1, 4, 3), normal(1, 2, 3, seed=1)
    tilted = Tilted(Cloud(x, mass), q, 0.7)
    torch.testing.assert_close(tilted.mean, gamma(q, x, 0.7, mass), rtol=1e-13, atol=1e-13)
    slope = torch.autograd.functional.jacobian(lambda q: gamma(q, x, 0.7, mass)[0, 1], q)[:, 0, 1]
    torch.testing.assert_close(tilted.slope[0, 1], slope, rtol=1e-12, atol=1e-13)
    weights = torch.full((4,), 0.25, dtype=torch.float64) if mass is None else mass[0]
    jacobian = torch.autograd.functional.jacobian(lambda x: gamma(q, x, 0.7, mass)[0, 0], x)[:, 0]
    lions = jacobian.transpose(0, 1) / weights[:, None, None]
    torch.testing.assert_close(tilted.lions(x)[0, 0], lions, rtol=1e-12, atol=1e-13)


def test_the_radial_projection_and_its_derivative():
    x = torch.cat([0.1 * normal(5, 3), 5.0 * normal(5, 3, seed=1)])
    drawn = radial(x, 1.0)
    assert float(drawn.norm(dim=-1).max()) <= 1.0 + 1e-15
    torch.testing.assert_close(drawn[:5], x[:5], rtol=0, atol=0)
    jacobian = torch.stack([torch.autograd.functional.jacobian(lambda v: radial(v, 1.0), row) for row in x])
    torch.testing.assert_close(radial_slope(x, 1.0), jacobian, rtol=1e-13, atol=1e-14)


def test_the_wasserstein_bound_has_no_exponential_at_infinity():
    assert wasserstein_bound(1.0, 2.0, 3.0) == 13.0
    assert wasserstein_bound(1.0, 2.0, 3.0, 2.0) == pytest.approx(13.0 * math.exp(6.0))
    with pytest.raises(ValueError, match=r"p = 0\.5"):
        wasserstein_bound(1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize("biased", [False, True])
def test_the_lipschitz_bound_of_the_operator_is_kept(biased):
    operator = Attention(3, 4, beta=0.8, biased=biased, head_masses=True)
    theta = heads(None, 3, 4, 4)
    if biased:
        theta = theta._replace(bq=normal(3, 4, seed=5), bk=normal(3, 4, seed=6), bv=normal(3, 4, seed=7))
        theta = theta._replace(bo=normal(4, seed=8))
    bound = float(operator.lipschitz_bound(theta, 1.5))
    x = radial(normal(200, 5, 4, seed=3), 1.5)
    y = radial(x + 0.1 * normal(200, 5, 4, seed=4), 1.5)
    change = operator.velocity(theta, Cloud(x)) - operator.velocity(theta, Cloud(y))
    ratio = change.norm(dim=-1).amax(-1) / (x - y).norm(dim=-1).amax(-1)
    assert 0.02 * bound < float(ratio.max()) <= bound


def test_the_lipschitz_bound_refuses_causal_attention_and_empty_balls():
    theta = heads(None, 2, 2, 2)
    with pytest.raises(ValueError, match="plain attention"):
        Attention(2, 2, causal=True, biased=False, head_masses=True).lipschitz_bound(theta, 1.0)
    with pytest.raises(ValueError, match="radius"):
        Attention(2, 2, biased=False, head_masses=True).lipschitz_bound(theta, 0.0)
