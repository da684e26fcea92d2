"""Weights laid out once per solve are those that are laid out at every depth."""

import pytest
import torch

from continua.fields import ContinuousHeads, Expansion
from continua.model import Depth, EmbeddingAxis, HeadMeasure, transformer
from continua.operators.kernels import by_transforms
from continua.solve import Checkpointed, Direct, State
from continua.spaces import Cloud

AXES = {
    "spectral": EmbeddingAxis(4, 3),
    "fft": EmbeddingAxis(5, 2, periodic=True),
    "vectors": 1,
}


def built(axis, heads, **named):
    torch.manual_seed(0)
    width = 20 if isinstance(axis, EmbeddingAxis) and axis.periodic else 16
    return transformer(width, 3, features=1, axis=axis, heads=heads, hidden=2 * width, **named).double()


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("heads", [2, HeadMeasure(4, 3)], ids=["counted", "measure"])
def test_the_velocity_and_its_gradients_are_the_same(axis, heads):
    model = built(AXES[axis], heads)
    x = torch.randn(2, 30, model.embedding.width, dtype=torch.float64)
    found = []
    for one_graph in (False, True):
        f = model.flow.bind(Cloud(x, positions=torch.linspace(0, 1, 30).expand(2, -1).double()), one_graph=one_graph)
        slopes = [f(z, State(x)).x for z in (0.0, 1.3, 4.0)]
        laid_out = [w is not None for w in f._weights]
        assert laid_out == [
            one_graph and (axis != "vectors" or isinstance(heads, HeadMeasure)),
            one_graph and axis != "vectors",
        ]
        grads = torch.autograd.grad(sum(s.square().sum() for s in slopes), list(model.flow.parameters()))
        found.append([*slopes, *grads])
    for plain, laid in zip(*found, strict=True):
        torch.testing.assert_close(laid, plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("heads", [2, HeadMeasure(4, 3)], ids=["counted", "measure"])
def test_weights_of_a_known_grid_are_made_at_once(heads):
    model = built(AXES["spectral"], heads)
    x, depths = torch.randn(2, 30, 16, dtype=torch.float64), (0.5, 1.5)
    found = []
    for expected in ((), depths):
        f = model.flow.bind(Cloud(x), one_graph=True, windowed=False)
        if expected:
            f.expect(expected)
        assert all([*w._ready] == [*expected] for w in f._weights)
        slopes = [f(z, State(x)).x for z in (*depths, 1.9)]  # of another depth they are made when it is asked
        grads = torch.autograd.grad(sum(s.square().sum() for s in slopes), list(model.flow.parameters()))
        found.append([*slopes, *grads])
    for one_by_one, at_once in zip(*found, strict=True):
        torch.testing.assert_close(at_once, one_by_one, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("training", [True, False])
def test_a_split_solve_reads_the_depths_that_it_told(training):
    """With a gradient all weights are made before; without one, one depth after the other, as none is kept."""
    model = built(AXES["spectral"], HeadMeasure(4, 3), depth=Depth(2.0, steps=3))
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    with torch.set_grad_enabled(training):
        f = model.flow.bind(Cloud(x), one_graph=True, windowed=False)
        model.at(grid=(0.0, 0.3, 1.1, 2.0)).solver.solve(f, f.initial(), (0.0, 2.0), Direct())
    assert [len(w._ready) for w in f._weights] == ([3, 3] if training else [0, 0])
    assert all((not w._modes) == training for w in f._weights)  # nothing else was asked


def test_only_one_backward_pass_through_the_whole_solve_shares_them():
    model, x = built(AXES["spectral"], HeadMeasure(4, 3), depth=Depth(2.0, steps=3)), torch.randn(2, 30, 1).double()
    grads = []
    for gradient in (Direct(), Checkpointed()):
        model.zero_grad()
        model.at(gradient=gradient)(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for direct, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(checkpointed, direct, rtol=1e-9, atol=1e-11)


def test_few_tokens_and_watchers_of_weights_read_the_field():
    part = built(AXES["spectral"], 2).flow.parts[0]
    many, few = (Cloud(torch.zeros(1, tokens, 16, dtype=torch.float64)) for tokens in (30, 2))
    assert part.lay_out(many) is not None and part.lay_out(few) is None
    with by_transforms():
        assert part.lay_out(many) is None
    assert isinstance(part.field, Expansion) and not isinstance(part.field, ContinuousHeads)
