"""Masses and positions of a batch of sequences, with what attention derives from them once for a whole solve."""

import dataclasses
from typing import final

import torch

from continua.core.checks import has_shape, holds, is_traced, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Float, Mass, Positions, Present, Tensor


def checked_samples(times: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Times and mask: absent tokens repeat their row's last present time, or have time 0 in an empty row.

    Raises `ValueError` unless times are floating, two-dimensional, finite and non-decreasing where
    present, and absent tokens come last. Shapes are open in the signature, as they are checked here.
    """
    if not times.is_floating_point():
        reject("times", times.dtype, "it is not a floating dtype", "Use times.to(torch.float32).")
    has_shape((None, None), "Pass (batch, tokens); use times[None] for one sequence.", times=times)
    if present is not None and present.dtype != torch.bool:
        reject("present", present.dtype, "it is not a mask", "Use present.bool().")
    has_shape(tuple(times.shape), "Give present the shape of times.", present=present)
    seen = torch.ones_like(times, dtype=torch.bool) if present is None else present
    if times.shape[1] == 0:
        return times, seen
    last = (seen.sum(dim=1, keepdim=True) - 1).clamp_min(0)
    filled = torch.where(seen, times, torch.where(seen, times, 0.0).gather(1, last))
    cure = "Move the absent tokens to the end of their row; true means present, so pass ~mask of a padding mask."
    refuse_where(~seen[:, :-1] & seen[:, 1:], "an absent token comes before a present one", cure, present=seen)
    check_times("times", times, seen)
    return filled, seen


def check_times(name: str, times: Tensor, present: Tensor) -> None:
    """Rejects times, an argument of this name, that are not finite or decrease among the present tokens of a row."""
    absent = "give it zero mass" if name == "positions" else "mark it false in present"
    why, cure = "a present token needs a finite time", f"Drop the token, or {absent}."
    refuse_where(present & ~torch.isfinite(times), why, cure, **{name: times})
    if is_traced():
        return
    running = torch.where(present, times, -torch.inf).cummax(-1).values
    falls = (present & (times < running)).nonzero()
    if falls.numel() > 0:
        row, token = falls[0].tolist()
        why = f"it comes after a token at {running[row, token].item()}, and times may not decrease"
        cure = f"Sort each sequence by time: {name}.argsort(dim=-1, stable=True); if this is padding, {absent}."
        reject(f"{name}[{row}, {token}]", times[row, token].item(), why, cure)


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
    uniform: bool
    """All tokens with mass have the same and no own masses: it cancels in the softmax and need not be told."""
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
        has_shape(size, f"Pass one number per token: shape {size}.", mass=mass, positions=positions, own=own)
        check_alike(like, "points", mass=mass, positions=positions, own=own)
        if mass is not None:
            _check_mass("mass", mass)
        everyone = torch.ones(size, dtype=torch.bool, device=like.device)
        weighty = everyone if mass is None else mass.detach() > 0
        if own is not None:
            _check_mass("own", own)
            why = "a token is present in its own row exactly where it has mass in later ones"
            refuse_where((own > 0) != weighty, why, "Give own and mass their zeros at the same tokens.", own=own)
        heavy = None if mass is None or holds(weighty.all(), unseen=False) else weighty
        present = heavy if present is None else _checked_present(present, weighty)
        shown = everyone if present is None else present
        if positions is not None:
            check_times("positions", positions, shown)
        queries = shown & ~weighty
        querying = heavy is not None and present is not heavy and holds(queries.any(), unseen=True)
        if querying and own is not None:
            cure = "Use a rule without own masses, such as BackwardRectangle."
            reject("own", "given", "queries have no mass in their own row", cure)
        uniform = mass is None or _is_uniform(mass, weighty)
        needed = heavy is not None or not uniform or own is not None
        log_mass = None if mass is None or not needed else _log(mass)
        return cls(
            shape=size,
            mass=mass,
            positions=positions,
            present=present,
            heavy=heavy,
            log_mass=log_mass,
            log_own=None if own is None else _log(own),
            uniform=uniform and own is None,
            tied=positions is not None and _has_ties(positions, shown, weighty),
            suffix=heavy is None or (not querying and holds((heavy[:, 1:] <= heavy[:, :-1]).all(), unseen=False)),
            early=querying and _is_early(queries, weighty, positions),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a velocity on this measure depends on; on the times, if they turn queries and keys (`Rotary`)."""
        return tuple(x for x in (self.log_mass, self.log_own, self.positions) if x is not None)

    def times(self, like: Tensor) -> Positions:
        """t_i; without positions the index, in the dtype and on the device of `like`."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.shape[1], dtype=like.dtype, device=like.device).expand(self.shape)

    def weights(self) -> Float[Tensor, "batch tokens"] | None:
        """Masses scaled to sum to one in each sequence, without a graph; `None` where all tokens count alike."""
        if self.mass is None or (self.uniform and self.heavy is None):
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
    cure = "Pass finite masses >= 0; zero means that the token is absent."
    refuse_where(~(torch.isfinite(mass) & (mass >= 0)), "this is no mass", cure, **{name: mass})
    total = mass.sum(-1)
    cure = "Divide the masses of a sequence by their largest: only their ratios matter to a mean."
    refuse_where(~torch.isfinite(total), f"their sum overflows in {mass.dtype}", cure, **{name: mass})
    cure = "Give at least one token a positive mass, or leave the sequence out of the batch."
    refuse_where(total == 0, "the sequence has no mass at all", cure, **{name: mass})


def _checked_present(present: Tensor, weighty: Tensor) -> Tensor | None:
    if present.shape != weighty.shape or present.dtype != torch.bool:
        cure = f"Pass a mask of shape {tuple(weighty.shape)}; true means present."
        reject("present", f"{tuple(present.shape)}, {present.dtype}", "this is no mask of the tokens", cure)
    cure = "Give absent tokens zero mass."
    refuse_where(~present & weighty, "a token with mass is present", cure, present=present)
    return None if holds(present.all(), unseen=False) else present


def _is_uniform(mass: Tensor, weighty: Tensor) -> bool:
    if mass.requires_grad:  # equal by chance: the gradient must pass all the same
        return False
    return holds(((mass == mass.max(-1, keepdim=True).values) | ~weighty).all(), unseen=False)


def _has_ties(positions: Tensor, shown: Tensor, weighty: Tensor) -> bool:
    latest = torch.where(shown, positions, -torch.inf).cummax(-1).values
    return holds(((positions[:, 1:] == latest[:, :-1]) & weighty[:, 1:]).any(), unseen=True)


def _is_early(queries: Tensor, weighty: Tensor, positions: Tensor | None) -> bool:
    if positions is None:
        positions = torch.arange(queries.shape[1], dtype=torch.float64, device=queries.device).expand(queries.shape)
    first = torch.where(weighty, positions, torch.inf).amin(-1, keepdim=True)
    return holds((queries & (positions < first)).any(), unseen=True)
