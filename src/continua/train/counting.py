"""What an update costs, counted on small copies of a model and scaled up to sizes that no machine here could hold.

Everything that is counted is a polynomial in the sizes: weights and their updates in the width w, and what is done for
a token in w and, through attention, in the number n of tokens of a sequence:

    c(w, n, B) = p(w) + B ( n q(w) + n^2 r(w) ) ,   p, q, r of degree 2

with a hidden size in proportion to w. Nine small updates give all coefficients, and the sizes of a model of billions of
parameters follow. They read several times as many tokens as the copies are wide: with fewer, kernels along the
embedding axis are applied in another way, mode by mode, and the polynomials are others.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from continua.control import Objective
from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Tensor
from continua.data import Form, Question
from continua.model import ContinuousTransformer
from continua.train.learner import Learner, Plan
from continua.train.models import build_continuous, count_parameters, objective_of
from continua.train.presets import Preset

_WIDEST, _ROWS = 64, 8
"""Small copies are at most so wide, unless heads and axis nodes ask for more, and read so many times more tokens."""


_LARGEST = 256
"""Wider copies would take minutes to count."""


@final
class PeakMemory(TorchDispatchMode):
    """While active, counts the bytes of all tensors made since that are still alive; `peak` is the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._total = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in known:
                self._total += storage.nbytes()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if self._total > 1.01 * self.peak:  # who is still alive is asked only where it may matter, by one per cent
            self._alive = {place: held for place, held in self._alive.items() if not held[0].expired()}
            self._total = sum(size for _, size in self._alive.values())
            self.peak = max(self.peak, self._total)
        return made


def update_memory(model: ContinuousTransformer, objective: Objective, batch: Batch) -> int:
    """Bytes at the peak of one forward and backward pass, above the model itself; its gradients are not kept."""
    with PeakMemory() as counted:
        total = objective(model, batch, generator_of(0)).total
        torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return counted.peak


class Counts(NamedTuple):
    """What one update takes on one device, numbers in single precision."""

    parameters: float
    """numbers that are trained"""
    weights: float
    """numbers of theta(z), the parameters of the flow at one depth"""
    flops: float
    """multiplications and additions of matrix products and attention, forwards and backwards"""
    traffic: float
    """bytes that operations read and write"""
    operations: float
    """how many there are"""
    scores: float
    """numbers of all matrices of tokens by tokens that attention computes, two forwards and five backwards: with short
    keys these, and not the flops, take its time"""
    peak: float
    """bytes at the peak of the forward and backward pass, gradients among them, beside the parameters"""
    step: float
    """bytes at the peak of the optimiser's step, beside parameters, gradients and what it remembers"""
    evaluations: float
    """of the velocity, forwards and backwards"""


@final
class Counter(TorchDispatchMode):
    """While active, counts operations, what they compute, and what they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.traffic = self.operations = self.scores = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        made = func(*args, **named)
        self.operations += 1
        packet = func._overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **named, out_val=made)
        elif "scaled_dot_product" in packet.__name__:  # torch knows those of other devices
            backward = "backward" in packet.__name__
            q, k, v = args[1:4] if backward else args[:3]
            scores = q.shape[:-1].numel() * k.shape[-2] * (5 if backward else 2)
            self.flops += (q.shape[-1] + v.shape[-1]) * scores
            self.scores += scores
        read = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        known = {x.untyped_storage()._cdata for x in read}
        new = [x for x in tree_leaves(made) if isinstance(x, Tensor) and x.untyped_storage()._cdata not in known]
        if new or func._schema.is_mutable:  # others only look at memory in another way
            self.traffic += sum(x.nbytes for x in (*read, *new))
        return made


def count_update(form: Form, preset: Preset, batch: Batch, optimiser: Callable[..., Any]) -> Counts:
    """Counts an update of the model of a preset on a batch: its second, since the first makes the optimiser's state."""
    torch.manual_seed(0)
    model = build_continuous(form, preset)
    learner = Learner("counted", model, objective_of(form, model, preset), optimiser(model, preset))
    plan = Plan(10, len(batch.inputs[0]))
    learner.update(batch, 0, plan)
    with PeakMemory() as stepping:
        learner.optimiser.step()
    with Counter() as counter:
        row = learner.update(batch, 1, plan)
    peak = update_memory(model, learner.objective, batch)
    weights = sum(leaf.shape.numel() if isinstance(leaf, Tensor) else math.prod(leaf.shape)
                  for field in model.flow.fields for leaf in field.structure.specs)  # fmt: skip
    replayed = 2 if preset.depth.gradient != "direct" else 1
    return Counts(count_parameters(model), weights, counter.flops, counter.traffic, counter.operations, counter.scores,
                  peak, stepping.peak, row.evaluations * replayed)  # fmt: skip


def example_batch(form: Form, size: int, tokens: int) -> Batch:
    """Tokens of no meaning in the form of a text."""
    numbers = torch.arange(size * tokens).view(size, tokens) % (form.vocabulary or 1)
    times = torch.arange(tokens).expand(size, -1) * form.spacing
    return Batch((numbers, times.float()), (numbers + 1) % (form.vocabulary or 1))


def text_form(vocabulary: int, tokens: int) -> Form:
    """The form of a text over a vocabulary, of sequences of so many tokens."""
    return Form(vocabulary, Question.TOKEN, vocabulary=vocabulary, causal=True, span=float(tokens))


