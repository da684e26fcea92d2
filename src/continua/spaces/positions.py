"""What a quadrature rule asks of the positions of given samples, checked once for all rules."""

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor


def checked_samples(positions: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Times and mask: absent tokens repeat their row's last present time, or have time 0 in an empty row.

    Raises `ValueError` unless positions are floating, two-dimensional, finite and non-decreasing where
    present, and absent tokens come last. Shapes are open in the signature, as they are checked here.
    """
    seen = _checked_form(positions, present)
    if positions.shape[1] == 0:
        return positions, seen
    last = (seen.sum(dim=1, keepdim=True) - 1).clamp_min(0)
    times = torch.where(seen, positions, torch.where(seen, positions, 0.0).gather(1, last))
    torn = ~seen[:, :-1] & seen[:, 1:]
    if bool(torn.any()):
        row, token = torn.nonzero()[0].tolist()
        cure = "Move the absent tokens to the end of their row."
        reject(f"present[{row}, {token}]", False, "an absent token comes before a present one", cure)
    check_times(positions, seen)
    return times, seen


def check_times(positions: Tensor, present: Tensor | None = None) -> None:
    """Rejects times of present tokens that are not finite, or that decrease along a sequence."""
    heard = torch.ones_like(positions, dtype=torch.bool) if present is None else present
    lost = heard & ~torch.isfinite(positions)
    if bool(lost.any()):
        row, token = lost.nonzero()[0].tolist()
        why, cure = "a present token needs a finite time", "Drop the token, or mark it absent (zero mass)."
        reject(f"positions[{row}, {token}]", positions[row, token].item(), why, cure)
    running = torch.where(heard, positions, -torch.inf).cummax(-1).values
    falls = (heard & (positions < running)).nonzero()
    if falls.numel() > 0:
        row, token = falls[0].tolist()
        why = f"it comes after a token at {running[row, token].item()}, and times may not decrease"
        cure = (
            "Sort the tokens of each sequence by time, with their points: positions.argsort(dim=-1, stable=True); "
            "if these are padding, mark them false in present."
        )
        reject(f"positions[{row}, {token}]", positions[row, token].item(), why, cure)


def _checked_form(positions: Tensor, present: Tensor | None) -> Tensor:
    if not positions.is_floating_point():
        reject("positions", positions.dtype, "it is not a floating dtype", "Use positions.to(torch.float32).")
    if positions.ndim != 2:
        cure = "Use positions[None] for one sequence."
        reject("positions.shape", tuple(positions.shape), "it is not (batch, tokens)", cure)
    if present is None:
        return torch.ones_like(positions, dtype=torch.bool)
    if present.dtype != torch.bool:
        reject("present", present.dtype, "it is not a mask", "Use present.bool().")
    if present.shape != positions.shape:
        cure = f"Give present the shape of positions, {tuple(positions.shape)}."
        reject("present.shape", tuple(present.shape), "it does not fit the positions", cure)
    return present
