"""Peak memory of the gradient methods as the number of steps grows."""

import dataclasses
import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Case, Ratio, Row
from continua.bench.flows import SPAN, Sizes, bind, depth_dependent, tokens
from continua.core.slopes import fitted_slope
from continua.model import Flow
from continua.solve import AbstractGradient, Checkpointed, Direct, DormandPrince, Fixed, integrate


@final
@dataclasses.dataclass(frozen=True)
class MemoryCost(AbstractBenchmark):
    """Forward and backward on few to many steps: `Checkpointed` with one-step segments, and `Direct`.

    Each case has a process of its own; what counts is the peak above where the loaded and warmed-up process stood.
    """

    sizes: Sizes = Sizes()
    steps: tuple[int, ...] = (8, 16, 32, 64)
    modes: int = 4
    threads: int = 1

    @property
    def claim(self) -> str:
        return (
            f"with one-step segments the peak of Checkpointed at {self.steps[-1]} steps is at most 1.5 times that at "
            f"{self.steps[0]}; that of Direct grows like the steps"
        )

    def quick(self) -> "MemoryCost":
        return MemoryCost(Sizes(2, 64, 32, 2, 64), steps=(1, 2), modes=2, threads=1)

    def measure(self) -> BenchResult:
        fixed = {"modes": self.modes, "threads": self.threads, "sizes": dataclasses.asdict(self.sizes)}
        peaks = {
            name: [peak_memory(prepare_solve, gradient=name, steps=steps, **fixed) for steps in self.steps]
            for name in _GRADIENTS
        }
        rows: list[Row] = []
        for name, measured in peaks.items():
            rows += [{"gradient": name, "steps": s, "peak MiB": p} for s, p in zip(self.steps, measured, strict=True)]
        few, *_, many = peaks["Checkpointed"]
        exponent = fitted_slope([float(steps) for steps in self.steps], peaks["Direct"])
        ratios = (
            Ratio(f"Checkpointed: {self.steps[-1]} steps / {self.steps[0]} steps", many / few, 1.5),
            Ratio("Direct: exponent in the steps, away from 1", abs(exponent - 1.0), 0.1),
        )
        return BenchResult(tuple(rows), ratios)


_GRADIENTS: dict[str, AbstractGradient] = {"Checkpointed": Checkpointed(steps=1), "Direct": Direct()}


def prepare_solve(gradient: str, steps: int, modes: int, threads: int, sizes: dict[str, int]) -> Case:
    """One solve with its gradient, ready to run; one small step has warmed up the libraries."""
    torch.set_num_threads(threads)
    rule, wanted = _GRADIENTS[gradient], Sizes(**sizes)
    small = dataclasses.replace(wanted, batch=1, tokens=8)
    flow = depth_dependent(wanted, modes)
    _solve(flow, small, rule, 1)
    return lambda: _solve(flow, wanted, rule, steps)


def _solve(flow: Flow, sizes: Sizes, gradient: AbstractGradient, steps: int) -> None:
    velocity = bind(flow, tokens(sizes))
    solution = integrate(velocity, velocity.initial(), SPAN, DormandPrince(), Fixed(steps), gradient)
    solution.x.square().mean().backward()


FREED_AT_ONCE: Mapping[str, str] = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc's allocator in this environment gives back at once what is freed of 64 KiB or more: no holes are counted."""


def peak_memory(prepare: Callable[..., Case], allocator: Mapping[str, str] = {}, /, **settings: Any) -> float:
    """MiB by which `prepare(**settings)()` raises the peak of a fresh process above where preparation left it.

    `prepare` is a function of a module, its settings are plain data; it builds the case and warms up the libraries.
    The environment of the process is this one and what `allocator` says.
    """
    program = "from continua.bench.memory import child; child()"
    words = [prepare.__module__, prepare.__qualname__, json.dumps(settings)]
    here = {**os.environ, **allocator}
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=here)
    if done.returncode != 0:
        raise RuntimeError(f"the case {prepare.__qualname__}({settings}) failed: {done.stderr.strip()}")
    return float(done.stdout.splitlines()[-1])


def child() -> None:
    """The other side of `peak_memory`: runs the case that the command line names and prints MiB."""
    module, function, settings = sys.argv[1:]
    case = getattr(importlib.import_module(module), function)(**json.loads(settings))
    before = high_water()
    case()
    print(high_water() - before)


def high_water() -> float:
    """The most memory this process has held, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` of Linux starts at the peak of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
