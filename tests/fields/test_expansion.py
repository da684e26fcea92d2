import itertools
import math
from dataclasses import dataclass
from typing import final

import pytest
import torch

from continua.fields import Expansion
from continua.operators import FeedForward, LayerNorm, PreNorm, leaves
from continua.spaces import AbstractBasis, Chebyshev, Cosine, GaussLegendre, Legendre, ScaledBasis

SPEC = FeedForward(hidden=3).spec(4)


@final
@dataclass(frozen=True)
class Steps(AbstractBasis):
    """One on [k/size, (k + 1)/size), zero elsewhere: a basis that jumps."""

    @property
    def breaks(self) -> tuple[float, ...]:
        return tuple(k / self.size for k in range(1, self.size))

    def _terms(self, z):
        edges = (-math.inf, *self.breaks, math.inf)
        cells = [(z >= a, z < b) for a, b in itertools.pairwise(edges)]
        if isinstance(z, torch.Tensor):
            return [(low & high).to(z.dtype) for low, high in cells]
        return [float(low and high) for low, high in cells]


def damped(modes):
    return ScaledBasis(Legendre(modes), 0.3)


@pytest.mark.parametrize("basis", [Legendre(4), Chebyshev(4), Cosine(4), damped(4)], ids=repr)
def test_theta_is_the_sum_over_the_modes(basis):
    field = Expansion(SPEC, basis, depth=2.5)
    for z in (0.0, 0.8, 2.5):
        phi = basis.evaluate(z / 2.5)
        for name, leaf in leaves(field(z)):
            expected = sum(b * c for b, c in zip(phi, field.coefficients[name], strict=True))
            torch.testing.assert_close(leaf, expected)


@pytest.mark.parametrize("kind", [Legendre, Chebyshev, Cosine, damped])
@pytest.mark.parametrize("modes", [1, 4, 16, 64])
def test_initial_variance_does_not_depend_on_the_number_of_modes(kind, modes):
    side = 160
    generator = torch.Generator().manual_seed(0)
    field = Expansion(FeedForward(hidden=side, biased=False).spec(side), kind(modes), 3.0, generator)
    nodes, weights = GaussLegendre().nodes(160)
    with torch.no_grad():
        squares = [field(3.0 * z).w1.square().mean().item() * side for z in nodes.tolist()]
    # The mean of at least 25,600 squares of normal numbers: four standard deviations are 4 sqrt(2)/160 = 0.035.
    assert sum(s * w for s, w in zip(squares, weights.tolist(), strict=True)) == pytest.approx(1.0, abs=0.035)


def test_coefficients_are_of_one_size_and_the_basis_says_how_rough_theta_is():
    side = 160
    spec = FeedForward(hidden=side, biased=False).spec(side)
    coefficients = Expansion(spec, damped(3), generator=torch.Generator().manual_seed(0)).coefficients["w1"]
    sizes = coefficients.detach().square().mean((1, 2)) * side
    # the functions of the basis have the mean square one together; the mean of 25,600 squares of normal numbers: four
    # standard deviations are 4 sqrt(2)/160 of it
    torch.testing.assert_close(sizes, torch.ones(3), rtol=0.035, atol=0.0)


def test_a_gain_is_constant_in_a_basis_without_the_constant_function():
    """The sum of all steps is one, and no step alone is."""
    field = Expansion(LayerNorm().spec(4), Steps(5))
    torch.testing.assert_close(field(0.33).gain, torch.ones(4))


def test_a_basis_that_jumps_is_read_from_the_side_of_the_step():
    field = Expansion(SPEC, Steps(3), depth=0.7)
    pieces = [field.coefficients["w1"][k] for k in range(3)]
    assert field.breaks == pytest.approx((0.7 / 3, 1.4 / 3))
    for k, z in enumerate(field.breaks):
        torch.testing.assert_close(field(z, z - 0.05).w1, pieces[k], rtol=0, atol=0)
        torch.testing.assert_close(field(z, z + 0.05).w1, pieces[k + 1], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_depths_of_their_own_are_read_from_their_own_sides(dtype):
    field = Expansion(SPEC, Steps(3), depth=0.7).to(dtype)
    z = torch.tensor(field.breaks, dtype=torch.float64).repeat(2)
    inside = z + torch.tensor([-0.05, -0.05, 0.05, 0.05], dtype=torch.float64)
    assert torch.equal(field(z, inside).w1, field.coefficients["w1"][torch.tensor([0, 1, 1, 2])])
    assert torch.equal(field(z.float(), inside.float()).w1, field.coefficients["w1"][torch.tensor([0, 1, 1, 2])])


def test_depth_is_differentiable():
    field = Expansion(SPEC, Legendre(4), depth=2.0).double()
    z = torch.tensor([0.3, 1.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: field(z).w1, (z,))


@pytest.mark.parametrize("depth", [0.0, -1.0, math.nan, math.inf])
def test_bad_depth_is_named(depth):
    with pytest.raises(ValueError, match=rf"depth = {depth}: .*Pass depth > 0"):
        Expansion(SPEC, Legendre(2), depth)


def test_a_depth_beyond_the_field_is_named():
    with pytest.raises(ValueError, match=r"z = 3\.0: this field goes from depth 0 to 2\. Pass a depth within"):
        Expansion(SPEC, Legendre(2), 2.0)(3.0)


def test_one_seed_gives_the_same_bits_every_time(unchecked):
    spec = PreNorm(LayerNorm(), FeedForward(3)).spec(4)
    built = [Expansion(spec, Chebyshev(5), generator=torch.Generator().manual_seed(0)) for _ in range(200)]
    first = list(built[0].parameters())
    assert all(torch.equal(a, b) for field in built[1:] for a, b in zip(first, field.parameters(), strict=True))
