"""Floor 1: fields are the parameters of an operator as functions of depth."""

from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.expansion import Expansion
from continua.fields.field import AbstractField

__all__ = ["AbstractField", "Constant", "Expansion", "PiecewiseConstant"]
