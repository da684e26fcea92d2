"""A path of states from a file: how far it is from a geodesic, and from an extremal of an attention flow."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import NamedTuple, final

import numpy as np
import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Mass, Positions, Tensor
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.sweep import AbstractCell, Row
from continua.lab.variations.action import SPHERE, Path, PathAction, Velocity, tangential
from continua.lab.variations.cells import angles, sphere_flow
from continua.lab.verdicts import at_most
from continua.model import ContinuousTransformer, load
from continua.runs import Curve

_CURE = "Write it with numpy.savez(file, states=..., mask=...), states of shape (layers + 1, tokens, width)."
EXPLAINED = 0.1
"""The share of the kinetic residual that the flow may leave, for the path to be called its extremal."""


class GivenStates(NamedTuple):
    """States of one sequence at every layer, and which of its tokens are there."""

    states: Path
    mass: Mass
    positions: Positions | None

    @classmethod
    def read(cls, file: str) -> "GivenStates":
        """From an `.npz` with `states` (layers + 1, tokens, width), and one number per token each, where they matter:

        `mask`, zero for absent tokens; `mass` and `positions`, those of the cloud that the model moved.
        """
        try:
            with np.load(file, allow_pickle=False) as arrays:
                held = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            reject("--trajectory", file, f"it cannot be read as an .npz file ({error})", _CURE)
        if "states" not in held or held["states"].ndim != 3 or len(held["states"]) < 3:
            shapes = {name: array.shape for name, array in held.items()}
            reject("--trajectory", shapes, "three or more layers of states are needed", _CURE)
        states = torch.as_tensor(held["states"], dtype=torch.float64)[:, None]
        tokens = states.shape[2]
        given = {name: np.asarray(held.get(name, np.ones(tokens)), float) for name in ("mask", "mass", "positions")}
        for name, values in given.items():
            if values.shape != (tokens,):
                reject(f"--trajectory: {name}", values.shape, f"there are {tokens} tokens", _CURE)
        mass = torch.as_tensor(np.where(given["mask"] != 0, given["mass"], 0.0))[None]
        if not bool((mass > 0).any()):
            reject("--trajectory: mask", "all zero", "no token is there", _CURE)
        positions = torch.as_tensor(given["positions"])[None] if "positions" in held else None
        norms = states.norm(dim=-1)[:, mass > 0]
        if not bool(torch.isfinite(norms).all() and (norms > 0).all()):
            reject("--trajectory", "states", "a state is not finite, or zero and without direction", _CURE)
        return cls(torch.where(mass[..., None] > 0, states, 0.0), mass, positions)


@final
class GivenPath(AbstractCell):
    """Residuals of a given path, once normalised; by the flow of a saved model, or by that of a fitted attention.

    Fitted: dx/dt = c P A(x) with Q = K = V = I at the inverse temperature beta, c and (unless given) beta the ones of
    least action. Depth goes from 0 to 1, or as far as that of the model.
    """

    file: str
    model: str = ""
    beta: float | None = None

    def measure(self) -> Row:
        states, mass, positions = GivenStates.read(self.file)
        steps, there = len(states) - 1, mass[0] > 0
        radii = torch.where(mass[..., None] > 0, states.norm(dim=-1, keepdim=True), 1.0)
        path, inner = SPHERE.project(states), radii[:, :, there]
        depth, velocity, fitted = self._velocity(path, mass, positions, radii)
        h = depth / steps
        kinetic, full = (PathAction(h, G).residuals(path).norm(dim=-1)[:, 0, there] for G in (None, velocity))
        length, straight = angles(path[:-1], path[1:]).sum(0), angles(path[:1], path[-1:])[0]
        own = PathAction(h, velocity)
        return {
            "layers": steps,
            "tokens": int(there.sum()),
            "norms": [float(inner.min()), float(inner.mean()), float(inner.max())],
            "norm at the end, of the start": float((inner[-1] / inner[0]).mean()),
            "kinetic residual": _root_mean(kinetic),
            "full residual": _root_mean(full),
            "full of kinetic": _root_mean(full) / max(_root_mean(kinetic), 1e-300),
            "action": float(own.value(path)),
            "kinetic action": float(PathAction(h).value(path)),
            "path, of its geodesic": float((length / straight.clamp_min(1e-300))[0, there].max()),
            **fitted,
            "along": {"kinetic": kinetic.mean(-1).tolist(), "full": full.mean(-1).tolist()},
        }

    def _velocity(
        self, path: Path, mass: Mass, positions: Positions | None, radii: Tensor
    ) -> tuple[float, Velocity, dict[str, float]]:
        if self.model:
            model = load(self.model)
            if not isinstance(model, ContinuousTransformer):
                reject("--model", self.model, "it has more than one flow", "Save its encoder or decoder alone.")
            flow = model.double().eval().requires_grad_(False).flow
            if flow.stagger is not None:
                why = "its flow is staggered: the velocity jumps, and a path has no acceleration there"
                reject("--model", self.model, why, "Train it with --no-stagger, or build it with Depth(stagger=False).")
            return flow.depth, tangential(flow, mass, positions, 0.5 * (radii[1:] + radii[:-1])), {}
        beta = _fit_beta(path, mass) if self.beta is None else self.beta
        G, c, _ = _fit_pace(path, mass, beta)
        return 1.0, lambda z, x: c * G(z, x), {"beta": beta, "pace": c}


def _fit_pace(path: Path, mass: Mass, beta: float) -> tuple[Velocity, float, float]:
    """G at this beta, the c of least sum |v - c G|^2, and that sum."""
    G, steps = tangential(sphere_flow(0, beta, path.shape[-1]), mass), len(path) - 1
    with torch.no_grad():
        v = PathAction(1.0 / steps).defects(path)
        g = v - PathAction(1.0 / steps, G).defects(path)
        c = float((v * g).sum() / g.square().sum().clamp_min(1e-300))
        return G, c, float((v - c * g).square().sum())


def _fit_beta(path: Path, mass: Mass) -> float:
    """The beta of least action between 0.01 and 100: a grid, then golden sections."""

    def off(log: float) -> float:
        return _fit_pace(path, mass, math.exp(log))[2]

    grid = [math.log(0.01) + k * math.log(1e4) / 24 for k in range(25)]
    best = min(range(25), key=lambda k: off(grid[k]))
    low, high = grid[max(0, best - 1)], grid[min(24, best + 1)]
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    for _ in range(40):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if off(a) < off(b) else (a, high)
    return math.exp(0.5 * (low + high))


def _root_mean(values: Float[Tensor, "depths tokens"]) -> float:
    return float(values.square().mean().sqrt())


@final
class TrajectoryQuestion(AbstractExperiment):
    """Whether the states of a file are an extremal of an attention flow on the sphere."""

    file: str
    model: str = ""
    beta: float | None = None

    name = "euler-lagrange"
    claim = (
        "this path is an extremal of the action of its attention flow: what is left is little of what geodesics miss"
    )
    formula = 'P_x ( dot w_i + sum_j (d_{x_i} G_j)^T w_j ) = 0 " against " P_x ddot x_i = 0'
    source = "arXiv 2507.15431; docs/mathematics.md, section 10"

    def quick(self) -> "TrajectoryQuestion":
        return self

    def cells(self) -> Sequence[AbstractCell]:
        if not FilePath(self.file).is_file():
            reject("--trajectory", self.file, "there is no such file", _CURE)
        return [GivenPath(self.file, self.model, self.beta)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        (row,) = rows
        measured = {name: value for name, value in row.items() if name != "along"}
        share = row["full of kinetic"]
        series = [Curve.of(name, range(1, row["layers"]), values, mark="both") for name, values in row["along"].items()]
        figure = curves("Euler-Lagrange residual along depth", "layer", "mean over tokens", series, "y")
        judgement = at_most("full residual of the kinetic one", share, EXPLAINED)
        return Findings((figure,), measured, {"full of kinetic": AtMost(EXPLAINED)}, judgement)
