"""The order in which a curve that fills the square visits the cells of a grid."""

import functools

import torch

from continua.core.shapes import Int, Tensor


@functools.lru_cache(maxsize=8)
def hilbert_curve(cells: int) -> Int[Tensor, "visits 2"]:
    """Both numbers of the cells of a square grid, a power of two a side, in the order of D. Hilbert (1891).

    Cells that follow each other share a side, and the four parts of a cell follow each other where the cell stands on
    the coarser curve, so time along the curve means the same place at every resolution, to the size of a cell.
    """
    if cells == 1:
        return torch.zeros(1, 2, dtype=torch.long)
    half = cells // 2
    smaller = hilbert_curve(half)
    turned = smaller.flip(1)
    back = torch.tensor([cells - 1, half - 1]) - turned
    return torch.cat([turned, smaller + torch.tensor([0, half]), smaller + half, back])
