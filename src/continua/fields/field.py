"""What every parameter field is: a path theta(z) of an operator's parameters over depth."""

import abc
import math
from collections.abc import Iterator
from typing import final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import DepthValue, Tensor
from continua.operators import Role, Structure, Theta, leaves
from continua.operators.kernels import multipliers
from continua.spaces import AbstractParameterSpace, FlatSpace, SimplexSpace, StiefelSpace


class AbstractField(nn.Module, abc.ABC):
    """theta(z): the parameters of one operator at depth z, as the named tuple that the operator expects.

    Any field serves any operator: it is built from the operator's `spec`. A field may jump; `breaks` lists the depths
    where it does, and no solver step straddles one. At a jump the reader says from which side it looks: `inside` is a
    depth in the interior of the reader's step, and the piece that holds `inside` is the one that is read. Without it a
    field is read from the right.

    Masses of heads are held as logits, whose softmax is read: whatever an optimiser does, they sum to one.
    """

    breaks: tuple[float, ...] = ()
    """Depths where the field jumps, increasing."""
    reach: float = math.inf
    """The depth up to which the field is defined; infinity where it goes on for ever."""

    def __init__(self, spec: Theta) -> None:
        super().__init__()
        self._use(spec)

    def _use(self, spec: Theta) -> None:
        self.spec, self.structure = spec, Structure(spec)
        self._masses = tuple(i for i, s in enumerate(self.structure.specs) if s.role is Role.HEAD_MASS)

    @abc.abstractmethod
    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        """theta(z); with one depth for each sequence, every leaf gets a leading batch axis."""

    @abc.abstractmethod
    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`."""

    @final
    @property
    def has_masses(self) -> bool:
        """Whether its operator has a measure of heads."""
        return len(self._masses) > 0

    @final
    def _theta(self, values: list[Tensor]) -> Theta:
        """Theta from the values of its leaves, masses among them as logits."""
        for i in self._masses:
            values[i] = torch.softmax(values[i], -1)
        return self.structure.unflatten(values)


def parameters_of(structure: Structure, generator: torch.Generator | None) -> nn.ParameterDict:
    """Trainable initial values of all leaves; of masses, their logits."""
    drawn = ((key, leaf.home, leaf.law.draw(leaf.shape, generator)) for key, leaf in structure.keyed)
    return parameter_dict({key: to_parameter(home, value) for key, home, value in drawn})


def parameter_dict(values: dict[str, Tensor]) -> nn.ParameterDict:
    return nn.ParameterDict({key: nn.Parameter(value) for key, value in values.items()})


def to_parameter(space: AbstractParameterSpace, value: Tensor) -> Tensor:
    """What a field holds for a leaf of theta: itself, or the logits of masses."""
    return space.logits(value) if isinstance(space, SimplexSpace) else value.detach().clone()


@torch.no_grad()
def copy_into(values: nn.ParameterDict, structure: Structure, theta: Theta) -> None:
    """Takes over the values of theta, leaf by leaf."""
    given = dict(leaves(theta))
    if given.keys() != set(structure.names):
        cure = "Pass theta for the operator that the field was built for."
        reject("theta", sorted(given), f"the field holds {sorted(structure.names)}", cure)
    for name, leaf in structure.named:
        if tuple(given[name].shape) != leaf.shape:
            reject(name, tuple(given[name].shape), f"the field holds {leaf.shape}", "Pass theta of the same sizes.")
        if isinstance(leaf.home, SimplexSpace):
            leaf.home.check_masses(name, given[name])
    for key, (name, leaf) in zip(structure.keys, structure.named, strict=True):
        values[key].copy_(to_parameter(leaf.home, given[name]))


def turn(space: StiefelSpace, frame: Tensor, generator: Tensor) -> Tensor:
    """W exp(S) with S = A - A^H, A the `generator`, of the size of the columns (of the rows where W is wide).

    exp of a skew-Hermitian matrix is unitary: where W is orthonormal, so is the product, for every A. The span of its
    columns is that of W. Where multipliers R(om) are paired, S(0) is real as R(0) is.
    """
    a = multipliers(generator) if space.paired else generator
    u = space.matrices(frame) @ torch.linalg.matrix_exp(a - a.mH)
    return space.pack(u, frame)


def generator_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the generators of a leaf on a Stiefel space."""
    side = min(shape[-2:])
    return (*shape[:-2], side, side)


@final
class MemoisedField(AbstractField):
    """theta(z) of `inner`, kept for every depth it was asked at: for many solves on one grid with the same parameters.

    Without a gradient, and blind to parameters that change before `forget`. It holds one theta for each evaluation of a
    solve, as a network of so many layers would. One depth for each sequence is not kept.
    """

    def __init__(self, inner: AbstractField) -> None:
        super().__init__(inner.spec)
        self.inner = inner
        self.breaks, self.reach = inner.breaks, inner.reach
        self._known: dict[tuple[DepthValue, DepthValue | None], Theta] = {}

    def forget(self) -> None:
        """Evaluates every depth anew: the parameters have changed."""
        self._known.clear()

    @torch.no_grad()
    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        if isinstance(z, Tensor) or isinstance(inside, Tensor):
            return self.inner(z, inside)
        if (z, inside) not in self._known:
            self._known[z, inside] = self.inner(z, inside)
        return self._known[z, inside]

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"inner.{name}": space for name, space in self.inner.parameter_spaces().items()}


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
