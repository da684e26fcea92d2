"""Shampoo and SOAP: the library's numbers, our groups, and a clear word where the library is missing."""

import importlib
import sys

import pytest
import torch
from torch import nn

from continua.core.extras import MissingExtraError
from continua.optim import SOAP, Shampoo
from continua.spaces import FlatSpace, SpectralSpace

SHAPE = (2, 2, 3, 4)


def run(optimiser, p, steps=25):
    for step in range(steps):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
        optimiser.step()
    return p.detach()


@pytest.mark.parametrize(
    ("ours", "name", "options"),
    [
        (lambda p: SOAP(p, lr=1e-2, interval=5), "SOAP", {"lr": 1e-2, "precondition_frequency": 5}),
        (lambda p: Shampoo(p, lr=1e-2), "Shampoo", {"lr": 1e-2}),
    ],
)
def test_it_is_the_librarys(ours, name, options):
    library = importlib.import_module("pytorch_optimizer")
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(99))
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ended = run(ours([p]), p)
    assert torch.equal(ended, run(getattr(library, name)([q], **options), q))
    assert not torch.equal(ended, start)


def test_intervals_and_spaces():
    p = nn.Parameter(torch.zeros(SHAPE))
    assert SOAP([p], interval=7).interval == 7 and Shampoo([p], interval=3).interval == 3
    assert SOAP([p]).space == SpectralSpace() and SOAP([p], space=FlatSpace(2)).whole
    with pytest.raises(ValueError, match="has 4 axes"):
        SOAP([nn.Parameter(torch.zeros(3, 3))])


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "pytorch_optimizer", raising=False)
    found = importlib.import_module

    def absent(name, *rest):
        if name == "pytorch_optimizer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(
        MissingExtraError, match=r"pytorch_optimizer is not installed.*pip install -c constraints.txt -e '\.\[optim\]'"
    ):
        SOAP([nn.Parameter(torch.zeros(SHAPE))])


@pytest.mark.parametrize("kind", [SOAP, Shampoo])
def test_wrong_numbers_are_named_as_everywhere(kind):
    with pytest.raises(ValueError, match=r"lr = -1\.0: it must be finite and not negative. Pass lr >= 0"):
        kind([nn.Parameter(torch.zeros(2, 2))], lr=-1.0, space=FlatSpace(2))
