"""The gradient of every objective against finite differences on the recorded grid, with the randomness frozen."""

import pytest
import torch

from continua.control import JacobianSpectral, Objective
from continua.fields import Constant
from continua.model import ContinuousTransformer, Flow, Part
from continua.operators import Activation, FeedForward
from continua.solve import Backsolve, Checkpointed, Direct, Fixed, Given, LieTrotter, Solver, Tsitouras
from objectives import WIDTH, all_costs, all_losses, batch_of, directions, gradient_of, model_of, slope_along, value_of


def frozen(objective: Objective, model, batch):
    """The model on the grid that its adaptive solve accepted."""
    return model.at(grid=objective(model, batch, torch.Generator().manual_seed(11)).stats.grid)


def along(gradients, direction) -> float:
    return float(sum((g * v).sum() for g, v in zip(gradients, direction, strict=True)))


def assert_gradients_hold(objective: Objective, model, batch) -> None:
    """`Direct` and `Checkpointed` against differences along a direction in which every parameter moves."""
    direction = directions(model)
    expected = slope_along(objective, model, batch, direction)
    for gradient in (Direct(), Checkpointed()):
        found = along(gradient_of(objective, model.at(gradient=gradient), batch), direction)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("cost", all_costs, ids=repr)
def test_every_cost(cost, unchecked):
    loss = all_losses[0]
    objective, batch = Objective(loss, (cost,), (0.3,)), batch_of(loss)
    assert_gradients_hold(objective, frozen(objective, model_of(loss, dropout=0.2, rtol=0.1), batch), batch)


@pytest.mark.parametrize("loss", all_losses, ids=repr)
def test_every_loss_with_all_costs_at_once(loss, unchecked):
    """J is a sum, so that with the test above every pair of a loss and a cost is held."""
    costs = tuple(cost for cost in all_costs if not isinstance(cost, JacobianSpectral))  # the dearest; see above
    objective, batch = Objective(loss, costs, tuple(0.1 for _ in costs)), batch_of(loss)
    assert_gradients_hold(objective, frozen(objective, model_of(loss, dropout=0.2, rtol=0.1), batch), batch)


@pytest.mark.parametrize("cost", all_costs, ids=repr)
def test_every_cost_has_a_gradient_of_its_own(cost, unchecked):
    """Without its cost the gradient is another one: the test above has teeth."""
    loss = all_losses[0]
    model, batch = model_of(loss, rtol=0.1), batch_of(loss)
    plain, priced = (gradient_of(o, model, batch) for o in (Objective(loss), Objective(loss, (cost,), (0.3,))))
    assert max(float((a - b).abs().max()) for a, b in zip(plain, priced, strict=True)) > 1e-3


def gap_of_backsolve(cost, model, steps: int) -> float:
    """How far the adjoint of the ODE is from that of the discrete solve, relative to the largest entry."""
    loss = all_losses[0]
    objective, batch, solver = Objective(loss, (cost,), (0.3,)), batch_of(loss), Solver(Tsitouras(), Fixed(steps))
    exact, found = (
        gradient_of(objective, model.at(solver=solver, gradient=gradient), batch)
        for gradient in (Checkpointed(), Backsolve(trust=0.1))
    )
    size = max(float(g.abs().max()) for g in exact)
    return max(float((a - b).abs().max()) for a, b in zip(exact, found, strict=True)) / size


@pytest.mark.parametrize("cost", [c for c in all_costs if not isinstance(c, JacobianSpectral)], ids=repr)
def test_backsolve_agrees_to_the_error_of_its_steps(cost, unchecked):
    """A method of order five on the way there and back: halving the steps takes away more than nine tenths."""
    model = model_of(all_losses[0], dropout=0.2)
    coarse, fine = (gap_of_backsolve(cost, model, steps) for steps in (5, 10))
    assert fine < 0.1 * coarse and fine < 3e-4


def test_backsolve_of_the_spectral_norm(unchecked):
    """Without norms and heads: where the start of the power method is orthogonal to the leading direction, the cost
    dips, and a grid as coarse as these does not resolve it."""
    model, feedforward = model_of(all_losses[0]), FeedForward(6, Activation.TANH)
    flow = Flow([Part(feedforward, Constant(feedforward.spec(WIDTH), torch.Generator().manual_seed(1)))]).double()
    model = ContinuousTransformer(model.embedding, flow, model.readout)
    coarse, fine = (gap_of_backsolve(JacobianSpectral(2), model, steps) for steps in (3, 6))
    assert fine < 0.1 * coarse and fine < 3e-4


@pytest.mark.parametrize("cost", all_costs, ids=repr)
def test_split_steps_are_differentiated_exactly(cost, unchecked):
    loss = all_losses[0]
    objective, batch = Objective(loss, (cost,), (0.3,)), batch_of(loss)
    model = model_of(loss).at(solver=Solver(LieTrotter(), Given((0.0, 0.3, 1.0))))
    assert_gradients_hold(objective, model, batch)


def test_the_same_generator_gives_the_same_number():
    loss = all_losses[0]
    objective, batch = Objective(loss, (all_costs[3],), (0.3,)), batch_of(loss)
    model = model_of(loss, dropout=0.2, rtol=0.1)
    assert value_of(objective, model, batch) == value_of(objective, model, batch)
    other = objective(model, batch, torch.Generator().manual_seed(12)).total
    assert other != value_of(objective, model, batch)
