"""What an update of the composite recipe costs, against torch's AdamW on the same parameters."""

import dataclasses
import statistics
from typing import final

import torch
from torch import nn

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.timing import Case, interleaved, paired, using_threads
from continua.core.seeds import generator_of
from continua.fields import Constant, ContinuousHeads
from continua.model.flow import Flow, Part
from continua.model.transformer import ContinuousTransformer
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Spectral
from continua.optim import SOAP, Composite, Recipe
from continua.spaces.axis import Axis
from continua.spaces.bases import Cosine


@final
@dataclasses.dataclass(frozen=True)
class RecipeCost(AbstractBenchmark):
    """Updates by `Recipe()` and by `torch.optim.AdamW(foreach=True)`, on the same parameters with the same gradients.

    The default model with continuous heads; and, for information, a flow of spectral kernels under SOAP, whose updates
    with a new eigenbasis are shown apart.
    """

    width: int = 128
    heads: int = 4
    updates: int = 5
    repetitions: int = 21
    threads: int = 1

    @property
    def claim(self) -> str:
        return "an update of the recipe takes at most 1.5 times one of torch.optim.AdamW, new eigenbases apart"

    def quick(self) -> "RecipeCost":
        return RecipeCost(width=16, heads=4, updates=1, repetitions=1)

    def run(self) -> Outcome:
        with using_threads(self.threads):
            model, kernels = continuous(self.width, self.heads), spectral(self.width)
            ours, theirs = Recipe().build(graded(model)), _adamw(graded(continuous(self.width, self.heads)))
            soap, rival = Recipe().build(graded(kernels)), _adamw(graded(spectral(self.width)))
            cases: dict[str, Case] = {
                "recipe": self._repeated(ours),
                "AdamW": self._repeated(theirs),
                "recipe, spectral": lambda: _without_roots(soap, self.updates),
                "recipe, spectral, new eigenbasis": lambda: _with_roots(soap, self.updates),
                "AdamW, spectral": self._repeated(rival),
            }
            seconds = interleaved(cases, self.repetitions)
        counts = {"recipe": model, "AdamW": model}
        rows: list[Row] = [
            {
                "case": name,
                "milliseconds an update": 1e3 * statistics.median(times) / self.updates,
                "parameters": sum(p.numel() for p in counts.get(name, kernels).parameters()),
                "tensors": len(list(counts.get(name, kernels).parameters())),
            }
            for name, times in seconds.items()
        ]
        ratios = (
            Ratio("recipe / AdamW", paired(seconds["recipe"], seconds["AdamW"]), 1.5),
            Ratio("recipe / AdamW, spectral", paired(seconds["recipe, spectral"], seconds["AdamW, spectral"])),
            Ratio(
                "recipe / AdamW, spectral, new eigenbasis",
                paired(seconds["recipe, spectral, new eigenbasis"], seconds["AdamW, spectral"]),
            ),
        )
        return Outcome(tuple(rows), ratios)

    def _repeated(self, optimiser: torch.optim.Optimizer) -> Case:
        def updates() -> None:
            for _ in range(self.updates):
                optimiser.step()

        return updates


def continuous(width: int, heads: int) -> ContinuousTransformer:
    """The default model for signals, its heads a measure with a trained density."""
    default = ContinuousTransformer.default(width=width, outputs=10, features=1, heads=heads)
    attention = PreNorm(LayerNorm(), Attention(heads, width // heads, measured=True))
    field = ContinuousHeads(attention.spec(width), generator=generator_of(0))
    _, feedforward = default.flow.parts
    assert isinstance(feedforward, Part)
    return ContinuousTransformer(default.embedding, Flow([Part(attention, field), feedforward]), default.readout)


def spectral(width: int) -> Flow:
    """A feed-forward whose kernels are spectral, on 8 nodes, with 8 modes."""
    kernel = Spectral(Axis(8, width // 8), Cosine(8))
    operator = FeedForward(4 * width // 8, kernel=kernel)
    return Flow([Part(operator, Constant(operator.spec(width), generator_of(0)))])


def graded(module: nn.Module) -> nn.Module:
    """The module with a random gradient for every parameter."""
    generator = generator_of(1)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return module


def _adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), foreach=True)


def _at(composite: Composite, step: int) -> None:
    """Sets the count that decides whether SOAP makes a new eigenbasis."""
    for group in composite.param_groups:
        if isinstance(composite.members[group["member"]], SOAP):
            group["step"] = step


def _without_roots(composite: Composite, updates: int) -> None:
    for _ in range(updates):
        _at(composite, 11)
        composite.step()


def _with_roots(composite: Composite, updates: int) -> None:
    for _ in range(updates):
        _at(composite, 10)
        composite.step()
