"""How numbers become words, places and colours: digits as people write them, axes with their ticks, palettes."""

import base64
import dataclasses
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from continua.runs import Scale

FORWARD = ((15, 34, 56), (27, 72, 104), (47, 127, 147), (134, 181, 140), (224, 178, 91), (251, 238, 194))

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_number(value: str | int | float | None, digits: int = 4) -> str:
    """Digits that count, powers of ten where they are shorter, nothing where there is nothing to say."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    size = abs(value)
    if isinstance(value, int) and size < 10**9:
        return f"{value:,}".replace("-", "−")
    if size == 0.0:
        return "0"
    if not 1e-4 <= size < 1e6:
        front, power = f"{value:.{digits - 2}e}".split("e")
        return f"{front}·10{str(int(power)).translate(_RAISED)}".replace("-", "−")
    if size >= 1e3:
        return f"{value:,.0f}".replace("-", "−")
    plain = f"{value:.0f}" if value == round(value) else f"{value:#.{digits}g}"
    return plain.rstrip(".").replace("-", "−")


def format_tick(value: float, digits: int = 4) -> str:
    """A number beside an axis: as `format_number`, without zeros that say nothing."""
    text = format_number(float(value), digits)
    front, dot, power = text.partition("·10")
    front = front.rstrip("0").rstrip(".") if "." in front else front
    return f"10{power}" if dot and front == "1" else front + dot + power


def tick_words(ticks: Sequence[float]) -> list[str]:
    """The numbers beside one axis, with as many digits as tell them apart."""
    finer = ([format_tick(tick, digits) for tick in ticks] for digits in range(4, 12))
    return next((words for words in finer if len(set(words)) == len(ticks)), [format_tick(tick) for tick in ticks])


def format_duration(seconds: float) -> str:
    """A time as hours, minutes or seconds, whichever says it best."""
    whole = round(seconds)
    if whole < 60:
        return f"{format_number(float(seconds), 2)} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@final
@dataclasses.dataclass(frozen=True)
class PlotAxis:
    """From `low` to `high`, in equal differences or, where `log`, in equal ratios."""

    scale: Scale
    low: float
    high: float
    ticks: Sequence[float] = ()

    def place(self, values: np.ndarray) -> np.ndarray:
        """Where values stand, 0 at the low end and 1 at the high one; NaN for what an axis cannot show."""
        known = np.where(np.isfinite(values) & ((values > 0) if self.scale.log else True), values, np.nan)
        low, high = self.low, self.high
        if self.scale.log:
            known, low, high = np.log10(known), math.log10(low), math.log10(high)
        return (known - low) / (high - low)

    def at(self, value: float) -> float:
        """Where one value stands."""
        return float(self.place(np.array([value]))[0])


def find_ends(values: Iterable[np.ndarray], log: bool = False) -> tuple[float, float]:
    """The least and the largest number that can be shown, apart from each other even where there is only one."""
    known = np.concatenate([np.ravel(some) for some in values])
    known = known[np.isfinite(known) & ((known > 0) if log else True)]
    if not known.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    # Within these, no sum or product of two ends leaves double precision.
    low, high = (float(np.clip(x, 1e-300 if log else -1e306, 1e306)) for x in (known.min(), known.max()))
    if high - low > 1e-9 * max(abs(low), abs(high)):  # less is the rounding of a number that does not change
        return low, high
    gap = abs(low) if abs(low) > 1e-300 else 1.0  # one number stands in the middle, and zero at an end
    return (low / 2, 2 * high) if log else (low - gap, high + gap)


def widen_ends(low: float, high: float, log: bool = False, room: float = 0.05) -> tuple[float, float]:
    """Ends with some room beyond the numbers, as a fraction of what lies between them."""
    if log:
        first, last = math.log10(low), math.log10(high)
        gap = room * (last - first)
        return 10.0 ** max(first - gap, -307.0), 10.0 ** min(last + gap, 308.0)
    gap = room * (high - low)
    return low - gap, high + gap


def pad_ends(low: float, high: float, log: bool = False) -> tuple[float, float]:
    """Ends with some room beyond the numbers; an axis that nearly begins at zero begins there."""
    first, last = widen_ends(low, high, log)
    return (0.0 if not log and 0.0 <= low < 0.25 * high else first), last


def axis_between(scale: Scale, ends: tuple[float, float], count: float) -> PlotAxis:
    """An axis with about so many ticks at round numbers."""
    return PlotAxis(scale, *ends, (_log_ticks if scale.log else _ticks)(*ends, count))


def _ticks(low: float, high: float, count: float) -> list[float]:
    rough = (high - low) / max(count, 1.0)
    if not 1e-300 < rough < 1e300:  # no powers of ten beyond the range of double precision
        return [low, high]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: float) -> list[float]:
    """Powers of ten, some of them where they are many; between them 3, or 2 and 5, where they are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    stride = max(1, math.ceil((last - first) / max(count, 1.0)))
    decades = [10.0**power for power in range(first, last + 1, stride) if -308 < power <= 308]

    def inside(*marks: int) -> list[float]:
        return [m * d for d in decades for m in marks if 0.9999 * low <= m * d <= 1.0001 * high]

    if len(inside(1)) >= (3 if stride == 1 else 2):
        return inside(1)
    found = next((ticks for marks in ((1, 3), (1, 2, 5)) if len(ticks := inside(*marks)) >= 3), None)
    return [t for t in _ticks(low, high, count) if t > 0.0] if found is None else found


def colour_range(values: np.ndarray) -> tuple[float, float]:
    """Which numbers have the first and the last colour."""
    low, high = find_ends([values])
    return (0.0 if 0.0 <= low < 0.2 * high else low), high


def palette_between(stops: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """256 colours between the stops."""
    at = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(at, range(len(stops)), [stop[k] for stop in stops]) for k in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def paint(values: np.ndarray, low: float, high: float, palette: np.ndarray) -> np.ndarray:
    """Red, green, blue and whether there is anything, from 0 to 255."""
    known = np.isfinite(values)
    share = np.clip((np.where(known, values, low) - low) / (high - low), 0.0, 1.0)
    return np.concatenate([palette[(255 * share).round().astype(int)], 255 * known[..., None].astype(np.uint8)], -1)


def png_address(pixels: np.ndarray) -> str:
    """An image of (rows, columns, 4) bytes as an address that holds all of it (the PNG format, without filters)."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.astype(np.uint8).reshape(height, -1)], -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def pack(values: np.ndarray) -> dict[str, Any]:
    """Numbers for the script; many of them as base64 of single precision, where that can hold them."""
    if values.size > 512 and not (np.abs(values[np.isfinite(values)]) > np.finfo(np.float32).max).any():
        return {"base64": base64.b64encode(values.astype("<f4").tobytes()).decode()}
    return {"values": [float(f"{x:.6g}") if np.isfinite(x) else None for x in values.ravel().tolist()]}
