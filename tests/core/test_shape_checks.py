"""The checker of types and shapes that all other tests rely on."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import TypeCheckError

from continua.core.shapes import Float, Tensor
from shape_checks import check

Pair = Float[Tensor, "batch width"]


@check
def add(x: Pair, y: Pair, times: int = 1, *, as_rows: bool = True) -> Float[Tensor, "batch width"]:
    return x + times * y if as_rows else (x + y).T


@check
def outer(x: Pair) -> "Float[Tensor, 'batch batch']":
    """Calls `add` on another batch: the words of an inner call are its own."""
    return x @ add(x[:1], x[:1]).expand_as(x).T


@check
def of_unknown(x: "Unknown", y: "int") -> "Unknown":  # pyright: ignore
    return x


@check
def count(most: int) -> Iterator[int]:
    yield from range(most)


@check
@dataclasses.dataclass(frozen=True)
class Held:
    x: Pair
    name: str = "held"


def test_what_fits_passes():
    x = torch.ones(2, 3)
    assert torch.equal(add(x, x, times=2), 3 * x) and outer(x).shape == (2, 2)
    assert of_unknown("anything", 1) == "anything" and list(count(3)) == [0, 1, 2] and Held(x).name == "held"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: add(x, x.T),  # words that differ between arguments
        lambda x: add(x, x, as_rows=False),  # and between arguments and result
        lambda x: add(x.long(), x.long()),
        lambda x: add(x, x, 1.5),
        lambda x: add(x, x, as_rows="yes"),
        lambda x: of_unknown(x, "one"),
        lambda x: Held(x[0]),
        lambda x: Held(x, name=3),
        lambda x: count("three"),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(TypeCheckError):
        call(torch.ones(2, 3))


def test_nothing_is_checked_where_checks_are_off(unchecked):
    x = torch.ones(2, 3)
    assert add(x, x, as_rows=False).shape == (3, 2) and Held(x[0], name=3).name == 3
