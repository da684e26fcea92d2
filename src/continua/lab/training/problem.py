"""What is trained: sequences with targets, an atomic law of the heads, and the rule of updates."""

import dataclasses
import math
from typing import final

import torch
from jaxtyping import Shaped
from torch.optim import SGD, Optimizer

from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.flows import in_ball, random_theta
from continua.operators import Attention, AttentionTheta
from continua.optim import BlockwiseAdamW, Entrywise, Frobenius
from continua.spaces import FlatSpace


@final
@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """AdamW, with one second moment per matrix where `blockwise` (arXiv 2605.11059, Algorithm 1); otherwise SGD."""

    learning_rate: float = 0.05
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 0.05
    blockwise: bool = False
    adaptive: bool = True

    def build(self, parameters: list[Tensor]) -> Optimizer:
        """The optimiser of the project; gradients are those of section 8, rescaled by layers x heads."""
        if not self.adaptive:
            return SGD(parameters, lr=self.learning_rate)
        block = Frobenius() if self.blockwise else Entrywise()
        space = FlatSpace(2 if self.blockwise else 0)  # the axes of seeds and layers are many networks, not one block
        return BlockwiseAdamW(parameters, self.learning_rate, self.betas, self.eps, self.weight_decay, block, space)


@final
@dataclasses.dataclass(frozen=True)
class Problem:
    """Tokens x(0) in a ball, targets y = keep x(0) + aim u with u in the unit ball, and a quadratic loss.

        loss = mean over sequences of 1/2 mean_i |x_i(1) - y_i|^2

    The first `trained` of the sequences are trained on; the others are initial conditions that training never sees. The
    law of the heads at the start is that of `atoms` equal masses, whose matrices have Frobenius norm `scale`; as a
    `curve` it is continuous, cos(2 pi u) A + sin(2 pi u) B with u uniform, and the atoms are nodes of it. With `fresh`
    data every update has sequences of its own. With an `inner` dimension everything lies in one subspace of it, in
    general position within R^width: the same problem, written in more coordinates.
    """

    tokens: int = 8
    width: int = 8
    key: int = 4
    atoms: int = 4
    sequences: int = 4
    trained: int = 2
    beta: float = 1.0
    radius: float = 1.0
    scale: float = 2.0
    keep: float = 0.0
    aim: float = 1.0
    inner: int | None = None
    seed: int = 0
    fresh: bool = False
    curve: bool = False

    def __post_init__(self) -> None:
        if self.inner is not None and not 1 <= self.inner <= self.width:
            reject("inner", self.inner, f"a subspace of R^{self.width}", "Pass 1 or more, at most the width.")
        if not 1 <= self.trained <= self.sequences:
            reject("trained", self.trained, f"there are {self.sequences} sequences", "Train on 1 or more of them.")

    def operator(self, heads: int) -> Attention:
        """The attention of a layer, on the measure of its heads."""
        return Attention(heads, self.key, beta=self.beta, biased=False, head_masses=True)

    def start(self, update: int = 0) -> Float[Tensor, "sequences tokens width"]:
        """x(0) of every sequence."""
        return self._ball(self.radius, 1000 + self._shift(update))

    def targets(self, update: int = 0) -> Float[Tensor, "sequences tokens width"]:
        """y of every sequence."""
        return self.keep * self.start(update) + self._ball(self.aim, 2000 + self._shift(update))

    def _shift(self, update: int) -> int:
        return 10_007 * update if self.fresh else 0

    def law(self) -> AttentionTheta:
        """The atoms of nu^0, as heads."""
        masses = torch.full((self.atoms,), 1.0 / self.atoms, dtype=torch.float64)
        nodes = torch.arange(self.atoms)
        return AttentionTheta(*self.heads_at(nodes / self.atoms if self.curve else nodes), p=masses)

    def heads_at(self, places: Tensor) -> list[Tensor]:
        """Q, K, V, O at numbers of atoms, or along the curve."""
        law = random_theta(2 if self.curve else self.atoms, self.key, self._inner, self.scale, 3000 + self.seed)
        matrices = [w @ self._frame() for w in (law.q, law.k, law.v, law.o)]
        if not self.curve:
            return [w[places] for w in matrices]
        angle = (2.0 * math.pi * places.double())[..., None, None]
        return [angle.cos() * w[0] + angle.sin() * w[1] for w in matrices]

    def read_atoms(self, paths: Float[Tensor, "layers atoms key width"], places: Tensor) -> Tensor:
        """Values that are known at the atoms of every layer, at the places of heads: (layers seeds heads key width).

        Along the curve by the trigonometric polynomial through its nodes, whose number is even.
        """
        if not self.curve:
            return paths[torch.arange(len(paths))[:, None, None], places]
        gaps = math.pi * (places[..., None] - torch.arange(self.atoms, dtype=torch.float64) / self.atoms)
        hit = gaps.sin().abs() < 1e-12
        kernel = torch.sin(self.atoms * gaps) / (self.atoms * torch.where(hit, 1.0, gaps.tan()))
        return torch.einsum("lshm,lmkw->lshkw", torch.where(hit, 1.0, kernel), paths)

    def _ball(self, radius: float, seed: int) -> Tensor:
        return in_ball((self.sequences, self.tokens, self._inner), radius, seed + self.seed) @ self._frame()

    @property
    def _inner(self) -> int:
        return self.width if self.inner is None else self.inner

    def _frame(self) -> Float[Tensor, "inner width"]:
        """Orthonormal rows that span the subspace; the identity where it is everything."""
        if self.inner is None:
            return torch.eye(self.width, dtype=torch.float64)
        columns = torch.randn(self.width, self.inner, generator=generator_of(5000 + self.seed), dtype=torch.float64)
        return torch.linalg.qr(columns).Q.mT

    def draw_atoms(self, layers: int, seeds: int, heads: int, first: int) -> Shaped[Tensor, "layers seeds heads"]:
        """Which atom each head starts as, or where on the curve: independent draws."""
        generator = generator_of(4000 + 7919 * first + self.seed)
        if self.curve:
            return (
                torch.rand(seeds, layers, heads, generator=generator, dtype=torch.float64).transpose(0, 1).contiguous()
            )
        return torch.randint(self.atoms, (seeds, layers, heads), generator=generator).transpose(0, 1).contiguous()

    def all_atoms(self, layers: int) -> Shaped[Tensor, "layers seeds heads"]:
        """Every atom once in every layer: no sampling at all."""
        nodes = torch.arange(self.atoms)
        return (nodes / self.atoms if self.curve else nodes).expand(layers, 1, self.atoms).contiguous()

    def costate(self, points: Points, update: int = 0) -> Points:
        """p(1) = d_mu loss: x - y, for any number of networks one after another."""
        targets = self.targets(update)
        return (points.unflatten(0, (-1, len(targets))) - targets).flatten(0, 1)

    def loss(self, points: Points, update: int = 0) -> Float[Tensor, " networks"]:
        """The training loss of each network."""
        gaps = (points.unflatten(0, (-1, self.sequences)) - self.targets(update))[:, : self.trained]
        return 0.5 * gaps.square().sum(-1).mean((-1, -2))
