"""Depth profiles zeta(z): the velocity times a number that depends on depth."""

import math

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.core.slopes import fitted_slope
from continua.fields import Constant
from continua.model import (
    BasisProfile,
    CloudEmbedding,
    ContinuousTransformer,
    Flow,
    LinearProfile,
    NormReadout,
    Part,
    load,
    save,
)
from continua.operators import Damping, FeedForward, Unnormalised
from continua.solve import Checkpointed, Direct, Euler, Fixed, LieTrotter, PerSequence, Solver, Strang
from continua.spaces import BSpline, Cloud, Legendre

POINTS = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def damped(profile, parts: int = 1, depth: float = 2.0) -> ContinuousTransformer:
    """dx/dz = -zeta(z) x: x(Z) = exp(-int zeta) x(0)."""
    operator = Damping(1.0 / parts)
    flow = Flow([Part(operator, Constant(operator.spec(4))) for _ in range(parts)], depth, profile).double()
    return ContinuousTransformer(CloudEmbedding(4), flow, NormReadout(4, Unnormalised()), gradient=Direct())


def test_the_flow_moves_by_the_integral_of_the_profile():
    end = damped(LinearProfile(1.5, 0.5, 2.0)).at(rtol=1e-10)(Cloud(POINTS))
    torch.testing.assert_close(end, math.exp(-2.0) * POINTS, rtol=1e-8, atol=1e-8)


def test_a_profile_of_one_changes_nothing():
    for profile in (LinearProfile(1.0, 1.0, 2.0), BasisProfile(Legendre(1), 2.0)):
        found, expected = damped(profile).at(steps=4)(Cloud(POINTS)), damped(None).at(steps=4)(Cloud(POINTS))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    assert arguments_of(Flow([Part(Damping(1.0), Constant(Damping(1.0).spec(4)))]))["profile"] is None


@pytest.mark.parametrize("solver", [LieTrotter(Euler()), Strang()], ids=repr)
def test_splitting_sees_the_profile(solver):
    made, counts = damped(LinearProfile(1.5, 0.5, 2.0), parts=2), [8, 16, 32, 64]
    exact = math.exp(-2.0) * POINTS
    ends = [made.at(solver=Solver(solver, Fixed(n)))(Cloud(POINTS)) for n in counts]
    errors = [float((end - exact).abs().max()) for end in ends]
    assert -fitted_slope([float(n) for n in counts], errors) == pytest.approx(solver.order, abs=0.2)


def test_a_profile_that_jumps_has_breaks():
    profile = BasisProfile(BSpline(2, 0), 2.0).double()
    profile.expansion.coefficients["0"].data.copy_(torch.tensor([[0.5], [1.5]]))
    made = damped(profile)
    assert made.flow.bind(Cloud(POINTS)).breaks == (1.0,)
    torch.testing.assert_close(made.at(steps=24)(Cloud(POINTS)), math.exp(-2.0) * POINTS, rtol=1e-8, atol=1e-8)
    own = made.at(solver=Solver(controller=PerSequence(1e-9, 1e-9)))(Cloud(POINTS))
    torch.testing.assert_close(own, math.exp(-2.0) * POINTS, rtol=1e-6, atol=1e-6)


def test_a_profile_is_trained_and_saved(tmp_path):
    operator = FeedForward(5)
    flow = Flow([Part(operator, Constant(operator.spec(4)))], 2.0, BasisProfile(Legendre(3), 2.0))
    made = ContinuousTransformer(CloudEmbedding(4), flow, NormReadout(4)).double().at(steps=3)
    gradients = []
    for gradient in (Direct(), Checkpointed()):
        end = made.at(gradient=gradient)(Cloud(POINTS))
        gradients.append(torch.autograd.grad(end.square().sum() + end.sum(), list(flow.profile.parameters())))
    torch.testing.assert_close(*gradients)
    assert float(gradients[0][0].abs().max()) > 0
    flow.profile.expansion.coefficients["0"].data += 0.3
    assert torch.equal(load(save(made, tmp_path))(Cloud(POINTS)), made(Cloud(POINTS)))
    linear = damped(LinearProfile(1.5, 0.5, 2.0)).at(steps=2)
    assert torch.equal(load(save(linear, tmp_path)).double()(Cloud(POINTS)), linear(Cloud(POINTS)))


def test_bad_profiles_are_named():
    with pytest.raises(ValueError, match=r"end = inf: .*Pass a finite end"):
        LinearProfile(1.0, math.inf)
    with pytest.raises(ValueError, match=r"depth = 0\.0: "):
        BasisProfile(Legendre(2), 0.0)
    for profile, depth in ((LinearProfile(1.0, 0.0), 2.0), (BasisProfile(Legendre(2), 2.0), 1.0)):
        why = rf"profile.reach = {profile.reach}: .*to depth {depth}\. Build it with depth={depth}"
        with pytest.raises(ValueError, match=why):
            damped(profile, depth=depth)
    with pytest.raises(ValueError, match=r"jumps outside \(0, 1\.0\)"):
        damped(BasisProfile(BSpline(2, 0), 4.0), depth=1.0)
