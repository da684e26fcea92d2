"""What K-FAC knows of a loss and of a weight: curvature in the outputs, and what the linear maps of a weight meet."""

import abc
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from continua.core.shapes import Float, Int, Tensor


class AbstractLikelihood(abc.ABC):
    """A loss that is the negative logarithm of a probability, with its Hessian H in the outputs."""

    @abc.abstractmethod
    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        """A random cotangent psi of the output with E psi psi^T = H."""

    @abc.abstractmethod
    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        """j^T H j."""


@final
@dataclasses.dataclass(frozen=True)
class Gaussian(AbstractLikelihood):
    """The loss of `torch.nn.functional.mse_loss`: H = 2/numel I."""

    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)
        return noise * (2.0 / output.numel()) ** 0.5

    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        return 2.0 * j.square().mean()


@final
@dataclasses.dataclass(frozen=True)
class Categorical(AbstractLikelihood):
    """The loss of `torch.nn.functional.cross_entropy`, classes last: H = (diag p - p p^T)/rows for each row."""

    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        p = torch.softmax(output.flatten(0, -2), -1)
        drawn = torch.multinomial(p, 1, generator=generator)
        return (p.scatter_add(1, drawn, -torch.ones_like(p[:, :1])) * p.shape[0] ** -0.5).view_as(output)

    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        p = torch.softmax(output, -1)
        rows = output.numel() // output.shape[-1]
        return ((p * j * j).sum() - (p * j).sum(-1).square().sum()) / rows


class Layout(NamedTuple):
    """Where the entries of the matrices W_k stand in a parameter C, for a weight W = sum_k b_k W_k.

    `first`: the modes k are the first axes of C, as in an expansion in depth, and not the last, as in a network that
    generates W. `order`: the place in W_k's part of C of each of its entries, row by row.
    """

    shape: tuple[int, int]
    order: Int[Tensor, " entries"]
    first: bool = True

    def agrees(self, other: "Layout") -> bool:
        return (self.shape, self.first) == (other.shape, other.first) and torch.equal(self.order, other.order)

    def split(self, c: Tensor) -> Float[Tensor, "modes outputs inputs"]:
        """The matrices W_k of a tensor of the parameter's shape."""
        return _modes(c, self.order.numel(), self.first)[:, self.order].view(-1, *self.shape)

    def join(self, w: Float[Tensor, "modes outputs inputs"], like: Tensor) -> Tensor:
        """The tensor of the parameter's shape whose matrices are W_k."""
        c = torch.empty_like(like, memory_format=torch.contiguous_format)
        _modes(c, self.order.numel(), self.first)[:, self.order] = w.flatten(1)
        return c


def _modes(c: Tensor, entries: int, first: bool) -> Tensor:
    return c.reshape(-1, entries) if first else c.reshape(entries, -1).mT


