"""What a weight meets in a forward and a backward pass: inputs and cotangents of the linear maps that it makes."""

from collections.abc import Iterable
from typing import Any, final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from continua.core.shapes import Tensor


@final
class Seen:
    """The linear maps of one weight: its matrix as a view of the parameter, and sums over all rows that it met."""

    def __init__(self, parameter: Tensor, matrix: Tensor) -> None:
        offset = int(matrix.storage_offset()) - int(parameter.storage_offset())
        self.view = (tuple(matrix.shape), tuple(matrix.stride()), offset)
        outputs, inputs = matrix.shape
        self.rows = 0
        self.xx = matrix.new_zeros(inputs, inputs)
        self.yy = matrix.new_zeros(outputs, outputs)

    def matrix(self, like: Tensor) -> Tensor:
        """A tensor of the parameter's shape, seen as the matrix of the linear map: a view of it."""
        size, stride, offset = self.view
        return like.as_strided(size, stride, int(like.storage_offset()) + offset)

    def meet(self, x: Tensor, y: Tensor) -> None:
        """Adds a forward pass, and later its cotangents."""
        x = x.detach().reshape(-1, x.shape[-1])
        y.register_hook(self._pulled(x))

    def _pulled(self, x: Tensor) -> Any:
        def hook(cotangent: Tensor) -> None:
            rows = cotangent.detach().reshape(-1, cotangent.shape[-1])
            self.rows += rows.shape[0]
            self.xx.addmm_(x.mT, x)
            self.yy.addmm_(rows.mT, rows)

        return hook


@final
class Watch(TorchFunctionMode):
    """While active, notes every `F.linear` whose weight is one of `parameters`, or a view of a whole one."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self.parameters = {(p.untyped_storage().data_ptr(), p.storage_offset(), p.numel()): p for p in parameters}
        self.seen: dict[Tensor, Seen] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear and result.requires_grad:
            given = dict(zip(("input", "weight"), args, strict=False)) | (kwargs or {})
            x, matrix = given["input"], given["weight"]
            key = (matrix.untyped_storage().data_ptr(), matrix.storage_offset(), matrix.numel())
            parameter = self.parameters.get(key)
            if parameter is not None and matrix.ndim == 2:
                with torch._C.DisableTorchFunction():
                    seen = self.seen.setdefault(parameter, Seen(parameter, matrix.detach()))
                    seen.meet(x, result)
        return result
