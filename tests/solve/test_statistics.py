"""Statistics are exact: evaluations, steps, grids and errors."""

import itertools

import pytest
import torch

from continua.solve import (
    RK4,
    Adaptive,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    LieTrotter,
    Observer,
    PerSequence,
    Projected,
    State,
    Stats,
    Strang,
    integrate,
)
from continua.spaces import Sphere
from gradients import loss_of, solved
from problems import JUMPING, Inputs, attention_flow, growing, spinning, twisting
from registries import all_methods


@pytest.mark.parametrize("stepper", all_methods, ids=repr)
def test_evaluations_on_a_grid_are_stages_times_steps(stepper):
    """A single part is all of the velocity; splitting it changes nothing but the half-steps of Strang."""
    problem = spinning()
    bound = problem.bound()
    stats = integrate(bound, problem.state, (0.0, 1.0), stepper, Fixed(4), Direct()).stats
    assert stats.accepted == 4
    assert stats.evaluations == bound.evaluations == 4 * stepper.stages


def test_splitting_counts_parts_by_their_share():
    """Each of two parts once a step is one evaluation; Strang takes the first in two halves."""
    for stepper, each in ((LieTrotter(), 1), (Strang(Euler()), 1.5), (LieTrotter(RK4()), 4)):
        stats = integrate(growing().bound(), growing().state, (0.0, 1.0), stepper, Fixed(4), Direct()).stats
        assert stats.evaluations == 4 * each


def test_rk4_with_five_steps_takes_twenty():
    problem = twisting()
    stats = integrate(problem.bound(), problem.state, (0.0, 1.0), RK4(), Fixed(5), Direct()).stats
    assert (stats.evaluations, stats.accepted, stats.rejected) == (20, 5, 0)
    assert stats.grid == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert stats.errors == []


def test_dormand_prince_takes_two_to_start_and_six_a_try():
    """The last slope of a step is the first of the next, and the first of a rejected one is used again."""
    problem = twisting(speed=2.0)
    for controller in (Adaptive(1e-6, 1e-6), Adaptive(1e-6, 1e-6, first=0.3)):
        stats = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=controller, gradient=Direct()).stats
        start = 2 if controller.first is None else 1
        assert stats.evaluations == start + 6 * (stats.accepted + stats.rejected)
    assert stats.rejected > 0


def test_a_jump_costs_one_evaluation():
    """Beyond it the slope is another one."""
    problem = twisting(JUMPING, 2.0)
    stats = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=Adaptive(1e-6, 1e-6)).stats
    assert stats.evaluations == 2 + len(JUMPING.jumps) + 6 * (stats.accepted + stats.rejected)


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
def test_grid_and_errors_of_an_adaptive_solve(gradient):
    problem = twisting(JUMPING, 2.0)
    start = problem.start.clone().requires_grad_(True)
    bound = problem.bound()
    stats = integrate(bound, State(start), (0.0, 1.0), controller=Adaptive(1e-6, 1e-6), gradient=gradient).stats
    assert (stats.grid[0], stats.grid[-1]) == (0.0, 1.0)
    assert all(b > a for a, b in itertools.pairwise(stats.grid))
    assert len(stats.grid) == stats.accepted + 1 and len(stats.errors) == stats.accepted
    assert all(0.0 <= error <= 1.0 for error in stats.errors)
    assert stats.evaluations == bound.evaluations


def test_a_recorded_grid_reproduces_the_solve():
    problem = twisting(JUMPING, 2.0)
    first = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=Adaptive(1e-6, 1e-6))
    again = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=Given(tuple(first.stats.grid)))
    assert again.stats.grid == first.stats.grid
    torch.testing.assert_close(again.x, first.x, rtol=0.0, atol=1e-14)


def test_replays_take_as_many_evaluations_as_steps_have_stages():
    flow, inputs = attention_flow("layers"), Inputs.drawn()
    solution = solved(flow, inputs, Checkpointed(), Adaptive(1e-4, 1e-4))
    assert solution.stats.backward_evaluations == 0
    loss_of(solution).backward()
    assert solution.stats.backward_evaluations == 6 * solution.stats.accepted
    assert solution.stats.segments == solution.stats.accepted  # one Dormand-Prince step each


@pytest.mark.parametrize(
    ("gradient", "stepper", "segments"),
    [
        (Checkpointed(segment=1.0), Euler(), 4),  # six cheap steps each: 6 + 6 + 6 + 2
        (Checkpointed(), Euler(), 10),  # but no farther than a tenth of the depth
        (Checkpointed(segment=1.0, steps=7), DormandPrince(), 3),
        (Checkpointed(segment=1.0, steps=100), RK4(), 1),
        (Checkpointed(segment=0.01), RK4(), 20),
    ],
    ids=repr,
)
def test_segments_end_by_steps_or_by_depth(gradient, stepper, segments):
    problem = twisting()
    start = problem.start.clone().requires_grad_(True)
    stats = integrate(problem.bound(), State(start), (0.0, 1.0), stepper, Fixed(20), gradient).stats
    assert stats.segments == segments


def test_sequences_with_steps_of_their_own_are_counted_together():
    problem = twisting(speed=2.0)
    bound = problem.bound()
    stats = integrate(bound, problem.state, (0.0, 1.0), controller=PerSequence(1e-6, 1e-6)).stats
    assert stats.grid == [] and stats.errors == []
    assert stats.evaluations == bound.evaluations
    alone = [
        integrate(
            problem.bound(), State(problem.start[i : i + 1]), (0.0, 1.0), controller=PerSequence(1e-6, 1e-6)
        ).stats
        for i in range(2)
    ]
    assert stats.accepted == sum(s.accepted for s in alone)
    assert stats.rejected == sum(s.rejected for s in alone)


def test_a_round_in_which_nobody_moves_is_no_step(monkeypatch):
    monkeypatch.setattr("continua.solve.controllers.first_lengths", lambda *_: ([1.0, 1.0], None))
    problem, moves = twisting(speed=4.0), []
    start = problem.start.clone().requires_grad_(True)
    observer = Observer(step=lambda z, dz, state: moves.append(dz))
    stats = integrate(problem.bound(), State(start), (0.0, 1.0), controller=PerSequence(), observers=[observer]).stats
    assert stats.rejected >= 2 and stats.segments == len(moves)
    assert all((dz > 0).any() for dz in moves)


def test_statistics_can_be_read():
    stats = Stats(evaluations=20, accepted=3, rejected=1, backward_evaluations=18, reconstruction_error=1.5e-7)
    expected = "20 evaluations, 3 steps accepted, 1 rejected, 18 evaluations backwards, reconstruction error 1.5e-07"
    assert str(stats) == expected


def test_a_rate_at_a_jump_is_asked_inside_the_step():
    """int c(z) dz with c = 1 before 0.3 and 5 after it is exact on a grid that holds the jump."""
    flow = attention_flow("layers").eval()
    jumping = lambda z, x, v: torch.full((2,), 1.0 if z < 0.3 else 5.0, dtype=torch.float64)  # noqa: E731
    bound = Inputs.drawn(asking=False).bind(flow, rates=(jumping,))
    with torch.no_grad():
        for stepper in (RK4(), DormandPrince(), Projected(RK4(), Sphere(), tangent=True), Projected(RK4(), Sphere())):
            solution = integrate(bound, bound.initial(), (0.0, 1.0), stepper, Fixed(3))
            torch.testing.assert_close(solution.costs[0], torch.full((2,), 0.3 + 5 * 0.7, dtype=torch.float64))
