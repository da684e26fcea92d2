"""Fields whose weights are laid out once per solve, and not at every depth of it."""

from collections.abc import Callable
from typing import final

import torch

from continua.core.shapes import DepthValue, Tensor
from continua.fields.expansion import Expansion, modes_at
from continua.fields.field import AbstractField
from continua.fields.heads import ContinuousHeads
from continua.operators import Role, Theta


@final
class ModalWeights:
    """theta(z) = change( sum_b psi_b(z/Z) C_b ) as sum_b psi_b(z/Z) change(C_b), for a linear `change` of theta.

    What a linear change costs is then paid once per mode, in one product for all of them, where a solve of many steps
    would pay at every depth; of a measure of heads, so is the sum over the modes of h. The result holds the parameters
    as they were when it was made, in the graph of autograd: it serves one solve with one backward pass.
    """

    def __init__(self, field: Expansion | ContinuousHeads, change: Callable[[Theta], Theta]) -> None:
        self.field = field
        over_heads = isinstance(field, ContinuousHeads)
        self.over_z = field.over_z if over_heads else field.basis
        self.values = [*field.structure.read(field.coefficients)]
        modal = list(self.values)
        if over_heads:
            nodes = field._nodes(modal[0]).theta  # (heads, modes of h)
            for i, spec in enumerate(field.structure.specs):
                if spec.role is Role.HEAD:  # (modes of h, modes of z, ...) -> (modes of z, heads, ...)
                    C = modal[i]
                    modal[i] = (nodes @ C.flatten(1)).view(len(nodes), *C.shape[1:]).movedim(0, 1)
        changed = field.structure.flatten(change(field.structure.unflatten(modal)))
        self.modal = [(leaf.flatten(1), leaf.shape[1:]) for leaf in changed]

    def __call__(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        field, masses = self.field, self.field._masses
        psi = modes_at(self.over_z, field.depth, z, inside, self.values[0])
        with torch.autocast(psi.device.type, enabled=False):  # weights keep their own precision
            values = [C if i in masses else (psi @ C).view(shape) for i, (C, shape) in enumerate(self.modal)]
            for i in masses:
                values[i] = self._masses(self.values[i], psi, z, inside)
            return field.structure.unflatten(values)

    def _masses(self, C: Tensor, psi: Tensor, z: DepthValue, inside: DepthValue | None) -> Tensor:
        field = self.field
        if isinstance(field, ContinuousHeads):  # in a basis of their own
            return field._masses_of(C, field._nodes(C), z, inside)
        return torch.softmax(psi @ C, -1)


def modal_weights(field: AbstractField, change: Callable[[Theta], Theta]) -> ModalWeights | None:
    """The field with a linear change of theta made mode by mode; `None` where theta(z) is no sum over modes."""
    if not isinstance(field, Expansion | ContinuousHeads) or field._turning or not field.structure.names:
        return None
    return ModalWeights(field, change)
