"""What every operator is: a pure map (theta, tokens) -> velocity at one depth."""

import abc
import dataclasses
from typing import Any, NamedTuple, final

from continua.core.seeds import branched
from continua.core.shapes import Points
from continua.operators.parameters import Theta
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True)
class Context:
    """What is fixed for a whole solve, before it: an operator reads it once, in `bind`.

    - `cloud`: the tokens at depth 0 (their measure stays, their points move on);
    - `memory`: the cloud that cross-attention reads;
    - `seed`: where the randomness of this solve starts; `None` when nothing is random (evaluation);
    - `second_order`: second derivatives will be asked for;
    - `source`: the cloud that answers below a `Cross`, which sets it.
    """

    cloud: Cloud
    memory: Cloud | None = None
    seed: int | None = None
    second_order: bool = False

    source: Cloud | None = None

    @property
    def offering(self) -> Cloud:
        """The cloud whose tokens answer: `cloud` itself, or the one that cross-attention reads."""
        return self.cloud if self.source is None else self.source

    def branch(self, place: int) -> "Context":
        """The context of one of several inner operators: the same, with randomness of its own."""
        return self if self.seed is None else dataclasses.replace(self, seed=branched(self.seed, place))


class NoTheta(NamedTuple):
    """The parameters of an operator that has none."""


class AbstractOperator(abc.ABC):
    """Acts at one depth: velocity(x_i) = attend(theta, x, memory(theta, mu)).

    `memory` holds what the tokens offer (keys, values, masses), `attend` what queries make of it. Self-attention,
    cross-attention, queries at unobserved times and cached generation are this one pair of calls. An operator has no
    state: parameters come from a field, randomness and measures from `bind`. The leaves of theta, all or none of them,
    may carry a leading batch axis (one set of parameters for each sequence). The velocity of an absent token means
    nothing.
    """

    @abc.abstractmethod
    def spec(self, width: int) -> Theta:
        """The parameters that this operator needs at one depth, as a tree of `Spec`."""

    @abc.abstractmethod
    def bind(self, context: Context) -> "AbstractOperator":
        """This operator with everything fixed that must not change during a solve."""

    @abc.abstractmethod
    def memory(self, theta: Theta, cloud: Cloud) -> Any:
        """What the tokens of `cloud` offer to queries."""

    @abc.abstractmethod
    def attend(self, theta: Theta, queries: Cloud, memory: Any) -> Points:
        """The velocity of the queries, given a memory."""

    @final
    def velocity(self, theta: Theta, cloud: Cloud) -> Points:
        """The velocity of the tokens among themselves."""
        return self.attend(theta, cloud, self.memory(theta, cloud))


class AbstractPointwise(AbstractOperator):
    """An operator that treats each token alone: f(x_i) does not see the measure."""

    @abc.abstractmethod
    def act(self, theta: Theta, points: Points) -> Points:
        """The velocity of each token from its own state."""

    @final
    def bind(self, context: Context) -> AbstractOperator:
        return self

    @final
    def memory(self, theta: Theta, cloud: Cloud) -> None:
        return None

    @final
    def attend(self, theta: Theta, queries: Cloud, memory: None) -> Points:
        return self.act(theta, queries.points)
