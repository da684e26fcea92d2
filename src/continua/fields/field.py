"""What every parameter field is: a path theta(z) of an operator's parameters over depth."""

import abc
import math
from typing import Any

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Depth
from continua.fields.simplex import check_simplex
from continua.operators import Role, Theta, leaves, rebuild
from continua.spaces import AbstractParameterSpace, SimplexSpace, StiefelSpace


class AbstractField(nn.Module, abc.ABC):
    """theta(z): the parameters of one operator at depth z, as the named tuple that the operator expects.

    Any field serves any operator: it is built from the operator's `spec`. A field may jump; `breaks` lists the depths
    where it does, and no solver step straddles one. At a jump the reader says from which side it looks: `inside` is a
    depth in the interior of the reader's step, and the piece that holds `inside` is the one that is read. Without it a
    field is read from the right.
    """

    spec: Theta
    """What the operator asked for: the tree of `Spec` that this field was built from."""

    @property
    @abc.abstractmethod
    def breaks(self) -> tuple[float, ...]:
        """Depths where the field jumps, increasing."""

    @property
    @abc.abstractmethod
    def reach(self) -> float:
        """The depth up to which the field is defined; infinity where it goes on for ever."""

    @abc.abstractmethod
    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        """theta(z); with one depth for each sequence, every leaf gets a leading batch axis."""

    @abc.abstractmethod
    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`."""

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments that build this field anew (its values apart)."""


def check_depth(depth: float) -> None:
    """Refuses a depth Z that no flow can have."""
    if not 0 < depth < math.inf:
        reject("depth", depth, "the flow needs a finite, positive depth", "Pass depth > 0.")


def key(name: str) -> str:
    """A leaf's dotted name as a name that `torch.nn.ParameterDict` accepts."""
    return name.replace(".", "_")


def parameters_of(theta: Theta) -> nn.ParameterDict:
    """Trainable copies of the leaves of theta."""
    return nn.ParameterDict({key(name): nn.Parameter(leaf.detach().clone()) for name, leaf in leaves(theta)})


def theta_of(spec: Theta, values: nn.ParameterDict) -> Theta:
    """The parameters themselves, in the shape of `spec`."""
    return rebuild(spec, {name: values[key(name)] for name, _ in leaves(spec)})


def refuse_orthonormal(spec: Theta, why: str) -> None:
    """Refuses leaves that must have orthonormal columns at every depth, where the field cannot keep them so."""
    for name, leaf in leaves(spec):
        if isinstance(leaf.home, StiefelSpace):
            cure = "Use Constant or PiecewiseConstant, whose kernels are parameters themselves, or a free kernel."
            reject(name, leaf.home, why, cure)


def refuse_masses(spec: Theta, why: str) -> None:
    """Refuses masses of heads, where the parameters behind them lie on no simplex."""
    for name, leaf in leaves(spec):
        if isinstance(leaf.home, SimplexSpace):
            cure = "Use ContinuousHeads, Constant, PiecewiseConstant, or Expansion in a BSpline basis."
            reject(name, leaf.home, why, cure)


@torch.no_grad()
def copy_into(values: nn.ParameterDict, spec: Theta, theta: Theta) -> None:
    """Takes over the values of theta, leaf by leaf."""
    given, held = dict(leaves(theta)), dict(leaves(spec))
    if given.keys() != held.keys():
        cure = "Pass theta for the operator that the field was built for."
        reject("theta", sorted(given), f"the field holds {sorted(held)}", cure)
    for name, leaf in given.items():
        if tuple(leaf.shape) != held[name].shape:
            reject(name, tuple(leaf.shape), f"the field holds {held[name].shape}", "Pass theta of the same sizes.")
        if held[name].role is Role.HEAD_MASS:
            check_simplex(name, leaf)
    for name, leaf in given.items():
        values[key(name)].copy_(leaf)
