"""A run that is used: its model with the transform of its data, for tables, labelled series and text in own units."""

import abc
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, final

import torch

from continua.control import call_model
from continua.core.errors import ArgumentError, reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Tensor
from continua.data import AbstractTask, Csv, CsvTable, LabelTransform, SeriesTransform, Uea, encode, read_csv
from continua.model import ContinuousTransformer, Decoding, Window, generate
from continua.model import load as load_model
from continua.runs import Run
from continua.train.filling import FilledSeries, SeriesFiller
from continua.train.learner import place


class AbstractTrained(abc.ABC):
    """The best model of a run, in evaluation mode, and what turns data of the user's units into what it reads."""

    model: ContinuousTransformer

    @abc.abstractmethod
    def predict(self, given: Any) -> Any:
        """What the model answers, in the units of the data."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedSeries(AbstractTrained):
    """A run of `continua train csv`: fills the empty cells of a table."""

    model: ContinuousTransformer
    transform: SeriesTransform
    time: str | None = None
    id: str | None = None

    def read(self, file: str | os.PathLike[str]) -> CsvTable:
        """A table with the columns that the model has learnt."""
        units = self.transform.units
        table = read_csv(Path(file), self.time, self.id, units.columns, units.statics)
        if table.unit != units.unit:
            kinds = [f"{unit or 'plain numbers'}" for unit in (table.unit, units.unit)]
            cure = "Write the times as the training file has them."
            reject("input", str(file), f"its times are {kinds[0]}, and the model has learnt {kinds[1]}", cure)
        for series in table.series:
            if bool(series.values.isnan().all()):
                named = f"the series {series.id!r} has" if series.id else "it has"
                reject("input", str(file), f"{named} no value to go on from", "Write at least one observed row.")
        return table

    def predict(self, given: str | os.PathLike[str] | CsvTable) -> list[FilledSeries]:
        """Every empty cell of a CSV file or table, with the ends that eight of ten values lie between."""
        table = given if isinstance(given, CsvTable) else self.read(given)
        return SeriesFiller(self.model, self.transform).fill(table)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLabels(AbstractTrained):
    """A run of `continua train uea`: the probabilities of the classes of series."""

    model: ContinuousTransformer
    transform: LabelTransform

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of the probabilities."""
        return self.transform.classes

    @torch.no_grad()
    def predict(self, given: Sequence[Float[Tensor, "tokens features"]]) -> Float[Tensor, "series classes"]:
        """The probability of every class, for series in the units of their file."""
        features = len(self.transform.mean)
        for place_, series in enumerate(given):
            if series.ndim != 2 or series.shape[1] != features:
                cure = f"Pass tensors (tokens, {features})."
                reject(f"series[{place_}]", tuple(series.shape), f"the model has learnt {features} dimensions", cure)
        found = []
        for start in range(0, len(given), 64):
            batch = place(self.transform.prepare(given[start : start + 64]), self.model)
            found.append(batch.logits(call_model(self.model, batch).output).softmax(-1).cpu())
        return torch.cat(found)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedText(AbstractTrained):
    """A run of `continua train text`: writes on."""

    model: ContinuousTransformer
    alphabet: str
    context_length: int

    def predict(self, given: str, tokens: int = 500, temperature: float = 0.8, seed: int = 0) -> str:
        """The continuation of a text."""
        prompt = encode(given, self.alphabet, "prompt").unsqueeze(0)
        window = Window(self.context_length)
        drawn = generate(self.model, prompt, tokens, Decoding(temperature), window, generator_of(seed))
        return "".join(self.alphabet[int(number)] for number in drawn[0, prompt.shape[1] :])


def transform_files(task: AbstractTask) -> dict[str, bytes]:
    """What a run keeps of its data beside the models, so that they can be used without the file."""
    if isinstance(task, Csv):
        return task.series.transform.files()
    return task.transform.files() if isinstance(task, Uea) else {}


def load(folder: str | os.PathLike[str], model: str = "continuous") -> Any:
    """What `continua.save` wrote, or the best model of a run with the transform of its data.

    A folder of `save` gives the model. A run gives an object with `.model` and `.predict`, which takes and gives data
    in their own units: of `train csv` a CSV file (`TrainedSeries`), of `train uea` series (`TrainedLabels`), of `train
    text` a text (`TrainedText`); of other tasks, the model alone.
    """
    path = Path(folder)
    if not (path / "manifest.json").is_file() or (path / "model.json").is_file():
        return load_model(folder)
    run = Run.open(path)
    facts, config = run.manifest["facts"].get("task", {}), run.manifest["config"]
    if not (path / "models" / model).is_dir():
        known = sorted(each.name for each in path.glob("models/*") if each.name != "transform")
        go_on = f"Let it finish, or go on with it: `continua train --resume {path}`."
        cure = f"It has {', '.join(known)}." if known else go_on
        reject("run", str(folder), f"it has no model {model!r} yet", cure)
    try:
        found = cast(ContinuousTransformer, load_model(path / "models" / model).eval())
    except ArgumentError as error:  # which speaks of a folder, and the user of a run
        reject("run", str(folder), error.why, error.cure)
    files = {each.name: each.read_bytes() for each in (path / "models" / "transform").glob("*") if each.is_file()}
    if "series.json" in files:
        return TrainedSeries(found, SeriesTransform.read(files), config.get("time"), config.get("id"))
    if "labels.json" in files:
        return TrainedLabels(found, LabelTransform.read(files))
    return TrainedText(found, facts["alphabet"], facts["context_length"]) if "alphabet" in facts else found
