"""Estimates of the token integral: what they are exact, consistent and unbiased in, and what they refuse."""

import dataclasses
import math

import pytest
import torch

from clouds import rough, smooth, t_statistic
from continua.core.slopes import fitted_slope
from continua.operators import (
    Attention,
    Binding,
    ControlVariate,
    Cross,
    Debiased,
    Exact,
    Independent,
    Lattice,
    LogTokens,
    Nystrom,
    Sobol,
    Subset,
    draw_theta,
    map_leaves,
    nodes_for,
)
from continua.spaces import BackwardRectangle, CausalTrapezoid, Cloud

draws = [Independent(), Sobol(), Lattice()]
each_draw = pytest.mark.parametrize("draw", draws, ids=repr)
estimators = [Subset(6), Subset(6, Sobol()), Debiased(6), ControlVariate(6, Nystrom(5)), Nystrom(6)]
each_estimator = pytest.mark.parametrize("estimator", estimators, ids=repr)
causal_estimators = [e for e in estimators if e.serves_causal]
makers = [Subset, Debiased, Nystrom, lambda m: ControlVariate(m, Nystrom(3)), lambda m: ControlVariate(3, Nystrom(m))]
each_maker = pytest.mark.parametrize(
    "make", makers, ids=["Subset", "Debiased", "Nystrom", "ControlVariate", "landmarks"]
)
each_causality = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def is_refused(estimator, causal: bool) -> bool:
    """Whether causal attention refuses an estimate, and must: its landmarks would show later tokens to earlier rows."""
    if not causal or not isinstance(estimator, Nystrom | ControlVariate):
        return False
    with pytest.raises(ValueError, match=r"integral = .*later tokens into earlier rows.*Use Subset or Debiased"):
        Attention(1, 2, causal=True, integral=estimator)
    return True


# --- exactness and consistency


@pytest.mark.parametrize("m", [12, 40])
@pytest.mark.parametrize(
    "make",
    [Subset, Debiased, Nystrom, lambda m: ControlVariate(m, Nystrom(3)), lambda m: ControlVariate(3, Nystrom(m))],
)
def test_with_as_many_nodes_as_tokens_the_integral_is_exact(make, m):
    """T counts the tokens with mass of the longest sequence: padding does not turn the estimate on."""
    asked = rough(12, rows=3)
    assert make(m).bind(Binding(asked.cloud, seed=1)) == Exact()
    assert make(m).bind(Binding(asked.cloud, seed=1, second_derivatives=True)) == Exact(materialised=True)
    padded = Cloud.from_ragged([torch.ones(12, 2), torch.ones(5, 2)])
    longer = Cloud(torch.cat([padded.points, padded.points], 1), torch.cat([padded.mass, 0 * padded.mass], 1))
    assert make(m).bind(Binding(longer, seed=1)) == Exact()


@pytest.mark.parametrize(
    "make", [Subset, Debiased, lambda m: ControlVariate(m, Nystrom(6)), lambda m: Subset(m, Sobol())]
)
@each_causality
def test_estimates_are_consistent(make, causal):
    if is_refused(make(4), causal):
        return
    asked = (smooth if isinstance(make(4), ControlVariate) else rough)(256, rows=40)  # landmarks explain smooth signals
    exact = asked.exact(causal)
    sizes = [8.0, 32.0, 128.0]
    errors = [float((asked.by(make(int(m)), 3, causal) - exact).square().mean().sqrt()) for m in sizes]
    assert fitted_slope(sizes, errors) < -0.35  # -1/2 for independent nodes, once m is large
    assert errors[-1] < 0.4 * errors[0]


def test_landmarks_converge_spectrally_on_a_smooth_signal():
    asked = smooth(200)
    errors = [float((asked.by(Nystrom(m, ridge=1e-12)) - asked.exact()).abs().max()) for m in (3, 6, 12)]
    assert errors[1] < 0.1 * errors[0] and errors[2] < 1e-3 * errors[0]


@pytest.mark.parametrize(("tokens", "m"), [(1, 3), (100, 14), (10000, 28)])
def test_the_number_of_nodes_may_grow_with_the_logarithm(tokens, m):
    assert nodes_for(LogTokens(3.0), tokens) == m


