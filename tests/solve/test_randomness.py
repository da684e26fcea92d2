"""All randomness of a solve is drawn once, before it, and reused by every stage, rejection and replay."""

import pytest
import torch

from continua.solve import Adaptive, Checkpointed, Direct, Fixed, Given, PerSequence, State, integrate
from gradients import assert_same, gradients_of, loss_of, solved
from problems import Inputs, attention_flow

controllers = pytest.mark.parametrize("controller", [Fixed(3), Adaptive(1e-5, 1e-5), PerSequence(1e-5, 1e-5)], ids=repr)


def dropping(field: str = "smooth"):
    return attention_flow(field, dropout=0.4)


@controllers
def test_a_solve_draws_nothing(controller):
    """Not from the global generator, not from the one that seeded the flow."""
    inputs, generator = Inputs.drawn(), torch.Generator().manual_seed(1)
    bound = dropping().bind(inputs.bind(dropping()).binding.cloud, generator)
    before = torch.get_rng_state(), generator.get_state()
    loss_of(integrate(bound, bound.initial(), (0.0, 1.0), controller=controller)).backward()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


@controllers
def test_the_same_bound_flow_gives_the_same_solve(controller):
    bound = Inputs.drawn(asking=False).bind(dropping())
    with torch.no_grad():
        first, second = (integrate(bound, bound.initial(), (0.0, 1.0), controller=controller).x for _ in range(2))
    assert torch.equal(first, second)


def test_the_seed_decides():
    flow, inputs = dropping(), Inputs.drawn(asking=False)
    with torch.no_grad():
        points = []
        for seed in (5, 5, 6):
            bound = inputs.bind(flow, seed=seed)
            points.append(integrate(bound, bound.initial(), (0.0, 1.0), controller=Fixed(3)).x)
    assert torch.equal(points[0], points[1])
    assert not torch.allclose(points[0], points[2])


def test_evaluation_draws_nothing_and_drops_nothing():
    flow, inputs = dropping().eval(), Inputs.drawn(asking=False)
    before = torch.get_rng_state()
    with torch.no_grad():
        bound = flow.bind(inputs.bind(flow).binding.cloud)
        found = integrate(bound, bound.initial(), (0.0, 1.0), controller=Fixed(3)).x
        plain = inputs.bind(attention_flow("smooth"))
        expected = integrate(plain, plain.initial(), (0.0, 1.0), controller=Fixed(3)).x
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found, expected)


def test_rejections_see_the_same_mask():
    """A first step far too long is rejected; the grid that remains gives the same result when walked as given."""
    flow, inputs = dropping(), Inputs.drawn(asking=False)
    with torch.no_grad():
        adaptive = solved(flow, inputs, Direct(), Adaptive(1e-7, 1e-7, first=1.0))
        assert adaptive.stats.rejected > 0
        walked = solved(flow, inputs, Direct(), Given(tuple(adaptive.stats.grid)))
    torch.testing.assert_close(walked.x, adaptive.x, rtol=0.0, atol=1e-14)


def test_replays_see_the_same_mask():
    """Also when the global generator has moved on in between."""
    flow, inputs = dropping("layers"), Inputs.drawn()
    direct = gradients_of(solved(flow, inputs, Direct(), Fixed(3)), flow, inputs)
    solution = solved(flow, inputs, Checkpointed(), Fixed(3))
    torch.rand(100)
    assert_same(gradients_of(solution, flow, inputs), direct, atol=1e-12)


def test_layers_have_masks_of_their_own():
    """One mask for each piece of a field that jumps, constant within a piece."""
    bound = Inputs.drawn(asking=False).bind(dropping("layers"))
    with torch.no_grad():
        x = bound.initial()
        zeros = [bound.parts[0](z, State(x.x), inside).x == 0 for z, inside in ((0.1, 0.1), (0.2, 0.2), (0.5, 0.5))]
    assert torch.equal(zeros[0], zeros[1])
    assert not torch.equal(zeros[1], zeros[2])
