"""What `euler-lagrange` measures: residuals along flows and networks, scenarios, conjugate points, gradient flows."""

import math
from collections.abc import Callable
from typing import final

import torch

from continua.core.shapes import Float, Points, Tensor
from continua.lab.clusters.particles import random_tokens
from continua.lab.depth_limit import after_steps
from continua.lab.flows import attention_flow, identity_theta, random_theta, solve_flow
from continua.lab.sweep import AbstractCell, Row
from continua.lab.variations.action import (
    SPHERE,
    Path,
    PathAction,
    Shooting,
    extremal,
    largest,
    minimise,
    second_variation,
    tangential,
)
from continua.model import Flow
from continua.operators import Attention
from continua.solve import RK4, Adaptive, DormandPrince, Euler, Projected, Step
from continua.spaces import Cloud

TANGENT = Projected(DormandPrince(), SPHERE, tangent=True)


def sphere_flow(heads: int, beta: float, width: int = 3) -> Flow:
    """Attention with Q = K = V = I, or with random heads, as a flow of depth 1."""
    if heads == 0:
        return attention_flow(Attention(1, width, beta=beta, biased=False), identity_theta(width))
    operator = Attention(heads, width, beta=beta, biased=False, head_masses=True)
    return attention_flow(operator, random_theta(heads, width, width, 2.0, 5))


def flow_path(flow: Flow, x: Points, layers: int) -> Path:
    """The tangential flow at equal depths, to the last digits."""
    depths = [k / layers for k in range(layers + 1)]
    with torch.no_grad():
        xs = solve_flow(flow, Cloud(x), TANGENT, Adaptive(rtol=1e-12, atol=1e-13, max_steps=100_000), depths).xs
    assert xs is not None
    return xs


def angles(a: Path, b: Path) -> Float[Tensor, "depths batch tokens"]:
    """Geodesic distances."""
    return 2.0 * torch.asin(0.5 * (a - b).norm(dim=-1))


@final
class Residuals(AbstractCell):
    """Euler-Lagrange residuals of a flow's path read at L + 1 depths, and of the same path with a bump in it.

    `heads` = 0 is attention with Q = K = V = I. With `updates` the flow is trained first and the path is that of its
    L projected Euler layers.
    """

    heads: int
    layers: tuple[int, ...]
    beta: float = 2.0
    tokens: int = 4
    bump: float = 0.1
    updates: int = 0

    def measure(self) -> Row:
        flow, x = sphere_flow(self.heads, self.beta), random_tokens(1, self.tokens, 3, 1)
        if self.updates:
            self._train(flow, x)
        G, away = tangential(flow), random_tokens(1, self.tokens, 3, 2)
        found: dict[str, list[float]] = {name: [] for name in ("midpoint", "left", "kinetic", "bumped", "action")}
        path = x[None]
        for L in self.layers:
            path = self._layers(flow, x, L) if self.updates else flow_path(flow, x, L)
            h, wave = 1.0 / L, torch.linspace(0.0, math.pi, L + 1, dtype=x.dtype).sin()[:, None, None, None]
            bumped = SPHERE.project(path + self.bump * wave * away)
            own = PathAction(h, G)
            for name, value in {
                "midpoint": largest(own.residuals(path)),
                "left": largest(PathAction(h, G, place=0.0).residuals(path)),
                "kinetic": largest(PathAction(h).residuals(path)),
                "bumped": largest(own.residuals(bumped)),
                "action": float(own.value(path)),
            }.items():
                found[name].append(value)
        length, straight = angles(path[:-1], path[1:]).sum(0), angles(path[:1], path[-1:])[0]
        along = (0.5 * PathAction(1.0 / len(path[1:])).defects(path).square().sum((-1, -2, -3))).tolist()
        return {**found, "layers": list(self.layers), "longer": float((length / straight).max()), "energy": along}

    def _train(self, flow: Flow, x: Points) -> None:
        """Towards what other weights make of the tokens, 16 layers."""
        teacher = sphere_flow(3, 4.0)
        target = after_steps(teacher, x, 16, Projected(RK4(), SPHERE, tangent=True))
        optimiser = torch.optim.Adam(flow.requires_grad_(True).parameters(), 0.03)
        for _ in range(self.updates):
            optimiser.zero_grad()
            (after_steps(flow, x, 16, Projected(Euler(), SPHERE)) - target).square().sum().backward()
            optimiser.step()
        flow.requires_grad_(False)

    def _layers(self, flow: Flow, x: Points, layers: int) -> Path:
        return torch.stack(layer_states(flow, x, layers))


