"""The resolution report of a trained model, its numbers against evaluations written out here."""

import functools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import solve_ivp

from continua.control import CrossEntropy, LeftOut, Objective, Resolutions, resolution_report
from continua.data import Samples, refine, take_every
from continua.fields import ContinuousHeads, Expansion
from continua.model import (
    AnalysisReadout,
    ContinuousTransformer,
    Flow,
    Layers,
    LearnedPositions,
    MeanReadout,
    Part,
    SinusoidalPositions,
    SynthesisEmbedding,
    TokenReadout,
    TokenTime,
    VectorEmbedding,
    transformer,
)
from continua.operators import Attention, Dropout, FeedForward, LayerNorm, PreNorm, Spectral
from continua.solve import Adaptive, Direct, DormandPrince, Fixed, Solver, State
from continua.spaces import Axis, BSpline, GaussLegendre, Legendre, Trapezoid, Uniform
from registries import VOCABULARY, all_presets

pytestmark = pytest.mark.usefixtures("unchecked")
TOKENS, BASIS = 17, Legendre(3)


def signals(count: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and irregular times of smooth signals, and the phase that each hides."""
    generator = torch.Generator().manual_seed(seed)
    phase = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    even = torch.linspace(0, 1, TOKENS, dtype=torch.float64)
    times = (even + 0.3 * even * (1 - even)).expand(count, -1).clone()
    values = torch.stack([torch.sin(4 * times + 2 * phase), torch.cos(3 * times - phase)], -1)
    return values, times, phase


def build(nodes: int = 6, heads: int = 6, rule=Trapezoid(), per_token: bool = False) -> ContinuousTransformer:
    """Functions along the embedding, a measure of heads, irregular times; the parameters do not know the sizes."""
    torch.manual_seed(0)
    axis = Axis(nodes, 2, GaussLegendre())
    kernel, norm, width = Spectral(axis, BASIS), LayerNorm(axis=axis), 2 * BASIS.size
    attention = PreNorm(norm, Attention(heads, 2, head_masses=True, kernel=kernel))
    feedforward = PreNorm(norm, Dropout(FeedForward(4, kernel=kernel), 0.2))
    parts = [
        Part(attention, ContinuousHeads(attention.spec(axis.width), over_h=Legendre(2), over_z=BSpline(2, 1))),
        Part(feedforward, Expansion(feedforward.spec(axis.width), Legendre(2))),
    ]
    embedding = SynthesisEmbedding(VectorEmbedding(2, width, SinusoidalPositions(width, 6.0, 0.5), rule), axis, BASIS)
    readout = TokenReadout(width, 1) if per_token else MeanReadout(width, 1)
    solver = Solver(DormandPrince(), Fixed(1))
    return ContinuousTransformer(
        embedding, Flow(parts), AnalysisReadout(readout, axis, BASIS), solver, Direct()
    ).double()


@functools.cache
def trained(per_token: bool = False) -> ContinuousTransformer:
    """Learns the phase of a signal, or the sum of its two features at every sample."""
    model, (values, times, phase) = build(per_token=per_token), signals()
    targets = values.sum(-1, keepdim=True) if per_token else phase
    free = [p for name, p in model.named_parameters() if not name.endswith("inner_p")]  # densities stay densities
    optimiser = torch.optim.Adam(free, lr=3e-2)
    losses = []
    for _ in range(20):
        loss = F.mse_loss(model(values, times), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses
    return model


@functools.cache
def report():
    values, times, phase = signals()
    some = Resolutions(steps=(1, 2, 8), rtols=(1e-2, 1e-3))
    return resolution_report(trained(), (values, times), phase, F.mse_loss, some)


def row(unit: str, resolution: float, of=None):
    (found,) = [r for r in (of or report()).rows if (r.unit, r.resolution) == (unit, resolution)]
    return found


def evaluated(model: ContinuousTransformer, *inputs: torch.Tensor) -> torch.Tensor:
    """The output of a model with other sizes and the trained parameters, without randomness."""
    model = model.at()
    model.load_state_dict(trained().state_dict())
    with torch.no_grad():
        return model.eval()(*inputs)


def agrees(found, y: torch.Tensor) -> None:
    values, times, phase = signals()
    own = evaluated(build(), values, times)
    assert found.change == pytest.approx(float((y - own).norm() / own.norm()), rel=1e-9, abs=1e-14)
    assert found.loss == pytest.approx(float(((y - phase) ** 2).mean()), rel=1e-12)
    assert found.loss_change == pytest.approx(float(((y - phase) ** 2 - (own - phase) ** 2).mean()), abs=1e-14)


def test_token_time_is_thinned_and_interpolated():
    values, times, _ = signals()
    assert [r.resolution for r in report().rows if r.continuum == "t"] == [5, 9, 33, 65]
    for stride, tokens in ((4, 5), (2, 9)):
        agrees(row("tokens", tokens), evaluated(build(), values[:, ::stride], times[:, ::stride]))
    where = np.linspace(0, TOKENS - 1, 33)
    finer = [np.interp(where, np.arange(TOKENS), x) for x in times.numpy()]
    between = [[np.interp(where, np.arange(TOKENS), x[:, c]) for c in range(2)] for x in values.numpy()]
    y = evaluated(build(), torch.tensor(np.array(between)).transpose(1, 2), torch.tensor(np.array(finer)))
    agrees(row("tokens", 33), y)


@pytest.mark.parametrize("nodes", [3, 12, 24])
def test_the_embedding_axis(nodes):
    agrees(row("axis_nodes", nodes), evaluated(build(nodes), *signals()[:2]))


@pytest.mark.parametrize("heads", [3, 12, 24])
def test_heads(heads):
    agrees(row("head_nodes", heads), evaluated(build(heads=heads), *signals()[:2]))


def test_depth_by_steps_and_tolerances():
    assert [r.resolution for r in report().rows if r.unit == "steps"] == [1, 2, 8]
    assert [r.resolution for r in report().rows if r.unit == "rtol"] == [1e-2, 1e-3]
    for steps in (2, 8):
        agrees(row("steps", steps), evaluated(build().at(steps=steps), *signals()[:2]))
    agrees(row("rtol", 1e-3), evaluated(build().at(rtol=1e-3), *signals()[:2]))
    assert row("steps", 1).change == 0.0, "the model's own"


def test_the_solver_error_is_the_distance_to_scipy():
    values, times, _ = signals()
    model = trained().at()
    model.training = False
    with torch.no_grad():
        cloud = model.embedding(values, times)
        bound = model.flow.bind(cloud, random=False)

        def velocity(z: float, flat: np.ndarray) -> np.ndarray:
            state = State(torch.from_numpy(flat).view_as(cloud.points))
            return bound(min(z, 1.0), state).x.flatten().numpy()

        end = solve_ivp(velocity, (0.0, 1.0), cloud.points.flatten().numpy(), "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
        exact = model.readout(cloud.at(torch.from_numpy(end).view_as(cloud.points)))
        expected = float((model(values, times) - exact).norm() / exact.norm())
    assert expected > 1e-8
    assert report().solver_error == pytest.approx(expected, rel=1e-2)
    assert report().reference_solver == "DormandPrince() at rtol 1e-10"


def test_a_trained_model_converges_spectrally_in_nodes_and_heads():
    values, times, _ = signals()
    exact = evaluated(build(96), values, times), evaluated(build(heads=96), values, times)
    errors = [
        [float((evaluated(build(n), values, times) - exact[0]).norm()) for n in (4, 8, 16)],
        [float((evaluated(build(heads=n), values, times) - exact[1]).norm()) for n in (4, 8, 16)],
    ]
    for coarse, middle, fine in errors:
        assert middle < coarse / 10 and fine < middle / 30


def test_one_output_per_token_is_compared_at_the_tokens_that_both_have():
    values, times, _ = signals(3)
    present = torch.arange(TOKENS) < torch.tensor([[17], [10], [1]])
    model, targets = trained(per_token=True), values.sum(-1, keepdim=True)
    only = Resolutions(strides=(4,), factors=(2,), steps=(1,), rtols=(), axis_nodes=(12,), head_nodes=())
    found = resolution_report(model, (values, times, present), targets, F.mse_loss, only)
    model = model.at()
    model.training = False
    with torch.no_grad():
        whole = model(values, times, present)
        assert found.loss == pytest.approx(float(F.mse_loss(whole[present], targets[present])))
        kept = [[0, 4, 8, 12, 16], [0, 4, 8, 9], [0]]
        parts = [model(values[i : i + 1, k], times[i : i + 1, k])[0] for i, k in enumerate(kept)]
        same = torch.cat([whole[i, k] for i, k in enumerate(kept)])
        wanted = torch.cat([targets[i, k] for i, k in enumerate(kept)])
    y = torch.cat(parts)
    thin = row("tokens", 5, found)
    assert thin.change == pytest.approx(float((y - same).norm() / same.norm()), rel=1e-9)
    assert thin.loss_change == pytest.approx(float(F.mse_loss(y, wanted) - F.mse_loss(same, wanted)), abs=1e-14)
    assert row("tokens", 33, found).change < thin.change


def test_the_model_is_left_as_it_was():
    model, (values, times, phase) = trained().at(), signals()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (resolution_report(model, (values, times), phase, F.mse_loss, ONE) for _ in range(2))
    assert first == second, "dropout was drawn"
    assert model.training and model.flow.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


ONE = Resolutions((), (), (12,), (12,), (2,), ())


def test_the_report_is_readable_and_plain():
    plain = report().plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["own"] == {"tokens": 17, "axis_nodes": 6, "head_nodes": 6, "steps": 1}
    assert plain["rows"][0].keys() == {"continuum", "unit", "resolution", "change", "loss", "loss_change"}
    text = str(report()).splitlines()
    assert text[0].startswith("the model as it is: 17 tokens, 6 axis nodes, 6 head nodes, 1 step; loss ")
    assert text[1].split() == ["continuum", "resolution", "change", "of", "output", "loss", "change", "of", "loss"]
    assert len(text) == 2 + len(report().rows) + 1
    assert any(line.startswith("heads       12 head nodes") for line in text) and "1 step " in str(report())
    assert text[-1].startswith("solver error ") and text[-1].endswith("against DormandPrince() at rtol 1e-10")


def test_axes_that_a_model_does_not_have_are_left_out_with_a_reason():
    layers = Layers(2, width=8, heads=2, hidden=8)
    tokens = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))
    model = all_presets["gpt"](layers)
    found = resolution_report(model, (tokens,))
    assert {r.unit for r in found.rows} == {"steps", "rtol"} and found.loss is None and found.rows[0].loss is None
    assert [x.unit for x in found.left_out] == ["tokens", "axis_nodes", "head_nodes"]
    assert all(x.resolution is None for x in found.left_out)
    text = str(found)
    assert "left out, token time: what a TokenEmbedding reads are no samples of a signal" in text
    assert "left out, heads: heads are counted" in text and "left out, depth by tolerance" not in text
    with torch.no_grad():
        finest, own = (m.eval()(tokens) for m in (model.at(rtol=1e-5), model))
    assert row("rtol", 1e-5, found).change == pytest.approx(float((finest - own).norm() / own.norm()), rel=1e-4)
    assert found.reference_solver == "DormandPrince() at rtol 1e-06" and found.solver_error > 0
    assert json.loads(json.dumps(found.plain()))["left_out"][0]["continuum"] == "t"


def test_between_tokens_of_a_set_nothing_is_sampled():
    model = transformer(8, 1, features=3, time=TokenTime(rule=Uniform(), positions=None, stem=None))
    found = resolution_report(model, (torch.randn(2, 9, 3),))
    assert "are a set" in next(x.reason for x in found.left_out if x.unit == "tokens")
    assert {r.unit for r in found.rows} == {"axis_nodes", "head_nodes", "steps", "rtol"}
    for reads in (TokenTime(rule=Uniform(), stem=None), TokenTime(rule=Uniform(), positions=None)):
        signal = resolution_report(transformer(8, 1, features=3, time=reads), (torch.randn(2, 9, 3),))
        assert "tokens" in {r.unit for r in signal.rows}


def test_resolutions_that_a_model_refuses_are_left_out_with_its_words():
    values, times, _ = signals(2)
    asked = Resolutions(strides=(), factors=(), axis_nodes=(2, 12), head_nodes=(1, 12), steps=(), rtols=(1e-20,))
    found = resolution_report(build(), (values, times), resolutions=asked)
    assert [(r.unit, r.resolution) for r in found.rows] == [("axis_nodes", 12), ("head_nodes", 12)]
    reasons = {x.unit: x.reason for x in found.left_out}
    assert reasons["axis_nodes"].startswith("axis_nodes = 2: the axis has 3 modes")
    assert reasons["head_nodes"].startswith("head_nodes = 1: 1 nodes do not integrate a density of degree 3")
    assert reasons["rtol"].startswith("rtol = 1e-20: ")
    operator = FeedForward(4)
    flow = Flow([Part(operator, Expansion(operator.spec(8), Legendre(1)))])
    table = ContinuousTransformer(VectorEmbedding(1, 8, LearnedPositions(9, 8)), flow, MeanReadout(8, 1))
    found = resolution_report(table, (torch.ones(1, 9, 1),), resolutions=Resolutions((2,), (2,), steps=(), rtols=()))
    assert [r.resolution for r in found.rows] == [5]
    assert "a learned table knows whole numbers only" in next(x.reason for x in found.left_out if x.resolution == 17)
    assert isinstance(found.left_out[0], LeftOut)


def test_a_sphere_is_compared_with_the_flow_on_the_sphere():
    layers = Layers(2, width=8, heads=2, hidden=8)
    torch.manual_seed(0)
    model = all_presets["sphere"](layers).double()
    found = resolution_report(model, (torch.arange(6).unsqueeze(0),), resolutions=Resolutions(steps=(512,)))
    assert "Projected" in found.reference_solver
    assert "left out, depth by tolerance: the stepper, which stays on a manifold, does not" in str(found)
    fine = model.at(steps=512)(torch.arange(6).unsqueeze(0))
    again = resolution_report(model.at(steps=512), (torch.arange(6).unsqueeze(0),), resolutions=Resolutions(steps=()))
    assert again.solver_error < 0.02 * found.solver_error and math.isfinite(float(fine.detach().norm()))


def test_steps_are_counted_as_they_were_taken():
    """Four layers are joined where there are fewer steps, and each number of steps is a row."""
    layers, tokens = Layers(4, width=8, heads=2, hidden=8), torch.arange(6).unsqueeze(0)
    model = all_presets["gpt"](layers).double().eval()
    found = resolution_report(model, (tokens,), resolutions=Resolutions(steps=(1, 2, 4, 8)))
    steps = [r.resolution for r in found.rows if r.unit == "steps"]
    with torch.no_grad():
        taken = [len(model.at(steps=n)(tokens, full=True).solution.stats.grid) - 1 for n in (1, 2, 4, 8)]
    assert taken == [1, 2, 4, 8] == steps and row("steps", 4, found).change == 0.0 < row("steps", 2, found).change


def test_a_reference_that_cannot_be_solved_is_left_out_with_its_reason():
    values, times, _ = signals(2)
    hopeless = Solver(DormandPrince(), Adaptive(1e-10, 1e-10, max_steps=1))
    found = resolution_report(build(), (values, times), resolutions=ONE, reference_solver=hopeless)
    assert found.solver_error is None and len(found.rows) == 3
    assert "the reference solver" in found.left_out[-1].reason and "not measured" in str(found)
    assert json.loads(json.dumps(found.plain()))["solver_error"] is None


def test_bad_arguments_are_named():
    values, times, _ = signals(2)
    with pytest.raises(ValueError, match=r"loss = CrossEntropy\(.*Pass a function of output and targets"):
        resolution_report(build(), (values, times), torch.zeros(2, dtype=torch.long), CrossEntropy())
    with pytest.raises(ValueError, match=r"loss = Objective\(.*Pass a function of output and targets"):
        resolution_report(build(), (values, times), torch.zeros(2, dtype=torch.long), Objective(CrossEntropy()))
    with pytest.raises(ValueError, match=r"reference_solver = 'DormandPrince': this is no Solver"):
        resolution_report(build(), (values, times), reference_solver=DormandPrince())
    with pytest.raises(ValueError, match=r"inputs = \(2, 17, 2\): .*as a tuple.*Pass \(values,\)"):
        resolution_report(build(), values)
    with pytest.raises(ValueError, match=r"model = 'Linear': this is no ContinuousTransformer"):
        resolution_report(torch.nn.Linear(1, 1), (values,))
    with pytest.raises(ValueError, match=r"stride = 0: .*Pass stride >= 1"):
        take_every(Samples.of(values, times), 0)
    with pytest.raises(ValueError, match=r"factor = 0: "):
        refine(Samples.of(values, times), 0)
