"""What every parameter field is: a path theta(z) of an operator's parameters over depth."""

import abc
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from continua.core.errors import reject
from continua.core.shapes import Depth, Tensor
from continua.operators import Role, Spec, Theta, count, leaves, rebuild
from continua.spaces import AbstractParameterSpace, FlatSpace, SimplexSpace, StiefelSpace


def check_simplex(name: str, c: Tensor) -> None:
    """Rejects columns (the first axis runs along one) that are not on the simplex."""
    SimplexSpace(-c.ndim).check(name, c)


def check_loaded(masses: Iterable[tuple[str, Spec]], state: dict[str, Any]) -> None:
    """Rejects the masses among values that are about to be loaded; `masses` names them in `state`."""
    for name, spec in masses:
        value = state.get(name)
        if spec.role is Role.HEAD_MASS and value is not None:
            check_simplex(name, value)


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


@final
class MemoisedField(AbstractField):
    """theta(z) of `inner`, kept for every depth it was asked at: for many solves on one grid with the same weights.

    Without a gradient, and blind to weights that change before `forget`. It holds one theta for each evaluation of a
    solve, as a network of so many layers would. One depth for each sequence is not kept.
    """

    def __init__(self, inner: AbstractField) -> None:
        super().__init__()
        self.inner, self.spec = inner, inner.spec
        self._known: dict[tuple[Depth, Depth | None], Theta] = {}

    def forget(self) -> None:
        """Evaluates every depth anew: the weights have changed."""
        self._known.clear()

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.inner.breaks

    @property
    def reach(self) -> float:
        return self.inner.reach

    @torch.no_grad()
    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        if isinstance(z, Tensor) or isinstance(inside, Tensor):
            return self.inner(z, inside)
        if (z, inside) not in self._known:
            self._known[z, inside] = self.inner(z, inside)
        return self._known[z, inside]

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"inner.{name}": space for name, space in self.inner.parameter_spaces().items()}

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner}


def parameter_spaces(module: nn.Module) -> dict[str, AbstractParameterSpace]:
    """{name: space} for every name in `module.named_parameters()`.

    Parts that answer `parameter_spaces()` themselves, as fields do, are asked; parameters of all others are matrices
    and vectors of Euclidean space. A parameter with two names stands under the first one, and has one space.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(named.items())}
    found: dict[str, AbstractParameterSpace] = {}
    for name, space in _walk(module, "", root=True):
        if name not in named:
            reject("name", name, "its module has no such parameter", "Answer with names of named_parameters() alone.")
        kept = found.setdefault(first[id(named[name])], space)
        if kept != space:
            reject("parameter", name, f"it is shared, and lives in {kept} and in {space}", "Share it within one space.")
    missing = [name for name in dict(module.named_parameters()) if name not in found]
    if missing:
        reject("parameters", missing, "their module leaves them out of parameter_spaces()", "Give each a space.")
    return found


def _walk(module: nn.Module, prefix: str, root: bool = False) -> Iterator[tuple[str, AbstractParameterSpace]]:
    if isinstance(module, AbstractField) or (not root and hasattr(module, "parameter_spaces")):
        for name, space in module.parameter_spaces().items():  # pyright: ignore[reportCallIssue]
            yield prefix + name, space
        return
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield prefix + name, FlatSpace(min(2, parameter.ndim))
    for name, child in module.named_children():
        yield from _walk(child, f"{prefix}{name}.")


@final
@dataclasses.dataclass(frozen=True)
class FieldCost:
    """The cost of a field.

    - `parameters`: trained numbers that it holds;
    - `per_depth`: numbers of theta(z) at one depth;
    - `flops`: additions and multiplications in matrix products to make theta(z) once, before an operator uses it.
    """

    parameters: int
    per_depth: int
    flops: int


def cost(field: AbstractField) -> FieldCost:
    """The cost of `field`, its arithmetic counted by `torch.utils.flop_counter` on one evaluation at depth 0."""
    with FlopCounterMode(display=False) as counter:
        field(torch.zeros(1))
    return FieldCost(sum(p.numel() for p in field.parameters()), count(field.spec), counter.get_total_flops())
