"""`continua solve`: one real forward and backward solve, its statistics and its figure."""

import dataclasses
from pathlib import Path
from typing import Annotated, final

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from continua.cli.solve_case import Differentiated, Signals, differentiated, gap_to_torch, jumping_model, signals
from continua.core.errors import reject
from continua.model import ContinuousTransformer
from continua.report import Page, SolveRecord, save_figures, solve_figures
from continua.runs import Section, check_writable, write_whole
from continua.solve import Backsolve, Checkpointed, Direct

_BATCH = 4
_FINEST = 4 * float(np.finfo(np.float64).eps)
"""The least tolerance that a solve in float64 takes."""


@final
@dataclasses.dataclass(frozen=True)
class Solve:
    """Solve a small causal Transformer on irregular samples, forward and back.

    Signals are sampled at irregular times; their tokens carry the masses of the causal trapezoid rule and move along
    depth, by attention that is smooth in depth and a feed-forward that jumps half-way. Prints the statistics of the
    solve, compares three gradients, checks that GPT is a special case, and draws what happened.
    """

    tokens: int = 48
    """samples of each signal"""
    width: int = 32
    """size of a token's state, divisible by 4"""
    depth: float = 2.0
    """depth of the flow"""
    rtol: float = 1e-6
    """tolerance of the solver, relative and absolute"""
    seed: int = 0
    """seed of weights, signals and times"""
    folder: Annotated[Path, tyro.conf.arg(metavar="PATH")] = Path("runs/solve")
    """where the figure goes"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        self._check()
        torch.set_num_threads(1)  # tensors this small are slower on more
        data, model = signals(_BATCH, self.tokens, self.seed), jumping_model(self.width, self.depth, self.seed)
        _introduce(console, model, self)
        with torch.no_grad():
            cloud = model.embedding(data.values, data.times)
        solved = model.at(rtol=self.rtol)
        shown = differentiated(solved, cloud, data, Checkpointed(), [self.depth * i / 64 for i in range(65)])
        runs = [differentiated(solved, cloud, data, gradient) for gradient in (Checkpointed(), Direct(), Backsolve())]
        console.print(_statistics(runs[0]), _comparison(runs), sep="\n")
        gap = gap_to_torch(self.width, layers=3, seed=self.seed)
        console.print(
            f"GPT is the special case of weights constant on each layer and steps of length 1: "
            f"torch's own layers and this library differ by [bold]{gap:.0e}[/bold].\n"
        )
        figures = solve_figures(_record(shown, data, model))
        drawn = save_figures(figures, self.folder / "solve.svg")
        page = Page("One solve", f"width {self.width}, seed {self.seed}", [Section("Along depth", figures=figures)])
        write_whole(drawn.with_suffix(".html"), page.html().encode())
        console.print(f"figure: [bold]{escape(str(drawn))}[/bold], to look into: [bold].html[/bold]", soft_wrap=True)
        return 0

    def _check(self) -> None:
        check_writable("--folder", self.folder)
        if self.tokens < 2:
            reject("--tokens", self.tokens, "a signal needs two samples", "Pass 2 or more, such as --tokens 48.")
        if self.width < 4 or self.width % 4:
            reject("--width", self.width, "four heads share the width", "Pass a multiple of 4, such as --width 32.")
        if not self.depth > 0:
            reject("--depth", self.depth, "depth runs forward from 0", "Pass --depth > 0, such as --depth 2.")
        if not self.rtol >= _FINEST:
            why = f"a tolerance is positive, and float64 resolves no less than {_FINEST:.0e}"
            reject("--rtol", self.rtol, why, "Pass more, such as --rtol 1e-6.")


def _introduce(console: Console, model: ContinuousTransformer, options: Solve) -> None:
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"\n[bold]dX/dz = A(X) + F(X)[/bold],  z from 0 to {options.depth:g}\n"
        f"A: causal attention on the masses of irregular times, weights smooth in z\n"
        f"F: feed-forward whose weights jump at z = {options.depth / 2:g}\n"
        f"{_BATCH} signals of {options.tokens} tokens, width {options.width}, {parameters:,} parameters, float64\n",
        highlight=False,
    )


def _statistics(run: Differentiated) -> Table:
    stats = run.solution.stats
    table = Table(title=f"the solve, by Dormand-Prince; loss {run.loss:.4f}", title_justify="left", show_header=False)
    lengths = np.diff(stats.grid)
    table.add_row("steps", f"{stats.accepted} accepted, {stats.rejected} rejected")
    table.add_row("step lengths", f"from {lengths.min():.3g} to {lengths.max():.3g}")
    table.add_row("largest error", f"{max(stats.errors):.2f} of the tolerance")
    table.add_row("grid", "  ".join(f"{z:.3g}" for z in stats.grid))
    return table


def _comparison(runs: list[Differentiated]) -> Table:
    table = Table(title="its gradient, three ways", title_justify="left")
    table.add_column("gradient", no_wrap=True)
    for name in ("evaluations", "backwards", "gap to Direct", "start missed by", "seconds"):
        table.add_column(name, justify="right")
    exact = next(run.slopes for run in runs if isinstance(run.gradient, Direct))
    for run in runs:
        stats = run.solution.stats
        gap = float((run.slopes - exact).abs().max() / exact.abs().max())
        missed = "" if stats.reconstruction_error is None else f"{stats.reconstruction_error:.0e}"
        shown = "" if isinstance(run.gradient, Direct) else f"{gap:.0e}"
        counts = (str(stats.evaluations), str(stats.backward_evaluations or "autograd"))
        table.add_row(type(run.gradient).__name__, *counts, shown, missed, f"{run.seconds:.2f}")
    return table


def _record(run: Differentiated, data: Signals, model: ContinuousTransformer) -> SolveRecord:
    """The first signal of the batch, in plain numbers."""
    xs, stats = run.solution.xs, run.solution.stats
    assert xs is not None
    return SolveRecord(
        depths=run.solution.depths,
        tokens=xs[:, 0].detach().numpy(),
        times=data.times[0].tolist(),
        grid=stats.grid,
        errors=stats.errors,
        costate_depths=[z for z, _ in run.costates],
        costates=np.stack([a[0].norm(dim=-1).numpy() for _, a in run.costates]),
        breaks=(model.flow.depth / 2,),
    )
