"""Fourier features of real time under a trained linear map."""

import math
import statistics

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.model import FourierPositions, load, save

TIMES = torch.tensor([[0.0, 0.31, 0.9], [-2.0, 0.5, 7.25]], dtype=torch.float64)


def test_it_is_the_map_of_the_features_written_out():
    code = FourierPositions(5, 3, scale=2.0).double()
    om = [2.0 * statistics.NormalDist().inv_cdf(0.5 + (k + 0.5) / 6) for k in range(3)]  # half-normal quantiles
    for row, times in zip(code(TIMES), TIMES.tolist(), strict=True):
        for found, t in zip(row, times, strict=True):
            phi = [math.cos(w * t) for w in om] + [math.sin(w * t) for w in om]
            features = torch.tensor(phi, dtype=torch.float64) / math.sqrt(3)
            torch.testing.assert_close(found, code.linear.weight @ features + code.linear.bias)


def test_the_features_have_the_gaussian_kernel():
    code = FourierPositions(1, 400, scale=3.0)
    t = torch.linspace(-0.5, 0.5, 21, dtype=torch.float64).unsqueeze(0)
    phi = code.encode(t)[0]
    expected = torch.exp(-4.5 * (t[0][:, None] - t[0]) ** 2)
    torch.testing.assert_close(phi @ phi.T, expected, rtol=0.0, atol=1e-3)


def test_gradients_and_dtypes():
    code = FourierPositions(2, 3, 1.5).double()
    assert torch.autograd.gradcheck(code, (TIMES.clone().requires_grad_(),))
    assert code.float()(TIMES.float()).dtype == torch.float32


def test_it_is_saved(tmp_path):
    code = FourierPositions(4, 3, 1.5)
    again = load(save(code, tmp_path))
    assert torch.equal(again(TIMES.float()), code(TIMES.float())) and arguments_of(again) == arguments_of(code)
    assert code.width == 4


@pytest.mark.parametrize(
    ("arguments", "name"), [((0, 3, 1.0), "width"), ((4, 0, 1.0), "features"), ((4, 3, 0.0), "scale")]
)
def test_mistakes_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        FourierPositions(*arguments)
