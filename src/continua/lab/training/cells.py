"""Cells of the training experiments: networks against their limit, drawn and adversarial, and closed forms."""

import functools
from typing import Any, NamedTuple, final

import torch

from continua.core.shapes import Float, Points, Tensor
from continua.lab.derivatives import radial
from continua.lab.flows import in_ball
from continua.lab.sweep import AbstractCell, Row
from continua.lab.training.networks import Limit, Network, NetworkPass, TrainedLimit, compute_limits, train
from continua.lab.training.problem import Problem, UpdateRule
from continua.spaces import Cloud


@final
class AgainstLimit(AbstractCell):
    """Squared errors of many networks of L layers and H heads, after some numbers of updates.

    Of states and adjoints: the largest over layers, sequences (those of training and others) and tokens. Of parameters:
    the mean over layers and heads of |theta - Phi(theta_0)|^2. Without sampling, every layer holds every atom once.
    """

    layers: int
    heads: int
    seeds: int
    milestones: tuple[int, ...]
    problem: Problem
    rule: UpdateRule
    sampled: bool = True
    first: int = 0
    nodes: int = 33

    def measure(self) -> Row:
        problem, updates = self.problem, max(self.milestones)
        depths = torch.arange(self.layers + 1, dtype=torch.float64) / self.layers
        drawn = problem.draw_atoms(self.layers, self.seeds, self.heads, self.first)
        places = drawn if self.sampled else problem.all_atoms(self.layers)
        exact = compute_limits(problem, self.rule, self.milestones, self.nodes)
        network = Network(problem, places)
        errors: dict[str, list[Any]] = {"states": [], "adjoints": [], "parameters": [], "losses": []}

        def compare(update: int, passed: NetworkPass) -> None:
            if update not in self.milestones:
                return
            limit = exact[update]
            errors["states"].append(_largest(passed.states - limit.at(depths, limit.path.states)[:, None]))
            errors["adjoints"].append(_largest(passed.adjoints - limit.at(depths, limit.path.adjoints)[:, None]))
            errors["parameters"].append(_distances(network, limit, depths[:-1]))
            errors["losses"].append(problem.loss(passed.states[-1].flatten(0, 1), update).tolist())

        train(network, self.rule, updates, compare)
        sizes = {"layers": self.layers, "heads": self.heads, "width": problem.width, "sampled": self.sampled}
        return {**sizes, "blockwise": self.rule.blockwise, "updates": list(self.milestones), **errors}


def _largest(gap: Tensor) -> list[float]:
    """The largest squared distance of each seed; gap is (depths, seeds, sequences, tokens, width)."""
    return gap.square().sum(-1).amax((0, 2, 3)).tolist()


def _distances(network: Network, limit: TrainedLimit, depths: Tensor) -> list[float]:
    total = torch.zeros(network.seeds, dtype=torch.float64)
    for own, path in zip(network.parameters, limit.parameters, strict=True):
        gap = own - network.problem.read_atoms(limit.at(depths, path), network.places)
        total += gap.square().sum((-1, -2)).mean((0, 2))
    return total.tolist()


@final
class ClosedForm(AbstractCell):
    """Adjoint recursion and gradient map in closed form against autograd through the layers: relative errors."""

    layers: int
    heads: int
    seeds: int
    problem: Problem

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.draw_atoms(self.layers, self.seeds, self.heads, 0))
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
        # The adjoint of a measure is N times the derivative in one of its N tokens (docs/mathematics.md, section 8).
        adjoint = passed.adjoints[0].flatten(0, 1) - self.problem.tokens * cotangent
        return {
            "adjoint": float(adjoint.abs().max() / passed.adjoints[0].abs().max()),
            "gradient": max(
                float((c - scale * g).abs().max() / c.abs().max()) for c, g in zip(closed, gradients, strict=True)
            ),
        }


_TURNS = 3
"""Terminal values of adjoints that are tried, each better than the last."""
_DIFFERENCE = 1e-5


class _Climb(NamedTuple):
    """The largest squared distance of each seed over layers, sequences and tokens, and how it grows with x(0)."""

    largest: Float[Tensor, " seeds"]
    slope: Points


