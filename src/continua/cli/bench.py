"""`continua bench`: ratios against peers, measured side by side in one run."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Annotated, final

import tyro
from rich.console import Console
from rich.table import Table

from continua import bench
from continua.cli.parsing import Flag, Folder, choose
from continua.core.errors import reject
from continua.lab import AgainstLimit, LocalProcesses, Problem, UpdateRule
from continua.runs import check_writable


@final
@dataclasses.dataclass(frozen=True)
class LabCost(bench.AbstractBenchmark):
    """Networks of `adamw-limit` from many seeds, trained together, and compared with their limit before and after.

    The seeds are shared out evenly among as many processes as threads are allowed, one thread each; within a process
    all of them are one batch of tensors. Judged are the seconds of the clock, the start of the processes and the limit
    included; those of the processors, shared among the cores, stand beside them for a machine that others use too.
    """

    seeds: int = 64
    layers: int = 256
    heads: int = 16
    tokens: int = 16
    width: int = 8
    updates: int = 20
    seconds: float = 180.0
    threads: int = 2

    @property
    def claim(self) -> str:
        sizes = f"L = {self.layers}, H = {self.heads}, N = {self.tokens}, d = {self.width}"
        limit = f"{self.seconds:g} s on {self.threads} cores"
        return f"{self.seeds} seeds of {sizes} and {self.updates} updates take at most {limit}"

    def quick(self) -> "LabCost":
        return LabCost(seeds=2, layers=4, heads=2, tokens=3, width=4, updates=2, threads=1)

    def measure(self) -> bench.BenchResult:
        problem = Problem(tokens=self.tokens, width=self.width, key=self.width, sequences=1, trained=1)
        if self.seeds % self.threads:
            cure = f"Pass a multiple of {self.threads}."
            reject("seeds", self.seeds, f"{self.threads} processes share them evenly", cure)
        share, milestones = self.seeds // self.threads, (0, self.updates)
        cells = [
            AgainstLimit(self.layers, self.heads, share, milestones, problem, UpdateRule(), first=first)
            for first in range(self.threads)
        ]
        began, spent = time.perf_counter(), _processor_seconds()
        rows = [row for _, row in LocalProcesses(self.threads).rows(cells)]
        clock, spent = time.perf_counter() - began, _processor_seconds() - spent
        errors = {
            f"error of {kind}": (sum(sum(row[kind][-1]) for row in rows) / (share * len(rows))) ** 0.5
            for kind in ("states", "adjoints", "parameters")
        }
        loss = sum(sum(row["losses"][-1]) for row in rows) / (share * len(rows))
        measured = {"seeds": share * len(rows), "seconds": clock, "processor seconds": spent, "loss": loss, **errors}
        judged = bench.Ratio(f"seconds / {self.seconds:g}", clock / self.seconds, 1.0)
        beside = bench.Ratio(
            f"processor seconds / {self.threads} cores / {self.seconds:g}", spent / self.threads / self.seconds
        )
        return bench.BenchResult((measured,), (judged, beside))


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


BENCHMARKS: dict[str, bench.AbstractBenchmark] = {
    "speed": bench.Speed(),
    "overhead": bench.Overhead(),
    "memory": bench.MemoryCost(),
    "attention": bench.AttentionCost(),
    "estimators": bench.EstimatorCost(),
    "fields": bench.FieldCostRatio(),
    "recipe": bench.RecipeCost(),
    "spectral": bench.SpectralGain(),
    "lab": LabCost(),
    "decoding": bench.DecodingCost(),
}
"""The one table from words to benchmarks."""


@final
@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure what the library costs, as ratios to peers taken in one run.

    Names: speed (solves against torchdiffeq), overhead (a solve against its bare evaluations), memory (peak of the
    gradients from 8 to 64 steps), attention (weighted causal attention against plain), estimators (how cost
    grows with the tokens at a fixed number of nodes), fields (weights that depend on depth against constant ones),
    recipe (an update of the recipe against torch's AdamW), spectral (what a preconditioner gains there), lab (many
    networks trained at once, against a budget of seconds), decoding (text with cached keys and values against solves
    of the whole window), or all. Exit code 1: a ratio is above its limit.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "all"
    """speed, overhead, memory, attention, estimators, fields, recipe, spectral, lab, decoding or all"""
    quick: Flag = False
    """tiny sizes, to see that it runs; the ratios then say nothing"""
    output: Folder = Path("bench-results")
    """where the JSON files go"""

    def execute(self, console: Console) -> int:
        """Runs the command; 1 where a ratio is above its limit."""
        choose("NAME", self.name, (*BENCHMARKS, "all"), "benchmark", "bench")
        check_writable("--output", self.output)
        missed: list[str] = []
        for name in BENCHMARKS if self.name == "all" else [self.name]:
            benchmark = BENCHMARKS[name].quick() if self.quick else BENCHMARKS[name]
            console.print(f"[bold]{name}[/bold]: {benchmark.claim}")
            with console.status(f"measuring {name}"):
                result = benchmark.run()
            console.print(_rows(result), _ratios(result, judged=not self.quick))
            words = ["continua", "bench", name, *(["--quick"] if self.quick else [])]
            path = bench.write_result(self.output, name, words, benchmark, result)
            console.print(f"written: {path}\n", markup=False, highlight=False, soft_wrap=True)
            missed += (
                [] if self.quick else [f"{name}: {r.name} = {_format(r.value)}" for r in result.ratios if not r.holds]
            )
        for ratio in missed:
            console.print(f"above its limit: {ratio}", style="bold red", soft_wrap=True)
        return 1 if missed else 0


def _rows(result: bench.BenchResult) -> Table:
    table = Table()
    names = list(dict.fromkeys(key for row in result.rows for key in row))
    for name in names:
        table.add_column(name, justify="left" if isinstance(result.rows[0].get(name), str) else "right")
    for row in result.rows:
        table.add_row(*(_format(row.get(name, "")) for name in names))
    return table


def _ratios(result: bench.BenchResult, judged: bool) -> Table:
    table = Table()
    table.add_column("ratio")
    for name in ("measured", "at most", "verdict"):
        table.add_column(name, justify="right")
    for ratio in result.ratios:
        verdict = "" if ratio.limit is None or not judged else "holds" if ratio.holds else "fails"
        table.add_row(ratio.name, _format(ratio.value), "" if ratio.limit is None else _format(ratio.limit), verdict)
    return table


def _format(value: str | int | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
