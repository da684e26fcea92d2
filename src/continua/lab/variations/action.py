"""The action of a path of tokens on the sphere, its Euler-Lagrange residual, its extremals and its second variation."""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias, final

import torch

from continua.core.errors import SolveError
from continua.core.shapes import Float, Mass, Points, Positions, Tensor
from continua.model import Flow
from continua.solve import RK4, Direct, Fixed, State, integrate
from continua.spaces import Cloud, Sphere

Path: TypeAlias = Float[Tensor, "depths batch tokens width"]
Velocity: TypeAlias = Callable[[Float[Tensor, " depths"], Path], Path]
"""G at some depths, the tokens of each depth being a batch of their own."""
SPHERE = Sphere()


def tangential(
    flow: Flow,
    mass: Mass | None = None,
    positions: Positions | None = None,
    radii: Float[Tensor, "depths batch tokens 1"] | None = None,
) -> Velocity:
    """G = P_x f(z, r x) / r, by the flow's own operators; r are the norms that states had before normalisation."""

    def velocity(z: Float[Tensor, " depths"], x: Path) -> Path:
        depths, batch = x.shape[:2]
        r = 1.0 if radii is None else radii[:depths]
        points = (r * x).flatten(0, 1)
        weights, times = (None if w is None else w.repeat(depths, 1) for w in (mass, positions))
        bound = flow.bind(Cloud(points.detach(), weights, times), second_derivatives=True, random=False)
        slope = bound(z.repeat_interleave(batch), State(points)).x.unflatten(0, (depths, batch))
        return SPHERE.tangent(x, slope / r)

    return velocity


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PathAction:
    """S_d = sum_k (h/2) sum_i |w_k^i|^2 ,   w_k = (x_{k+1} - x_k)/h - G(z_k + place h, m_k)

    for a path x_0, ..., x_L on the sphere, m_k the point of the chord at `place`, back on the sphere. Without a
    velocity it is the kinetic action (docs/mathematics.md, section 10).
    """

    h: float
    velocity: Velocity | None = None
    place: float = 0.5

    def defects(self, path: Path) -> Path:
        """w of every step."""
        a, b = path[:-1], path[1:]
        slopes = (b - a) / self.h
        if self.velocity is None:
            return slopes
        z = self.h * (torch.arange(len(a), dtype=path.dtype) + self.place)
        return slopes - self.velocity(z, SPHERE.project(torch.lerp(a, b, self.place)))

    def value(self, path: Path) -> Float[Tensor, ""]:
        """S_d."""
        return 0.5 * self.h * self.defects(path).square().sum()

    def residuals(self, path: Path) -> Path:
        """(1/h) P_x dS_d/dx at the points between the ends: -P_x( dw/dt + sum_j (d_{x_i} G_j)^T w_j ) of the path."""
        x = path.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.value(x), x)
        return SPHERE.tangent(x, slope).detach()[1:-1] / self.h


def largest(vectors: Path) -> float:
    """The longest of all."""
    return float(vectors.norm(dim=-1).max())


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates xi of paths near one: x = project(x + B xi), B an orthonormal basis of each tangent space.

    A projection is a retraction of second order: derivatives in xi up to the second are those on the sphere. The first
    point is fixed, and the last one too where `pinned`.
    """

    path: Path
    pinned: bool

    def free(self) -> Path:
        """The points that may move."""
        return self.path[1:-1] if self.pinned else self.path[1:]

    def bases(self) -> Float[Tensor, "depths batch tokens width less"]:
        x = self.free().unsqueeze(-1)
        eye = torch.eye(x.shape[-2], dtype=x.dtype).expand(*x.shape[:-1], x.shape[-2])
        return torch.linalg.qr(torch.cat([x, eye], -1)).Q[..., 1:]

    def at(self, xi: Tensor) -> Path:
        """The path with these coordinates, in one vector."""
        bases = self.bases()
        moved = SPHERE.project(self.free() + (bases @ xi.view(*bases.shape[:-2], -1, 1)).squeeze(-1))
        return torch.cat([self.path[:1], moved, self.path[-1:]] if self.pinned else [self.path[:1], moved])

    def origin(self) -> Tensor:
        """The coordinates of the path itself."""
        x = self.free()
        return x.new_zeros(x.numel() // x.shape[-1] * (x.shape[-1] - 1))


def extremal(value: Callable[[Path], Tensor], path: Path, pinned: bool, tolerance: float = 1e-10) -> Path:
    """The path near this one at which the gradient vanishes, a minimum or not: Newton's method."""
    for _ in range(30):
        chart = Chart(path, pinned)
        slope = gradient(value, chart)
        if float(slope.abs().max()) <= tolerance:
            return path
        path = chart.at(-torch.linalg.solve(hessian(value, chart), slope)).detach()
    raise SolveError("no extremal was reached", 1.0, "Begin nearer to one, or with a shorter time.")


