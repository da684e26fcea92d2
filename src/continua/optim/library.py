"""Shampoo and SOAP of pytorch-optimizer as optimisers of this house (`pip install 'continua[optim]'`)."""

import abc
from typing import Any, final

import torch

from continua.core.extras import extra
from continua.optim.optimiser import AbstractOptimiser, Group, Held, check_numbers
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, SpectralSpace


class AbstractLibraryOptimiser(AbstractOptimiser):
    """An optimiser of pytorch-optimizer that works on the groups and the state of this one."""

    def __init__(self, params: Any, name: str, options: dict[str, Any], space: AbstractParameterSpace) -> None:
        check_numbers(options)
        self.library = (name, options)
        super().__init__(params, dict(self._inner().defaults), space)

    @property
    @abc.abstractmethod
    def interval(self) -> int:
        """Updates between two computations of the roots or eigenbases of the preconditioner."""

    @final
    @property
    def serves(self) -> tuple[type, ...]:
        return (AbstractFlatSpace,)

    @final
    @property
    def whole(self) -> bool:
        return True

    @final
    def advance(self, group: Group, state: Held) -> None:
        inner = getattr(self, "_made", None) or self._inner()
        inner.param_groups, inner.state = [group], state
        inner.step()

    @final
    def _inner(self) -> Any:
        """The library's optimiser; made anew in a copy, as torch's copies forget what is not in their groups."""
        name, options = self.library
        self._made = getattr(extra("pytorch_optimizer", "optim"), name)([torch.nn.Parameter(torch.zeros(1))], **options)
        return self._made


@final
class SOAP(AbstractLibraryOptimiser):
    """Adam in the eigenbasis of Shampoo's preconditioner, one factor an axis (N. Vyas et al., arXiv 2409.11321).

    The first update only measures. `interval` updates lie between two eigenbases; axes longer than `largest` are left
    as they are.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        weight_decay: float = 1e-2,
        interval: int = 10,
        largest: int = 1024,
        space: AbstractParameterSpace = SpectralSpace(),
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        sizes = {"precondition_frequency": interval, "max_precondition_dim": largest}
        super().__init__(params, "SOAP", numbers | sizes, space)

    @property
    def interval(self) -> int:
        return self.defaults["precondition_frequency"]


@final
class Shampoo(AbstractLibraryOptimiser):
    """g multiplied along each axis by (sum G G^T)^{-1/(2 axes)} (V. Gupta et al., arXiv 1802.09568).

    With an `interval` above 1 its preconditioner lags behind, and rates must be smaller: it has been seen to diverge
    with interval 5 at lr 0.1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        interval: int = 1,
        space: AbstractParameterSpace = SpectralSpace(),
    ) -> None:
        numbers = {"lr": lr, "weight_decay": weight_decay, "weight_decouple": True}
        super().__init__(params, "Shampoo", numbers | {"preconditioning_compute_steps": interval}, space)

    @property
    def interval(self) -> int:
        return self.library[1]["preconditioning_compute_steps"]
