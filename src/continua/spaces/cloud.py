"""A cloud of weighted tokens: the measure mu = sum_i w_i delta_{x_i} that attention integrates against."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.checks import at_least, has_shape, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Float, Int, Mass, Points, Positions, Present, Tensor
from continua.spaces.measure import Measure, check_alike


@final
@dataclasses.dataclass(frozen=True, init=False, eq=False)
class Cloud:
    """Tokens of a batch of sequences as measures mu_b = sum_i w_bi delta_{x_bi} (docs/mathematics.md, section 1).

    - `points`: the states x_i; those of absent tokens are set to zero.
    - `mass`: the masses w_i >= 0; zero mass means that the token is absent (padding), `None` that each has mass 1.
    - `positions`: the token times t_i, not decreasing along each sequence; `None` means the index. A cloud is embedded
      already, so they are as the model scales them (0 to 1 for signals of `transformer`), and in no unit of yours.
    - `present`: tokens that move, by default those with mass. Present without mass is a query: it attends to the
      others and nobody attends to it, as a query at a time that was never observed.
    - `own`: the mass a token has in its own causal row, where it differs from `mass` (`CausalTrapezoid`).

    What does not change along depth - masses, positions and what attention derives from them - is one `Measure`,
    made here once and shared by every cloud that `at` returns.
    """

    points: Points
    measure: Measure

    def __init__(
        self,
        points: Points,
        mass: Mass | None = None,
        positions: Positions | None = None,
        own: Mass | None = None,
        present: Present | None = None,
    ) -> None:
        _check_points(points)
        measure = Measure.of(points.shape[:2], points, mass, positions, own, present)
        if measure.present is not None:  # 0 * nan = nan would let absent tokens be heard
            points = points.masked_fill(~measure.present.unsqueeze(-1), 0.0)
        cure = "Remove or impute the token, or give it zero mass."
        refuse_where(~torch.isfinite(points.detach()), "the state of a token is not finite", cure, points=points)
        object.__setattr__(self, "measure", measure)
        object.__setattr__(self, "points", points)

    @classmethod
    def on(cls, points: Points, measure: Measure) -> "Cloud":
        """Tokens on a measure that was checked before: neither validates nor synchronises.

        Absent tokens must be finite: attention gives them no weight, and 0 * nan = nan.
        """
        cloud = object.__new__(cls)
        object.__setattr__(cloud, "points", points)
        object.__setattr__(cloud, "measure", measure)
        return cloud

    @classmethod
    def from_ragged(
        cls,
        sequences: Sequence[Float[Tensor, "_ width"]],
        mass: Sequence[Float[Tensor, " _"]] | None = None,
        positions: Sequence[Float[Tensor, " _"]] | None = None,
        own: Sequence[Float[Tensor, " _"]] | None = None,
    ) -> "Cloud":
        """Sequences of different lengths as one cloud: padded at the end with tokens of zero mass."""
        _check_sequences(sequences)
        for name, rows in (("mass", mass), ("positions", positions), ("own", own)):
            if rows is None:
                continue
            if len(rows) != len(sequences):
                reject(name, len(rows), f"there are {len(sequences)} sequences", "Pass one tensor (tokens,) for each.")
            for i, (row, x) in enumerate(zip(rows, sequences, strict=True)):
                has_shape((len(x),), f"Pass one number for each of the {len(x)} tokens.", **{f"{name}[{i}]": row})
        weights = [torch.ones_like(x[:, 0]) for x in sequences] if mass is None else list(mass)
        longest = max(len(x) for x in sequences)
        if positions is not None:  # the last time is repeated: one that is in order and in range
            positions = [torch.cat([row, row[-1:].expand(longest - len(row))]) for row in positions]
        return cls(
            pad_sequence(list(sequences), batch_first=True),
            pad_sequence(weights, batch_first=True),
            None if positions is None else torch.stack(positions),
            None if own is None else pad_sequence(list(own), batch_first=True),
        )

    def at(self, points: Points) -> "Cloud":
        """The same tokens in other states: their masses and positions stay as they are."""
        return Cloud.on(points, self.measure)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Cloud":
        """This cloud elsewhere, or in another precision."""
        return self._rebuild(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else None))

    def first(self, count: int) -> "Cloud":
        """The first sequences of the batch, on a measure of their own."""
        at_least(1, count=count)
        return self._rebuild(lambda x: x[:count])

    def _rebuild(self, change: Callable[[Tensor], Tensor]) -> "Cloud":
        """A cloud of its own with every tensor of this one changed."""
        measure = self.measure
        own = None if measure.log_own is None else measure.log_own.exp()  # absent tokens: exp(ABSENT) = 0
        given = (measure.mass, measure.positions, own, measure.present)
        return Cloud(change(self.points), *(None if x is None else change(x) for x in given))

    def with_queries(
        self, points: Float[Tensor, "batch queries width"], times: Float[Tensor, "batch queries"]
    ) -> tuple["Cloud", Int[Tensor, "batch queries"]]:
        """This cloud with queries at `times`, in any order, merged in by time; and where they stand.

        A query comes after the tokens of its time, so a causal one sees them. Absent tokens move to the end. Without
        positions, time is the index. Own masses are refused: a query after a token would read the next time from
        that token's mass.
        """
        _check_queries(self, points, times)
        own_times = self.measure.times(times)
        present = torch.ones_like(own_times, dtype=torch.bool) if self.present is None else self.present
        mass = torch.ones_like(own_times) if self.mass is None else self.mass
        order = torch.cat([own_times.masked_fill(~present, torch.inf), times], 1).argsort(dim=-1, stable=True)
        cloud = Cloud(
            take_tokens(torch.cat([self.points, points], 1), order),
            torch.cat([mass, torch.zeros_like(times)], 1).gather(1, order),
            torch.cat([own_times.masked_fill(~present, 0.0), times], 1).gather(1, order),
            present=torch.cat([present, torch.ones_like(times, dtype=torch.bool)], 1).gather(1, order),
        )
        return cloud, order.argsort(-1)[:, self.points.shape[1] :]

    @property
    def mass(self) -> Mass | None:
        return self.measure.mass

    @property
    def positions(self) -> Positions | None:
        return self.measure.positions

    @property
    def present(self) -> Present | None:
        return self.measure.present


def take_tokens(
    x: Float[Tensor, "batch tokens width"], index: Int[Tensor, "batch queries"]
) -> Float[Tensor, "batch queries width"]:
    """x[b, index[b, i]]: `take_along_dim`, which exports for one size of a batch alone."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _check_points(points: Tensor) -> None:
    cure = "Pass a tensor of shape (batch, tokens, width); a single sequence is x.unsqueeze(0)."
    has_shape((None, None, None), cure, points=points)
    if points.dtype not in (torch.float32, torch.float64):
        cure = "Convert with points.to(torch.float32) or points.to(torch.float64)."
        reject("points", points.dtype, "the dtype is neither float32 nor float64", cure)
    if points.numel() == 0:
        cure = "Each axis of (batch, tokens, width) needs at least one entry."
        reject("points", tuple(points.shape), "the cloud is empty", cure)


