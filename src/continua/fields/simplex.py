"""Masses of heads lie on the simplex: not negative, summing to one."""

from collections.abc import Iterable
from typing import Any

from continua.core.shapes import Tensor
from continua.operators import Role, Spec
from continua.spaces import SimplexSpace


def check_simplex(name: str, c: Tensor) -> None:
    """Rejects columns (the first axis runs along one) that are not on the simplex."""
    SimplexSpace(-c.ndim).check(name, c)


def check_loaded(masses: Iterable[tuple[str, Spec]], state: dict[str, Any]) -> None:
    """Rejects the masses among values that are about to be loaded; `masses` names them in `state`."""
    for name, spec in masses:
        value = state.get(name)
        if spec.role is Role.HEAD_MASS and value is not None:
            check_simplex(name, value)
