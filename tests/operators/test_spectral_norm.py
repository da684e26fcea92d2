"""Spectral normalisation: the norm of torch, and kernels that do not stretch."""

import pytest
import torch

from continua.operators import (
    Attention,
    Convolution,
    Dense,
    FeedForward,
    Spectral,
    SpectrallyNormed,
    draw_theta,
    leaves,
    map_leaves,
    spectral_norm,
)
from continua.spaces import Axis, Cloud, Cosine

DTYPE = torch.float64
AXIS = Axis(5, 2)


def matrices(shape, dtype=DTYPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("dtype", [DTYPE, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(4, 7), (3, 6, 2), (1, 5)], ids=str)
def test_the_norm_is_torchs(shape, dtype):
    w = matrices(shape, dtype)
    torch.testing.assert_close(spectral_norm(w), torch.linalg.matrix_norm(w, ord=2), rtol=1e-13, atol=0)


def test_no_leading_direction_is_missed():
    """The longest row is orthogonal to the leading direction; two leading ones, hardly apart; sizes near the ends."""
    w = torch.zeros(10, 2, dtype=DTYPE)
    w[0, 0], w[1:, 1] = 2.0, 1.0
    near = torch.diag(torch.tensor([1.0, 1.0 + 1e-9, 1.0 - 1e-9], dtype=DTYPE))
    for x in (w, w.mT, near, matrices((5, 3)) * 1e-200, matrices((5, 3)) * 1e200):
        torch.testing.assert_close(spectral_norm(x), torch.linalg.matrix_norm(x, ord=2), rtol=1e-13, atol=0)
    theta = map_leaves(lambda leaf: leaf.to(DTYPE), draw_theta(FeedForward(10).spec(2)))._replace(w1=w)
    normed = SpectrallyNormed(FeedForward(10)).normalise_kernels(theta, 2)
    assert float(torch.linalg.matrix_norm(normed.w1, ord=2)) <= 1.0 + 1e-13


def test_autocast_does_not_lower_it():
    w = matrices((6, 4), torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        norm = spectral_norm(w)
    torch.testing.assert_close(norm, torch.linalg.matrix_norm(w, ord=2), rtol=1e-6, atol=0)


def test_values_that_are_no_numbers_are_handed_on():
    w = matrices((2, 3, 3))
    w[0, 1, 1] = torch.nan
    assert spectral_norm(w).isnan().tolist() == [True, False]


def test_its_gradient_is_torchs():
    w = matrices((4, 3)).requires_grad_(True)
    (ours,) = torch.autograd.grad(spectral_norm(w), w)
    (theirs,) = torch.autograd.grad(torch.linalg.matrix_norm(w, ord=2), w)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert float(spectral_norm(torch.zeros(3, 2))) == 0.0


KERNELS = [Dense(), Spectral(AXIS, Cosine(3)), Convolution(AXIS, 2)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_no_kernel_stretches_a_state_by_more_than_the_limit(kernel):
    """The largest stretching, found by the matrix of the kernel itself: its images of all unit vectors."""
    operator = SpectrallyNormed(FeedForward(3, kernel=kernel), limit=0.7)
    theta = map_leaves(
        lambda leaf: 3.0 * leaf.to(DTYPE), draw_theta(operator.spec(10), torch.Generator().manual_seed(1))
    )
    normed = operator.normalise_kernels(theta, 10)
    eye = torch.eye(10, dtype=DTYPE).unsqueeze(0)
    for w, limit in ((theta.w1, None), (normed.w1, 0.7)):
        stretch = float(torch.linalg.matrix_norm(kernel.apply(w, None, eye)[0].T, ord=2))
        assert stretch > 1.0 if limit is None else stretch == pytest.approx(limit, rel=1e-6)
    assert torch.equal(normed.b1, theta.b1)


def test_kernels_below_the_limit_and_other_parameters_are_left_alone():
    inner = Attention(heads=2, key_size=3, head_masses=True)
    operator = SpectrallyNormed(inner, limit=100.0)
    theta = map_leaves(lambda leaf: leaf.to(DTYPE), draw_theta(operator.spec(6), torch.Generator().manual_seed(1)))
    cloud = Cloud(matrices((2, 4, 6)))
    assert torch.equal(operator.velocity(theta, cloud), inner.velocity(theta, cloud))
    tight = dict(leaves(SpectrallyNormed(inner, limit=0.5).normalise_kernels(theta, 6)))
    for name in "qkvo":  # each head by itself
        exact = torch.linalg.matrix_norm(dict(leaves(theta))[name], ord=2)
        torch.testing.assert_close(torch.linalg.matrix_norm(tight[name], ord=2), exact.clamp_max(0.5))
    assert torch.equal(tight["p"], theta.p)


@pytest.mark.parametrize("wrong", [{"limit": 0.0}, {"limit": float("inf")}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SpectrallyNormed(FeedForward(3), **wrong)
