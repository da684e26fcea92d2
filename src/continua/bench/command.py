"""`continua bench`: ratios against peers, measured side by side in one run."""

import dataclasses
from pathlib import Path
from typing import Annotated, final

import tyro
from rich.console import Console

from continua.bench.attention import AttentionCost, IntegralCost
from continua.bench.axes import AxesCost
from continua.bench.benchmark import AbstractBenchmark, BenchResult, write_result
from continua.bench.decoding import DecodingCost
from continua.bench.lab_cost import LabCost
from continua.bench.memory import MemoryCost
from continua.bench.optimisers import RecipeCost, SpectralGain
from continua.bench.overhead import FieldCostRatio, Overhead
from continua.bench.saving import SavingCost
from continua.bench.speed import Speed
from continua.cli.measuring import show_table
from continua.cli.parsing import Flag, Folder, choose
from continua.runs import Table, check_writable

BENCHMARKS: dict[str, AbstractBenchmark] = {
    "speed": Speed(),
    "overhead": Overhead(),
    "memory": MemoryCost(),
    "attention": AttentionCost(),
    "integrals": IntegralCost(),
    "fields": FieldCostRatio(),
    "recipe": RecipeCost(),
    "spectral": SpectralGain(),
    "lab": LabCost(),
    "decoding": DecodingCost(),
    "saving": SavingCost(),
    "axes": AxesCost(),
}
"""The one table from words to benchmarks."""


@final
@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure what the library costs, as ratios to peers taken in one run.

    Names: speed (solves against torchdiffeq), overhead (a solve against its bare evaluations), memory (peak memory of
    the gradient methods, 8 to 64 steps), attention (weighted causal attention against plain), integrals (how cost
    grows with the tokens at a fixed number of drawn ones), fields (parameters that depend on depth against constant
    ones), recipe (an update of the recipe against torch's AdamW), spectral (what a preconditioner gains on spectral
    kernels), lab (many networks trained at once, against a budget of seconds), decoding (text with cached keys and
    values against solves of the whole window), saving (checkpoints against the training), axes (an update of training
    with all four continuous axes, with fewer, and of layers), or all. Exit code 1: a ratio is above its limit.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "all"
    """speed, overhead, memory, attention, integrals, fields, recipe, spectral, lab, decoding, saving, axes or all"""
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
            console.print(show_table(_rows(result)), show_table(_ratios(result, judged=not self.quick)))
            words = ["continua", "bench", name, *(["--quick"] if self.quick else [])]
            path = write_result(self.output, name, words, benchmark, result)
            console.print(f"written: {path}\n", markup=False, highlight=False, soft_wrap=True)
            missed += (
                [] if self.quick else [f"{name}: {r.name} = {_format(r.value)}" for r in result.ratios if not r.holds]
            )
        for ratio in missed:
            console.print(f"above its limit: {ratio}", style="bold red", soft_wrap=True)
        return 1 if missed else 0


def _rows(result: BenchResult) -> Table:
    names = tuple(dict.fromkeys(key for row in result.rows for key in row))
    return Table(title="", columns=names, rows=tuple(tuple(row.get(name) for name in names) for row in result.rows))


def _ratios(result: BenchResult, judged: bool) -> Table:
    verdicts = [None if r.limit is None or not judged else "holds" if r.holds else "fails" for r in result.ratios]
    rows = ((r.name, r.value, r.limit, verdict) for r, verdict in zip(result.ratios, verdicts, strict=True))
    return Table(title="", columns=("ratio", "measured", "at most", "verdict"), rows=tuple(rows))


def _format(value: str | int | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