def test_log_tokens_is_a_count_like_any_other():
    asked = rough(100, rows=2)
    assert torch.equal(asked.by(Subset(LogTokens(3.0))), asked.by(Subset(14)))


@each_estimator
@each_causality
def test_blocks_of_queries_change_nothing(estimator, causal, monkeypatch):
    if is_refused(estimator, causal):
        return
    asked = rough(33, rows=2)
    whole = asked.by(estimator, 1, causal)
    monkeypatch.setattr("continua.operators.estimates._BLOCK", 5)
    torch.testing.assert_close(asked.by(estimator, 1, causal), whole, rtol=0.0, atol=1e-13)


# --- bias and variance


@each_draw
def test_numerator_and_normaliser_are_unbiased(draw):
    """E sum_s u_s f(s) = sum_j w_j f(j): of the weights alone, and of any function of the token."""
    rows = 20000
    asked = rough(24, rows)
    mass = asked.cloud.mass
    for f in (torch.ones(24, dtype=torch.float64), asked.kv.values[0, 0, :, 0]):
        nodes = draw.nodes(asked.cloud.measure, asked.cloud.points, 5, seed=11)
        sums = (nodes.log_weight(asked.cloud.measure).exp() * f[nodes.chosen]).sum(-1)
        off = sums - (mass[0] * f).sum()
        assert off.abs().max() < 1e-12 or abs(t_statistic(off)) < 3.0


def test_the_bias_of_a_subset_falls_like_its_size():
    asked, sizes = rough(48, rows=20000, queries=1), [4.0, 8.0, 16.0, 32.0]
    exact = asked.exact()
    towards = exact - asked.kv.values.mean(2, keepdim=True)  # shrinks towards the plain mean
    biases = []
    for m in sizes:
        off = torch.stack([((asked.by(Subset(int(m)), seed) - exact) * towards).sum(-1).mean() for seed in range(8)])
        biases.append(-float(off.mean()))
    assert min(biases) > 0
    assert fitted_slope(sizes, biases) == pytest.approx(-1.0, abs=0.2)


@each_causality
def test_the_debiased_estimate_is_unbiased_where_the_subset_is_not(causal, unchecked):
    """Two-sided t-test on 1e5 samples; the 200 sequences of a solve share a level, so their mean is one sample."""
    asked = rough(8, rows=200, queries=None if causal else 2)
    exact = asked.exact(causal)
    towards = (exact - asked.kv.values.mean(2, keepdim=True))[:, :, -2:]

    def statistic(estimator) -> float:
        means = [asked.by(estimator, seed, causal)[:, :, -2:] - exact[:, :, -2:] for seed in range(500)]
        return t_statistic(torch.stack([(off * towards).mean() for off in means]))

    assert abs(statistic(Debiased(2))) < 2.58  # the two-sided 1 % point
    assert abs(statistic(Subset(2))) > 15.0


@pytest.mark.parametrize("draw", [Sobol(), Lattice()], ids=repr)
@each_causality
def test_even_nodes_have_a_lower_variance_on_a_smooth_signal(draw, causal):
    asked = smooth(256, rows=400)
    even, plain = (asked.by(Subset(16, d), 5, causal)[:, :, 64:].var(0).mean() for d in (draw, Independent()))
    assert even < (0.2 if causal else 0.1) * plain


def test_a_control_variate_lowers_the_variance_where_the_low_rank_is_good():
    asked = smooth(256, rows=400)
    plain = asked.by(Subset(16), 5).var(0).mean()
    some, more = (asked.by(ControlVariate(16, Nystrom(k)), 5).var(0).mean() for k in (3, 6))
    assert some < 0.25 * plain and more < 0.1 * some


# --- nodes


