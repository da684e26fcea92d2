"""What happens to tokens along depth: their paths, the attention between them, costates and the Hamiltonian."""

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from continua.control import Objective, PontryaginReport, pontryagin
from continua.core.batch import Batch
from continua.model import ContinuousTransformer, Part
from continua.operators import attention_weights
from continua.runs import Curve, Heat, Lines, Note, Paths, Scale, Section, Table, Verdict
from continua.solve import Solution, Solver, manifold_of
from continua.spaces import Cloud

_MOST = 64
"""More tokens than this are thinned out evenly in a figure."""
_CURVE = 5
"""Fewer depths than this make no curve: of a solve in one to three steps the conditions alone are told."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model with one embedded batch; `encoded` is the encoder's tokens, where the model is a decoder."""

    model: ContinuousTransformer
    cloud: Cloud
    encoded: Cloud | None = None

    @classmethod
    def of(cls, model: ContinuousTransformer, inputs: tuple[Any, ...], encoded: Cloud | None = None) -> "Subject":
        """The model as it is seen, in evaluation mode; the one that was given is left in its own."""
        seen = model.in_eval_mode()
        with torch.no_grad():
            return cls(seen, seen(*inputs, encoded=encoded, full=True).cloud, encoded)

    def first(self) -> "Subject":
        """With the first sequence of the batch alone."""
        encoded = None if self.encoded is None else self.encoded.first(1)
        return dataclasses.replace(self, cloud=self.cloud.first(1), encoded=encoded)

    @torch.no_grad()
    def solve(self, save_at: tuple[float, ...] = ()) -> Solution:
        """Its solve, without a graph."""
        return self.model(self.cloud, save_at=save_at, encoded=self.encoded, full=True).solution

    def answers(self) -> Cloud:
        """Its tokens at the end, read out: what a decoder reads."""
        with torch.no_grad():
            return self.cloud.at(self.model(self.cloud, encoded=self.encoded))


def trajectory_section(subject: Subject, measured: str, frames: int = 33) -> Section:
    """X(z) of one sequence, in the plane of its two principal directions over all depths."""
    cloud, depths = subject.cloud, _depths(subject.model, frames)
    states = subject.solve(save_at=depths).xs
    assert states is not None
    shown = _select_tokens(cloud)
    tokens = states[:, 0, shown].double().cpu().numpy()
    plane, shares = _principal(tokens)
    figure = Paths(
        title="Tokens along depth",
        caption="Open circles are the embedded tokens X(0), full ones the tokens at the depth of the slider. "
        f"The plane holds {shares.sum():.0%} of their variance.",
        measured=measured + "; principal directions of the states of all depths together",
        x=Scale(f"first principal direction ({shares[0]:.0%})"),
        y=Scale(f"second principal direction ({shares[1]:.0%})"),
        depths=np.array(depths),
        points=plane,
        tokens=_times(cloud)[shown],
        hue="token" if cloud.positions is None else "token time t",
    )
    return Section("Tokens", ("Every token of one sequence, from its embedding to the readout.",), figures=(figure,))


@torch.no_grad()
def attention_section(subject: Subject, measured: str, frames: int = 13) -> Section | None:
    """alpha(t, s) of one sequence at several depths, for every head and their mean; nothing without attention.

    Cross-attention has the encoder's tokens as its columns.
    """
    model, cloud, encoded = subject.model, subject.cloud, subject.encoded
    depths = _depths(model, frames)
    states = subject.solve(save_at=depths).xs
    assert states is not None
    parts = [part for part in model.flow.parts if isinstance(part, Part)]
    stacks: list[list[np.ndarray]] = []
    answering: list[Cloud] = []
    for z, points in zip(depths, states, strict=True):
        now = cloud.at(points)
        inside = min(z, model.flow.depth * (1.0 - 1e-9))  # a jump at the very end belongs to nobody
        found = [a for part in parts for a in attention_weights(part.operator, part.field(inside), now, encoded)]
        stacks.append([a.weights[0].double().cpu().numpy() for a in found])
        answering = [encoded if encoded is not None and a.answering is encoded.measure else cloud for a in found]
    if not answering:
        return None
    places = [f", part {i + 1}" if len(answering) > 1 else "" for i in range(len(answering))]
    kernels = zip(zip(*stacks, strict=True), places, answering, strict=True)
    figures = tuple(_heat(alphas, place, cloud, of, depths, measured) for alphas, place, of in kernels)
    prose = (
        "The weight that the token at time t gives to the token at time s, masses included; each row sums to one. "
        "These weights change along depth with the tokens and with the parameters of the network.",
    )
    formula = "alpha(t, s) = frac{w(s) e^{beta ⟨Q x(t), K x(s)⟩}}{int w(s') e^{beta ⟨Q x(t), K x(s')⟩} d s'}"
    return Section("Attention", prose, formula, figures)


