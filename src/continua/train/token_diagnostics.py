"""What happens to tokens along depth: their paths, the attention between them, costates and the Hamiltonian."""

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from continua.control import Objective, PontryaginReport, pontryagin
from continua.core.batch import Batch
from continua.model import ContinuousTransformer, Embedded, Part
from continua.operators import attention_kernels
from continua.runs import Heat, Lines, Note, Paths, Scale, Section, Series, Table, Verdict
from continua.solve import Solution, Solver, manifold_of
from continua.spaces import Cloud

_MOST = 64
"""More tokens than this are thinned out evenly in a figure."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model with one embedded batch; `memory` is the encoder's tokens, where the model is a decoder."""

    model: ContinuousTransformer
    cloud: Cloud
    memory: Cloud | None = None

    @classmethod
    def of(cls, model: ContinuousTransformer, inputs: tuple[Any, ...], memory: Cloud | None = None) -> "Subject":
        """The model as it is seen, in evaluation mode; the one that was given is left in its own."""
        seen = model.at()
        seen.training = False
        with torch.no_grad():
            return cls(seen, seen.embedding(*inputs), memory)

    def first(self) -> "Subject":
        """With the first sequence of the batch alone."""
        memory = None if self.memory is None else self.memory.first(1)
        return dataclasses.replace(self, cloud=self.cloud.first(1), memory=memory)

    @torch.no_grad()
    def solve(self, save_at: tuple[float, ...] = ()) -> Solution:
        """Its solve, without a graph."""
        return self.model.solve(self.cloud, save_at=save_at, memory=self.memory)

    def answers(self) -> Cloud:
        """Its tokens at the end, read out: the memory of a decoder."""
        with torch.no_grad():
            return self.cloud.at(self.model.readout(self.cloud.at(self.solve().x)))


def trajectory_section(subject: Subject, measured: str, frames: int = 33) -> Section:
    """X(z) of one sequence, in the plane of its two principal directions over all depths."""
    cloud, depths = subject.cloud, _depths(subject.model, frames)
    xs = subject.solve(save_at=depths).xs
    assert xs is not None
    shown = _select_tokens(cloud)
    tokens = xs[:, 0, shown].double().cpu().numpy()
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
        hue=_hue(cloud),
    )
    return Section("Tokens", ("Every token of one sequence, from its embedding to the readout.",), figures=(figure,))


