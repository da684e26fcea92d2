"""The measure of heads along depth: its density, and how many heads it amounts to."""

import numpy as np
import torch

from continua.fields import ContinuousHeads
from continua.model import ContinuousTransformer, Part
from continua.runs import Heat, Lines, Note, Scale, Section, Series


@torch.no_grad()
def heads_section(model: ContinuousTransformer, frames: int = 41) -> Section | None:
    """rho(h, z) over the nodes of the head rule, and the effective number of heads; nothing where heads are counted."""
    fields = [part.field for part in model.flow.parts if isinstance(part, Part)]
    measured = [field for field in fields if isinstance(field, ContinuousHeads)]
    if not measured:
        return None
    depths = np.linspace(0.0, model.flow.depth, frames)
    figures = [_density(field, depths, i, len(measured)) for i, field in enumerate(measured)]
    series = tuple(
        Series.of(
            f"field {i + 1}" if len(measured) > 1 else "effective heads",
            depths,
            [field.effective_heads(float(z)) for z in depths],
        )
        for i, field in enumerate(measured)
    )
    count = Lines(
        title="Effective number of heads",
        caption="As many as there are nodes where the density is even; fewer, the more it collapses onto some of them.",
        measured="from the parameters alone, no data",
        x=Scale("depth z"),
        y=Scale("effective heads"),
        series=series,
        notes=tuple(Note(float(n), f"{n} nodes", "y") for n in sorted({field.heads for field in measured})),
    )
    prose = ("Heads are a measure over h in [0, 1]; its density ρ(h, z) says how much each of them counts.",)
    return Section("Heads", prose, "N(z) = H e^{- sum_k p_k log(p_k / omega_k)}", (*figures, count))


def _density(field: ContinuousHeads, depths: np.ndarray, place: int, count: int) -> Heat:
    nodes, weights = field.rule.nodes(field.heads)
    om = weights.double().cpu().numpy()
    rho = np.stack([field.masses(float(z)).double().cpu().numpy() / om for z in depths], axis=1)  # (heads, depths)
    return Heat(
        title="Head density ρ(h, z)" + (f", field {place + 1}" if count > 1 else ""),
        caption="Even is 1 everywhere. Rows are the nodes of the quadrature rule over h.",
        measured="from the parameters alone, no data",
        x=Scale("depth z"),
        y=Scale("head h"),
        columns=depths,
        rows=nodes.double().cpu().numpy(),
        values=rho[None, None],
        value="ρ",
    )
