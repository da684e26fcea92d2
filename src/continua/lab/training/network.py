"""Finite networks of L layers and H heads, many of them at once, trained with gradients in closed form."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from continua.core.shapes import Float, Int, Points, Tensor
from continua.lab.training.problem import Problem
from continua.operators import AttentionTheta, pullback
from continua.spaces import Cloud


class Pass(NamedTuple):
    """One pass forward and back, at every layer: states x_r and adjoints p_r, r = 0, ..., L."""

    states: Float[Tensor, "depths seeds sequences tokens width"]
    adjoints: Float[Tensor, "depths seeds sequences tokens width"]


class Network:
    """x_{r+1} = x_r + (1/L) A(x_r, m_r, nu_r) for many seeds at once (docs/mathematics.md, section 8).

    Layers follow each other; seeds, sequences, heads and tokens are axes of tensors.
    """

    def __init__(self, problem: Problem, places: Int[Tensor, "layers seeds heads"], power: float = 1.0) -> None:
        law = problem.law()
        self.problem, self.places = problem, places
        self.layers, self.seeds, self.heads = places.shape
        self.step = self.layers**-power
        self.q, self.k, self.v, self.o = (w[places] for w in (law.q, law.k, law.v, law.o))
        self.operator = problem.operator(self.heads)

    @property
    def parameters(self) -> list[Tensor]:
        """Q, K, V, O: each (layers, seeds, heads, key, width)."""
        return [self.q, self.k, self.v, self.o]

    def theta(self, layer: int, sequences: int) -> AttentionTheta:
        """The parameters of one layer, one set for each of the sequences of each seed."""
        spread = (w[layer].repeat_interleave(sequences, 0) if sequences > 1 else w[layer] for w in self.parameters)
        masses = self.q.new_full((self.seeds * sequences, self.heads), 1.0 / self.heads)
        return AttentionTheta(*spread, p=masses)

    def forward(self, start: Points) -> list[Points]:
        """x_0, ..., x_L, from as many sequences for each seed, those of one seed after another."""
        x, measure, sequences = start, Cloud(start).measure, len(start) // self.seeds
        states = [x]
        for layer in range(self.layers):
            x = x + self.step * self.operator.velocity(self.theta(layer, sequences), Cloud.on(x, measure))
            states.append(x)
        return states

    def backward(self, states: list[Points], end: Points, seen: Callable[[int, AttentionTheta], None]) -> list[Points]:
        """p_0, ..., p_L with p_L = end; `seen` is told the gradients of each layer, one set for each sequence."""
        p, measure, sequences = end, Cloud(states[0]).measure, len(end) // self.seeds
        adjoints = [p]
        for layer in reversed(range(self.layers)):
            back = pullback(self.operator, self.theta(layer, sequences), Cloud.on(states[layer], measure), p)
            p = p + self.step * back.points
            adjoints.append(p)
            seen(layer, back.theta)
        return adjoints[::-1]

    def both(self) -> Pass:
        """A pass forward and back; the rescaled gradients are left in `.grad` of the parameters."""
        for w in self.parameters:
            w.grad = torch.empty_like(w) if w.grad is None else w.grad
        states = self.forward(self.problem.start().repeat(self.seeds, 1, 1))
        adjoints = self.backward(states, self.problem.costate(states[-1]), self._keep)
        shape = (self.seeds, self.problem.sequences)
        stacked = (torch.stack(path).unflatten(1, shape) for path in (states, adjoints))
        return Pass(*stacked)

    def _keep(self, layer: int, gradient: AttentionTheta) -> None:
        """Mean over the sequences that are trained on."""
        shape = (self.seeds, self.problem.sequences)
        for w, g in zip(self.parameters, (gradient.q, gradient.k, gradient.v, gradient.o), strict=True):
            assert w.grad is not None
            torch.mean(g.unflatten(0, shape)[:, : self.problem.trained], 1, out=w.grad[layer])
