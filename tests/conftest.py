"""What all tests share: one thread, shapes checked at run time, the default dtype as it was."""

import os

import pytest
import torch
from jaxtyping import config

import shape_checks

# Every annotated function of the package is checked against its shape words. Before the first import of continua.
shape_checks.install("continua")

# More threads than one for each test process only slow each other down; subprocesses read the variable.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


def without_checks():
    """The package as its users have it: without the shape checker, whose own errors would come first."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


unchecked = pytest.fixture(without_checks, name="unchecked")
unchecked_module = pytest.fixture(without_checks, name="unchecked_module", scope="module")
"""For whole commands and whole runs, whose parts are checked in tests of their own: it takes most of their time."""


@pytest.fixture
def float64():
    """New tensors are double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
