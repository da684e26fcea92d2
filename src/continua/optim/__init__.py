"""Floor 2: optimisers for the spaces that parameters live in, and the recipe that assigns them."""

from continua.optim.blocks import AbstractBlock, Entrywise, Frobenius
from continua.optim.blockwise import BlockwiseAdamW
from continua.optim.bounds import largest_update, parameter_bound, update_bound
from continua.optim.clipping import clip_gradients, clip_groups
from continua.optim.composite import Composite
from continua.optim.kfac import KFAC
from continua.optim.library import SOAP, AbstractLibraryOptimiser, Shampoo
from continua.optim.likelihoods import AbstractLikelihood, Categorical, Gaussian
from continua.optim.mirror import DualAveraging, MirrorAdam
from continua.optim.modal import ModalAdamW
from continua.optim.optimiser import AbstractOptimiser
from continua.optim.recipe import Recipe, Use, use
from continua.optim.retractions import AbstractRetraction, Cayley, Polar
from continua.optim.riemannian import RiemannianAdam
from continua.optim.schedule import AbstractClock, CosineDecay, Schedule, Seconds, Tokens, Updates
from continua.optim.watch import Watch

__all__ = [
    "AbstractBlock", "AbstractClock", "AbstractLibraryOptimiser", "AbstractLikelihood", "AbstractOptimiser",
    "AbstractRetraction", "BlockwiseAdamW", "Categorical", "Cayley", "Composite", "CosineDecay", "DualAveraging",
    "Entrywise", "Frobenius", "Gaussian", "KFAC", "MirrorAdam", "ModalAdamW", "Polar", "Recipe", "RiemannianAdam",
    "SOAP", "Schedule", "Seconds", "Shampoo", "Tokens", "Updates", "Use", "Watch", "clip_gradients", "clip_groups",
    "largest_update", "parameter_bound", "update_bound", "use",
]  # fmt: skip