def _heat(
    alphas: Sequence[np.ndarray], place: str, asking: Cloud, answering: Cloud, depths: Sequence[float], measured: str
) -> Heat:
    rows, columns = _select_tokens(asking), _select_tokens(answering)
    stack = np.stack(alphas, axis=1)[:, :, rows][..., columns]  # (heads, depths, queries, tokens)
    whole = np.concatenate([stack.mean(0, keepdims=True), stack]) if len(stack) > 1 else stack
    names = (*(["mean of the heads"] if len(stack) > 1 else []), *(f"head {k + 1}" for k in range(len(stack))))
    across = answering is not asking
    return Heat(
        title=("Cross-attention weights" if across else "Attention weights") + place,
        caption="Row: the token that asks. Column: the token that answers"
        f"{', one of the encoder' if across else ''}. Move the slider through depth.",
        measured=measured,
        x=Scale("answering token" if answering.positions is None else "answering s"),
        y=Scale("asking token" if asking.positions is None else "asking t"),
        columns=_times(answering)[columns],
        rows=_times(asking)[rows],
        values=whole,
        value="α",
        frames=np.array(depths),
        slider="depth z",
        panels=names,
    )


def _depths(model: ContinuousTransformer, frames: int) -> tuple[float, ...]:
    return tuple(model.flow.depth * k / (frames - 1) for k in range(frames))


def _select_tokens(cloud: Cloud) -> np.ndarray:
    """Which tokens are shown: those that are there, thinned out where they are too many."""
    there = np.arange(cloud.points.shape[1]) if cloud.present is None else cloud.present[0].cpu().numpy().nonzero()[0]
    return there[np.unique(np.linspace(0, len(there) - 1, min(len(there), _MOST)).round().astype(int))]


def _times(cloud: Cloud) -> np.ndarray:
    if cloud.positions is None:
        return np.arange(cloud.points.shape[1], dtype=np.float64)
    return cloud.positions[0].double().cpu().numpy()


def _principal(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all depths in their two principal directions, and the fraction of variance of each."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    missing = max(0, 2 - len(sizes))  # tokens of one number have one direction
    plane, powers = np.pad(directions[:2], ((0, missing), (0, 0))), np.pad(sizes[:2] ** 2, (0, missing))
    return (centred @ plane.T).reshape(*tokens.shape[:2], 2), powers / max(float((sizes**2).sum()), 1e-300)


def costate_section(subject: Subject, batch: Batch, objective: Objective, measured: str) -> Section | None:
    """H(z), |a(z)| and |dH/dtheta(z)|, and the conditions of optimality as numbers; nothing for projected flows."""
    model = subject.model
    if isinstance(model.solver, Solver) and manifold_of(model.solver.stepper) is not None:
        return None
    report = pontryagin(model, batch, objective, encoded=subject.encoded)
    gap = report.terminal_mismatch
    mismatch = f"The costate at the end is the derivative of the loss{f', up to {gap:.1e}' if gap else ' exactly'}."
    prose = (
        "A costate a(z) says how the objective answers to a push on the tokens at depth z; the Hamiltonian joins it "
        "with the velocity and the running costs. Its derivative by the parameters, summed over depth, is the gradient "
        "that training follows.",
    )
    formula = 'H = ⟨a, f⟩ + sum_c lambda_c r_c , "  " frac{d a}{d z} = - frac{del H}{del X} , "  " '
    formula += "a(Z) = frac{del ℓ}{del X(Z)}"
    table = Table(
        title="Conditions of optimality",
        caption="How far the model on this batch is from an extremal.",
        measured=measured,
        columns=("condition", "value", "meaning"),
        rows=report.conditions,
    )
    drawn = _along_depth(report, measured) if len(report.depths) >= _CURVE else ()
    figures = (*drawn, table)
    return Section("Optimal control", prose, formula, figures, Verdict(mismatch, gap < 1e-3))


def _along_depth(report: PontryaginReport, measured: str) -> tuple[Lines, Lines]:
    """H with its quantiles over the sequences, and the norms of costates and gradients."""
    notes = tuple(Note(z, "jump") for z in report.breaks) if len(report.breaks) <= 3 else ()
    about = {"measured": measured, "x": Scale("depth z"), "notes": notes}
    H, z = report.hamiltonian, report.depths
    conserved = "The parameters change along depth, so H may change with them."
    if report.autonomous:
        conserved = f"The parameters do not depend on depth, so H is conserved; it drifts by {report.drift:.1e}."
    hamiltonian = Lines(
        title="Hamiltonian along depth",
        caption=f"Median over the sequences; the band holds eight of ten. {conserved}",
        y=Scale("H"),
        curves=(Curve.of("H", z, np.median(H, axis=1), *np.quantile(H, [0.1, 0.9], axis=1), mark="both"),),
        **about,
    )
    sizes = {"costates |a(z)|": report.costate_norms, "gradient |∂H/∂θ(z)|": report.gradient_norms}
    norms = Lines(
        title="Costates and gradients along depth",
        caption="How strongly the objective answers to the tokens, and to the parameters, at each depth.",
        y=Scale("norm", log=all(bool((y > 0).all()) for y in sizes.values())),
        curves=tuple(Curve.of(name, z, y, mark="both") for name, y in sizes.items()),
        **about,
    )
    return hamiltonian, norms
