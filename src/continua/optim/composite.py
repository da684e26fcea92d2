"""Several optimisers as one."""

from collections.abc import Callable, Mapping
from typing import Any, final

from torch.optim import Optimizer

from continua.core.errors import reject
from continua.optim.numbers import loadable
from continua.optim.optimiser import AbstractOptimiser, Group, Held, stepped


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
        """One update of all members, and the loss where a closure gives it."""
        return stepped(self, closure, self._advance)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; `member` says who updates the group."""
        member = self.members.get(param_group.get("member", ""))
        if member is None:
            cure = f'Add "member", one of {sorted(self.members)}.'
            reject("param_group", sorted(param_group), "it does not say which member updates it", cure)
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
        super().load_state_dict(loadable(state_dict, self.param_groups))
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        """The members too: torch itself would forget them on copying."""
        return {**super().__getstate__(), "members": self.members}

    def _share(self) -> None:
        """Lets members see the groups and the state that are updated: a member may be asked for more than updates."""
        for name, member in self.members.items():
            member.param_groups = [group for group in self.param_groups if group["member"] == name]
            member.state = self.state

    def _advance(self, group: Group, state: Held) -> None:
        self.members[group["member"]].advance(group, state)
