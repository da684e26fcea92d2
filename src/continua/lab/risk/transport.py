"""`transport`: the law of hidden states and the continuity equation, along layers and on a grid of the circle."""

import math
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch

from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.clusters.particles import angular_velocity
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import attention_flow, identity_theta, in_ball, random_theta
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, at_most, equals
from continua.model import Flow
from continua.operators import Attention
from continua.runs import Curve
from continua.solve import RK4, Direct, Euler, Fixed, State, Step, integrate
from continua.spaces import Cloud, Sphere


@final
class WeakForm(AbstractCell):
    """How far the law of the states of L layers is from the weak form of the continuity equation.

        max_{j, phi} | (1/eps) ( int phi dmu_{j+1} - int phi dmu_j ) - int <grad phi, f> dmu_j |

    mu_j is the law of the tokens of many sequences with the label of each. Test functions are waves cos<k, x> and
    sin<k, x> of random k, alone and of one label alone. With `updates` the network is trained first.
    """

    layers: tuple[int, ...]
    sequences: int
    updates: int = 0
    heads: int = 3
    width: int = 4
    functions: int = 12

    def measure(self) -> Row:
        x = in_ball((self.sequences, 8, self.width), 1.5, 71)
        labels = (x[:, :, 0].mean(1) > 0).double()
        operator = Attention(self.heads, self.width, beta=1.0, biased=False, head_masses=True)
        flow = attention_flow(operator, random_theta(self.heads, self.width, self.width, 1.5, 72))
        accuracy = self._train(flow, x, labels)
        tests = self._tests(labels)
        found = []
        for L in self.layers:
            bound, worst = flow.bind(Cloud(x)), 0.0
            state = State(x)
            for j in range(L):
                after = Euler().step(bound, Step(j / L, 1.0 / L), state).state
                velocity = bound(j / L, state).x
                points = state.x.detach().requires_grad_()
                for phi in tests:
                    (slope,) = torch.autograd.grad(phi(points), points)
                    change = L * float(phi(after.x) - phi(state.x))
                    worst = max(worst, abs(change - float((slope * velocity).sum())))
                state = after
            found.append(worst)
        return {"layers": list(self.layers), "updates": self.updates, "gaps": found, "accuracy": accuracy}

    def _tests(self, labels: Float[Tensor, " batch"]) -> list[Callable[[Points], Tensor]]:
        k = torch.randn(self.functions, self.width, generator=generator_of(73), dtype=torch.float64)
        of_label = labels[:, None].expand(-1, 8)

        def wave(i: int) -> Callable[[Points], Tensor]:
            shift, weight = 0.5 * math.pi * (i % 2), of_label if i % 4 >= 2 else torch.ones_like(of_label)
            return lambda x: (weight * torch.cos(x @ k[i] + shift)).mean()

        return [wave(i) for i in range(self.functions)]

    def _train(self, flow: Flow, x: Points, labels: Float[Tensor, " batch"]) -> float:
        """Cross-entropy of a fixed readout of the mean token, 8 layers; the accuracy that is reached."""

        def logits() -> Tensor:
            bound = flow.bind(Cloud(x))
            end = integrate(bound, bound.initial(), (0.0, 1.0), Euler(), Fixed(8), Direct()).x
            return 4.0 * end.mean(1)[:, 1]

        optimiser = torch.optim.AdamW(flow.requires_grad_(True).parameters(), 0.01, weight_decay=1.0)
        for _ in range(self.updates):
            optimiser.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(logits(), labels).backward()
            optimiser.step()
        flow.requires_grad_(False)
        return float(((logits() > 0).double() == labels).double().mean())