def minimise(value: Callable[[Path], Tensor], path: Path, pinned: bool, tolerance: float = 1e-10) -> Path:
    """The path of least value near this one: L-BFGS as far as values can tell, then Newton's method."""
    chart = Chart(path, pinned)
    xi = chart.origin().requires_grad_()
    ends = {"max_iter": 500, "tolerance_grad": 0.1 * tolerance, "tolerance_change": 0.0, "history_size": 30}
    optimiser = torch.optim.LBFGS([xi], **ends, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        found = value(chart.at(xi))
        found.backward()
        return found.detach()

    optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return extremal(value, chart.at(xi.detach()), pinned, tolerance)


def gradient(value: Callable[[Path], Tensor], chart: Chart) -> Tensor:
    """The gradient along the sphere at the path of a chart."""
    xi = chart.origin().requires_grad_()
    return torch.autograd.grad(value(chart.at(xi)), xi)[0]


def hessian(value: Callable[[Path], Tensor], chart: Chart) -> Float[Tensor, "modes modes"]:
    """The Hessian along the sphere."""
    return torch.autograd.functional.hessian(lambda xi: value(chart.at(xi)), chart.origin())  # pyright: ignore


def second_variation(value: Callable[[Path], Tensor], path: Path, pinned: bool = True) -> Float[Tensor, " modes"]:
    """Eigenvalues of the Hessian on the sphere, increasing: all positive at a strict minimum."""
    return torch.linalg.eigvalsh(hessian(value, Chart(path, pinned)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Shooting:
    """The Euler-Lagrange equation as an ODE, from one end with a given w(0): apart from any discrete action.

        dx/dt = G + w ,   dw/dt = -P_x sum_j (d_{x_i} G_j)^T w_j - x <dx/dt, w>

    The last term keeps w tangential. G does not depend on depth here; RK4 with equal steps.
    """

    velocity: Velocity
    start: Points
    steps: int
    time: float = 1.0

    def slopes(self, t: Tensor, both: Tensor) -> Tensor:
        with torch.enable_grad():
            x, w = both if both.requires_grad else both.detach().requires_grad_()
            G = self.velocity(torch.zeros(1, dtype=x.dtype), x[None])[0]
            (pulled,) = torch.autograd.grad(G, x, w, create_graph=True)
            moved = G + w
            turned = -SPHERE.tangent(x, pulled) - x * (moved * w).sum(-1, keepdim=True)
            return torch.stack([moved, turned])

    def path(self, w: Points) -> Path:
        """x at every step."""
        times = [self.time * k / self.steps for k in range(self.steps + 1)]
        both = torch.stack([self.start, w])
        xs = integrate(self.slopes, both, (0.0, self.time), RK4(), Fixed(self.steps), Direct(), times).xs
        assert xs is not None
        return xs[:, 0]

    def to(self, end: Points, guess: Points) -> Points:
        """The w(0) that leads to `end`, by Newton's method from a guess."""
        basis, aim = _basis(self.start), _basis(end)

        def miss(c: Tensor) -> Tensor:
            return _coordinates(aim, self.path(_vectors(basis, c))[-1] - end)

        c = _coordinates(basis, guess)
        for _ in range(12):
            with torch.no_grad():
                off = miss(c)
            if float(off.abs().max()) < 1e-9:
                return _vectors(basis, c)
            slopes = torch.autograd.functional.jacobian(miss, c)
            c = c - torch.linalg.solve(slopes, off)  # pyright: ignore[reportArgumentType]
        raise SolveError("shooting missed the other end", self.time, "Begin with a better guess of w(0).")

    @torch.no_grad()
    def spread(self, w: Points, length: float = 1e-5) -> Float[Tensor, " depths"]:
        """det dx(t)/dw(0) along the path, by central differences: it vanishes at the points conjugate to the start."""
        basis = _basis(self.start)
        here = self.path(w)
        columns = []
        for unit in torch.eye(basis.shape[-1] * basis[..., 0, 0].numel(), dtype=w.dtype):
            ahead, behind = (self.path(w + s * length * _vectors(basis, unit)) for s in (1.0, -1.0))
            columns.append((ahead - behind) / (2.0 * length))
        fields = torch.stack(columns, -1)  # (depths batch tokens width modes)
        frames = _moving_basis(here)
        return torch.linalg.det((frames.mT @ fields).flatten(1, 3))


def _basis(x: Points) -> Float[Tensor, "batch tokens width less"]:
    return Chart(torch.stack([x, x, x]), True).bases()[0]


def _moving_basis(path: Path) -> Float[Tensor, "depths batch tokens width less"]:
    """A basis along a path, each carried over from the one before, so that determinants do not change their sign."""
    frames = [_basis(path[0])]
    for x in path[1:]:
        moved = SPHERE.tangent(x.unsqueeze(-2), frames[-1].mT).mT
        q, r = torch.linalg.qr(moved)
        frames.append(q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))
    return torch.stack(frames)


def _vectors(basis: Tensor, c: Tensor) -> Points:
    return (basis @ c.view(*basis.shape[:-2], -1, 1)).squeeze(-1)


def _coordinates(basis: Tensor, v: Points) -> Tensor:
    return (basis.mT @ v.unsqueeze(-1)).flatten()
