"""The one builder: all four continua by default, each a number or an object, each read at another resolution."""

import copy
import itertools
import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy

import continua
from continua import (
    Clock,
    Cosine,
    Depth,
    Direct,
    EmbeddingAxis,
    Euler,
    HeadMeasure,
    HypernetworkField,
    Midpoint,
    Rotary,
    SinusoidalPositions,
    Stem,
    TokenTime,
    transformer,
)
from continua.fields import Constant, ContinuousHeads, Expansion, HeadHypernetwork, Hypernetwork, PiecewiseConstant
from continua.operators import Attention, PreNorm
from continua.solve import Adaptive, DormandPrince, Fixed
from continua.spaces import Uniform
from references import count_numbers

BATCH, TOKENS = 4, 12


def signals(tokens: int = TOKENS, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth signals at irregular times in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(BATCH, tokens, generator=generator).sort(-1).values
    phase = torch.arange(BATCH).unsqueeze(-1)
    return torch.sin(5 * times + phase).unsqueeze(-1), times


def small(**changed):
    torch.manual_seed(0)
    return transformer(**{"width": 16, "outputs": 3, "features": 1, "hidden": 16, "axis": 4, **changed})


def train(model, updates=15, lr=1e-2, optimiser=torch.optim.AdamW):
    values, times = signals()
    labels = torch.arange(BATCH) % 3
    steps = optimiser(model.parameters(), lr=lr)
    losses = []
    for _ in range(updates):
        loss = cross_entropy(model(values, times), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def test_with_no_argument_all_four_axes_are_continuous():
    model = transformer(width=64, outputs=10, features=1)
    attention, feedforward = model.flow.parts
    assert isinstance(attention.field, ContinuousHeads) and isinstance(feedforward.field, Expansion)
    assert attention.field.breaks == () == feedforward.field.breaks
    assert model.axis.nodes > 1 and attention.operator.inner.kernel.nodes == model.axis.nodes
    assert attention.operator.inner.rotary is not None
    assert model(*signals()).shape == (BATCH, 10)
    assert transformer(width=64, outputs=65, vocabulary=65, causal=True)(torch.zeros(2, 7).long()).shape == (2, 7, 65)


def test_the_default_trains_and_is_read_otherwise_in_one_call_each():
    model = small()
    losses = train(model)
    assert losses[-1] < 0.7 * losses[0]
    values, times = signals()
    model.eval()
    with torch.no_grad():
        own = model(values, times)
        for other in (model.at(steps=8), model.at(head_nodes=8), model.at(axis_nodes=8)):
            found = other(values, times)
            assert found.shape == own.shape and not torch.equal(found, own)
        fine = signals(4 * TOKENS)
        assert model(*fine).shape == own.shape


@pytest.mark.parametrize("axis", ["head_nodes", "axis_nodes"])
def test_finer_readings_converge(axis, float64):
    model = small(depth=Depth(1.0, steps=1, stepper=Euler()), time=TokenTime(stem=None)).eval()
    values, times = (x.double() for x in signals())
    with torch.no_grad():
        found = [model.at(**{axis: 4 * 2**k})(values, times) for k in range(5)]
    gaps = [float((a - b).abs().max()) for a, b in itertools.pairwise(found)]
    assert gaps[-1] < 0.1 * gaps[0]


@pytest.mark.parametrize(
    "changed, kind",
    [
        ({"heads": 2}, Expansion),
        ({"heads": 2, "depth": Depth(field=HypernetworkField(hidden=8))}, Hypernetwork),
        ({"depth": Depth(field=HypernetworkField(hidden=8))}, HeadHypernetwork),
        ({"heads": 2, "depth": Depth(field=4)}, PiecewiseConstant),
        ({"heads": 2, "depth": Depth(field=1)}, Constant),
        ({"heads": 2, "axis": 1, "depth": 2}, Expansion),
        ({"heads": 2, "axis": EmbeddingAxis(4, periodic=True)}, Expansion),
        ({"heads": 2, "axis": EmbeddingAxis(4, periodic=True, unitary=True)}, Expansion),
        ({"axis": EmbeddingAxis(4, periodic=True, unitary=True)}, ContinuousHeads),
        ({"depth": Depth(2.0, Cosine(2), rtol=1e-3, stepper=DormandPrince()), "dropout": 0.1}, ContinuousHeads),
        ({"depth": Depth(1.0, Cosine(2), steps=2, stepper=Midpoint(), damping=0.1)}, ContinuousHeads),
        ({"time": TokenTime(stem=Stem(3.0, gaps=True), spacing=0.1)}, ContinuousHeads),
    ],
)
def test_every_choice_trains_and_round_trips(changed, kind, tmp_path, unchecked):
    model = small(**changed)
    assert isinstance(model.flow.parts[0].field, kind)
    losses = train(model)
    assert losses[-1] < losses[0]
    continua.save(model, tmp_path)
    again = continua.load(tmp_path).eval()
    values, times = signals()
    assert torch.equal(again(values, times), model.eval()(values, times))
    assert repr(again) == repr(model)


def test_plain_choices_are_those_of_a_standard_network():
    model = small(heads=2, axis=1, depth=Depth(3.0, 3))
    attention = model.flow.parts[0].operator
    assert isinstance(attention, PreNorm) and attention.inner == Attention(2, 8, rotary=attention.inner.rotary)
    assert model.axis is None and model.solver.controller == Fixed(3)
    assert small(depth=Depth(rtol=1e-3, stepper=DormandPrince())).solver.controller == Adaptive(1e-3, 1e-3)
    assert isinstance(small().gradient, Direct)


@pytest.mark.parametrize("optimiser", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("weights", [Cosine(2), HypernetworkField(hidden=8)])
def test_no_optimiser_breaks_the_density_of_heads(optimiser, weights, tmp_path, unchecked):
    model = small(width=8, hidden=8, axis=1, heads=HeadMeasure(4, 2, key_size=2), depth=Depth(1.0, weights, steps=1))
    train(model, updates=200, lr=0.1, optimiser=optimiser)
    field = model.flow.parts[0].field
    for z in (0.0, 0.3, 1.0):
        p = field.masses(z)
        assert bool((p > 0).all()) and abs(float(p.detach().sum()) - 1.0) < 1e-5
    continua.save(model, tmp_path)
    values, times = signals()
    assert torch.equal(continua.load(tmp_path)(values, times), model(values, times))


def test_times_in_any_unit_are_scaled_and_others_refused():
    values, times = signals()
    model = small().eval()
    hours = small(time=TokenTime(100.0, 3700.0)).eval()
    hours.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(hours(values, 100.0 + 3600.0 * times), model(values, times), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"built for times from 0 to 1.*TokenTime"):
        model(values, 3600.0 * times)
    assert torch.equal(
        small(time=2.0).embedding.inner.inner.inner.clock.read(torch.ones(1, 1), None, times), torch.tensor([[0.5]])
    )


def test_seconds_since_1970_keep_their_digits():
    begin = 1.7e9
    clock = Clock(begin, begin + 10.0)
    times = begin + torch.tensor([[0.0, 0.001, 0.002]], dtype=torch.float64)
    found = clock.read(times, None, torch.zeros(1))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.0, 1e-4, 2e-4]]), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("spacing", [None, 60.0])
