"""Finite networks, many at once, and their infinitely deep and wide limit, with gradients in closed form."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Shaped

from continua.core.errors import SolveError
from continua.core.shapes import Float, Points, Tensor
from continua.lab.derivatives import AttentionAdjoint, pullback
from continua.lab.training.problem import Problem, UpdateRule
from continua.operators import AttentionTheta
from continua.spaces import Cloud

_CLOSE = 1e-14
"""Relative to the largest entry: a few dozen rounding units."""
_Path: TypeAlias = Float[Tensor, "nodes sequences tokens width"]


class NetworkPass(NamedTuple):
    """One pass forward and back, at every layer: states x_r and adjoints p_r, r = 0, ..., L."""

    states: Float[Tensor, "depths seeds sequences tokens width"]
    adjoints: Float[Tensor, "depths seeds sequences tokens width"]


class Network:
    """x_{r+1} = x_r + (1/L) A(x_r, m_r, nu_r) for many seeds at once (docs/mathematics.md, section 8).

    Layers follow each other; seeds, sequences, heads and tokens are axes of tensors.
    """

    def __init__(self, problem: Problem, places: Shaped[Tensor, "layers seeds heads"]) -> None:
        self.problem, self.places = problem, places
        self.layers, self.seeds, self.heads = places.shape
        self.step = 1.0 / self.layers
        self.parameters = problem.heads_at(places)
        """Q, K, V, O: each (layers, seeds, heads, key, width)."""
        self.operator = problem.operator(self.heads)

    def theta(self, layer: int, sequences: int) -> AttentionTheta:
        """The parameters of one layer, one set for each of the sequences of each seed."""
        spread = (w[layer].repeat_interleave(sequences, 0) if sequences > 1 else w[layer] for w in self.parameters)
        masses = self.parameters[0].new_full((self.seeds * sequences, self.heads), 1.0 / self.heads)
        return AttentionTheta(*spread, p=masses)

    def forward(self, start: Points) -> list[Points]:
        """x_0, ..., x_L, from as many sequences for each seed, those of one seed after another."""
        x, measure, sequences = start, Cloud(start).measure, len(start) // self.seeds
        states = [x]
        for layer in range(self.layers):
            x = x + self.step * self.operator.velocity(self.theta(layer, sequences), Cloud.on(x, measure))
            states.append(x)
        return states

    def backward(
        self, states: list[Points], end: Points, keep: Callable[[int, AttentionTheta], None] | None = None
    ) -> list[Points]:
        """p_0, ..., p_L with p_L = end; `keep` receives the gradients of each layer, one set for each sequence."""
        p, measure, sequences = end, Cloud(states[0]).measure, len(end) // self.seeds
        adjoints = [p]
        for layer in reversed(range(self.layers)):
            adjoint = AttentionAdjoint(self.operator, self.theta(layer, sequences), Cloud.on(states[layer], measure))
            slopes = adjoint.slopes(p)
            if keep is not None:
                keep(layer, adjoint.gradients(slopes, p))
            p = p + self.step * adjoint.points(slopes)
            adjoints.append(p)
        return adjoints[::-1]

    def both(self, update: int = 0) -> NetworkPass:
        """A pass forward and back on the data of an update; `.grad` of the parameters has the rescaled gradients."""
        for w in self.parameters:
            w.grad = torch.empty_like(w) if w.grad is None else w.grad
        states = self.forward(self.problem.start(update).repeat(self.seeds, 1, 1))
        adjoints = self.backward(states, self.problem.costate(states[-1], update), self._keep_gradient)
        shape = (self.seeds, self.problem.sequences)
        stacked = (torch.stack(path).unflatten(1, shape) for path in (states, adjoints))
        return NetworkPass(*stacked)

    def _keep_gradient(self, layer: int, gradient: AttentionTheta) -> None:
        """Mean over the sequences that are trained on."""
        shape = (self.seeds, self.problem.sequences)
        for w, g in zip(self.parameters, (gradient.q, gradient.k, gradient.v, gradient.o), strict=True):
            assert w.grad is not None
            torch.mean(g.unflatten(0, shape)[:, : self.problem.trained], 1, out=w.grad[layer])


class LimitPass(NamedTuple):
    """The limit at the collocation nodes."""

    states: _Path
    adjoints: _Path


class Limit:
    """dx/dt = A(x, m_t, nu_t), dp/dt = -Psi, with nu_t^k the image of nu^0 under k updates at depth t.

    With atoms, nu_t^k = (1/M) sum_m delta_{Phi_t^k(theta^m)}: each atom is a path over depth, known at Chebyshev nodes.
    Both equations are solved as fixed points x = x(0) + int A (Picard), all nodes in one call of the operator; the
    integral over the nodes is that of the interpolating polynomial, so the error falls faster than any power.
    """

    def __init__(self, problem: Problem, nodes: int = 33) -> None:
        self.problem = problem
        self.depths, self._integral = _collocation(nodes)
        self._back = self._integral[-1:] - self._integral  # int_t^1
        law = problem.law()
        self.parameters = [w.repeat(nodes, 1, 1, 1) for w in (law.q, law.k, law.v, law.o)]
        """Q, K, V, O of every atom at every node: each (nodes, atoms, key, width)."""
        self.operator = problem.operator(problem.atoms)

    def both(self, update: int = 0) -> LimitPass:
        """Solves both equations; gradients at the nodes are left in `.grad` of the parameters."""
        states = self.forward(self.problem.start(update))
        adjoints = self.backward(states, self.problem.costate(states[-1], update))
        cloud, nodes = Cloud(states.flatten(0, 1)), len(self.depths)
        gradient = pullback(self.operator, self._theta(states.shape[1]), cloud, adjoints.flatten(0, 1)).theta
        for w, g in zip(self.parameters, (gradient.q, gradient.k, gradient.v, gradient.o), strict=True):
            w.grad = g.unflatten(0, (nodes, -1))[:, : self.problem.trained].mean(1)
        return LimitPass(states, adjoints)

    def forward(self, start: Points) -> _Path:
        """x at the nodes, from any sequences."""
        theta, nodes = self._theta(len(start)), len(self.depths)
        measure = Cloud(start.repeat(nodes, 1, 1)).measure

        def picard(x: Points) -> Points:
            return self._add_integral(self._integral, self.operator.velocity(theta, Cloud.on(x, measure)), start)

        return _fixed_point(picard, start.repeat(nodes, 1, 1)).unflatten(0, (nodes, -1))

    def backward(self, states: _Path, end: Points) -> _Path:
        """p at the nodes, with p(1) = end."""
        adjoint = AttentionAdjoint(self.operator, self._theta(len(end)), Cloud(states.flatten(0, 1)))
        nodes = len(self.depths)

        def picard(p: Points) -> Points:
            return self._add_integral(self._back, adjoint.points(adjoint.slopes(p)), end)

        return _fixed_point(picard, end.repeat(nodes, 1, 1)).unflatten(0, (nodes, -1))

    def _theta(self, sequences: int) -> AttentionTheta:
        size = (len(self.depths) * sequences, self.problem.atoms)
        masses = self.parameters[0].new_full(size, 1.0 / self.problem.atoms)
        return AttentionTheta(*(w.repeat_interleave(sequences, 0) for w in self.parameters), p=masses)

    def _add_integral(self, integral: Tensor, slopes: Points, start: Float[Tensor, "sequences tokens width"]) -> Points:
        whole = slopes.unflatten(0, (len(self.depths), -1))
        return (start + torch.tensordot(integral, whole, 1)).flatten(0, 1)


def train(learner: Network | Limit, rule: UpdateRule, updates: int, watch: Callable[[int, Any], None]) -> None:
    """`updates` updates, of all seeds at once; `watch` sees every pass, the one after the last update included."""
    optimiser = rule.build(learner.parameters)
    with torch.no_grad():
        for update in range(updates + 1):
            watch(update, learner.both(update))
            if update < updates:
                optimiser.step()


class TrainedLimit(NamedTuple):
    """The limit after some updates: its pass, and the atoms at the nodes, (nodes, atoms, key, width) each."""

    depths: Float[Tensor, " nodes"]
    path: LimitPass
    parameters: list[Tensor]

    def at(self, depths: Float[Tensor, " depths"], values: Float[Tensor, "nodes ..."]) -> Float[Tensor, "depths ..."]:
        """Values at any depths, by the polynomial through the nodes."""
        return torch.tensordot(_barycentric(self.depths, depths), values, 1)


@functools.lru_cache(maxsize=4)
def compute_limits(
    problem: Problem, rule: UpdateRule, milestones: tuple[int, ...], nodes: int
) -> dict[int, TrainedLimit]:
    """The limit after some numbers of updates; cells of one process share it."""
    limit = Limit(problem, nodes)
    found: dict[int, TrainedLimit] = {}

    def watch(update: int, path: LimitPass) -> None:
        if update in milestones:
            found[update] = TrainedLimit(limit.depths, path, [w.clone() for w in limit.parameters])

    train(limit, rule, max(milestones), watch)
    return found


def _fixed_point(function: Callable[[Points], Points], x: Points) -> Points:
    # Equations of Volterra: the iterates converge like Lip^n / n!, large Lipschitz constants only delay it.
    for _ in range(500):
        after = function(x)
        gap, size = float((after - x).detach().abs().max()), float(after.detach().abs().max())
        if not math.isfinite(gap):
            break
        x = after
        if gap <= _CLOSE * max(1.0, size):
            return x
    raise SolveError("the fixed point of the limit was not reached", 1.0, "Use smaller weights, or train less.")


def _collocation(nodes: int) -> tuple[Float[Tensor, " nodes"], Float[Tensor, "nodes nodes"]]:
    """Chebyshev points of [0, 1], increasing, and the matrix of int_0^t over them."""
    t = 0.5 * (1.0 - np.cos(np.pi * np.arange(nodes) / (nodes - 1)))
    basis = np.polynomial.chebyshev
    modes = np.eye(nodes)
    values = basis.chebvander(2.0 * t - 1.0, nodes - 1)
    integrals = np.stack([0.5 * basis.chebval(2.0 * t - 1.0, basis.chebint(m, lbnd=-1)) for m in modes], 1)
    matrix = integrals @ np.linalg.inv(values)
    return torch.from_numpy(t), torch.from_numpy(matrix)


def _barycentric(nodes: Float[Tensor, " nodes"], depths: Float[Tensor, " depths"]) -> Float[Tensor, "depths nodes"]:
    """The matrix of interpolation from Chebyshev points (J.-P. Berrut, L. N. Trefethen, SIAM Review 46, 2004)."""
    weights = torch.ones_like(nodes)
    weights[1::2] = -1.0
    weights[[0, -1]] *= 0.5
    gaps = depths[:, None] - nodes
    hit = gaps.abs() < 1e-15  # the formula is 0/0 at a node, where the value itself is known
    terms = weights / torch.where(hit, 1.0, gaps)
    matrix = terms / terms.sum(-1, keepdim=True)
    return torch.where(hit.any(-1, keepdim=True), hit.to(matrix), matrix)
