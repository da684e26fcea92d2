"""The flow dX/dz = sum_p f_p(theta_p(z), X): operators with their fields, and the flow bound for one solve."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from continua.core.errors import expect, reject
from continua.core.seeds import fresh_seed
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.fields import AbstractField, parameter_spaces
from continua.model.profile import AbstractProfile
from continua.operators import AbstractOperator, Context, Theta, leaves
from continua.solve import AbstractVectorField, State, within
from continua.spaces import AbstractParameterSpace, Cloud

Rate = Callable[[Depth, Points, Points], Float[Tensor, " batch"]]
"""A running cost r(z, points, velocity), one number a sequence, integrated along depth beside the tokens.

At a jump it is asked one rounding unit inside the step, so fields may be read at z as it is. Gradients reach the flow's
parameters, the points and the masses; another tensor that r depends on makes `Checkpointed` and `Backsolve` raise.
"""


class Part(nn.Module):
    """One term of the velocity: an operator and the field that gives its parameters."""

    def __init__(self, operator: AbstractOperator, field: AbstractField) -> None:
        super().__init__()
        self.operator = operator
        self.field = field

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def arguments(self) -> dict[str, Any]:
        """The arguments that build this part anew."""
        return {"operator": self.operator, "field": self.field}


class Flow(nn.Module):
    """dX/dz = zeta(z) sum of its parts f_p(theta_p(z), X), z in [0, depth] (docs/mathematics.md, section 3).

    The depth profile zeta is one where none is given. The order of the parts matters to splitting steps alone.
    `forward` is the velocity for given parameters, zeta apart: depth stays outside, so that `flow.compile()` sees
    tensors only and does not compile anew at every depth.
    """

    def __init__(self, parts: Sequence[Part], depth: float = 1.0, profile: AbstractProfile | None = None) -> None:
        super().__init__()
        if len(parts) == 0:
            reject("parts", parts, "a flow needs at least one part", "Pass [Part(operator, field), ...].")
        if not depth > 0:
            reject("depth", depth, "the flow needs a positive depth", "Pass depth > 0.")
        for jumping in (*(part.field for part in parts), *([] if profile is None else [profile])):
            if any(not 0.0 < b < depth for b in jumping.breaks):
                cure = "Choose the field's edges between 0 and the flow's depth."
                reject("parts", jumping.breaks, f"a field jumps outside (0, {depth})", cure)
        for index, part in enumerate(parts):
            if depth > part.field.reach * (1.0 + 1e-9):
                cure = f"Build the field with depth={depth}."
                reject(f"parts[{index}].field.reach", part.field.reach, f"the flow goes on to depth {depth}", cure)
        if profile is not None and abs(profile.reach - depth) > 1e-9 * depth:
            cure = f"Build the profile with depth={depth}, so that z/Z runs from 0 to 1 along the flow."
            reject("profile", profile.reach, f"it is a profile of this depth, and the flow has depth {depth}", cure)
        self.parts = nn.ModuleList(parts)
        self.depth = float(depth)
        self.profile = profile

    def forward(self, operators: Sequence[AbstractOperator], thetas: Sequence[Theta], cloud: Cloud) -> Points:
        """sum_p f_p(theta_p, cloud)."""
        velocity = operators[0].velocity(thetas[0], cloud)
        for operator, theta in zip(operators[1:], thetas[1:], strict=True):
            velocity = velocity + operator.velocity(theta, cloud)
        return velocity

    def compile(self, *args: Any, **named: Any) -> None:
        """As `nn.Module.compile`, with room for the graphs that a flow needs.

        Splitting compiles each part alone, once with a graph for the gradient and once without, with and without masks,
        for a first shape and then for any. torch would stop at 8 graphs for all flows together and, but for a warning,
        silently run the rest as it is.
        """
        super().compile(*args, **{"recompile_limit": 64, "isolate_recompiles": True, **named})

    def bind(
        self,
        cloud: Cloud,
        generator: torch.Generator | None = None,
        memory: Cloud | None = None,
        rates: Sequence[Rate] = (),
        second_order: bool = False,
        random: bool | None = None,
    ) -> "BoundFlow":
        """Fixes masses, positions and ALL randomness of one solve; rejections and replays reuse it.

        `random` says whether there is any (dropout); by default as the module's training mode has it. `generator`
        seeds it, torch's global one otherwise. `rates` are running costs, `second_order` prepares second derivatives.
        """
        for name, tokens in (("cloud", cloud), ("memory", memory)):
            if tokens is not None:
                self._check(name, tokens)
        noisy = self.training if random is None else random
        seed = fresh_seed(generator) if noisy else None
        return BoundFlow(self, Context(cloud, memory, seed, second_order), tuple(rates))

    def _check(self, name: str, cloud: Cloud) -> None:
        """The tokens have the dtype, the device and, where they move, the width of the parameters."""
        expect(name, cloud, Cloud, "Pass Cloud(points, mass, positions), or model.embedding(...) of the inputs.")
        like, points = next(self.parameters(), None), cloud.points
        if like is not None and (points.dtype != like.dtype or points.device != like.device):
            cure = (
                f"Convert the points with .to({like.dtype}) and .to('{like.device}'), or the model with model.to(...)."
            )
            reject(name, f"{points.dtype} on {points.device}", f"the model is {like.dtype} on {like.device}", cure)
        for index, part in enumerate(self.parts if name == "cloud" else ()):
            assert isinstance(part, Part)
            wanted = {leaf: spec.shape for leaf, spec in leaves(part.operator.spec(points.shape[-1]))}
            if wanted != {leaf: spec.shape for leaf, spec in leaves(part.field.spec)}:
                cure = "Pass tokens of the width that the fields were built for."
                reject(name, tuple(points.shape), f"the parameters of parts[{index}] are for another width", cure)

    def changed(self, change: Callable[[Part], Part]) -> "Flow":
        """The same flow with every part changed."""
        parts = [change(part) for part in self.parts if isinstance(part, Part)]
        return Flow(parts, self.depth, self.profile).train(self.training)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def arguments(self) -> dict[str, Any]:
        """The arguments that build this flow anew."""
        return {"parts": list(self.parts), "depth": self.depth, "profile": self.profile}


class BoundFlow(AbstractVectorField):
    """A flow with everything fixed but depth and state: deterministic, whatever the operators draw."""

    def __init__(self, flow: Flow, context: Context, rates: tuple[Rate, ...], only: int | None = None) -> None:
        self.flow = flow
        self.context = context
        self._rates = rates
        self._chosen = list(range(len(flow.parts))) if only is None else [only]
        self._bound: dict[int, tuple[int, AbstractOperator]] = {}
        self._calls = 0
        self._weights = context.cloud.measure.weights()
        self._parts = [] if only is not None else [BoundFlow(flow, context, (), i) for i in self._chosen]

    @property
    def breaks(self) -> tuple[float, ...]:
        own = {b for i in self._chosen for b in self._part(i).field.breaks}
        profile = self.flow.profile
        return tuple(sorted(own if profile is None else own.union(profile.breaks)))

    @property
    def parts(self) -> Sequence["BoundFlow"]:
        return self._parts or [self]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        memory = self.context.memory
        given = [*self.context.cloud.measure.tensors]
        if memory is not None:
            given += [memory.points, *memory.measure.tensors]
        seen = {id(t): t for t in (*self.flow.parameters(), *given) if t.requires_grad}
        return tuple(seen.values())

    @property
    def weights(self) -> Float[Tensor, "batch tokens"] | None:
        return self._weights

    @property
    def evaluations(self) -> int:
        alone = sum(part._calls for part in self._parts)
        return self._calls + -(-alone // len(self._chosen))

    def initial(self) -> State:
        """The state at depth 0: the tokens as they are, every cost zero."""
        points = self.context.cloud.points
        return State(points, tuple(points.new_zeros(points.shape[0]) for _ in self._rates))

    def __call__(self, z: Depth, state: State, inside: Depth | None = None) -> State:
        self._calls += 1
        thetas = [self._part(i).field(z, inside) for i in self._chosen]
        operators = [self._operator(i, z if inside is None else inside) for i in self._chosen]
        # compiled code has no second derivatives
        velocity_of = self.flow.forward if self.context.second_order else self.flow
        velocity = velocity_of(operators, thetas, self.context.cloud.at(state.x))
        if self.flow.profile is not None:
            zeta = self.flow.profile(z, inside)
            velocity = velocity * (zeta.view(-1, 1, 1) if isinstance(zeta, Tensor) else zeta)
        present = self.context.cloud.present
        if present is not None:  # absent tokens stay where they are
            velocity = velocity.masked_fill(~present.unsqueeze(-1), 0.0)
        return State(velocity, self.rates(within(z, inside), state.x, velocity))

    def rates(self, z: Depth, x: Points, velocity: Points) -> tuple[Tensor, ...]:
        return tuple(rate(z, x, velocity) for rate in self._rates)

    def _part(self, index: int) -> Part:
        part = self.flow.parts[index]
        assert isinstance(part, Part)
        return part

    def _operator(self, index: int, inside: Depth) -> AbstractOperator:
        """The operator of a part, bound for the piece that holds `inside`; the last piece is remembered."""
        piece = self._piece(index, inside)
        known = self._bound.get(index)
        if known is None or known[0] != piece:
            operator = self._part(index).operator.bind(self.context.branch(index).branch(piece))
            self._bound[index] = known = (piece, operator)
        return known[1]

    def _piece(self, index: int, inside: Depth) -> int:
        breaks = self._part(index).field.breaks
        if self.context.seed is None or not breaks:
            return 0
        if isinstance(inside, float | int):
            return bisect.bisect_right(breaks, inside)
        cure = "Use Adaptive() or Fixed(steps), or a field without jumps."
        reject("control", "PerSequence", "layers with random masks need one depth for all sequences", cure)
