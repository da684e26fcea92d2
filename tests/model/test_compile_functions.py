"""`flow.compile()` where states are functions along the embedding axis: whole graphs, with the right constants."""

import pytest
import torch
from torch._dynamo.utils import counters

from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import Attention, Convolution, FeedForward, LayerNorm, PreNorm, Spectral
from continua.solve import Direct, Euler, Fixed, LieTrotter, integrate
from continua.spaces import Axis, Cloud, Cosine, Fourier, GaussLegendre, Legendre

pytestmark = [
    # The shape checker of the tests does not know the symbolic tensors of a compiler.
    pytest.mark.usefixtures("unchecked"),
    # torch's compiler warns of itself.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
EVEN, GAUSS = Axis(5, 2), Axis(5, 2, GaussLegendre())
KERNELS = {
    "Legendre": Spectral(GAUSS, Legendre(3)),
    "Cosine": Spectral(EVEN, Cosine(3)),
    "Fourier": Spectral(EVEN, Fourier(3)),
    "Convolution": Convolution(EVEN, 2),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def flow_of(*operators) -> Flow:
    generator = torch.Generator().manual_seed(0)
    return Flow([Part(f, Constant(f.spec(10), generator)) for f in operators])


def outcome(flow: Flow, stepper=LieTrotter()) -> list[torch.Tensor]:
    """The end of a solve, and its gradients."""
    flow.zero_grad()
    points = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(1)).requires_grad_()
    bound = flow.bind(Cloud(points), random=False)
    end = integrate(bound, bound.initial(), (0.0, 1.0), stepper, Fixed(2), Direct()).x
    end.square().mean().backward()
    return [end.detach(), *(p.grad.clone() for p in flow.parameters())]


@pytest.mark.parametrize("name", ["Legendre", "Convolution"])
def test_kernels_are_compiled_as_one_graph(name):
    """`fullgraph` makes a break an error."""
    kernel = KERNELS[name]
    norm = LayerNorm(axis=kernel.axis)
    flow = flow_of(PreNorm(norm, Attention(2, 2, kernel=kernel)), PreNorm(norm, FeedForward(3, kernel=kernel)))
    expected = outcome(flow)
    flow.compile(backend="aot_eager", fullgraph=True)
    for a, b in zip(outcome(flow), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert counters["stats"]["unique_graphs"] == 2, "one for each part of the splitting"


def test_parts_of_one_shape_keep_the_transforms_of_their_own_axis():
    """The transforms are constants of a graph: one made for the first part must not serve the second."""
    flow = flow_of(*(FeedForward(3, kernel=KERNELS[name]) for name in ("Legendre", "Cosine", "Fourier")))
    expected = outcome(flow)
    flow.compile(backend="eager", fullgraph=True)
    for a, b in zip(outcome(flow), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(expected[0], outcome(flow_of(*[FeedForward(3, kernel=KERNELS["Cosine"])] * 3))[0])


def test_two_axes_in_one_graph():
    operators = [FeedForward(3, kernel=KERNELS[name]) for name in ("Legendre", "Cosine")]
    flow = flow_of(*operators)
    expected = outcome(flow, Euler())
    flow.compile(backend="aot_eager", fullgraph=True)
    for a, b in zip(outcome(flow, Euler()), expected, strict=True):
        torch.testing.assert_close(a, b)
