"""The continuous Transformer: embedding, flow, readout, and how its depth is solved and differentiated."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, final

import torch
from torch import nn

from continua.core.arguments import advise, refuse_unknown
from continua.core.checks import at_least, is_a, is_traced
from continua.core.counts import say_count
from continua.core.errors import reject
from continua.core.processor import check_autocast
from continua.core.seeds import branch_seed, fresh_seed, generator_of
from continua.core.shapes import Float, Tensor
from continua.fields import AbstractHeadField, PiecewiseConstant, join_layers, parameter_spaces, to_layers
from continua.model.embedding import AbstractEmbedding, AbstractEmbeddingWrapper, check_cloud
from continua.model.flow import Flow, Part, check_width, draws, is_causal
from continua.model.readout import AbstractReadout, axis_of, embedding_at, readout_at
from continua.model.setting import Cost, Setting
from continua.operators import with_heads, with_nodes
from continua.solve.backsolve import Backsolve
from continua.solve.checkpointed import Checkpointed
from continua.solve.controllers import Adaptive, Fixed, Given, PerSequence
from continua.solve.gradients import AbstractGradient
from continua.solve.integrate import AbstractSolver, Solver
from continua.solve.integration import AbstractController, Observer, Solution
from continua.solve.runge_kutta import DormandPrince
from continua.solve.splitting import LieTrotter, Strang, manifold_of
from continua.spaces import AbstractParameterSpace, Axis, Cloud
from continua.spaces.cloud import take_tokens


class Result(NamedTuple):
    """Everything that a call of a model found."""

    output: Tensor
    """What the readout gave."""
    solution: Solution
    """The solve: states at the end (`x`) and at `save_at` (`xs`, `depths`), costs, statistics."""
    setting: Setting
    """What the solve started from: the cloud at depth 0 and the seed of its randomness."""
    where: Tensor | None = None
    """Of a call with query times, where each query (batch, queries) stands among the tokens of the cloud."""
    encoder: "Result | None" = None
    """Of an encoder-decoder, what the call of the encoder found; the rest is the decoder's."""

    @property
    def cloud(self) -> Cloud:
        """The cloud at depth 0, queries included."""
        return self.setting.cloud

    @property
    def costs(self) -> tuple[Float[Tensor, " batch"], ...]:
        """The integral of each running cost along depth, one number per sequence."""
        own = self.solution.costs
        return own if self.encoder is None else tuple(a + b for a, b in zip(own, self.encoder.costs, strict=True))

    def __repr__(self) -> str:
        return f"Result(output of shape {tuple(self.output.shape)}, {self.solution})"


