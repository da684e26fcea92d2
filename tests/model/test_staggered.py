"""Staggered flows: the first part starts half a step before the others, and as many split steps are leapfrog."""

import itertools

import pytest
import torch
from scipy.linalg import expm
from torch import nn

import continua
from continua.core.errors import ArgumentError
from continua.core.slopes import fitted_slope
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, NormReadout, Part, load, save
from continua.operators import Unnormalised
from continua.solve import (
    RK4,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Fixed,
    LieTrotter,
    PerSequence,
    Solver,
    Strang,
)
from continua.spaces import Cloud

Z = 2.0
POINTS = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
A, F = (torch.randn(4, 4, generator=torch.Generator().manual_seed(s), dtype=torch.float64) * 0.4 for s in (1, 2))


def linear(stagger: int | None, stepper=LieTrotter(RK4())) -> ContinuousTransformer:
    """dx/dz = A x + F x, with parts of its own; sub-steps of order 4 leave the error of the splitting alone."""
    parts = []
    for matrix in (A, F):
        parts.append(nn.Linear(4, 4, bias=False).double())
        parts[-1].weight.data = matrix.clone()
    flow = Flow([Part(part) for part in parts], Z, stagger=stagger)
    solver = Solver(stepper, Fixed(stagger or 4))
    return ContinuousTransformer(CloudEmbedding(4), flow, NormReadout(4, Unnormalised()), solver, Direct())


def exact(delay: float) -> torch.Tensor:
    """exp(delay F) exp((Z - delay) (A + F)) exp(delay A) x: A alone, both, F alone."""
    whole = expm(delay * F.numpy()) @ expm((Z - delay) * (A + F).numpy()) @ expm(delay * A.numpy())
    return POINTS @ torch.from_numpy(whole).T


def error(model: ContinuousTransformer, delay: float) -> float:
    return float((model(Cloud(POINTS)) - exact(delay)).detach().abs().max())


def test_as_many_split_steps_are_of_order_two_for_the_staggered_flow_and_one_for_the_plain_one():
    counts = [8, 16, 32, 64]
    staggered = [error(linear(n), Z / (2 * n)) for n in counts]
    plain = [error(linear(n), 0.0) for n in counts]
    assert fitted_slope(counts, staggered) < -1.9
    assert -1.2 < fitted_slope(counts, plain) < -0.8
    assert staggered[0] < 0.1 * plain[0]


def test_the_steps_themselves_are_those_of_the_plain_flow():
    assert torch.equal(linear(4)(Cloud(POINTS)), linear(None)(Cloud(POINTS)))
    assert not torch.equal(linear(4).at(steps=8)(Cloud(POINTS)), linear(None).at(steps=8)(Cloud(POINTS)))


@pytest.mark.parametrize("stepper", [DormandPrince(), RK4(), Strang()], ids=repr)
def test_every_stepper_solves_the_same_flow(stepper):
    assert error(linear(4).at(solver=Solver(stepper, Fixed(200))), Z / 8) < 2e-4  # of order two at least
    assert error(linear(4).at(rtol=1e-9), Z / 8) < 1e-7


def test_sequences_with_steps_of_their_own():
    solver = Solver(DormandPrince(), PerSequence(1e-9, 1e-9))
    assert error(linear(4).at(solver=solver), Z / 8) < 1e-7


def test_finer_split_steps_converge_to_it():
    counts = [16, 32, 64, 128]
    errors = [error(linear(4).at(steps=n), Z / 8) for n in counts]
    assert fitted_slope(counts, errors) < -0.9
    odd = [error(linear(4).at(steps=n), Z / 8) for n in (12, 20, 36, 68)]  # whole cells and a half: leapfrog again
    assert fitted_slope([12, 20, 36, 68], odd) < -1.8


@pytest.mark.parametrize(("steps", "lag"), [(3, 0), (4, 0), (7, 0), (8, 1), (12, 1), (16, 2)])
def test_steps_written_out(steps, lag):
    """The first part, then the second so many cells behind; each has taken all cells at the end."""
    torch.manual_seed(0)
    model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1).double().eval()
    cloud = Cloud(torch.randn(2, 3, 8, dtype=torch.float64))
    dz, calls = 4.0 / steps, [("a", 0)]
    for i in range(1, steps + lag):
        calls += [("f", i - 1 - lag)] if i > lag else []
        calls += [("a", i)] if i < steps else []
    calls.append(("f", steps - 1))
    x = cloud.points
    attention, feedforward = model.flow.parts
    for name, cell in calls:
        part = attention if name == "a" else feedforward
        x = x + dz * part.operator.velocity(part.field((cell + 0.5) * dz), cloud.at(x))
    found = model.at(steps=steps)(cloud, full=True)
    torch.testing.assert_close(found.solution.x, x, rtol=1e-12, atol=1e-12)
    assert found.solution.stats.evaluations == steps and found.solution.stats.accepted == steps


