"""How much memory an update takes, told by the tensors that it makes and not by the process, which also holds torch."""

from typing import Any, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from continua.control import Objective
from continua.core.batch import Batch
from continua.core.seeds import generator_of
from continua.core.shapes import Tensor
from continua.model import ContinuousTransformer


@final
class PeakMemory(TorchDispatchMode):
    """While active, counts the bytes of all tensors made since that are still alive; `peak` is the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._total = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in known:
                self._total += storage.nbytes()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if self._total > 1.01 * self.peak:  # who is still alive is asked only where it may matter, by one per cent
            self._alive = {place: held for place, held in self._alive.items() if not held[0].expired()}
            self._total = sum(size for _, size in self._alive.values())
            self.peak = max(self.peak, self._total)
        return made


def update_memory(model: ContinuousTransformer, objective: Objective, batch: Batch) -> int:
    """Bytes at the peak of one forward and backward pass, above the model itself; its gradients are not kept."""
    with PeakMemory() as counted:
        total = objective(model, batch, generator_of(0)).total
        torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return counted.peak