@final
class Adversarial(AbstractCell):
    """Squared errors of the states of trained networks, the largest that projected gradient ascent on x(0) finds.

    Every seed has its own initial conditions in the ball, none of them seen in training. They climb the distance of the
    worst token at depth 1; its derivative is the adjoint of the network minus that of the limit, both with the gap of
    that token as terminal value. `drawn` is where they begin, `found` the largest met on the way.
    """

    layers: int
    heads: int
    seeds: int
    updates: int
    problem: Problem
    rule: UpdateRule
    starts: int = 1
    ascent: int = 8
    nodes: int = 33

    def measure(self) -> Row:
        problem = self.problem
        network = Network(problem, problem.draw_atoms(self.layers, self.seeds, self.heads, 0))
        train(network, self.rule, self.updates, lambda update, passed: None)
        limit = Limit(problem, self.nodes)
        exact = compute_limits(problem, self.rule, (self.updates,), self.nodes)[self.updates]
        limit.parameters = exact.parameters
        depths = torch.arange(self.layers + 1, dtype=torch.float64) / self.layers

        def compare(start: Points) -> _Climb:
            states, path = network.forward(start), limit.forward(start)
            gaps = torch.stack(states) - exact.at(depths, path)
            squares = gaps.square().sum(-1)  # (depths sequences tokens)
            worst = squares[-1] == squares[-1].amax(-1, keepdim=True)
            end = gaps[-1] * worst[..., None]
            own, other = network.backward(states, end)[0], limit.backward(path, end)[0]
            # Both adjoints are linear in their terminal value, so their difference is the slope of |gap|^2 / 2.
            return _Climb(squares.amax((0, 2)).unflatten(0, (self.seeds, -1)).amax(-1), own - other)

        x = in_ball((self.seeds * self.starts, problem.tokens, problem.width), problem.radius, 6000)
        with torch.no_grad():
            here = compare(x)
            drawn = found = here.largest
            for _ in range(self.ascent):
                # Steps of one length for the token that moves most.
                lengths = here.slope.norm(dim=-1, keepdim=True).amax(-2, keepdim=True).clamp_min(1e-300)
                x = radial(x + 0.3 * problem.radius * (here.slope / lengths), problem.radius)
                here = compare(x)
                found = torch.maximum(found, here.largest)
            turned = self._adjoints(network, limit, exact, x)
        sizes = {"layers": self.layers, "heads": self.heads, "updates": self.updates}
        return {**sizes, "drawn": drawn.tolist(), "found": found.tolist(), "adjoints": turned.amax(0).tolist(),
                "adjoints_drawn": turned[0].tolist()}  # fmt: skip

    def _adjoints(self, network: Network, limit: Limit, exact: TrainedLimit, x: Points) -> Float[Tensor, "turns seeds"]:
        """Squared errors of adjoints over terminal values of at most 1 for every token, each better than the last.

        It is linear in the terminal value, E p(1), so that p <- E^T E p climbs it; E^T w is how far the two flows move
        apart when x(0) moves along w, by differences.
        """
        depths = torch.arange(self.layers + 1, dtype=torch.float64) / self.layers
        states, path = network.forward(x), limit.forward(x)
        p = in_ball(x.shape, 1.0, 6001)
        found: list[Float[Tensor, " seeds"]] = []
        for _ in range(_TURNS):
            own, other = network.backward(states, p), limit.backward(path, p)
            gaps = torch.stack(own) - exact.at(depths, other)
            found.append(gaps.square().sum(-1).amax((0, 2)).unflatten(0, (self.seeds, -1)).amax(-1))
            w = _DIFFERENCE * gaps[0] / gaps[0].norm(dim=(-1, -2), keepdim=True).clamp_min(1e-300)
            ends = [network.forward(x + s * w)[-1] - limit.forward(x + s * w)[-1] for s in (1.0, -1.0)]
            slope = ends[0] - ends[1]
            p = slope / slope.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        return torch.stack(found)


class _Fine(NamedTuple):
    """A network of very many layers, every atom in each: the limit where polynomials over depth do not reach it."""

    passed: NetworkPass
    parameters: list[Tensor]


@functools.lru_cache(maxsize=2)
def _train_fine(problem: Problem, rule: UpdateRule, updates: int, layers: int) -> _Fine:
    network = Network(problem, problem.all_atoms(layers))
    seen: list[NetworkPass] = []
    train(network, rule, updates, lambda update, passed: seen.append(passed) if update == updates else None)
    return _Fine(seen[0], [w[:, 0] for w in network.parameters])


@final
class AgainstFine(AbstractCell):
    """As `AgainstLimit` after the last update, with a network of `fine` layers and no sampling for the limit.

    With an eps as small as in practice updates are signs of gradients, and paths of atoms over depth jump where one
    changes its sign: no polynomial resolves them. The error of the fine network itself, of order 1/fine, is told by
    that of one of half as many layers.
    """

    layers: int
    heads: int
    seeds: int
    updates: int
    problem: Problem
    rule: UpdateRule
    fine: int

    def measure(self) -> Row:
        problem, stride = self.problem, self.fine // self.layers
        limit = _train_fine(problem, self.rule, self.updates, self.fine)
        network = Network(problem, problem.draw_atoms(self.layers, self.seeds, self.heads, 0))
        errors: dict[str, Any] = {"layers": self.layers, "heads": self.heads}

        def compare(update: int, passed: NetworkPass) -> None:
            if update == self.updates:
                errors["states"] = [_largest(passed.states - limit.passed.states[::stride])]
                errors["adjoints"] = [_largest(passed.adjoints - limit.passed.adjoints[::stride])]

        train(network, self.rule, self.updates, compare)
        total = torch.zeros(self.seeds, dtype=torch.float64)
        for own, path in zip(network.parameters, limit.parameters, strict=True):
            total += (own - problem.read_atoms(path[::stride], network.places)).square().sum((-1, -2)).mean((0, 2))
        half = _train_fine(problem, self.rule, self.updates, self.fine // 2)
        gap = max(_largest(half.passed.states - limit.passed.states[::2]))
        return {**errors, "parameters": [total.tolist()], "resolution": gap**0.5}
