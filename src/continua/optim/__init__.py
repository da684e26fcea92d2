"""Floor 2: optimisers for the spaces that parameters live in, and the recipe that assigns them."""

from continua.optim.axes import SOAP, ModalAdamW, Shampoo
from continua.optim.blockwise import AbstractBlock, BlockwiseAdamW, Entrywise, Frobenius, parameter_bound, update_bound
from continua.optim.constrained import DualAveraging, MirrorAdam, RiemannianAdam, cayley_retraction, polar_retraction
from continua.optim.curvature import AbstractLikelihood, Categorical, Gaussian, Watch
from continua.optim.kfac import KFAC
from continua.optim.optimiser import AbstractOptimiser, Composite
from continua.optim.recipe import Recipe, Use, adamw, optimiser_name, use
from continua.optim.schedule import CosineDecay, Schedule, by_seconds, by_tokens, by_updates, clip_gradients

__all__ = [
    "AbstractBlock", "AbstractLikelihood", "AbstractOptimiser", "BlockwiseAdamW", "Categorical", "Composite",
    "CosineDecay", "DualAveraging", "Entrywise", "Frobenius", "Gaussian", "KFAC", "MirrorAdam", "ModalAdamW", "Recipe",
    "RiemannianAdam", "SOAP", "Schedule", "Shampoo", "Use", "Watch", "adamw", "by_seconds", "by_tokens", "by_updates",
    "cayley_retraction", "clip_gradients", "optimiser_name", "parameter_bound", "polar_retraction", "update_bound",
    "use",
]  # fmt: skip
