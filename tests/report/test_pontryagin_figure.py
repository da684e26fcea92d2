"""The figure of a Pontryagin report, from plain numbers."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from continua.report import PontryaginRecord, pontryagin_figure


@pytest.fixture
def record() -> PontryaginRecord:
    random, depths = np.random.default_rng(0), np.linspace(0.0, 1.0, 9)
    return PontryaginRecord(
        depths=depths,
        hamiltonian=0.1 + 0.01 * random.normal(size=(9, 3)).cumsum(0),
        costates=np.exp(-depths),
        gradients=np.abs(np.sin(6.0 * depths)) + 0.1,
        defects=10.0 ** random.normal(-6.0, 1.0, size=8),
        projected=0.2,
        breaks=(0.5,),
    )


def test_it_is_drawn_as_svg_and_png_and_the_same_each_time(record, tmp_path):
    drawn, painted = pontryagin_figure(record, tmp_path / "first")
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    assert painted.read_bytes().startswith(b"\x89PNG")
    assert pontryagin_figure(record, tmp_path / "second")[0].read_bytes() == drawn.read_bytes()


@pytest.mark.parametrize("name", ["gradients", "defects", "costates", "hamiltonian"])
def test_zeros_are_drawn_without_a_warning(record, name, tmp_path):
    empty = dataclasses.replace(record, **{name: np.zeros_like(getattr(record, name))}, projected=0.0, breaks=())
    assert all(path.stat().st_size > 0 for path in pontryagin_figure(empty, tmp_path / "zeros"))


@pytest.mark.parametrize("name", ["gradients", "defects", "costates", "hamiltonian"])
def test_a_record_that_does_not_fit_is_refused(record, name, unchecked):
    with pytest.raises(ValueError, match=f"^{name} = "):
        dataclasses.replace(record, **{name: np.zeros((4, 1))})