def test_seconds_since_1970_in_float32_are_refused(spacing):
    begin = 1.7e9
    model = small(time=TokenTime(begin, begin + 86400.0, spacing)).eval()
    values, times = signals()
    seconds = begin + 86400.0 * times.double()
    with torch.no_grad():
        assert model(values, seconds).isfinite().all()
    with pytest.raises(ValueError, match=r"times = torch.float32: near 1700086400 such numbers are \d+ apart.*float64"):
        model(values, seconds.float())
    assert small(time=TokenTime(0.0, 86400.0, spacing))(values, 86400.0 * times).isfinite().all()


def test_a_model_of_few_digits_takes_times_of_as_few():
    clock = Clock(0.0, 1.0, finest=1e-3)
    assert clock.read(torch.rand(1, 4).bfloat16(), None, torch.zeros(1).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("spacing", [None, 1 / 48])
def test_samples_without_times_are_equispaced_over_the_span(spacing):
    """Twice as many samples are the same signal on a finer grid, and not a longer one."""
    model = small(time=TokenTime(spacing=spacing)).eval()
    for count in (TOKENS, 2 * TOKENS, 200):
        grid = torch.linspace(0, 1, count).expand(BATCH, -1)
        values = torch.sin(9 * grid).unsqueeze(-1)
        torch.testing.assert_close(model(values), model(values, grid))


def test_samples_without_times_reach_as_far_in_a_causal_model_as_times_may():
    model = small(causal=True, per_token=True, time=TokenTime(0.0, 2.0, spacing=0.1)).eval()
    values = torch.zeros(1, 41, 1)
    times = 0.1 * torch.arange(42.0).unsqueeze(0)
    torch.testing.assert_close(model(values), model(values, times[:, :41]))
    for inputs in ((torch.zeros(1, 42, 1),), (torch.zeros(1, 42, 1), times)):
        with pytest.raises(ValueError, match=r"times = 4\.\d+: this model was built for times from 0 to 2"):
            model(*inputs)
    with pytest.raises(ValueError, match=r"0\.1 apart in a causal model: give times, or .*spacing=0.0488"):
        model(torch.zeros(1, 42, 1))
    present = torch.ones(1, 42, dtype=torch.bool)
    present[:, 41:] = False
    assert model(torch.zeros(1, 42, 1), None, present).isfinite().all()


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("kind", ["features", "vocabulary"])
def test_causal_models_do_not_read_the_future(kind, queries, float64):
    torch.manual_seed(0)
    time = TokenTime(queries=queries)
    sizes = {"features": 1} if kind == "features" else {"vocabulary": 7}
    model = transformer(16, 3, causal=True, hidden=16, axis=4, per_token=True, time=time, **sizes).eval()
    first = torch.arange(TOKENS, dtype=torch.float64).expand(2, -1) / 20
    first = first if kind == "features" else first * 20
    values = torch.randn(2, TOKENS, 1) if kind == "features" else torch.randint(7, (2, TOKENS))
    cut = 5
    later = values.clone()
    later[:, cut + 1 :] = torch.randn(2, TOKENS - cut - 1, 1) if kind == "features" else (later[:, cut + 1 :] + 1) % 7
    asked = {}
    if queries:
        step = first[0, 1] - first[0, 0]
        asked["query_times"] = first[:, : cut + 1] + 0.6 * step
    with torch.no_grad():
        a, b = (model(v, first, **asked)[:, : cut + 1] for v in (values, later))
    assert torch.equal(a, b)


def test_what_cannot_be_built_is_told_in_one_line(unchecked):
    wrong = [
        ({"features": None}, "features = None.*one of the two"),
        ({"vocabulary": 5}, "one of the two"),
        ({"width": 0}, "width = 0"),
        (
            {"axis": 5},
            r"width = 16: it does not split over 5 axis nodes\. Pass a multiple, such as 15 or 20, or axis=4",
        ),
        ({"heads": 3}, "heads = 3"),
        ({"heads": 4}, r"heads = 4: they share 4 channels of an axis node.*rotary.*axis=1 for plain vectors, heads=2"),
        ({"features": 2, "time": TokenTime(channels=2)}, r"features = 2: a cell is a value.*Pass features=3"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"time": TokenTime(positions=continua.SinusoidalPositions(12))}, "positions"),
    ]
    for changed, message in wrong:
        with pytest.raises(ValueError, match=message):
            small(**changed)
    for build, message in [
        (lambda: Depth(steps=2, rtol=1e-3), "rtol = 0.001"),
        (lambda: Depth(4.0, field=0, steps=6), "field = 0"),
        (lambda: Depth(4.0, field=4, steps=6), r"steps = 6: field = 4 layers, .*Pass a multiple of 4"),
        (lambda: EmbeddingAxis(4, unitary=True), "periodic=True"),
        (lambda: TokenTime(1.0, 0.0), "start < end"),
        (lambda: TokenTime(spacing=0.0), "spacing = 0.0"),
        (lambda: TokenTime(positions="rotary"), "positions = 'rotary': this is no Rotary"),
        (lambda: TokenTime(rule=continua.Trapezoid), "rule = .*this is no SampleRule"),
        (lambda: small(depth=Depth(field=2)).at(head_nodes=8), "layers count heads"),
    ]:
        with pytest.raises(ValueError, match=message):
            build()