def start_density(angles: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """A density on the circle."""
    return (1.0 + 0.5 * angles.cos() + 0.3 * (2.0 * angles).sin()) / (2.0 * math.pi)


@final
class CircleLaw(AbstractCell):
    """Particles on the circle against a spectral solution of d_t rho + d_theta( rho V ) = 0, in W_1.

    Both move by the project's attention with Q = K = V = I: particles of equal mass, placed at the quantiles of the
    first density, and nodes of a grid whose masses are the density there. Derivatives on the grid are those of the
    trigonometric polynomial through it.
    """

    particles: tuple[int, ...]
    nodes: int = 64
    beta: float = 2.0
    time: float = 1.0
    steps: int = 64

    def measure(self) -> Row:
        angles, rho = self.solve_grid(self.nodes)
        _, coarse = self.solve_grid(self.nodes // 2)
        fine = np.fft.irfft(np.fft.rfft(rho), 4096) * 4096 / self.nodes
        mass, ot = np.clip(fine, 0.0, None), extra("ot", "peers")
        places = np.arange(4096) / 4096
        gaps = []
        for count in self.particles:
            moved = np.mod(self._move(self._quantiles(count)).numpy() / (2.0 * math.pi), 1.0)
            gaps.append(float(ot.wasserstein_circle(moved, places, v_weights=mass / mass.sum(), p=1)[0]))
        start = start_density(angles).numpy()
        return {
            "particles": list(self.particles),
            "gaps": gaps,
            "grid": float(np.abs(rho[::2] - coarse).max()),
            "mass": abs(float(rho.mean()) * 2.0 * math.pi - 1.0),
            "angles": angles.tolist(),
            "densities": [start.tolist(), rho.tolist()],
        }

    def solve_grid(self, nodes: int) -> tuple[Float[Tensor, " nodes"], np.ndarray]:
        """The density at the nodes at the last time."""
        angles = 2.0 * math.pi * torch.arange(nodes, dtype=torch.float64) / nodes
        points = torch.stack([angles.cos(), angles.sin()], -1)[None]
        tangents = torch.stack([-angles.sin(), angles.cos()], -1)[None]
        operator, waves = Attention(1, 2, beta=self.beta, biased=False), 1j * torch.arange(nodes // 2 + 1)
        waves[-1] = 0.0  # the highest wave has no derivative on the grid

        def slope(t: Tensor, rho: Tensor) -> Tensor:
            pull = operator.velocity(identity_theta(2), Cloud(points, rho.clamp_min(0.0)[None]))
            flux = rho * (tangents * Sphere().tangent(points, pull)).sum(-1)[0]
            return -torch.fft.irfft(waves * torch.fft.rfft(flux), nodes)

        solved = integrate(slope, start_density(angles), (0.0, self.time), RK4(), Fixed(2 * self.steps), Direct())
        return angles, solved.x.numpy()

    def _quantiles(self, count: int) -> Float[Tensor, " count"]:
        """Angles at which the distribution function is (i + 1/2)/count, by bisection."""
        level = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        low, high = torch.zeros_like(level), torch.full_like(level, 2.0 * math.pi)
        for _ in range(60):
            middle = 0.5 * (low + high)
            share = (middle + 0.5 * middle.sin() + 0.15 * (1.0 - (2.0 * middle).cos())) / (2.0 * math.pi)
            low, high = torch.where(share < level, middle, low), torch.where(share < level, high, middle)
        return 0.5 * (low + high)

    def _move(self, angles: Float[Tensor, " count"]) -> Float[Tensor, " count"]:
        def slope(t: Tensor, angles: Tensor) -> Tensor:
            return angular_velocity(angles[None], self.beta)[0]

        return integrate(slope, angles, (0.0, self.time), RK4(), Fixed(self.steps), Direct()).x


@final
class Transport(AbstractExperiment):
    """The weak form along drawn and trained layers, and W_1 between particles and a grid on the circle."""

    name = "transport"
    claim = (
        "the law of hidden states, with its labels, solves the continuity equation: along L layers its weak form is "
        "off by O(1/L), before and after training; particles on the circle approach the solution on a grid"
    )
    formula = 'd_z mu + "div" (mu f) = 0 , " " frac{d}{dz} int phi dmu = int <grad phi, f> dmu'
    source = "arXiv 2606.23235; docs/mathematics.md, section 9"

    layers: tuple[int, ...] = (8, 16, 32, 64, 128)
    sequences: int = 256
    updates: int = 40
    particles: tuple[int, ...] = (16, 32, 64, 128, 256)

    def quick(self) -> "Transport":
        return Transport(layers=(8, 16, 32, 64), sequences=64, updates=40, particles=(16, 32, 64, 128))

    def cells(self) -> Sequence[AbstractCell]:
        return [
            WeakForm(self.layers, self.sequences),
            WeakForm(self.layers, self.sequences, self.updates),
            CircleLaw(self.particles),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        drawn, trained, circle = rows
        slopes = {
            "slope in L: weak form, drawn": slope_interval(self.layers, drawn["gaps"]),
            "slope in L: weak form, trained": slope_interval(self.layers, trained["gaps"]),
            "slope in N: W_1 on the circle": slope_interval(self.particles, circle["gaps"]),
        }
        gain = trained["accuracy"] - drawn["accuracy"]
        judgement = all_of(
            *(equals(name, slope, -1.0, 0.2) for name, slope in slopes.items()),
            at_most("density on half the grid, largest difference", circle["grid"], 1e-6),
            at_most("mass lost on the grid", circle["mass"], 1e-12),
            at_least("accuracy gained by training", gain, 0.1),
        )
        measured = {**slopes, "weak form off by, drawn": drawn["gaps"], "weak form off by, trained": trained["gaps"]}
        measured |= {"W_1": circle["gaps"], "grid": circle["grid"], "accuracy": trained["accuracy"]}
        weak = [
            Curve.of(name, self.layers, row["gaps"], mark="both")
            for name, row in (("drawn weights", drawn), ("trained weights", trained))
        ]
        law = [Curve.of("N particles", self.particles, circle["gaps"], mark="both")]
        law.append(Curve.of("1/(4N)", self.particles, [0.25 / n for n in self.particles], mark="dashed"))
        names = ("at the start", "at the end")
        densities = [Curve.of(n, circle["angles"], d) for n, d in zip(names, circle["densities"], strict=True)]
        figures = (
            curves("weak form of the continuity equation along layers", "layers L", "largest defect", weak, "xy"),
            curves("particles against the grid", "particles N", "W_1 (circumference 1)", law, "xy"),
            curves("density on the circle", "angle", "density", densities),
        )
        return Findings(figures, measured, {**dict.fromkeys(slopes, -1.0), "grid": AtMost(1e-6)}, judgement)
