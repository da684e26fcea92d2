"""Times that can be compared: all cases in turn, round after round, so that a load on the machine meets them all."""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

Case = Callable[[], object]


def interleaved(
    cases: Mapping[str, Case], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each case in each round, after a first round that is not counted.

    Every other round runs backwards, so that no case always follows the same one. Work of milliseconds on one thread is
    better counted by `time.process_time`: on a busy machine the wall clock favours what fits into one slice of time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        order = list(cases)[:: 1 if repetition % 2 else -1]
        gc.collect()
        for name in order:
            start = clock()
            cases[name]()
            if repetition > 0:
                seconds[name].append(clock() - start)
    return seconds


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of ours / theirs: a load that lasts as long as a round cancels."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def summed(seconds: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    """Seconds of several cases together, round by round."""
    return [sum(times) for times in zip(*(seconds[name] for name in names), strict=True)]


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Torch on `count` threads, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
