import math

import pytest
import torch
from torch import nn

from continua.operators import Activation, Damping, FeedForward, FeedForwardTheta, NoTheta, leaves
from continua.spaces import Cloud
from references import gradients

WIDTH, HIDDEN = 6, 9
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
modules = {
    Activation.GELU: nn.GELU(),
    Activation.GELU_TANH: nn.GELU(approximate="tanh"),
    Activation.RELU: nn.ReLU(),
    Activation.SILU: nn.SiLU(),
    Activation.TANH: nn.Tanh(),
    Activation.IDENTITY: nn.Identity(),
}


def points(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@both_dtypes
@pytest.mark.parametrize("phi1", Activation)
@pytest.mark.parametrize("phi2", [Activation.IDENTITY, Activation.GELU])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_stack_of_torch(dtype, phi1, phi2, biased):
    torch.manual_seed(1)
    first, second = nn.Linear(WIDTH, HIDDEN, biased, dtype=dtype), nn.Linear(HIDDEN, WIDTH, biased, dtype=dtype)
    stack = nn.Sequential(first, modules[phi1], second, modules[phi2])
    theta = FeedForwardTheta(first.weight, second.weight, first.bias, second.bias)
    operator, x = FeedForward(HIDDEN, phi1, phi2, biased), points(dtype).requires_grad_()
    found, inputs = operator.velocity(theta, Cloud(x)), [x, *stack.parameters()]
    torch.testing.assert_close(found, stack(x))
    torch.testing.assert_close(gradients(found, inputs), gradients(stack(x), inputs))


def test_default_is_gelu_inside_and_nothing_outside():
    operator = FeedForward(HIDDEN)
    assert (operator.phi1, operator.phi2) == (Activation.GELU, Activation.IDENTITY)
    assert set(modules) == set(Activation)


def test_sizes_of_the_parameters():
    shapes = {name: leaf.shape for name, leaf in leaves(FeedForward(HIDDEN).spec(WIDTH))}
    assert shapes == {"w1": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN), "b1": (HIDDEN,), "b2": (WIDTH,)}
    assert [name for name, _ in leaves(FeedForward(HIDDEN, biased=False).spec(WIDTH))] == ["w1", "w2"]


def test_damping_pulls_to_the_origin():
    operator = Damping(gamma=0.3)
    assert operator.spec(WIDTH) == NoTheta()
    torch.testing.assert_close(operator.velocity(NoTheta(), Cloud(points())), -0.3 * points())


@pytest.mark.parametrize("gamma", [-0.1, math.nan, math.inf])
def test_bad_damping_is_named(gamma):
    with pytest.raises(ValueError, match=rf"gamma = {gamma}: .*Pass a finite gamma >= 0"):
        Damping(gamma)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match=r"hidden = 0: .*at least 1\. Pass hidden >= 1"):
        FeedForward(0)
