"""What a figure of one solve is drawn from: numbers alone, nothing that computes."""

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float

from continua.core.errors import reject


@final
@dataclasses.dataclass(frozen=True)
class SolveRecord:
    """One sequence along depth, the steps that its solve took, and the costates of the way back.

    - `depths`, `tokens`: the states x_i(z) at increasing depths; `times`: the token times t_i;
    - `grid`, `errors`: the accepted depths, and the error estimate of each step in units of the tolerance (empty where
      a grid was given);
    - `costate_depths`, `costates`: the norms |a_i(z)| of the tokens' costates, at depths in any order;
    - `breaks`: depths where the parameters jump.
    """

    depths: Sequence[float]
    tokens: Float[np.ndarray, "depths tokens width"]
    times: Sequence[float]
    grid: Sequence[float]
    errors: Sequence[float]
    costate_depths: Sequence[float]
    costates: Float[np.ndarray, "costates tokens"]
    breaks: Sequence[float] = ()

    def __post_init__(self) -> None:
        wanted = (len(self.depths), len(self.times))
        if self.tokens.ndim != 3 or self.tokens.shape[:2] != wanted:
            cure = f"Pass an array (depths, tokens, width), here {(*wanted, 'width')}."
            reject("tokens", self.tokens.shape, "it does not fit the depths and the times", cure)
        wanted = (len(self.costate_depths), len(self.times))
        if self.costates.shape != wanted:
            cure = f"Pass one norm for each depth and token: an array {wanted}."
            reject("costates", self.costates.shape, "it does not fit the depths and the times", cure)
        if len(self.grid) < 2 or len(self.errors) not in (0, len(self.grid) - 1):
            cure = "Pass stats.grid and stats.errors of one solve."
            reject("errors", len(self.errors), f"a grid of {len(self.grid)} depths was given", cure)
