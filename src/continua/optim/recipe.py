"""The recipe: which optimiser updates which space, and one optimiser for a whole module."""

import dataclasses
import fnmatch
from collections.abc import Hashable
from typing import Any, TypeAlias, final

import torch
from torch import nn

from continua.core.checks import is_a
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields import AbstractField, parameter_spaces
from continua.optim.axes import ModalAdamW
from continua.optim.blockwise import BlockwiseAdamW
from continua.optim.constrained import MirrorAdam, RiemannianAdam
from continua.optim.optimiser import AbstractOptimiser, Composite
from continua.spaces import AbstractParameterSpace, FlatSpace, GeneratedSpace, SimplexSpace, SpectralSpace, StiefelSpace

Betas: TypeAlias = tuple[float, float]


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


def use(kind: type[AbstractOptimiser], **options: Any) -> Use:
    """A kind of optimiser with its options, for a `Recipe`: `use(BlockwiseAdamW, lr=3e-4)`."""
    return Use(kind, tuple(sorted(options.items())))


@final
@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which optimiser updates the parameters of which space (docs/mathematics.md, section 7).

    - `flat`: matrices of Euclidean space; `vectors`: biases and gains, which do not decay;
    - `ends`: matrices that no field gives, those of embedding and readout, whose rows stand for tokens and outputs; as
      `flat` where it is `None`;
    - `spectral`: spectral kernels, in the eigenbasis of their modes; `use(SOAP)` turns every axis, and costs
      ten times as much;
    - `generated`: the networks behind generated parameters;
    - `stiefel`: orthonormal and unitary kernels; `simplex`: masses of heads and coefficients of their density;
    - `named`: pairs (pattern, use) that come before all of these, the first whose pattern fits the parameter's name
      (as in `fnmatch`: "readout.*").

    The default is AdamW wherever a space allows it, and needs no extra: whoever installs the package gets the same
    updates. `Recipe.with_lr` is the same at one rate for all: `recipe` and `soap` on the command line are calls of it.
    """

    flat: Use = use(BlockwiseAdamW)
    vectors: Use = use(BlockwiseAdamW, weight_decay=0.0)
    spectral: Use = use(ModalAdamW)
    generated: Use = use(BlockwiseAdamW)
    stiefel: Use = use(RiemannianAdam)
    simplex: Use = use(MirrorAdam)
    ends: Use | None = None
    named: tuple[tuple[str, Use], ...] = ()

    def __post_init__(self) -> None:
        names = ("flat", "vectors", "spectral", "generated", "stiefel", "simplex")
        is_a(Use, "Pass use(BlockwiseAdamW), say.", **{name: getattr(self, name) for name in names})
        is_a((Use, type(None)), "Pass use(BlockwiseAdamW), or None for the optimiser of `flat`.", ends=self.ends)
        for pair in self.named:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Use)):
                cure = 'Pass named=(("readout.*", use(BlockwiseAdamW)),), with the last comma.'
                reject("named", pair, "this is no pair of a pattern and a use", cure)

    @classmethod
    def with_lr(
        cls,
        lr: float,
        weight_decay: float = 1e-2,
        betas: Betas = (0.9, 0.999),
        kernels: type | None = None,
        kernel_lr: float | None = None,
    ) -> "Recipe":
        """The recipe at one learning rate for all spaces; matrices decay, vectors do not.

        `kernels` is the optimiser of kernels in the flow, dense and spectral, where it is not the default's, at a rate
        of its own: `SOAP` and `Shampoo`, which precondition along every axis, the modes of depth among them, need the
        extra `optim`; `KFAC` needs to observe every batch. They keep betas of their own, and shrink parameters by as
        much in an update, rate times decay; embedding and readout stay with AdamW.
        """
        plain = use(BlockwiseAdamW, lr=lr, betas=betas, weight_decay=weight_decay)
        modal = use(ModalAdamW, lr=lr, betas=betas, weight_decay=weight_decay)
        rate = lr if kernel_lr is None else kernel_lr
        own = None if kernels is None else use(kernels, lr=rate, weight_decay=weight_decay * lr / rate)
        return cls(
            flat=own or plain,
            vectors=use(BlockwiseAdamW, lr=lr, betas=betas, weight_decay=0.0),
            spectral=own or modal,
            generated=plain,
            stiefel=use(RiemannianAdam, lr=lr),
            simplex=use(MirrorAdam, lr=lr),
            ends=plain,
        )

    def build(self, module: nn.Module) -> Composite:
        """One optimiser for all parameters of `module`, each assigned by the space it lives in."""
        module = _unwrap(module)
        parameters = dict(module.named_parameters())
        members: dict[str, AbstractOptimiser] = {}
        for (chosen, space, _), names in self._assign(module).items():
            label = f"{chosen.kind.__name__} on {space}"
            label = label if label not in members else f"{label}, {len(members)}"
            named = [(name, parameters[name]) for name in names]
            members[label] = chosen.kind(named, space=space, **dict(chosen.options))  # pyright: ignore[reportCallIssue]
        return Composite(members)

    def whole(self, module: nn.Module) -> set[Tensor]:
        """Parameters that no rank may hold a shard of: `fully_shard(module, ignored_params=recipe.whole(module))`.

        Sharding leaves their gradients alone: average them over ranks before an update.
        """
        members = [member for member in self.build(module).members.values() if member.whole]
        return {p for member in members for group in member.param_groups for p in group["params"]}

    def _assign(self, module: nn.Module) -> dict[tuple[Use, AbstractParameterSpace, bool], list[str]]:
        """Names of parameters that are updated together; shards and whole parameters are kept apart."""
        spaces, fields = _spaces(module), (part for part in module.modules() if isinstance(part, AbstractField))
        given = {id(p) for field in fields for p in field.parameters()}  # by id: shared parameters have several names
        for pattern, _ in self.named:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in spaces):
                reject("named", pattern, "no parameter has such a name", f"The first names are {list(spaces)[:3]}.")
        found: dict[tuple[Use, AbstractParameterSpace, bool], list[str]] = {}
        for name, parameter in module.named_parameters():
            chosen = self._choose(name, spaces[name], id(parameter) in given)
            found.setdefault((chosen, spaces[name], hasattr(parameter, "device_mesh")), []).append(name)
        return found

    def _choose(self, name: str, space: AbstractParameterSpace, given: bool) -> Use:
        for pattern, chosen in self.named:
            if fnmatch.fnmatchcase(name, pattern):
                return chosen
        if isinstance(space, FlatSpace | GeneratedSpace) and space.axes < 2:
            return self.vectors
        by_space = {
            FlatSpace: self.flat if given or self.ends is None else self.ends,
            GeneratedSpace: self.generated,
            SpectralSpace: self.spectral,
            StiefelSpace: self.stiefel,
            SimplexSpace: self.simplex,
        }
        if type(space) not in by_space:
            cure = 'Assign it by name: Recipe(named=(("its.name", use(...)),)).'
            reject(name, space, "the recipe has no optimiser for this space", cure)
        return by_space[type(space)]


def adamw(model: nn.Module, lr: float, weight_decay: float = 1e-2, betas: Betas = (0.9, 0.999)) -> torch.optim.AdamW:
    """`torch.optim.AdamW` with decay on matrices alone.

    What is a matrix is told by `parameter_spaces()`: a path of vectors in depth has two axes, and is none.
    """
    module = _unwrap(model)
    spaces, matrices, vectors = _spaces(module), [], []
    for name, parameter in module.named_parameters():
        (matrices if spaces[name].axes >= 2 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=betas)


def optimiser_name(optimiser: torch.optim.Optimizer) -> str:
    """An optimiser in a few words: the kinds it is made of and its highest learning rate."""
    members = optimiser.members.values() if isinstance(optimiser, Composite) else (optimiser,)
    kinds = dict.fromkeys(type(member).__name__ for member in members)
    return f"{' + '.join(kinds)}, learning rate {max(group['lr'] for group in optimiser.param_groups):g}"


def _unwrap(module: nn.Module) -> nn.Module:
    """The module itself where `torch.compile` wraps it, so that names are those that it was saved with."""
    is_a(nn.Module, "Pass the model whose parameters are trained.", module=module)
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