@final
class CountModel:
    """The counts of one configuration at any width, number of tokens and batch, from those of small copies."""

    def __init__(
        self,
        form: Callable[[int], Form],
        preset: Preset,
        batch: Callable[[Form, int, int], Batch],
        tokens: Sequence[int],
        optimiser: Callable[..., Any],
    ) -> None:
        """`form` and `batch` are asked at the numbers of `tokens`: two where they can be chosen, else the only one."""
        self.widths, self.tokens = small_widths(preset), tuple(tokens)
        ratio = Fraction(preset.model.hidden, preset.model.width)

        def count(width: int, n: int, size: int) -> Counts:
            smaller = preset.replace(width=width, hidden=int(width * ratio))
            return count_update(form(n), smaller, batch(form(n), size, n), optimiser)

        first, *more = self.tokens
        size = -(-_ROWS * self.widths[-1] // first)
        self._fixed, self._slopes = {}, {}
        for width in self.widths:
            one, two = count(width, first, size), count(width, first, 2 * size)
            slopes = [[(b - a) / size for a, b in zip(one, two, strict=True)]]
            self._fixed[width] = [a - size * slope for a, slope in zip(one, slopes[0], strict=True)]
            for n in more:
                other = zip(count(width, n, size), self._fixed[width], strict=True)
                slopes.append([(c - p) / size for c, p in other])
            self._slopes[width] = slopes

    def at(self, width: int, tokens: int, batch: float) -> Counts:
        """The counts at these sizes."""
        fixed, slope = self.split(width, tokens)
        return Counts(*(p + batch * s for p, s in zip(fixed, slope, strict=True)))

    def split(self, width: int, tokens: int) -> tuple[Counts, Counts]:
        """What does not hang on the batch, and what each of its sequences adds."""
        fixed = [_interpolate({w: v[i] for w, v in self._fixed.items()}, width) for i in range(len(Counts._fields))]
        slope = []
        for i in range(len(Counts._fields)):
            by_tokens = [_interpolate({w: s[k][i] for w, s in self._slopes.items()}, width)
                         for k in range(len(self.tokens))]  # fmt: skip
            slope.append(_through_origin(self.tokens, by_tokens, tokens))
        return Counts(*fixed), Counts(*slope)


def small_widths(preset: Preset) -> tuple[int, int, int]:
    """Three widths that axis nodes, heads and hidden size share evenly, the widest within `_WIDEST` if it can be."""
    sizes = preset.model
    unit = math.lcm(2 * sizes.axis_nodes * sizes.head_nodes, Fraction(sizes.hidden, sizes.width).denominator)
    if unit > _LARGEST:
        cure = "Pass sizes with common factors, such as a hidden size that is a multiple of the width."
        reject("hidden", sizes.hidden, f"the smallest model of these proportions has width {unit}", cure)
    most = max(3, _WIDEST // unit)
    return unit * (most // 3), unit * (2 * most // 3), unit * most


def _interpolate(values: Mapping[int, float], x: float) -> float:
    """The parabola through three points (Lagrange)."""
    return sum(
        value * math.prod((x - other) / (place - other) for other in values if other != place)
        for place, value in values.items()
    )


def _through_origin(places: Sequence[int], values: Sequence[float], x: float) -> float:
    """q x + r x^2 through one or two points; through one, the value there."""
    if len(places) == 1:
        return values[0]
    (a, b), (u, v) = places, (values[0] / places[0], values[1] / places[1])
    return x * (u + (v - u) * (x - a) / (b - a))


@final
@dataclasses.dataclass(frozen=True)
class Machine:
    """How fast a device is.

    seconds = flops / `flops` + traffic / `bandwidth` + operations `overhead` + scores `score` + parameters `parameter`
    """

    flops: float
    """multiplications and additions in a second, as reached and not as promised"""
    bandwidth: float
    """bytes read and written in a second"""
    overhead: float
    """seconds that an operation takes where it computes nothing"""
    score: float = 0.0
    """seconds that a score of attention takes beside its flops"""
    parameter: float = 0.0
    """seconds that a parameter takes beside that: it and its moments are seldom still in a cache"""

    def seconds(self, counts: Counts) -> float:
        """How long an update takes."""
        moving = counts.traffic / self.bandwidth + counts.operations * self.overhead
        return counts.flops / self.flops + moving + counts.scores * self.score + counts.parameters * self.parameter

    @classmethod
    def fit(cls, counts: Sequence[Counts], seconds: Sequence[float]) -> "Machine":
        """The machine on which updates of these counts took so long, by least squares of relative errors."""
        rows = torch.tensor(
            [[c.flops, c.traffic, c.operations, c.scores, c.parameters] for c in counts], dtype=torch.float64
        )
        rows = rows / torch.tensor(seconds, dtype=torch.float64)[:, None]
        kept = list(range(rows.shape[1]))
        while True:  # a cost below nothing is left out, and the others are fitted again
            found = torch.linalg.lstsq(rows[:, kept], torch.ones(len(rows), 1, dtype=torch.float64)).solution[:, 0]
            if bool((found > 0).all()):
                break
            kept.pop(int(found.argmin()))
        costs = dict.fromkeys(range(rows.shape[1]), 0.0) | dict(zip(kept, found.tolist(), strict=True))
        flops, bandwidth = (1.0 / costs[i] if costs[i] else math.inf for i in (0, 1))
        return cls(flops, bandwidth, *(costs[i] for i in (2, 3, 4)))
