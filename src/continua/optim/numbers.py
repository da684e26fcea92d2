"""The numbers of a parameter group, and what each may be."""

from collections.abc import Mapping, Sequence
from typing import Any

from continua.core.errors import reject

_NOT_NEGATIVE = {
    "lr": "a rate is not negative",
    "eps": "it keeps a divisor away from zero",
    "weight_decay": "decay pulls towards zero",
}


def check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuses numbers that no update can be made with; names that are not known here are left alone."""
    for name, why in _NOT_NEGATIVE.items():
        if numbers.get(name) is not None and not numbers[name] >= 0:
            reject(name, numbers[name], why, f"Pass {name} >= 0.")
    if "betas" in numbers:
        check_betas(numbers["betas"])
    interval = numbers.get("interval", 1)
    if not (isinstance(interval, int) and interval >= 1):
        reject("interval", interval, "it counts updates between two bases", "Pass a whole number from 1 on.")
    if numbers.get("axis", -4) not in (-4, -3):
        why = "the modes of a spectral weight stand before its two axes of channels"
        reject("axis", numbers["axis"], why, "Pass -4 or -3.")
    if "damping" in numbers and not numbers["damping"] > 0:
        reject("damping", numbers["damping"], "without it a factor may have no inverse", "Pass damping > 0.")
    if "forget" in numbers and not 0.0 <= numbers["forget"] < 1.0:
        reject("forget", numbers["forget"], "it is the share that is kept", "Pass 0 <= forget < 1.")
    if "power" in numbers and not 0.0 <= numbers["power"] < 1.0:
        reject("power", numbers["power"], "rates fall, but their sum must not converge", "Pass 0 <= power < 1.")


def check_betas(betas: tuple[float, float]) -> None:
    """Refuses rates of forgetting outside [0, 1)."""
    if len(betas) != 2:
        reject("betas", betas, "there is one for each of two moments", "Pass betas=(0.9, 0.999).")
    for name, value in zip(("betas[0]", "betas[1]"), betas, strict=True):
        if not 0.0 <= value < 1.0:
            reject(name, value, "a rate of forgetting lies in [0, 1)", "Pass betas=(0.9, 0.999).")


def loadable(state_dict: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A saved state with the numbers that its groups lack, as states of earlier versions do.

    Before there was a choice, modes were turned along the first axis; a missing interval is that of the own group. A
    state whose moments are turned along another axis is refused: their shapes alone would not tell.
    """
    saved = list[dict[str, Any]]()
    for place, theirs in enumerate(state_dict["param_groups"]):
        ours = own[place] if place < len(own) else {}  # torch counts the groups
        missing = {"axis": -4, "interval": ours.get("interval")}
        group = {**{name: value for name, value in missing.items() if name in ours}, **theirs}
        if group.get("axis") != ours.get("axis"):
            why = f"the optimiser turns axis {ours.get('axis')}, and moments of one axis mean nothing along another"
            cure = "Load it into an optimiser with the axis that it was saved with."
            reject(f"state_dict['param_groups'][{place}]['axis']", group.get("axis"), why, cure)
        saved.append(group)
    return {**state_dict, "param_groups": saved}