def layer_states(flow: Flow, x: Points, layers: int) -> list[Points]:
    """x_{k+1} = P(x_k + f(x_k)/L), every layer."""
    bound, stepper, states = flow.bind(Cloud(x)), Projected(Euler(), SPHERE), [x]
    state = bound.initial()
    with torch.no_grad():
        for k in range(layers):
            state = stepper.step(bound, Step(k / layers, 1.0 / layers), state).state
            states.append(state.x)
    return states


@final
class Scenarios(AbstractCell):
    """Extremals at several numbers of steps: free end, both ends fixed, terminal loss with either action.

    - free end: the discrete path of least action has action 0 and is the flow, up to O(h^2);
    - both ends fixed: the distance from the solution of the ODE by shooting, O(h^2);
    - terminal loss 1/2 |x(T) - y|^2: w(T) = -P grad loss, O(h^2);
    - the same with the kinetic action: a great circle that ends where its angle is the sine of what is left, O(h^2).
    """

    layers: tuple[int, ...]
    tokens: int = 2
    beta: float = 2.0

    def measure(self) -> Row:
        flow, x = sphere_flow(0, self.beta), random_tokens(1, self.tokens, 3, 1)
        G = tangential(flow)
        y = SPHERE.project(flow_path(flow, x, 1)[-1] + 0.7 * random_tokens(1, self.tokens, 3, 9))
        shooting = Shooting(G, x, self.layers[-1])

        def loss(path: Path) -> Tensor:
            return 0.5 * (path[-1] - y).square().sum()

        found: dict[str, list[float]] = {n: [] for n in ("free", "zero", "pinned", "natural", "geodesic", "lowest")}
        paths: list[Path] = []
        for L in self.layers:
            own, kinetic = PathAction(1.0 / L, G), PathAction(1.0 / L)
            chord = SPHERE.project(torch.lerp(x, y, torch.linspace(0, 1, L + 1, dtype=x.dtype)[:, None, None, None]))
            free = minimise(own.value, chord, pinned=False)
            found["free"].append(largest(free - flow_path(flow, x, L)))
            found["zero"].append(float(own.value(free)))
            paths.append(minimise(own.value, chord, pinned=True))
            pulled = minimise(lambda p, own=own: own.value(p) + loss(p), chord, pinned=False)
            end = pulled[-1]
            w = own.defects(pulled)  # in the middle of steps: the last two lead to the end
            found["natural"].append(largest(SPHERE.tangent(end, 1.5 * w[-1] - 0.5 * w[-2] - (y - end))))
            straight = minimise(lambda p, kinetic=kinetic: kinetic.value(p) + loss(p), chord, pinned=False)
            went, left = angles(straight[:1], straight[-1:])[0], angles(straight[-1:], y[None])[0]
            found["geodesic"].append(float((went - left.sin()).abs().max()))
        last = PathAction(1.0 / self.layers[-1], G)
        found["lowest"] = [float(second_variation(last.value, paths[-1])[0]) * self.layers[-1]]
        w = shooting.to(y, last.defects(paths[-1])[0])
        exact = shooting.path(w).detach()
        found["pinned"] = [largest(p - exact[:: self.layers[-1] // (len(p) - 1)]) for p in paths]
        return {**found, "layers": list(self.layers)}


@final
class Inexact(AbstractCell):
    """Paths dx/dt = G + eps u: their residual is O(eps), their action O(eps^2)."""

    sizes: tuple[float, ...]
    layers: int = 64

    def measure(self) -> Row:
        flow, x = sphere_flow(0, 2.0), random_tokens(1, 4, 3, 1)
        G, u = tangential(flow), random_tokens(1, 4, 3, 3)
        path = flow_path(flow, x, self.layers)
        t = torch.linspace(0.0, 1.0, self.layers + 1, dtype=x.dtype)[:, None, None, None]
        own, residuals, actions = PathAction(1.0 / self.layers, G), [], []
        for eps in self.sizes:
            inexact = SPHERE.project(path + eps * t.sin() * u)
            residuals.append(largest(own.residuals(inexact)))
            actions.append(float(own.value(inexact)))
        return {"sizes": list(self.sizes), "residuals": residuals, "actions": actions}


@final
class ConjugatePoints(AbstractCell):
    """Where extremals stop being minima: the index of the second variation against the zeros of Jacobi fields.

    Tokens go round by `turn`. Kinetic action, one token: the first conjugate point of a great circle is at the angle
    pi. With the attention flow: the number of negative eigenvalues at the end equals the number of conjugate points on
    the way (Morse's index theorem), found by shooting.
    """

    layers: int
    turn: float = 1.4 * math.pi
    beta: float = 1.0

    def measure(self) -> Row:
        L, fine = self.layers, 3 * self.layers
        kinetic, circle = PathAction(1.0 / fine), self._circles(1, fine)

        def lowest(k: int) -> float:
            return float(second_variation(kinetic.value, circle[: k + 1])[0]) * fine

        before, after = 2, fine
        while after - before > 1:  # eigenvalues fall as paths become longer
            middle = (before + after) // 2
            before, after = (middle, after) if lowest(middle) > 0.0 else (before, middle)
        share = lowest(before) / (lowest(before) - lowest(after))
        G = tangential(sphere_flow(0, self.beta))
        own = PathAction(1.0 / L, G)
        path = extremal(own.value, self._circles(2, L), pinned=True)
        places = range(L // 2, L + 1, max(1, L // 8))
        eigenvalues = [second_variation(own.value, path[: k + 1]) * L for k in places]
        shooting = Shooting(G, path[0], 2 * L)
        spread = shooting.spread(shooting.to(path[-1], own.defects(path)[0]).detach())
        signs = spread[2:].sign()
        return {
            "angle": self.turn * (before + share) / fine,
            "places": [k / L for k in places],
            "indices": [int((found < 0.0).sum()) for found in eigenvalues],
            "lowest": [float(found[0]) for found in eigenvalues],
            "zeros": int((signs[1:] != signs[:-1]).sum()),
            "layers": L,
        }

    def _circles(self, tokens: int, steps: int) -> Path:
        """Great circles, the second token's shorter by a fifth: conjugate points that meet would hide each other."""
        a = random_tokens(1, tokens, 3, 4)
        b = SPHERE.project(SPHERE.tangent(a, random_tokens(1, tokens, 3, 6)))
        turns = self.turn * torch.tensor([1.0, 0.8], dtype=a.dtype)[:tokens, None]
        t = turns * torch.linspace(0, 1, steps + 1, dtype=a.dtype)[:, None, None, None]
        return t.cos() * a + t.sin() * b


@final
class GradientFlow(AbstractCell):
    """Unnormalised attention with Q = K = V = I is grad E, E = (1/2 beta) sum_ij e^{beta <x_i, x_j>}.

    Along its flow P x'' = grad 1/2 |grad E|^2. On the left stands the project's attention, times its normaliser
    sum_j e^{beta <x_i, x_j>}, differentiated along itself; on the right E alone.
    """

    tokens: int
    width: int
    beta: float

    def measure(self) -> Row:
        attention = tangential(sphere_flow(0, self.beta, self.width))

        def velocity(x: Points) -> Points:
            normaliser = (self.beta * x @ x.mT).exp().sum(-1, keepdim=True)
            return normaliser * attention(torch.zeros(1, dtype=x.dtype), x[None])[0]

        x = random_tokens(1, self.tokens, self.width, 7)
        G = velocity(x)
        turned = torch.autograd.functional.jvp(velocity, x, G)[1]
        assert isinstance(turned, Tensor)
        x.requires_grad_()
        energy = (self.beta * x @ x.mT).exp().sum() / (2.0 * self.beta)
        pull = SPHERE.tangent(x, torch.autograd.grad(energy, x, create_graph=True)[0])
        (slope,) = torch.autograd.grad(0.5 * pull.square().sum(), x)
        left, right = SPHERE.tangent(x, turned).detach(), SPHERE.tangent(x, slope).detach()
        return {"gap": float((left - right).norm() / right.norm())}


@final
class Extensions(AbstractCell):
    """P_x( d/dt L_v - L_x ) of one Lagrangian on the tangent bundle, written off it in several ways.

        L = 1/2 |v - G(x)|^2 ,   L + (|x|^2 - 1) a(x, v) ,   L + <x, v> b(x, v) ,   L( project x, P_x v )

    All agree where |x| = 1 and <x, v> = 0. Along a path there, d/dt = <x', d_x> + <x'', d_v>, at any x'' with
    <x, x''> = -|x'|^2. `apart` is the largest difference with the projection, `unprojected` that without it.
    """

    tokens: int
    heads: int

    def measure(self) -> Row:
        G = tangential(sphere_flow(self.heads, 2.0))
        x, aside = random_tokens(1, self.tokens, 3, 1), random_tokens(2, self.tokens, 3, 8)
        v = SPHERE.tangent(x, aside[:1])
        bent = SPHERE.tangent(x, aside[1:]) - x * v.square().sum(-1, keepdim=True)

        def plain(x: Points, v: Points) -> Tensor:
            return 0.5 * (v - G(torch.zeros(1, dtype=x.dtype), x[None])[0]).square().sum()

        def nearest(x: Points, v: Points) -> Tensor:
            return plain(SPHERE.project(x), SPHERE.tangent(SPHERE.project(x), v))

        written = (
            plain,
            lambda x, v: plain(x, v) + ((x.square().sum(-1) - 1.0) * (x + 2.0 * v).sin().sum(-1)).sum(),
            lambda x, v: plain(x, v) + ((x * v).sum(-1) * (x - v).cos().sum(-1)).sum(),
            nearest,
        )
        whole = [euler_lagrange(lagrangian, x, v, bent) for lagrangian in written]
        along = [SPHERE.tangent(x, one) for one in whole]
        size = float(along[0].norm())
        return {
            "apart": max(float((one - along[0]).norm()) for one in along[1:]) / size,
            "unprojected": min(float((one - whole[0]).norm()) for one in whole[1:]) / size,
        }


def euler_lagrange(lagrangian: Callable[[Points, Points], Tensor], x: Points, v: Points, bent: Points) -> Points:
    """d/dt L_v - L_x at a point of a path with velocity v and acceleration `bent`."""
    x, v = x.clone().requires_grad_(), v.clone().requires_grad_()
    by_x, by_v = torch.autograd.grad(lagrangian(x, v), (x, v), create_graph=True)
    # <d, L_v> differentiated in d: the transpose of a transpose, L_vx x' + L_vv x''
    d = torch.zeros_like(v, requires_grad=True)
    pulled = torch.autograd.grad(by_v, (x, v), d, create_graph=True)
    (change,) = torch.autograd.grad(pulled, d, (v.detach(), bent))
    return (change - by_x).detach()
