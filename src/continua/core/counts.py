"""Numbers of things in words."""


def say_count(number: int, thing: str) -> str:
    """`1 step`, `2 steps`, `2,200 updates`: the plural of `thing` is regular."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
