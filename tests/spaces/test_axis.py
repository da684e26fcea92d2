"""The embedding axis: functions known at nodes."""

import numpy as np
import pytest
import torch
from scipy import fft

from continua.spaces import Axis, Chebyshev, Cosine, Fourier, GaussLegendre, Legendre, MidpointRule

PAIRS = [
    (MidpointRule(), Cosine(5)),
    (MidpointRule(), Fourier(5)),
    (GaussLegendre(), Legendre(5)),
]
each_pair = pytest.mark.parametrize(("rule", "basis"), PAIRS, ids=repr)


@each_pair
@pytest.mark.parametrize("nodes", [5, 6, 8, 13])
def test_analysis_inverts_synthesis(rule, basis, nodes):
    axis = Axis(nodes, 2, rule)
    assert axis.width == 2 * nodes and axis.at(7) == Axis(7, 2, rule)
    found = axis.analysis(basis) @ axis.synthesis(basis)
    torch.testing.assert_close(found, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-13)
    assert float(axis.weights().sum()) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("nodes", [6, 7, 16])
def test_analysis_by_cosines_is_the_dct(nodes):
    values = np.random.default_rng(0).normal(size=nodes)
    expected = np.asarray(fft.dct(values, type=2, norm="ortho"))[:5] / np.sqrt(nodes)
    np.testing.assert_allclose(Axis(nodes, 1).analysis(Cosine(5)).numpy() @ values, expected, rtol=0, atol=1e-14)


@each_pair
def test_band_limited_functions_have_the_same_coefficients_at_every_resolution(rule, basis):
    c = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for nodes in (5, 6, 9, 20, 31):
        axis = Axis(nodes, 2, rule)
        torch.testing.assert_close(axis.analysis(basis) @ (axis.synthesis(basis) @ c), c, rtol=0, atol=1e-13)


def test_what_inference_made_first_serves_training_too():
    basis, axis = Cosine(3), Axis(11, 1)
    with torch.inference_mode():
        axis.transforms(basis, torch.zeros(1))
    x = torch.randn(11, requires_grad=True)
    (axis.transforms(basis, x)[1] @ x).square().sum().backward()
    assert x.grad is not None


def test_bad_axes_are_named():
    with pytest.raises(ValueError, match=r"nodes = 0: .*Pass nodes >= 1"):
        Axis(0, 2)
    with pytest.raises(ValueError, match=r"channels = 0: .*Pass channels >= 1"):
        Axis(2, 0)
    for axis, basis in ((Axis(4, 1), Cosine(5)), (Axis(4, 1), Fourier(5)), (Axis(4, 1, GaussLegendre()), Legendre(5))):
        with pytest.raises(ValueError, match=r"nodes = 4: 4 nodes do not resolve 5 modes\. Use at least 5 nodes"):
            axis.synthesis(basis)
    with pytest.raises(ValueError, match=r"nodes = 9: .*orthonormal only to .*an orthonormal basis"):
        Axis(9, 1, GaussLegendre()).synthesis(Chebyshev(3))
