"""Cells of the training experiments: finite networks against their limit, and closed forms against autograd."""

import dataclasses
from typing import Any, final

import torch

from continua.core.shapes import Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.training.limit import Kept, limit_courses
from continua.lab.training.network import Network, Pass
from continua.lab.training.problem import Problem, Training
from continua.lab.training.trained import trained
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True)
class AgainstLimit(AbstractCell):
    """Squared errors of many networks of L layers and H heads, after some numbers of updates.

    Of states and adjoints: the largest over layers, sequences (those of training and others) and tokens. Of parameters:
    the mean over layers and heads of |theta - Phi(theta_0)|^2. Without sampling, every layer holds every atom once.
    """

    layers: int
    heads: int
    seeds: int
    asked: tuple[int, ...]
    problem: Problem
    training: Training
    sampled: bool = True
    first: int = 0
    nodes: int = 33

    def measure(self) -> Row:
        problem, updates = self.problem, max(self.asked)
        depths = torch.arange(self.layers + 1, dtype=torch.float64) / self.layers
        drawn = problem.drawn(self.layers, self.seeds, self.heads, self.first)
        places = drawn if self.sampled else problem.every(self.layers)
        exact = limit_courses(problem, self.training, self.asked, self.nodes)
        network = Network(problem, places)
        errors: dict[str, list[Any]] = {"states": [], "adjoints": [], "parameters": [], "losses": []}

        def compare(update: int, passed: Pass) -> None:
            if update not in self.asked:
                return
            limit = exact[update]
            errors["states"].append(_largest(passed.states - limit.at(depths, limit.course.states)[:, None]))
            errors["adjoints"].append(_largest(passed.adjoints - limit.at(depths, limit.course.adjoints)[:, None]))
            errors["parameters"].append(_distances(network, limit, depths[:-1]))
            errors["losses"].append(problem.loss(passed.states[-1].flatten(0, 1)).tolist())

        trained(network, self.training, updates, compare)
        sizes = {"layers": self.layers, "heads": self.heads, "width": problem.width, "sampled": self.sampled}
        return {**sizes, "blockwise": self.training.blockwise, "updates": list(self.asked), **errors}


def _largest(gap: Tensor) -> list[float]:
    """The largest squared distance of each seed; gap is (depths, seeds, sequences, tokens, width)."""
    return gap.square().sum(-1).amax((0, 2, 3)).tolist()


def _distances(network: Network, limit: Kept, depths: Tensor) -> list[float]:
    layer = torch.arange(network.layers)[:, None, None]
    total = torch.zeros(network.seeds, dtype=torch.float64)
    for own, path in zip(network.parameters, limit.parameters, strict=True):
        gap = own - limit.at(depths, path)[layer, network.places]
        total += gap.square().sum((-1, -2)).mean((0, 2))
    return total.tolist()


@final
@dataclasses.dataclass(frozen=True)
class ClosedForm(AbstractCell):
    """Adjoint recursion and gradient map in closed form against autograd through the layers: relative errors."""

    layers: int
    heads: int
    seeds: int
    problem: Problem

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.drawn(self.layers, self.seeds, self.heads, 0))
        with torch.no_grad():
            passed = network.both()
        closed = [w.grad.clone() for w in network.parameters if w.grad is not None]
        start = self.problem.start().repeat(self.seeds, 1, 1).requires_grad_()
        for w in network.parameters:
            w.grad = None
            w.requires_grad_()
        x = start
        for layer in range(self.layers):
            x = x + network.operator.velocity(network.theta(layer, self.problem.sequences), Cloud(x)) / self.layers
        trained_on = self.problem.loss(x).sum()
        gradients = torch.autograd.grad(trained_on, network.parameters, retain_graph=True)
        gaps = x - self.problem.targets().repeat(self.seeds, 1, 1)
        (cotangent,) = torch.autograd.grad(0.5 * gaps.square().sum(-1).mean(-1).sum(), start)
        scale = self.layers * self.heads
        adjoint = passed.adjoints[0].flatten(0, 1) - self.problem.tokens * cotangent
        return {
            "adjoint": float(adjoint.abs().max() / passed.adjoints[0].abs().max()),
            "gradient": max(
                float((c - scale * g).abs().max() / c.abs().max()) for c, g in zip(closed, gradients, strict=True)
            ),
        }
