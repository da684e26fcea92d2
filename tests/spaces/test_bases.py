import math

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev, legendre
from scipy import fft

from continua.spaces import (
    AbstractBasis,
    BSpline,
    Chebyshev,
    Cosine,
    Fourier,
    GaussLegendre,
    Legendre,
    PlateauBasis,
    ScaledBasis,
)
from registries import all_bases

each_basis = pytest.mark.parametrize("basis", all_bases, ids=repr)
depths = torch.linspace(0.0, 1.0, 33, dtype=torch.float64)


@each_basis
def test_one_depth_and_many_agree(basis: AbstractBasis):
    many = basis.evaluate(depths)
    assert many.shape == (33, basis.size)
    for row, z in zip(many, depths.tolist(), strict=True):
        torch.testing.assert_close(basis.evaluate(z, dtype=torch.float64), row, rtol=0, atol=1e-14)


@each_basis
def test_the_function_one_is_in_the_basis(basis):
    """The first function of a smooth basis, the sum of all splines."""
    if isinstance(basis, BSpline):
        torch.testing.assert_close(basis.evaluate(depths).sum(-1), torch.ones_like(depths), rtol=0, atol=1e-14)
        return
    first = basis.evaluate(depths)[:, 0]
    expected = basis._weights[0] if isinstance(basis, ScaledBasis) else 1.0
    assert torch.equal(first, torch.full_like(depths, expected))


@each_basis
def test_dtype_and_device_are_as_asked(basis):
    assert basis.evaluate(0.3).dtype == torch.get_default_dtype()
    assert basis.evaluate(0.3, torch.float64, "cpu").dtype == torch.float64
    assert basis.evaluate(depths.float()).dtype == torch.float32
    assert basis.evaluate(depths, torch.float32, torch.device("cpu")).dtype == torch.float32


@each_basis
def test_bases_without_jumps_and_kinks_have_no_breaks(basis):
    assert (basis.breaks == ()) is (not isinstance(basis, BSpline) or basis.size == 1 or basis.degree > 1)


@each_basis
def test_differentiable_in_depth(basis):
    if isinstance(basis, BSpline) and basis.degree == 0:
        return  # flat wherever it is differentiable
    z = torch.tensor([0.1, 0.47, 0.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(basis.evaluate, (z,))


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_polynomials_equal_those_of_numpy(size):
    x = 2 * depths.numpy() - 1
    scales = np.sqrt(2 * np.arange(size) + 1)
    # A recurrence of 32 terms whose values reach 8 loses a few tens of units in the last place.
    expected = scales * legendre.legvander(x, size - 1)
    np.testing.assert_allclose(Legendre(size).evaluate(depths).numpy(), expected, rtol=0, atol=1e-13)
    expected = chebyshev.chebvander(x, size - 1)
    np.testing.assert_allclose(Chebyshev(size).evaluate(depths).numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_cosines_at_midpoints_are_the_orthonormal_dct(size):
    midpoints = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    transform = np.asarray(fft.dct(np.eye(size), type=2, norm="ortho", axis=0))
    found = Cosine(size).evaluate(midpoints).T.numpy() / math.sqrt(size)
    np.testing.assert_allclose(found, transform, rtol=0, atol=1e-13)


@pytest.mark.parametrize("basis", [Legendre(12), Cosine(12), Fourier(12)], ids=repr)
def test_orthonormal_on_the_unit_interval(basis):
    nodes, weights = GaussLegendre().nodes(48)
    phi = basis.evaluate(nodes)
    gram = phi.T @ (weights[:, None] * phi)
    torch.testing.assert_close(gram, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", [Legendre, Chebyshev, Cosine, Fourier])
def test_bad_input_is_named(kind):
    with pytest.raises(ValueError, match=r"size = 0: .*at least 1\. Pass size >= 1"):
        kind(0)
    with pytest.raises(ValueError, match=r"z = 2\.0: .*outside \[0, 1\]\. Divide the depth by the total depth"):
        kind(3).evaluate(2.0)
    with pytest.raises(ValueError, match=r"z = nan"):
        kind(3).evaluate(math.nan)
    kind(3).evaluate(1.0 + 1e-7)


def test_damped_functions_are_the_same_by_powers_of_the_ratio():
    powers = torch.tensor([1.0, 0.4, 0.16, 0.064], dtype=torch.float64)
    for inner in (Legendre(4), Cosine(4)):
        weighted = ScaledBasis(inner, 0.4)
        torch.testing.assert_close(weighted.evaluate(depths), inner.evaluate(depths) * powers / powers.norm())
        assert ScaledBasis(inner, 0.4).size == 4
        torch.testing.assert_close(ScaledBasis(inner, 1.0).evaluate(depths), inner.evaluate(depths) / 2.0)  # 4 modes


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.5, math.nan])
def test_a_ratio_that_damps_nothing_or_all_is_named(ratio):
    with pytest.raises(ValueError, match=rf"ratio = {ratio}: .*Pass 0 < ratio <= 1"):
        ScaledBasis(Legendre(3), ratio)


def test_plateaus_are_in_the_middles_of_cells():
    inner, basis = Cosine(4), PlateauBasis(Cosine(4), 5)
    fixed = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)  # ends and middles of five cells
    torch.testing.assert_close(basis.evaluate(fixed), inner.evaluate(fixed), rtol=0, atol=1e-14)
    middles = fixed[1::2]
    for shift in (-0.02, 0.02):  # a fifth of the way to the end of a cell
        moved = (basis.evaluate(middles + shift) - inner.evaluate(middles)).abs().max()
        assert moved < 0.01 * (inner.evaluate(middles + shift) - inner.evaluate(middles)).abs().max()
    s = depths
    for _ in range(3):
        s = s + torch.sin(10 * math.pi * s) / (10 * math.pi)
    torch.testing.assert_close(basis.evaluate(depths), inner.evaluate(s))
    with pytest.raises(ValueError, match=r"inner = .*its functions jump"):
        PlateauBasis(BSpline(4, 0), 4)


def test_splines_are_not_damped():
    with pytest.raises(ValueError, match=r"inner = .*not ordered from smooth to rough"):
        ScaledBasis(BSpline(5), 0.5)