@each_draw
def test_absent_tokens_and_queries_are_never_drawn(draw):
    mass = torch.rand(200, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mass[:, ::3] = 0.0
    mass[:100, 7:] = 0.0
    cloud = Cloud(torch.ones(200, 9, 1, dtype=torch.float64), mass, present=torch.ones(200, 9, dtype=torch.bool))
    nodes = draw.nodes(cloud.measure, cloud.points, 50, seed=0)
    assert bool((mass.gather(1, nodes.chosen) > 0).all()) and bool(torch.isfinite(nodes.log_rate).all())


@each_draw
def test_nodes_are_drawn_by_mass(draw):
    mass = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.float64)
    cloud = Cloud(torch.ones(5000, 4, 1, dtype=torch.float64), mass.expand(5000, 4))
    nodes = draw.nodes(cloud.measure, cloud.points, 4, seed=0)
    found = torch.bincount(nodes.chosen.flatten(), minlength=4) / nodes.chosen.numel()
    torch.testing.assert_close(found.double(), mass[0], rtol=0.0, atol=0.02)
    torch.testing.assert_close(nodes.log_rate.exp(), 4 * mass[0][nodes.chosen])


@each_draw
def test_seeds_sequences_and_common_random_numbers(draw):
    asked = rough(64, rows=3)
    index = lambda d, seed: d.nodes(asked.cloud.measure, asked.cloud.points, 8, seed).chosen  # noqa: E731
    assert torch.equal(index(draw, 1), index(draw, 1))
    assert not torch.equal(index(draw, 1), index(draw, 2))
    assert not torch.equal(index(draw, 1)[0], index(draw, 1)[1]), "sequences draw for themselves"
    assert torch.equal(index(draw, None)[0], index(draw, None)[1]), "in evaluation no sequence depends on its batch"
    common = dataclasses.replace(draw, common=7)
    assert torch.equal(index(common, 1), index(common, 2)) and torch.equal(index(common, 1)[0], index(common, 1)[2])
    assert not torch.equal(index(common, 1), index(dataclasses.replace(draw, common=8), 1))


def test_parts_of_one_draw_share_their_nodes():
    cloud = rough(64).cloud
    bind = lambda kept: Subset(16, kept=kept).bind(Binding(cloud, seed=4)).nodes  # noqa: E731
    whole, first, second = bind(None), bind((0, 8)), bind((8, 16))
    assert torch.equal(torch.cat([first.chosen, second.chosen], 1), whole.chosen)
    torch.testing.assert_close(first.log_rate, whole.log_rate[:, :8] - math.log(2))
    assert Subset(200, kept=(0, 80)).bind(Binding(cloud, seed=4)) == Exact()


@pytest.mark.parametrize("estimator", causal_estimators, ids=repr)
@pytest.mark.parametrize("rule", [BackwardRectangle(start=-1.0), CausalTrapezoid()], ids=repr)
def test_a_causal_row_holds_its_own_token_and_no_later_one(estimator, rule):
    base = rough(32)
    times = base.cloud.positions
    cloud = Cloud(base.cloud.points, rule.mass(times), times, rule.own(times))
    kv = base.kv._replace(measure=cloud.measure)
    asked = dataclasses.replace(base, asked=cloud.measure, kv=kv, cloud=cloud)
    for seed in range(20):
        torch.testing.assert_close(asked.by(estimator, seed, True)[:, :, 0], kv.values[:, :, 0])
    values = kv.values.clone().requires_grad_()
    moved = dataclasses.replace(asked, kv=kv._replace(values=values))
    for row in (3, 17):
        (g,) = torch.autograd.grad(moved.by(estimator, 2, True)[:, :, row].sum(), values)
        assert bool((g[:, :, row] != 0).all()) and bool((g[:, :, row + 1 :] == 0).all())


@pytest.mark.parametrize("estimator", causal_estimators, ids=repr)
def test_own_masses_are_refused_where_queries_are_no_tokens(estimator, unchecked):
    times = torch.arange(1.0, 21.0, dtype=torch.float64).view(1, -1)
    rule = CausalTrapezoid()
    encoded = Cloud(torch.ones(1, 20, 2, dtype=torch.float64), rule.mass(times), times, rule.own(times))
    asking = Cloud(encoded.points, None, times)
    with pytest.raises(ValueError, match="own masses belong to a token's own row"):
        velocity(Cross(Attention(1, 2, causal=True, integral=estimator)), asking, encoded)


# --- as part of an operator


