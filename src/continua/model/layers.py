"""The layers of a standard network as parts of a flow: one piece of a field and one unit of depth for each layer."""

import dataclasses

from continua.core.errors import reject
from continua.fields import PiecewiseConstant
from continua.model.flow import Part
from continua.operators import (
    AbstractNorm,
    AbstractOperator,
    Activation,
    Attention,
    Cross,
    Dropout,
    FeedForward,
    PostNorm,
    PreNorm,
)
from continua.solve import AbstractStepper, Fixed, Solver


@dataclasses.dataclass(frozen=True)
class Layers:
    """`count` layers of one make: the sizes and choices that every standard network has.

    - `width`, `heads`: heads of size width / heads, on the counting measure;
    - `hidden`: inner size of the feed-forward, 4 width by default;
    - `dropout`: rate at which components of a residual branch are dropped in training;
    - `biased`: whether attention and feed-forward have biases.
    """

    count: int
    width: int
    heads: int
    hidden: int | None = None
    activation: Activation = Activation.GELU
    dropout: float = 0.0
    biased: bool = True

    def __post_init__(self) -> None:
        for name, size in (("count", self.count), ("width", self.width), ("heads", self.heads)):
            if size < 1:
                reject(name, size, "a network needs at least one", f"Pass {name} >= 1.")
        if self.width % self.heads:
            reject("heads", self.heads, f"the width {self.width} does not split evenly", "Pass a divisor of the width.")
        if self.hidden is not None and self.hidden < 1:
            reject("hidden", self.hidden, "the feed-forward needs a hidden unit", "Pass hidden >= 1, or None.")
        if not 0.0 <= self.dropout < 1.0:
            reject("dropout", self.dropout, "a probability below 1 is needed", "Pass 0 <= dropout < 1.")

    @property
    def depth(self) -> float:
        """The depth of the flow: each layer has thickness 1."""
        return float(self.count)

    def attention(self, causal: bool = False) -> AbstractOperator:
        """The multi-head attention of a layer."""
        heads = Attention(self.heads, self.width // self.heads, causal=causal, biased=self.biased)
        return self._dropped(heads)

    def cross(self) -> AbstractOperator:
        """The attention of a decoder's layer to the encoder's tokens."""
        return self._dropped(Cross(Attention(self.heads, self.width // self.heads, biased=self.biased)))

    def feedforward(self) -> AbstractOperator:
        """The feed-forward of a layer."""
        hidden = 4 * self.width if self.hidden is None else self.hidden
        return self._dropped(FeedForward(hidden, self.activation, biased=self.biased))

    def part(self, operator: AbstractOperator, pieces: int = 1) -> Part:
        """The operator with parameters of its own in every layer, or in each of `pieces` equal pieces of a layer."""
        edges = [piece / pieces for piece in range(self.count * pieces + 1)]
        return Part(operator, PiecewiseConstant(operator.spec(self.width), edges))

    def solver(self, stepper: AbstractStepper) -> Solver:
        """One step of `stepper` for each layer, dz = 1."""
        return Solver(stepper, Fixed(self.count))

    def _dropped(self, operator: AbstractOperator) -> AbstractOperator:
        return Dropout(operator, self.dropout) if self.dropout > 0.0 else operator


def normed(operator: AbstractOperator, norm: AbstractNorm, norm_first: bool) -> AbstractOperator:
    """The residual branch of a layer with its norm: before the operator, or after the sum with the residual."""
    return PreNorm(norm, operator) if norm_first else PostNorm(norm, operator)
