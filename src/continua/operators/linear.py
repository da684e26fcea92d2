"""Linear maps whose weights may differ from sequence to sequence."""

import torch
import torch.nn.functional as F

from continua.core.shapes import Float, Tensor


def linear(
    x: Float[Tensor, "batch tokens inner"],
    w: Float[Tensor, "*batched outer inner"],
    b: Float[Tensor, "*batched outer"] | None = None,
) -> Float[Tensor, "batch tokens outer"]:
    """y_i = W x_i + b; with a leading batch axis on W and b each sequence has its own. Equals `F.linear` without."""
    if w.ndim == 2:
        return F.linear(x, w, b)
    if b is None:
        return torch.bmm(x, w.transpose(1, 2))
    return torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))


def per_token(v: Float[Tensor, "*batched width"]) -> Float[Tensor, "*rows width"]:
    """A vector per depth (width) or per sequence (batch width), ready to meet (batch tokens width)."""
    return v if v.ndim == 1 else v.unsqueeze(1)
