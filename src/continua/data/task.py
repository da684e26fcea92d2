"""The one interface of all data sets: batches, what the model must look like, loss and measures."""

import abc
import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import branched, generator_of
from continua.core.shapes import Float, Int, Tensor


class Split(enum.Enum):
    """The three parts of a data set."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class Question(enum.Enum):
    """What is asked of a model, and with it how its answer is judged in training."""

    LABEL = "one label a sequence"
    TOKEN = "one label a token"
    VALUE = "values at times, by their squared error"
    FUNCTION = "a function of token time, by its relative L2 error"


@final
@dataclasses.dataclass(frozen=True)
class Form:
    """What a model for a task must look like.

    - `features` for signals or `vocabulary` for whole numbers, one of the two;
    - `outputs`: numbers in one answer; `question`: what they mean;
    - `causal`: answers may depend on earlier tokens only;
    - `asks`: answers are wanted at times of their own, the batch's `query_times`, observed or not;
    - `span`: token time reaches from 0 to here; `spacing`: the usual distance of neighbours in it.

    Where a task asks, the first `outputs` features of a token are the values that it observes of what is asked; as many
    behind them, if there are, say by 1 or 0 which of them are there.
    """

    outputs: int
    question: Question
    features: int | None = None
    vocabulary: int | None = None
    causal: bool = False
    asks: bool = False
    span: float = 1.0
    spacing: float = 1.0

    def __post_init__(self) -> None:
        if (self.features is None) == (self.vocabulary is None):
            cure = "Pass features for signals, or vocabulary for whole numbers: one of the two."
            reject("features", self.features, f"with vocabulary = {self.vocabulary} the input is not decided", cure)

    @property
    def per_token(self) -> bool:
        """Whether there is one answer a token, or one a sequence."""
        return self.question is not Question.LABEL


@final
@dataclasses.dataclass(frozen=True)
class Wording:
    """How the numbers of an answer are told to a reader.

    - `names`: of the classes, or of the numbers in an answer; without them they are counted from 0;
    - `offset`, `scale`: a number y stands for offset + scale y in the reader's units; empty where it stands for itself;
    - `time`: what token time is, `duration`: how long [0, 1] of it takes in the reader's units;
    - `plane`: the second and third feature of a token are its place in the square [-1, 1]^2.
    """

    names: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    time: str = "token time t"
    duration: float = 1.0
    plane: bool = False


class Stepping(enum.Enum):
    """How depth is stepped in training."""

    EULER = "euler"
    MIDPOINT = "midpoint"
    SPLITTING = "splitting"


@final
@dataclasses.dataclass(frozen=True)
class Preset:
    """Sizes of a model and of its training that suit a task.

    The width, the heads that share it, the hidden size of the feed-forward, the Legendre modes of the weights along a
    depth that is solved in `steps` equal steps; the radius of the continuous local stem in units of the spacing (0: no
    stem), its modes, and whether it hears how far away samples are; updates, sequences in a batch, the highest learning
    rate of AdamW and that of the recipe that goes by parameter spaces, decay; the share of the updates in which the
    rate rises, the share of the highest rate that it falls to, and `b2`, how much of its second moments AdamW keeps.
    With `jitter` every update solves on a grid of its own, the inner depths moved at random by up to this share of half
    a step: the weights then do not lean on one grid. Every further mode weighs `mode_ratio` times the one before
    (`DampedBasis`), and `energy` is the price of motion (`KineticEnergy`): both keep the flow so smooth that a few
    steps resolve it.
    """

    width: int = 48
    heads: int = 3
    hidden: int = 96
    modes: int = 3
    mode_ratio: float = 0.3
    depth: float = 1.0
    steps: int = 2
    stepping: Stepping = Stepping.MIDPOINT
    jitter: float = 1.0
    energy: float = 0.0
    stem_radius: float = 0.0
    stem_modes: int = 7
    stem_gaps: bool = False
    updates: int = 1000
    batch: int = 50
    lr: float = 3e-3
    recipe_lr: float = 3e-3
    decay: float = 0.05
    warmup: float = 0.1
    floor: float = 0.0
    b2: float = 0.98


class AbstractTask(abc.ABC):
    """Data with a question. Tasks are frozen dataclasses; what they load or generate is kept in memory.

    A training batch is a function of seed and update alone, so a run that goes on from a checkpoint sees the same
    batches as one that was never interrupted.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The word for it on the command line."""

    @property
    @abc.abstractmethod
    def form(self) -> Form:
        """What a model for it must look like."""

    @property
    @abc.abstractmethod
    def augmentation(self) -> str:
        """How training batches differ from the data, in one sentence; empty where they do not."""

    @abc.abstractmethod
    def presets(self) -> Mapping[str, Preset]:
        """Sizes that suit it, by name; the first is the default."""

    @abc.abstractmethod
    def count(self, split: Split) -> int:
        """How many samples a split has."""

    @abc.abstractmethod
    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        """The samples of a split with these indices, as they are."""

    @abc.abstractmethod
    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A training batch, changed at random in ways that leave its answers true."""

    @abc.abstractmethod
    def measures(self, output: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
        """What a reader wants to know of every sequence, by name; the first is the headline."""

    @property
    @abc.abstractmethod
    def better(self) -> int:
        """+1 where a higher headline is better, -1 where a lower one is."""

    @property
    @abc.abstractmethod
    def wording(self) -> Wording:
        """How its answers are told to a reader."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Plain data that a run notes down: how many samples, which classes or letters."""

    @abc.abstractmethod
    def variants(self) -> "Mapping[str, AbstractTask]":
        """The same test in other samplings, on which a trained model is measured without further training."""

    @final
    def training_batch(self, size: int, update: int, seed: int) -> Batch:
        """The batch of an update: each pass over the data is a permutation of its own, drawn from the seed."""
        count = self.count(Split.TRAIN)
        if not 1 <= size <= count:
            reject("batch", size, f"the training split has {count} samples", f"Pass a size from 1 to {count}.")
        passes, place = divmod(update, count // size)
        index = _permutation(count, branched(seed, passes))[place * size : (place + 1) * size]
        generator = generator_of(branched(branched(seed, -1), update))
        return self.augmented(self.batch(Split.TRAIN, index), generator)

    @final
    def batches(self, split: Split, size: int) -> Iterator[Batch]:
        """A split in its own order, in batches of at most `size`."""
        for index in torch.arange(self.count(split)).split(size):
            yield self.batch(split, index)


@functools.lru_cache(maxsize=4)
def _permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=generator_of(seed))
