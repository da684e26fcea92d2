"""A portrait of a trained model: everything worth seeing of one batch, as sections that a run keeps."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from continua.control import Objective
from continua.core.batch import Batch
from continua.core.errors import expect
from continua.model import ContinuousTransformer, EncoderDecoder
from continua.runs import Run, Section
from continua.train.portrait.costates import costate_section
from continua.train.portrait.depth import depth_section
from continua.train.portrait.heads import heads_section
from continua.train.portrait.predictions import prediction_section
from continua.train.portrait.resolution import resolution_section
from continua.train.portrait.sitter import Sitter
from continua.train.portrait.tokens import attention_section, trajectory_section


def portrait(
    model: ContinuousTransformer | EncoderDecoder,
    batch: Batch,
    objective: Objective | None = None,
    resolution: Mapping[str, Any] | None = None,
    source: str = "",
) -> list[Section]:
    """Depth, tokens, attention, heads, costates and resolution of a model on a batch, as far as it has them.

    The model is looked at in evaluation mode and left in its own. Costates need the objective; `resolution` is the
    plain data of a resolution report. `source` names the model where several are shown in one report.

    Of an encoder-decoder both are portrayed, each under its own name. Costates are those of the decoder, whose end the
    loss reads; the encoder is reached by the loss through every depth of the decoder, and has none here.
    """
    cure = "Pass a ContinuousTransformer or an EncoderDecoder."
    expect("model", model, (ContinuousTransformer, EncoderDecoder), cure)
    if isinstance(model, EncoderDecoder):
        inputs, asked = batch.inputs
        reader = Sitter.of(model.encoder, inputs)
        writer = Sitter.of(model.decoder, asked, reader.answers())
        names = [f"{source}, {word}" if source else word for word in ("encoder", "decoder")]
        own = dataclasses.replace(batch, inputs=asked)
        return [*_seen(reader, None, None, None, names[0]), *_seen(writer, own, objective, resolution, names[1])]
    assert isinstance(model, ContinuousTransformer)
    return _seen(Sitter.of(model, batch.inputs), batch, objective, resolution, source)


def _seen(
    sitter: Sitter,
    batch: Batch | None,
    objective: Objective | None,
    resolution: Mapping[str, Any] | None,
    source: str,
) -> list[Section]:
    count = len(sitter.cloud.points)
    one, all_of = "first sequence of the batch, evaluation mode", f"{count} sequences, evaluation mode"
    found = [
        depth_section(sitter, all_of),
        trajectory_section(sitter.first(), one),
        attention_section(sitter.first(), one),
        heads_section(sitter.model),
        None if batch is None or objective is None else costate_section(sitter, batch, objective, all_of),
        None if resolution is None else resolution_section(resolution, all_of),
    ]
    return [dataclasses.replace(section, source=source) for section in found if section is not None]


def keep_portrait(run: Run, name: str, sections: list[Section]) -> None:
    """Writes the sections of one model into a run, in their order."""
    for place, section in enumerate(sections):
        words = re.sub(r"[^\w.-]+", "-", f"{place:02d}-{section.heading.lower()}-{name}")
        run.keep_section(words, section)


__all__ = [
    "Batch", "ContinuousTransformer", "EncoderDecoder", "Objective", "Run", "Section", "Sitter",
    "attention_section", "costate_section", "depth_section", "expect", "heads_section", "prediction_section",
    "resolution_section", "trajectory_section",
]  # fmt: skip
