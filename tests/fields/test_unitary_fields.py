"""Kernels with orthonormal columns that vary in depth: theta(z) = W exp(S(z)), S skew-Hermitian in a basis."""

import pytest
import torch

from continua.fields import ContinuousHeads, Expansion
from continua.model import ContinuousTransformer, Flow, MeanReadout, Part, VectorEmbedding, load, save
from continua.operators import Attention, Convolution, Dense, FeedForward
from continua.optim import Recipe
from continua.solve import Direct, Fixed, Midpoint, Solver
from continua.spaces import Axis, BSpline, Cosine, FlatSpace, Legendre, StiefelSpace

WIDTH = 6
AXIS = Axis(3, 2)
KERNELS = {"dense": Dense(orthonormal=True), "multipliers": Convolution(AXIS, 1, unitary=True)}
each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
DEPTHS = (0.0, 0.37, 1.2, 2.0, torch.tensor([0.1, 1.9], dtype=torch.float64))


def stirred(field, size=1.0):
    """A field in float64, whose generators are of order one, and whose frames are orthonormal to its rounding."""
    generator, spaces = torch.Generator().manual_seed(0), field.parameter_spaces()
    for name, parameter in field.double().named_parameters():
        if isinstance(spaces[name], StiefelSpace):
            parameter.data.copy_(spaces[name].project(parameter.data))
        else:
            parameter.data += size * torch.randn(parameter.shape, generator=generator).double()
    return field


@each_kernel
@pytest.mark.parametrize("basis", [Legendre(3), Cosine(4), BSpline(4, 0)], ids=repr)
def test_kernels_are_orthonormal_at_every_depth_and_vary(kernel, basis):
    operator = FeedForward(4, kernel=kernel)
    field = Expansion(operator.spec(WIDTH), basis, 2.0, torch.Generator().manual_seed(0))
    space = StiefelSpace(paired=kernel is not KERNELS["dense"])
    start = field(1.0).w1.detach()
    torch.testing.assert_close(field(0.2).w1.detach(), start)  # S = 0: constant in depth
    torch.testing.assert_close(start, field.frames["w1"].detach())
    stirred(field)
    assert field.parameter_spaces()["frames.w1"] == space
    assert field.parameter_spaces()["coefficients.w1"] == FlatSpace(2)
    for z in DEPTHS:
        for w in (field(z).w1.detach(), field(z).w2.detach()):
            assert float(space.defect(w)) < 1e-13
    assert float((field(0.37).w1 - field(1.9).w1).detach().abs().max()) > 0.1


def test_the_zero_frequency_stays_real():
    field = stirred(Expansion(FeedForward(4, kernel=KERNELS["multipliers"]).spec(WIDTH), Legendre(3), 2.0))
    w = field(0.7).w1.detach()
    assert float(w[0, 1].abs().max()) == 0.0 and float(w[1, 1].abs().max()) > 0.1


@each_kernel
def test_continuous_heads_are_orthonormal_at_every_depth_and_differ(kernel):
    operator = Attention(heads=4, key_size=2, head_masses=True, kernel=kernel)
    field = ContinuousHeads(operator.spec(WIDTH), 2.0, over_z=Cosine(3), generator=torch.Generator().manual_seed(0))
    space = StiefelSpace(paired=kernel is not KERNELS["dense"])
    first = field(0.3).q.detach()
    assert float((first[0] - first[3]).abs().max()) > 0.1, "equal heads would stay equal"
    torch.testing.assert_close(field(1.8).q.detach(), first)
    stirred(field, 0.3)
    for nodes in (4, 7):
        for z in DEPTHS:
            theta = field.at_nodes(nodes)(z)
            assert max(float(space.defect(getattr(theta, name).detach())) for name in "qkvo") < 1e-13
    assert all(a is b for a, b in zip(field.parameters(), field.at_nodes(7).parameters(), strict=True))


def model(kernel) -> ContinuousTransformer:
    torch.manual_seed(0)
    attention = Attention(heads=4, key_size=2, head_masses=True, kernel=kernel)
    feedforward = FeedForward(4, kernel=kernel)
    parts = [
        Part(attention, ContinuousHeads(attention.spec(WIDTH), over_z=Cosine(2))),
        Part(feedforward, Expansion(feedforward.spec(WIDTH), Legendre(3))),
    ]
    solver = Solver(Midpoint(), Fixed(2))
    return ContinuousTransformer(VectorEmbedding(2, WIDTH), Flow(parts), MeanReadout(WIDTH, 2), solver, Direct())


def optimiser_of(trained, name):
    if name == "recipe":
        return Recipe().build(trained)
    for frames in (name for name, _ in trained.named_parameters() if ".frames." in name):
        trained.get_parameter(frames).requires_grad_(False)  # the exponential keeps orthonormal what was so
    return torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=1e-2)


@each_kernel
@pytest.mark.parametrize("name", ["recipe", "AdamW, frames frozen"])
def test_unitary_filters_that_vary_in_depth_train(kernel, name, tmp_path, unchecked):
    trained = model(kernel)
    signal = torch.randn(32, 6, 2, generator=torch.Generator().manual_seed(1))
    labels = (signal.mean(1)[:, 0] > signal.mean(1)[:, 1]).long()
    optimiser, losses = optimiser_of(trained, name), []
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(trained(signal), labels)
        loss.backward()
        losses.append(float(loss.detach()))
        optimiser.step()
    assert losses[-1] < 0.8 * losses[0]
    space = StiefelSpace(paired=kernel is not KERNELS["dense"])
    for z in (0.0, 0.4, 1.0):
        for part, leaves in zip(trained.flow.parts, ("qkvo", ("w1", "w2")), strict=True):
            theta = part.field(z)
            assert max(float(space.defect(getattr(theta, leaf).detach())) for leaf in leaves) < 1e-5
    theta = [trained.flow.parts[1].field(z).w1.detach() for z in (0.0, 1.0)]
    assert float((theta[0] - theta[1]).abs().max()) > 1e-3, "the filters vary in depth"
    other = load(save(trained, tmp_path))
    assert torch.equal(other(signal), trained(signal))
