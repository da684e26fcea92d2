"""Any function f(z, x) as a vector field, and the tensors that it depends on without being handed them."""

import functools
import gc
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from continua.core.errors import LostGradientWarning, reject
from continua.core.shapes import DepthValue, Tensor
from continua.solve.vector_field import AbstractVectorField, State, per_sequence

_LARGE = 1_000
"""Containers with more entries hold data, not parameters; where one does, the graph shows it all the same."""
_CUTS = {
    torch.tensor: "torch.tensor(...)",
    torch.as_tensor: "torch.as_tensor(...)",
    Tensor.new_tensor: ".new_tensor(...)",
    Tensor.item: ".item()",
    Tensor.tolist: ".tolist()",
    Tensor.detach: ".detach()",
    Tensor.__float__: "float(...)",
    Tensor.data.__get__: ".data",  # pyright: ignore[reportAttributeAccessIssue]
}
"""What takes numbers out of the graph of autograd, as people write it."""


class FunctionVectorField(AbstractVectorField):
    """dx/dz = f(z, x) for a plain function and a tensor of any shape.

    f is called with z as a tensor: of no dimension, or, where every sequence has its own depth, of shape
    (batch, 1, ..., 1), so that it meets x as it is.
    """

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        _check_callable(f)
        self.f, self.tensors = f, ()

    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        x = state.x
        self.evaluations += 1
        # a kernel on the device of x: `torch.tensor` would be a copy that the host waits for
        depth = per_sequence(z, x) if isinstance(z, Tensor) else torch.full((), z, dtype=x.dtype, device=x.device)
        try:
            velocity = self.f(depth, x)
        except (IndexError, RuntimeError, TypeError) as error:
            error.add_note(f"f is called as f(z, x), z of shape {tuple(depth.shape)} and x of shape {tuple(x.shape)}.")
            raise
        if isinstance(velocity, Tensor) and torch.is_autocast_enabled(x.device.type):
            velocity = velocity.to(x.dtype)  # products have half precision, and states have not
        if not isinstance(velocity, Tensor) or velocity.shape != x.shape or velocity.dtype != x.dtype:
            got = f"{tuple(velocity.shape)}, {velocity.dtype}" if isinstance(velocity, Tensor) else type(velocity)
            why = f"it must return dx/dz in the shape and dtype of x, {tuple(x.shape)}, {x.dtype}"
            reject("f(z, x)", got, why, "Return one tensor, of several states joined; f(z, x) gets the depth first.")
        return State(velocity)

    def expect(self, depths: Sequence[float]) -> None:
        """Nothing is prepared."""

    def rates(self, z: DepthValue, x: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        return ()

    def costs_of_step(self, z: DepthValue, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        return ()

    def find_parameters(
        self, z: float, x: Tensor, named: Iterable[Tensor] | dict[str, Tensor] | Tensor | nn.Module | None
    ) -> None:
        """Finds every tensor that f depends on and that asks for a gradient, unless they are named.

        Some stand in the closure, the globals, the arguments or the attributes of f; others show when f is called once.
        What the graph of that call leads to and nobody found raises: its gradient would be lost without a word.
        """
        if isinstance(named, nn.Module):
            named = named.parameters()
        elif isinstance(named, dict):  # dict(module.named_parameters())
            named = named.values()
        elif isinstance(named, Tensor):
            named = [named]
        found = _by_id(referenced_tensors(self.f) if named is None else named)
        asks, x = x.requires_grad, x.detach().requires_grad_(True)
        drawn = _random_states(x)
        start = _sequence_number()
        with torch.enable_grad(), _Uses(x, start, found if named is None else {}) as uses:
            velocity = self(z, State(x)).x
        if any(not torch.equal(a, b) for a, b in zip(drawn, _random_states(x), strict=True)):
            why = "it draws random numbers, and a backward pass would draw others"
            reject("f", self.f, why, "Draw them before (dropout: f.eval()), or use gradient=Direct().")
        warn_of_cuts(velocity, uses.cut, [*found.values(), *([x] if found or asks else [])], x)
        leaves, outside = edges_of([velocity], [x, *found.values()], start)
        for result in outside:
            raise _hidden_error(result)
        if named is None:
            found.update(_by_id(leaves))
        else:
            suspects = [weakref.ref(leaf) for leaf in leaves]
            del velocity, leaves, uses
            refuse_hidden(suspects)
        self.tensors = tuple(found.values())


def warn_of_cuts(velocity: Tensor, cut: Sequence[tuple[str, Tensor]], wanted: Iterable[Tensor], x: Tensor) -> None:
    """Warns of tensors that f took out of the graph, as by `rate.item()`, and that its result does not lead to."""
    if not cut:
        return
    reached, known = ({id(leaf) for leaf in _ends_of(tensors)} for tensors in ([velocity], [*wanted]))
    lost = {id(leaf): (how, leaf) for how, tensor in cut for leaf in _ends_of([tensor])}
    for how, leaf in (lost[i] for i in lost if i in known - reached):
        what = "x" if leaf is x else f"a tensor of shape {tuple(leaf.shape)}"
        text = f"f takes {what} out of the graph by {how}, and at the start nothing else leads to it: no gradient there"
        cure = "Compute with the tensor itself, and build matrices with torch.stack; if this is meant, name the others"
        warnings.warn(f"{text}. {cure}: parameters=[...].", LostGradientWarning, stacklevel=5)  # where `integrate` is


def _ends_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that tensors are computed from, those among them that are leaves included."""
    return [*(t for t in tensors if t.is_leaf), *edges_of([t for t in tensors if not t.is_leaf], [])[0]]


def _random_states(x: Tensor) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])]


def referenced_tensors(f: object) -> Iterator[Tensor]:
    """Tensors that ask for a gradient in the closure, globals, defaults, arguments or attributes of a callable."""
    seen: dict[int, object] = {}
    todo: list[tuple[object, int]] = [(f, 0)]
    while todo:
        thing, depth = todo.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            if thing.requires_grad:
                yield thing
        elif depth < 5:
            todo += [(inner, depth + 1) for inner in _contents(thing)]


def _contents(thing: Any) -> Iterable[object]:
    """What a callable, a module, an object or a container holds."""
    if isinstance(thing, types.ModuleType | type | str | bytes | int | float | types.NoneType):
        return ()
    if isinstance(thing, types.FunctionType):
        return _contents_of_function(thing)
    if isinstance(thing, types.MethodType):
        return thing.__func__, thing.__self__
    if isinstance(thing, functools.partial):
        return thing.func, *thing.args, *thing.keywords.values()
    if isinstance(thing, nn.Module):
        attributes = (value for module in thing.modules() for value in vars(module).values())
        return *thing.parameters(), *(a for a in attributes if isinstance(a, Tensor | list | tuple))
    if isinstance(thing, dict):
        return thing.values() if len(thing) <= _LARGE else ()
    if isinstance(thing, list | tuple | set | frozenset):
        return thing if len(thing) <= _LARGE else ()
    own = vars(thing) if hasattr(thing, "__dict__") else {}
    call = vars(type(thing)).get("__call__")
    return *own.values(), *([call] if isinstance(call, types.FunctionType) else [])


def _contents_of_function(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    codes = [function.__code__]
    while codes:  # what is defined inside a function reads the same globals
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)


def reach_each_other(tensors: Sequence[Tensor]) -> bool:
    """Whether one of the tensors is computed from another."""
    leaves = {id(t) for t in tensors if t.is_leaf}
    nodes = {t.grad_fn for t in tensors if t.grad_fn is not None}
    todo: list[Any] = [edge for node in nodes for edge in node.next_functions]
    seen = set()
    while todo:
        node, _ = todo.pop()
        if node is None or node in seen:
            continue
        if node in nodes or id(getattr(node, "variable", None)) in leaves:
            return True
        seen.add(node)
        todo += node.next_functions
    return False


def hidden_leaves(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> "list[weakref.ref[Tensor]]":
    """Leaves that a graph leads to and that are not known, for `refuse_hidden` once the graph is gone."""
    return [weakref.ref(leaf) for leaf in edges_of(outputs, known)[0]]


def refuse_hidden(leaves: "Iterable[weakref.ref[Tensor]]") -> None:
    """Raises where a leaf outlived the graph that it was found in: a parameter. One that f had made itself is gone."""
    suspects = [leaf for leaf in leaves if leaf() is not None]
    if suspects:
        gc.collect()  # it may be part of a cycle that nobody holds
        for leaf in suspects:
            if (parameter := leaf()) is not None:
                raise _hidden_error(parameter)


class _Uses(TorchFunctionMode):
    """Collects the tensors from before `start` that enter any torch function: those behind closures of closures."""

    def __init__(self, x: Tensor, start: int, found: dict[int, Tensor]) -> None:
        super().__init__()
        self.start, self.found, self.made = start, found, {id(x): x}
        self.cut: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = _by_id(t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        if func in _CUTS:
            self.cut += [(_CUTS[func], t) for t in used.values()]
        known = {i: t for i, t in used.items() if i not in self.made}
        self.found.update({i: t for i, t in known.items() if (n := t.grad_fn) is None or n._sequence_nr() < self.start})
        result = func(*args, **kwargs)
        # leaves that f makes itself, x.detach().requires_grad_(), are no parameters
        self.made.update({id(t): t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_leaf})
        return result


def _by_id(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """Those that ask for a gradient, in their order, each once."""
    return {id(t): t for t in tensors if t.requires_grad}


def edges_of(
    outputs: Sequence[Tensor], known: Sequence[Tensor], start: int | None = None
) -> tuple[list[Tensor], list[object]]:
    """Leaves that a graph ends in, and nodes older than `start` that it leads to; neither through known tensors.

    Without a `start` there are no older nodes: sequence numbers are those of one thread, and a backward pass may run in
    another. It then goes on to the leaves, and a gradient by these is right whatever stands in between.
    """
    passed = {id(t) for t in known if t.is_leaf}
    # nodes are held while the walk lasts, so that one node stays one object
    stops = {(t.grad_fn, t.output_nr) for t in known if t.grad_fn is not None}
    todo: list[Any] = [(x.grad_fn, x.output_nr) for x in outputs if x.grad_fn is not None]
    seen, leaves, older = set(), [], []
    while todo:
        edge = todo.pop()
        node = edge[0]
        if node is None or node in seen or edge in stops:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            if id(node.variable) not in passed:
                leaves.append(node.variable)
        elif start is not None and node._sequence_nr() < start:
            older.append(node)
        else:
            todo += node.next_functions
    return leaves, older


def _sequence_number() -> int:
    """The number that autograd gives to the next node of this thread."""
    node = (torch.zeros((), requires_grad=True) + 0.0).grad_fn
    assert node is not None
    return node._sequence_nr() + 1


def _hidden_error(what: object) -> ValueError:
    shown = f"shape {tuple(what.shape)}" if isinstance(what, Tensor) else f"the result of a {type(what).__name__}"
    why = "f depends on a tensor that was not found, and its gradient would be lost"
    return ValueError(f"f: {why} ({shown}). Name what f depends on: parameters=[...], or use gradient=Direct().")


def _check_callable(f: object) -> None:
    cure = "Pass a function f(z, x) -> dx/dz, such as lambda z, x: -x, or an nn.Module object."
    if isinstance(f, type) and issubclass(f, nn.Module):
        cure = f"Build it first, layer = {f.__name__}(...), and pass lambda z, x: layer(x)."
    if isinstance(f, type) or not callable(f):
        reject("f", f if isinstance(f, type | str) else type(f).__name__, "this is no function", cure)
    try:
        inspect.signature(f.forward if isinstance(f, nn.Module) else f).bind(0.0, 0.0)
    except TypeError:
        named = f"{type(f).__name__}(...)" if isinstance(f, nn.Module) else f
        reject(
            "f", named, "it is called as f(z, x)", "Pass lambda z, x: module(x)." if isinstance(f, nn.Module) else cure
        )
    except ValueError:  # a builtin without a signature
        pass
