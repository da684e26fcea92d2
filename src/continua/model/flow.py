"""The flow dX/dz = sum_p f_p(theta_p(z), X): operators with their fields, and the vector field of one solve."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, final

import torch
from torch import nn

from continua.core.checks import at_least, is_a, positive
from continua.core.errors import reject
from continua.core.seeds import fresh_seed
from continua.core.shapes import DepthValue, Float, Points, Present, Tensor
from continua.fields import AbstractField, ModalWeights, ModuleField, ModuleOperator, modal_weights
from continua.model.profile import AbstractProfile
from continua.operators import (
    AbstractKernel,
    AbstractOperator,
    AbstractTokenIntegral,
    Attention,
    Binding,
    Cross,
    Dropout,
    Exact,
    Theta,
    lay_out,
    leaves,
)  # fmt: skip
from continua.operators.kernels import AbstractFunctionKernel, shows_weights
from continua.solve import AbstractVectorField, State, per_sequence, within
from continua.spaces import Cloud
from continua.spaces.bases import cell_of

Act = Callable[[Theta], Points]
Term = tuple["Part", Act, ModalWeights | None]
Rate = Callable[[DepthValue, Points, Points], Float[Tensor, " batch"]]
"""A running cost r(z, points, velocity), one number per sequence, integrated along depth beside the tokens.

At a jump it is asked one rounding unit inside the step, so fields may be read at z as it is. Gradients reach the flow's
parameters, the points and the masses; another tensor that r depends on makes `Checkpointed` and `Backsolve` raise.

