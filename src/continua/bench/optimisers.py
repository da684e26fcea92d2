"""What updates cost and gain: the recipe against torch's AdamW, and a preconditioner on spectral kernels."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import nn

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Case, Ratio, Row, median_ratio, time_in_turn
from continua.bench.flows import signal_model, spectral_flow
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Tensor
from continua.data import burgers_solution
from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import FeedForward, Spectral
from continua.optim import SOAP, BlockwiseAdamW, ModalAdamW, Recipe, use
from continua.solve import Direct, Fixed, Midpoint, integrate
from continua.spaces import AbstractBasis, Axis, Cloud, Cosine, Fourier

NEVER = 10**9
"""An interval that no run reaches: bases are made in the first update, which is not timed, and then never again."""


@final
@dataclasses.dataclass(frozen=True)
class RecipeCost(AbstractBenchmark):
    """Updates by `Recipe()` and by `torch.optim.AdamW(foreach=True)`, on the same parameters with the same gradients.

    A model with continuous heads, and a flow of spectral kernels, whose updates with new bases are shown
    apart and spread over the interval between them; for information, the same flow under the library's SOAP. On one
    thread, time is that of the processor.
    """

    width: int = 128
    heads: int = 4
    updates: int = 20
    repetitions: int = 15
    threads: int = 1

    @property
    def claim(self) -> str:
        return "an update of the recipe takes at most 1.5 times one of torch.optim.AdamW, new bases apart"

    def quick(self) -> "RecipeCost":
        return RecipeCost(width=16, heads=4, updates=1, repetitions=1)

    def measure(self) -> BenchResult:
        heads = functools.partial(signal_model, self.width, self.heads)
        kernels = functools.partial(spectral_flow, self.width)
        optimisers: dict[str, tuple[torch.optim.Optimizer, nn.Module]] = {
            "recipe": _by(Recipe().build, heads()),
            "AdamW": _by(_adamw, heads()),
            "recipe, spectral": _by(Recipe(spectral=use(ModalAdamW, interval=NEVER)).build, kernels()),
            "recipe, spectral, new bases": _by(Recipe(spectral=use(ModalAdamW, interval=1)).build, kernels()),
            "SOAP, spectral": _by(Recipe(spectral=use(SOAP, interval=NEVER)).build, kernels()),
            "AdamW, spectral": _by(_adamw, kernels()),
        }
        cases = {name: self._repeat(optimiser) for name, (optimiser, _) in optimisers.items()}
        clock = time.process_time if self.threads == 1 else time.perf_counter
        seconds = time_in_turn(cases, self.repetitions, clock)
        rows: list[Row] = [
            {
                "case": name,
                "milliseconds per update": 1e3 * statistics.median(times) / self.updates,
                "parameters": sum(p.numel() for p in optimisers[name][1].parameters()),
                "tensors": len(list(optimisers[name][1].parameters())),
            }
            for name, times in seconds.items()
        ]
        return BenchResult(tuple(rows), tuple(_update_ratios(seconds)))

    def _repeat(self, optimiser: torch.optim.Optimizer) -> Case:
        return lambda: [optimiser.step() for _ in range(self.updates)]


def _by(
    build: Callable[[nn.Module], torch.optim.Optimizer], module: nn.Module
) -> tuple[torch.optim.Optimizer, nn.Module]:
    """An optimiser of the module, whose parameters have random gradients, and the module."""
    generator = generator_of(1)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return build(module), module


def _adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), foreach=True)


def _update_ratios(seconds: dict[str, list[float]]) -> Iterator[Ratio]:
    """Against AdamW on the same parameters; updates with new bases count once in an interval in "spread"."""
    yield Ratio("recipe / AdamW", median_ratio(seconds["recipe"], seconds["AdamW"]), 1.5)
    usual, renewing, adamw = (
        seconds[name] for name in ("recipe, spectral", "recipe, spectral, new bases", "AdamW, spectral")
    )
    interval = ModalAdamW([nn.Parameter(torch.zeros(1, 1, 1, 1))]).defaults["interval"]
    spread = [((interval - 1) * a + b) / interval for a, b in zip(usual, renewing, strict=True)]
    yield Ratio("recipe / AdamW, spectral", median_ratio(usual, adamw), 1.5)
    yield Ratio("recipe / AdamW, spectral, an update with new bases", median_ratio(renewing, adamw))
    yield Ratio(f"recipe / AdamW, spectral, new bases spread over {interval} updates", median_ratio(spread, adamw))
    yield Ratio("SOAP / AdamW, spectral", median_ratio(seconds["SOAP, spectral"], adamw))


_NODES, _CHANNELS, _HIDDEN = 32, 4, 16
_SAMPLES, _TRAINING = 512, 384

Pairs = tuple[Float[Tensor, "samples nodes"], Float[Tensor, "samples nodes"]]
"""Functions on the nodes, and what a model is to make of them."""


@final
@dataclasses.dataclass(frozen=True)
class SpectralGain(AbstractBenchmark):
    """Feed-forward flows with spectral kernels on four problems, trained by AdamW, `ModalAdamW` and SOAP.

    Each takes the better of two rates, which fall to nothing in the last third of the updates; test errors are means
    over seeds. For information: no ratio has a limit.
    """

    updates: int = 150
    batch: int = 32
    seeds: tuple[int, ...] = (2, 3, 4)
    rates: tuple[float, ...] = (0.01, 0.03)
    threads: int = 1

    @property
    def claim(self) -> str:
        return "test errors of spectral kernels trained with and without a preconditioner, for information"

    def quick(self) -> "SpectralGain":
        return SpectralGain(updates=2, batch=4, seeds=(2,), rates=(0.01,))

    def measure(self) -> BenchResult:
        rows: list[Row] = []
        for problem, (pairs, basis) in PROBLEMS.items():
            data = pairs()
            for kind in (BlockwiseAdamW, ModalAdamW, SOAP):
                errors = {rate: [self._error(data, basis, kind, rate, s) for s in self.seeds] for rate in self.rates}
                rate = min(errors, key=lambda rate: statistics.mean(errors[rate]))
                row: Row = {"problem": problem, "optimiser": kind.__name__, "rate": rate}
                found = errors[rate]
                rows.append(row | {"error": statistics.mean(found), "least": min(found), "most": max(found)})
        return BenchResult(tuple(rows), tuple(_error_ratios(rows)))

    def _error(self, data: Pairs, basis: AbstractBasis, kind: type[Any], rate: float, seed: int) -> float:
        """The mean squared test error, in units of the targets' variance."""
        given, wanted = data[0], data[1] / data[1].std()
        net = FunctionFlow(basis, seed)
        # Spectral weights have axes of modes beside those of channels; the preconditioners are for these alone.
        kernels = [p for p in net.parameters() if p.ndim >= 4]
        others = [p for p in net.parameters() if p.ndim < 4]
        optimisers = [kind(kernels, lr=rate, weight_decay=0.0), torch.optim.AdamW(others, lr=3e-3, weight_decay=0.0)]
        schedules = [torch.optim.lr_scheduler.LambdaLR(optimiser, self._share) for optimiser in optimisers]
        generator = generator_of(seed + 10)
        for _ in range(self.updates):
            chosen = torch.randint(0, _TRAINING, (self.batch,), generator=generator)
            for optimiser in optimisers:
                optimiser.zero_grad()
            (net(given[chosen]) - wanted[chosen]).square().mean().backward()
            for optimiser, schedule in zip(optimisers, schedules, strict=True):
                optimiser.step()
                schedule.step()
        with torch.no_grad():
            return float((net(given[_TRAINING:]) - wanted[_TRAINING:]).square().mean())

    def _share(self, update: int) -> float:
        """1, and from seven tenths of the updates on a straight line to a fiftieth."""
        return min(1.0, max(0.02, (self.updates - update) / (0.3 * self.updates)))


