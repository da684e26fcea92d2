"""Floor 1: fields are the parameters of an operator as functions of depth."""

from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.cost import FieldCost, cost
from continua.fields.expansion import Expansion
from continua.fields.field import AbstractField, check_depth
from continua.fields.heads import ContinuousHeads
from continua.fields.hypernetwork import Hypernetwork
from continua.fields.layers import from_layers, layer_depths, refine
from continua.fields.spaces import parameter_spaces

__all__ = [
    "AbstractField", "Constant", "ContinuousHeads", "Expansion", "FieldCost", "Hypernetwork", "Kept",
    "PiecewiseConstant", "check_depth", "cost", "from_layers", "layer_depths", "parameter_spaces", "refine",
]  # fmt: skip
