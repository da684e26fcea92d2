"""Token time is continuous: refining the samples of one signal converges through a whole model."""

import functools

import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.fields import Constant
from continua.model import ContinuousTransformer, Flow, MeanReadout, Part, SinusoidalPositions, VectorEmbedding
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Rotary
from continua.solve import RK4, Adaptive, Backsolve, Checkpointed, Direct, Fixed, Solver, Tsitouras
from continua.spaces import BackwardRectangle, CausalTrapezoid, Counting, Trapezoid

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 6
COUNTS = [40, 80, 160, 320]


@functools.cache
def model_of(rule, causal: bool = False, rotary: bool = False) -> ContinuousTransformer:
    torch.manual_seed(0)
    attention = Attention(2, 2, beta=2.0, causal=causal, rotary=Rotary(6.0, 1.0) if rotary else None)
    operators = (PreNorm(LayerNorm(), attention), PreNorm(LayerNorm(), FeedForward(8)))
    flow = Flow([Part(f, Constant(f.spec(WIDTH))) for f in operators])
    code = SinusoidalPositions(WIDTH, fastest=6.0, slowest=0.5)
    solver = Solver(RK4(), Fixed(2))
    return ContinuousTransformer(VectorEmbedding(2, WIDTH, code, rule), flow, MeanReadout(WIDTH, 3), solver).double()


def answer(model: ContinuousTransformer, count: int, bend: float = 0.5) -> torch.Tensor:
    """The output for one signal on (0, 1], sampled at `count` + 1 irregular times; `bend` moves them about."""
    even = torch.linspace(0, 1, count + 1)
    times = (even + bend * even * (1 - even) * torch.cos(2 * even)).unsqueeze(0)
    times = 0.05 + 0.95 * times  # BackwardRectangle starts at 0, before the first
    values = torch.stack([torch.sin(6 * times), torch.exp(-times)], -1)
    with torch.no_grad():
        return model(values, times)[0]


def order_of(model: ContinuousTransformer) -> float:
    reference = answer(model, 2560)
    errors = [float((answer(model, count) - reference).abs().max()) for count in COUNTS]
    return fitted_slope([1 / count for count in COUNTS], errors)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("rotary", [False, True], ids=["code", "rotary"])
def test_trapezoids_converge_at_order_two(causal, rotary, unchecked):
    rule = CausalTrapezoid() if causal else Trapezoid()
    assert order_of(model_of(rule, causal, rotary)) == pytest.approx(rule.order, abs=0.2)


def test_backward_rectangles_converge_at_order_one(unchecked):
    rule = BackwardRectangle()
    assert order_of(model_of(rule, causal=True)) == pytest.approx(rule.order, abs=0.2)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_unweighted_attention_does_not_converge(causal, unchecked):
    """Two ways to refine the same signal: with quadrature masses they agree, with the counting measure never."""
    plain, weighted = (model_of(r, causal) for r in (Counting(), CausalTrapezoid() if causal else Trapezoid()))
    gaps = {
        name: [float((answer(model, n, 0.5) - answer(model, n, -0.5)).abs().max()) for n in COUNTS]
        for name, model in (("plain", plain), ("weighted", weighted))
    }
    assert gaps["plain"][-1] > 0.9 * gaps["plain"][0] > 0.02
    assert gaps["weighted"][-1] < 0.03 * gaps["weighted"][0] and gaps["weighted"][-1] < 1e-3 * gaps["plain"][-1]


def test_duplicate_times_share_their_mass():
    """Two samples at one time count as one, with the mean of what attention makes of them; their order is of no use."""
    model = model_of(Trapezoid())
    times = torch.tensor([[0.1, 0.4, 0.4, 0.9]])
    values = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    values[:, 2] = values[:, 1]
    once = [0, 1, 3]
    torch.testing.assert_close(model(values, times), model(values[:, once], times[:, once]))
    values[:, 2] += 1.0
    turned = [0, 2, 1, 3]
    torch.testing.assert_close(model(values, times), model(values[:, turned], times))


@pytest.mark.parametrize("rule", [CausalTrapezoid(), BackwardRectangle()])
def test_causal_rules_serve_duplicate_times_in_any_order(rule):
    times = torch.tensor([[0.1, 0.4, 0.4, 0.9]])
    values = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    found = model_of(rule, causal=True)
    torch.testing.assert_close(found(values, times), found(values[:, [0, 2, 1, 3]], times))


def test_one_time_for_all_is_refused():
    with pytest.raises(ValueError, match="all tokens share one time"):
        model_of(Trapezoid())(torch.zeros(1, 2, 2), torch.full((1, 2), 0.3))


@pytest.mark.parametrize("rule", [Trapezoid(), CausalTrapezoid(), BackwardRectangle(), Counting()], ids=repr)
def test_a_single_token_is_its_own_mean_under_any_rule(rule):
    causal = isinstance(rule, CausalTrapezoid | BackwardRectangle)
    values, times = torch.tensor([[[0.3, -0.2]]]), torch.tensor([[0.7]])
    torch.testing.assert_close(model_of(rule, causal)(values, times), model_of(Counting(), causal)(values, times))


@pytest.mark.parametrize("gradient", [Checkpointed(), Checkpointed(segment=1.0, steps=2), Backsolve()], ids=repr)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("rotary", [False, True], ids=["code", "rotary"])
def test_gradients_reach_the_times_of_the_samples(gradient, causal, rotary, unchecked):
    """Through the position code, the masses and, where there are rotations, the times themselves, each way once."""
    model = model_of(CausalTrapezoid() if causal else Trapezoid(), causal, rotary)
    raw = torch.rand(2, 7, generator=torch.Generator().manual_seed(1)).cumsum(-1) / 7
    raw.requires_grad_(True)

    times = raw * 1.1 + 0.05  # not a leaf, as times that were scaled are
    values = torch.stack([torch.sin(6 * times), torch.exp(-times)], -1)
    back = isinstance(gradient, Backsolve)
    solver = Solver(Tsitouras(), Adaptive(1e-9, 1e-9)) if back else Solver(RK4(), Fixed(5))

    def found(gradient) -> list[torch.Tensor]:
        output = model.at(solver=solver, gradient=gradient)(values, times)
        wanted = [raw, *model.parameters()]
        return list(torch.autograd.grad(output.square().sum(), wanted, retain_graph=True))

    for g, e in zip(found(gradient), found(Direct()), strict=True):
        torch.testing.assert_close(g, e, rtol=0.0, atol=1e-6 if back else 1e-12)
