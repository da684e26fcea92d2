"""Answers at times that were never observed: interpolation and forecasting by listeners."""

import pytest
import torch

from continua.fields import Constant
from continua.model import (
    CloudEmbedding,
    ContinuousTransformer,
    Flow,
    FourierPositions,
    InterpolatedStem,
    MeanReadout,
    NormedEmbedding,
    Part,
    ProjectedEmbedding,
    StemEmbedding,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
    load,
    save,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Rotary
from continua.solve import Adaptive, Direct, Euler, Fixed, Solver
from continua.spaces import BackwardRectangle, CausalTrapezoid, Cloud, Sphere, Trapezoid

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 8


def model_of(embedding, causal: bool = False, readout=None, controller=Fixed(3)) -> ContinuousTransformer:
    torch.manual_seed(1)
    attention = PreNorm(LayerNorm(), Attention(2, 4, causal=causal, rotary=Rotary(4.0, 0.5)))
    operators = (attention, PreNorm(LayerNorm(), FeedForward(16)))
    flow = Flow([Part(f, Constant(f.spec(WIDTH))) for f in operators])
    return ContinuousTransformer(
        embedding, flow, readout or TokenReadout(WIDTH, 2), Solver(controller=controller)
    ).eval()


def vectors(rule=Trapezoid(), queries: bool = True) -> VectorEmbedding:
    torch.manual_seed(0)
    return VectorEmbedding(3, WIDTH, FourierPositions(WIDTH, 6, scale=4.0), rule, queries=queries)


EMBEDDINGS = {
    "vectors": vectors,
    "normed": lambda rule=Trapezoid(): NormedEmbedding(vectors(rule)),
    "projected": lambda rule=Trapezoid(): ProjectedEmbedding(vectors(rule), Sphere()),
    "stemmed": lambda rule=Trapezoid(): StemEmbedding(vectors(rule), InterpolatedStem(WIDTH, 0.4)),
}
each_embedding = pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS.keys())

VALUES = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
TIMES = 0.1 + torch.rand(2, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64).sort(-1).values
ASKED = torch.tensor([[0.5, 0.05, 1.9], [0.31, 0.3, 0.9]], dtype=torch.float64)


@each_embedding
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_answers_do_not_depend_on_what_else_is_asked(embedding, causal):
    model = model_of(embedding(BackwardRectangle() if causal else Trapezoid()), causal)
    together = model(VALUES, TIMES, query_times=ASKED)
    assert together.shape == (2, 3, 2)
    for j in range(3):
        alone = model(VALUES, TIMES, query_times=ASKED[:, j : j + 1])
        torch.testing.assert_close(alone, together[:, j : j + 1], rtol=0.0, atol=1e-12)


@each_embedding
def test_answers_of_a_sequence_do_not_depend_on_its_padding(embedding):
    model = model_of(embedding())
    present = torch.ones(2, 7, dtype=torch.bool)
    present[1, 4:] = False
    padded = model(VALUES, TIMES, present, query_times=ASKED)
    alone = model(VALUES[1:, :4], TIMES[1:, :4], query_times=ASKED[1:])
    torch.testing.assert_close(padded[1:], alone, rtol=0.0, atol=1e-12)


def test_asking_does_not_change_the_grid():
    model = model_of(vectors(), controller=Adaptive(1e-6, 1e-6))
    plain = model.embedding(VALUES, TIMES)
    wider, _ = model.embedding(VALUES, TIMES, query_times=ASKED)
    grids = [model(cloud, full=True).solution.stats.grid for cloud in (plain, wider)]
    torch.testing.assert_close(torch.tensor(grids[0]), torch.tensor(grids[1]), rtol=0.0, atol=1e-9)


def test_a_causal_model_forecasts_from_the_past_alone():
    model = model_of(vectors(BackwardRectangle()), causal=True)
    asked = TIMES[:, 3:4] + 1e-3
    values = VALUES.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(values, TIMES, query_times=asked).sum(), values)
    assert bool((g[:, :4] != 0).any(-1).all()) and bool((g[:, 4:] == 0).all())


