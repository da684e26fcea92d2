"""What the continuous axes cost an update of training, in time and in memory, beside networks of layers."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Case, Ratio, Row, median_ratio, time_in_turn
from continua.bench.memory import FREED_AT_ONCE, peak_memory
from continua.cli.options import OPTIMISERS
from continua.core.batch import Batch
from continua.core.seeds import generator_of
from continua.train import (
    PRESETS,
    BaselineName,
    Learner,
    Plan,
    Preset,
    TrainingGrids,
    build_baseline,
    build_continuous,
    count_parameters,
    objective_of,
    update_memory,
)
from continua.train.counting import text_form

_ALL, _DEEP = "all four axes", "twelve steps"
_ALONE, _LAYERS = "time and depth alone", "four layers"
_FLOWS: Mapping[str, Mapping[str, Any]] = {
    _ALL: {},
    "without the embedding axis": {"axis_nodes": 1},
    "without the measure of heads": {"head_modes": 0},
    _ALONE: {"axis_nodes": 1, "head_modes": 0},
    _DEEP: {"depth_steps": 12, "depth_length": 12.0, "depth_modes": 6, "refined": 0.0},
}
"""What each continuous model changes of the preset."""
_BASELINES: Mapping[str, tuple[str, BaselineName]] = {
    _LAYERS: (_ALL, "layers"),
    f"{_LAYERS}, regularised": (_ALL, "layers-regularized"),
    "twelve layers": (_DEEP, "deep"),
    "twelve layers, regularised": (_DEEP, "deep-regularized"),
}
"""The continuous model that each network of layers stands beside, and what `--compare` calls it."""
_REFINED = TrainingGrids(refined=1.0, nodes=0.0)
"""Every update reads a third of its batch with twice the depth steps, as nine in ten refined ones of the preset do."""


@final
@dataclasses.dataclass(frozen=True)
class AxesCost(AbstractBenchmark):
    """Updates of the preset `text` on characters drawn at random: processor time, tensors, and resident memory.

    Tensors are those of a forward and backward pass. Resident is the peak of a process of its own, above where the
    loaded libraries left it, over updates with AdamW: parameters, gradients and moments are in it. As the allocator
    comes it keeps holes for later, and the median of several processes counts; where it gives back at once what is
    freed, one process tells.
    """

    width: int = 128
    batch_size: int = 12
    tokens: int = 64
    vocabulary: int = 65
    repetitions: int = 40
    processes: int = 3
    updates: int = 5
    """in each process"""
    threads: int = 1

    @property
    def claim(self) -> str:
        return (
            "an update of all four axes takes at most 1.25 times that of time and depth alone, and at most 1.4 times "
            "the time and 1.1 times the memory of layers"
        )

    def quick(self) -> "AxesCost":
        return AxesCost(width=64, batch_size=3, tokens=4, vocabulary=5, repetitions=1, processes=1, updates=2)

    def measure(self) -> BenchResult:
        names = (*_FLOWS, *_BASELINES)
        learners = {name: self.learner(name) for name in names}
        learners |= {_name_refined(name): self.learner(name, _REFINED) for name in names if self._share(name)}
        seconds = time_in_turn({n: self.case(one) for n, one in learners.items()}, self.repetitions, time.process_time)
        tensors = {n: update_memory(learners[n].model, learners[n].objective, self.batch()) / 2**20 for n in names}
        memories = {"tensors": tensors, **self._resident(names)}
        rows: list[Row] = []
        for n in names:
            row: Row = {"model": n, "parameters": count_parameters(learners[n].model), "CPU ms": _median(seconds[n])}
            row |= {"refined": _median(seconds[_name_refined(n)])} if _name_refined(n) in seconds else {}
            rows.append(row | {f"{what} MiB": found[n] for what, found in memories.items()})
        ratios = [
            Ratio(f"{what}: {ours} / {name}", found[ours] / found[name], _limit(name, 1.1))
            for what, found in memories.items()
            for name, (ours, _) in _BASELINES.items()
        ]
        return BenchResult(tuple(rows), (*self._times(seconds), *ratios))

    def _resident(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """MiB of processes, with the allocator as it comes and as one that gives back at once what is freed."""
        settings = dataclasses.asdict(self)

        def peak(name: str, allocator: Mapping[str, str], processes: int) -> float:
            found = [peak_memory(prepare_updates, allocator, name=name, settings=settings) for _ in range(processes)]
            return statistics.median(found)

        return {
            "resident": {name: peak(name, {}, self.processes) for name in names},
            "resident, freed at once": {name: peak(name, FREED_AT_ONCE, 1) for name in names},
        }

    def _times(self, seconds: dict[str, list[float]]) -> list[Ratio]:
        def ratio(ours: str, theirs: str, limit: float | None = None) -> Ratio:
            return Ratio(f"{ours} / {theirs}", median_ratio(seconds[ours], seconds[theirs]), limit)

        share, both = self._share(_ALL), zip(seconds[_ALL], seconds[_name_refined(_ALL)], strict=True)
        mean = [(1.0 - share) * plain + share * refined for plain, refined in both]
        whole = f"{_ALL}, {share:.0%} refined / {_LAYERS}"
        return [
            ratio(_ALL, _ALONE, 1.25),
            ratio(_name_refined(_ALL), _name_refined(_ALONE), 1.25),
            *(ratio(_ALL, name) for name in _FLOWS if name not in (_ALL, _ALONE, _DEEP)),
            ratio(_name_refined(_ALL), _LAYERS),
            Ratio(whole, median_ratio(mean, seconds[_LAYERS]), 1.4),
            *(ratio(ours, name, _limit(name, 1.4)) for name, (ours, _) in _BASELINES.items()),
        ]

    def learner(self, name: str, grids: TrainingGrids = TrainingGrids()) -> Learner:
        """A model with its costs and AdamW, as `continua train` builds them."""
        flow, baseline = _BASELINES.get(name, (name, None))
        preset, form = self._preset(flow), text_form(self.vocabulary, self.tokens)
        torch.manual_seed(0)
        model = build_continuous(form, preset)
        if baseline is not None:
            model = build_baseline(form, preset, count_parameters(model), baseline)
        paid = preset if baseline is None or baseline.endswith("regularized") else None
        optimiser = OPTIMISERS["adamw"](model, preset)
        return Learner(name, model, objective_of(form, model, paid), optimiser, grids=grids)

    def case(self, learner: Learner) -> Case:
        """One update after the other, on a batch of their own each."""
        numbers = itertools.count()
        plan = Plan(self.repetitions + self.updates + 1, self.batch_size)

        def update() -> None:
            number = next(numbers)
            learner.update(self.batch(number), number, plan)

        return update

    def batch(self, number: int = 0) -> Batch:
        """Windows of characters that say nothing: what an update costs does not hang on them."""
        size = (self.batch_size, self.tokens + 1)
        drawn = torch.randint(self.vocabulary, size, generator=generator_of(number))
        return Batch((drawn[:, :-1],), drawn[:, 1:])

    def _preset(self, flow: str) -> Preset:
        hidden = 7 * self.width // 2 if flow == _DEEP else 4 * self.width
        return PRESETS["text"]["demo"].replace(width=self.width, hidden=hidden, **_FLOWS[flow])

    def _share(self, name: str) -> float:
        """The fraction of the updates of a training that is refined."""
        return self._preset(name).depth.refined if name in _FLOWS else 0.0


def prepare_updates(name: str, settings: dict[str, Any]) -> Case:
    """The model and its first updates, ready to run; a small model has warmed up the libraries."""
    torch.set_num_threads(settings["threads"])
    benchmark = AxesCost(**settings)
    small = benchmark.quick()
    small.case(small.learner(name))()

    def run() -> None:
        update = benchmark.case(benchmark.learner(name))
        for _ in range(benchmark.updates):
            update()

    return run


def _limit(baseline: str, limit: float) -> float | None:
    """Beside layers that pay the same costs a ratio is for information."""
    return None if "regularised" in baseline else limit


def _name_refined(name: str) -> str:
    return f"{name}, refined"


def _median(seconds: list[float]) -> float:
    return 1000.0 * statistics.median(seconds)
