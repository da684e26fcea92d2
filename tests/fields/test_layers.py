"""Between layers and smooth fields: `to_layers` and `from_layers`."""

import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.fields import (
    ContinuousHeads,
    Expansion,
    Hypernetwork,
    PiecewiseConstant,
    from_layers,
    to_layers,
)
from continua.fields.expansion import layer_depths
from continua.operators import Attention, Damping, FeedForward, LayerNorm, PreNorm, draw_theta, leaves, map_leaves
from continua.spaces import Chebyshev, Cosine, Legendre
from registries import all_fields

SPEC = PreNorm(LayerNorm(), FeedForward(hidden=3)).spec(4)


def thetas(layers: int, dtype: torch.dtype = torch.float64) -> list:
    generator = torch.Generator().manual_seed(layers)
    return [
        map_leaves(
            lambda leaf: (leaf + torch.randn(leaf.shape, generator=generator)).to(dtype), draw_theta(SPEC, generator)
        )
        for _ in range(layers)
    ]


def gap(one, other) -> float:
    pairs = zip(leaves(one), leaves(other), strict=True)
    return max(float((a - b).detach().abs().max()) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("layers", range(1, 13))
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["64", "32"])
def test_layers_lifted_and_refined_are_the_layers(layers, dtype, close):
    given = thetas(layers, dtype)
    field = from_layers(given, depth=2.5)
    assert next(field.parameters()).dtype == dtype and field.basis.size == layers
    back = to_layers(field, layers, depth=2.5)
    for z, theta in zip(layer_depths(layers, 2.5), given, strict=True):
        # the cubic splines through twelve layers have coefficients up to ten times as large as the layers
        assert gap(field(z), theta) < 10 * close and gap(back(z), theta) < 10 * close
    assert back.edges == pytest.approx([2.5 * layer / layers for layer in range(layers + 1)])


@pytest.mark.parametrize("basis", [Legendre(6), Chebyshev(9), Cosine(8)], ids=repr)
def test_any_basis_of_enough_modes_lifts_layers(basis):
    given = thetas(6)
    field = from_layers(given, 1.0, basis)
    assert max(gap(field(z), theta) for z, theta in zip(layer_depths(6, 1.0), given, strict=True)) < 1e-12


@pytest.mark.parametrize("make", all_fields.values(), ids=all_fields.keys())
def test_any_field_is_refined(make):
    field = make(SPEC, torch.Generator().manual_seed(0))
    pieces = to_layers(field, 5, 3.0)
    assert isinstance(pieces, PiecewiseConstant) and pieces.spec == field.spec
    assert max(gap(pieces(z), field(z)) for z in layer_depths(5, 3.0)) == 0.0
    assert all(p.requires_grad and p.is_leaf for p in pieces.parameters())


def test_heads_and_operators_without_parameters_are_refined():
    field = ContinuousHeads(Attention(2, 3, head_masses=True).spec(4), 3.0)
    assert gap(to_layers(field, 3, 3.0)(1.5), field(1.5)) == 0.0
    assert to_layers(Expansion(Damping(0.1).spec(4), Legendre(2)), 2, 1.0)(0.3) == Damping(0.1).spec(4)


@pytest.mark.parametrize("field", [Expansion(SPEC, Legendre(5)), Hypernetwork(SPEC)], ids=["expansion", "network"])
def test_the_mean_of_refined_theta_converges_at_rate_two(field):
    field = field.double()
    for parameter in field.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double()
    weigh = lambda pieces, n: sum(pieces(z).inner.w1.detach() * (1 + z) for z in layer_depths(n, 1.0)) / n  # noqa: E731
    exact = weigh(field, 768)
    counts = [12, 24, 48, 96]
    errors = [float((weigh(to_layers(field, n, 1.0), n) - exact).abs().max()) for n in counts]
    assert fitted_slope([float(n) for n in counts], errors) == pytest.approx(-2.0, abs=0.2)


def test_bad_layers_are_named():
    with pytest.raises(ValueError, match=r"layers = 0: .*Pass layers >= 1"):
        to_layers(Expansion(SPEC, Legendre(2)), 0, 1.0)
    with pytest.raises(ValueError, match=r"thetas = \[\]: there is no layer"):
        from_layers([], 1.0)
    with pytest.raises(ValueError, match=r"basis = Legendre\(size=2\): 2 modes cannot pass through 3 layers"):
        from_layers(thetas(3), 1.0, Legendre(2))
    other = draw_theta(PreNorm(LayerNorm(), FeedForward(hidden=5)).spec(4))
    with pytest.raises(ValueError, match=r"thetas\[1\] = .*the first layer has .*Pass layers of one make"):
        from_layers([thetas(1, torch.float32)[0], other], 1.0)


def test_layers_are_those_of_the_whole_field():
    field = Expansion(SPEC, Legendre(3), 4.0)
    assert to_layers(field, 4).edges == (0.0, 1.0, 2.0, 3.0, 4.0)
    with pytest.raises(
        ValueError, match=r"depth = 1.0: the field goes from 0 to 4, and would be cut\. Pass 4, or none"
    ):
        to_layers(field, 4, 1.0)