@final
class Met:
    """The linear maps that one parameter makes, and sums over all that they met: modes, inputs, cotangents."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.maps = self.rows = 0
        self.sums: list[Tensor] = []

    def add(self, b: Tensor, x: Tensor, g: Tensor) -> None:
        """One map: its b_k, the inputs and the cotangents of all rows."""
        self.maps, self.rows = self.maps + 1, self.rows + x.shape[0]
        squares = [torch.outer(b, b), x.mT @ x, g.mT @ g]
        self.sums = [s + new for s, new in zip(self.sums, squares, strict=True)] if self.sums else squares

    def factors(self, draws: int) -> dict[str, Tensor]:
        """M, the mean of b b^T over maps; A, the mean of x x^T over rows; B, the sum of g g^T over rows."""
        return {"M": self.sums[0] / self.maps, "A": self.sums[1] / self.rows, "B": self.sums[2] / draws}


@final
class Watch(TorchFunctionMode):
    """While active, notes every `F.linear` whose weight is made from one of `parameters`: W = sum_k b_k W_k.

    How it is made is asked of autograd, by pulling three cotangents of W back to the parameters: ones give the b_k, the
    numbers of rows and of columns tell which entry of W an entry of a parameter is. So it does not matter which code
    makes the weight: a matrix as it is, spectral coefficients with their axes in another order, an expansion in depth,
    continuous heads, a generating network. A parameter on which W depends in another way is left out; it may make a map
    of its own, as the inner layers of a generating network do. `met` is filled by backward passes; a parameter that is
    laid out in two ways, as one that is shared and transposed, has no such factors, and is `None` there.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self.parameters = tuple(parameters)
        self.met: dict[Tensor, Met | None] = {}
        self._own = {id(p) for p in self.parameters}
        self._probing = False
        self._passed: list[dict[Tensor, Any]] = []  # the maps that the last probe ran through

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear and result.requires_grad:
            given = dict(zip(("input", "weight"), args, strict=False)) | (kwargs or {})
            x, weight = given["input"], given["weight"]
            if weight.requires_grad and weight.ndim == 2:
                with torch._C.DisableTorchFunction():
                    self._note(x.detach().reshape(-1, x.shape[-1]), weight, result)
        return result

    def _note(self, x: Tensor, weight: Tensor, y: Tensor) -> None:
        """Adds a map to the parameters that make its weight, once its cotangents are known."""
        sources: dict[Tensor, list[_Map]] = dict(self._sources(weight))

        def hook(cotangent: Tensor) -> None:
            if self._probing:
                self._passed.append(sources)
                return
            g = cotangent.detach().reshape(-1, cotangent.shape[-1])
            for parameter, maps in sources.items():
                for one in maps:
                    met = self.met.setdefault(parameter, Met(one.layout))
                    if met is None or not met.layout.agrees(one.layout):
                        self.met[parameter] = None
                    else:
                        met.add(one.b, x[:, one.inputs], g[:, one.outputs])

        if sources:
            y.register_hook(hook)

    def _sources(self, weight: Tensor) -> Iterator[tuple[Tensor, list["_Map"]]]:
        """The parameters that make this weight, and how: as a whole, or head by head."""
        size = (weight.shape[0], weight.shape[1])
        if id(weight) in self._own:
            layout = Layout(size, torch.arange(weight.numel(), device=weight.device))
            yield weight, [_Map(layout, weight.new_ones(1))]
            return
        pulled = self._pull(weight, self.parameters, *(torch.arange(n) for n in size))
        passed = list(self._passed)
        for parameter, *parts in zip(self.parameters, *pulled, strict=True):
            if parts[0] is None:
                continue
            read = _read(parts, size)
            alone = parts[1].any() and not any(parameter in sources for sources in passed)
            maps = [_Map(*read)] if read is not None else self._heads(weight, parameter) if alone else []
            # a generating map: its inputs are the b_k of this weight, and its outputs, each entry of the weight, are
            # too many for a factor of their own
            for sources in passed if maps else ():
                sources.pop(parameter, None)
            if maps:
                yield parameter, maps

    def _heads(self, weight: Tensor, parameter: Tensor) -> list["_Map"]:
        """A weight that joins matrices of several heads, each made from the one parameter with b_k of its own.

        Heads are taken as evaluations are: products of the cotangents of two heads are left out.
        """
        for axis, places in _stacks(weight, parameter):
            maps = list[_Map]()
            for place in places:
                block = [torch.arange(n) if i != axis else place for i, n in enumerate(weight.shape)]
                pulled = [t[0] for t in self._pull(weight, [parameter], *block)]
                read = _read([t for t in pulled if t is not None], (len(block[0]), len(block[1])))
                if read is None or (maps and not maps[0].layout.agrees(read[0])):
                    break
                maps.append(_Map(*read, inputs=block[1], outputs=block[0]))
            else:
                return maps
        return []

    def _pull(self, weight: Tensor, parameters: Sequence[Tensor], *block: Tensor) -> list[tuple[Tensor | None, ...]]:
        """The probes of a block of rows and columns, pulled back to the parameters."""
        self._probing = True
        self._passed.clear()
        try:
            probes = _probes(weight, *block)
            return [torch.autograd.grad(weight, parameters, v, retain_graph=True, allow_unused=True) for v in probes]
        finally:
            self._probing = False


class _Map(NamedTuple):
    """One linear map of a parameter: the b_k, and which inputs and outputs of the whole are its own."""

    layout: Layout
    b: Tensor
    inputs: Any = slice(None)
    outputs: Any = slice(None)


def _probes(weight: Tensor, rows: Tensor, columns: Tensor) -> list[Tensor]:
    """Cotangents of a weight that are one, the number of the row and that of the column, from 1, in a block of it."""
    block = (rows.to(weight.device)[:, None], columns.to(weight.device))
    numbers = [torch.arange(1, n + 1, dtype=weight.dtype, device=weight.device) for n in (len(rows), len(columns))]
    probes = [torch.zeros_like(weight) for _ in range(3)]
    for probe, values in zip(probes, (weight.new_ones(()), numbers[0][:, None], numbers[1]), strict=True):
        probe[block] = values.expand(len(rows), len(columns))
    return probes


def _stacks(weight: Tensor, parameter: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Ways in which rows or columns of a weight may be those of several heads: the axis, and the places of each head.

    The last axes of the parameter make one head's matrix; heads stand before it, or after its modes (spectral kernels).
    """
    for start in range(1, parameter.ndim):
        own = parameter.shape[start:]
        heads, rest = divmod(weight.numel(), math.prod(own))
        for axis, size in enumerate(weight.shape) if heads > 1 and rest == 0 else ():
            for lead in sorted({1, *own}):
                if size % (heads * lead) == 0:
                    yield axis, torch.arange(size).view(lead, heads, -1).movedim(1, 0).flatten(1)


def _read(pulled: Sequence[Tensor], size: tuple[int, int]) -> tuple[Layout, Tensor] | None:
    """The layout of a parameter and its b_k, from ones, rows and columns of W pulled back; `None` if it has none."""
    entries = size[0] * size[1]
    for first in (True, False) if pulled and pulled[0].numel() % entries == 0 else ():
        ones, rows, columns = (_modes(t, entries, first) for t in pulled)
        b = ones[:, 0]
        k = int(b.abs().argmax())  # modes with compact support are zero at most depths, and tell nothing there
        if not float((ones - b[:, None]).abs().max()) <= 1e-4 * float(b[k].abs()) > 0.0:
            continue
        row, column = ((t[k] / b[k]).round().long() - 1 for t in (rows, columns))
        place = row * size[1] + column
        order = place.argsort()
        if torch.equal(place[order], torch.arange(entries, device=place.device)):
            return Layout(size, order, first), b
    return None
