"""Floor 1: fields are the parameters of an operator as functions of depth."""

from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.expansion import Expansion, from_layers, join_layers, to_layers
from continua.fields.field import AbstractField, parameter_spaces
from continua.fields.heads import AbstractHeadField, ContinuousHeads, head_masses
from continua.fields.hypernetwork import HeadHypernetwork, Hypernetwork
from continua.fields.modal import ModalWeights, modal_weights

__all__ = [
    "AbstractField", "AbstractHeadField", "Constant", "ContinuousHeads", "Expansion", "HeadHypernetwork",
    "Hypernetwork", "ModalWeights", "PiecewiseConstant", "from_layers", "head_masses", "join_layers", "modal_weights",
    "parameter_spaces", "to_layers",
]  # fmt: skip
