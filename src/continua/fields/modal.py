"""Fields whose parameters are laid out once per solve, and not at every depth of it."""

from collections.abc import Callable, Sequence
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
    would pay at every depth; of a measure of heads, so is the sum over the modes of h. Depths that are known beforehand
    (`expect`) share one product too, forwards and backwards. The result holds the parameters as they were when it was
    made, in the graph of autograd: it serves one solve with one backward pass.
    """

    def __init__(self, field: Expansion | ContinuousHeads, change: Callable[[Theta], Theta]) -> None:
        self.field, self.change = field, change
        self.over_z = field.over_z if isinstance(field, ContinuousHeads) else field.basis
        self.values = [*field.structure.read(field.coefficients)]
        self._modes: list[tuple[Tensor, torch.Size]] = []
        self._ready: dict[float, tuple[Tensor, list[Tensor]]] = {}

    def expect(self, depths: Sequence[float]) -> None:
        """Makes the parameters at these depths; what they are made of is freed, since no gradient needs it."""
        psi = torch.stack([modes_at(self.over_z, self.field.depth, z, z, self.values[0]) for z in depths])
        with torch.autocast(psi.device.type, enabled=False):  # weights keep their own precision
            # unbound, and not indexed: the gradient of an index is as large as all depths together
            leaves = [(psi @ C).view(len(depths), *shape).unbind() for C, shape in self._laid_out()]
        each = zip(*leaves, strict=True)
        self._ready = {z: (b, [*values]) for z, b, values in zip(depths, psi.unbind(), each, strict=True)}

    def __call__(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        found = self._ready.get(z) if isinstance(z, float) else None
        if found is None:
            self._modes = self._modes or self._laid_out()
            psi = modes_at(self.over_z, self.field.depth, z, inside, self.values[0])
            with torch.autocast(psi.device.type, enabled=False):
                found = psi, [(psi @ C).view(shape) for C, shape in self._modes]
        psi, values = found
        for i in self.field._masses:
            with torch.autocast(psi.device.type, enabled=False):
                values[i] = self._masses(self.values[i], psi, z, inside)
        return self.field.structure.unflatten(values)

    def _laid_out(self) -> list[tuple[Tensor, torch.Size]]:
        """The changed coefficients of every leaf, flat behind the modes of z, and the shape at one depth."""
        field, modal = self.field, list(self.values)
        with torch.autocast(modal[0].device.type, enabled=False):
            if isinstance(field, ContinuousHeads):
                nodes = field._nodes(modal[0]).theta  # (heads, modes of h)
                for i, spec in enumerate(field.structure.specs):
                    if spec.role is Role.HEAD:  # (modes of h, modes of z, ...) -> (modes of z, heads, ...)
                        C = modal[i]
                        modal[i] = (nodes @ C.flatten(1)).view(len(nodes), *C.shape[1:]).movedim(0, 1)
                for i in field._masses:  # in a basis of their own
                    modal[i] = modal[i].new_zeros(self.over_z.size, 0)
            changed = field.structure.flatten(self.change(field.structure.unflatten(modal)))
        return [(leaf.flatten(1), leaf.shape[1:]) for leaf in changed]

    def _masses(self, C: Tensor, psi: Tensor, z: DepthValue, inside: DepthValue | None) -> Tensor:
        field = self.field
        if isinstance(field, ContinuousHeads):  # in a basis of their own
            return field._masses_of(C, z, inside)
        return torch.softmax(psi @ C, -1)


def modal_weights(field: AbstractField, change: Callable[[Theta], Theta]) -> ModalWeights | None:
    """The field with a linear change of theta made mode by mode; `None` where theta(z) is no sum over modes."""
    if not isinstance(field, Expansion | ContinuousHeads) or field._turning or not field.structure.names:
        return None
    return ModalWeights(field, change)
