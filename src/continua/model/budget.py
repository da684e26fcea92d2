"""One model, every budget: as many depth steps as there is time for."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from continua.core.checks import is_a, positive
from continua.core.errors import ArgumentError, reject
from continua.model.transformer import ContinuousTransformer
from continua.solve import Fixed, Solver

_FACTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@torch.no_grad()
def at_budget(
    model: ContinuousTransformer, inputs: Sequence[Any], milliseconds: float, repeats: int = 3
) -> ContinuousTransformer:
    """The same model, parameters shared, with the most depth steps that a call on `inputs` takes in this time.

    Calls with more and more steps, up to 64 times its own, are timed, the median of `repeats`, until one is too slow:
    multiples and divisors of the steps that a flow is staggered for, since parameters may vary steeply between these;
    of layers those that they have. `at_budget(model, (values, times), milliseconds=5).solver` says what was chosen.
    """
    positive(milliseconds=milliseconds)
    is_a((tuple, list), "Pass what the model is called with: (values,) or (values, times).", inputs=inputs)
    found, fastest, stagger = None, float("inf"), model.flow.stagger
    controller = model.solver.controller if isinstance(model.solver, Solver) else None
    own = stagger or (controller.steps if isinstance(controller, Fixed) else 1)
    for steps in sorted({*_FACTORS, *(own * factor for factor in _FACTORS), *range(1, own)}):
        if stagger is not None and steps % stagger and stagger % steps:
            continue
        try:
            other = model.at(steps=steps).in_eval_mode()
        except ArgumentError:  # no steps that these layers have
            continue
        other(*inputs)  # what is made once is made here
        taken = statistics.median(_time(other, inputs) for _ in range(repeats))
        fastest = min(fastest, taken)
        if taken > milliseconds:
            break
        found = model.at(steps=steps)
    if found is None:
        why = f"the fewest depth steps take {fastest:.3g} ms on these inputs"
        reject("milliseconds", milliseconds, why, "Allow more time, or pass fewer sequences at once.")
    return found


def _time(model: ContinuousTransformer, inputs: Sequence[Any]) -> float:
    start = time.perf_counter()
    model(*inputs)
    return 1000.0 * (time.perf_counter() - start)
