"""Steps that return to a manifold."""

import dataclasses
from collections.abc import Sequence

from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.methods.splitting import AbstractSplitting
from continua.solve.state import AbstractBound, State, displaced, within
from continua.spaces import AbstractManifold


@dataclasses.dataclass(frozen=True)
class Projected(AbstractMethod):
    """x' = P(step(x)), P the projection on a manifold: the sphere-normalised Transformer.

    Meant for manifolds without trained parameters (the sphere, norms of gain 1), on which the projected steps converge
    to the flow of the tangential velocity. A velocity with a normal part is projected to first order only, which is
    what x <- P(x + f(x)) does, and a cost sees the mean velocity of the whole step; with `tangent=True` every stage
    takes the tangential velocity instead, and the step keeps the order of `sub` and its error estimate. Tokens should
    start on the manifold. E. Hairer, C. Lubich, G. Wanner, Geometric Numerical Integration, section IV.4.
    """

    sub: AbstractMethod
    manifold: AbstractManifold
    tangent: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sub, Projected):
            reject("sub", self.sub, "it is projected already", "Pass the bare method.")

    @property
    def order(self) -> int:
        return self.sub.order if self.tangent else 1

    @property
    def error_order(self) -> int | None:
        """The estimate of `sub` does not see what the projection does to a normal velocity."""
        return self.sub.error_order if self.tangent else None

    @property
    def stages(self) -> int:
        return self.sub.stages

    @property
    def reversible(self) -> bool:
        return False

    def breaks(self, bound: AbstractBound, marks: Sequence[float]) -> tuple[float, ...]:
        return self.sub.breaks(bound, marks)

    def step(
        self, bound: AbstractBound, z: Depth, dz: Depth, state: State, first: State | None = None, judged: bool = False
    ) -> Stepped:
        if not self.tangent:
            stepped = self.sub.step(bound, z, dz, state)
            points = self.manifold.project(stepped.state.points)
            return stepped._replace(state=displaced(bound, z, dz, state, points))
        stepped = self.sub.step(_Tangential(bound, self.manifold), z, dz, state, first, judged)
        points = self.manifold.project(stepped.state.points)
        return stepped._replace(state=State(points, stepped.state.costs), last=None)

    def dense(
        self, bound: AbstractBound, z: float, dz: float, before: State, stepped: Stepped, fractions: Sequence[float]
    ) -> list[Points]:
        seen = _Tangential(bound, self.manifold) if self.tangent else bound
        return [self.manifold.project(x) for x in self.sub.dense(seen, z, dz, before, stepped, fractions)]


def manifold_of(method: AbstractMethod) -> AbstractManifold | None:
    """The manifold that a stepper, or the sub-method of a splitting, returns to; `None` where there is none."""
    if isinstance(method, Projected):
        return method.manifold
    return manifold_of(method.inner) if isinstance(method, AbstractSplitting) else None


@dataclasses.dataclass(frozen=True)
class _Tangential(AbstractBound):
    """The flow with the normal part of its velocity taken away."""

    whole: AbstractBound
    manifold: AbstractManifold

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.whole.breaks

    @property
    def parts(self) -> Sequence[AbstractBound]:
        return [_Tangential(part, self.manifold) for part in self.whole.parts]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.whole.tensors

    @property
    def weights(self) -> Float[Tensor, "batch tokens"] | None:
        return self.whole.weights

    @property
    def evaluations(self) -> int:
        return self.whole.evaluations

    def __call__(self, z: Depth, state: State, inside: Depth | None = None) -> State:
        slope = self.whole(z, state, inside)
        velocity = self.manifold.tangent(state.points, slope.points)
        return State(velocity, self.whole.rates(within(z, inside), state.points, velocity))

    def rates(self, z: Depth, points: Points, velocity: Points) -> tuple[Tensor, ...]:
        return self.whole.rates(z, points, velocity)