def test_tolerances_change_splitting_to_dormand_prince():
    values, times = signals()
    split = small().eval()
    tight = split.at(rtol=1e-5)
    assert isinstance(tight.solver.stepper, continua.DormandPrince)
    with torch.no_grad():
        exact, fine = tight(values, times), split.at(steps=256)(values, times)
    assert float((fine - exact).abs().max()) < 0.02 * float(exact.abs().max())  # order 1 in 256 steps
    assert isinstance(small(depth=Depth(rtol=1e-3)).solver.stepper, continua.DormandPrince)
    strict = continua.sphere(continua.Layers(2, 8, 2, 8), continua.VectorEmbedding(1, 8), continua.MeanReadout(8, 2))
    with pytest.raises(ValueError, match="no error estimate"):  # a summed velocity would leave the sphere
        strict.at(rtol=1e-3)


def test_evaluation_mode_of_a_copy_leaves_the_model_alone():
    model = small(dropout=0.5, vocabulary=5, features=None, causal=True).train()
    assert not model.in_eval_mode().training and model.training
    continua.generate(model, torch.zeros(1, 2).long(), 3)
    assert model.training and model.flow.training


def test_printing_names_operators_heads_axis_depth_solver_and_gradient():
    shown = repr(small())
    for word in (
        "Attention",
        "heads=4",
        "4 axis nodes x 4 channels",
        "depth: [0, 4], staggered for 4 steps",
        "LieTrotter",
        "Fixed(steps=4)",
        "Direct",
        "outputs per sequence",
    ):
        assert word in shown, word
    assert len(shown.splitlines()) <= 8


