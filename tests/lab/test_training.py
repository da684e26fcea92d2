"""Finite networks and their limit: against autograd, torch's optimiser, the project's solver and each other."""

import dataclasses
import math

import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.lab.flows import attention_flow
from continua.lab.training.cells import Adversarial, AgainstLimit, ClosedForm
from continua.lab.training.compactness import LongTraining, Stationary
from continua.lab.training.networks import Limit, Network, compute_limits, train
from continua.lab.training.problem import Problem, UpdateRule
from continua.solve import Adaptive, Direct, DormandPrince, integrate
from continua.spaces import Cloud

SMALL = Problem(tokens=4, width=4, key=3, atoms=3, sequences=2, trained=1)


def test_adjoint_and_gradient_map_are_those_of_autograd():
    row = ClosedForm(5, 4, 3, Problem()).measure()
    assert row["adjoint"] < 1e-12 and row["gradient"] < 1e-12


def test_the_limit_is_the_flow_that_the_solver_finds():
    limit = Limit(SMALL, 25)
    with torch.no_grad():
        course = limit.both()
        flow = attention_flow(SMALL.operator(SMALL.atoms), SMALL.law())
        bound = flow.bind(Cloud(SMALL.start()))
        asked = limit.depths.tolist()
        control = Adaptive(rtol=1e-11, atol=1e-12)
        path = integrate(bound, bound.initial(), (0.0, 1.0), DormandPrince(), control, Direct(), asked)
    assert path.xs is not None
    assert float((course.states[-1] - path.x).abs().max()) < 1e-11
    assert float((course.states - path.xs).abs().max()) < 1e-8  # dense output is of fourth order


@pytest.mark.parametrize(("blockwise", "gap"), [(True, 1e-12), (False, 1e-6)])
def test_the_limit_does_not_depend_on_its_nodes(blockwise, gap):
    # AdamW's update g/(|g| + eps) bends where an entry of g crosses zero along depth: polynomials feel it.
    rule = UpdateRule(blockwise=blockwise)
    coarse, fine = (compute_limits(SMALL, rule, (0, 3), nodes)[3].path for nodes in (33, 49))
    assert float((coarse.states[-1] - fine.states[-1]).abs().max()) < gap
    assert float((coarse.adjoints[0] - fine.adjoints[0]).abs().max()) < gap


@pytest.mark.parametrize("blockwise", [False, True])
def test_without_sampling_everything_converges_like_one_over_the_layers(blockwise):
    layers = (16, 32, 64, 128)
    rule = UpdateRule(blockwise=blockwise, learning_rate=0.2 if blockwise else 0.05)
    rows = [AgainstLimit(L, 1, 1, (0, 3), SMALL, rule, sampled=False).measure() for L in layers]
    for kind, places in (("states", (0, 1)), ("adjoints", (0, 1)), ("parameters", (1,))):
        for place in places:
            errors = [row[kind][place][0] ** 0.5 for row in rows]
            assert fitted_slope(layers, errors) == pytest.approx(-1.0, abs=0.1), (kind, place)


def test_updates_are_those_of_torch():
    network = Network(SMALL, SMALL.draw_atoms(3, 2, 4, 0))
    mine = [w.clone() for w in network.parameters]
    other = torch.optim.AdamW(mine, lr=0.05, betas=(0.9, 0.99), eps=0.05, weight_decay=0.1)

    def follow(update, passed):
        if update < 3:
            for w, own in zip(mine, network.parameters, strict=True):
                w.grad = own.grad.clone()
            other.step()

    train(network, UpdateRule(), 3, follow)
    for w, own in zip(mine, network.parameters, strict=True):
        torch.testing.assert_close(own, w, rtol=1e-12, atol=1e-13)


def test_seeds_do_not_see_each_other():
    together = Network(SMALL, SMALL.draw_atoms(6, 3, 4, 0))
    alone = Network(SMALL, SMALL.draw_atoms(6, 3, 4, 0)[:, 1:2].contiguous())
    ends = {}
    train(together, UpdateRule(), 2, lambda update, passed: ends.update(many=passed.states[-1, 1]))
    train(alone, UpdateRule(), 2, lambda update, passed: ends.update(one=passed.states[-1, 0]))
    torch.testing.assert_close(ends["many"], ends["one"], rtol=1e-12, atol=1e-13)


