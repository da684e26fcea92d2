"""Every class of the room that can be made stands in its registry."""

import inspect

import pytest

from continua import solve
from registries import all_controls, all_gradients, all_methods


@pytest.mark.parametrize(
    ("base", "registry"),
    [
        (solve.AbstractStepper, all_methods),
        (solve.AbstractController, all_controls),
        (solve.AbstractGradient, all_gradients),
    ],
)
def test_registry_is_complete(base, registry):
    classes = {c for c in vars(solve).values() if inspect.isclass(c) and issubclass(c, base)}
    assert {type(member) for member in registry} == {c for c in classes if not inspect.isabstract(c)}
