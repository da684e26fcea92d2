"""The local stem: a convolution over real time, the same operator on any sampling."""

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.core.slopes import fitted_slope
from continua.model import InterpolatedStem, StemEmbedding, VectorEmbedding, interpolate, load, save
from continua.spaces import CausalTrapezoid, Cloud, Trapezoid

each_causality = pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
pytestmark = pytest.mark.usefixtures("float64")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stem_of(causal: bool, width: int = 2, radius: float = 0.3) -> InterpolatedStem:
    torch.manual_seed(0)
    return InterpolatedStem(width, radius, 4, causal)


def sampled(batch: int = 2, tokens: int = 30) -> Cloud:
    times = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(1)).sort(-1).values
    return Cloud(draw(batch, tokens, 2), Trapezoid().mass(times), times)


@each_causality
def test_without_positions_time_is_the_index(causal):
    stem, points = stem_of(causal, radius=2.5), draw(1, 7, 2)
    index = torch.arange(7.0).view(1, -1)
    torch.testing.assert_close(stem(Cloud(points)), stem(Cloud(points, torch.ones(1, 7), index)))


@each_causality
def test_refining_irregular_samples_converges_at_order_two(causal):
    stem, queries = stem_of(causal, radius=0.13), torch.linspace(0.05, 0.95, 7)

    def found(count: int) -> torch.Tensor:
        even = torch.linspace(0, 1, count + 1)
        times = torch.cat([even + 0.12 * torch.sin(6 * even) * even * (1 - even), queries]).sort().values.unique()
        points = torch.stack([torch.sin(7 * times), torch.exp(times)], -1).unsqueeze(0)
        cloud = Cloud(points, Trapezoid().mass(times.unsqueeze(0)), times.unsqueeze(0))
        return stem(cloud)[0, torch.searchsorted(times, queries)]

    with torch.no_grad():
        reference, counts = found(20000), [80, 160, 320, 640]
        errors = [float((found(count) - reference).abs().max()) for count in counts]
    assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(2.0, abs=0.2)


@each_causality
def test_what_lies_beyond_the_radius_is_not_read(causal):
    """But for the first sample beyond either end, between which and the next one the signal is interpolated."""
    stem, points = stem_of(causal), draw(1, 30, 2).requires_grad_()
    times = torch.linspace(0, 1, 30)  # even: of samples closer than the lags of the rule some are not read
    lag = times[15] - times
    (g,) = torch.autograd.grad(stem(Cloud(points, torch.ones(1, 30), times.unsqueeze(0)))[0, 15].sum(), points)
    near = (lag >= 0) & (lag < stem.radius) if causal else lag.abs() < stem.radius
    read = near.clone()
    read[:-1] |= near[1:]
    read[1:] |= near[:-1] & (not causal)
    assert bool((g[0, ~read] == 0).all()) and bool((g[0, near] != 0).any(-1).all()) and not bool(read.all())


def test_a_causal_stem_does_not_know_the_next_time():
    stem, cloud = stem_of(True), sampled(1)
    times = cloud.positions.clone()
    times[0, 20:] += 0.05
    for rule in (Trapezoid(), CausalTrapezoid()):
        before, after = (stem(Cloud(cloud.points, rule.mass(t), t))[0, :20] for t in (cloud.positions, times))
        assert torch.equal(before, after)


@each_causality
def test_splitting_a_token_changes_nothing(causal):
    stem, cloud = stem_of(causal), sampled()
    index = torch.tensor([*range(12), 11, *range(12, 30)])
    share = torch.ones(31).index_fill(0, torch.tensor([11, 12]), 0.5)
    split = stem(Cloud(cloud.points[:, index], cloud.mass[:, index] * share, cloud.positions[:, index]))
    torch.testing.assert_close(split, stem(cloud)[:, index], rtol=1e-12, atol=1e-12)


@each_causality
def test_absent_tokens_change_nothing_wherever_they_stand(causal):
    stem, cloud = stem_of(causal), sampled()
    here = torch.tensor([i for i in range(35) if i not in (0, 8, 9, 20, 34)])
    points = torch.full((2, 35, 2), torch.nan).index_copy(1, here, cloud.points)
    mass = torch.zeros(2, 35).index_copy(1, here, cloud.mass)
    times = torch.full((2, 35), torch.nan).index_copy(1, here, cloud.positions)
    found = stem(Cloud(points, mass, times))
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found[:, here], stem(cloud), rtol=1e-12, atol=1e-12)


def test_queries_read_the_neighbourhood_of_their_time():
    """A query hears what a sample of the interpolated signal would hear in its place, and is not heard."""
    stem, cloud = stem_of(False), sampled()
    times = torch.tensor([[0.31, 0.77], [0.5, -3.0]])
    wider, where = cloud.with_queries(draw(2, 2, 2, seed=4), times)
    there = where.unsqueeze(-1).expand(-1, -1, 2)
    between = wider.points.scatter(1, there, interpolate(cloud, cloud.positions, times)[0])
    heard = stem(Cloud(between, torch.ones(2, 32), wider.positions))
    torch.testing.assert_close(stem(wider), heard, rtol=1e-12, atol=1e-12)


@each_causality
def test_gradients(causal):
    stem = stem_of(causal)
    times = torch.tensor([[0.0, 0.07, 0.19, 0.3, 0.42]], requires_grad=True)
    points, mass = draw(1, 5, 2).requires_grad_(), (0.1 + draw(1, 5).abs()).requires_grad_()

    def f(points, mass, times, coefficients):
        return torch.func.functional_call(stem, {"coefficients": coefficients}, (Cloud(points, mass, times),))

    assert torch.autograd.gradcheck(f, (points, mass, times, stem.coefficients))


def test_both_dtypes_whatever_the_default():
    stem, cloud = stem_of(False), sampled()
    small = Cloud(cloud.points.float(), cloud.mass.float(), cloud.positions.float())
    expected = stem(cloud)
    found = stem.float()(small)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=1e-4)


def test_a_stemmed_embedding_adds_the_neighbourhood_and_is_saved(tmp_path):
    torch.manual_seed(0)
    inner = VectorEmbedding(3, 2)
    embedding = StemEmbedding(inner, InterpolatedStem(2, 0.5, modes=3, causal=True))
    values, times = draw(2, 6, 3), draw(2, 6).abs().cumsum(-1)
    cloud = inner(values, times)
    found = embedding(values, times)
    torch.testing.assert_close(found.points, cloud.points + embedding.stem(cloud))
    again = load(save(embedding, tmp_path))
    assert torch.equal(again(values, times).points, found.points)
    assert arguments_of(again.stem) == arguments_of(embedding.stem)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="radius"):
        InterpolatedStem(2, 0.0)
    with pytest.raises(ValueError, match="modes"):
        InterpolatedStem(2, 1.0, modes=0)
    with pytest.raises(ValueError, match="width 3"):
        StemEmbedding(VectorEmbedding(1, 3), InterpolatedStem(2, 1.0))
