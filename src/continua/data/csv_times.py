"""The times of a table: numbers as they are, dates (ISO 8601, or day.month.year) as days since 1970."""

import datetime
import math
import re
from collections.abc import Sequence

from continua.data.files import read_number

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_QUARTER = re.compile(r"(\d{4})-?[qQ]([1-4])")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(.*)")
DAY = "days"
"""The unit of times that are dates."""


def read_times(words: Sequence[str]) -> tuple[list[float], str]:
    """The times of a column, and their unit: empty where they are numbers, days where they are dates.

    What is neither is infinite; in a column of dates a plain number is neither.
    """
    numbers = [read_number(word) for word in words]
    if all(math.isfinite(number) for number in numbers):
        return numbers, ""
    days = [_read_date(word) for word in words]
    dates = sum(math.isfinite(day) for day in days)
    return (days, DAY) if dates > sum(math.isfinite(number) for number in numbers) else (numbers, "")


def _read_date(word: str) -> float:
    """Days since 1970 of a date, a date with a time of day, a month 2024-05 or a quarter 2024Q2; infinity otherwise.

    Dates with dots have the day first wherever they are written; with slashes nobody can tell day and month apart. A
    time without a zone is taken as universal time.
    """
    if found := _MONTH.fullmatch(word):
        word = f"{word}-01"
    elif found := _QUARTER.fullmatch(word):
        word = f"{found[1]}-{3 * int(found[2]) - 2:02d}-01"
    elif found := _DOTTED.fullmatch(word):
        word = f"{found[3]}-{int(found[2]):02d}-{int(found[1]):02d}{found[4]}"
    if word.isdigit():
        return math.inf
    try:
        moment = datetime.datetime.fromisoformat(word)
    except ValueError:
        return math.inf
    moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) / datetime.timedelta(days=1)
