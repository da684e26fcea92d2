"""Twins of a model: other parts, the same parameters."""

import copy
from typing import TypeVar

from torch import nn

from continua.model import Part
from continua.operators import AbstractTokenIntegral, with_integral

Model = TypeVar("Model", bound=nn.Module)


def with_token_integral(model: Model, integral: AbstractTokenIntegral) -> Model:
    """The same model, parameters shared, with `integral` in every attention of its flows.

    Gradients through the twin arrive at the parameters of `model`. The twin starts in the mode of `model`; `train` and
    `eval` then act on one of the two alone.
    """
    twin = copy.copy(model)
    children = {name: with_token_integral(child, integral) for name, child in model.named_children()}
    twin._modules = {**model._modules, **children}
    if isinstance(twin, Part):
        twin.operator = with_integral(twin.operator, integral)
    return twin