def gradient_of(model: ContinuousTransformer, **how) -> list[torch.Tensor]:
    loss = model.at(**how)(torch.tensor([[0, 3, 1], [2, 2, 4]])).square().sum()
    return list(torch.autograd.grad(loss, list(model.flow.parameters())))


def test_gradients_agree():
    torch.manual_seed(0)
    model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1).double()
    with torch.no_grad():
        for p in model.flow.parameters():  # of a flow that can be solved backwards
            p.mul_(0.5)
    for how in ({"steps": 8}, {"rtol": 1e-5}):
        direct = gradient_of(model, gradient=Direct(), **how)
        torch.testing.assert_close(direct, gradient_of(model, gradient=Checkpointed(), **how), rtol=1e-9, atol=1e-11)
    largest = max(float(g.abs().max()) for g in direct)
    torch.testing.assert_close(direct, gradient_of(model, gradient=Backsolve(), rtol=1e-5), rtol=0, atol=1e-2 * largest)


def test_a_gradient_that_is_retraced_brings_steps_that_can_be():
    model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1)
    other = model.at(gradient=Backsolve())
    assert isinstance(other.solver.stepper, DormandPrince) and other.solver.controller == model.solver.controller
    assert isinstance(model.at(steps=8, gradient=Backsolve()).solver.stepper, DormandPrince)
    rk4 = model.at(solver=Solver(RK4(), Fixed(4)))
    assert isinstance(rk4.at(gradient=Backsolve()).solver.stepper, RK4)
    with pytest.raises(ArgumentError, match="split or projected steps"):  # what is asked for by name is not changed
        model.at(solver=Solver(LieTrotter(), Fixed(4)), gradient=Backsolve())(torch.zeros(1, 3, dtype=torch.long))


def test_jumps_of_a_staggered_flow_lie_where_each_part_meets_them():
    torch.manual_seed(0)
    model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1, depth=continua.Depth(2.0, field=2)).double()
    cloud, seen = Cloud(torch.randn(2, 3, 8, dtype=torch.float64)), []
    tight = model.at(rtol=1e-5)(cloud, full=True).solution
    seen = [b for b in (0.4, 0.8, 1.2, 1.6) if any(abs(z - b) < 1e-12 for z in tight.stats.grid)]
    assert seen == [0.4, 0.8, 1.2, 1.6]  # D, the jump of the first part at 1/c, that of the second, and Z - D
    fine = model.at(steps=512)(cloud, full=True).solution
    torch.testing.assert_close(fine.x, tight.x, rtol=0, atol=2e-2)


def test_the_builder_staggers_equal_split_steps_alone(tmp_path):
    Depth = continua.Depth
    staggers = {
        Depth(): 4, Depth(3.0): 3, Depth(steps=6): 6, Depth(field=2, length=2.0): 2, Depth(stagger=False): None,
        Depth(rtol=1e-3): None, Depth(stepper=Strang()): None,
        Depth(profile=continua.LinearProfile(1.0, 0.5, 4.0)): None,
    }  # fmt: skip
    for depth, expected in staggers.items():
        model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1, depth=depth)
        assert model.flow.stagger == expected == model.at(steps=12).flow.stagger
        save(model, tmp_path)
        assert load(tmp_path).flow.stagger == expected
    network = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1).to_layers(6)
    assert network.flow.stagger == 6


def test_what_cannot_be_staggered_is_said():
    part = Part(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"stagger = 0"):
        Flow([part], stagger=0)
    with pytest.raises(ValueError, match=r"profile = .*depths of their own"):
        Flow([part], profile=continua.LinearProfile(1.0, 0.5), stagger=2)


def test_costs_of_staggered_steps_converge_to_those_of_the_flow():
    torch.manual_seed(0)
    model = continua.transformer(8, 3, vocabulary=5, heads=2, axis=1).double()
    costs, tokens = (continua.KineticEnergy(),), torch.tensor([[0, 3, 1], [2, 2, 4]])
    tight = model.at(rtol=1e-5)(tokens, costs=costs).solution.costs[0]
    found = [model.at(steps=n)(tokens, costs=costs).solution.costs[0] for n in (8, 32)]
    errors = [float((cost - tight).detach().abs().max()) for cost in found]
    assert all(a > 2.5 * b for a, b in itertools.pairwise(errors)), errors
