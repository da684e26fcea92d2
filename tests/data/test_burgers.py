"""Burgers' equation against the solution of Cole and Hopf, and the task at several resolutions."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from continua.core.slopes import fitted_slope
from continua.data import Burgers, Split, burgers_solution
from continua.train import PRESETS, build_continuous


def cole_hopf(x: float, t: float, nu: float) -> float:
    """u(x, t) for u(x, 0) = sin(2 pi x), by E. Hopf (1950) and J. D. Cole (1951), with quadrature of scipy."""

    def weight(y: float) -> float:
        # phi(x, 0) = exp(-1/(2 nu) int u) with int_0^y sin(2 pi s) ds = (1 - cos(2 pi y))/(2 pi)
        return math.exp(-(1 - math.cos(2 * math.pi * y)) / (4 * math.pi * nu) - (x - y) ** 2 / (4 * nu * t))

    reach = 12 * math.sqrt(2 * nu * t)
    options = {"epsabs": 1e-14, "epsrel": 1e-10, "limit": 400}
    above = quad(lambda y: (x - y) / t * weight(y), x - reach, x + reach, **options)[0]
    below = quad(weight, x - reach, x + reach, **options)[0]
    return above / below


def test_the_solution_is_that_of_cole_and_hopf():
    nu, until, points = 0.02, 0.3, 128
    x = torch.arange(points, dtype=torch.float64) / points
    found = burgers_solution(torch.sin(2 * math.pi * x)[None], nu, until, steps=120)[0]
    places = range(0, points, 16)
    expected = np.array([cole_hopf(float(x[i]), until, nu) for i in places])
    assert np.abs(found[list(places)].numpy() - expected).max() < 1e-7  # fourth order in dt = 0.0025


def test_the_order_in_time_is_four():
    x = torch.arange(64, dtype=torch.float64) / 64
    first = torch.sin(2 * math.pi * x)[None]
    exact = burgers_solution(first, 0.05, 0.2, steps=1280)
    counts = [10, 20, 40, 80, 160]
    errors = [float((burgers_solution(first, 0.05, 0.2, n) - exact).abs().max()) for n in counts]
    assert abs(fitted_slope([0.2 / n for n in counts], errors) - 4.0) < 0.2


def test_the_mean_is_conserved():
    first = torch.randn(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    later = burgers_solution(0.1 * first, 0.05, 0.1, steps=50)
    assert torch.allclose(later.mean(1), 0.1 * first.mean(1), atol=1e-14)


def test_resolutions_show_the_same_functions():
    coarse, fine = (Burgers(points=n, examples=12).batch(Split.TEST, torch.arange(3)) for n in (16, 64))
    assert coarse.inputs[0].shape == (3, 17, 1) and fine.inputs[0].shape == (3, 65, 1)
    assert torch.equal(coarse.inputs[0], fine.inputs[0][:, ::4]) and torch.equal(coarse.targets, fine.targets[:, ::4])


def test_shifted_training_batches_are_still_solutions():
    task = Burgers(points=64, examples=12)
    batch = task.training_batch(2, 0, 0)
    assert torch.equal(batch.inputs[0][:, 0], batch.inputs[0][:, -1])
    waves = torch.fft.rfft(batch.inputs[0][:, :-1, 0].double())
    first = 4 * torch.fft.irfft(waves, 256)  # six waves: 64 points hold all of it
    later = burgers_solution(first, task.viscosity, task.until, steps=120)[:, ::4]
    assert float((later - batch.targets[:, :-1, 0]).abs().max()) < 1e-5  # the data are float32


def test_the_three_splits_are_three():
    first = [Burgers(examples=12).batch(split, torch.arange(3)).inputs[0] for split in Split]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(first, 2))


def test_positions_turn_slowly_enough_for_half_of_the_points():
    """The fastest rotary wave of a model has less than half a turn between points of the coarsest test."""
    task = Burgers()
    model = build_continuous(task.form, PRESETS["burgers"]["demo"])
    fastest = max(
        part.operator.inner.rotary.fastest for part in model.flow.parts if hasattr(part.operator.inner, "rotary")
    )
    coarsest = min(variant.points for variant in task.variants().values())
    assert coarsest == 32 and fastest / coarsest < math.pi


@pytest.mark.parametrize("wrong", [{"points": 48}, {"viscosity": 1e-4}, {"until": 0.0}, {"examples": 2}])
def test_what_cannot_be_solved_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Burgers(**wrong)
