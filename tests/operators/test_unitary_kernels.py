"""Unitary filters and orthonormal matrices: energy is kept, at every resolution."""

import dataclasses

import pytest
import torch

from continua.operators import Attention, Convolution, Dense, FeedForward, Orthonormal, draw_theta, leaves
from continua.spaces import Axis, StiefelSpace

GENERATOR = 3


def band_limited(nodes, modes, channels):
    """A real function of frequencies up to `modes`, at even nodes, the same function for any number of nodes."""
    generator = torch.Generator().manual_seed(GENERATOR)
    spectrum = torch.randn(modes + 1, channels, generator=generator, dtype=torch.complex128)
    spectrum[0] = spectrum[0].real
    padded = torch.zeros(nodes // 2 + 1, channels, dtype=torch.complex128)
    padded[: modes + 1] = spectrum
    return torch.fft.irfft(padded, n=nodes, dim=0).mul(nodes).reshape(1, 1, -1)


@pytest.mark.parametrize("nodes", [7, 12, 31])
def test_a_unitary_filter_keeps_the_energy_of_functions_within_its_band(nodes):
    kernel = Convolution(Axis(nodes, 4), 3, unitary=True)
    w = kernel.law(1).draw(kernel.shape(4, 4), torch.Generator().manual_seed(0)).double()
    w = kernel.space.project(w)
    x = band_limited(nodes, 3, 4)
    torch.testing.assert_close(kernel.apply(w, None, x).norm(), x.norm(), rtol=1e-12, atol=0)
    assert kernel.at(2 * nodes).unitary


@pytest.mark.parametrize("outputs", [4, 6])
def test_an_isometry_keeps_lengths(outputs):
    kernel = Dense(orthonormal=True)
    w = kernel.law(1).draw(kernel.shape(4, outputs), torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(kernel.apply(w, None, x).norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("operator", [FeedForward(5), Attention(2, 3)], ids=["FeedForward", "Attention"])
@pytest.mark.parametrize("kernel", [Dense(orthonormal=True), Convolution(Axis(3, 2), 1, unitary=True)], ids=repr)
def test_operators_ask_for_such_kernels_and_for_nothing_else_of_the_kind(operator, kernel):
    spec = dataclasses.replace(operator, kernel=kernel).spec(6)
    values = dict(leaves(draw_theta(spec, torch.Generator().manual_seed(0))))
    for name, leaf in leaves(spec):
        assert isinstance(leaf.home, StiefelSpace) == (name[0] in "wqkvo")
        leaf.home.check(name, values[name])


def test_draws_are_evenly_distributed():
    """The mean of U and of U_ij^2 over many draws: 0 and 1/n, as under the invariant measure."""
    u = Orthonormal().draw((4000, 3, 3), torch.Generator().manual_seed(0))
    assert float(u.mean(0).abs().max()) < 0.04 and float((u.square().mean(0) - 1 / 3).abs().max()) < 0.02
    filters = Orthonormal(multipliers=True).draw((3, 2, 4, 4), torch.Generator().manual_seed(0))
    assert float(filters[0, 1].abs().max()) == 0.0 and float(filters[1, 1].abs().max()) > 0.1
