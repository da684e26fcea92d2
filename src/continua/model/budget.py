"""One model, every budget: the resolutions at which a trained model is read, what they cost, and the best that fits."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from continua.core.checks import at_least, is_a, positive
from continua.core.errors import ArgumentError, SolveError, reject
from continua.core.shapes import Tensor
from continua.fields import AbstractHeadField
from continua.model.flow import is_causal
from continua.model.readout import flatten_tokens
from continua.model.transformer import ContinuousTransformer
from continua.solve import Adaptive, Fixed, PerSequence, Solver

_FACTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ABOUT = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
_TOLERANCES = (1e-2, 1e-3, 1e-4)

Loss = Callable[[Tensor, Any], Tensor]
"""(output, targets) -> a scalar; of a readout that gives one output per token, the present tokens in one row."""


class Resolution(NamedTuple):
    """How finely one continuum is read: `Resolution("steps", 8)` is `model.at(steps=8)`, in words "8 steps"."""

    unit: str
    value: int | float

    def apply(self, model: ContinuousTransformer) -> ContinuousTransformer:
        """The same model, parameters shared, at this resolution."""
        return model.at(**{self.unit: self.value})  # pyright: ignore[reportArgumentType]

    @property
    def call(self) -> str:
        """The method of a model that gives it, as Python."""
        return f"at({self.unit}={self.value!r})"

    def __str__(self) -> str:
        if self.unit == "rtol":
            return f"rtol {self.value:g}"
        words = self.unit.replace("_", " ")
        return f"{self.value:g} {words[:-1] if self.value == 1 else words}"


def fixed_steps(model: ContinuousTransformer) -> int | None:
    """The equal steps that a model takes; `None` where its steps adapt."""
    controller = model.solver.controller if isinstance(model.solver, Solver) else None
    return controller.steps if isinstance(controller, Fixed) else None


def own_nodes(model: ContinuousTransformer) -> dict[str, int]:
    """The nodes of the measure of heads and of the embedding axis, of those that it has, as `model.at` calls them."""
    heads = [field.heads for field in model.flow.fields if isinstance(field, AbstractHeadField)]
    nodes = [] if model.axis is None else [model.axis.nodes]
    return {name: found[0] for name, found in (("head_nodes", heads), ("axis_nodes", nodes)) if found}


def steps_about(model: ContinuousTransformer) -> list[int]:
    """Numbers of steps from a quarter to eight times the model's own, which of an adaptive one are taken to be four."""
    own = fixed_steps(model) or 4
    return sorted({max(1, round(own * factor)) for factor in _ABOUT})


