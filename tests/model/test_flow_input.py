"""What a flow refuses when it is built and when it is bound."""

import dataclasses
import math

import pytest
import torch

from continua import (
    Adaptive,
    Attention,
    Backsolve,
    Checkpointed,
    Cloud,
    Constant,
    Direct,
    Expansion,
    FeedForward,
    Flow,
    Part,
    PerSequence,
    Solver,
    integrate,
)
from continua.solve.step_size import Tolerance
from continua.spaces import Legendre
from models import adaptive_model
from registries import all_fields

SPEC = FeedForward(3).spec(4)


@pytest.mark.parametrize("make", all_fields.values(), ids=all_fields.keys())
def test_a_flow_does_not_go_beyond_the_reach_of_its_fields(make):
    field = make(SPEC, None)
    assert field.reach == math.inf or field.reach == field.depth
    if field.reach < math.inf:
        with pytest.raises(ValueError, match=r"parts\[0\].field.reach = .*the flow goes on to depth 7.0.*depth=7.0"):
            Flow([Part(FeedForward(3), field)], depth=7.0)


def test_a_short_expansion_is_not_extrapolated():
    with pytest.raises(ValueError, match=r"reach = 1.0: the flow goes on to depth 2.0. Build it with depth=2.0"):
        Flow([Part(FeedForward(3), Expansion(SPEC, Legendre(3)))], depth=2.0)


def test_without_a_depth_a_flow_has_that_of_its_fields():
    assert Flow([Part(FeedForward(3), Expansion(SPEC, Legendre(3), 4.0))]).depth == 4.0
    assert Flow([Part(FeedForward(3), Constant(SPEC))]).depth == 1.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            torch.zeros(1, 2, 4, dtype=torch.float64),
            "cloud = 'torch.float64 on cpu': the model is torch.float32 on cpu",
        ),
        (torch.zeros(1, 2, 5), r"flow.parts\[0\].w1 = \(3, 4\): on tokens of width 5"),
    ],
    ids=["dtype", "width"],
)
def test_tokens_fit_the_parameters(points, message):
    flow = Flow([Part(FeedForward(3), Constant(SPEC))])
    with pytest.raises(ValueError, match=message):
        flow.bind(Cloud(points))


def test_a_memory_has_the_dtype_of_the_model():
    flow, encoded = Flow([Part(FeedForward(3), Constant(SPEC))]), Cloud(torch.zeros(1, 2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"encoded = 'torch.float64 on cpu'.*Convert the points"):
        flow.bind(Cloud(torch.zeros(1, 2, 4)), encoded=encoded)


@pytest.mark.parametrize("control", [Adaptive(max_steps=77, all_ranks=True), PerSequence(max_steps=77)], ids=repr)
def test_other_tolerances_keep_the_rest_of_the_control(control):
    model = adaptive_model(8, 2, features=1).at(solver=Solver(controller=control)).at(rtol=1e-5)
    assert isinstance(model.solver, Solver)
    found = model.solver.controller
    assert found == dataclasses.replace(control, rtol=1e-5) and found.tolerance == Tolerance(1e-5, 1e-5)


@pytest.mark.parametrize("gradient", [Checkpointed(), Backsolve(), Direct()], ids=lambda g: type(g).__name__)
def test_exchanged_parameters_are_noticed(gradient):
    """`functional_call` gives the flow other parameters for the forward pass alone."""

    class Solved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = Flow([Part(Attention(1, 4), Constant(Attention(1, 4).spec(4)))])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bound = self.flow.bind(Cloud(x))
            return integrate(bound, bound.initial(), (0.0, 1.0), gradient=gradient).x

    module, x = Solved(), torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    other = {name: (2 * p.detach()).requires_grad_() for name, p in module.named_parameters()}
    loss = torch.func.functional_call(module, other, (x,)).square().sum()
    if isinstance(gradient, Direct):
        assert all(g is not None for g in torch.autograd.grad(loss, list(other.values()), allow_unused=False))
        return
    with pytest.raises(RuntimeError, match=r"no longer those of the forward pass .functional_call.*Direct"):
        loss.backward()
