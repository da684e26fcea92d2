"""Diagnostics of a trained model: everything worth seeing of one batch, as sections that a run keeps."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from continua.control import Objective
from continua.core.batch import Batch
from continua.core.checks import is_a
from continua.core.errors import SolveError
from continua.fields import AbstractHeadField
from continua.model import ContinuousTransformer, EncoderDecoder, source_and_target
from continua.runs import Curve, Heat, Lines, Note, Run, Scale, Section, Table, Verdict
from continua.solve import Adaptive, DormandPrince, Solver, Stats
from continua.train.token_diagnostics import Subject, attention_section, costate_section, trajectory_section


def diagnose(
    model: ContinuousTransformer | EncoderDecoder,
    batch: Batch,
    objective: Objective | None = None,
    resolution: Mapping[str, Any] | None = None,
    source: str = "",
) -> list[Section]:
    """Depth, tokens, attention, heads, costates and resolution of a model on a batch, as far as it has them.

    The model is looked at in evaluation mode and left in its own. Costates need the objective; `resolution` is the
    plain data of a resolution report. `source` names the model where several are shown in one report.

    Of an encoder-decoder both are shown, each under its own name. Costates are those of the decoder, whose end the
    loss reads; the encoder is reached by the loss through every depth of the decoder, and has none here.
    """
    is_a((ContinuousTransformer, EncoderDecoder), "Pass a ContinuousTransformer or an EncoderDecoder.", model=model)
    if isinstance(model, EncoderDecoder):
        inputs, outputs = (tuple(given) for given in source_and_target(batch.inputs))
        reader = Subject.of(model.encoder, inputs)
        writer = Subject.of(model.decoder, outputs, reader.answers())
        names = [f"{source}, {word}" if source else word for word in ("encoder", "decoder")]
        shown = _sections(reader, None, None, None, names[0])
        return shown + _sections(writer, dataclasses.replace(batch, inputs=outputs), objective, resolution, names[1])
    assert isinstance(model, ContinuousTransformer)
    return _sections(Subject.of(model, batch.inputs), batch, objective, resolution, source)


def _sections(
    subject: Subject,
    batch: Batch | None,
    objective: Objective | None,
    resolution: Mapping[str, Any] | None,
    source: str,
) -> list[Section]:
    count = len(subject.cloud.points)
    one, all_of = "first sequence of the batch, evaluation mode", f"{count} sequences, evaluation mode"
    found = [
        depth_section(subject, all_of),
        trajectory_section(subject.first(), one),
        attention_section(subject.first(), one),
        heads_section(subject.model),
        None if batch is None or objective is None else costate_section(subject, batch, objective, all_of),
        None if resolution is None else resolution_section(resolution, all_of),
    ]
    return [dataclasses.replace(section, source=source) for section in found if section is not None]


def keep_diagnostics(run: Run, name: str, sections: list[Section]) -> None:
    """Writes the sections of one model into a run, in their order."""
    for place, section in enumerate(sections):
        words = re.sub(r"[^\w.-]+", "-", f"{place:02d}-{section.heading.lower()}-{name}")
        run.keep_section(words, section)


def depth_section(subject: Subject, measured: str) -> Section:
    """Steps of the model's own solver beside those that an adaptive one would take, and the numbers of both."""
    tight = subject.model.at(solver=Solver(DormandPrince(), Adaptive(1e-5, 1e-5)))
    own = subject.solve()
    breaks = subject.model.flow.bind(subject.cloud, encoded=subject.encoded, random=False).breaks
    solves = {"as trained": own.stats}
    try:
        adaptive = dataclasses.replace(subject, model=tight).solve()
        solves["adaptive, 1e-5"] = adaptive.stats
        gap = float((own.x - adaptive.x).norm() / adaptive.x.norm().clamp_min(1e-30))
        caption = f"The two ends X(Z) differ by {gap:.2g} of their norm: how much the model leans on its own grid. "
    except SolveError as wild:  # no reason to lose all other figures
        caption = f"An adaptive solve at 1e-5 was not possible: {wild.reason}. "
    figures = (*_steps(solves, breaks, measured), _solver_table(solves, caption, measured))
    prose = (
        "The tokens move along depth by an ordinary differential equation. What a forward pass costs is the number of "
        "evaluations of its velocity.",
    )
    return Section("Depth", prose, "frac{d X}{d z} = sum_p f_p(theta_p(z), X)", figures)


def _steps(solves: dict[str, Stats], breaks: Sequence[float], measured: str) -> tuple[Lines, ...]:
    """The accepted steps of every solve that has a common grid; nothing where none has."""
    grids = {name: stats.grid for name, stats in solves.items() if len(stats.grid) > 1}
    if not grids:
        return ()
    figure = Lines(
        title="Steps along depth",
        caption="Each bar is one accepted step, as wide and as high as it is long; an adaptive solve slows down where "
        "the tokens move fast.",
        measured=measured,
        x=Scale("depth z"),
        y=Scale("step Δz"),
        curves=tuple(Curve.of(name, z, [*np.diff(z), np.nan], mark="steps") for name, z in grids.items()),
        notes=tuple(Note(z, "jump") for z in breaks) if len(breaks) <= 3 else (),
    )
    return (figure,)


