"""The one interface of all data sets: batches, what the model must look like, and how its answers are measured."""

import abc
import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

import torch
from torch.nn import functional as F

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Int, Tensor


class Split(enum.Enum):
    """The three parts of a data set."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class Question(enum.Enum):
    """What a model predicts, and with it how its answer is judged in training."""

    LABEL = "one label per sequence"
    TOKEN = "one label per token"
    VALUE = "values at query times, by their squared error"
    SERIES = "values with intervals at query times, beside what a reference method answers"
    FUNCTION = "a function of token time, by its relative L2 error"


@final
@dataclasses.dataclass(frozen=True)
class Wording:
    """How the numbers of an answer are shown to a reader.

    - `names`: of the classes, or of the numbers in an answer; without them they are counted from 0;
    - `offset`, `scale`: a number y stands for offset + scale y in the reader's units; empty where it stands for itself;
    - `time`: what token time is, `duration`: how long [0, 1] of it takes in the reader's units;
    - `plane`: the second and third feature of a token are its place in the square [-1, 1]^2;
    - `picture`: tokens are the cells of a picture of so many columns, row by row; 0 where they are no picture.
    """

    names: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    time: str = "token time t"
    duration: float = 1.0
    plane: bool = False
    picture: int = 0


@final
@dataclasses.dataclass(frozen=True)
class Form:
    """What a model for a task must look like.

    - `features` for signals or `vocabulary` for whole numbers, one of the two;
    - `outputs`: numbers in one answer; `question`: what they mean;
    - `causal`: answers may depend on earlier tokens only;
    - `queries`: answers are wanted at query times, the batch's `query_times`, observed or not;
    - `span`: times reach from 0 to here; `spacing`: the usual distance of neighbours. Models scale times
      by both, so their unit is the task's own choice;
    - `ordered`: token time says which tokens are neighbours; else tokens are a set, whose features say all;
    - `gaps`: samples may be missing, so that distances of neighbours say something;
    - `channels`: tokens are cells of so many columns; their features are a value, the channel by 1 among 0s, and what
      does not change along the series;
    - `added`: the output is added to what a reference method says, and is nothing at first;
    - `alone`: it learns to answer without the reference as well; one output more holds the factor of the reference;
    - `wording`: how answers are shown to a reader.

    With `queries` and without channels the first `outputs` features of a token are the observed values of what is
    predicted.
    """

    outputs: int
    question: Question
    features: int | None = None
    vocabulary: int | None = None
    causal: bool = False
    queries: bool = False
    span: float = 1.0
    spacing: float = 1.0
    ordered: bool = True
    wording: Wording = Wording()
    gaps: bool = False
    channels: int = 0
    added: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        if (self.features is None) == (self.vocabulary is None):
            cure = "Pass features for signals, or vocabulary for whole numbers: one of the two."
            reject("features", self.features, f"with vocabulary = {self.vocabulary} the input is not decided", cure)

    @property
    def per_token(self) -> bool:
        """Whether there is one answer per token, or one per sequence."""
        return self.question is not Question.LABEL


class AbstractTask(abc.ABC):
    """Data with a question. Tasks are frozen dataclasses; what they load or generate stays in memory.

    A training batch is a function of seed and update alone, so a run that goes on from a checkpoint sees the same
    batches as one that was never interrupted.
    """

    name: ClassVar[str]
    """The word for it on the command line."""

    @property
    @abc.abstractmethod
    def form(self) -> Form:
        """What a model for it must look like."""

    @abc.abstractmethod
    def count(self, split: Split) -> int:
        """How many samples a split has."""

    @abc.abstractmethod
    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        """The samples of a split with these indices, as they are."""

    @abc.abstractmethod
    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A training batch, changed at random in ways that leave its answers true."""

    @abc.abstractmethod
    def details(self) -> dict[str, Any]:
        """Plain data that a run notes down beside the numbers of samples: which classes or letters.

        Under "augmentation", how training batches differ from the data, in one sentence; where they do. Under
        "validation", which samples validation reads where it has none of its own.
        """

    @abc.abstractmethod
    def variants(self) -> "Mapping[str, AbstractTask]":
        """The same test in other samplings, on which a trained model is measured without further training."""

    @final
    def facts(self) -> dict[str, Any]:
        """All plain data that a run notes down."""
        counts = {"training examples": self.count(Split.TRAIN), "test examples": self.count(Split.TEST)}
        found = counts | self.details()
        held = (
            f"validation reads {found['validation']}"
            if "validation" in found
            else f"{self.count(Split.VALIDATION):,} to validate"
        )
        words = f"{counts['training examples']:,} examples to train, {held}, {counts['test examples']:,} to test"
        return {"split": words, **found}

    @final
    def metrics(self, output: Tensor, batch: Batch) -> dict[str, Float[Tensor, " size"]]:
        """What a reader wants to know of every sequence, by name; the first is the headline."""
        targets = batch.targets
        assert targets is not None
        match self.form.question:
            case Question.LABEL:
                return {"accuracy": (batch.logits(output).argmax(-1) == targets).to(output.dtype)}
            case Question.TOKEN:
                nats = F.cross_entropy(output.transpose(1, 2), targets, reduction="none").mean(1)
                return {"nats per character": nats, "accuracy": (output.argmax(-1) == targets).to(output.dtype).mean(1)}
            case Question.VALUE:  # tasks give the query times between observations first, then as many beyond the last
                error, half = (output - targets).square().mean(-1), targets.shape[1] // 2
                between, ahead = error[:, :half].mean(1), error[:, half:].mean(1)
                parts = {"squared error between": between, "squared error ahead": ahead}
                return {"mean squared error": error.mean(1), **parts}
            case Question.SERIES:
                assert batch.reference is not None
                answer = batch.reference.answer(output)
                covered = ((answer.low <= targets) & (targets <= answer.high)).to(output.dtype)
                return series_errors(answer.mean, targets) | {
                    "pinball score": _known_mean(answer.pinball(targets), targets),
                    "coverage": _known_mean(covered, targets),
                }
            case Question.FUNCTION:  # |output - targets|_2 / |targets|_2 on an equispaced grid
                gap, size = (torch.linalg.vector_norm(each, dim=(1, 2)) for each in (output - targets, targets))
                return {"relative L2 error": gap / size.clamp_min(1e-12)}

    @final
    def training_batch(self, size: int, update: int, seed: int) -> Batch:
        """The batch of an update: each pass over the data is a permutation of its own, drawn from the seed."""
        count = self.count(Split.TRAIN)
        if not 1 <= size <= count:
            reject("batch", size, f"the training split has {count} examples", f"Pass a size from 1 to {count}.")
        passes, place = divmod(update, count // size)
        index = _permutation(count, branch_seed(seed, passes))[place * size : (place + 1) * size]
        # place -1 is no pass: the seeds of augmentation never meet those of the permutations
        generator = generator_of(branch_seed(branch_seed(seed, -1), update))
        return self.augment(self.batch(Split.TRAIN, index), generator)

    @final
    def batches(self, split: Split, size: int) -> Iterator[Batch]:
        """A split in its own order, in batches of at most `size`."""
        for index in torch.arange(self.count(split)).split(size):
            yield self.batch(split, index)


def series_errors(answers: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
    """Squared errors of answers (size, queries, channels), of the first half of the queries between observations."""
    error, half = (answers - targets).square(), targets.shape[1] // 2
    between, ahead = ((error[:, part], targets[:, part]) for part in (slice(None, half), slice(half, None)))
    parts = {"squared error between": _known_mean(*between), "squared error ahead": _known_mean(*ahead)}
    return {"mean squared error": _known_mean(error, targets), **parts}


def _known_mean(values: Tensor, targets: Tensor) -> Float[Tensor, " size"]:
    """The mean over the cells of each sequence whose target is known; 0 where there is none."""
    known = ~targets.isnan()
    return torch.where(known, values, 0.0).sum((1, 2)) / known.sum((1, 2)).clamp_min(1)


@functools.lru_cache(maxsize=4)
def _permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=generator_of(seed))
