"""What fields cost, and what their size does to the velocity."""

from typing import NamedTuple

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continua.fields import AbstractField, Constant, ContinuousHeads, Expansion, Hypernetwork, PiecewiseConstant
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Sum
from continua.spaces import BSpline, Chebyshev, Cloud, Cosine, Fourier, Legendre
from references import count_numbers

WIDTH, HIDDEN = 24, 32
OPERATOR = Sum((PreNorm(LayerNorm(), Attention(4, 6)), PreNorm(LayerNorm(), FeedForward(HIDDEN))))
SPEC = OPERATOR.spec(WIDTH)
NUMBERS = count_numbers(SPEC)


class FieldCost(NamedTuple):
    """Trained numbers, numbers of theta(z) at one depth, and additions and multiplications to make it once."""

    parameters: int
    per_depth: int
    flops: int


def cost(field: AbstractField) -> FieldCost:
    with FlopCounterMode(display=False) as counter:
        field(torch.zeros(1))
    return FieldCost(sum(p.numel() for p in field.parameters()), count_numbers(field.spec), counter.get_total_flops())


def test_fields_that_only_look_up_cost_no_arithmetic():
    assert cost(Constant(SPEC)) == FieldCost(NUMBERS, NUMBERS, 0)
    assert cost(PiecewiseConstant.layers(SPEC, 3)) == FieldCost(3 * NUMBERS, NUMBERS, 0)


@pytest.mark.parametrize("modes", [1, 4, 8])
def test_an_expansion_costs_one_product_with_its_modes(modes):
    assert cost(Expansion(SPEC, Legendre(modes))) == FieldCost(modes * NUMBERS, NUMBERS, 2 * modes * NUMBERS)


def test_low_rank_makes_a_hypernetwork_cheaper():
    full, low = cost(Hypernetwork(SPEC, hidden=8)), cost(Hypernetwork(SPEC, hidden=8, rank=1))
    trunk = 9 * 8 + 8 * 8
    assert full == FieldCost(NUMBERS + trunk + 16 + 8 * NUMBERS, NUMBERS, 2 * (trunk + 8 * NUMBERS))
    assert low.parameters < full.parameters / 2 and low.flops < full.flops and low.per_depth == NUMBERS


def test_the_cost_of_heads_grows_with_their_nodes():
    field = ContinuousHeads(Attention(4, 6, head_masses=True).spec(WIDTH))
    few, many = cost(field), cost(field.at_nodes(8))
    assert few.parameters == many.parameters and few.flops < many.flops
    assert many.per_depth == count_numbers(Attention(8, 6, head_masses=True).spec(WIDTH))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda n, g: Expansion(SPEC, Legendre(n), generator=g), id="Legendre"),
        pytest.param(lambda n, g: Expansion(SPEC, Chebyshev(n), generator=g), id="Chebyshev"),
        pytest.param(lambda n, g: Expansion(SPEC, Cosine(n), generator=g), id="Cosine"),
        pytest.param(lambda n, g: Expansion(SPEC, Fourier(n), generator=g), id="Fourier"),
        pytest.param(lambda n, g: Expansion(SPEC, BSpline(n, 0), generator=g), id="steps"),
        pytest.param(lambda n, g: Expansion(SPEC, BSpline(n, min(n - 1, 3)), generator=g), id="BSpline"),
        pytest.param(lambda n, g: Hypernetwork(SPEC, frequencies=n, generator=g), id="network, frequencies"),
        pytest.param(lambda n, g: Hypernetwork(SPEC, hidden=n, rank=2, generator=g), id="network, hidden"),
    ],
)
def test_the_velocity_is_of_order_one_whatever_the_number_of_modes(make):
    generator = torch.Generator().manual_seed(0)
    cloud = Cloud(torch.randn(4, 8, WIDTH, generator=generator))
    sizes = []
    with torch.no_grad():
        for modes in (1, 2, 4, 8, 16, 32):
            field = make(modes, generator)
            velocities = [OPERATOR.velocity(field((i + 0.5) / 16), cloud) for i in range(16)]
            sizes.append(float(torch.stack(velocities).square().mean().sqrt()))
    assert min(sizes) > 0.4 and max(sizes) < 2.5 and max(sizes) / min(sizes) < 1.8, sizes
