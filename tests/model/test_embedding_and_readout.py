"""Embeddings, position codes and readouts: what they compute, and what is absent or weighted."""

import math

import pytest
import torch
from torch import nn

from continua.model import (
    CloudEmbedding,
    LearnedPositions,
    MeanReadout,
    NormedEmbedding,
    NormReadout,
    ProjectedEmbedding,
    SinusoidalPositions,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
)
from continua.operators import LayerNorm, RMSNorm, Unnormalised
from continua.spaces import BackwardRectangle, CausalTrapezoid, Cloud, Counting, Sphere, Trapezoid, Uniform

TOKENS = torch.tensor([[3, 1, 4, 1], [2, 0, -100, 77]])
PRESENT = torch.tensor([[True, True, True, True], [True, True, False, False]])


def test_tokens_are_rows_of_the_table_plus_their_code():
    embedding = TokenEmbedding(5, 6, LearnedPositions(4, 6))
    cloud = embedding(TOKENS[:1])
    assert torch.equal(cloud.points, embedding.table[TOKENS[:1]] + embedding.code.table)
    assert cloud.measure.mass is None and cloud.measure.positions is None


def test_what_stands_at_absent_tokens_is_not_read():
    embedding = TokenEmbedding(5, 6, LearnedPositions(4, 6))
    cloud = embedding(TOKENS, present=PRESENT)
    assert torch.equal(cloud.measure.mass, PRESENT.float())
    assert torch.equal(cloud.points[1, 2:], torch.zeros(2, 6))
    cloud.points.sum().backward()
    assert embedding.table.grad is not None and torch.equal(embedding.table.grad[4], torch.ones(6))
    assert torch.equal(embedding.code.table.grad[:, 0], torch.tensor([2.0, 2.0, 1.0, 1.0]))


def test_absent_tokens_may_lie_beyond_the_table_of_positions():
    embedding = TokenEmbedding(5, 6, LearnedPositions(2, 6))
    assert embedding(TOKENS[1:], present=PRESENT[1:]).points.shape == (1, 4, 6)


def test_positions_may_be_whole_numbers():
    embedding = TokenEmbedding(5, 6, LearnedPositions(9, 6))
    times = torch.tensor([[0, 2, 5, 8]])
    cloud = embedding(TOKENS[:1], times=times)
    assert torch.equal(cloud.points, embedding.table[TOKENS[:1]] + embedding.code.table[times])
    assert torch.equal(cloud.measure.positions, times.float())


@pytest.mark.parametrize("rule", [Trapezoid(), Uniform(), Counting(), BackwardRectangle(-1.0), CausalTrapezoid()])
def test_masses_are_those_of_the_rule(rule):
    embedding = VectorEmbedding(2, 6, SinusoidalPositions(6), rule)
    values, times = torch.randn(2, 4, 2), torch.tensor([[0.0, 0.1, 0.5, 2.0], [1.0, 3.0, 0.0, math.nan]])
    values[1, 2:] = math.nan
    cloud = embedding(values, times, PRESENT)
    assert torch.equal(cloud.measure.mass, rule.mass(times, PRESENT))
    expected = embedding.linear(values[0]) + embedding.code(times[:1])[0]
    assert torch.allclose(cloud.points[0], expected, atol=1e-6)


def test_without_positions_time_is_the_index():
    embedding = VectorEmbedding(2, 6, SinusoidalPositions(6))
    values = torch.randn(2, 4, 2)
    index = torch.arange(4.0).expand(2, 4)
    assert torch.equal(embedding(values).points, embedding(values, index).points)
    assert torch.equal(embedding(values).measure.mass, torch.tensor([[0.5, 1.0, 1.0, 0.5]]).expand(2, 4))


