"""The optimisers of a training run: plain AdamW, or the recipe that goes by the spaces of the parameters."""

import torch
from torch import nn

from continua.fields import parameter_spaces
from continua.optim import SOAP, BlockwiseAdamW, Composite, MirrorAdam, Recipe, RiemannianAdam, use

Betas = tuple[float, float]


def decayed(model: nn.Module, lr: float, decay: float, betas: Betas = (0.9, 0.98)) -> torch.optim.AdamW:
    """`torch.optim.AdamW` with `decay` on matrices alone.

    A path of vectors in depth has two axes and is no matrix: parameters are told by their names, which end in `gain`,
    or in `b` with what it is the bias of.
    """
    matrices, vectors = [], []
    for name, parameter in model.named_parameters():
        last = name.replace(".", "_").rpartition("_")[2]
        vector = parameter.ndim < 2 or last == "gain" or last.startswith("b")
        (vectors if vector else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=betas)


def by_space(model: nn.Module, lr: float, decay: float, betas: Betas = (0.9, 0.98)) -> Composite:
    """The recipe of `--optimiser recipe`: each parameter by the space that `model.parameter_spaces()` says it lives in.

    It is not the default `Recipe()`, which needs no extra and has AdamW for dense kernels and `ModalAdamW` for spectral
    ones. The kernels of the flow, spectral ones too, are preconditioned along every axis, the modes of depth among them
    (`SOAP`, which needs the extra `optim`). Embedding and readout, biases, gains and generated parameters are updated
    by AdamW with these `betas`, orthonormal kernels by Riemannian Adam, masses of heads by mirror Adam; all at one
    rate. Matrices decay.
    """
    plain = use(BlockwiseAdamW, lr=lr, betas=betas, weight_decay=decay)
    soap = use(SOAP, lr=lr, weight_decay=decay)
    recipe = Recipe(
        flat=soap,
        vectors=use(BlockwiseAdamW, lr=lr, betas=betas, weight_decay=0.0),
        spectral=soap,
        generated=plain,
        stiefel=use(RiemannianAdam, lr=lr),
        simplex=use(MirrorAdam, lr=lr),
        named=tuple((name, plain) for name in _ends(model)),
    )
    return recipe.build(model)


def optimiser_name(optimiser: torch.optim.Optimizer) -> str:
    """An optimiser in a few words: the kinds it is made of and its highest rate."""
    members = optimiser.members.values() if isinstance(optimiser, Composite) else (optimiser,)
    kinds = dict.fromkeys(type(member).__name__ for member in members)
    return f"{' + '.join(kinds)}, rate {max(group['lr'] for group in optimiser.param_groups):g}"


def _ends(model: nn.Module) -> list[str]:
    """The matrices of embedding and readout, whose rows stand for tokens or outputs and need no axes of their own."""
    spaces = parameter_spaces(model)
    return [n for n, space in spaces.items() if n.startswith(("embedding.", "readout.")) and space.axes >= 2]
