"""Verdicts: what a measurement says about a claim, with the reason."""

import enum
import math
from typing import NamedTuple

from continua.lab.intervals import Interval


class Word(enum.Enum):
    """What a claim is after it was measured."""

    HOLDS = "holds"
    FAILS = "fails"
    INCONCLUSIVE = "inconclusive"


class Judgement(NamedTuple):
    """A verdict and its reason, the numbers included; `made_of` are the judgements that it joins."""

    word: Word
    reason: str
    made_of: tuple["Judgement", ...] = ()

    @property
    def parts(self) -> tuple["Judgement", ...]:
        """The judgements that it joins, or itself."""
        return self.made_of or (self,)


def at_most(name: str, value: float, limit: float) -> Judgement:
    """A number without statistical error against its limit; what is not a number fails."""
    word = Word.HOLDS if value <= limit else Word.FAILS
    return Judgement(word, f"{name} = {value:.3g} {'<=' if word is Word.HOLDS else 'exceeds'} {limit:.3g}")


def at_least(name: str, value: float, limit: float) -> Judgement:
    """As `at_most`, from below."""
    word = Word.HOLDS if value >= limit else Word.FAILS
    return Judgement(word, f"{name} = {value:.3g} {'>=' if word is Word.HOLDS else 'stays below'} {limit:.3g}")


def once_converged(name: str, value: float, limit: float, moves: float, calm: float) -> Judgement:
    """A claim about what training converges to: it fails where training stands still elsewhere.

    `moves` says how fast training still moves, measured apart from the claim. Beyond the limit nothing is said while it
    is above `calm`.
    """
    if value <= limit or moves <= calm:
        return at_most(name, value, limit)
    return Judgement(
        Word.INCONCLUSIVE, f"{name} = {value:.3g} > {limit:.3g}: training still moves ({moves:.2g} > {calm:g})"
    )


def stays_below(name: str, value: Interval, limit: float, margin: float = 0.0) -> Judgement:
    """A measured number, such as the slope of a decay, that is claimed to be at most a limit, up to a margin.

    It holds when the whole interval is below limit + margin, fails when the whole interval is above it, and otherwise
    more seeds or larger sizes are needed; what is not a number fails.
    """
    shown = f"{name} {value} against at most {limit:.3f} (margin {margin:g})"
    if value.high <= limit + margin:
        return Judgement(Word.HOLDS, shown)
    if value.low > limit + margin or math.isnan(value.value):
        return Judgement(Word.FAILS, f"{shown}: larger than claimed")
    return Judgement(Word.INCONCLUSIVE, f"{shown}: the interval is too wide")


def equals(name: str, found: Interval, value: float, margin: float) -> Judgement:
    """A number that is claimed to have one value: |found - value| <= margin, with the interval to say how sure.

    What is not a number fails.
    """
    shown = f"{name} {found} against {value:.3f} (margin {margin:g})"
    if value - margin <= found.low and found.high <= value + margin:
        return Judgement(Word.HOLDS, shown)
    if found.high < value - margin or found.low > value + margin or math.isnan(found.value):
        return Judgement(Word.FAILS, shown)
    return Judgement(Word.INCONCLUSIVE, f"{shown}: the interval is too wide")


def all_of(*judgements: Judgement) -> Judgement:
    """Fails where one fails, holds where all hold; every reason is told."""
    words = {judgement.word for judgement in judgements}
    reason = "; ".join(judgement.reason for judgement in judgements)
    for word in (Word.FAILS, Word.INCONCLUSIVE):
        if word in words:
            return Judgement(word, reason, judgements)
    return Judgement(Word.HOLDS, reason, judgements)
