"""What every operator is: a pure map (theta, tokens) -> velocity at one depth, theta a tree of tensors."""

import abc
import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import nn

from continua.core.seeds import branch_seed
from continua.core.shapes import Points, Tensor
from continua.spaces import AbstractParameterSpace, Cloud, FlatSpace, SimplexSpace, StiefelSpace

Theta = Any
"""A named tuple (or plain tuple) of tensors, further tuples, and `None` where an operator goes without."""


@final
@dataclasses.dataclass(frozen=True)
class Normal:
    """Independent normal entries of standard deviation `deviation`."""

    deviation: float

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        return torch.randn(shape, generator=generator) * self.deviation


@final
@dataclasses.dataclass(frozen=True)
class Filled:
    """Every entry equals `value`; with `first` so does only the first along the axis before the last, the others are 0.

    In a basis along the embedding axis that begins with 1, this is the constant function.
    """

    value: float
    first: bool = False

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        filled = torch.full(shape, self.value)
        if self.first:
            filled[..., 1:, :] = 0.0
        return filled


@final
@dataclasses.dataclass(frozen=True)
class Orthonormal:
    """Matrices with orthonormal columns (rows where they are wide), evenly distributed over all such.

    With `multipliers` the shape is (..., modes + 1, 2, out, in): unitary for each frequency, real for frequency zero.
    """

    multipliers: bool = False

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        x = torch.randn(shape, generator=generator)
        if self.multipliers:
            x[..., 0, 1, :, :] = 0.0
        return StiefelSpace(paired=self.multipliers).project(x)  # the polar factor of a Gaussian is evenly distributed


Law: TypeAlias = Normal | Filled | Orthonormal
"""What a parameter is drawn from at initialisation: `law.draw(shape, generator)`."""


class Role(enum.Enum):
    """What a parameter is to its operator."""

    PLAIN = "plain"
    HEAD = "head"
    """The first axis runs over the nodes of the head measure."""
    HEAD_MASS = "head mass"
    """The masses p_k of the heads themselves: not negative, summing to one."""


@final
@dataclasses.dataclass(frozen=True)
class Spec:
    """One parameter of an operator: its shape, the law of its initial value, and what its first axis means.

    `space` is where it lives at each depth; `None` leaves it to the role and the shape, see `home`.
    """

    shape: tuple[int, ...]
    law: Law
    role: Role = Role.PLAIN
    space: AbstractParameterSpace | None = None

    @property
    def home(self) -> AbstractParameterSpace:
        """Where the parameter lives: as it was told; else masses of heads on the simplex, others in Euclidean space."""
        if self.space is not None:
            return self.space
        if self.role is Role.HEAD_MASS:
            return SimplexSpace()
        return FlatSpace(min(2, len(self.shape) - (self.role is Role.HEAD)))