def resolutions_of(model: ContinuousTransformer) -> list[Resolution]:
    """Those at which a trained model is read, one continuum at a time, of each the cheapest first.

    Depth steps from a quarter to eight times its own, tolerances where its parameters do not jump, half and twice the
    head nodes and axis nodes. A model may refuse some of them: layers have few numbers of steps.
    """
    found = [Resolution("steps", steps) for steps in steps_about(model)]
    if not any(field.breaks for field in model.flow.fields):
        own = model.solver.controller if isinstance(model.solver, Solver) else None
        rtols = {*_TOLERANCES, *([own.rtol] if isinstance(own, Adaptive | PerSequence) else [])}
        found += [Resolution("rtol", rtol) for rtol in sorted(rtols, reverse=True)]
    nodes = [(unit, size) for unit, own in own_nodes(model).items() for size in (own // 2, 2 * own) if size > 0]
    return [*found, *(Resolution(unit, size) for unit, size in nodes)]


def choosable_resolutions(model: ContinuousTransformer) -> list[Resolution]:
    """Those of `resolutions_of` that a user may be given unasked.

    Without tolerances where the flow is causal: steps that adapt to all tokens would tell earlier ones of later ones.
    """
    causal = any(is_causal(part.operator) for part in model.flow.parts)
    return [each for each in resolutions_of(model) if not (causal and each.unit == "rtol")]


def time_call(call: Callable[[], Any], repeats: int = 3) -> float:
    """Milliseconds that a call takes, the median of a few; what is made once should have been made before."""
    return statistics.median(_milliseconds(call) for _ in range(repeats))


def _milliseconds(call: Callable[[], Any]) -> float:
    _wait()
    start = time.perf_counter()
    call()
    _wait()
    return 1000.0 * (time.perf_counter() - start)


def _wait() -> None:
    """Until an accelerator has done what it was told to: its calls return before their work is done."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def call_loss(loss: Loss, output: Tensor, targets: Any) -> float:
    """The loss as a number; a loss that fails says what it was given."""
    try:
        return float(loss(output, targets))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        shape = tuple(output.shape)
        error.add_note(f"loss(output, targets) got an output of shape {shape}: one row per sequence or present token.")
        raise


@torch.no_grad()
def at_budget(
    model: ContinuousTransformer,
    inputs: Sequence[Any],
    targets: Any = None,
    loss: Loss | None = None,
    *,
    milliseconds: float,
    repeats: int = 3,
) -> ContinuousTransformer:
    """The same model, parameters shared, at the best resolution at which a call on `inputs` takes at most this time.

    With `targets` the best one has the lowest `loss(output, targets)`, such as `torch.nn.functional.cross_entropy`, a
    mean over its rows: of one output per token there is one row per present token. It is found among depth steps from a
    quarter to eight times the model's own, tolerances (not of causal models), half and twice the head nodes and axis
    nodes, one continuum at a time. More time does not always mean a lower loss.

    Without targets it is the most depth steps, up to 64 times its own: multiples and divisors of the steps that a flow
    is staggered for, since parameters may vary steeply between these; of layers those that they have.

    A time is the median of `repeats` calls. `print(at_budget(...))` shows what was chosen.
    """
    cure = "Pass one of continua.transformer(...) or continua.load(folder); of series in a CSV file, its .model."
    is_a(ContinuousTransformer, cure, model=model)
    is_a((tuple, list), "Pass what the model is called with: (values,) or (values, times).", inputs=inputs)
    positive(milliseconds=milliseconds)
    at_least(1, repeats=repeats)
    _check_loss(targets, loss)
    model.in_eval_mode()(*inputs)  # inputs that cannot be are told here, and not taken for a resolution that cannot
    trial = _Trial(model, inputs, float(milliseconds), repeats)
    found = trial.most_steps() if loss is None else trial.lowest_loss(loss, targets)
    if not found:
        which = "the fewest depth steps take" if loss is None else "the fastest of its resolutions takes"
        why = f"{which} {trial.fastest:.3g} ms on these inputs"
        reject("milliseconds", milliseconds, why, "Allow more time, or pass fewer sequences at once.")
    return found[0]


def _check_loss(targets: Any, loss: Any) -> None:
    if (targets is None) != (loss is None):
        cure = "Pass both, such as targets=labels, loss=torch.nn.functional.cross_entropy, or neither."
        reject("loss" if loss is None else "targets", None, "a loss compares the output with targets", cure)
    if loss is not None and (not callable(loss) or isinstance(loss, type)):
        why = "this is a class, and no function" if isinstance(loss, type) else "this is no function"
        cure = "Pass one, such as loss=torch.nn.functional.cross_entropy or torch.nn.CrossEntropyLoss()."
        reject("loss", loss, why, cure)


class _Trial:
    """Calls of a model in evaluation mode at one resolution after the other, each with its time."""

    def __init__(self, model: ContinuousTransformer, inputs: Sequence[Any], allowed: float, repeats: int) -> None:
        self.model, self.inputs, self.allowed, self.repeats = model, inputs, allowed, repeats
        self.fastest = math.inf

    def most_steps(self) -> list[ContinuousTransformer]:
        """The model with the most depth steps that fit; none where none do."""
        stagger = self.model.flow.stagger
        own = stagger or fixed_steps(self.model) or 1
        counts = sorted({*_FACTORS, *(own * factor for factor in _FACTORS), *range(1, own)})
        if stagger is not None:
            counts = [steps for steps in counts if steps % stagger == 0 or stagger % steps == 0]
        found = [model for model, _ in self._fitting([Resolution("steps", steps) for steps in counts])]
        return found[-1:]

    def lowest_loss(self, loss: Loss, targets: Any) -> list[ContinuousTransformer]:
        """The model as it is or at another resolution, whichever has the lowest loss of those that fit."""
        per_token, losses = self.model.readout.per_token, list[tuple[float, ContinuousTransformer]]()
        for model, found in self._fitting([None, *choosable_resolutions(self.model)]):
            output, right = found.output, targets
            if per_token:
                output, right = (flatten_tokens(x, found.cloud.present) for x in (output, right))
            losses.append((call_loss(loss, output, right), model))
        finite = [each for each in losses if math.isfinite(each[0])]
        if losses and not finite:
            why = f"it is {losses[0][0]} at every resolution that fits"
            reject("loss", loss, why, "Pass inputs and targets at which it is finite.")
        return [] if not finite else [min(finite, key=lambda each: each[0])[1]]

    def _fitting(self, tried: Sequence[Resolution | None]) -> Iterator[tuple[ContinuousTransformer, Any]]:
        """The models that a call takes so much time of, with its result; of each continuum until one is too slow.

        `None` is the model as it is, on a grid or at tolerances that no resolution may have.
        """
        slow = set[str]()
        for resolution in tried:
            if resolution is not None and resolution.unit in slow:
                continue
            try:
                chosen = self.model if resolution is None else resolution.apply(self.model)
                other = chosen.in_eval_mode()
                found = other(*self.inputs, full=True)  # what is made once is made here
            except (ArgumentError, SolveError):  # no steps that these layers have, or too wild at this tolerance
                continue
            taken = time_call(lambda other=other: other(*self.inputs, full=True), self.repeats)
            self.fastest = min(self.fastest, taken)
            if taken <= self.allowed:
                yield chosen, found
            elif resolution is not None:
                slow.add(resolution.unit)