def test_one_call_gives_everything():
    model, (values, times) = small().eval(), signals()
    found = model(values, times, save_at=(0.0, 2.0, 4.0), costs=(continua.KineticEnergy(),))
    assert torch.equal(found.output, model(values, times))
    assert found.solution.xs.shape == (3, BATCH, TOKENS, 16) and torch.equal(found.solution.xs[0], found.cloud.points)
    (energy,) = found.costs
    assert energy.shape == (BATCH,) and bool((energy > 0).all())
    assert torch.equal(model(found.cloud), found.output)
    torch.testing.assert_close(model(values, times, grid=[0.0, 1.0, 2.0, 3.0, 4.0]), found.output)
    assert not torch.equal(model(values, times, grid=[0.0, 2.0, 4.0]), found.output)


def test_parameters_are_shared_between_readings():
    model = small()
    for other in (model.at(steps=2), model.at(head_nodes=8), model.at(axis_nodes=8)):
        assert {id(p) for p in other.parameters()} == {id(p) for p in model.parameters()}
    alone = copy.deepcopy(model)
    assert {id(p) for p in alone.parameters()}.isdisjoint({id(p) for p in model.parameters()})
    assert count_numbers(model.flow.parts[1].field.spec) > 0


@pytest.mark.parametrize(
    ("time", "name"),
    [
        (48.0, "time.end = 48.0"),
        (TokenTime(spacing=2.0), "time.spacing = 2.0"),
        (TokenTime(stem=Stem(3.0)), "time.stem = Stem"),
        (TokenTime(channels=3), "time.channels = 3"),
    ],
    ids=str,
)
def test_units_of_whole_numbers_are_refused_and_not_forgotten(time, name):
    with pytest.raises(ValueError, match=rf"{name}.*1 from one token to the next.*divide your times"):
        transformer(8, 5, vocabulary=5, time=time, axis=1)


def test_named_positions_have_the_frequencies_of_the_default():
    """`Rotary()` and `SinusoidalPositions(width)` are made for the index; signals have times in [0, 1]."""

    def attention(**named):
        return transformer(8, 1, features=1, axis=1, heads=2, time=TokenTime(spacing=0.05, **named)).flow.parts[0]

    assert attention(positions=Rotary()).operator == attention().operator
    code = TokenTime(spacing=0.05, positions=SinusoidalPositions(8), stem=None)
    embedding = transformer(8, 1, features=1, axis=1, heads=2, time=code).embedding.inner
    assert embedding.code.fastest == pytest.approx(50.0)
    kept = TokenTime(spacing=0.05, positions=SinusoidalPositions(8, fastest=7.0), stem=None)
    assert transformer(8, 1, features=1, axis=1, heads=2, time=kept).embedding.inner.code.fastest == 7.0