def _solver_table(solves: dict[str, Stats], caption: str, measured: str) -> Table:
    names = ("evaluations", "steps accepted", "steps rejected", "worst error")
    found = [
        (stats.evaluations, stats.accepted, stats.rejected, max(stats.errors) if any(stats.errors) else None)
        for stats in solves.values()
    ]
    caption += "The worst error of a step is in units of the tolerance."
    rows = tuple(zip(names, *found, strict=True))
    return Table(title="Solver statistics", caption=caption, measured=measured, columns=("", *solves), rows=rows)


@torch.no_grad()
def heads_section(model: ContinuousTransformer, frames: int = 41) -> Section | None:
    """rho(h, z) over the nodes of the head rule, and the effective number of heads; nothing where heads are counted."""
    measured = [field for field in model.flow.fields if isinstance(field, AbstractHeadField)]
    if not measured:
        return None
    depths = np.linspace(0.0, model.flow.depth, frames)
    named = {f"field {i + 1}" if len(measured) > 1 else "": field for i, field in enumerate(measured)}
    figures = [_density(field, depths, name) for name, field in named.items()]
    counts = {name: [field.effective_heads(float(z)) for z in depths] for name, field in named.items()}
    prose = ["Heads are a measure over h in [0, 1]; its density ρ(h, z) says how much each of them counts."]
    nodes = sorted({field.heads for field in measured})
    if all(min(counts[name]) > 0.98 * field.heads for name, field in named.items()):
        prose.append("The density is uniform: the effective number of heads stays within 2 % of the number of nodes.")
        return Section("Heads", tuple(prose), _EFFECTIVE, tuple(figures))
    count = Lines(
        title="Effective number of heads",
        caption="As many as nodes where the density is uniform; fewer, the more it collapses onto some of them.",
        measured="from the parameters alone, no data",
        x=Scale("depth z"),
        y=Scale("effective heads"),
        curves=tuple(Curve.of(name or "effective heads", depths, count) for name, count in counts.items()),
        notes=tuple(Note(float(n), f"{n} nodes", "y") for n in nodes),
    )
    return Section("Heads", tuple(prose), _EFFECTIVE, (*figures, count))


def _density(field: AbstractHeadField, depths: np.ndarray, name: str) -> Heat:
    nodes, weights = field.rule.nodes(field.heads)
    om = weights.double().cpu().numpy()
    rho = np.stack([field.masses(float(z)).double().cpu().numpy() / om for z in depths], axis=1)  # (heads, depths)
    return Heat(
        title="Head density ρ(h, z)" + (f", {name}" if name else ""),
        caption="A uniform density is 1 everywhere. Rows are the nodes of the quadrature rule over h.",
        measured="from the parameters alone, no data",
        x=Scale("depth z"),
        y=Scale("head h"),
        columns=depths,
        rows=nodes.double().cpu().numpy(),
        values=rho[None, None],
        value="ρ",
    )


_EFFECTIVE = "N(z) = H e^{- sum_k p_k log(p_k / omega_k)}"
_CONTINUA = {"t": "token time", "d": "embedding", "h": "heads", "z": "depth"}


def resolution_section(report: Mapping[str, Any], measured: str = "") -> Section:
    """From the plain data of a resolution report: `own`, `rows`, `solver_error`, `reference_solver`, `left_out`."""
    own = ", ".join(_resolution({"unit": unit, "resolution": value}) for unit, value in report["own"].items())
    rows = tuple(
        (_CONTINUA[row["continuum"]], _resolution(row), row["change"], row.get("loss"), row.get("loss_change"))
        for row in report["rows"]
    )
    table = Table(
        title="Other resolutions",
        caption=f"The model as it is: {own}. One continuum is changed at a time; nothing is trained further.",
        measured=measured,
        columns=("continuum", "resolution", "change of output", "loss", "change of loss"),
        rows=rows,
    )
    absent = tuple(_left_out(report.get("left_out", ())))
    gap, reference = report["solver_error"], report["reference_solver"]
    text = f"The solver error was not measured: {reference} could not be solved."
    if gap is not None:
        text = f"The solver error: the output is {gap:.1e} away, relatively, from {reference}."
    prose = ("A model of functions should say the same however finely its axes are sampled.", *absent)
    return Section("Resolution", prose, figures=(table,), verdict=Verdict(text))


def _left_out(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One sentence for each reason: a continuum that the model does not have, or those resolutions that it refuses."""
    places: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        at = [] if row["resolution"] is None else [_resolution(row)]
        what = "depth by tolerance" if row["unit"] == "rtol" and not at else _CONTINUA[row["continuum"]]
        places.setdefault((what, _reason(row["reason"])), []).extend(at)
    for (what, reason), at in places.items():
        yield f"Left out, {what}{' in ' if at else ''}{', '.join(at)}: {reason}"


def _reason(text: str) -> str:
    """Without the argument and its value, in which the same reason differs from resolution to resolution."""
    return re.sub(r"^[\w.]+ = \S+: ", "", text)


def _resolution(row: Mapping[str, Any]) -> str:
    value, unit = row["resolution"], row["unit"].replace("_", " ")
    return f"tolerance {value:.0e}" if unit == "rtol" else f"{value:g} {unit[:-1] if value == 1 else unit}"