def test_answers_change_smoothly_with_the_time_asked():
    model = model_of(vectors())
    asked = torch.linspace(0.2, 0.8, 41).expand(2, -1)
    found = model(VALUES, TIMES, query_times=asked)
    bends = found[:, 2:] - 2 * found[:, 1:-1] + found[:, :-2]
    assert bends.abs().max() < 0.05 * (found[:, 1:] - found[:, :-1]).abs().max() + 0.02
    assert found.std(1).min() > 1e-2


def test_the_vector_of_the_unobserved_is_trained():
    model = model_of(vectors())
    model(VALUES, TIMES, query_times=ASKED).square().sum().backward()
    assert model.embedding.unobserved.grad.abs().max() > 1e-4


def test_a_small_model_learns_to_interpolate(unchecked):
    """Samples of random sines; the loss at times between them falls to a fifth of the variance."""
    torch.manual_seed(0)
    embedding = VectorEmbedding(1, WIDTH, FourierPositions(WIDTH, 8, scale=6.0), queries=True)
    model = (
        model_of(embedding, readout=TokenReadout(WIDTH, 1))
        .at(solver=Solver(Euler(), Fixed(1)), gradient=Direct())
        .train()
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(4)
    losses = []
    for _ in range(100):
        times = torch.rand(16, 14, generator=generator).sort(-1).values
        phase = 6.3 * torch.rand(16, 1, generator=generator)
        asked = 0.1 + 0.8 * torch.rand(16, 8, generator=generator)
        answer = model(torch.sin(4 * times + phase).unsqueeze(-1), times, query_times=asked).squeeze(-1)
        loss = (answer - torch.sin(4 * asked + phase)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.1


def test_tokens_can_be_asked_for_too():
    torch.manual_seed(0)
    embedding = TokenEmbedding(5, WIDTH, FourierPositions(WIDTH, 4, 1.0), queries=True)
    tokens = torch.randint(5, (2, 6))
    found = model_of(embedding)(tokens, query_times=torch.tensor([[2.5], [7.0]]))
    assert found.shape == (2, 1, 2)


@each_embedding
def test_a_model_that_asks_is_saved_with_its_vector(embedding, tmp_path):
    model = model_of(embedding())
    again = load(save(model, tmp_path)).eval()
    assert torch.equal(again(VALUES, TIMES, query_times=ASKED), model(VALUES, TIMES, query_times=ASKED))


def test_whole_numbers_are_times():
    model = model_of(vectors())
    times = torch.arange(7).expand(2, -1)
    asked = torch.tensor([[3], [9]])
    assert torch.equal(
        model(VALUES, times, query_times=asked), model(VALUES, times.double(), query_times=asked.double())
    )


def test_mistakes_are_named(unchecked):
    with pytest.raises(ValueError, match="queries=True"):
        model_of(vectors(queries=False))(VALUES, TIMES, query_times=ASKED)
    with pytest.raises(ValueError, match="TokenReadout"):
        model_of(vectors(), readout=MeanReadout(WIDTH, 1))(VALUES, TIMES, query_times=ASKED)
    with pytest.raises(ValueError, match="the shape must be"):
        model_of(vectors())(VALUES, TIMES, query_times=ASKED[0])
    with pytest.raises(ValueError, match="float32"):
        model_of(vectors())(VALUES, TIMES, query_times=ASKED.float())
    with pytest.raises(ValueError, match="with_queries"):
        model_of(CloudEmbedding(WIDTH))(Cloud(torch.zeros(2, 3, WIDTH)), query_times=ASKED)
    with pytest.raises(ValueError, match="next time"):
        model_of(vectors(CausalTrapezoid()), causal=True)(VALUES, TIMES, query_times=ASKED)
