"""K-FAC: the Gauss-Newton matrix of a kernel as a Kronecker product over modes of depth, outputs and inputs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.operators.kernels import by_transforms
from continua.optim.curvature import AbstractLikelihood, Layout, Watch
from continua.optim.optimiser import AbstractOptimiser, Group, Held, collect, foreach
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, FlatSpace

Outputs: TypeAlias = Callable[[], Tensor]


@final
class KFAC(AbstractOptimiser):
    """G ~ M (x) B (x) A for each parameter C that makes the matrices W = sum_k b_k C_k of linear maps.

    M is the mean of b b^T over evaluations, A that of x x^T over the inputs x of all rows, B the sum of g g^T over
    their cotangents g; with one row and one evaluation G is that product.

        d = (M + lam_M)^{-1} (x) (B + lam_B)^{-1} (x) (A + lam_A)^{-1} grad ,   lam_M lam_B lam_A = lam ,
        C <- (1 - eta decay) C - eta alpha d ,   alpha = <grad, d> / (<d, G d> + lam |d|^2)

    alpha, with the exact Gauss-Newton matrix G of all parameters of the group together, is what keeps a step from
    diverging: the product is an approximation wherever rows or evaluations are many. Each factor is damped in
    proportion to its mean eigenvalue (M not where it is one number), which bears factors of few draws better than one
    lam on the product.

    Parameters of `torch.nn.Linear` and of constant kernels have one mode, b = 1; the modes of an `Expansion` are those
    of depth, those of `ContinuousHeads` of heads and depth (a head counts as an evaluation does), those of a
    `Hypernetwork` its hidden features, and its inner layers are maps of their own. Spectral kernels are maps from
    coefficients (modes times channels) to coefficients; multipliers of an FFT are not served. `observe` must have been
    called since the start; `forget` is how much of the factors is kept. Flows are solved with `gradient=Direct()`.
    Source: J. Martens and R. Grosse, arXiv 1503.05671.
    """

    serves = (AbstractFlatSpace,)

    _observed: "_Observed | None" = None
    """What was observed last; it is not saved, and a copy of the optimiser has to observe anew."""

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        damping: float = 1e-3,
        forget: float = 0.9,
        weight_decay: float = 0.0,
        space: AbstractParameterSpace = FlatSpace(2),
    ) -> None:
        super().__init__(params, space, lr=lr, damping=damping, forget=forget, weight_decay=weight_decay)

    def observe(
        self, outputs: Outputs, likelihood: AbstractLikelihood, draws: int = 1, generator: torch.Generator | None = None
    ) -> None:
        """Averages the factors over a batch, and inverts them: `observe(lambda: model(x), Categorical())`.

        One forward and `draws` backward passes, with cotangents drawn from the likelihood; gradients of the parameters
        are left alone. `outputs` is called again, twice, by each update, and must not be random.
        """
        params = [p for group in self.param_groups for p in group["params"]]
        with torch.enable_grad(), by_transforms(), Watch(params) as watch:
            output = outputs()
            for draw in range(draws):
                cotangent = likelihood.draw(output.detach(), generator)
                torch.autograd.grad(output, params, cotangent, retain_graph=draw + 1 < draws, allow_unused=True)
        self._observed = _Observed(outputs, likelihood, {})
        with torch.no_grad():
            for group in self.param_groups:
                for place, p in enumerate(group["params"]):
                    met = watch.met.get(p)
                    if met is None:
                        names = group.get("param_names")
                        reject(names[place] if names else f"parameter {place}", tuple(p.shape), _UNMET, _ELSEWHERE)
                    held = self.state[p]
                    for key, factor in met.factors(draws).items():
                        held[key] = torch.lerp(factor, held[key], group["forget"]) if key in held else factor
                    held.setdefault("step", torch.zeros((), dtype=torch.float32))
                    self._observed.inverses[p] = _invert(met.layout, held, group["damping"])

    def advance(self, group: Group, state: Held) -> None:
        params, grads, _, _ = collect(group, state, _refuse_unobserved)
        if not params:
            return
        seen = self._observed
        if seen is None:
            _refuse_unobserved(params[0])
        directions = [seen.inverses[p](g) for p, g in zip(params, grads, strict=True)]
        slope, square = (
            sum(float((d * x).sum()) for d, x in zip(directions, xs, strict=True)) for xs in (grads, directions)
        )
        bend = _bend(seen.outputs, seen.likelihood, params, directions)
        alpha = slope / (bend + group["damping"] * square) if square > 0 else 0.0
        foreach.mul_(params, 1.0 - group["lr"] * group["weight_decay"])
        foreach.add_(params, directions, alpha=-float(group["lr"]) * alpha)


class _Observed(NamedTuple):
    outputs: Outputs
    likelihood: AbstractLikelihood
    inverses: dict[Tensor, Callable[[Tensor], Tensor]]
    """What makes a direction of the gradient of each parameter."""


def _invert(layout: Layout, held: dict[str, Tensor], damping: float) -> Callable[[Tensor], Tensor]:
    """The product with the inverses of the factors M, B and A, each damped, in the shape of a gradient."""
    factors = [held[key] for key in ("M", "B", "A")]
    # a parameter behind zeros has no cotangents yet: its gradient is zero too, whatever it is divided by
    means = [max(float(f.diagonal().mean()), 1e-38) for f in factors]
    alone = factors[0].shape[0] == 1
    scale = (damping / math.prod(means)) ** (1.0 / (2 if alone else 3))
    shifts = [0.0 if alone else scale * means[0], *(scale * mean for mean in means[1:])]
    eyes = [torch.eye(len(f), dtype=f.dtype, device=f.device) for f in factors]
    damped = [f + shift * eye for f, shift, eye in zip(factors, shifts, eyes, strict=True)]
    m, b, a = (torch.cholesky_inverse(torch.linalg.cholesky(f)) for f in damped)
    return lambda grad: layout.join(torch.tensordot(m, b @ layout.split(grad) @ a, 1), grad)


_UNMET = (
    "it was met in no linear map that the graph of the outputs holds: tables, vectors, weights of which it is no "
    "linear part, and solves by Checkpointed or Backsolve, which keep no graph, are not served"
)
_ELSEWHERE = "Evaluate the outputs with gradient=Direct(), or leave it to another optimiser, such as BlockwiseAdamW."


def _refuse_unobserved(p: Tensor) -> NoReturn:
    cure = "Call optimiser.observe(lambda: model(x), Categorical()) first."
    reject("parameter", tuple(p.shape), "no curvature was observed for it", cure)


def _bend(outputs: Outputs, likelihood: AbstractLikelihood, params: list[Tensor], directions: list[Tensor]) -> float:
    """<d, G d> = |J d|_H^2, J d by central differences of the outputs: no derivative beyond the first is needed."""
    kept = [p.clone() for p in params]
    length = float(torch.linalg.vector_norm(torch.stack(foreach.norm(directions))))
    size = float(torch.linalg.vector_norm(torch.stack(foreach.norm(params))))
    if length == 0.0:
        return 0.0
    h = torch.finfo(params[0].dtype).eps ** (1.0 / 3.0) * max(1.0, size) / length
    ends = []
    for sign in (1.0, -1.0):
        foreach.add_(params, directions, alpha=sign * h)
        ends.append(outputs())
        foreach.copy_(params, kept)
    return float(likelihood.curvature(0.5 * (ends[0] + ends[1]), (ends[0] - ends[1]) / (2.0 * h)))