@torch.no_grad()
def attention_section(subject: Subject, measured: str, frames: int = 13) -> Section | None:
    """alpha(t, s) of one sequence at several depths, for every head and their mean; nothing without attention.

    Cross-attention has the tokens of the memory as its columns.
    """
    model, cloud, memory = subject.model, subject.cloud, subject.memory
    depths = _depths(model, frames)
    xs = subject.solve(save_at=depths).xs
    assert xs is not None
    parts = [part for part in model.flow.parts if isinstance(part, Part)]
    stacks: list[list[np.ndarray]] = []
    answering: list[Cloud] = []
    for z, points in zip(depths, xs, strict=True):
        now = cloud.at(points)
        inside = min(z, model.flow.depth * (1.0 - 1e-9))  # a jump at the very end belongs to nobody
        found = [a for part in parts for a in attention_kernels(part.operator, part.field(inside), now, memory)]
        stacks.append([a.weights[0].double().cpu().numpy() for a in found])
        answering = [memory if memory is not None and a.answering is memory.measure else cloud for a in found]
    figures = tuple(
        _heat(
            [stack[i] for stack in stacks], f", part {i + 1}" if len(answering) > 1 else "", cloud, of, depths, measured
        )
        for i, of in enumerate(answering)
    )
    if not figures:
        return None
    prose = (
        "The weight that the token at time t gives to the token at time s, masses included; each row sums to one. "
        "Kernels change along depth with the tokens and with the weights of the network.",
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
        title=("Cross-attention kernel" if across else "Attention kernel") + place,
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


def _hue(cloud: Cloud) -> str:
    return "token" if cloud.positions is None else "token time t"


def _principal(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all depths in their two principal directions, and the share of variance of each."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((2, flat.shape[1]))
    plane[: len(directions[:2])] = directions[:2]
    powers = np.zeros(2)
    powers[: len(sizes[:2])] = sizes[:2] ** 2
    return (centred @ plane.T).reshape(*tokens.shape[:2], 2), powers / max(float((sizes**2).sum()), 1e-300)


def costate_section(
    subject: Subject, batch: Batch, objective: Objective, measured: str, queries: bool = False
) -> Section | None:
    """H(z), |a(z)| and |dH/dtheta(z)|, and the conditions of optimality as numbers; nothing for projected flows.

    With `queries` the targets stand at `batch.positions`, and the queries there have costates as all tokens do.
    """
    model = subject.model
    if isinstance(model.solver, Solver) and manifold_of(model.solver.stepper) is not None:
        return None
    report = pontryagin(*(_with_queries(model, batch) if queries else (model, batch)), objective, memory=subject.memory)
    gap = report.terminal_mismatch
    mismatch = f"The costate at the end is the derivative of the loss{f', up to {gap:.1e}' if gap else ' exactly'}."
    prose = (
        "A costate a(z) says how the objective answers to a push on the tokens at depth z; the Hamiltonian joins it "
        "with the velocity and the running costs. Its derivative by the parameters, summed over depth, is the gradient "
        "that training follows.",
    )
    formula = 'H = ⟨a, f⟩ + sum_c lambda_c r_c , "  " frac{d a}{d z} = - frac{del H}{del X} , "  " '
    formula += "a(Z) = frac{del ℓ}{del X(Z)}"
    notes = tuple(Note(z, "jump") for z in report.breaks) if len(report.breaks) <= 3 else ()
    figures = (
        _hamiltonian(report, notes, measured),
        _costate_sizes(report, notes, measured),
        _conditions(report, measured),
    )
    return Section("Optimal control", prose, formula, figures, Verdict(mismatch, gap < 1e-3))


def _with_queries(model: ContinuousTransformer, batch: Batch) -> tuple[ContinuousTransformer, Batch]:
    """The same problem without questions: the cloud with its queries, and targets that count at these alone."""
    assert batch.positions is not None and batch.targets is not None
    with torch.no_grad():
        cloud, where = model.embedding.ask(batch.positions, *batch.inputs)
    counts = torch.zeros(cloud.points.shape[:2], dtype=torch.bool).scatter(1, where, True)
    place = where.unsqueeze(-1).expand_as(batch.targets)
    targets = batch.targets.new_zeros(*counts.shape, batch.targets.shape[-1]).scatter(1, place, batch.targets)
    rest = (model.flow, model.readout, model.solver, model.gradient)
    reader = ContinuousTransformer(Embedded(model.embedding.width), *rest)
    reader.training = model.training
    where_they_count = {"mask": counts, "weights": counts.to(batch.targets.dtype), "positions": None}
    return reader, dataclasses.replace(batch, inputs=(cloud,), targets=targets, **where_they_count)


def _hamiltonian(report: PontryaginReport, notes: tuple[Note, ...], measured: str) -> Lines:
    H = report.hamiltonian
    low, high = np.quantile(H, [0.1, 0.9], axis=1)
    conserved = (
        f"The parameters do not depend on depth, so H is conserved; it drifts by {report.drift:.1e}."
        if report.autonomous
        else "The parameters change along depth, so H may change with them."
    )
    return Lines(
        title="Hamiltonian along depth",
        caption=f"Median over the sequences; the band holds eight of ten. {conserved}",
        measured=measured,
        x=Scale("depth z"),
        y=Scale("H"),
        series=(Series.of("H", report.depths, np.median(H, axis=1), low, high, mark="both"),),
        notes=notes,
    )


def _costate_sizes(report: PontryaginReport, notes: tuple[Note, ...], measured: str) -> Lines:
    x = report.depths
    sizes = {"costates |a(z)|": report.costates, "gradient |∂H/∂θ(z)|": report.gradients}
    positive = all(bool((y > 0).all()) for y in sizes.values())
    return Lines(
        title="Costates and gradients along depth",
        caption="How strongly the objective answers to the tokens, and to the parameters, at each depth.",
        measured=measured,
        x=Scale("depth z"),
        y=Scale("norm", log=positive),
        series=tuple(Series.of(name, x, y, mark="both") for name, y in sizes.items()),
        notes=notes,
    )


def _conditions(report: PontryaginReport, measured: str) -> Table:
    rows = (
        ("objective J", report.objective, "mean over the batch"),
        ("terminal mismatch", report.terminal_mismatch, "|a(Z) − ∂ℓ/∂X(Z)|, relative"),
        ("costate defect", report.defect, "largest |a′ + ∂H/∂X| of a step, in units of the largest |a|"),
        ("projected |dJ/dφ|", report.projected_gradient, "what training drives to zero"),
        ("unprojected |∂H/∂θ|", report.unprojected_gradient, "what a richer path of parameters would gain"),
        ("drift of H", report.drift, "largest |H(z) − H(0)|"),
    )
    caption = "How far the model on this batch is from an extremal."
    return Table(title="Conditions of optimality", caption=caption, measured=measured,
                 columns=("condition", "value", "meaning"), rows=rows)  # fmt: skip