def velocity(operator, cloud: Cloud, encoded: Cloud | None = None, seed: int | None = 3):
    theta = draw_theta(operator.spec(cloud.points.shape[-1]), torch.Generator().manual_seed(0))
    theta = map_leaves(lambda x: x.to(cloud.points.dtype), theta)
    return operator.bind(Binding(cloud, encoded, seed)).velocity(theta, cloud)


@each_estimator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_causality
def test_self_and_cross_attention_in_both_dtypes_on_ragged_batches(estimator, dtype, causal):
    if is_refused(estimator, causal):
        return
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(2, 40, 4, generator=generator, dtype=torch.float64).to(dtype)
    mass = (torch.rand(2, 40, generator=generator) + 0.1).to(dtype)
    mass[1, 25:] = 0.0
    times = torch.arange(40.0, dtype=dtype).expand(2, -1)
    cloud = Cloud(points, mass, times)
    attention = Attention(2, 2, causal=causal, integral=estimator)
    few = Cloud(points[:, :7], None, times[:, 10:17])
    for found in (velocity(attention, cloud), velocity(Cross(attention), few, cloud)):
        assert found.dtype == dtype and bool(torch.isfinite(found).all())
    alone = Cloud(points[1:, :25], mass[1:, :25], times[1:, :25])
    torch.testing.assert_close(velocity(attention, cloud, seed=None)[1:, :25], velocity(attention, alone, seed=None))


@each_estimator
def test_evaluation_is_deterministic(estimator):
    cloud = rough(30).cloud
    operator = Attention(1, 2, integral=estimator)
    assert torch.equal(velocity(operator, cloud, seed=None), velocity(operator, cloud, seed=None))


@pytest.mark.parametrize("estimator", [e for e in estimators if not isinstance(e, Nystrom)], ids=repr)
def test_training_draws_anew(estimator):
    cloud = rough(30).cloud
    operator = Attention(1, 2, integral=estimator)
    assert not torch.equal(velocity(operator, cloud, seed=1), velocity(operator, cloud, seed=2))


@each_estimator
@each_causality
def test_gradients_to_tokens_parameters_and_masses(estimator, causal):
    if is_refused(estimator, causal):
        return
    generator = torch.Generator().manual_seed(2)
    points = torch.randn(1, 9, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    mass = (torch.rand(1, 9, generator=generator, dtype=torch.float64) + 0.1).requires_grad_()
    operator = Attention(1, 2, causal=causal, biased=False, integral=estimator)
    theta = map_leaves(lambda x: x.double().requires_grad_(), draw_theta(operator.spec(2), generator))
    bound = operator.bind(Binding(Cloud(points, mass), seed=8, second_derivatives=True))

    def f(points, mass, *leaves):
        return bound.velocity(type(theta)(*leaves), Cloud(points, mass))

    leaves = [x for x in theta if x is not None]
    assert torch.autograd.gradcheck(f, (points, mass, *leaves))


@pytest.mark.parametrize("estimator", [Nystrom(4), ControlVariate(4, Nystrom(4))], ids=repr)
def test_landmarks_refuse_causal_attention(estimator):
    with pytest.raises(ValueError, match="later tokens into earlier rows"):
        Attention(1, 2, causal=True, integral=estimator)


@pytest.mark.parametrize(
    "make",
    [Subset, Debiased, Nystrom, lambda m: ControlVariate(m, Nystrom(2)), lambda m: ControlVariate(2, Nystrom(m))],
)
def test_no_nodes_are_refused(make):
    with pytest.raises(ValueError, match="m = 0: it must be a whole number, at least 1"):
        make(0)


def test_other_mistakes_are_named(unchecked):
    with pytest.raises(ValueError, match="c = 0"):
        LogTokens(0.0)
    with pytest.raises(ValueError, match="no part of the nodes"):
        Subset(8, kept=(4, 9))
    with pytest.raises(ValueError, match="ridge"):
        Nystrom(4, ridge=0.0)
    asked = rough(8)
    for estimator in (Subset(4), Debiased(4), Nystrom(4), ControlVariate(4, Nystrom(4))):
        with pytest.raises(ValueError, match="not bound"):
            estimator.means(asked.q, asked.asked, asked.kv, 1.0, False)
