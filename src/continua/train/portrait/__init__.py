"""A portrait of a trained model: everything worth seeing of one batch, as sections that a run keeps."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from continua.control import Objective
from continua.core.batch import Batch
from continua.core.errors import expect
from continua.model import ContinuousTransformer
from continua.runs.figures import Section, keep_section
from continua.runs.folder import Run
from continua.train.objectives import AnyObjective, AskingObjective
from continua.train.portrait.costates import costate_section
from continua.train.portrait.depth import depth_section
from continua.train.portrait.heads import heads_section
from continua.train.portrait.resolution import resolution_section
from continua.train.portrait.tokens import attention_section, trajectory_section

__all__ = ["keep_portrait", "portrait", "resolution_section"]


def portrait(
    model: ContinuousTransformer,
    batch: Batch,
    objective: AnyObjective | None = None,
    resolution: Mapping[str, Any] | None = None,
    source: str = "",
) -> list[Section]:
    """Depth, tokens, attention, heads, costates and resolution of a model on a batch, as far as it has them.

    The model is looked at in evaluation mode and left in its own. Costates need the objective, an `Objective` or an
    `AskingObjective`; `resolution` is the plain data of a resolution report. `source` names the model where several are
    shown in one report.
    """
    expect("model", model, ContinuousTransformer, "Portray encoder and decoder apart, each on its own batch.")
    asks = isinstance(objective, AskingObjective)
    plain = objective.objective if isinstance(objective, AskingObjective) else objective
    seen = model.at()
    seen.training = False
    count = len(batch.inputs[0]) if hasattr(batch.inputs[0], "__len__") else 1
    one, all_of = "first sequence of the batch, evaluation mode", f"{count} sequences, evaluation mode"
    found = [
        depth_section(seen, batch, all_of),
        trajectory_section(seen, batch, one),
        attention_section(seen, batch, one),
        heads_section(seen),
        costate_section(seen, batch, plain, all_of, asks) if isinstance(plain, Objective) else None,
        None if resolution is None else resolution_section(resolution, all_of),
    ]
    return [dataclasses.replace(section, source=source) for section in found if section is not None]


def keep_portrait(run: Run, name: str, sections: list[Section]) -> None:
    """Writes the sections of one model into a run, in their order."""
    for place, section in enumerate(sections):
        words = re.sub(r"[^\w.-]+", "-", f"{place:02d}-{section.heading.lower()}-{name}")
        keep_section(run, words, section)
