import math

import pytest
import torch
from jaxtyping import TypeCheckError

from continua.operators import (
    Attention,
    Damping,
    FeedForward,
    LayerNorm,
    PreNorm,
    Sum,
    draw_theta,
    leaves,
    linear,
    map_leaves,
    rebuild,
)
from registries import all_operators

OPERATOR = Sum((PreNorm(LayerNorm(), FeedForward(hidden=3)), Damping(0.1)))


def test_leaves_are_named_by_their_path():
    names = [name for name, _ in leaves(OPERATOR.spec(4))]
    assert names == [f"0.{part}" for part in ("norm.gain", "norm.bias", "inner.w1", "inner.w2", "inner.b1", "inner.b2")]


@pytest.mark.parametrize("case", all_operators, ids=repr)
def test_theta_keeps_the_form_of_its_specification(case):
    spec = case.operator.spec(6)
    theta = draw_theta(spec, torch.Generator().manual_seed(0))
    assert type(theta) is type(spec)
    assert {n: tuple(v.shape) for n, v in leaves(theta)} == {n: s.shape for n, s in leaves(spec)}
    assert sum(math.prod(s.shape) for _, s in leaves(theta)) == sum(math.prod(s.shape) for _, s in leaves(spec))
    again = rebuild(spec, dict(leaves(theta)))
    assert all(a is b for (_, a), (_, b) in zip(leaves(again), leaves(theta), strict=True))
    doubled = map_leaves(lambda leaf: 2 * leaf, theta)
    assert all(torch.equal(b, 2 * a) for (_, a), (_, b) in zip(leaves(theta), leaves(doubled), strict=True))


@pytest.mark.parametrize("case", all_operators, ids=repr)
def test_the_generator_decides_the_initial_values(case):
    spec = case.operator.spec(6)
    first, second = (draw_theta(spec, torch.Generator().manual_seed(4)) for _ in range(2))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(first), leaves(second), strict=True))


def test_initial_kernels_keep_the_variance_of_their_input():
    theta = draw_theta(Attention(heads=8, key_size=32).spec(256), torch.Generator().manual_seed(0))
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    for kernel in (theta.q, theta.k, theta.v):
        assert float((x @ kernel.flatten(0, 1).T).var()) == pytest.approx(1.0, abs=0.05)
    assert float((x @ theta.o.flatten(0, 1)).var()) == pytest.approx(1.0, abs=0.05)
    assert bool((theta.bo == 0).all()) and bool((theta.bq == 0).all())


def test_linear_with_one_matrix_for_each_sequence():
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((2, 3, 4), (2, 5, 4), (2, 5)))
    for bias in (None, b):
        expected = [torch.nn.functional.linear(x[i], w[i], None if bias is None else bias[i]) for i in range(2)]
        torch.testing.assert_close(linear(x, w, bias), torch.stack(expected))


def test_shapes_are_checked_in_the_tests():
    """A bias for each sequence beside one matrix for all would be broadcast over tokens."""
    with pytest.raises(TypeCheckError):
        linear(torch.zeros(3, 3, 4), torch.zeros(5, 4), torch.zeros(3, 5))
