"""Randomness that is drawn once and can be drawn again."""

import hashlib

import torch


def fresh_seed(generator: torch.Generator | None = None) -> int:
    """One seed from `generator`, or from torch's global generator so that `torch.manual_seed` governs it."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (1,), generator=generator, device=device).item())


def generator_of(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that starts at `seed`."""
    return torch.Generator(device=device).manual_seed(seed)


def branch_seed(seed: int, place: int) -> int:
    """The seed of one of several places below `seed`.

    A hash, since sums collide: below `seed + 1`, place 0 would be place 1 below `seed`.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{place}".encode(), digest_size=8).digest(), "big") >> 2
