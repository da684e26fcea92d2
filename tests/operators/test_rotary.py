"""Rotary positions: what attention sees of time is t - s, for real times too."""

import pytest
import torch

from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import Attention, Binding, Cross, Dense, Rotary, Spectral, draw_theta, map_leaves
from continua.solve import Checkpointed, Direct, Fixed, integrate
from continua.spaces import Axis, Cloud, Cosine, GaussLegendre, Legendre

WIDTH = 6


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, TIMES = draw(2, 5, WIDTH), 3.0 * draw(2, 5, seed=1).abs().cumsum(-1)


def theta_of(operator):
    return map_leaves(lambda x: x.double(), draw_theta(operator.spec(WIDTH), torch.Generator().manual_seed(2)))


def velocity(operator, cloud: Cloud, encoded: Cloud | None = None) -> torch.Tensor:
    return operator.bind(Binding(cloud, encoded)).velocity(theta_of(operator), cloud)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_only_differences_of_times_matter(causal):
    operator = Attention(2, 4, causal=causal, rotary=Rotary())
    found = velocity(operator, Cloud(X, positions=TIMES))
    close(velocity(operator, Cloud(X, positions=TIMES + 3.7)), found)
    assert (velocity(operator, Cloud(X, positions=2 * TIMES)) - found).abs().max() > 1e-2


def test_a_shift_of_both_clouds_changes_nothing_in_cross_attention():
    operator = Cross(Attention(2, 4, rotary=Rotary()))
    encoded, later = draw(2, 3, WIDTH, seed=4), draw(2, 3, seed=5).abs().cumsum(-1)
    found = velocity(operator, Cloud(X, positions=TIMES), Cloud(encoded, positions=later))
    both = velocity(operator, Cloud(X, positions=TIMES + 1.3), Cloud(encoded, positions=later + 1.3))
    close(both, found)
    one = velocity(operator, Cloud(X, positions=TIMES + 1.3), Cloud(encoded, positions=later))
    assert (one - found).abs().max() > 1e-2


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """RoFormer's attention in complex numbers: the score of m and n is Re sum_r q_r conj(k_r) e^{i (m - n) om_r}."""
    tokens, size = q.shape
    om = 10000.0 ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    turn = torch.exp(1j * torch.arange(tokens)[:, None] * om)
    pair = lambda x: torch.complex(x[:, : size // 2], x[:, size // 2 :])  # noqa: E731
    score = ((pair(q) * turn) @ (pair(k) * turn).conj().T).real / size**0.5
    return torch.softmax(score, -1) @ v


@pytest.mark.parametrize(
    "positions", [None, torch.arange(5.0, dtype=torch.float64).expand(2, -1)], ids=["index", "times"]
)
def test_on_whole_numbers_it_is_the_rotary_embedding_written_out(positions):
    operator = Attention(1, 4, biased=False, rotary=Rotary())
    theta = theta_of(operator)
    found = velocity(operator, Cloud(X, positions=positions))
    for x, y in zip(X, found, strict=True):
        close(y, written_out(x @ theta.q[0].T, x @ theta.k[0].T, x @ theta.v[0].T) @ theta.o[0])


def test_absent_tokens_may_stand_anywhere():
    operator = Attention(2, 4, rotary=Rotary())
    mass = torch.ones(2, 5, dtype=torch.float64)
    mass[:, 2] = 0.0
    lost = TIMES.clone()
    lost[:, 2] = torch.nan
    here = torch.tensor([0, 1, 3, 4])
    found = velocity(operator, Cloud(X, mass, lost))
    close(found[:, here], velocity(operator, Cloud(X[:, here], positions=TIMES[:, here])))


def test_float32_stays_float32():
    operator = Attention(2, 4, rotary=Rotary())
    theta = map_leaves(lambda x: x.float(), theta_of(operator))
    cloud = Cloud(X.float(), positions=TIMES.float())
    found = operator.velocity(theta, cloud)
    assert found.dtype == torch.float32
    expected = velocity(operator, Cloud(X, positions=TIMES))
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=1e-4)


def test_gradients_reach_tokens_parameters_and_times():
    operator = Attention(1, 2, biased=False, rotary=Rotary())
    theta = map_leaves(lambda x: x.requires_grad_(), theta_of(operator))
    points, times = X[:1, :3].clone().requires_grad_(), TIMES[:1, :3].clone().requires_grad_()

    def f(points, times, *leaves):
        return operator.velocity(type(theta)(*leaves), Cloud(points, positions=times))

    assert torch.autograd.gradcheck(f, (points, times, *(x for x in theta if x is not None)))


def test_checkpointed_is_direct_and_reaches_the_times(unchecked):
    operator = Attention(2, 4, rotary=Rotary())
    flow = Flow([Part(operator, Constant(operator.spec(WIDTH), torch.Generator().manual_seed(3)))]).double()
    found = []
    for gradient in (Direct(), Checkpointed()):
        points, times = X.clone().requires_grad_(), TIMES.clone().requires_grad_()
        bound = flow.bind(Cloud(points, positions=times))
        end = integrate(bound, bound.initial(), (0.0, 1.0), controller=Fixed(3), gradient=gradient).x
        found.append(torch.autograd.grad(end.square().sum(), (points, times, *flow.parameters())))
    assert found[0][1].abs().max() > 1e-3
    for g, e in zip(*found, strict=True):
        close(g, e)


def test_frequencies_are_geometric():
    found = Rotary(fastest=2.0, slowest=0.02).frequencies(4, Dense(), X)
    close(found, torch.tensor([[2.0, 0.2]], dtype=torch.float64))


def test_frequencies_along_an_axis_are_those_of_a_vector():
    kernel, rotary = Spectral(Axis(3, 4), Cosine(3)), Rotary(fastest=2.0, slowest=0.02)
    found = rotary.frequencies(4, kernel, X)
    together = found.T.flatten()  # from node to node, then on to the next pair
    close(together, rotary.frequencies(12, Dense(), X)[0])  # with as many nodes as modes, those of a vector
    close(rotary.frequencies(4, kernel.at(6), X), found.repeat_interleave(2, 0))  # constant on three cells


def test_every_gauss_node_has_frequencies_of_its_own():
    kernel = Spectral(Axis(16, 4, GaussLegendre()), Legendre(8)).from_fewest_nodes()
    found = Rotary(fastest=2.0, slowest=0.02).frequencies(4, kernel, X)
    close(found.T.flatten(), Rotary(fastest=2.0, slowest=0.02).frequencies(32, Dense(), X)[0])


def test_positions_stay_when_an_axis_is_refined():
    """Constant states along the axis: <R(t) q, R(s) k> depends on s - t in the same way for every number of nodes."""
    profiles = []
    for nodes in (3, 6, 12):
        kernel = Spectral(Axis(nodes, 4), Cosine(3))
        ones = torch.ones(1, 1, len(TIMES[0]), 4 * nodes, dtype=torch.float64)
        measure = Cloud(ones[0], positions=TIMES[:1]).measure
        turned = Rotary(fastest=60.0, slowest=3.0).rotate(ones, measure, 4, kernel)
        profiles.append((turned @ turned.mT)[0, 0] / nodes)
    close(profiles[1], profiles[0])
    close(profiles[2], profiles[0])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="slowest"):
        Rotary(fastest=1.0, slowest=2.0)
    with pytest.raises(ValueError, match="even key"):
        Attention(1, 3, rotary=Rotary())
