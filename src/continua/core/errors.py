"""Errors that say what is wrong, with the value, and what to do about it."""

import re
from typing import NoReturn

import torch


class ArgumentError(ValueError):
    """An argument that cannot be: its name, the value it had, and why it cannot be, with the cure."""

    def __init__(self, argument: str, value: object, why: str, cure: str) -> None:
        self.argument, self.value, self.why, self.cure = argument, value, why, cure
        super().__init__(self.message_for(argument))

    def message_for(self, name: str) -> str:
        """The message for somebody who knows the argument by another name, such as that of an option.

        The cure then compares that name: `Pass updates >= 1` becomes `Pass --updates >= 1`.
        """
        compared = rf"(?<![\w.(\[-]){re.escape(self.argument)}(?= ?[<>=])"
        cure = re.sub(compared, lambda _: name, self.cure)
        if self.value is None and name.startswith("--"):
            return f"{name} is not given: {self.why}. {cure}"
        shown = repr(self.value)
        if isinstance(x := self.value, torch.Tensor):
            shown = f"<tensor of shape {tuple(x.shape)}, {x.dtype}>" if x.numel() > 8 else f"{x.tolist()}"
        return f"{name} = {shown}: {self.why}. {cure}"


def reject(argument: str, value: object, why: str, cure: str) -> NoReturn:
    """Raise an `ArgumentError`, a `ValueError` that names the argument, its value, the reason and the cure."""
    raise ArgumentError(argument, value, why, cure)


class SolveError(RuntimeError):
    """A solve that could not be finished: why, at which depth, and what to try.

    Attributes hold what the message says, so that a training loop can decide for itself.
    """

    def __init__(self, reason: str, depth: float, advice: str) -> None:
        super().__init__(f"the solve stopped at depth z = {depth:.6g}: {reason}. {advice}")
        self.reason, self.depth, self.advice = reason, depth, advice


class ReconstructionWarning(UserWarning):
    """`Backsolve` could not retrace the forward path: its gradient is not to be trusted."""


class LostGradientWarning(UserWarning):
    """A function takes a tensor out of the graph of autograd: no gradient reaches it."""


class DamageWarning(UserWarning):
    """Something of a run was lost or damaged, and what was taken in its place."""