def test_sinusoidal_code_is_that_of_vaswani():
    width, t = 8, torch.tensor([[0.0, 1.0, 5.0, 700.0]], dtype=torch.float64)
    code = SinusoidalPositions(width)(t)
    for k in range(width // 2):
        angle = t / 10_000 ** (2 * k / width)
        assert torch.allclose(code[..., k], angle.sin(), atol=1e-12)
        assert torch.allclose(code[..., width // 2 + k], angle.cos(), atol=1e-12)


def test_codes_keep_double_precision_whatever_the_model_was_before():
    t = torch.tensor([[1234.567]], dtype=torch.float64)
    fresh, used = SinusoidalPositions(8), SinusoidalPositions(8).to(torch.float32).to(torch.float64)
    assert torch.equal(fresh(t), used(t)) and fresh(t).dtype == torch.float64
    assert fresh(t.float()).dtype == torch.float32


def test_normed_and_projected_embeddings():
    inner, norm = TokenEmbedding(5, 6), nn.LayerNorm(6, eps=1e-12)
    normed = NormedEmbedding(inner, LayerNorm(1e-12))
    present = PRESENT[1:]
    assert torch.allclose(normed(TOKENS[:1]).points, norm(inner.table[TOKENS[:1]]), atol=1e-6)
    projected = ProjectedEmbedding(inner, Sphere(2.0))(TOKENS[1:], present=present)
    assert torch.allclose(projected.points.norm(dim=-1), 2.0 * present.float(), atol=1e-6)
    assert normed.width == 6 and ProjectedEmbedding(inner, Sphere()).width == 6


# --- readouts


def test_token_readout_is_norm_then_linear():
    readout, norm = TokenReadout(6, 3), nn.LayerNorm(6)
    points = torch.randn(2, 4, 6)
    assert torch.allclose(readout(Cloud(points)), readout.linear(norm(points)), atol=1e-6)
    assert torch.equal(NormReadout(6, Unnormalised())(Cloud(points)), points)
    assert torch.allclose(NormReadout(6, RMSNorm())(Cloud(points)), nn.RMSNorm(6, eps=1e-6)(points), atol=1e-6)


def test_tied_readout_has_no_parameters_of_its_own_but_the_norm():
    embedding = TokenEmbedding(5, 6)
    readout = TokenReadout.from_embedding(embedding)
    points = torch.randn(2, 4, 6)
    expected = nn.functional.layer_norm(points, (6,)) @ embedding.table.T
    assert torch.allclose(readout(Cloud(points)), expected, atol=1e-6)
    assert readout.linear.weight is embedding.table and readout.linear.bias is None


def test_mean_readout_weighs_by_mass(float64):
    readout = MeanReadout(6, 3)
    points, mass = torch.randn(2, 4, 6), torch.tensor([[1.0, 2.0, 0.5, 0.0], [3.0, 0.0, 1.0, 1.0]])
    normalised = nn.functional.layer_norm(points, (6,))
    mean = (mass[..., None] * normalised).sum(1) / mass.sum(1, keepdim=True)
    assert torch.allclose(readout(Cloud(points, mass)), readout.linear(mean), atol=1e-12)
    assert torch.allclose(readout(Cloud(points)), readout(Cloud(points, torch.ones(2, 4))), atol=1e-12)


def test_mean_readout_obeys_the_laws_of_measures(float64):
    readout = MeanReadout(6, 3)
    points, mass = torch.randn(1, 3, 6), torch.tensor([[1.0, 2.0, 0.5]])
    whole = readout(Cloud(points, mass))
    split = torch.cat([points, points[:, -1:]], 1), torch.tensor([[1.0, 2.0, 0.2, 0.3]])
    padded = torch.cat([points, torch.full((1, 2, 6), math.nan)], 1), torch.tensor([[1.0, 2.0, 0.5, 0.0, 0.0]])
    for other in (split, padded, (points, 7.0 * mass), (points.flip(1), mass.flip(1))):
        assert torch.allclose(readout(Cloud(*other)), whole, atol=1e-12)


def test_mean_readout_is_differentiable_in_the_masses(float64):
    readout = MeanReadout(4, 2)
    points, mass = torch.randn(2, 3, 4), torch.rand(2, 3) + 0.5
    mass.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: readout(Cloud(points, w)), (mass,))


def test_embedded_clouds_pass_through():
    cloud = Cloud(torch.randn(2, 3, 6))
    assert CloudEmbedding(6)(cloud) is cloud