@final
class FunctionFlow(nn.Module):
    """One token whose state is a function with channels, moved by one midpoint step of a spectral feed-forward."""

    def __init__(self, basis: AbstractBasis, seed: int) -> None:
        super().__init__()
        axis = Axis(_NODES, _CHANNELS)
        operator = FeedForward(_HIDDEN, kernel=Spectral(axis, basis))
        with torch.random.fork_rng(devices=[]):  # torch's own layers take no generator
            torch.manual_seed(seed)
            self.lift, self.read = nn.Linear(1, _CHANNELS), nn.Linear(_CHANNELS, 1)
        self.flow = Flow([Part(operator, Constant(operator.spec(axis.width), generator_of(seed)))])

    def forward(self, given: Float[Tensor, "batch nodes"]) -> Float[Tensor, "batch nodes"]:
        flow = self.flow.bind(Cloud(self.lift(given.unsqueeze(-1)).flatten(1).unsqueeze(1)))
        solution = integrate(flow, flow.initial(), (0.0, 1.0), Midpoint(), Fixed(1), Direct())
        return self.read(solution.x.squeeze(1).unflatten(-1, (_NODES, _CHANNELS))).squeeze(-1)


def bumps() -> Pairs:
    """A few bumps, most of them on the left, and the integral of u + u^2/2: the modes are correlated."""
    generator = generator_of(4)
    x = (torch.arange(_NODES) + 0.5) / _NODES
    place, height, spread = (torch.rand(_SAMPLES, 4, 1, generator=generator) for _ in range(3))
    height = torch.special.ndtri(height.clamp(1e-6, 1.0 - 1e-6))
    given = (height * torch.exp(-0.5 * ((x - place.square()) / (0.05 + 0.1 * spread)).square())).sum(1)
    return given, torch.cumsum(given + 0.5 * given.square(), 1) * 4.0 / _NODES


