"""Every field x operator x kernel: the velocity is differentiable in the field's parameters and the tokens."""

import dataclasses

import pytest
import torch

from continua.operators import AbstractOperator, Attention, Binding, Dense, FeedForward, LayerNorm, PostNorm, PreNorm
from continua.spaces import Cloud
from registries import all_fields, all_head_fields, all_kernels

WIDTH = 6


def normed(kernel) -> LayerNorm:
    return LayerNorm() if isinstance(kernel, Dense) else LayerNorm(axis=kernel.axis)


def rigid(kernel) -> bool:
    return getattr(kernel, "orthonormal", False) or getattr(kernel, "unitary", False)


OPERATORS = {
    "attention": lambda kernel: Attention(heads=2, key_size=2, kernel=kernel),
    "causal attention": lambda kernel: Attention(heads=2, key_size=2, value_size=1, causal=True, kernel=kernel),
    "measured attention": lambda kernel: Attention(heads=2, key_size=1, head_masses=True, kernel=kernel),
    "feed-forward": lambda kernel: FeedForward(hidden=2, kernel=kernel),
    "pre-norm": lambda kernel: PreNorm(normed(kernel), FeedForward(hidden=2, kernel=kernel)),
    "post-norm": lambda kernel: PostNorm(
        normed(kernel), Attention(heads=2, key_size=1, head_masses=True, kernel=kernel)
    ),
}
MEASURED = ("measured attention", "post-norm")
FREE = [kernel for kernel in all_kernels if not rigid(kernel)]
GENERATED = [name for name in (*all_fields, *all_head_fields) if "ypernetwork" in name]
"""Fields that would add two kernels of a manifold."""


def fields_for(kernel, name: str) -> dict:
    serving = {**all_fields, **(all_head_fields if name in MEASURED else {})}
    return {field: make for field, make in serving.items() if not rigid(kernel) or field not in GENERATED}


PAIRS = [
    pytest.param(operator(kernel), fields_for(kernel, name), id=f"{name}-{kernel}")
    for kernel in all_kernels
    for name, operator in OPERATORS.items()
]


def cloud(points: torch.Tensor) -> Cloud:
    mass = torch.tensor([[0.5, 1.0, 0.7]], dtype=torch.float64)
    return Cloud(points, mass, torch.tensor([[0.1, 0.4, 0.9]], dtype=torch.float64))


@pytest.mark.parametrize(("operator", "fields"), PAIRS)
def test_gradients_reach_parameters_and_tokens(operator: AbstractOperator, fields, unchecked):
    for name, make in fields.items():
        assert differentiable(make, operator), name


def differentiable(make, operator: AbstractOperator) -> bool:
    """Whether the derivatives by tokens and parameters are those of finite differences.

    All parameters are one vector: two evaluations then serve them all. A direction has less of each than of one alone,
    so the tolerances are a hundredth of the usual ones.
    """
    generator = torch.Generator().manual_seed(0)
    field = make(operator.spec(WIDTH), generator).double()
    names, parameters = zip(*field.named_parameters(), strict=True)
    points = torch.randn(1, 3, WIDTH, generator=generator, dtype=torch.float64)
    bound = operator.bind(Binding(cloud(points), cloud(points)))
    sizes = [p.numel() for p in parameters]

    def velocity(x, flat):
        given = [part.view_as(p) for part, p in zip(flat.split(sizes), parameters, strict=True)]
        theta = torch.func.functional_call(field, dict(zip(names, given, strict=True)), (0.7,))
        return bound.velocity(theta, cloud(x))

    flat = torch.cat([p.detach().flatten() for p in parameters])
    flat = flat + 0.1 * torch.randn(flat.shape, generator=generator, dtype=torch.float64)
    inputs = (points.requires_grad_(), flat.requires_grad_())
    return torch.autograd.gradcheck(velocity, inputs, fast_mode=True, atol=1e-7, rtol=1e-5)


def test_the_product_is_complete():
    """Every field that may serve, every kernel, attention and feed-forward, bare and normed."""
    free = len(all_fields) * len(OPERATORS) + len(all_head_fields) * len(MEASURED)
    refused = sum(name in all_fields for name in GENERATED) * len(OPERATORS)
    refused += sum(name in all_head_fields for name in GENERATED) * len(MEASURED)
    assert len(GENERATED) == 4
    tried = sum(len(case.values[1]) for case in PAIRS)
    assert tried == len(FREE) * free + (len(all_kernels) - len(FREE)) * (free - refused)
    assert {type(case.values[0]) for case in PAIRS} == {Attention, FeedForward, PreNorm, PostNorm}
    assert all(dataclasses.is_dataclass(case.values[0]) for case in PAIRS)


@pytest.mark.parametrize("kernel", [kernel for kernel in all_kernels if rigid(kernel)], ids=str)
@pytest.mark.parametrize("field", GENERATED)
def test_fields_that_add_kernels_refuse_those_of_a_manifold(field, kernel):
    operator = Attention(heads=2, key_size=1, head_masses=True, kernel=kernel)
    with pytest.raises(ValueError, match="Use Expansion or ContinuousHeads"):
        {**all_fields, **all_head_fields}[field](operator.spec(WIDTH), None)
