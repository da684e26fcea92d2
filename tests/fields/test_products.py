"""Every field x operator x kernel: the velocity is differentiable in the field's parameters and the tokens."""

import dataclasses

import pytest
import torch

from continua.operators import AbstractOperator, Attention, Context, Dense, FeedForward, LayerNorm, PostNorm, PreNorm
from continua.spaces import Cloud
from registries import all_fields, all_head_fields, all_kernels

WIDTH = 6


def normed(kernel) -> LayerNorm:
    return LayerNorm() if isinstance(kernel, Dense) else LayerNorm(axis=kernel.axis)


OPERATORS = {
    "attention": lambda kernel: Attention(heads=2, key=2, kernel=kernel),
    "causal attention": lambda kernel: Attention(heads=2, key=2, value=1, causal=True, kernel=kernel),
    "measured attention": lambda kernel: Attention(heads=2, key=1, measured=True, kernel=kernel),
    "feed-forward": lambda kernel: FeedForward(hidden=2, kernel=kernel),
    "pre-norm": lambda kernel: PreNorm(normed(kernel), FeedForward(hidden=2, kernel=kernel)),
    "post-norm": lambda kernel: PostNorm(normed(kernel), Attention(heads=2, key=1, measured=True, kernel=kernel)),
}
MEASURED = ("measured attention", "post-norm")
TRIPLES = [
    pytest.param(make, operator(kernel), id=f"{field}-{name}-{kernel}")
    for kernel in all_kernels
    for name, operator in OPERATORS.items()
    for field, make in {**all_fields, **(all_head_fields if name in MEASURED else {})}.items()
]


def cloud(points: torch.Tensor) -> Cloud:
    mass = torch.tensor([[0.5, 1.0, 0.7]], dtype=torch.float64)
    return Cloud(points, mass, torch.tensor([[0.1, 0.4, 0.9]], dtype=torch.float64))


@pytest.mark.parametrize(("make", "operator"), TRIPLES)
def test_gradients_reach_parameters_and_tokens(make, operator: AbstractOperator, unchecked):
    generator = torch.Generator().manual_seed(0)
    field = make(operator.spec(WIDTH), generator).double()
    names, parameters = zip(*field.named_parameters(), strict=True)
    points = torch.randn(1, 3, WIDTH, generator=generator, dtype=torch.float64)
    bound = operator.bind(Context(cloud(points), cloud(points)))

    def velocity(x, *given):
        theta = torch.func.functional_call(field, dict(zip(names, given, strict=True)), (0.7,))
        return bound.velocity(theta, cloud(x))

    moved = [p.detach() + 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    inputs = (points.requires_grad_(), *(p.requires_grad_() for p in moved))
    assert torch.autograd.gradcheck(velocity, inputs, fast_mode=True)


def test_the_product_is_complete():
    """Every field that may serve, every kernel, attention and feed-forward, bare and normed."""
    plain = len(all_fields) * len(all_kernels) * len(OPERATORS)
    assert len(TRIPLES) == plain + len(all_head_fields) * len(all_kernels) * len(MEASURED)
    assert {type(case.values[1]) for case in TRIPLES} == {Attention, FeedForward, PreNorm, PostNorm}
    assert all(dataclasses.is_dataclass(case.values[1]) for case in TRIPLES)
