"""The debiased objective: loss and gradient of a nonlinear flow, unbiased from solves over a few tokens."""

import pytest
import torch

from clouds import t_statistic
from continua.control import DebiasedObjective, with_token_integral
from continua.fields import Constant
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, NormReadout, Part
from continua.operators import Attention, Dropout, Exact, FeedForward, Subset, Unnormalised
from continua.solve import Checkpointed, Direct, Euler, Fixed, Solver
from continua.spaces import Cloud

WIDTH, TOKENS, ROWS = 2, 8, 150


def model_of(dropout: float = 0.0, gradient=Direct()) -> ContinuousTransformer:
    generator = torch.Generator().manual_seed(0)
    attention = Attention(1, 2, beta=2.0, biased=False)
    operators = [Dropout(attention, dropout) if dropout else attention, FeedForward(4, biased=False)]
    parts = [Part(f, Constant(f.spec(WIDTH), generator)) for f in operators]
    solver = Solver(Euler(), Fixed(2))
    model = ContinuousTransformer(
        CloudEmbedding(WIDTH), Flow(parts), NormReadout(WIDTH, Unnormalised()), solver, gradient
    )
    return model.double()


def batch() -> Cloud:
    """One sequence, repeated: rows draw nodes of their own, so that each is a sample."""
    points = 1.5 * torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Cloud(points.expand(ROWS, -1, -1))


def objective(model, cloud: Cloud, generator: torch.Generator):
    """A mean of losses, one a sequence, each nonlinear in the tokens."""
    end = model(cloud, generator=generator)
    return (end.mean(1) - 1.0).square().sum(-1).exp().mean()


def sample(loss, model) -> tuple[float, torch.Tensor]:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([g.flatten() for g in gradients])


def statistics(of, samples: int) -> tuple[float, float]:
    """t of the error of the loss, and of the gradient along the exact one; a call is a mean over `ROWS` samples."""
    model, cloud = model_of(), batch()
    exact, direction = sample(objective(model, cloud, torch.Generator().manual_seed(0)), model)
    generator = torch.Generator().manual_seed(7)
    losses, gradients = [], []
    for _ in range(samples):
        loss, gradient = sample(of(model, cloud, generator), model)
        losses.append(loss - exact)
        gradients.append(float((gradient - direction) @ direction / direction.norm()))
    return t_statistic(torch.tensor(losses)), t_statistic(torch.tensor(gradients))


def test_loss_and_gradient_are_unbiased_where_those_of_the_subset_are_not(unchecked):
    """Two-sided t-tests at 1 %."""
    loss, gradient = statistics(DebiasedObjective(objective, m=2, levels=2), 200)
    assert abs(loss) < 2.58 and abs(gradient) < 2.58
    plain = lambda model, cloud, generator: objective(with_token_integral(model, Subset(2)), cloud, generator)  # noqa: E731
    loss, gradient = statistics(plain, 60)
    assert abs(loss) > 10.0 and abs(gradient) > 10.0


def test_with_as_many_nodes_as_tokens_it_is_the_exact_objective():
    model, cloud = model_of(), batch()
    exact = objective(model, cloud, torch.Generator())
    for seed in range(3):
        found = DebiasedObjective(objective, m=TOKENS)(model, cloud, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-12)


def test_the_telescope_sums_to_the_exact_objective(monkeypatch, unchecked):
    """sum_l P(l) E J_l = J, with the level enumerated instead of drawn: fewer samples, and no doubt left."""
    model, cloud = model_of(), batch()
    exact = objective(model, cloud, torch.Generator())
    sums = []
    for seed in range(40):
        total = 0.0
        for level, probability in ((1, 0.7), (2, 0.3)):
            monkeypatch.setattr("continua.control.debiased.draw_level", lambda *_, x=(level, probability): x)
            sampled = DebiasedObjective(objective, 2, 2)(model, cloud, torch.Generator().manual_seed(seed))
            total += probability * sampled.item()
        sums.append(total - exact.item())
    assert abs(t_statistic(torch.tensor(sums))) < 2.58


def test_seeds_and_the_gradient_by_checkpoints():
    cloud = batch()
    debiased = DebiasedObjective(objective, 2, 2)
    found = []
    for gradient in (Direct(), Checkpointed()):
        model = model_of(dropout=0.2, gradient=gradient)
        found.append(sample(debiased(model, cloud, torch.Generator().manual_seed(3)), model))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0.0, atol=1e-12)
    other = debiased(model, cloud, torch.Generator().manual_seed(4))
    assert other.item() != found[1][0]


def test_dropout_is_the_same_on_both_sides_of_a_difference():
    """With exact sides the difference vanishes only if the masks agree."""
    model, cloud = model_of(dropout=0.5), batch()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        values = []

        def noted(model, cloud, generator, values=values):
            values.append(objective(model, cloud, generator))
            return values[-1]

        DebiasedObjective(noted, m=TOKENS)(model, cloud, generator)
        assert len({value.item() for value in values}) == 1


def test_a_twin_shares_parameters_and_leaves_the_model_alone():
    model = model_of(dropout=0.2)
    twin = with_token_integral(model, Subset(3))
    assert [id(p) for p in twin.parameters()] == [id(p) for p in model.parameters()]
    assert twin.flow.parts[0].operator.inner.integral == Subset(3)
    assert model.flow.parts[0].operator.inner.integral == Exact()
    twin.eval()
    assert model.training and model.flow.training and not twin.flow.parts[0].training


def test_mistakes_are_named(unchecked):
    with pytest.raises(ValueError, match="levels = 0"):
        DebiasedObjective(objective, 2, 0)
    with pytest.raises(ValueError, match="m = 0"):
        DebiasedObjective(objective, 0)
    with pytest.raises(ValueError, match=r"model.train\(\)"):
        DebiasedObjective(objective, 2)(model_of().eval(), batch())