def random_mixing(decay: float) -> Pairs:
    """Sixteen cosine coefficients c and tanh(M c) with a random M, both times (1 + k)^-decay."""
    generator, modes = generator_of(6), 16
    synthesis = Axis(_NODES, 1).synthesis(Cosine(modes)).float()
    falling = (1.0 + torch.arange(modes)).pow(-decay)
    matrix = torch.randn(modes, modes, generator=generator) / math.sqrt(modes)
    numbers = torch.randn(_SAMPLES, modes, generator=generator)
    return (numbers * falling) @ synthesis.mT, (torch.tanh(numbers @ matrix) * falling) @ synthesis.mT


def burgers() -> Pairs:
    """Periodic initial states of six waves, and Burgers' equation at time 0.3 with viscosity 0.02."""
    generator, fine = generator_of(3), 256
    x, waves = torch.arange(fine, dtype=torch.float64) / fine, torch.arange(1, 7, dtype=torch.float64)
    drawn = torch.randn(2, _SAMPLES, 6, generator=generator, dtype=torch.float64) / (1.0 + waves)
    phase = 2.0 * math.pi * waves[:, None] * x
    start = drawn[0] @ phase.cos() + drawn[1] @ phase.sin()
    coarse = slice(fine // _NODES // 2, None, fine // _NODES)
    return start[:, coarse].float(), burgers_solution(start, 0.02, 0.3, 120)[:, coarse].float()


PROBLEMS: dict[str, tuple[Callable[[], Pairs], AbstractBasis]] = {
    "bumps": (bumps, Cosine(12)),
    "falling spectra": (lambda: random_mixing(1.5), Cosine(16)),
    "Burgers": (burgers, Fourier(15)),
    "white": (lambda: random_mixing(0.0), Cosine(16)),
}


def _error_ratios(rows: list[Row]) -> list[Ratio]:
    plain = {row["problem"]: float(row["error"]) for row in rows if row["optimiser"] == BlockwiseAdamW.__name__}
    return [
        Ratio(f"{row['optimiser']} / AdamW, {row['problem']}", float(row["error"]) / plain[row["problem"]])
        for row in rows
        if row["optimiser"] != BlockwiseAdamW.__name__
    ]
