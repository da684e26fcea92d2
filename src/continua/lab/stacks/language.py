"""A language that needs no file: words of a drawn lexicon, each drawn by the class of the one before it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
import torch

from continua.core.batch import Batch
from continua.core.shapes import Int, Tensor
from continua.data import AbstractTask, Form, Question, Split

_LETTERS = 26
_CLASSES = 4


class _Corpus(NamedTuple):
    """The characters of the language, as numbers, and the least loss per character that any model can have."""

    characters: Int[Tensor, " tokens"]
    entropy: float


@final
@dataclasses.dataclass(frozen=True)
class Lexicon(AbstractTask):
    """Predict the next character of an endless row of words.

    The k-th of `words` has the probability of Zipf's law, ~ 1/(k + 1), where the order of the words is another one
    after each class of words: who reads the word before knows it. Words end with a space, and are told apart by it, so
    that the entropy of a character is H(words) / E[length], whatever came before.
    """

    words: int = 200
    context_length: int = 64
    characters: int = 200_000
    seed: int = 0

    name = "lexicon"

    @property
    def entropy(self) -> float:
        """Nats per character that no model can do without."""
        return self._corpus.entropy

    @property
    def form(self) -> Form:
        size = _LETTERS + 1
        return Form(size, Question.TOKEN, vocabulary=size, causal=True, span=float(self.context_length))

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
        return {"words": self.words, "context_length": self.context_length, "entropy": self.entropy}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {}

    @property
    def _corpus(self) -> _Corpus:
        return _write(self.words, self.characters, self.seed)

    def _part(self, split: Split) -> Int[Tensor, " tokens"]:
        characters = self._corpus.characters
        cut = int(0.9 * len(characters))
        return characters[:cut] if split is Split.TRAIN else characters[cut:]


@functools.lru_cache(maxsize=2)
def _write(words: int, characters: int, seed: int) -> _Corpus:
    """Draws lexicon, orders and text."""
    rng = np.random.default_rng(seed)
    spelled: dict[tuple[int, ...], None] = {}
    while len(spelled) < words:  # no word twice: the text could not be parsed
        spelled[tuple(rng.integers(_LETTERS, size=rng.integers(2, 8)).tolist())] = None
    lexicon = [(*word, _LETTERS) for word in spelled]
    orders = np.stack([rng.permutation(words) for _ in range(_CLASSES)])
    law = 1.0 / np.arange(1, words + 1)
    law /= law.sum()
    ranks, word, text = rng.choice(words, size=characters, p=law), 0, list[int]()
    for rank in ranks:
        word = int(orders[word % _CLASSES, rank])
        text += lexicon[word]
        if len(text) >= characters:
            break
    chain = np.zeros((words, words))
    for own in range(words):
        chain[own, orders[own % _CLASSES]] = law
    share = np.full(words, 1.0 / words)
    for _ in range(200):  # the share of every word in the long run
        share = share @ chain
    length = float(share @ [len(word) for word in lexicon])
    return _Corpus(torch.tensor(text[:characters]), float(-(law * np.log(law)).sum()) / length)
