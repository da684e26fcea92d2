"""What every optimiser of this room is: a torch `Optimizer` whose groups can be updated one at a time."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch
from torch.optim import Optimizer

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim import foreach
from continua.optim.numbers import check_numbers, loadable
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace

Group: TypeAlias = dict[str, Any]
"""A parameter group of torch: parameters, their names where known, and plain numbers."""
Held: TypeAlias = Mapping[Tensor, dict[str, Any]]
"""What is remembered of each parameter."""


class AbstractOptimiser(Optimizer, abc.ABC):
    """Updates parameters that live in one space.

    What can be scheduled stands in `param_groups` as plain numbers; objects (the space, the block, the retraction) are
    attributes, so that `state_dict` holds tensors and numbers alone. Gradients are not changed.
    """

    space: AbstractParameterSpace

    def __init__(self, params: Any, defaults: dict[str, Any], space: AbstractParameterSpace) -> None:
        expect_space(type(self).__name__, space, self.serves)
        check_numbers(defaults)
        self.space = space
        super().__init__(params, defaults)

    @property
    @abc.abstractmethod
    def serves(self) -> tuple[type, ...]:
        """The kinds of space that it can update parameters in."""

    @property
    @abc.abstractmethod
    def whole(self) -> bool:
        """Whether an entry's update depends on others of its block, so that no rank may hold a shard of it."""

    @abc.abstractmethod
    def advance(self, group: Group, state: Held) -> None:
        """One update of the parameters of one group."""

    @final
    @Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all groups, and the loss where a closure gives it."""
        return stepped(self, closure, self.advance)

    # Torch wraps `step` for its profiler and hooks in the class of the first instance, unless told that it is done.
    step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]

    @final
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, with numbers checked, and parameters against their space and against sharding."""
        check_numbers(param_group)
        super().add_param_group(param_group)
        try:
            self._check_points(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @final
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, for a state whose moments stand along the same axes."""
        super().load_state_dict(loadable(state_dict, self.param_groups))

    @final
    def _check_points(self, group: Group) -> None:
        names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
        for name, parameter in zip(names, group["params"], strict=True):
            if self.whole:
                refuse_shards(name, parameter, type(self).__name__)
            if parameter.ndim < self.space.axes:
                why = f"a point of {self.space} has {self.space.axes} axes"
                reject(name, tuple(parameter.shape), why, "Assign it to an optimiser of another space.")
            if not isinstance(self.space, AbstractFlatSpace):
                self.space.check(name, parameter)

    @final
    def __getstate__(self) -> dict[str, Any]:
        """All attributes but torch's hooks: torch itself would forget the objects on copying."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_") and not callable(v)}


def stepped(optimiser: Optimizer, closure: Callable[[], Any] | None, advance: Callable[[Group, Held], None]) -> Any:
    """One update of every group by `advance`; the loss of the closure, which is differentiated before."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        for group in optimiser.param_groups:
            advance(group, optimiser.state)
    return loss


def expect_space(name: str, space: AbstractParameterSpace, kinds: tuple[type, ...]) -> None:
    """Refuses a space that an optimiser does not serve."""
    if not isinstance(space, kinds):
        served = ", ".join(kind.__name__ for kind in kinds)
        reject("space", space, f"{name} serves {served}", "Choose the optimiser by the space of the parameters.")


def refuse_shards(name: str, parameter: Tensor, optimiser: str) -> None:
    """Refuses a sharded parameter (FSDP2) for an update that needs whole matrices or columns."""
    placements = getattr(parameter, "placements", ())
    if placements:
        cure = (
            "Keep it whole with fully_shard(module, ignored_params=recipe.whole(module)) and average its gradient "
            "over ranks, or use BlockwiseAdamW() with its default block."
        )
        reject(name, placements, f"{optimiser} needs whole parameters, and this one is a DTensor", cure)


def gathered(
    group: Group, state: Held, fresh: Callable[[Tensor], dict[str, Any]]
) -> tuple[list[Tensor], list[Tensor], list[dict[str, Any]]]:
    """Parameters that have a gradient, their gradients, and what is remembered of them, `fresh` at first."""
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if p.grad.is_sparse:
            reject(
                "grad", p.grad.layout, "sparse gradients are not served", "Use dense ones: nn.Embedding(sparse=False)."
            )
        if not state[p]:
            state[p].update(step=torch.zeros((), dtype=torch.float32), **fresh(p))
    return params, [p.grad for p in params], [state[p] for p in params]


def counted(states: Sequence[dict[str, Any]]) -> list[int]:
    """The number of this update for each parameter, from 1 on."""
    steps = [s["step"] for s in states]
    foreach.add_(steps, 1.0)
    return [int(s.item()) for s in steps]
