"""Autograd through the accepted steps."""

import dataclasses

from continua.core.shapes import Depth, Points
from continua.solve.control import AbstractControl
from continua.solve.gradients.gradient import AbstractGradient, asks_gradient
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.record import Step
from continua.solve.state import State
from continua.solve.task import Outcome, Task


@dataclasses.dataclass(frozen=True)
class Direct(AbstractGradient):
    """The exact gradient of the discrete solve by autograd; memory grows with the number of steps.

    The fastest for short solves. With `second_derivatives=True` second derivatives work as well (attention then forms
    its kernel in O(tokens^2) memory). Reference implementation: torchdiffeq's `odeint`.
    """

    second_derivatives: bool = False

    @property
    def twice(self) -> bool:
        return self.second_derivatives

    def check(self, method: AbstractMethod, control: AbstractControl) -> None:
        """Everything that runs can be differentiated directly."""

    def solve(self, task: Task, state: State) -> Outcome:
        if not (task.watched and asks_gradient(task, state)):
            return task.march(state)

        # an alias of its own: the caller's tensor is neither hooked for good nor counted where it is used elsewhere
        x = state.points
        start = x.view_as(x) if x.requires_grad else x.detach().requires_grad_(True)
        _hook(task, task.span[0], start)

        def keep(step: Step, before: State, stepped: Stepped) -> None:
            if before.points is not start:
                _hook(task, step.z, before.points)

        outcome = task.march(State(start, state.costs), keep)
        _hook(task, task.span[1], outcome.state.points)
        return outcome


def _hook(task: Task, z: Depth, points: Points) -> None:
    """Tells observers of the cotangent of `points`, once autograd has summed it."""
    x = points.detach()  # a hook that held its own tensor would keep both alive for good
    points.register_hook(lambda a: task.watch(z, x, a))
