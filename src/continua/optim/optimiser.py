"""What every optimiser of this room is: a torch `Optimizer` whose groups can be updated one at a time."""

import abc
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch.optim import Optimizer

from continua.core.checks import at_least, fraction, not_negative, positive
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace

Group: TypeAlias = dict[str, Any]
"""A parameter group of torch: parameters, their names where known, and plain numbers."""
Held: TypeAlias = Mapping[Tensor, dict[str, Any]]
"""What is remembered of each parameter."""

# torch's operations on lists of tensors, one call for all; not declared public, though torch.optim stands on them
foreach: Any = SimpleNamespace(**{name: getattr(torch, f"_foreach_{name}") for name in (
    "add_", "addcdiv_", "addcmul_", "copy_", "lerp_", "mul_", "norm", "sqrt",
)})  # fmt: skip


class AbstractOptimiser(Optimizer, abc.ABC):
    """Updates parameters that live in one space.

    What can be scheduled stands in `param_groups` as plain numbers; objects (the space, the block, the retraction) are
    attributes, so that `state_dict` holds tensors and numbers alone. Gradients are not changed.
    """

    space: AbstractParameterSpace
    serves: ClassVar[tuple[type, ...]]
    """The kinds of space that it can update parameters in."""
    whole: bool = True
    """Whether an entry's update depends on others of its block, so that no rank may hold a shard of it."""

    def __init__(self, params: Any, space: AbstractParameterSpace, **defaults: Any) -> None:
        if not isinstance(space, self.serves):
            why = f"{type(self).__name__} serves {', '.join(kind.__name__ for kind in self.serves)}"
            reject("space", space, why, "Choose the optimiser by the space of the parameters.")
        self.space = space
        super().__init__(params, defaults)

    @abc.abstractmethod
    def advance(self, group: Group, state: Held) -> None:
        """One update of the parameters of one group."""

    @final
    @Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all groups, and the loss where a closure gives it."""
        return update_groups(self, closure, self.advance)

    # Torch wraps `step` for its profiler and hooks in the class of the first instance, unless told that it is done.
    step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]

    @final
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, with numbers checked, and parameters against their space and against sharding."""
        super().add_param_group(param_group)
        try:
            check_numbers(self.param_groups[-1])
            self._check_points(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()  # torch has added it already; a group that is refused must not stay
            raise

    @final
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, for a state whose moments stand along the same axes."""
        check_axes(state_dict, self.param_groups)
        super().load_state_dict(state_dict)

    @final
    def _check_points(self, group: Group) -> None:
        names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
        for name, parameter in zip(names, group["params"], strict=True):
            if self.whole and (placements := getattr(parameter, "placements", ())):  # it is sharded (FSDP2)
                cure = (
                    "Keep it whole with fully_shard(module, ignored_params=recipe.whole(module)) and average its "
                    "gradient over ranks, or use BlockwiseAdamW() with its default block."
                )
                why = f"{type(self).__name__} needs whole parameters, and this one is a DTensor"
                reject(name, placements, why, cure)
            if parameter.ndim < self.space.axes:
                why = f"a point of {self.space} has {self.space.axes} axes"
                reject(name, tuple(parameter.shape), why, "Assign it to an optimiser of another space.")
            if not isinstance(self.space, AbstractFlatSpace):
                self.space.check(name, parameter)

    @final
    def __getstate__(self) -> dict[str, Any]:
        """All attributes but torch's hooks and the step that its schedules wrap: it would forget the objects itself."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_") and k != "step"}


@final
class Composite(Optimizer):
    """One torch optimiser whose groups are those of its members, each updated by the member it belongs to.

    Schedulers see all groups, `state_dict` has torch's own form, and a parameter belongs to one member. What every
    member has, such as `betas`, is among the `defaults`, where some schedulers look, with the value of the first.
    """

    def __init__(self, members: Mapping[str, AbstractOptimiser]) -> None:
        if not members:
            reject("members", members, "there is nothing to update", "Pass at least one optimiser.")
        self.members = dict(members)
        for name, member in self.members.items():
            for group in member.param_groups:
                group["member"] = name
        first, *others = (member.defaults for member in self.members.values())
        common = {name: value for name, value in first.items() if all(name in other for other in others)}
        super().__init__([group for member in self.members.values() for group in member.param_groups], common)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return update_groups(self, closure, lambda group, state: self.members[group["member"]].advance(group, state))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; `member` says who updates the group."""
        member = self.members.get(param_group.get("member", ""))
        if member is None:
            cure = f'Add "member", one of {sorted(self.members)}.'
            reject("param_group", sorted(param_group), "it does not say which member updates it", cure)
        # while it is built, a composite is handed the very groups that its members hold
        new = not any(group is param_group for group in member.param_groups)
        if new:
            member.add_param_group(param_group)
        try:
            super().add_param_group(param_group)
        except ValueError:
            if new:
                member.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, for a state of the same members and, where both know their names, the same parameters."""
        for key in ("member", "param_names"):
            saved, own = ([g.get(key) for g in groups] for groups in (state_dict["param_groups"], self.param_groups))
            if saved != own:
                reject("state_dict", saved, f"the optimiser has {own}", "Build it by the recipe that saved the state.")
        check_axes(state_dict, self.param_groups)
        super().load_state_dict(state_dict)
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        """The members too: torch itself would forget them on copying."""
        return {**super().__getstate__(), "members": self.members}

    def _share(self) -> None:
        """Lets members see the groups and the state that are updated: a member may be asked for more than updates.

        Torch replaces both, groups and state, when it loads: hence not once for all.
        """
        for name, member in self.members.items():
            member.param_groups = [group for group in self.param_groups if group["member"] == name]
            member.state = self.state


def update_groups(
    optimiser: Optimizer, closure: Callable[[], Any] | None, advance: Callable[[Group, Held], None]
) -> Any:
    """One update of every group by `advance`; the loss of the closure, which is differentiated before."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        for group in optimiser.param_groups:
            advance(group, optimiser.state)
    return loss


def collect(
    group: Group, state: Held, fresh: Callable[[Tensor], dict[str, Any]]
) -> tuple[list[Tensor], list[Tensor], list[dict[str, Any]], list[int]]:
    """Parameters with a gradient, the gradients, what is remembered (`fresh` at first), and this update's number."""
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if p.grad.is_sparse:
            cure = "Use dense ones: nn.Embedding(sparse=False)."
            reject("grad", p.grad.layout, "sparse gradients are not served", cure)
        if not state[p]:
            # a tensor, as in torch.optim: then `load_state_dict` keeps its dtype, whatever the parameter's is
            state[p].update(step=torch.zeros((), dtype=torch.float32), **fresh(p))
    steps = [state[p]["step"] for p in params]
    if steps:
        foreach.add_(steps, 1.0)
    return params, [p.grad for p in params], [state[p] for p in params], [int(step.item()) for step in steps]


def check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuses numbers that no update can be made with; names that are not known here are left alone."""
    known = {name: numbers[name] for name in ("lr", "eps", "weight_decay") if name in numbers}
    not_negative(**known)
    if "betas" in numbers:
        check_betas(numbers["betas"])
    at_least(1, interval=numbers.get("interval"))
    if numbers.get("axis", -4) not in (-4, -3):
        why = "the modes of a spectral weight stand before its two axes of channels"
        reject("axis", numbers["axis"], why, "Pass -4 or -3.")
    positive(damping=numbers.get("damping"))
    fraction(all=False, forget=numbers.get("forget"), power=numbers.get("power"))


def check_betas(betas: tuple[float, float]) -> None:
    """Refuses rates of forgetting outside [0, 1)."""
    if len(betas) != 2:
        reject("betas", betas, "there is one for each of two moments", "Pass betas=(0.9, 0.999).")
    named: dict[str, Any] = {f"betas[{i}]": beta for i, beta in enumerate(betas)}
    fraction(all=False, **named)


def check_axes(state_dict: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a state whose moments are turned along another axis of modes: their shapes alone would not tell."""
    for place, (theirs, ours) in enumerate(zip(state_dict["param_groups"], own, strict=False)):  # torch counts them
        if theirs.get("axis") != ours.get("axis"):
            why = f"the optimiser turns axis {ours.get('axis')}, and moments of one axis mean nothing along another"
            cure = "Load it into an optimiser with the axis that it was saved with."
            reject(f"state_dict['param_groups'][{place}]['axis']", theirs.get("axis"), why, cure)
