"""Where a checkpointed solve keeps the points at the start of its windows."""

import torch

from continua.core.shapes import Points

_MOST_ROWS = 16


class Shelf:
    """Copies of equally shaped tensors, in a few large pieces of memory.

    Kept as they are, among the temporaries of a solve, they would leave holes that nothing larger fits into: 64 steps
    then cost half as much again as the 64 states that they keep. Pieces double in size from one row on, so that at
    most half of what is taken stays unused.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0)
        self._filled = 0

    def put(self, points: Points) -> Points:
        """A copy of `points`, for as long as anybody holds it."""
        if self._filled == len(self._piece):
            rows = max(1, min(2 * len(self._piece), _MOST_ROWS))
            self._piece, self._filled = points.new_empty((rows, *points.shape)), 0
        self._filled += 1
        return self._piece[self._filled - 1].copy_(points)
