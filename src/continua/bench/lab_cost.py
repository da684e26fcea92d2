"""What the lab costs: many networks trained at once, against a budget of seconds."""

import dataclasses
import os
import time
from typing import final

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Ratio
from continua.core.errors import reject
from continua.lab import AgainstLimit, LocalProcesses, Problem, UpdateRule


@final
@dataclasses.dataclass(frozen=True)
class LabCost(AbstractBenchmark):
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

    def measure(self) -> BenchResult:
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
        judged = Ratio(f"seconds / {self.seconds:g}", clock / self.seconds, 1.0)
        beside = Ratio(
            f"processor seconds / {self.threads} cores / {self.seconds:g}", spent / self.threads / self.seconds
        )
        return BenchResult((measured,), (judged, beside))


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
