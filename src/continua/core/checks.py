"""Checks of arguments, one line each: `at_least(1, width=width, heads=heads)`.

All raise an `ArgumentError` (a `ValueError`) that names the argument and its value, says what it must be, and how to
pass it. A sentence written by hand (`reject`) is for mistakes that people make and whose cure is not in the check.
"""

import math
from typing import Any

import torch

from continua.core.errors import reject


def at_least(minimum: int, **values: Any) -> None:
    """Every value is a whole number >= minimum; `None`, an argument that is left to its default, passes."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            reject(name, value, f"it must be a whole number, at least {minimum}", f"Pass {name} >= {minimum}.")


def is_number(**values: Any) -> None:
    """Every value can be taken for a number, as a word or a list cannot; `None` passes."""
    for name, value in values.items():
        if value is not None and not hasattr(value, "__float__"):
            reject(name, value, "this is no number", f"Pass a number for {name}.")


def positive(**values: Any) -> None:
    """Every value is a finite number above 0; `None` passes."""
    is_number(**values)
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            reject(name, value, "it must be positive and finite", f"Pass {name} > 0.")


def not_negative(**values: Any) -> None:
    """Every value is a finite number, 0 or above; `None` passes."""
    is_number(**values)
    for name, value in values.items():
        if value is not None and not 0 <= value < math.inf:
            reject(name, value, "it must be finite and not negative", f"Pass {name} >= 0.")


def finite(**values: Any) -> None:
    """Every value is a finite number; `None` passes."""
    is_number(**values)
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            reject(name, value, "it must be finite", f"Pass a finite {name}.")


def fraction(most: float = 1.0, *, none: bool = True, all: bool = True, **values: Any) -> None:
    """Every value is a fraction, from 0 (if `none`) to `most` (if `all`); `None` passes."""
    is_number(**values)
    for name, value in values.items():
        if value is None:
            continue
        low, high = "<=" if none else "<", "<=" if all else "<"
        if not (0 <= value <= most) or (value == 0 and not none) or (value == most and not all):
            reject(name, value, "it must be a fraction", f"Pass 0 {low} {name} {high} {most:g}.")


def divides(whole: int, what: str, **parts: Any) -> None:
    """Every part divides `whole`, which the message calls `what`."""
    for name, part in parts.items():
        if part < 1 or whole % part:
            divisors = ", ".join(str(d) for d in range(1, whole + 1) if whole % d == 0)
            reject(name, part, f"{what} = {whole} is not divisible by it", f"Pass one of {divisors}.")


def is_a(kind: type | tuple[type, ...], cure: str, **values: Any) -> None:
    """Every value is an object of this kind; a class or a word in place of an object is caught before it fails."""
    for name, value in values.items():
        if not isinstance(value, kind):
            shown = value if isinstance(value, type | str) else type(value).__name__
            wanted = kind if isinstance(kind, type) else kind[0]
            reject(name, shown, f"this is no {wanted.__name__.removeprefix('Abstract')}", cure)


def has_shape(expected: tuple[int | None, ...], cure: str, **tensors: Any) -> None:
    """Every tensor has this shape, `None` standing for any size; a missing tensor (`None`) passes."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        sizes = tuple(tensor.shape)
        fits = len(sizes) == len(expected) and False not in [
            e is None or e == s for e, s in zip(expected, sizes, strict=True)
        ]
        if not fits:
            wanted = ", ".join("any" if e is None else str(e) for e in expected)
            reject(name, sizes, f"the shape must be ({wanted})", cure)


def refuse_where(bad: Any, why: str, cure: str, **tensor: Any) -> None:
    """Rejects the first entry of the tensor, given by its name, at which `bad` is true; in a graph nobody looks."""
    if not is_traced() and bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        for name, x in tensor.items():
            reject(f"{name}{place}", x[tuple(place)].detach(), why, cure)


def is_traced() -> bool:
    """Whether a graph is being made (`torch.compile`, `torch.export`, `torch.jit.trace`): values are not there to see.

    A check of values would break the graph, or be built into it for the values at hand.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def is_exported() -> bool:
    """Whether that graph is to live without Python (`torch.export`, `torch.jit.trace`): it cannot be broken in two."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def holds(condition: torch.Tensor, unseen: bool) -> bool:
    """Whether a condition on values holds; in a graph `unseen`, the answer that is right for all values."""
    return unseen if is_traced() else bool(condition)
