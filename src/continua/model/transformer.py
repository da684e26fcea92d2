"""The continuous Transformer: embedding, flow, readout, and how its depth is solved and differentiated."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from continua.core.errors import expect, reject
from continua.core.shapes import Tensor
from continua.fields import ContinuousHeads, Expansion, parameter_spaces, refine
from continua.model.embedding import AbstractEmbedding, TokenEmbedding, VectorEmbedding
from continua.model.flow import Flow, Part, Rate
from continua.model.functions import Analysed, Synthesised
from continua.model.positions import SinusoidalPositions
from continua.model.readout import AbstractReadout, MeanReadout, TokenReadout
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, leaves, with_heads, with_nodes
from continua.solve import (
    AbstractController,
    AbstractGradient,
    AbstractSolver,
    Adaptive,
    Checkpointed,
    Fixed,
    Given,
    Observer,
    PerSequence,
    Solution,
    Solver,
)
from continua.spaces import AbstractParameterSpace, CausalTrapezoid, Cloud, Legendre, Trapezoid


class ContinuousTransformer(nn.Module):
    """inputs -> embedding -> X(0) -> dX/dz = f(z, X) -> X(Z) -> readout -> output.

    Everything is an object passed in. `solver` decides how depth is stepped, `gradient` how the solve is
    differentiated; neither is a parameter, and `at` gives the same model with others. In training mode the flow's
    randomness (dropout) is drawn anew for each solve, in evaluation mode there is none.
    """

    def __init__(
        self,
        embedding: AbstractEmbedding,
        flow: Flow,
        readout: AbstractReadout,
        solver: AbstractSolver = Solver(),
        gradient: AbstractGradient = Checkpointed(),
    ) -> None:
        super().__init__()
        expect(
            "embedding",
            embedding,
            AbstractEmbedding,
            "Pass VectorEmbedding(...), TokenEmbedding(...) or Embedded(width).",
        )
        expect("flow", flow, Flow, "Pass Flow([Part(operator, field), ...]).")
        expect("readout", readout, AbstractReadout, "Pass TokenReadout(...) or MeanReadout(...).")
        expect(
            "solver",
            solver,
            AbstractSolver,
            "Pass Solver(stepper, controller), such as Solver(DormandPrince(), Fixed(8)).",
        )
        expect("gradient", gradient, AbstractGradient, "Pass an object: Checkpointed(), Direct() or Backsolve().")
        _check_widths(embedding, flow, readout)
        self.embedding = embedding
        self.flow = flow
        self.readout = readout
        self.solver = solver
        self.gradient = gradient

    @classmethod
    def default(
        cls,
        width: int,
        outputs: int,
        vocabulary: int | None = None,
        features: int | None = None,
        heads: int = 4,
        modes: int = 4,
        causal: bool = False,
    ) -> "ContinuousTransformer":
        """A model that is good as it is: pre-normed attention and feed-forward with weights smooth in depth.

        Give `vocabulary` for whole numbers (one output a token) or `features` for signals over real time (one output a
        sequence, trapezoid masses). Depth 1, Legendre modes, Dormand-Prince at 1e-4, checkpointed gradient.
        """
        if (vocabulary is None) == (features is None):
            cure = "Pass vocabulary=... for tokens, or features=... for signals: one of the two."
            reject("vocabulary", vocabulary, f"with features = {features} the input is not decided", cure)
        if width < 2:
            reject("width", width, "a token needs room for a sine and a cosine", "Pass width >= 2, such as 32.")
        if width % 2:
            why = "sines and cosines come in pairs, so the width is even"
            reject("width", width, why, f"Pass {width - 1} or {width + 1}.")
        if heads < 1 or width % heads:
            reject("heads", heads, f"the width {width} does not split evenly", "Pass a divisor of the width.")
        code = SinusoidalPositions(width, fastest=1.0 if vocabulary else 64.0, slowest=1e-4 if vocabulary else 0.5)
        if vocabulary is not None:
            embedding, readout = TokenEmbedding(vocabulary, width, code), TokenReadout(width, outputs)
        else:
            assert features is not None
            rule = CausalTrapezoid() if causal else Trapezoid()
            embedding, readout = VectorEmbedding(features, width, code, rule), MeanReadout(width, outputs)
        attention = PreNorm(LayerNorm(), Attention(heads, width // heads, causal=causal))
        feedforward = PreNorm(LayerNorm(), FeedForward(4 * width))
        parts = [Part(f, Expansion(f.spec(width), Legendre(modes))) for f in (attention, feedforward)]
        return cls(embedding, Flow(parts), readout)

    def forward(
        self, *inputs: Any, memory: Cloud | None = None, generator: torch.Generator | None = None, **named: Any
    ) -> Tensor:
        """The output for inputs as the embedding takes them; `memory` is the cloud for cross-attention.

        Signals: `model(values, positions, present)` of shapes (batch, tokens, features) and twice (batch, tokens), the
        mask `present` (true = present) for sequences of different lengths. Tokens: `model(tokens, positions, present)`.
        """
        cloud = self.embedding(*inputs, **named)
        solution = self.solve(cloud, memory=memory, generator=generator)
        return self.readout(cloud.at(solution.x))

    def ask(
        self,
        times: Tensor,
        *inputs: Any,
        memory: Cloud | None = None,
        generator: torch.Generator | None = None,
        **named: Any,
    ) -> Tensor:
        """The output at `times` (batch, asked), observed or not: between the samples, or after them to forecast.

        Each time becomes a query: it reads the samples - of a causal model, those up to it - and changes neither
        them nor other answers. Adaptive steps do not watch over it. The embedding must be built with `asks=True`.
        """
        if not self.readout.per_token:
            why = "it gives one output a sequence, and each time asks for its own"
            reject("readout", type(self.readout).__name__, why, "Build the model with TokenReadout(width, outputs).")
        cloud, where = self.embedding.ask(times, *inputs, **named)
        solution = self.solve(cloud, memory=memory, generator=generator)
        return self.readout(cloud.at(solution.x)).take_along_dim(where.unsqueeze(-1), 1)

    def solve(
        self,
        cloud: Cloud,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
        memory: Cloud | None = None,
        generator: torch.Generator | None = None,
        rates: Sequence[Rate] = (),
    ) -> Solution:
        """The solve itself, from an embedded cloud: final state, statistics, and x at the depths of `save_at`."""
        expect("cloud", cloud, Cloud, "A solve starts from a cloud: pass model.embedding(...) of the inputs.")
        bound = self.flow.bind(cloud, generator, memory, rates, self.gradient.second_order, random=self.training)
        return self.solver.solve(bound, bound.initial(), (0.0, self.flow.depth), self.gradient, save_at, observers)

    def at(
        self,
        steps: int | None = None,
        grid: Sequence[float] | None = None,
        rtol: float | None = None,
        solver: AbstractSolver | None = None,
        gradient: AbstractGradient | None = None,
    ) -> "ContinuousTransformer":
        """The same model, parameters shared, solved otherwise.

        `steps=8` takes eight equal steps (more where the weights jump, since no step crosses a jump),
        `grid=solution.stats.grid` freezes a grid (a sequence's output then does not depend on its batch mates),
        `rtol=1e-8` sets both tolerances; each keeps the stepper. The result starts in the mode of this model, and
        `train` and `eval` then act on one of the two alone.
        """
        if sum(x is not None for x in (steps, grid, rtol, solver)) > 1:
            given = {"steps": steps, "grid": grid, "rtol": rtol, "solver": solver}
            reject("at", given, "one way to step excludes the others", "Pass one of steps, grid, rtol, solver.")
        if steps is not None:
            solver = dataclasses.replace(self._stepping(), controller=Fixed(steps))
        elif grid is not None:
            solver = dataclasses.replace(self._stepping(), controller=Given(tuple(grid)))
        elif rtol is not None:
            solver = dataclasses.replace(self._stepping(), controller=_tolerating(self._stepping().controller, rtol))
        chosen = (self.solver if solver is None else solver, self.gradient if gradient is None else gradient)
        return self._like(self.embedding, self.flow, self.readout, *chosen)

    def at_resolution(self, nodes: int) -> "ContinuousTransformer":
        """The same model, parameters shared, with `nodes` nodes on the embedding axis.

        States must be functions: an embedding `Synthesised`, a readout `Analysed`, kernels and norms on an axis.
        """
        embedding, readout = self.embedding, self.readout
        if not (isinstance(embedding, Synthesised) and isinstance(readout, Analysed)):
            kinds = (type(embedding).__name__, type(readout).__name__)
            cure = "Build the model with Synthesised(embedding, ...) and Analysed(readout, ...)."
            reject("nodes", nodes, f"states of this model are vectors ({kinds[0]}, {kinds[1]}), not functions", cure)
        flow = self.flow.changed(lambda part: Part(with_nodes(part.operator, nodes), part.field))
        return self._like(embedding.at(nodes), flow, readout.at(nodes), self.solver, self.gradient)

    def with_heads(self, heads: int) -> "ContinuousTransformer":
        """The same model, parameters shared, with the measure of heads read at `heads` nodes."""
        if not any(isinstance(part.field, ContinuousHeads) for part in self.flow.parts):
            cure = "Build the flow with Attention(..., measured=True) and a field ContinuousHeads."
            reject("heads", heads, "no part of the flow has continuous heads", cure)

        def change(part: Part) -> Part:
            if not isinstance(part.field, ContinuousHeads):
                return part
            return Part(with_heads(part.operator, heads), part.field.at_nodes(heads))

        return self._like(self.embedding, self.flow.changed(change), self.readout, self.solver, self.gradient)

    def refined(self, layers: int) -> "ContinuousTransformer":
        """A copy whose fields are constant on each of `layers` equal pieces of depth: weights of a layered network."""
        depth = self.flow.depth
        flow = self.flow.changed(lambda part: Part(part.operator, refine(part.field, layers, depth)))
        return self._like(self.embedding, flow, self.readout, self.solver, self.gradient)

    def _like(self, *parts: Any) -> "ContinuousTransformer":
        other = ContinuousTransformer(*parts)
        other.training = self.training
        return other

    def _stepping(self) -> Solver:
        if not isinstance(self.solver, Solver):
            reject("solver", self.solver, "it has no steps to choose", "Pass at(solver=Solver(stepper, controller)).")
        return self.solver

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def arguments(self) -> dict[str, Any]:
        """The arguments that build this model anew (its values apart)."""
        parts = ("embedding", "flow", "readout", "solver", "gradient")
        return {name: getattr(self, name) for name in parts}


def _tolerating(control: AbstractController, rtol: float) -> AbstractController:
    """The same adaptive control with other tolerances, or the default one in place of a grid."""
    if isinstance(control, Adaptive | PerSequence):
        return dataclasses.replace(control, rtol=rtol, atol=rtol)
    return Adaptive(rtol, rtol)


def _check_widths(embedding: AbstractEmbedding, flow: Flow, readout: AbstractReadout) -> None:
    """Embedding, flow and readout speak of tokens of one width."""
    width = embedding.width
    if readout.width != width:
        reject("readout", readout.width, f"the embedding has width {width}", f"Build it with width={width}.")
    for index, part in enumerate(flow.parts):
        assert isinstance(part, Part)
        wanted = {name: tuple(leaf.shape) for name, leaf in leaves(part.operator.spec(width))}
        held = {name: tuple(leaf.shape) for name, leaf in leaves(part.field.spec)}
        if wanted != held:
            name = next(n for n in {**wanted, **held} if wanted.get(n) != held.get(n))
            why = f"on tokens of width {width} its operator asks for {wanted.get(name)}"
            cure = f"Build the field from operator.spec({width})."
            reject(f"flow.parts[{index}].{name}", held.get(name), why, cure)