def test_sampled_heads_come_closer_with_more_of_them():
    few, many = (AgainstLimit(32, H, 24, (2,), SMALL, UpdateRule()).measure()["states"][0] for H in (1, 16))
    assert 2.0 < (sum(few) / sum(many)) ** 0.5 < 8.0  # sixteen times the heads: a quarter of the error


def test_a_problem_in_a_subspace_is_the_same_problem_for_blockwise_updates():
    rule = UpdateRule(blockwise=True, learning_rate=0.2)
    rows = [AgainstLimit(8, 2, 3, (3,), dataclasses.replace(SMALL, inner=3, width=d), rule).measure() for d in (3, 24)]
    for kind in ("states", "adjoints", "parameters"):
        assert rows[0][kind][0] == pytest.approx(rows[1][kind][0], rel=1e-6)


def test_problems_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="trained = 3"):
        Problem(sequences=2, trained=3)
    with pytest.raises(ValueError, match="inner = 9"):
        Problem(width=8, inner=9)


def test_initial_conditions_that_climb_are_further_from_the_limit_and_stay_in_the_ball(monkeypatch):
    starts, forward = [], Limit.forward
    monkeypatch.setattr(Limit, "forward", lambda limit, start: starts.append(start) or forward(limit, start))
    row = Adversarial(8, 4, 3, 1, SMALL, UpdateRule(), starts=2, ascent=4).measure()
    climbed = torch.stack([start for start in starts if len(start) == 6][:5])  # later ones are of the adjoints
    assert float((climbed[1:] - climbed[:-1]).abs().amax((1, 2, 3)).min()) > 1e-3
    assert float(climbed.norm(dim=-1).max()) <= SMALL.radius * (1.0 + 1e-12)
    assert all(found > drawn for drawn, found in zip(row["drawn"], row["found"], strict=True))
    assert sum(row["found"]) > 2.0 * sum(row["drawn"])
    assert sum(row["adjoints"]) > 1.5 * sum(row["adjoints_drawn"])


def test_the_slope_of_the_error_in_the_initial_condition_is_that_of_autograd():
    network, limit = Network(SMALL, SMALL.draw_atoms(5, 1, 4, 0)), Limit(SMALL, 25)
    start = SMALL.start()[:1].requires_grad_()
    ends = network.forward(start)[-1], limit.forward(start)[-1]
    gap = (ends[0] - ends[1]).detach()
    (wanted,) = torch.autograd.grad(((ends[0] - ends[1]) * gap).sum(), start)
    with torch.no_grad():
        own = network.backward(network.forward(start), gap)[0]
        found = own - limit.backward(limit.forward(start), gap)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("blockwise", [False, True])
def test_the_residual_vanishes_at_kkt_points_alone(blockwise):
    cell = Stationary(1, 1, 1, SMALL, UpdateRule(weight_decay=0.5, blockwise=blockwise))
    w = torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=torch.float64)  # at the edge of |b(theta)| <= 2
    pushed = torch.tensor([[0.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
    for gradient, residual in ((pushed, 0.0), (0.0 * pushed, 0.0), (-0.5 * pushed, 1.5)):
        w.grad = gradient
        found = cell.distance([w])
        assert (found.residual, found.size) == (pytest.approx(residual, abs=1e-12), pytest.approx(1.0))
    assert found.edge == (1.0 if blockwise else 0.25)
    met = dataclasses.replace(cell, updates=3).measure()["residual"]
    assert len(met) == 4 and all(math.isfinite(residual) for residual in met)


def test_adjoints_grow_no_more_than_the_operator_allows():
    row = LongTraining(4, 2, 2, 6, SMALL, UpdateRule()).measure()
    assert all(own <= most for own, most in zip(row["pull"], row["pull_allowed"], strict=True))
    assert min(row["pull_allowed"]) > 0
