"""Butcher tableaux: consistent in themselves, and equal to those of scipy."""

import numpy as np
import pytest
from scipy.integrate import RK23, RK45

from continua.solve import AbstractRungeKutta, BogackiShampine, DormandPrince, Tsitouras
from registries import all_methods

tableaux = [pytest.param(m.tableau, id=repr(m)) for m in all_methods if isinstance(m, AbstractRungeKutta)]


@pytest.mark.parametrize("tableau", tableaux)
def test_tableau_is_consistent(tableau):
    assert len(tableau.a) == len(tableau.b) == len(tableau.c)
    assert [len(row) for row in tableau.a] == list(range(len(tableau.b)))
    np.testing.assert_allclose([sum(row) for row in tableau.a], tableau.c, rtol=0, atol=1e-14)
    assert sum(tableau.b) == pytest.approx(1.0, abs=1e-14)
    assert (tableau.e is None) == (tableau.error_order is None)
    if tableau.e is not None:
        assert len(tableau.e) == len(tableau.b) + 1
        assert sum(tableau.e) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize(("stepper", "scipys"), [(DormandPrince(), RK45), (BogackiShampine(), RK23)])
def test_tableau_is_that_of_scipy(stepper, scipys):
    tableau = stepper.tableau
    a = [[*row, *[0.0] * (scipys.A.shape[1] - len(row))] for row in tableau.a]
    np.testing.assert_allclose(a, scipys.A, rtol=0, atol=1e-15)
    np.testing.assert_allclose(tableau.b, scipys.B, rtol=0, atol=1e-15)
    np.testing.assert_allclose(tableau.c, scipys.C, rtol=0, atol=1e-15)
    np.testing.assert_allclose(tableau.e, -scipys.E, rtol=0, atol=1e-15)  # scipy subtracts the other way round
    assert tableau.order == scipys.order
    assert tableau.error_order == scipys.error_estimator_order


def test_interpolant_is_that_of_scipy():
    np.testing.assert_allclose(DormandPrince().tableau.dense, RK45.P, rtol=0, atol=1e-15)


@pytest.mark.parametrize("stepper", [DormandPrince(), Tsitouras()])
def test_interpolant_joins_both_ends_smoothly(stepper):
    """b_i(1) = b_i, b_i'(0) = 1 for the first slope alone, b_i'(1) = 1 for the last alone."""
    tableau = stepper.tableau
    dense = np.array(tableau.dense)
    powers = np.arange(1, dense.shape[1] + 1)
    # rounding of the published decimals, some of them near 90
    np.testing.assert_allclose(dense.sum(1), [*tableau.b, 0.0], rtol=0, atol=3e-14)
    np.testing.assert_allclose(dense[:, 0], np.eye(len(dense))[0], rtol=0, atol=0)
    np.testing.assert_allclose(dense @ powers, np.eye(len(dense))[-1], rtol=0, atol=6e-14)
