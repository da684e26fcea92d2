"""Every class of the room that can be made stands in its registry."""

import inspect

import pytest

from continua import spaces
from registries import all_bases, all_manifolds, all_parameter_spaces, all_rules


@pytest.mark.parametrize(
    ("base", "registry"),
    [
        ((spaces.AbstractNodalRule, spaces.AbstractSampleRule), all_rules),
        (spaces.AbstractManifold, all_manifolds),
        (spaces.AbstractBasis, all_bases),
        (spaces.AbstractParameterSpace, all_parameter_spaces),
    ],
)
def test_registry_is_complete(base, registry):
    classes = {c for c in vars(spaces).values() if inspect.isclass(c) and issubclass(c, base)}
    assert {type(member) for member in registry} == {c for c in classes if not inspect.isabstract(c)}
