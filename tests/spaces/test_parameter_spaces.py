"""Laws of the spaces that parameters live in; joining `all_parameter_spaces` means facing them all."""

import pytest
import torch

from continua.spaces import AbstractFlatSpace, FlatSpace, SimplexSpace, StiefelSpace
from registries import all_parameter_spaces

DTYPE = torch.float64
each_space = pytest.mark.parametrize(("space", "shape"), all_parameter_spaces.items(), ids=str)


def drawn(shape, seed, dtype=DTYPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inner(x, y):
    return float((x.conj() * y).real.sum())


@each_space
def test_projecting_twice_is_projecting_once(space, shape):
    x = space.project(drawn(shape, 0))
    assert x.shape == shape and float(space.defect(x)) < 1e-13
    torch.testing.assert_close(space.project(x), x, rtol=0, atol=1e-13)
    space.check("x", x)


@each_space
def test_the_projection_is_the_nearest_point(space, shape):
    x = drawn(shape, 1)
    nearest = space.project(x)
    for seed in range(20):
        other = space.project(nearest + 0.3 * drawn(shape, seed + 2))
        assert float((x - nearest).norm()) <= float((x - other).norm()) + 1e-12


@each_space
def test_the_tangent_projection_is_orthogonal(space, shape):
    x, v, w = space.project(drawn(shape, 3)), drawn(shape, 4), drawn(shape, 5)
    tangent = space.tangent(x, v)
    torch.testing.assert_close(space.tangent(x, tangent), tangent, rtol=0, atol=1e-13)
    assert inner(tangent, w) == pytest.approx(inner(v, space.tangent(x, w)), abs=1e-12)


@each_space
def test_points_before_the_axes_are_independent(space, shape):
    if len(shape) == space.axes:
        shape = (2, *shape)
    x = drawn(shape, 6)
    alone = torch.stack([space.project(row) for row in x])
    torch.testing.assert_close(space.project(x), alone, rtol=0, atol=1e-14)


@each_space
def test_tangents_of_paths_on_the_space(space, shape):
    """The velocity of a path on the space is a tangent."""
    start, v = space.project(drawn(shape, 0)), drawn(shape, 1)
    h = 1e-5
    ends = [space.project(start + s * h * v) for s in (1, -1)]
    velocity = (ends[0] - ends[1]) / (2 * h)
    torch.testing.assert_close(space.tangent(start, velocity), velocity, rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)], ids=str)
def test_a_pair_is_a_complex_matrix(shape):
    paired, whole = StiefelSpace(paired=True), StiefelSpace()
    x, v = drawn((2, *shape), 0), drawn((2, *shape), 1)
    u, w = (torch.complex(*y.unbind(0)) for y in (x, v))
    for of_pair, of_complex in ((paired.project(x), whole.project(u)), (paired.tangent(x, v), whole.tangent(u, w))):
        torch.testing.assert_close(torch.complex(*of_pair.unbind(0)), of_complex)
    assert float(paired.defect(x)) == pytest.approx(float(whole.defect(u)))


def test_values_off_the_space_are_refused():
    with pytest.raises(ValueError, match=r"rho = \[0\.5, 0\.625\]: p >= 0 and sum p = 1 .* violated by 1\.2e-01"):
        SimplexSpace().check_masses("rho", torch.tensor([0.5, 0.625]))
    with pytest.raises(ValueError, match="violated by nan"):
        StiefelSpace().check("u", torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match="axis = 0"):
        SimplexSpace(0)
    with pytest.raises(ValueError, match="axes = 3"):
        FlatSpace(3)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_and_masses_of_a_simplex_are_inverse(axis, dtype):
    space, l = SimplexSpace(axis), drawn((4, 3), 9, dtype)
    p = space.masses(l)
    torch.testing.assert_close(p.sum(axis), torch.ones_like(p.sum(axis)))
    torch.testing.assert_close(space.masses(space.logits(p)), p)
    torch.testing.assert_close(space.logits(p), l - l.mean(axis, keepdim=True))
    space.check_masses("p", p)
    space.check_masses("p", p.double())  # thirds of float32 do not sum to one in float64, which is no reason to refuse
    with pytest.raises(ValueError, match=r"sum p = 1 along axis -\d is violated by 1\.0e-02.*Divide masses"):
        space.check_masses("p", 1.01 * p)
    with pytest.raises(ValueError, match=r"p = .*violated by nan"):
        space.check_masses("p", torch.nan * p)


@each_space
def test_points_of_single_precision_are_points_in_double_precision(space, shape):
    """Values that were rounded to float32 keep that rounding, whatever dtype holds them later."""
    x = space.project(drawn(shape, 8)).float()
    space.check("x", x)
    space.check("x", x.double())
    off = 1.01 * x.double()
    if not isinstance(space, AbstractFlatSpace):
        with pytest.raises(ValueError, match="x = "):
            space.check("x", off)
