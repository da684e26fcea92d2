"""The local stem: a convolution over real time, the same operator on any sampling."""

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.model import InterpolatedStem, StemEmbedding, VectorEmbedding, load, save
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


def test_a_causal_stem_does_not_know_the_next_time():
    stem, cloud = stem_of(True), sampled(1)
    times = cloud.positions.clone()
    times[0, 20:] += 0.05
    for rule in (Trapezoid(), CausalTrapezoid()):
        before, after = (stem(Cloud(cloud.points, rule.mass(t), t))[0, :20] for t in (cloud.positions, times))
        assert torch.equal(before, after)


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
