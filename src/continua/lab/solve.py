"""`continua solve`: one real forward and backward solve, its statistics and its figure."""

import dataclasses
import math
import time
import warnings
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from torch import nn

from continua.cli.measuring import show_table
from continua.cli.parsing import Folder
from continua.control import MeanSquaredError, Objective
from continua.core.batch import Batch
from continua.core.checks import at_least, positive
from continua.core.errors import ReconstructionWarning, reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Positions, Tensor
from continua.fields import Expansion, PiecewiseConstant
from continua.model import (
    ContinuousTransformer,
    Flow,
    Part,
    SinusoidalPositions,
    TokenReadout,
    VectorEmbedding,
    from_torch,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm
from continua.report import Page, save_figures
from continua.runs import AbstractFigure, Curve, Lines, Note, Scale, Section, Table, check_writable, write_whole
from continua.solve import AbstractGradient, Backsolve, Checkpointed, Direct, Solution
from continua.spaces import CausalTrapezoid, Cloud, Legendre
from continua.train import diagnose

_BATCH = 4
_AHEAD = 0.05
"""How far ahead the model is asked to look, in token time."""


class GradientRun(NamedTuple):
    """One forward solve and its gradient: what was found, and how long it took."""

    gradient: AbstractGradient
    solution: Solution
    loss: float
    slopes: Float[Tensor, " parameters"]
    """The derivative of the loss with respect to all parameters of the flow, in one vector."""
    seconds: float


def _draw_signals(batch: int, tokens: int, seed: int) -> Batch:
    """sin(2 pi (f t + g t^2)) at sorted random times of [0, 1], and a moment later; f and g differ between signals."""
    generator = generator_of(seed)
    times = torch.rand(batch, tokens, generator=generator, dtype=torch.float64).sort(-1).values
    f, g = 0.5 + torch.rand(2, batch, 1, generator=generator, dtype=torch.float64)

    def chirp(t: Positions) -> Float[Tensor, "batch tokens 1"]:
        return torch.sin(2 * math.pi * (f * t + g * t**2)).unsqueeze(-1)

    return Batch((chirp(times), times), chirp(times + _AHEAD))


def _jumping_model(width: int, depth: float, seed: int) -> ContinuousTransformer:
    """Causal attention, smooth in depth, and a feed-forward that jumps half-way; masses of the causal trapezoid."""
    torch.manual_seed(seed)
    attention = PreNorm(LayerNorm(), Attention(4, max(1, width // 4), causal=True))
    feedforward = PreNorm(LayerNorm(), FeedForward(4 * width))
    smooth = Part(attention, Expansion(attention.spec(width), Legendre(4), depth))
    jumps = Part(feedforward, PiecewiseConstant(feedforward.spec(width), (0.0, depth / 2, depth)))
    code = SinusoidalPositions(width, fastest=16.0, slowest=0.5)
    embedding = VectorEmbedding(1, width, code, CausalTrapezoid())
    return ContinuousTransformer(embedding, Flow([smooth, jumps], depth), TokenReadout(width, 1)).double()


def _differentiate(model: ContinuousTransformer, cloud: Cloud, batch: Batch, gradient: AbstractGradient) -> GradientRun:
    """A solve whose loss is the squared error of foretelling each signal, and its gradient."""
    assert batch.targets is not None
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReconstructionWarning)  # the statistics tell as much
        found = model.at(gradient=gradient)(cloud, full=True)
        loss = (found.output - batch.targets).square().mean()
        slopes = torch.autograd.grad(loss, list(model.flow.parameters()))
    flat = torch.cat([slope.flatten() for slope in slopes])
    return GradientRun(gradient, found.solution, loss.item(), flat, time.perf_counter() - start)


@torch.no_grad()
def _gap_to_torch(width: int, layers: int, seed: int) -> float:
    """The largest difference between torch's pre-norm causal encoder, which is that of GPT, and the same as a flow."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 16, width, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(16, dtype=torch.float64)
    flow = from_torch(encoder, causal=True)
    return float((flow(Cloud(x)) - encoder(x, mask=mask, is_causal=True)).abs().max())


@final
@dataclasses.dataclass(frozen=True)
class Solve:
    """Solve a small causal Transformer on irregular samples, forward and back.

    Signals are sampled at irregular times; their tokens carry the masses of the causal trapezoid rule and move along
    depth, by attention that is smooth in depth and a feed-forward that jumps half-way. Prints the statistics of the
    solve, compares three gradient methods, checks that GPT is a special case, and draws what happened.
    """

    tokens: int = 48
    """samples of each signal"""
    width: int = 32
    """size of a token's state, divisible by 4"""
    depth_length: float = 2.0
    """length Z of the depth interval [0, Z] that the flow is solved over"""
    rtol: float = 1e-6
    """tolerance of the solver, relative and absolute"""
    seed: int = 0
    """seed of parameters, signals and times"""
    output: Folder = Path("runs/solve")
    """where the figure goes"""

    def execute(self, console: Console) -> int:
        check_writable("--output", self.output)
        at_least(2, tokens=self.tokens)
        positive(depth_length=self.depth_length, rtol=self.rtol)
        if self.width < 4 or self.width % 4:
            reject("--width", self.width, "four heads share the width", "Pass a multiple of 4, such as --width 32.")
        torch.set_num_threads(1)  # tensors this small are slower on more
        batch, model = (
            _draw_signals(_BATCH, self.tokens, self.seed),
            _jumping_model(self.width, self.depth_length, self.seed),
        )
        _introduce(console, model, self)
        with torch.no_grad():
            cloud = model.embedding(*batch.inputs)
        solved = model.at(rtol=self.rtol)
        found = diagnose(solved, batch, Objective(MeanSquaredError()))  # first: the solves below are timed warm
        sections = [_name_own_solve(section, f"rtol = {self.rtol:g}") for section in found]
        ways = (Checkpointed(), Direct(), Backsolve())
        runs = [_differentiate(solved, cloud, batch, gradient) for gradient in ways]
        sections += [Section("Depth", figures=(_errors(runs[0]),)), Section("Gradients", figures=(_comparison(runs),))]
        figures = [figure for section in sections for figure in section.figures]
        console.print(*(show_table(figure) for figure in figures if isinstance(figure, Table)), sep="\n")
        gap = _gap_to_torch(self.width, layers=3, seed=self.seed)
        console.print(
            f"GPT is the special case of parameters constant on each layer and steps of length 1: "
            f"torch's own layers and this library differ by [bold]{gap:.0e}[/bold].\n"
        )
        drawings = [figure for figure in figures if not isinstance(figure, Table)]
        drawn = save_figures(drawings, self.output / "solve.svg")
        page = Page("One solve", f"width {self.width}, seed {self.seed}", sections)
        write_whole(drawn.with_suffix(".html"), page.html().encode())
        names = (f"[bold]{escape(str(drawn.with_suffix(kind)))}[/bold]" for kind in (".svg", ".html"))
        console.print("The figures are in {}; open {} in a browser to explore them.".format(*names), soft_wrap=True)
        return 0


def _introduce(console: Console, model: ContinuousTransformer, options: Solve) -> None:
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"\n[bold]dX/dz = A(X) + F(X)[/bold],  z from 0 to {options.depth_length:g}\n"
        f"A: causal attention on the masses of irregular times, parameters smooth in z\n"
        f"F: feed-forward whose parameters jump at z = {options.depth_length / 2:g}\n"
        f"{_BATCH} signals of {options.tokens} tokens, width {options.width}, {parameters:,} parameters, float64\n",
        highlight=False,
    )


def _name_own_solve(section: Section, name: str) -> Section:
    """Diagnostics call the solver of a model "as trained"; nothing was trained here."""

    def rename(figure: AbstractFigure) -> AbstractFigure:
        if isinstance(figure, Table):
            return dataclasses.replace(figure, columns=tuple(name if c == "as trained" else c for c in figure.columns))
        if isinstance(figure, Lines):
            own = (dataclasses.replace(s, name=name) if s.name == "as trained" else s for s in figure.curves)
            return dataclasses.replace(figure, curves=tuple(own))
        return figure

    return dataclasses.replace(section, figures=tuple(map(rename, section.figures)))


def _comparison(runs: list[GradientRun]) -> Table:
    """What each gradient costs, how far it is from the exact one, and how exactly `Backsolve` retraced X."""
    exact = next(run.slopes for run in runs if isinstance(run.gradient, Direct))
    rows = []
    for run in runs:
        stats = run.solution.stats
        gap = None if run.slopes is exact else float((run.slopes - exact).abs().max() / exact.abs().max())
        backwards = stats.backward_evaluations or "autograd"
        name = type(run.gradient).__name__
        rows.append((name, stats.evaluations, backwards, gap, stats.reconstruction_error, run.seconds))
    columns = ("gradient", "evaluations", "backwards", "difference from Direct", "reconstruction error", "seconds")
    return Table(title=f"The gradient of the loss {runs[0].loss:.4f}, three ways", columns=columns, rows=tuple(rows))


def _errors(run: GradientRun) -> Lines:
    stats = run.solution.stats
    middles = 0.5 * (np.asarray(stats.grid[1:]) + np.asarray(stats.grid[:-1]))
    series = Curve.of("error", middles, stats.errors, mark="points")
    scales = Scale("depth z"), Scale("error / tolerance")
    notes = (Note(1.0, "tolerance", along="y"),)
    return Lines(title="Error of each step", x=scales[0], y=scales[1], curves=(series,), notes=notes)
