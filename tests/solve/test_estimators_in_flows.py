"""Estimators inside a flow: nodes are drawn once, when it is bound, and every replay meets them again."""

import dataclasses

import pytest
import torch

from continua.fields import Constant, PiecewiseConstant
from continua.model import Flow, Part, load, save
from continua.operators import (
    Attention,
    ControlVariate,
    Cross,
    Debiased,
    Lattice,
    LogTokens,
    Nystrom,
    Sobol,
    Subset,
    Sum,
)
from continua.solve import Adaptive, Checkpointed, Direct, Fixed, PerSequence, integrate
from continua.spaces import Cloud
from gradients import assert_same

estimators = [Subset(3), Subset(3, Sobol()), Debiased(3), ControlVariate(3, Nystrom(3)), Nystrom(3)]
WIDTH = 2


def flow_of(estimator, layers: bool = False, cross: bool = False) -> Flow:
    generator = torch.Generator().manual_seed(0)
    attention = Attention(1, 2, causal=estimator.serves_causal, integral=estimator)
    plain = dataclasses.replace(attention, causal=False)
    operators = [attention, Cross(plain) if cross else Sum((attention, plain))]
    field = lambda spec: PiecewiseConstant(spec, (0.0, 0.4, 1.0), generator) if layers else Constant(spec, generator)  # noqa: E731
    return Flow([Part(operator, field(operator.spec(WIDTH))) for operator in operators]).double()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(2, 12, WIDTH, generator=generator, dtype=torch.float64)
    mass = 0.2 + torch.rand(2, 12, generator=generator, dtype=torch.float64)
    mass[0, -2:] = 0.0
    encoded = torch.randn(2, 9, WIDTH, generator=generator, dtype=torch.float64)
    return points.requires_grad_(), mass.requires_grad_(), encoded.requires_grad_()


def gradients(flow, controller, gradient):
    points, mass, encoded = inputs()
    bound = flow.bind(Cloud(points, mass), torch.Generator().manual_seed(3), Cloud(encoded))
    end = integrate(bound, bound.initial(), (0.0, 1.0), controller=controller, gradient=gradient).x
    wanted = [points, mass, encoded, *flow.parameters()]
    found = torch.autograd.grad(end.sin().sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


@pytest.mark.parametrize("estimator", estimators, ids=repr)
@pytest.mark.parametrize("controller", [Fixed(3), Adaptive(1e-4, 1e-4)], ids=repr)
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_checkpointed_is_direct_with_estimators(estimator, controller, cross, unchecked):
    flow = flow_of(estimator, layers=not cross, cross=cross)
    assert_same(
        gradients(flow, controller, Checkpointed(segment=1.0, steps=2)), gradients(flow, controller, Direct()), 1e-12
    )


def test_checkpointed_is_direct_with_a_grid_for_each_sequence(unchecked):
    flow, controller = flow_of(Subset(3)), PerSequence(1e-4, 1e-4)
    assert_same(gradients(flow, controller, Checkpointed()), gradients(flow, controller, Direct()), 1e-12)


def bound_nodes(flow: Flow, training: bool = True) -> list[torch.Tensor]:
    """The nodes of every attention of every piece."""
    points, mass, _ = inputs()
    bound = flow.bind(Cloud(points, mass), torch.Generator().manual_seed(3), random=training)
    first = []
    for inside in (0.1, 0.7):
        bound._bind(inside)
        first += [operator for _, operator, _ in bound._terms]
    attentions = [first[0], *first[1].terms, first[2], *first[3].terms]
    return [attention.integral.nodes.chosen for attention in attentions]


def test_parts_pieces_and_terms_draw_nodes_of_their_own():
    found = bound_nodes(flow_of(Subset(5), layers=True))
    assert len({tuple(index.flatten().tolist()) for index in found}) == 6


def test_in_evaluation_all_draw_the_same_nodes():
    found = bound_nodes(flow_of(Subset(5), layers=True), training=False)
    assert len({tuple(index.flatten().tolist()) for index in found}) == 1


@pytest.mark.parametrize("estimator", estimators, ids=repr)
def test_nodes_follow_the_generator(estimator, unchecked):
    flow = flow_of(estimator)
    points, mass, _ = (x.detach() for x in inputs())

    def end(seed: int, training: bool = True) -> torch.Tensor:
        bound = flow.bind(Cloud(points, mass), torch.Generator().manual_seed(seed), random=training)
        return integrate(bound, bound.initial(), (0.0, 1.0), controller=Fixed(2)).x

    assert torch.equal(end(1), end(1)) and torch.equal(end(1, training=False), end(2, training=False))
    assert torch.equal(end(1), end(2)) == isinstance(estimator, Nystrom)


@pytest.mark.parametrize("estimator", [*estimators, Subset(LogTokens(1.5), Lattice(common=4))], ids=repr)
def test_a_flow_with_an_estimator_is_saved(estimator, tmp_path):
    flow = flow_of(estimator)
    again = load(save(flow, tmp_path))
    assert [part.operator for part in again.parts] == [part.operator for part in flow.parts]
