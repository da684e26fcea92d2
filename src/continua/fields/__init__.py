"""Floor 1: fields are the parameters of an operator as functions of depth."""

from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.expansion import Expansion, from_layers, layer_depths, refine
from continua.fields.field import AbstractField, FieldCost, check_depth, cost, parameter_spaces
from continua.fields.heads import AbstractHeadField, ContinuousHeads
from continua.fields.hypernetwork import HeadHypernetwork, Hypernetwork

__all__ = [
    "AbstractField", "AbstractHeadField", "Constant", "ContinuousHeads", "Expansion", "FieldCost",
    "HeadHypernetwork", "Hypernetwork", "PiecewiseConstant", "check_depth", "cost", "from_layers", "layer_depths",
    "parameter_spaces", "refine",
]  # fmt: skip