def _check_queries(cloud: Cloud, points: Tensor, times: Tensor) -> None:
    batch, _, width = cloud.points.shape
    if times.ndim != 2 or times.shape[0] != batch or times.numel() == 0:
        cure = f"Pass times of shape ({batch}, queries): as many for each sequence."
        reject("times", tuple(times.shape), f"there are {batch} sequences, each with times to ask at", cure)
    has_shape((*times.shape, width), "Pass one point per query, as wide as the tokens.", points=points)
    check_alike(cloud.points, "cloud.points", times=times, points=points)
    refuse_where(~torch.isfinite(times), "a query needs a finite time", "Ask at finite times only.", times=times)
    if cloud.measure.log_own is not None:
        why = "a query after a token would read the next time from its mass"
        reject("own", "given", why, "Use a rule without own masses, such as BackwardRectangle.")


def _check_sequences(sequences: Sequence[Tensor]) -> None:
    if len(sequences) == 0:
        reject("sequences", sequences, "there is no sequence", "Pass at least one tensor (tokens, width).")
    first = sequences[0]
    for i, x in enumerate(sequences):
        if x.ndim != 2 or len(x) == 0 or x.shape[1] != first.shape[1]:
            cure = "Pass tensors (tokens, width) of one width, each with at least one token."
            reject(f"sequences[{i}]", tuple(x.shape), "this is no sequence, or not one of this batch", cure)
        check_alike(first, "sequences[0]", **{f"sequences[{i}]": x})