Split and projected steps show it their mean velocity. One with a method `of_step(z, dz, before, after)` gives its
integral over such a step from the two ends, which a solve keeps anyway, where a velocity would be made for it alone.
"""


class Part(nn.Module):
    """One term of the velocity: an operator and the field that gives its parameters, or any torch module.

    `Part(module)` calls `module(x)`, or `module(z, x)`, on the tokens (batch, tokens, width); see `ModuleOperator`.

    A call is the whole work of the part at one depth, parameters included, so that hooks and shards (`fully_shard`) of
    a part see every use of its parameters.
    """

    def __init__(self, operator: AbstractOperator | nn.Module, field: AbstractField | None = None) -> None:
        super().__init__()
        if isinstance(operator, nn.Module) and field is None:
            operator, field = ModuleOperator(), ModuleField(operator)
        cure = "Pass an operator, such as Attention(heads, key_size), or a module alone."
        is_a(AbstractOperator, cure, operator=operator)
        is_a(AbstractField, "Pass a field built from operator.spec(width), such as Constant(spec).", field=field)
        self.operator, self.field = cast("AbstractOperator", operator), cast("AbstractField", field)
        self._compiled: Callable[..., Points] | None = None
        self._lays_out = _along_axes(self.operator)  # walked once: a solve asks

    def forward(
        self, z: DepthValue, inside: DepthValue | None, act: Act, weights: ModalWeights | None = None
    ) -> Points:
        """act(theta(z)), where `act` comes from `acting_on`, theta by the field or by what `lay_out` made of it."""
        return act(self.field(z, inside) if weights is None else weights(z, inside))

    def lay_out(self, cloud: Cloud) -> ModalWeights | None:
        """The parameters of one solve, kernels along the embedding axis composed once; `None` where that is no gain.

        Not for few tokens, nor where sharded parameters are there inside calls of this part only, nor where a watcher
        is to see weights as they are stored.
        """
        if not self._lays_out:
            return None
        sharded = True in [hasattr(p, "device_mesh") for p in self.field.parameters()]  # small ones may be whole
        few = not AbstractFunctionKernel.composes(cloud.points)
        if sharded or few or shows_weights():
            return None
        return modal_weights(self.field, functools.partial(lay_out, self.operator))

    def acting_on(self, cloud: Cloud, operator: AbstractOperator, eager: bool = False) -> Act:
        """theta -> f(theta, cloud), by `operator`: this part's own, bound for a solve.

        A closure, because FSDP2 takes the arguments of a sharded module apart to find tensors, and can put neither
        clouds nor operators together again.
        """
        if eager or self._compiled is None:
            return functools.partial(operator.velocity, cloud=cloud)
        return functools.partial(self._compiled, operator, cloud)

    def compile_velocity(self, **options: Any) -> None:
        """Compiles the operator for given parameters: depth stays outside, or every new depth would compile anew."""
        self._compiled = torch.compile(_act, **options)


def _along_axes(operator: AbstractOperator) -> bool:
    """Whether an operator has kernels along an embedding axis, or heads that are a measure."""
    return any(
        (isinstance(part, AbstractKernel) and part.axis is not None) or getattr(part, "head_masses", False)
        for part in _parts_within(operator)
    )


def _act(operator: AbstractOperator, cloud: Cloud, theta: Theta) -> Points:
    return operator.velocity(theta, cloud)


class Flow(nn.Module):
    """dX/dz = zeta(z) sum of its parts f_p(theta_p(z), X), z in [0, depth] (docs/mathematics.md, section 3).

    By default `depth` is that of its fields, 1 where these go on for ever. The depth profile zeta is one where none is
    given. The order of the parts matters to splitting steps alone, and to a flow that is `stagger`ed for N of them. Its
    first part starts D = Z/(2N + 1) before the others, ends as much
    before them, and each has a depth of its own that goes from 0 to Z:

        dX/dz = c (1[z < Z - D] f_1(theta_1(c z), X) + 1[z > D] sum_{p > 1} f_p(theta_p(c (z - D)), X)) ,
        c = Z/(Z - D) = (2N + 1)/2N .

    N Lie-Trotter steps, the N layers of a network, are leapfrog for it, of order 2 and not 1. Split steps count depth
    by the first part: their inner depth u is z = u/c of the flow, and the last step catches up.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        depth: float | None = None,
        profile: AbstractProfile | None = None,
        stagger: int | None = None,
    ) -> None:
        super().__init__()
        if len(parts) == 0:
            reject("parts", parts, "a flow needs at least one part", "Pass [Part(operator, field), ...].")
        positive(depth=depth)
        reach = min(part.field.reach for part in parts)
        depth = (1.0 if reach == math.inf else reach) if depth is None else depth
        _check_reach(parts, depth, profile)
        self.parts = cast("Sequence[Part]", nn.ModuleList(parts))
        at_least(1, stagger=stagger)
        if stagger is not None and profile is not None:
            cure = "Leave one of the two out."
            reject("profile", profile, "parts of a staggered flow have depths of their own", cure)
        self.depth, self.profile, self.stagger = float(depth), profile, stagger
        self._fits: set[int] = set()

    def forward(
        self, z: DepthValue, inside: DepthValue | None, terms: Sequence[Term], present: Present | None
    ) -> Points:
        """zeta(z) sum_p f_p(theta_p(z), cloud) over some parts, each with what `Part.acting_on` gave for the cloud."""
        part, act, weights = terms[0]
        velocity = part(z, inside, act, weights)
        for part, act, weights in terms[1:]:
            velocity = velocity + part(z, inside, act, weights)
        if self.profile is not None:
            zeta = self.profile(z, inside)
            velocity = velocity * (zeta.view(-1, 1, 1) if isinstance(zeta, Tensor) else zeta)
        if present is not None:  # absent tokens stay where they are
            velocity = velocity.masked_fill(~present.unsqueeze(-1), 0.0)
        return velocity

    def compile(self, *args: Any, **named: Any) -> None:
        """As `nn.Module.compile`, part by part, with room for the graphs that a flow needs.

        Each part is compiled once with a graph for the gradient and once without, with and without masks, for a first
        shape and then for any. torch would stop at 8 graphs for all flows together and, but for a warning, silently run
        the rest as it is.
        """
        for part in self.parts:
            part.compile_velocity(*args, **{"recompile_limit": 64, "isolate_recompiles": True, **named})

    def bind(
        self,
        cloud: Cloud,
        generator: torch.Generator | None = None,
        encoded: Cloud | None = None,
        rates: Sequence[Rate] = (),
        second_derivatives: bool = False,
        random: bool | None = None,
        one_graph: bool = False,
        windowed: bool = True,
    ) -> "FlowVectorField":
        """Fixes masses, positions and ALL randomness of one solve; rejections and replays reuse it.

        `random` says whether there is any (dropout); by default as the module's training mode has it. `generator`
        seeds it, torch's global one otherwise. `rates` are running costs, `second_derivatives` says they will be taken.
        With `one_graph`, where one backward pass goes through the whole solve or none, parameters are laid out once.
        The velocity of a staggered flow is `windowed`, it says when each part acts, unless the steps of a solve stagger
        the parts by themselves: then all act at every depth, each by its own.
        """
        self._check(cloud, encoded)
        noisy = self.training if random is None else random
        seed = fresh_seed(generator) if noisy else None
        binding = Binding(cloud, encoded, seed, second_derivatives)
        weights = [part.lay_out(cloud) if one_graph else None for part in self.parts]
        return FlowVectorField(self, binding, tuple(rates), weights, windowed=windowed and self.stagger is not None)

    def _check(self, cloud: Cloud, encoded: Cloud | None) -> None:
        """The tokens have the dtype, the device and, where they move, the width of the parameters."""
        like = next(self.parameters(), None)
        for name, tokens in (("cloud", cloud), ("encoded", encoded)):
            if tokens is None:
                continue
            is_a(Cloud, "Pass Cloud(points, mass, positions).", **{name: tokens})
            points = tokens.points
            if like is not None and (points.dtype != like.dtype or points.device != like.device):
                cure = f"Convert the points with .to({like.dtype}) and .to('{like.device}'), or the model."
                reject(name, f"{points.dtype} on {points.device}", f"the model is {like.dtype} on {like.device}", cure)
        width = cloud.points.shape[-1]
        if width not in self._fits:  # specs are derived once per width, not once per solve
            check_width(self, width)
            self._fits.add(width)

    @functools.cached_property
    def reads_ahead(self) -> bool:
        """Whether a token attends to later ones of its own sequence; what an encoder gives may be read as a whole."""
        within = [inner for part in self.parts for inner in _parts_within(part.operator, but=(Cross,))]
        return any(isinstance(inner, Attention) and not inner.causal for inner in within)

    @property
    def fields(self) -> list[AbstractField]:
        """The fields of its parts, in their order."""
        return [part.field for part in self.parts]

    def map_parts(self, change: Callable[[Part], Part]) -> "Flow":
        """The same flow with every part changed."""
        parts = [change(part) for part in self.parts]
        return Flow(parts, self.depth, self.profile, self.stagger).train(self.training)


