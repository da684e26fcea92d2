"""Every optimiser with a space it serves: joining `all_optimisers` means facing the shared bench."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from continua.optim import (
    KFAC,
    SOAP,
    BlockwiseAdamW,
    DualAveraging,
    Frobenius,
    Gaussian,
    MirrorAdam,
    ModalAdamW,
    RiemannianAdam,
    Shampoo,
    cayley_retraction,
)
from continua.spaces import AbstractParameterSpace, FlatSpace, SimplexSpace, SpectralSpace, StiefelSpace


@dataclasses.dataclass(frozen=True)
class OptimiserCase:
    """How to build it, where its parameter lives, and the dtypes that it serves."""

    make: Callable[[Any], Any]
    space: AbstractParameterSpace
    shape: tuple[int, ...]
    is_complex: bool = False

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float64] + ([torch.complex128] if self.is_complex else [])

    def point(self, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """A point of the space; near the identity on the Stiefel manifold."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(self.shape, generator=generator, dtype=torch.promote_types(dtype, torch.float64))
        if isinstance(self.space, StiefelSpace):
            eye = torch.eye(*self.shape[-2:], dtype=noise.dtype).expand(self.shape).clone()
            if self.space.paired:
                eye[..., 1, :, :] = 0.0
            return self.space.project(eye + 0.3 * noise).to(dtype)
        return noise.to(dtype)

    def read(self, p: torch.Tensor) -> torch.Tensor:
        """What a target is a function of: masses, where the parameters are their logits."""
        return self.space.masses(p) if isinstance(self.space, SimplexSpace) else p

    def before(self, optimiser: Any, p: nn.Parameter) -> None:
        """What it needs to be told before an update."""
        if isinstance(optimiser, KFAC):
            eye = torch.eye(p.shape[-1], dtype=p.dtype)
            optimiser.observe(lambda: F.linear(eye, p), Gaussian(), generator=torch.Generator().manual_seed(0))


MATRIX = FlatSpace(2)
all_optimisers: dict[str, OptimiserCase] = {
    "BlockwiseAdamW": OptimiserCase(
        lambda p: BlockwiseAdamW(p, lr=3e-2, weight_decay=0.0), FlatSpace(0), (4, 3), is_complex=True
    ),
    "BlockwiseAdamW(Frobenius)": OptimiserCase(
        lambda p: BlockwiseAdamW(p, lr=1e-1, weight_decay=0.0, block=Frobenius(), space=MATRIX),
        MATRIX,
        (2, 4, 3),
        is_complex=True,
    ),
    "RiemannianAdam": OptimiserCase(lambda p: RiemannianAdam(p, lr=3e-2), StiefelSpace(), (4, 3), is_complex=True),
    "RiemannianAdam(Cayley)": OptimiserCase(
        lambda p: RiemannianAdam(p, lr=3e-2, retraction=cayley_retraction), StiefelSpace(), (2, 4, 3), is_complex=True
    ),
    "RiemannianAdam(pair)": OptimiserCase(
        lambda p: RiemannianAdam(p, lr=3e-2, space=StiefelSpace(paired=True)), StiefelSpace(paired=True), (2, 4, 4)
    ),
    "MirrorAdam": OptimiserCase(lambda p: MirrorAdam(p, lr=2e-2), SimplexSpace(), (2, 5)),
    "MirrorAdam(columns)": OptimiserCase(
        lambda p: MirrorAdam(p, lr=2e-2, space=SimplexSpace(-2)), SimplexSpace(-2), (5, 2)
    ),
    "DualAveraging": OptimiserCase(lambda p: DualAveraging(p, lr=3.0, power=0.0), SimplexSpace(), (2, 5)),
    "ModalAdamW": OptimiserCase(
        lambda p: ModalAdamW(p, lr=3e-2, weight_decay=0.0, interval=4), SpectralSpace(), (3, 2, 2, 2)
    ),
    "ModalAdamW(second, points)": OptimiserCase(
        lambda p: ModalAdamW(p, lr=3e-2, weight_decay=0.0, interval=4, axis=-3), SpectralSpace(), (2, 2, 3, 2, 2)
    ),
    "SOAP": OptimiserCase(lambda p: SOAP(p, lr=3e-2, weight_decay=0.0, space=MATRIX), MATRIX, (4, 3)),
    "Shampoo": OptimiserCase(lambda p: Shampoo(p, lr=0.5, space=MATRIX), MATRIX, (4, 3)),
    "KFAC": OptimiserCase(lambda p: KFAC(p, lr=0.2, space=MATRIX), MATRIX, (4, 3)),
}
