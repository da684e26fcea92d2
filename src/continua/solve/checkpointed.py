"""The checkpointed adjoint: forward without a graph, backward by replaying one segment of depth at a time."""

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from continua.core.checks import at_least, fraction
from continua.core.shapes import DepthValue, Tensor
from continua.solve.functions import FunctionVectorField, hidden_leaves, refuse_hidden
from continua.solve.gradients import AbstractNodeGradient, Parameters, pull_back
from continua.solve.integration import Endpoint, Integration
from continua.solve.runge_kutta import DormandPrince, Step, StepResult
from continua.solve.vector_field import State

_MOST_ROWS = 16


class StateBuffer:
    """Copies of equally shaped tensors, in a few large pieces of memory.

    Kept as they are, among the temporaries of a solve, they would leave holes that nothing larger fits into: 64 steps
    then cost half as much again as the 64 states that they keep. Pieces double in size from one row on, so that at
    most half of what is taken stays unused.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0)
        self._filled = 0

    def put(self, x: Tensor) -> Tensor:
        """A copy of `x`, for as long as anybody holds it."""
        if self._filled == len(self._piece):
            rows = max(1, min(2 * len(self._piece), _MOST_ROWS))
            self._piece, self._filled = x.new_empty((rows, *x.shape)), 0
        self._filled += 1
        return self._piece[self._filled - 1].copy_(x)


@dataclasses.dataclass(frozen=True)
class Checkpointed(AbstractNodeGradient):
    """The exact gradient of the discrete solve in the memory of one segment: the default of `integrate`.

    The forward solve keeps the accepted grid and the state at the start of each segment; a segment ends after `segment`
    (a fraction of the depth) or `steps` steps, whichever comes first (`None`: as many steps as have together the stages
    of one Dormand-Prince step). The backward pass replays one segment at a time on the recorded grid, with the same
    bound randomness, and differentiates it: a discrete adjoint, equal to `Direct` up to rounding. Reference
    implementation: `torch.utils.checkpoint` around each segment.

    `refine` > 1 replays every step as that many shorter ones. What is differentiated is then the refined solve from
    each segment's start, closer to the adjoint of the ODE and no longer the gradient of the loss that was reported.
    """

    segment: float = 0.1
    steps: int | None = None
    refine: int = 1

    def __post_init__(self) -> None:
        fraction(none=False, segment=self.segment)
        at_least(1, steps=self.steps, refine=self.refine)

    def run_forward(self, integration: Integration, start: State) -> tuple[Endpoint, list[Tensor], list[list[Step]]]:
        # as many evaluations per replay whatever the stepper: memory of the backward pass goes with evaluations
        limit = self.steps or max(1, round(DormandPrince.stages / integration.stepper.stages))
        length = self.segment * abs(integration.span[1] - integration.span[0])
        buffer, starts, segments = StateBuffer(), list[Tensor](), list[list[Step]]()

        def on_step(result: StepResult) -> None:
            full = not segments or len(segments[-1]) >= limit
            # without the slack ten equal steps of a tenth would not fill ten segments, but eleven
            if full or _length([*segments[-1], result.step]) > length * (1.0 + 1e-9):
                starts.append(buffer.put(result.before.x))
                segments.append([])
            segments[-1].append(result.step)

        end = integration.run(start, on_step)
        integration.stats.segments = len(segments)
        return end, starts, segments

    def run_backward(
        self, integration: Integration, kept: Sequence[Tensor], rest: Any, cotangent: Endpoint, needed: Parameters
    ) -> tuple[Tensor, list[Tensor | None]]:
        (a, costs), saved = cotangent.state, list(cotangent.saved)
        sums: list[Tensor | None] = [None for _ in needed.tensors]
        z: DepthValue = integration.span[1]
        for x, steps in reversed(list(zip(kept, rest, strict=True))):
            count = sum(len(integration.saved_within(step)) for step in steps)
            here = Endpoint(State(a, costs), tuple(saved.pop() for _ in range(count))[::-1])
            a, found, suspects = self._through(integration, x, steps, z, here, needed)
            refuse_hidden(suspects)
            both = zip(sums, found, strict=True)
            sums = [g if total is None else total if g is None else total + g for total, g in both]
            z = steps[0].z
        for g in saved:  # saved at the very start
            a = a + g
        integration.notify(integration.span[0], kept[0], a)
        return a, sums

    def _through(
        self,
        integration: Integration,
        x: Tensor,
        steps: list[Step],
        z: DepthValue,
        cotangent: Endpoint,
        needed: Parameters,
    ) -> tuple[Tensor, tuple[Tensor | None, ...], list[weakref.ref[Tensor]]]:
        """The cotangent at x, the start of a segment that ends at z; what the segment gives to every needed tensor; and
        leaves of its graph that are none of them."""
        n = self.refine
        with torch.enable_grad():
            start = x.detach().requires_grad_(True)
            # running costs never feed back into the velocity: their cotangent is the same at every depth, and they may
            # start from zero in every segment
            zeros = tuple(torch.zeros_like(c) for c in cotangent.state.costs)
            shorter = [Step(z + i * (dz / n), dz / n) for z, dz in steps for i in range(n)]
            end, visited = integration.replay(State(start, zeros), shorter)
        visited.append((z, end.state.x))
        # the cotangent of an inner state is asked for only where somebody watches, as it keeps buffers alive
        inputs = [x for _, x in visited] if integration.observes_cotangent else [start]
        # a function may read another parameter at another depth; a flow knows its own, but not what a cost reads
        doubtful = not needed.sharded and (isinstance(integration.vector_field, FunctionVectorField) or bool(zeros))
        suspects = hidden_leaves(end.flat, [start, *needed.tensors]) if doubtful else []
        found = pull_back(end.flat, cotangent.flat, inputs, needed)
        # `found` goes on with the gradients of the parameters; unless somebody watches, only the start has one
        cotangents = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=False)]
        for (depth, x), a in reversed(list(zip(visited[1:], cotangents[1:], strict=False))):
            integration.notify(depth, x, a)
        return cotangents[0], found[len(inputs) :], suspects


def _length(steps: list[Step]) -> float:
    """How far the steps reach; where every sequence has its own steps, the farthest counts."""
    return sum(float(step.dz.abs().max()) if isinstance(step.dz, Tensor) else abs(step.dz) for step in steps)
