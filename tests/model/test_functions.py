"""Models of functions along the embedding axis, and depth profiles."""

import pytest
import torch

from continua.fields import Expansion
from continua.model import (
    AnalysisReadout,
    ContinuousTransformer,
    Flow,
    MeanReadout,
    Part,
    SinusoidalPositions,
    SynthesisEmbedding,
    VectorEmbedding,
    load,
    save,
)
from continua.operators import Attention, Convolution, FeedForward, LayerNorm, PreNorm, Spectral
from continua.spaces import Axis, Cosine, Fourier, GaussLegendre, Legendre
from models import adaptive_model

GENERATOR = torch.Generator().manual_seed(0)
SIGNAL = torch.randn(2, 5, 2, generator=GENERATOR, dtype=torch.float64)
TIMES = torch.rand(2, 5, generator=GENERATOR, dtype=torch.float64).sort(-1).values


def model(kernel, basis) -> ContinuousTransformer:
    torch.manual_seed(0)
    axis, modes = kernel.axis, basis.size * kernel.axis.channels
    embedding = SynthesisEmbedding(VectorEmbedding(2, modes, SinusoidalPositions(modes, 64.0, 0.5)), axis, basis)
    norm = LayerNorm(axis=axis)
    operators = [PreNorm(norm, Attention(2, 2, kernel=kernel)), PreNorm(norm, FeedForward(3, kernel=kernel))]
    flow = Flow([Part(f, Expansion(f.spec(axis.width), Legendre(2))) for f in operators])
    return (
        ContinuousTransformer(embedding, flow, AnalysisReadout(MeanReadout(modes, 3), axis, basis)).double().at(steps=1)
    )


MODELS = {
    "Legendre": (Spectral(Axis(9, 2, GaussLegendre()), Legendre(4)), Legendre(4)),
    "Fourier": (Spectral(Axis(9, 2), Fourier(5)), Fourier(5)),
    "convolution": (Convolution(Axis(9, 2), 2), Fourier(5)),
    "Cosine": (Spectral(Axis(9, 2), Cosine(4)), Cosine(4)),
}
each_model = pytest.mark.parametrize("name", MODELS)


@torch.no_grad()
def errors(made: ContinuousTransformer, sizes: list[int], fine: int) -> list[float]:
    exact = made.at(axis_nodes=fine)(SIGNAL, TIMES)
    return [float((made.at(axis_nodes=n)(SIGNAL, TIMES) - exact).abs().max()) for n in sizes]


@each_model
@pytest.mark.parametrize("sizes", [[9, 33, 65], [8, 32, 64]], ids=["odd", "even"])
def test_a_model_converges_in_the_resolution(name, sizes):
    """Spectrally: by Gauss nodes, by even nodes on periodic functions, and on cosines, which are even and periodic."""
    found = errors(model(*MODELS[name]), sizes, 128)
    assert found[1] < found[0] / 200 and found[2] < max(found[1] / 1000, 1e-12), found


def test_parameters_are_shared_and_the_resolution_is_saved(tmp_path):
    made = model(*MODELS["Legendre"])
    other = made.at(axis_nodes=12)
    assert other.embedding.width == 24 and made.embedding.width == 18
    assert {id(p) for p in other.parameters()} == {id(p) for p in made.parameters()}
    again = load(save(other, tmp_path))
    assert torch.equal(again(SIGNAL, TIMES), other(SIGNAL, TIMES))
    made.at(axis_nodes=12)(SIGNAL, TIMES).sum().backward()
    assert all(p.grad is not None for p in made.flow.parameters())


def test_functions_are_kept_to_the_precision_of_the_model():
    """Transforms are made in float64, whatever the default, so a model in double precision loses nothing."""
    kernel, basis = MODELS["Legendre"]
    embedding = SynthesisEmbedding(VectorEmbedding(2, 8), kernel.axis, basis).double()
    cloud = embedding(SIGNAL, TIMES)
    inner = embedding.inner(SIGNAL, TIMES).points
    back = torch.einsum("ia,btac->btic", kernel.axis.analysis(basis), cloud.points.unflatten(-1, (9, 2)))
    torch.testing.assert_close(back.flatten(2), inner, rtol=0, atol=1e-13)


def test_bad_models_are_named():
    kernel, basis = MODELS["Legendre"]
    with pytest.raises(ValueError, match=r"inner = 7: its width is not that of 4 modes with 2 channels.* = 8\."):
        SynthesisEmbedding(VectorEmbedding(2, 7), kernel.axis, basis)
    with pytest.raises(ValueError, match=r"inner = 7: "):
        AnalysisReadout(MeanReadout(7, 3), kernel.axis, basis)
    with pytest.raises(ValueError, match=r"axis_nodes = 3: the axis has 4 modes.*at least 4 nodes.*axis_nodes >= 4"):
        model(kernel, basis).at(axis_nodes=3)
    plain = adaptive_model(width=8, outputs=3, features=2, heads=2)
    with pytest.raises(ValueError, match=r"nodes = 12: states of this model are vectors.*EmbeddingAxis"):
        plain.at(axis_nodes=12)
