"""The integrator: one call from a bound flow and a state to a solution."""

import itertools
import math
from collections.abc import Sequence

import torch

from continua.core.errors import expect, reject
from continua.solve.adaptive import Adaptive
from continua.solve.control import AbstractControl
from continua.solve.gradients.checkpointed import Checkpointed
from continua.solve.gradients.gradient import AbstractGradient
from continua.solve.methods.dormand_prince import DormandPrince
from continua.solve.methods.method import AbstractMethod
from continua.solve.per_sequence import PerSequence
from continua.solve.record import Observer, Solution, Stats, Trajectory
from continua.solve.state import AbstractBound, State
from continua.solve.task import Task


def integrate(
    bound: AbstractBound,
    state: State,
    span: tuple[float, float],
    method: AbstractMethod = DormandPrince(),
    control: AbstractControl = Adaptive(),
    gradient: AbstractGradient = Checkpointed(),
    at: Sequence[float] = (),
    observers: Sequence[Observer] = (),
) -> Solution:
    """Solves dx/dz = bound(z, x) from span[0] to span[1] and returns where it leads, differentiably.

    `at` asks for the tokens at further depths (dense output inside the steps; asking changes no step). Raises
    `SolveError`, with the depth and advice, when the step limit is reached, a step underflows or a state is no longer
    finite.
    """
    _check_kinds(state, method, control, gradient, observers)
    start, end = checked_span(span)
    check_state(state)
    depths = checked_depths(at, (start, end))
    control.check(method)
    gradient.check(method, control)
    if depths and isinstance(control, PerSequence):
        cure = "Use Adaptive(), or walk a frozen grid: Given(stats.grid)."
        reject("at", tuple(at), "a trajectory needs one grid for all sequences", cure)
    stats = Stats()
    task = Task(bound, (start, end), method, control, depths, tuple(observers), stats)
    outcome = gradient.solve(task, state)
    trajectory = Trajectory(depths, torch.stack(outcome.asked)) if depths else None
    return Solution(outcome.state, stats, trajectory)


def _check_kinds(state: object, method: object, control: object, gradient: object, observers: Sequence[object]) -> None:
    """Objects choose; a word, a class or a bare tensor in their place is caught here."""
    expect("state", state, State, "Pass State(points), or bound.initial() of a flow bound to a cloud.")
    expect("method", method, AbstractMethod, "Pass an object such as DormandPrince().")
    expect("control", control, AbstractControl, "Pass an object such as Adaptive(rtol=1e-4) or Fixed(steps=8).")
    expect("gradient", gradient, AbstractGradient, "Pass an object such as Checkpointed() or Direct().")
    expect("observers", observers, (list, tuple), "Pass a list of observers, [Observer(step=...)].")
    for observer in observers:
        expect("observers", observer, Observer, "Pass [Observer(step=..., costate=...)].")


def checked_span(span: tuple[float, float]) -> tuple[float, float]:
    """Both ends as numbers, in their order."""
    start, end = float(span[0]), float(span[1])
    if not (math.isfinite(start) and math.isfinite(end)):
        reject("span", span, "both ends must be finite", "Pass span=(0.0, depth).")
    if not start < end:
        cure = "Pass (start, end) with start < end; gradients take care of the way back."
        reject("span", span, "the span is empty or reversed", cure)
    return start, end


def check_state(state: State) -> None:
    """Rejects points that no solve can start from."""
    x = state.points
    if x.ndim != 3 or x.numel() == 0:
        why = "points have three axes, none of them empty"
        reject("state", tuple(x.shape), why, "Pass points of shape (batch, tokens, width).")
    if x.dtype not in (torch.float32, torch.float64):
        reject("state", x.dtype, "the dtype is neither float32 nor float64", "Convert with .to(torch.float32).")
    if not bool(torch.isfinite(x.detach()).all()):
        reject("state", x, "the points hold nan or inf", "Mend the input, or give such tokens zero mass in a Cloud.")


def checked_depths(at: Sequence[float], span: tuple[float, float]) -> tuple[float, ...]:
    """Asked depths as numbers; those that miss an end of the span by rounding alone are that end."""
    if not isinstance(at, Sequence) or isinstance(at, str):
        reject("at", at, "asked depths come as a list", "Pass at=[0.5].")
    depths = tuple(float(z) for z in at)
    if not all(b > a for a, b in itertools.pairwise(depths)):
        reject("at", depths, "asked depths must increase", "Sort them and drop duplicates: sorted(set(at)).")
    if not all(span[0] <= z <= span[1] for z in depths):
        reject("at", depths, f"an asked depth lies outside {span}", "Ask for depths within the span.")
    slack = 1e-12 * (span[1] - span[0])
    near = {z: end for z in depths for end in span if abs(z - end) <= slack}
    return tuple(near.get(z, z) for z in depths)
