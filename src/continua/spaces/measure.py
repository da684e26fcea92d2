"""Masses and positions of a batch of sequences, with what attention derives from them once for a whole solve."""

import dataclasses
from typing import final

import torch

from continua.core.checks import has_shape
from continua.core.errors import reject
from continua.core.shapes import Float, Mass, Positions, Present, Tensor


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
    has_shape((None, None), "Pass (batch, tokens); use positions[None] for one sequence.", positions=positions)
    if present is None:
        return torch.ones_like(positions, dtype=torch.bool)
    if present.dtype != torch.bool:
        reject("present", present.dtype, "it is not a mask", "Use present.bool().")
    has_shape(tuple(positions.shape), "Give present the shape of positions.", present=present)
    return present


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
    """Weights w_i and times t_i of tokens, checked, with their logarithms.

    `mass` is `None` for the counting measure. `log_mass` is `None` where it would change nothing: all present masses
    of a sequence are equal and all tokens are present. Absent tokens have `log_mass = ABSENT`, a finite number whose
    exponential is zero in every dtype (minus infinity would give 0 * inf = nan in the gradient).
    """

    shape: tuple[int, int]
    mass: Mass | None
    positions: Positions | None
    present: Present | None
    """Tokens that move; `None` when all do. Present without mass is a query: it attends and is not attended to."""
    heavy: Present | None
    """Tokens with mass; `None` when all have."""
    log_mass: Mass | None
    log_own: Mass | None
    # Which of torch's kernels may serve is decided by the flags below. They are Python's, found once here: to look at
    # masses and times at every stage would wait for the device each time.
    even: bool
    """All present tokens of a sequence have the same mass: it cancels in the softmax and need not be told."""
    tied: bool
    """Some token with mass has the time of a present one before it: the two see each other, which a mask by index,
    the only causal one that torch fuses, does not know."""
    suffix: bool
    """Tokens without mass, if any, come after all others, and none of them is a query: causality alone hides them."""
    early: bool
    """Some query stands before every token with mass: its causal row is empty, and its softmax would be 0/0."""

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        like: Tensor,
        mass: Mass | None = None,
        positions: Positions | None = None,
        own: Mass | None = None,
        present: Present | None = None,
    ) -> "Measure":
        """Checks and prepares; synchronises with the device, hence once per solve and never per stage."""
        size = (shape[0], shape[1])
        has_shape(size, f"Pass one number a token: shape {size}.", mass=mass, positions=positions, own=own)
        check_alike(like, "points", mass=mass, positions=positions, own=own)
        if mass is not None:
            _check_mass("mass", mass)
        if own is not None:
            _check_mass("own", own)
            _check_own(own, mass)
        heavy = _heavy(mass)
        present = heavy if present is None else _checked_present(present, heavy, size)
        if positions is not None:
            check_times(positions, present)
        querying = heavy is not None and _has_queries(present, heavy)
        if querying and own is not None:
            cure = "Use a rule without own masses, such as BackwardRectangle."
            reject("own", "given", "queries have no mass in their own row", cure)
        even = mass is None or _even(mass, heavy)
        needed = heavy is not None or not even or own is not None
        log_mass = None if mass is None or not needed else _log(mass)
        return cls(
            shape=size,
            mass=mass,
            positions=positions,
            present=present,
            heavy=heavy,
            log_mass=log_mass,
            log_own=None if own is None else _log(own),
            even=even and own is None,
            tied=positions is not None and _has_ties(positions, present, heavy),
            suffix=heavy is None or (not querying and bool((heavy[:, 1:] <= heavy[:, :-1]).all())),
            early=querying and _has_early_queries(present, heavy, positions),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a velocity on this measure depends on; on the times, if they turn queries and keys (`Rotary`)."""
        return tuple(x for x in (self.log_mass, self.log_own, self.positions) if x is not None)

    def weights(self) -> Float[Tensor, "batch tokens"] | None:
        """Masses scaled to sum to one in each sequence, without a graph; `None` where all tokens count alike."""
        if self.mass is None or (self.even and self.heavy is None):
            return None
        mass = self.mass.detach()
        return mass / mass.sum(-1, keepdim=True)


ABSENT = -1e9
"""Stands for log 0."""


def _log(mass: Tensor) -> Tensor:
    """log w, and `ABSENT` at w = 0; the inner `where` keeps the gradient there zero instead of nan."""
    heavy = mass > 0
    return torch.where(heavy, torch.log(torch.where(heavy, mass, 1.0)), ABSENT)


def check_alike(like: Tensor, what: str, **tensors: Tensor | None) -> None:
    """Rejects tensors that have another dtype or device than `like`, which the message calls `what`."""
    for name, x in tensors.items():
        if x is not None and (x.dtype != like.dtype or x.device != like.device):
            why = f"{what} has {like.dtype} on {like.device}"
            reject(name, f"{x.dtype} on {x.device}", why, f"Convert with {name}.to({what}).")


def _check_mass(name: str, mass: Tensor) -> None:
    sound = torch.isfinite(mass) & (mass >= 0)
    if not bool(sound.all()):
        sequence, token = (~sound).nonzero()[0].tolist()
        cure = "Pass finite masses >= 0; zero means that the token is absent."
        reject(f"{name}[{sequence}, {token}]", mass[sequence, token].item(), "this is no mass", cure)
    total = mass.sum(-1)
    if not bool(torch.isfinite(total).all()):
        sequence = int((~torch.isfinite(total)).nonzero()[0])
        cure = "Divide the masses of a sequence by their largest: only their ratios matter to a mean."
        reject(f"{name}[{sequence}]", mass[sequence].detach(), f"their sum overflows in {mass.dtype}", cure)
    empty = total == 0
    if bool(empty.any()):
        cure = "Give at least one token a positive mass, or leave the sequence out of the batch."
        sequence = int(empty.nonzero()[0])
        reject(f"{name}[{sequence}]", mass[sequence].detach(), "the sequence has no mass at all", cure)


def _check_own(own: Tensor, mass: Tensor | None) -> None:
    heavy = torch.ones_like(own, dtype=torch.bool) if mass is None else mass > 0
    torn = (own > 0) != heavy
    if bool(torn.any()):
        sequence, token = torn.nonzero()[0].tolist()
        weight = 1.0 if mass is None else mass[sequence, token].item()
        why = f"its mass is {weight}, and a token is present in its own row exactly where it is in later ones"
        cure = "Give own and mass their zeros at the same tokens."
        reject(f"own[{sequence}, {token}]", own[sequence, token].item(), why, cure)


def _heavy(mass: Tensor | None) -> Tensor | None:
    if mass is None:
        return None
    heavy = mass.detach() > 0
    return None if bool(heavy.all()) else heavy


def _checked_present(present: Tensor, heavy: Tensor | None, size: tuple[int, int]) -> Tensor | None:
    if tuple(present.shape) != size or present.dtype != torch.bool:
        cure = f"Pass a mask of shape {size}; true means present."
        reject("present", f"{tuple(present.shape)}, {present.dtype}", "this is no mask of the tokens", cure)
    if bool((~present if heavy is None else ~present & heavy).any()):
        reject("present", present, "a token with mass is present", "Give absent tokens zero mass.")
    return None if bool(present.all()) else present


def _even(mass: Tensor, heavy: Tensor | None) -> bool:
    if mass.requires_grad:  # equal by chance: the gradient must pass all the same
        return False
    largest = mass.max(-1, keepdim=True).values
    same = mass == largest
    return bool((same if heavy is None else same | ~heavy).all())


def _has_queries(present: Tensor | None, heavy: Tensor) -> bool:
    return present is None or bool((present & ~heavy).any())


def _has_ties(positions: Tensor, present: Tensor | None, heavy: Tensor | None) -> bool:
    latest = (positions if present is None else torch.where(present, positions, -torch.inf)).cummax(-1).values
    same = positions[:, 1:] == latest[:, :-1]
    return bool((same if heavy is None else same & heavy[:, 1:]).any())


def _has_early_queries(present: Tensor | None, heavy: Tensor | None, positions: Tensor | None) -> bool:
    assert heavy is not None
    if positions is None:
        positions = torch.arange(heavy.shape[1], dtype=torch.float64, device=heavy.device).expand(heavy.shape)
    first = torch.where(heavy, positions, torch.inf).amin(-1, keepdim=True)
    asks = ~heavy if present is None else present & ~heavy
    return bool((asks & (positions < first)).any())