def leaves(theta: Theta, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of theta with their dotted names; absent ones (`None`) are left out."""
    if isinstance(theta, tuple):
        names = getattr(theta, "_fields", None) or [str(i) for i in range(len(theta))]
        for name, branch in zip(names, theta, strict=True):
            yield from leaves(branch, f"{prefix}{name}.")
    elif theta is not None:
        yield prefix.removesuffix("."), theta


def rebuild(template: Theta, values: Mapping[str, Any], prefix: str = "") -> Theta:
    """Theta in the shape of `template`, its leaves taken by name from `values`."""
    if isinstance(template, tuple):
        names = getattr(template, "_fields", None) or [str(i) for i in range(len(template))]
        branches = [rebuild(b, values, f"{prefix}{n}.") for n, b in zip(names, template, strict=True)]
        return type(template)(*branches) if hasattr(template, "_fields") else tuple(branches)
    return None if template is None else values[prefix.removesuffix(".")]


@final
class Structure:
    """The tree of an operator's parameters, flattened once: names and specs of its leaves, and how to build it.

    A field gives theta at every evaluation of a solve. `unflatten` is one generated expression, such as
    `NormedTheta(NormTheta(v[0], v[1]), AttentionTheta(v[2], ...))`: walking the tree by its dotted names was half of
    all Python calls of a training update.
    """

    def __init__(self, spec: Theta) -> None:
        self.spec = spec
        self.named: tuple[tuple[str, Any], ...] = tuple(leaves(spec))
        self.names = tuple(name for name, _ in self.named)
        self.specs: tuple[Any, ...] = tuple(leaf for _, leaf in self.named)
        self.keys = tuple(name.replace(".", "_") for name in self.names)
        """The names as `torch.nn.ParameterDict` accepts them."""
        self.keyed = tuple(zip(self.keys, self.specs, strict=True))
        kinds: dict[str, type] = {}
        self.unflatten: Callable[[Sequence[Any]], Theta] = eval(
            f"lambda v: {_expression(spec, itertools.count(), kinds)}", kinds
        )
        self.flatten: Callable[[Theta], list[Any]] = eval(f"lambda t: [{', '.join(_places(spec, 't'))}]")
        """The leaves of a tree of this make."""

    def read(self, values: nn.ParameterDict) -> Iterator[Tensor]:
        """The parameters under `keys`, in their order.

        From the dictionary beneath: `values[key]` takes three Python calls. Read anew in each evaluation, because
        `torch.func.functional_call` and FSDP exchange parameters in that dictionary.
        """
        return map(values._parameters.__getitem__, self.keys)  # pyright: ignore[reportReturnType]

    def __reduce__(self) -> Any:
        return Structure, (self.spec,)  # a generated function cannot be pickled


def _expression(template: Theta, count: Iterator[int], kinds: dict[str, type]) -> str:
    """Code that builds a tree like `template` from a list v, whose entries `count` numbers."""
    if not isinstance(template, tuple):
        return "None" if template is None else f"v[{next(count)}]"
    inner = "".join(f"{_expression(branch, count, kinds)}, " for branch in template)
    if not hasattr(template, "_fields"):
        return f"({inner})"
    name = f"T{len(kinds)}"
    kinds[name] = type(template)
    return f"{name}({inner})"


def _places(template: Theta, tree: str) -> Iterator[str]:
    """Code that finds the leaves of a tree like `template`, in their order: `t[0][1]`."""
    if isinstance(template, tuple):
        for place, branch in enumerate(template):
            yield from _places(branch, f"{tree}[{place}]")
    elif template is not None:
        yield tree


def map_leaves(function: Callable[[Any], Any], theta: Theta) -> Theta:
    """Theta with `function` applied to every leaf."""
    return rebuild(theta, {name: function(leaf) for name, leaf in leaves(theta)})


def draw_theta(spec: Theta, generator: torch.Generator | None = None) -> Theta:
    """Initial values for every `Spec` of the tree."""
    return map_leaves(lambda leaf: leaf.law.draw(leaf.shape, generator), spec)


@final
@dataclasses.dataclass(frozen=True)
class Binding:
    """What is fixed for a whole solve, before it: an operator reads it once, in `bind`.

    - `cloud`: the tokens at depth 0 (their measure stays, their points move on);
    - `encoded`: the cloud that cross-attention reads, such as an encoder's output;
    - `seed`: where the randomness of this solve starts; `None` when nothing is random (evaluation);
    - `second_derivatives`: second derivatives will be asked for;
    - `source`: the cloud that answers below a `Cross`, which sets it.
    """

    cloud: Cloud
    encoded: Cloud | None = None
    seed: int | None = None
    second_derivatives: bool = False

    source: Cloud | None = None

    @property
    def offering(self) -> Cloud:
        """The cloud whose tokens answer: `cloud` itself, or the one that cross-attention reads."""
        return self.cloud if self.source is None else self.source

    def branch(self, place: int) -> "Binding":
        """The binding of one of several inner operators: the same, with randomness of its own."""
        return self if self.seed is None else dataclasses.replace(self, seed=branch_seed(self.seed, place))


class NoTheta(NamedTuple):
    """The parameters of an operator that has none."""


class AbstractOperator(abc.ABC):
    """Acts at one depth: velocity(x_i) = f(theta, x_i, mu).

    An operator has no state: parameters come from a field, randomness and measures from `bind`. The leaves of theta,
    all or none of them, may carry a leading batch axis (one set of parameters for each sequence). The velocity of an
    absent token means nothing.
    """

    @abc.abstractmethod
    def spec(self, width: int) -> Theta:
        """The parameters that this operator needs at one depth, as a tree of `Spec`."""

    @abc.abstractmethod
    def bind(self, binding: Binding) -> "AbstractOperator":
        """This operator with everything fixed that must not change during a solve."""

    @abc.abstractmethod
    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        """The velocity of the tokens of `cloud`, mu the measure of `source`; by default of the tokens themselves."""


class AbstractPointwise(AbstractOperator):
    """An operator that treats each token alone: f(x_i) does not see the measure."""

    @abc.abstractmethod
    def act(self, theta: Theta, points: Points) -> Points:
        """The velocity of each token from its own state."""

    @final
    def bind(self, binding: Binding) -> AbstractOperator:
        return self

    @final
    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        return self.act(theta, cloud.points)


@dataclasses.dataclass(frozen=True)
class AbstractWrapper(AbstractOperator):
    """An operator around another one, with the same parameters."""

    inner: AbstractOperator

    @final
    def spec(self, width: int) -> Theta:
        return self.inner.spec(width)