@final
class ContinuousTransformer(nn.Module):
    """inputs -> embedding -> X(0) -> dX/dz = f(z, X) -> X(Z) -> readout -> output.

    Everything is an object passed in; `continua.transformer(...)` builds them. `solver` decides how depth is stepped,
    `gradient` how the solve is differentiated; neither is a parameter, and `at` gives the same model with others. In
    training mode the flow's randomness (dropout) is drawn anew for each solve, in evaluation mode there is none.

    Without a `solver` depth is solved by Dormand-Prince at 1e-4; of a causal flow in 8 equal steps, since steps that
    adapt to all tokens would tell earlier tokens of later ones.
    """

    def __init__(
        self,
        embedding: AbstractEmbedding,
        flow: Flow,
        readout: AbstractReadout,
        solver: AbstractSolver | None = None,
        gradient: AbstractGradient = Checkpointed(),
    ) -> None:
        super().__init__()
        is_a(AbstractEmbedding, "Pass VectorEmbedding(...), TokenEmbedding(...) or CloudEmbedding(width).",
             embedding=embedding)  # fmt: skip
        is_a(Flow, "Pass Flow([Part(operator, field), ...]).", flow=flow)
        is_a(AbstractReadout, "Pass TokenReadout(...) or MeanReadout(...).", readout=readout)
        if solver is None:
            causal = any(is_causal(part.operator) for part in flow.parts)
            solver = Solver(controller=Fixed(8)) if causal else Solver()
        is_a(AbstractSolver, "Pass Solver(stepper, controller), such as Solver(DormandPrince(), Fixed(8)).",
             solver=solver)  # fmt: skip
        is_a(AbstractGradient, "Pass an object: Checkpointed(), Direct() or Backsolve().", gradient=gradient)
        width = embedding.width
        if readout.width != width:
            reject("readout", readout.width, f"the embedding has width {width}", f"Build it with width={width}.")
        check_width(flow, width)
        self.embedding, self.flow, self.readout = embedding, flow, readout
        self.solver, self.gradient = solver, gradient

    def forward(
        self,
        *inputs: Any,
        query_times: Tensor | None = None,
        save_at: Sequence[float] = (),
        costs: Sequence[Cost] = (),
        grid: Sequence[float] | None = None,
        encoded: Cloud | None = None,
        observers: Sequence[Observer] = (),
        generator: torch.Generator | None = None,
        full: bool = False,
        **named: Any,
    ) -> Any:
        """The output for inputs as the embedding takes them, or for a cloud; with `full`, a `Result`.

        Signals: `model(values, times, present)` of shapes (batch, tokens, features) and twice (batch, tokens), the
        mask `present` (true = present) for sequences of different lengths. Tokens: `model(tokens, times, present)`.

        - `query_times` (batch, queries): the output at these times instead, observed or not: between the samples, or
          after them to forecast. A query reads the samples, of a causal model those up to it, and changes nothing.
        - `save_at`: depths at which to save the states; `costs`: running costs to integrate along depth. Both give a
          `Result`.
        - `grid`: the depths to step on, such as those that another solve accepted; a model on a given grid is the same
          function of every sequence, whatever its batch mates.
        - `encoded`: the cloud that cross-attention reads. `observers` watch both solves.
        - `generator`: where the randomness of this call comes from, torch's global one by default.
        """
        full_precision = self._dtype_under_autocast()
        cloud, where = self._embed(inputs, query_times, named)
        if full_precision is not None:  # products have half precision, states have not
            cloud = cloud.at(cloud.points.to(full_precision))
        random = self.training
        if is_traced():  # a graph cannot hold a seed, and most flows draw nothing
            random = random and any(draws(part.operator) for part in self.flow.parts)
        noisy = _any_random(costs) or random
        solver = self.solver if grid is None else self._walk_grid(grid)
        windowed = not isinstance(getattr(solver, "stepper", None), LieTrotter)
        seed = fresh_seed(generator) if noisy else 0
        setting = Setting(self.flow, cloud, encoded, seed, random, self.axis, windowed)
        one_graph = is_traced() or self.gradient.one_graph or not torch.is_grad_enabled()
        field = setting.bind(costs, self.gradient.second_derivatives, one_graph)
        solution = solver.solve(field, field.initial(), (0.0, self.flow.depth), self.gradient, save_at, observers)
        output = self.readout(cloud.at(solution.x))
        if where is not None:
            output = take_tokens(output, where)
        return Result(output, solution, setting, where) if full or costs or len(save_at) > 0 else output

    def _dtype_under_autocast(self) -> torch.dtype | None:
        """The dtype of the parameters where autocast lowers that of products; `None` where it does not."""
        parameter = next(self.parameters(), None)
        if parameter is None or not torch.is_autocast_enabled(parameter.device.type):
            return None
        if not is_traced():
            check_autocast(parameter.device)
        return parameter.dtype

    def _embed(self, inputs: Any, query_times: Tensor | None, named: Any) -> tuple[Cloud, Tensor | None]:
        if len(inputs) == 1 and isinstance(inputs[0], Cloud) and not named and query_times is None:
            return check_cloud(inputs[0], self.embedding.width), None
        if named:
            refuse_unknown("model(...)", named, _argument_names(self.embedding), _ELSEWHERE)
        if query_times is None:
            return self.embedding(*inputs, **named), None
        if not self.readout.per_token:
            why = "it gives one output per sequence, and each query time wants its own"
            cure = "Build the model with per_token=True, or with TokenReadout(width, outputs)."
            reject("readout", type(self.readout).__name__, why, cure)
        return self.embedding(*inputs, query_times=query_times, **named)

    @property
    def axis(self) -> Axis | None:
        """The axis along which states are functions; `None` where they are plain vectors."""
        return axis_of(self.embedding)

    def generate(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: `continua.generate(model, prompt, max_new_tokens)` continues prompts."""
        cure = "Call continua.generate(model, prompt, max_new_tokens)."
        reject("generate", "a method", "generating is a function of a model", cure)

    @advise(
        "model.at",
        {
            "nodes": "axis_nodes= (embedding axis) or head_nodes=",
            "heads": "head_nodes=",
            "axis": "axis_nodes=",
            "depth": "steps= or grid=; the length of the flow is that of training",
            "atol": "rtol=, which sets both tolerances",
            **dict.fromkeys(("stepper", "controller", "method"), "solver=Solver(RK4(), Fixed(8))"),
        },
    )
    def at(
        self,
        steps: int | None = None,
        grid: Sequence[float] | None = None,
        rtol: float | None = None,
        solver: AbstractSolver | None = None,
        gradient: AbstractGradient | None = None,
        head_nodes: int | None = None,
        axis_nodes: int | None = None,
    ) -> "ContinuousTransformer":
        """The same model, parameters shared, with another resolution, solver or gradient.

        It is in the mode, training or evaluation, that this model has now; `eval()` of either changes that one alone.

        Depth: `steps=8` takes eight equal steps (of a network of L layers a multiple of L, or a divisor, for which
        neighbouring layers are joined into their mean), `grid=` walks given depths, `rtol=1e-8` sets both tolerances;
        each keeps the stepper, but split steps, which estimate no error and are not retraced, give way to those of
        Dormand-Prince on the summed velocity for `rtol` and for `gradient=Backsolve()`. `head_nodes=12` evaluates a
        measure of heads at twelve nodes, `axis_nodes=16` the embedding axis at sixteen. The result has a `training`
        flag of its own, which starts as this model's; embedding, flow and readout are shared.
        """
        if sum(x is not None for x in (steps, grid, rtol, solver)) > 1:
            asked = {"steps": steps, "grid": grid, "rtol": rtol, "solver": solver}
            told = {name: value for name, value in asked.items() if value is not None}
            reject("at", told, "one way to step excludes the others", f"Pass one of {', '.join(told)}.")
        embedding, flow, readout, given = self.embedding, self.flow, self.readout, solver is not None
        if head_nodes is not None:
            flow = _flow_at_head_nodes(flow, head_nodes)
        if axis_nodes is not None:
            embedding, readout = embedding_at(embedding, axis_nodes), readout_at(readout, axis_nodes)
            flow = flow.map_parts(lambda part: Part(with_nodes(part.operator, axis_nodes), part.field))
        if steps is not None:
            solver, flow = self._controlled_by(Fixed(steps)), self._flow_in_steps(flow, steps)
        elif grid is not None:
            solver = self._walk_grid(grid)
        elif rtol is not None:
            own = self.solver.controller if isinstance(self.solver, Solver) else None
            kept = own if isinstance(own, Adaptive | PerSequence) else Adaptive()
            solver = self._controlled_by(dataclasses.replace(kept, rtol=rtol, atol=None), smooth=True)
        now = solver or self.solver
        if isinstance(gradient, Backsolve) and not given and isinstance(now, Solver) and not now.stepper.reversible:
            now = self._controlled_by(now.controller, smooth=True)
        return self._with(embedding, flow, readout, now, gradient or self.gradient)

    def _flow_in_steps(self, flow: Flow, steps: int) -> Flow:
        """The flow, whose parameters jump at ends of steps only; layers that are a multiple of steps are joined."""
        at_least(1, steps=steps)
        depth, parts = flow.depth, 2 if isinstance(getattr(self.solver, "stepper", None), Strang) else 1
        jumps = sorted({b / depth for field in flow.fields for b in field.breaks})

        def fits(count: int) -> bool:  # Strang's half-steps may meet a jump at the middle of a step
            return all(abs(b * parts * count - round(b * parts * count)) < 1e-6 for b in jumps)

        if fits(steps):
            return flow
        fields = [field for field in flow.fields if field.breaks]
        layers = len(jumps) + 1
        joinable = fits(layers) and all(isinstance(f, PiecewiseConstant) and len(f.pieces) == layers for f in fields)
        if joinable and layers % steps == 0:
            return flow.map_parts(
                lambda part: Part(part.operator, join_layers(part.field, steps)) if part.field.breaks else part  # pyright: ignore[reportArgumentType]
            )
        fewer = [n for n in range(1, layers) if joinable and layers % n == 0]
        more = [n for n in range(1, 8 * layers + 1) if fits(n)][:4]
        cure = f"Pass steps from {', '.join(map(str, sorted({*fewer, *more})))}." if fewer or more else "Pass grid=."
        reject("steps", steps, f"the parameters are those of {layers} layers, and no step crosses a jump", cure)

    def to_layers(self, layers: int) -> "ContinuousTransformer":
        """A copy whose fields are constant on each of `layers` equal pieces of depth, as of a layered network."""
        depth = self.flow.depth
        flow = self.flow.map_parts(lambda part: Part(part.operator, to_layers(part.field, layers, depth)))
        flow.stagger = None if flow.stagger is None else layers
        return self._with(self.embedding, flow, self.readout, self.solver, self.gradient)

    def _with(self, *parts: Any) -> "ContinuousTransformer":
        other = ContinuousTransformer(*parts)
        other.training = self.training
        return other

    def in_eval_mode(self) -> "ContinuousTransformer":
        """The same model, parameters shared, in evaluation mode; this one stays in its own."""
        other = self.at()
        other.training = False
        return other

    def _walk_grid(self, grid: Sequence[float]) -> Solver:
        if isinstance(grid, str) or not hasattr(grid, "__iter__"):
            cure = f"Pass grid=[0, {self.flow.depth / 2:g}, {self.flow.depth:g}]; equal steps are model.at(steps=8)."
            reject("grid", grid, "these are no depths", cure)
        return self._controlled_by(Given(tuple(grid)))

    def _controlled_by(self, controller: AbstractController, smooth: bool = False) -> Solver:
        """This solver with other steps; if `smooth`, they solve the summed velocity with an estimate of their error."""
        if not isinstance(self.solver, Solver):
            reject("solver", self.solver, "it has no steps to choose", "Pass at(solver=Solver(stepper, controller)).")
        stepper, ranks = self.solver.stepper, getattr(self.solver.controller, "all_ranks", False)
        if ranks and isinstance(controller, Fixed | Given | Adaptive):
            controller = dataclasses.replace(controller, all_ranks=True)
        if smooth and stepper.error_order is None and manifold_of(stepper) is None:
            stepper = DormandPrince()
        return Solver(stepper, controller)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def __repr__(self) -> str:
        axis, count = self.axis, sum(p.numel() for p in self.parameters())
        state = "vectors" if axis is None else f"functions: {axis.nodes} axis nodes x {axis.channels} channels"
        lines = [
            f"embedding: {type(self.embedding).__name__}, width {self.embedding.width} ({state})",
            *(
                f"part of the flow: {_describe(part.operator)}, its parameters by {type(part.field).__name__}"
                for part in self.flow.parts
            ),
            f"depth: [0, {self.flow.depth:g}]"
            + ("" if self.flow.stagger is None else f", staggered for {say_count(self.flow.stagger, 'step')}")
            + f", {self._told_solver()}, gradient {_describe(self.gradient)}",
            f"readout: {type(self.readout).__name__}, {self.readout.outputs} outputs per "
            + ("token" if self.readout.per_token else "sequence"),
            f"parameters: {count:,}",
        ]
        return "ContinuousTransformer(\n" + "".join(f"  {line}\n" for line in lines) + ")"

    def _told_solver(self) -> str:
        """The solver in words that name its stepper, which is a default as often as not."""
        own = self.solver
        parts = (own.stepper, own.controller) if isinstance(own, Solver) else ()
        return f"Solver({', '.join(map(_describe, parts))})" if parts else _describe(own)


_OF_AT = {"steps": 8, "rtol": "1e-4", "solver": "Solver(RK4(), Fixed(8))", "gradient": "Direct()",
          "head_nodes": 12, "axis_nodes": 16}  # fmt: skip
_ELSEWHERE = {
    **dict.fromkeys(("mask", "attention_mask"), "present=mask.bool(), true where a token is present"),
    **dict.fromkeys(("key_padding_mask", "src_key_padding_mask"), "present=~mask, true where a token is present"),
    **dict.fromkeys(("t", "positions", "position_ids"), "times="),
    "is_causal": "causal=True to continua.transformer: the model knows it",
    **{name: f"it to at: model.at({name}={value})(...)" for name, value in _OF_AT.items()},
}
"""What other libraries call the inputs, and what `at` takes."""


def _argument_names(embedding: AbstractEmbedding) -> list[str]:
    """The inputs by their names, of the embedding inside all wrappers, and what a call of the model takes beside."""
    while isinstance(embedding, AbstractEmbeddingWrapper):
        embedding = embedding.inner
    known = [inspect.signature(call).parameters for call in (embedding.forward, ContinuousTransformer.forward)]
    named = [p.name for each in known for p in each.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in dict.fromkeys(named) if name != "self"]


def _describe(thing: Any) -> str:
    """A dataclass with what differs from its defaults; the axis is told once, with the embedding."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return str(thing)
    values = [(f, getattr(thing, f.name)) for f in dataclasses.fields(thing) if f.repr]
    told = [f"{f.name}={_describe(v)}" for f, v in values if v != f.default and not isinstance(v, Axis)]
    return f"{type(thing).__name__}({', '.join(told)})"


def _flow_at_head_nodes(flow: Flow, head_nodes: int) -> Flow:
    if not any(isinstance(part.field, AbstractHeadField) for part in flow.parts):
        cure = "Build it with heads=HeadMeasure(...) and a field in a basis or by a hypernetwork; layers count heads."
        reject("head_nodes", head_nodes, "no part of the flow has continuous heads", cure)
    at_least(1, head_nodes=head_nodes)

    def change(part: Part) -> Part:
        if not isinstance(part.field, AbstractHeadField):
            return part
        return Part(with_heads(part.operator, head_nodes), part.field.at_nodes(head_nodes))

    return flow.map_parts(change)


def _any_random(costs: Sequence[Cost]) -> bool:
    try:
        return any(cost.random for cost in costs)
    except (TypeError, AttributeError):
        reject("costs", costs, "running costs are objects, in a list", "Pass costs=[continua.KineticEnergy()].")


def source_and_target(inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """What an encoder-decoder reads: the arguments of the encoder's embedding and those of the decoder's."""
    if len(inputs) != 2 or not all(isinstance(given, tuple | list) for given in inputs):
        kinds, cure = tuple(type(x).__name__ for x in inputs), "Pass model((source, ...), (target, ...))."
        reject("inputs", kinds, "an encoder-decoder takes a tuple for the source and one for the target", cure)
    return inputs[0], inputs[1]


@final
class EncoderDecoder(nn.Module):
    """Two continuous Transformers: the decoder's cross-attention reads the encoder's tokens at its end.

    With piecewise-constant fields and unit steps it is `torch.nn.Transformer`, exactly.
    """

    def __init__(self, encoder: ContinuousTransformer, decoder: ContinuousTransformer) -> None:
        super().__init__()
        if not encoder.readout.per_token:
            why = "it gives one output per sequence, and the decoder reads tokens"
            reject("encoder", type(encoder.readout).__name__, why, "Give the encoder a readout NormReadout(width).")
        if encoder.readout.outputs != decoder.embedding.width:
            why = f"the decoder's tokens have width {decoder.embedding.width}"
            cure = "Give the encoder a readout with as many outputs, such as NormReadout(width)."
            reject("encoder", encoder.readout.outputs, why, cure)
        self.encoder, self.decoder = encoder, decoder

    def encode(self, *inputs: Any, **named: Any) -> Cloud:
        """The encoder's tokens, read out, on their measure: what the decoder reads."""
        found = self.encoder(*inputs, full=True, **named)
        return found.cloud.at(found.output)

    def forward(
        self,
        *inputs: Any,
        costs: Sequence[Cost] = (),
        generator: torch.Generator | None = None,
        full: bool = False,
        **named: Any,
    ) -> Any:
        """Output for the target, given the source; both are the arguments of their embeddings.

        `model((tokens, None, present), (tokens,))` reads a source with padding, at times that are the index, and a
        target without padding. Running costs are paid by both; other keywords are those of the decoder's call.
        """
        source, target = source_and_target(inputs)
        noisy = _any_random(costs) or self.training
        seed = fresh_seed(generator) if noisy else None
        ours, theirs = (None if seed is None else generator_of(branch_seed(seed, place)) for place in (0, 1))
        first = self.encoder(*source, costs=costs, generator=ours, full=True)
        encoded = first.cloud.at(first.output)
        found = self.decoder(*target, encoded=encoded, costs=costs, generator=theirs, full=True, **named)
        return found._replace(encoder=first) if full or costs or len(named.get("save_at", ())) > 0 else found.output

    def at(self, **changed: Any) -> "EncoderDecoder":
        """The same model, parameters shared, with both solves changed: the arguments of `ContinuousTransformer.at`."""
        other = EncoderDecoder(self.encoder.at(**changed), self.decoder.at(**changed))
        other.training = self.training
        return other

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)
