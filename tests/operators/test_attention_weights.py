"""The weights that attention shows are those it uses: softmax by hand, torch's own, and the velocity itself."""

import math

import pytest
import torch

from continua.operators import (
    Attention,
    Binding,
    Cross,
    Dropout,
    FeedForward,
    LayerNorm,
    PreNorm,
    Rotary,
    Subset,
    Sum,
    attention_weights,
    draw_theta,
)
from continua.spaces import Cloud


@pytest.fixture(autouse=True)
def double(float64): ...


def theta_of(operator, width=8):
    return draw_theta(operator.spec(width), torch.Generator().manual_seed(0))


def alphas(*given):
    return [found.weights for found in attention_weights(*given)]


def points(tokens=6, width=8, batch=2):
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_the_softmax_written_out(causal):
    operator, x = Attention(2, 4, causal=causal), points()
    mass = torch.rand(2, 6, generator=torch.Generator().manual_seed(2)) + 0.1
    times = torch.linspace(0, 1, 6).expand(2, 6)
    theta = theta_of(operator)
    (alpha,) = alphas(operator, theta, Cloud(x, mass, times))
    for b in range(2):
        for h in range(2):
            for i in range(6):
                q = theta.q[h] @ x[b, i] + theta.bq[h]
                seen = range(i + 1) if causal else range(6)
                tilt = [mass[b, j] * math.exp(float(q @ (theta.k[h] @ x[b, j] + theta.bk[h])) / 2.0) for j in seen]
                wanted = [float(t / sum(tilt)) for t in tilt] + [0.0] * (6 - len(tilt))
                torch.testing.assert_close(alpha[b, h, i], torch.tensor(wanted))


def test_weights_are_those_of_torchs_own_attention():
    torch.manual_seed(0)
    theirs, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), points()
    q, k, v = theirs.in_proj_weight.detach().view(3, 2, 4, 8)
    bq, bk, bv = torch.randn(3, 2, 4)
    theirs.in_proj_bias.data.copy_(torch.stack([bq, bk, bv]).flatten())
    operator = Attention(2, 4)
    theta = theta_of(operator)._replace(q=q, k=k, v=v, bq=bq, bk=bk, bv=bv)
    (alpha,) = alphas(operator, theta, Cloud(x))
    torch.testing.assert_close(alpha, theirs(x, x, x, average_attn_weights=False)[1].detach())


@pytest.mark.parametrize(
    ("operator", "count"),
    [
        (PreNorm(LayerNorm(), Attention(2, 4, rotary=Rotary(1.0, 0.1))), 1),
        (Dropout(Sum((Attention(2, 4), FeedForward(16), Attention(4, 2, causal=True))), 0.5), 2),
        (FeedForward(16), 0),
        (Attention(2, 4, integral=Subset(3)), 1),
    ],
    ids=["rotary below a norm", "inside a sum", "no attention", "an estimate"],
)
def test_every_attention_inside_is_found_and_rows_sum_to_one(operator, count):
    cloud = Cloud(points(), positions=torch.linspace(0, 1, 6).expand(2, 6))
    found = alphas(operator, theta_of(operator), cloud)
    assert len(found) == count
    for alpha in found:
        torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))


def test_the_velocity_is_the_mean_under_the_weights():
    operator, x = Attention(2, 4, biased=False), points()
    theta = theta_of(operator)
    (alpha,) = alphas(operator, theta, Cloud(x))
    v = torch.einsum("hvd,btd->bhtv", theta.v, x)
    by_hand = torch.einsum("bhij,bhjv,hvd->bid", alpha, v, theta.o)
    torch.testing.assert_close(by_hand, operator.bind(Binding(Cloud(x))).velocity(theta, Cloud(x)))


def test_absent_tokens_get_no_weight_and_cross_attention_reads_its_memory():
    operator = Cross(Attention(2, 4))
    mass = torch.tensor([[1.0, 1.0, 0.5, 0.0]]).expand(2, 4)
    (alpha,) = alphas(operator, theta_of(operator), Cloud(points()), Cloud(points(4), mass))
    assert alpha.shape == (2, 2, 6, 4) and bool((alpha[..., 3] == 0).all()) and bool((alpha[..., :3] > 0).all())
