"""K-FAC: the Gauss-Newton matrix of a dense kernel as a Kronecker product."""

from collections.abc import Callable
from typing import Any, NoReturn, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim.likelihoods import AbstractLikelihood
from continua.optim.optimiser import AbstractOptimiser, Group, Held, collect, count_updates, foreach
from continua.optim.watch import Watch
from continua.spaces import AbstractFlatSpace, AbstractParameterSpace, FlatSpace


@final
class KFAC(AbstractOptimiser):
    """G ~ A (x) B for each matrix, A the second moment of its inputs, B the sum of those of its cotangents.

        d = (B + sqrt(lam)/pi)^{-1} g (A + sqrt(lam) pi)^{-1} ,   pi^2 = mean diag A / mean diag B
        theta <- (1 - eta decay) theta - eta alpha d ,   alpha = <g, d> / (<d, G d> + lam |d|^2)

    alpha, with the exact Gauss-Newton matrix G of all parameters of the group together, is what keeps a step from
    diverging: the Kronecker product is an approximation. `observe` must have been called since the start; `forget` is
    how much of the factors is kept. The weights must be parameters themselves, those of dense kernels in `Constant` or
    `PiecewiseConstant` fields and of `torch.nn.Linear`, and flows are solved with `gradient=Direct()`.
    Source: J. Martens and R. Grosse, arXiv 1503.05671.
    """

    outputs: Callable[[], Tensor] | None = None
    """What was observed last; a copy of the optimiser has to observe anew."""
    likelihood: AbstractLikelihood | None = None

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        damping: float = 1e-3,
        forget: float = 0.9,
        weight_decay: float = 0.0,
        space: AbstractParameterSpace = FlatSpace(2),
    ) -> None:
        numbers = {"lr": lr, "damping": damping, "forget": forget, "weight_decay": weight_decay}
        super().__init__(params, numbers, space)

    @property
    def serves(self) -> tuple[type, ...]:
        return (AbstractFlatSpace,)

    @property
    def whole(self) -> bool:
        return True

    def observe(
        self,
        outputs: Callable[[], Tensor],
        likelihood: AbstractLikelihood,
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        """Averages the factors over a batch, and inverts them: `observe(lambda: model(x), Categorical())`.

        One forward and `draws` backward passes, with cotangents drawn from the likelihood; gradients of the parameters
        are left alone. `outputs` is called again, twice, by each update, and must not be random.
        """
        params = [p for group in self.param_groups for p in group["params"]]
        with torch.enable_grad(), Watch(params) as watch:
            output = outputs()
            for draw in range(draws):
                cotangent = likelihood.draw(output.detach(), generator)
                torch.autograd.grad(output, params, cotangent, retain_graph=draw + 1 < draws, allow_unused=True)
        self.outputs, self.likelihood = outputs, likelihood
        with torch.no_grad():
            for group in self.param_groups:
                for place, p in enumerate(group["params"]):
                    if p not in watch.seen or watch.seen[p].rows == 0:
                        names = group.get("param_names")
                        _unmet(names[place] if names else f"parameter {place}", p)
                    seen, held = watch.seen[p], self.state[p]
                    fresh = {"A": seen.xx / seen.rows, "B": seen.yy / draws}
                    for key, factor in fresh.items():
                        held[key] = torch.lerp(factor, held[key], group["forget"]) if key in held else factor
                    held.setdefault("step", torch.zeros((), dtype=torch.float32))
                    held["view"] = list(seen.view)
                    held["left"], held["right"] = _inverses(held["B"], held["A"], group["damping"])

    def advance(self, group: Group, state: Held) -> None:
        params, grads, states = collect(group, state, _unseen)
        if not params:
            return
        count_updates(states)
        if self.outputs is None or self.likelihood is None:
            cure = "Call optimiser.observe(lambda: model(x), Categorical()) first."
            reject("outputs", None, "no curvature was observed", cure)
        directions = [_direction(g, held) for g, held in zip(grads, states, strict=True)]
        slope, square = (
            sum(float((d * x).sum()) for d, x in zip(directions, xs, strict=True)) for xs in (grads, directions)
        )
        bend = _bend(self.outputs, self.likelihood, params, directions)
        alpha = slope / (bend + group["damping"] * square) if square > 0 else 0.0
        foreach.mul_(params, 1.0 - group["lr"] * group["weight_decay"])
        foreach.add_(params, directions, alpha=-float(group["lr"]) * alpha)


def _unmet(name: str, p: Tensor) -> NoReturn:
    why = (
        "it was met in no linear map that the graph of the outputs holds: weights made from parameters, tables, and "
        "solves by Checkpointed or Backsolve, which keep no graph, are not served"
    )
    cure = "Evaluate the outputs with gradient=Direct(), or leave it to another optimiser, such as BlockwiseAdamW."
    reject(name, tuple(p.shape), why, cure)


def _unseen(p: Tensor) -> dict[str, Any]:
    cure = "Call optimiser.observe(lambda: model(x), Categorical()) first."
    reject("parameter", tuple(p.shape), "no curvature was observed for it", cure)


def _inverses(b: Tensor, a: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """(B + sqrt(lam)/pi)^{-1} and (A + sqrt(lam) pi)^{-1}."""
    tiny = torch.finfo(a.dtype).tiny
    pi = (a.diagonal().mean().clamp_min(tiny) / b.diagonal().mean().clamp_min(tiny)).sqrt()
    root = damping**0.5
    return tuple(
        torch.cholesky_inverse(torch.linalg.cholesky(x + shift * torch.eye(x.shape[0], dtype=x.dtype, device=x.device)))
        for x, shift in ((b, root / pi), (a, root * pi))
    )  # pyright: ignore[reportReturnType]


def _direction(g: Tensor, held: dict[str, Any]) -> Tensor:
    size, stride, offset = held["view"]
    d = torch.zeros_like(g, memory_format=torch.contiguous_format)
    matrix = g.contiguous().as_strided(size, stride, offset)
    d.as_strided(size, stride, offset).copy_(held["left"] @ matrix @ held["right"])
    return d


def _bend(
    outputs: Callable[[], Tensor], likelihood: AbstractLikelihood, params: list[Tensor], directions: list[Tensor]
) -> float:
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