def check_width(flow: Flow, width: int) -> None:
    """Rejects tokens of a width that the fields of a flow were not built for."""
    for index, part in enumerate(flow.parts):
        wanted = {name: tuple(leaf.shape) for name, leaf in leaves(part.operator.spec(width))}
        held = {name: tuple(leaf.shape) for name, leaf in leaves(part.field.spec)}
        if wanted != held:
            name = next(n for n in {**wanted, **held} if wanted.get(n) != held.get(n))
            why = f"on tokens of width {width} its operator asks for {wanted.get(name)}"
            reject(f"flow.parts[{index}].{name}", held.get(name), why, f"Build the field from operator.spec({width}).")


def _check_reach(parts: Sequence[Part], depth: float, profile: AbstractProfile | None) -> None:
    """Fields and profile are defined on [0, depth], and jump inside it."""
    for name, path in [*((f"parts[{i}].field", part.field) for i, part in enumerate(parts)), ("profile", profile)]:
        if path is None:
            continue
        if any(not 0.0 < b < depth for b in path.breaks):
            cure = "Choose the edges between 0 and the flow's depth."
            reject(f"{name}.breaks", path.breaks, f"it jumps outside (0, {depth})", cure)
        far = abs(path.reach - depth) if name == "profile" else depth - path.reach
        if far > 1e-9 * depth:
            reject(f"{name}.reach", path.reach, f"the flow goes on to depth {depth}", f"Build it with depth={depth}.")