def test_without_positions_and_stem_tokens_are_a_set():
    """Neither the order of tokens nor their times matter, and a refined sampling is the same measure."""
    torch.manual_seed(0)
    time = TokenTime(rule=Uniform(), positions=None, stem=None)
    model = transformer(16, 1, features=3, per_token=True, time=time).double().eval()
    values, order = torch.randn(2, 9, 3, dtype=torch.float64), torch.randperm(9)
    answer = model(values)
    torch.testing.assert_close(model(values[:, order]), answer[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(values, torch.rand(2, 9).double().sort().values), answer, rtol=1e-12, atol=1e-12)
    doubled = model(values.repeat_interleave(4, 1))
    torch.testing.assert_close(doubled, answer.repeat_interleave(4, 1), rtol=1e-12, atol=1e-12)
    usual = transformer(16, 1, features=3, per_token=True).double().eval()
    assert not torch.allclose(usual(values[:, order]), usual(values)[:, order], atol=1e-3)


def test_samples_over_more_than_the_span_are_refused_and_queries_of_a_set_too():
    """Times of [-1, 1] in a model of [0, 1] would be read, and learnt worse, without a word."""
    model = transformer(8, 1, features=1, axis=1, heads=2).eval()
    values = torch.randn(2, 5, 1)
    for low, high in ((-1.0, 1.0), (0.0, 2.0)):
        told, cure = f"times = '{low:g} to {high:g}'", rf"TokenTime\({low:g}, {high:g}\)"
        with pytest.raises(ValueError, match=rf"{told}: this model was built for times from 0 to 1.*{cure}"):
            model(values, torch.linspace(low, high, 5).expand(2, 5))
    beyond = torch.tensor([0.0, 0.2, 0.9, 1.3, 2.0]).expand(2, 5)
    there = torch.tensor([True, True, True, True, False]).expand(2, 5)
    assert model(values, beyond, there).shape == (2, 1), "absent samples have no time"
    causal = transformer(8, 1, features=1, axis=1, heads=2, causal=True, per_token=True).eval()
    assert causal(values, beyond).shape == (2, 5, 1)
    with pytest.raises(ValueError, match="a query has only its time"):
        TokenTime(positions=None, stem=None, queries=True)


@pytest.mark.parametrize("costs", [continua.KineticEnergy(), ["kinetic"]])
def test_costs_that_are_no_list_of_costs_are_refused(costs, unchecked):
    model = transformer(8, 1, features=1, axis=1, heads=2)
    with pytest.raises(ValueError, match=r"running costs are objects, in a list\. Pass costs=\[continua"):
        model(torch.randn(2, 5, 1), costs=costs)


def test_times_that_fill_a_small_part_of_the_span_are_warned_of():
    values, window = torch.randn(2, 30, 1), torch.linspace(0.4, 0.405, 30).expand(2, 30)
    with pytest.warns(UserWarning, match=r"longest sequence covers 0\.5% of the times from 0 to 1, .*spacing="):
        transformer(8, 1, features=1, axis=1, heads=2)(values, window)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transformer(8, 1, features=1, axis=1, heads=2, time=TokenTime(spacing=1 / 6000))(values, window)
        transformer(8, 1, features=1, axis=1, heads=2, causal=True)(values, window)
        usual = transformer(8, 1, features=1, axis=1, heads=2)
        usual(values[:, :5], window[:, :5])
        usual(values, torch.stack([window[0], torch.linspace(0.0, 0.3, 30)]))
    cells = torch.cat([values, torch.ones(2, 30, 1)], -1)
    with pytest.warns(UserWarning, match=r"longest sequence covers 0\.5% of the times from 0 to 1"):
        transformer(8, 1, features=2, axis=1, heads=2, time=TokenTime(channels=1))(cells, window)
    how, few = TokenTime(channels=1, queries=True), torch.linspace(0.0, 0.005, 5).repeat_interleave(6).expand(2, 30)
    asking = transformer(8, 1, features=2, per_token=True, axis=1, heads=2, time=how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asking(cells, few)  # five times, at each of which six sensors report
        asking(cells, window, query_times=torch.tensor([[0.9], [1.0]]))  # a forecast


def test_samples_without_times_that_pass_the_end_of_a_causal_model_are_warned_of():
    model = transformer(8, 1, features=1, axis=1, heads=2, causal=True)
    with pytest.warns(UserWarning, match=r"60 samples without times end at 1\.84375, beyond .* are 0\.03125 apart"):
        model(torch.randn(1, 60, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(1, 33, 1))
        transformer(8, 1, features=1, axis=1, heads=2, causal=True, time=TokenTime(spacing=1 / 40))(
            torch.randn(1, 60, 1)
        )


@pytest.mark.parametrize(
    ("length", "layers", "steps"), [(4.0, 6, 6), (4.0, 3, 3), (6.0, 3, 6), (4.0, 1, 4), (5.0, 5, 5)]
)
def test_layers_take_the_steps_that_are_printed(length, layers, steps):
    model = transformer(8, 2, features=1, axis=1, heads=2, depth=Depth(length, field=layers)).eval()
    assert f"Fixed(steps={steps})" in repr(model)
    with torch.no_grad():
        assert model(torch.randn(1, 4, 1), full=True).solution.stats.accepted == steps
