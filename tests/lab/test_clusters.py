"""Clusters: the table of exact values, other questions, and refusals."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import ive

from continua.lab import FastestMode, Overlap
from continua.lab.clusters.exact import exact_half_time, exact_overlap, exact_rates
from continua.lab.clusters.particles import Collapse, Equiangular, Metastable, ring_rates
from continua.lab.flows import on_sphere

TABLE = {
    (4, 1.0): (0.21268681, 0.47948678, 0.87713117, 0.99744386, 0.99999914),
    (8, 4.0): (0.01759294, 0.03837928, 0.09365213, 0.33168384, 0.99792612),
    (32, 9.0): (0.00012323, 0.00024706, 0.00049651, 0.00100270, 0.00204514),
}
TIMES = (0.5, 1.0, 2.0, 4.0, 8.0)


@pytest.mark.parametrize(("n", "beta"), TABLE)
def test_the_particles_meet_the_table(n, beta):
    start = torch.eye(n, dtype=torch.float64)[None]
    for before, time, g in zip((0.0, *TIMES[:-1]), TIMES, TABLE[n, beta], strict=True):
        start = on_sphere(start, beta, time - before).x
        gram = (start @ start.mT)[0][~torch.eye(n, dtype=torch.bool)]
        assert gram.tolist() == pytest.approx([g] * (n * n - n), abs=6e-9)  # the table has eight digits
        assert exact_overlap(n, beta, time) == pytest.approx(g, abs=6e-9)


@pytest.mark.parametrize(
    ("n", "beta", "t"),
    [(2, 0.1, 3.0), (2, 50.0, 5.0), (100, 2.0, 3.0), (3, 800.0, 1.0), (5, 1.0, 60.0), (8, 4.0, 1e-9)],
)
def test_any_other_question_has_seven_digits(n, beta, t):
    def slope(t, g):  # divided by e^beta, which may be beyond any number
        tilt = np.exp(beta * (g - 1))
        return 2 * tilt * (1 - g) * ((n - 1) * g + 1) / (1 + (n - 1) * tilt)

    findings = Overlap(n, beta, t).run()
    solved = solve_ivp(slope, (0, t), [0.0], method="DOP853", rtol=1e-12, atol=1e-15).y[0, -1]
    assert findings.measured["overlap"] == pytest.approx(solved, abs=5e-8)
    assert findings.judgement.word.value == "holds"
    assert abs(findings.measured["overlap"] - findings.measured["exact"]) < 5e-8


@pytest.mark.parametrize(("n", "beta"), [(3, 0.5), (16, 3.0), (50, 6.0), (1000, 0.1)])
def test_the_exact_overlap_solves_the_scalar_equation(n, beta):
    def slope(t, g):
        return 2 * np.exp(beta * g) * (1 - g) * ((n - 1) * g + 1) / (np.exp(beta) + (n - 1) * np.exp(beta * g))

    solved = solve_ivp(slope, (0, 6), [0.0], method="DOP853", rtol=1e-12, atol=1e-14, t_eval=[1.5, 6])
    assert [exact_overlap(n, beta, t) for t in (1.5, 6.0)] == pytest.approx(solved.y[0].tolist(), abs=1e-11)


@pytest.mark.parametrize(
    ("beta", "mode", "rate"), [(1, 1, 0.446390), (4, 3, 0.664389), (9, 4, 0.704497), (25, 7, 0.725797)]
)
def test_the_fastest_mode_is_that_of_the_table(beta, mode, rate):
    found = FastestMode(float(beta)).run()
    assert (found.measured["mode"], found.measured["rate"]) == (mode, pytest.approx(rate, abs=6e-7))
    assert found.judgement.word.value == "holds"


@pytest.mark.parametrize("beta", [0.01, 0.3, 7.0, 200.0])
def test_rates_of_particles_and_formula_are_those_of_scipy(beta):
    k = np.arange(1, 9)
    wanted = k**2 * ive(k, beta) / (beta * ive(0, beta))
    assert exact_rates(beta, 8) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert ring_rates(beta, 1024)[:8] == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        (lambda: Overlap(8, -1.0, 2.0).run(), "beta = -1.0"),
        (lambda: Overlap(8, 0.0, 2.0).run(), "beta = 0.0"),
        (lambda: Overlap(1, 1.0, 2.0).run(), "tokens = 1"),
        (lambda: Overlap(8, 1.0, -2.0).run(), "depth = -2.0"),
        (lambda: Overlap(8, float("nan"), 2.0).run(), "beta = nan"),
        (lambda: FastestMode(float("inf")).run(), "beta = inf"),
    ],
)
def test_questions_without_meaning_are_refused(question, named):
    with pytest.raises(ValueError, match=named):
        question()


def test_nothing_moves_in_no_time():
    assert Equiangular(8, 4.0, 0.0).measure()["overlap"] == Equiangular(8, 4.0, 0.0).measure()["exact"] == 0.0


def test_the_half_time_is_found_along_the_path():
    row = Metastable(6, 4.0).measure()
    assert row["time"] == pytest.approx(exact_half_time(6, 4.0), rel=1e-8)
    assert exact_overlap(6, 4.0, row["exact"]) == pytest.approx(0.5, abs=1e-12)


def test_random_tokens_collapse():
    row = Collapse(6, 24, 1.0, 6.0, 1).measure()
    assert all(gaps[0] > 0.5 and gaps[-1] < 1e-2 for gaps in row["gaps"])
