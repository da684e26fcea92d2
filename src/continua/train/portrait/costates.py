"""Training as optimal control, seen along depth: the Hamiltonian, the costates, and what the parameters would gain."""

import dataclasses

import numpy as np
import torch

from continua.control import Objective, PontryaginReport, pontryagin
from continua.core.batch import Batch
from continua.model import ContinuousTransformer, Embedded
from continua.runs import Lines, Note, Scale, Section, Series, Table, Verdict
from continua.solve import Solver, manifold_of
from continua.train.portrait.sitter import Sitter


def costate_section(
    sitter: Sitter, batch: Batch, objective: Objective, measured: str, asks: bool = False
) -> Section | None:
    """H(z), |a(z)| and |dH/dtheta(z)|, and the conditions of optimality as numbers; nothing for projected flows.

    With `asks` the targets stand at `batch.positions`, and the queries there have costates as all tokens do.
    """
    model = sitter.model
    if isinstance(model.solver, Solver) and manifold_of(model.solver.method) is not None:
        return None
    report = pontryagin(*(_asked(model, batch) if asks else (model, batch)), objective, memory=sitter.memory)
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
    figures = (_hamiltonian(report, notes, measured), _sizes(report, notes, measured), _table(report, measured))
    return Section("Optimal control", prose, formula, figures, Verdict(mismatch, gap < 1e-3))


def _asked(model: ContinuousTransformer, batch: Batch) -> tuple[ContinuousTransformer, Batch]:
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
    told = {"mask": counts, "weights": counts.to(batch.targets.dtype), "positions": None}
    return reader, dataclasses.replace(batch, inputs=(cloud,), targets=targets, **told)


def _hamiltonian(report: PontryaginReport, notes: tuple[Note, ...], measured: str) -> Lines:
    H = report.hamiltonian
    low, high = np.quantile(H, [0.1, 0.9], axis=1)
    kept = (
        f"The parameters do not depend on depth, so H is conserved; it drifts by {report.drift:.1e}."
        if report.autonomous
        else "The parameters change along depth, so H may change with them."
    )
    return Lines(
        title="Hamiltonian along depth",
        caption=f"Median over the sequences; the band holds eight of ten. {kept}",
        measured=measured,
        x=Scale("depth z"),
        y=Scale("H"),
        series=(Series.of("H", report.depths, np.median(H, axis=1), low, high, mark="both"),),
        notes=notes,
    )


def _sizes(report: PontryaginReport, notes: tuple[Note, ...], measured: str) -> Lines:
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


def _table(report: PontryaginReport, measured: str) -> Table:
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