@final
class FlowVectorField(AbstractVectorField):
    """A flow with everything fixed but depth and state: deterministic, whatever the operators draw."""

    def __init__(
        self,
        flow: Flow,
        binding: Binding,
        rates: tuple[Rate, ...],
        weights: Sequence[ModalWeights | None],
        only: int | None = None,
        windowed: bool = False,
    ) -> None:
        self.flow, self.binding, self._rates, self._weights = flow, binding, rates, weights
        self.stagger = None if windowed else flow.stagger
        self._chosen = list(range(len(flow.parts))) if only is None else [only]
        self.weights = binding.cloud.measure.weights()
        self._calls = 0
        self._piece: tuple[int, ...] | None = None
        self._terms: list[tuple[Part, AbstractOperator, ModalWeights | None]] = []
        self._breaks = [flow.parts[i].field.breaks for i in self._chosen]
        jumps = () if flow.profile is None else flow.profile.breaks
        self.breaks = tuple(sorted({b for breaks in (*self._breaks, jumps) for b in breaks}))
        self._alone = [] if only is not None else [FlowVectorField(flow, binding, (), weights, i) for i in self._chosen]
        self.parts: Sequence[AbstractVectorField] = self._alone
        if windowed:
            self.parts = [_WindowedPart(part, place > 0) for place, part in enumerate(self._alone)]
            self.breaks = tuple(sorted({b for part in self.parts for b in part.breaks}))
        self._windowed = windowed

    @property
    def tensors(self) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        encoded = self.binding.encoded
        read = () if encoded is None else (encoded.points, *encoded.measure.tensors)
        given = (*self.flow.parameters(), *self.binding.cloud.measure.tensors, *read)
        return tuple({id(t): t for t in given if t.requires_grad}.values())

    @property
    def evaluations(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        # splitting calls parts one by one: as many calls as parts are one evaluation, rounded up for Strang's halves
        alone = sum(part._calls for part in self._alone)
        return self._calls + -(-alone // len(self._chosen))

    def initial(self) -> State:
        """The state at depth 0: the tokens as they are, every cost zero."""
        points = self.binding.cloud.points
        return State(points, tuple(points.new_zeros(points.shape[0]) for _ in self._rates))

    def expect(self, depths: Sequence[float]) -> None:
        # autograd keeps the weights of all depths anyway, else one at a time is enough; in windows parts have their own
        if torch.is_grad_enabled() and not self._windowed:
            for weights in self._weights:
                if weights is not None:
                    weights.expect(depths)

    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        if self._windowed:
            velocity = sum([part(z, state, inside).x for part in self.parts[1:]], self.parts[0](z, state, inside).x)
            return State(velocity, self.rates(within(z, inside), state.x, velocity))
        self._calls += 1
        if self._piece is None or self._piece != ():  # () means: one binding serves all depths
            self._bind(z if inside is None else inside)
        cloud = Cloud.on(state.x, self.binding.cloud.measure)
        eager = self.binding.second_derivatives  # compiled code has no second derivatives
        each = isinstance(z, Tensor)  # a depth per sequence has weights per sequence
        terms = [(p, p.acting_on(cloud, operator, eager), None if each else w) for p, operator, w in self._terms]
        velocity = self.flow(z, inside, terms, cloud.measure.present)
        if not self._rates:
            return State(velocity)
        return State(velocity, self.rates(within(z, inside), state.x, velocity))

    def rates(self, z: DepthValue, x: Points, velocity: Points) -> tuple[Tensor, ...]:
        return tuple([rate(z, x, velocity) for rate in self._rates])

    def costs_of_step(self, z: DepthValue, dz: float, before: Points, after: Points) -> tuple[Tensor, ...]:
        return tuple([
            rate.of_step(z, dz, before, after)  # pyright: ignore[reportFunctionMemberAccess]
            if hasattr(rate, "of_step") else dz * rate(z, before, (after - before) / dz)
            for rate in self._rates
        ])  # fmt: skip

    def _bind(self, inside: DepthValue) -> None:
        """Binds every operator for the pieces that hold `inside`; those of the last depth are remembered.

        Only layers with random masks need more than one binding: each piece of a field that jumps draws its own.
        """
        random = self.binding.seed is not None and any(self._breaks)
        if random and not isinstance(inside, float | int):
            cure = "Use Adaptive() or Fixed(steps), or a field without jumps."
            reject("controller", "PerSequence", "layers with random masks need one depth for all sequences", cure)
        piece = tuple(cell_of(cast("float", inside), breaks) for breaks in self._breaks) if random else ()
        if piece == self._piece:
            return
        self._piece = piece
        places = piece or tuple(0 for _ in self._chosen)
        parts = [self.flow.parts[i] for i in self._chosen]
        bindings = [self.binding.branch(i).branch(place) for i, place in zip(self._chosen, places, strict=True)]
        weights = [self._weights[i] for i in self._chosen]
        self._terms = [(p, p.operator.bind(c), w) for p, c, w in zip(parts, bindings, weights, strict=True)]


@final
class _WindowedPart(AbstractVectorField):
    """A part of a staggered flow by the depth of the whole: at rest before its window and after it."""

    def __init__(self, part: FlowVectorField, late: bool) -> None:
        Z, N = part.flow.depth, cast("int", part.flow.stagger)
        self.part, self.pace, self.weights = part, (2 * N + 1) / (2 * N), part.weights
        self.start = Z / (2 * N + 1) if late else 0.0
        self.end = self.start + Z / self.pace
        edge = self.start if late else self.end
        self.breaks = (*(self.start + b / self.pace for b in part.breaks), edge)

    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        where = z if inside is None else inside
        if isinstance(where, Tensor):
            acts = (self.start <= where) & (where <= self.end)
        else:
            acts = self.start <= where <= self.end
            if not acts:
                return State(torch.zeros_like(state.x))
        velocity = self.pace * self.part(self._own(z), state, None if inside is None else self._own(inside)).x
        return State(velocity if not isinstance(acts, Tensor) else velocity * per_sequence(acts, velocity))

    def _own(self, z: DepthValue) -> DepthValue:
        own, depth = self.pace * (z - self.start), self.part.flow.depth
        return own.clamp(0.0, depth) if isinstance(own, Tensor) else min(max(own, 0.0), depth)

    def expect(self, depths: Sequence[float]) -> None:
        """Steps of the whole read no part at depths known before."""

    def rates(self, z: DepthValue, x: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        return ()

    def costs_of_step(self, z: DepthValue, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        return ()


def is_causal(thing: Any) -> bool:
    """Whether an attention anywhere inside an operator is causal."""
    return any(getattr(part, "causal", False) for part in _parts_within(thing))


def draws(thing: Any) -> bool:
    """Whether an operator draws random numbers in training: dropout, or a token integral by an estimate."""
    kinds = Dropout, AbstractTokenIntegral
    return any(isinstance(part, kinds) and not isinstance(part, Exact) for part in _parts_within(thing))


def _parts_within(thing: Any, but: tuple[type, ...] = ()) -> Iterator[Any]:
    """A dataclass and those that it is made of, to any depth, but for some kind and what that is made of."""
    if isinstance(thing, tuple):
        for part in thing:
            yield from _parts_within(part, but)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, (type, *but)):
        yield thing
        for field in dataclasses.fields(thing):
            yield from _parts_within(getattr(thing, field.name), but)
