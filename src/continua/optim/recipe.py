"""The recipe: which optimiser updates which space, and one optimiser for a whole module."""

import dataclasses
import fnmatch
from collections.abc import Hashable
from typing import Any, final

from torch import nn

from continua.core.errors import expect, reject
from continua.core.shapes import Tensor
from continua.fields import parameter_spaces
from continua.optim.blockwise import BlockwiseAdamW
from continua.optim.composite import Composite
from continua.optim.mirror import MirrorAdam
from continua.optim.modal import ModalAdamW
from continua.optim.optimiser import AbstractOptimiser
from continua.optim.riemannian import RiemannianAdam
from continua.spaces import AbstractParameterSpace, FlatSpace, GeneratedSpace, SimplexSpace, SpectralSpace, StiefelSpace


@final
@dataclasses.dataclass(frozen=True)
class Use:
    """A kind of optimiser and what to build it with; `use(kind, lr=...)` writes one."""

    kind: type[AbstractOptimiser]
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, type) and issubclass(self.kind, AbstractOptimiser)):
            cure = "Pass one of continua.optim: use(BlockwiseAdamW, lr=3e-4) is torch's AdamW."
            reject("kind", self.kind, "a recipe builds optimisers that know the space of their parameters", cure)
        settled = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in self.options)
        for name, value in settled:
            if not isinstance(value, Hashable):
                reject(name, value, "options are compared, and this cannot be", "Pass numbers, tuples, frozen objects.")
        object.__setattr__(self, "options", settled)

    def build(self, params: Any, space: AbstractParameterSpace) -> AbstractOptimiser:
        """The optimiser for parameters of one space."""
        return self.kind(params, space=space, **dict(self.options))  # pyright: ignore[reportCallIssue]


def use(kind: type[AbstractOptimiser], **options: Any) -> Use:
    """A kind of optimiser with its options, for a `Recipe`: `use(BlockwiseAdamW, lr=3e-4)`."""
    return Use(kind, tuple(sorted(options.items())))


@final
@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which optimiser updates the parameters of which space (docs/mathematics.md, section 7).

    The default needs no extra. `continua train --optimiser recipe` is another recipe, `continua.train.by_space`, with
    `SOAP` for the kernels of the flow.

    - `flat`: matrices of Euclidean space; `vectors`: biases and gains, which do not decay;
    - `spectral`: weights of spectral kernels, in the eigenbasis of their modes; `use(SOAP)` turns every axis, and costs
      ten times as much;
    - `generated`: the networks behind generated parameters;
    - `stiefel`: orthonormal and unitary kernels; `simplex`: masses of heads and coefficients of their density;
    - `named`: pairs (pattern, use) that come before all of these, the first whose pattern fits the parameter's name
      (as in `fnmatch`: "readout.*").
    """

    flat: Use = use(BlockwiseAdamW)
    vectors: Use = use(BlockwiseAdamW, weight_decay=0.0)
    spectral: Use = use(ModalAdamW)
    generated: Use = use(BlockwiseAdamW)
    stiefel: Use = use(RiemannianAdam)
    simplex: Use = use(MirrorAdam)
    named: tuple[tuple[str, Use], ...] = ()

    def __post_init__(self) -> None:
        for name in ("flat", "vectors", "spectral", "generated", "stiefel", "simplex"):
            expect(name, getattr(self, name), Use, f"Pass {name}=use(BlockwiseAdamW).")
        for pair in self.named:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Use)):
                cure = 'Pass named=(("readout.*", use(BlockwiseAdamW)),), with the last comma.'
                reject("named", pair, "this is no pair of a pattern and a use", cure)

    def build(self, module: nn.Module) -> Composite:
        """One optimiser for all parameters of `module`, each assigned by the space it lives in."""
        module = _uncompiled(module)
        parameters = dict(module.named_parameters())
        members: dict[str, AbstractOptimiser] = {}
        for (chosen, space, _), names in self._assigned(module).items():
            label = f"{chosen.kind.__name__} on {space}"
            name = label if label not in members else f"{label}, {len(members)}"
            members[name] = chosen.build([(name, parameters[name]) for name in names], space)
        return Composite(members)

    def whole(self, module: nn.Module) -> set[Tensor]:
        """Parameters that no rank may hold a shard of: `fully_shard(module, ignored_params=recipe.whole(module))`.

        Sharding leaves their gradients alone: average them over ranks before an update.
        """
        return {
            parameter
            for member in self.build(module).members.values()
            if member.whole
            for group in member.param_groups
            for parameter in group["params"]
        }

    def _assigned(self, module: nn.Module) -> dict[tuple[Use, AbstractParameterSpace, bool], list[str]]:
        """Names of parameters that are updated together; shards and whole parameters are kept apart."""
        spaces = _spaces(module)
        for pattern, _ in self.named:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in spaces):
                reject("named", pattern, "no parameter has such a name", f"The first names are {list(spaces)[:3]}.")
        found: dict[tuple[Use, AbstractParameterSpace, bool], list[str]] = {}
        for name, parameter in module.named_parameters():
            key = (self._chosen(name, spaces[name]), spaces[name], hasattr(parameter, "device_mesh"))
            found.setdefault(key, []).append(name)
        return found

    def _chosen(self, name: str, space: AbstractParameterSpace) -> Use:
        for pattern, chosen in self.named:
            if fnmatch.fnmatchcase(name, pattern):
                return chosen
        if isinstance(space, FlatSpace | GeneratedSpace) and space.axes < 2:
            return self.vectors
        by_space = {
            FlatSpace: self.flat,
            GeneratedSpace: self.generated,
            SpectralSpace: self.spectral,
            StiefelSpace: self.stiefel,
            SimplexSpace: self.simplex,
        }
        if type(space) not in by_space:
            cure = 'Assign it by name: Recipe(named=(("its.name", use(...)),)).'
            reject(name, space, "the recipe has no optimiser for this space", cure)
        return by_space[type(space)]


def _uncompiled(module: nn.Module) -> nn.Module:
    """The module itself where `torch.compile` wraps it, so that names are those that it was saved with."""
    expect("module", module, nn.Module, "Pass the model whose parameters are trained.")
    return getattr(module, "_orig_mod", module)


def _spaces(module: nn.Module) -> dict[str, AbstractParameterSpace]:
    """What the module says of its parameters, which must be all of them, each once."""
    answer = getattr(module, "parameter_spaces", None)
    spaces = parameter_spaces(module) if answer is None else answer()
    names = dict(module.named_parameters())
    if missing := [name for name in names if name not in spaces]:
        cure = "Give each a space in module.parameter_spaces()."
        reject("module", missing, "these parameters have no space, and would not be trained", cure)
    every = dict(module.named_parameters(remove_duplicate=False))
    if strange := [name for name in spaces if name not in every]:
        reject("module", strange, "parameter_spaces() names what is no parameter", "Use names of named_parameters().")
    if twice := [name for name in spaces if name not in names]:
        cure = "Name a shared parameter once, as named_parameters() does."
        reject("module", twice, "parameter_spaces() names these parameters a second time", cure)
    return spaces
