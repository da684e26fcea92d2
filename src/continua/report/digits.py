"""Numbers as people write them."""

import math

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(value: str | int | float | None, digits: int = 4) -> str:
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


def lasting(seconds: float) -> str:
    """A time as hours, minutes or seconds, whichever says it best."""
    whole = round(seconds)
    if whole < 60:
        return f"{shown(float(seconds), 2)} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
