"""Attention on arbitrary measures, held against the formula written out, in values and gradients."""

import pytest
import torch

from continua.operators import Attention, AttentionTheta, Exact, leaves, map_leaves
from continua.spaces import CausalTrapezoid, Cloud
from references import gradients, measure_of_queries, written_out_attention
from registries import OperatorCase

BATCH, TOKENS, WIDTH = 2, 6, 5
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
both_paths = pytest.mark.parametrize("materialised", [False, True], ids=["fused", "materialised"])
betas = pytest.mark.parametrize("beta", [None, 0.0, -0.7, 6.0])


def close(found, expected) -> None:
    """1e-12 in float64 and 1e-5 in float32, of the largest entry: sums cancel, and their terms were rounded."""
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        tolerance = scale * (1e-5 if one.dtype == torch.float32 else 1e-12)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)


def tokens(seed: int = 0, count: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points, masses and strictly increasing positions; float32 numbers, so that both dtypes see the same."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(BATCH, count, WIDTH, generator=generator)
    mass = torch.rand(BATCH, count, generator=generator) + 0.1
    gaps = torch.rand(BATCH, count, generator=generator) + 0.1
    return points.double(), mass.double(), gaps.cumsum(-1).double()


def theta_of(operator: Attention, p: tuple[float, ...] | None = None) -> AttentionTheta:
    drawn = OperatorCase(operator, p).theta(WIDTH, torch.Generator().manual_seed(3), torch.float32)
    return map_leaves(lambda leaf: leaf.double(), drawn)


def leaf(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.detach().to(dtype).clone().requires_grad_()


def held_against_the_formula(operator: Attention, dtype, parts, own=None, p=None, weigh=True) -> None:
    """Values and gradients to points, masses, own masses and theta."""
    points, mass, positions = parts
    results = []
    for kind in (dtype, torch.float64):
        theta = map_leaves(lambda t, kind=kind: leaf(t, kind), theta_of(operator, p))
        x, w = leaf(points, kind), leaf(mass, kind) if weigh else mass.to(kind)
        t, o = (None if part is None else part.to(kind) for part in (positions, own))
        o = None if o is None else leaf(o, kind)
        if not results:
            found = operator.velocity(theta, Cloud(x, w, t, o))
        else:
            rows = measure_of_queries(w, operator.causal, positions=t, own=o)
            found = written_out_attention(theta, x, x, rows, operator.inverse_temperature)
        found = torch.where((mass > 0).unsqueeze(-1), found, 0.0)
        inputs = [x, *(part for part in (w, o) if part is not None and part.requires_grad)]
        results.append([found, *gradients(found, [*inputs, *(value for _, value in leaves(theta))])])
    close(*results)


@both_dtypes
@causal_or_not
@both_paths
@betas
def test_any_masses_and_beta(dtype, causal, materialised, beta):
    operator = Attention(heads=2, key_size=3, beta=beta, causal=causal, integral=Exact(materialised))
    held_against_the_formula(operator, dtype, tokens())


@both_dtypes
@causal_or_not
@both_paths
def test_masses_that_ask_for_no_gradient(dtype, causal, materialised):
    operator = Attention(heads=2, key_size=3, causal=causal, integral=Exact(materialised))
    held_against_the_formula(operator, dtype, tokens(), weigh=False)


@both_dtypes
@both_paths
@pytest.mark.parametrize("sizes", [(3, 5), (5, 2)], ids=["wider values", "wider keys"])
@pytest.mark.parametrize("own", [False, True], ids=["columns", "own"])
def test_any_sizes_and_head_measure(dtype, materialised, sizes, own):
    operator = Attention(3, *sizes, causal=own, integral=Exact(materialised))
    masses = tokens(9)[1] if own else None
    held_against_the_formula(operator, dtype, tokens(), masses, p=(0.2, 0.5, 0.3))


@both_dtypes
@both_paths
def test_without_biases(dtype, materialised):
    operator = Attention(heads=2, key_size=3, biased=False, causal=True, integral=Exact(materialised))
    held_against_the_formula(operator, dtype, tokens())


@both_dtypes
@both_paths
@betas
def test_causal_trapezoid(dtype, materialised, beta):
    points, _, positions = tokens()
    rule = CausalTrapezoid()
    operator = Attention(heads=2, key_size=3, beta=beta, causal=True, integral=Exact(materialised))
    parts = (points, rule.mass(positions), positions)
    held_against_the_formula(operator, dtype, parts, rule.own(positions))


@both_paths
def test_own_masses_on_the_counting_measure(materialised):
    """Columns of mass one, given or left out, and a diagonal of its own."""
    points, mass, _ = tokens()
    operator = Attention(heads=2, key_size=3, causal=True, integral=Exact(materialised))
    theta, ones = theta_of(operator), torch.ones_like(mass)
    expected = written_out_attention(
        theta, points, points, measure_of_queries(ones, True, own=mass), operator.inverse_temperature
    )
    close([operator.velocity(theta, Cloud(points, own=mass))], [expected])
    close([operator.velocity(theta, Cloud(points, ones, own=mass))], [expected])


def test_own_masses_do_not_concern_attention_that_is_not_causal():
    points, mass, positions = tokens()
    operator = Attention(heads=2, key_size=3)
    theta = theta_of(operator)
    close(
        [operator.velocity(theta, Cloud(points, mass, positions, tokens(9)[1]))],
        [operator.velocity(theta, Cloud(points, mass, positions))],
    )


@both_dtypes
@both_paths
def test_tied_tokens_see_each_other(dtype, materialised):
    points, mass, _ = tokens()
    times = torch.tensor([[0.0, 1.0, 1.0, 1.0, 2.0, 2.0], [0.0, 0.0, 1.0, 2.0, 3.0, 3.0]], dtype=torch.float64)
    operator = Attention(heads=2, key_size=3, causal=True, integral=Exact(materialised))
    held_against_the_formula(operator, dtype, (points, mass, times))


@both_dtypes
@causal_or_not
@both_paths
@pytest.mark.parametrize("own", [False, True], ids=["columns", "own"])
@pytest.mark.parametrize("even", [False, True], ids=["uneven", "even"])
@pytest.mark.parametrize(
    "absent",
    [
        [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1]],
        [[1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1]],
    ],
    ids=["at the end", "anywhere"],
)
def test_absent_tokens(dtype, causal, materialised, own, even, absent):
    points, mass, positions = tokens()
    gone = torch.tensor(absent, dtype=torch.bool)
    masses = torch.where(gone, 0.0, torch.ones_like(mass) if even else mass)
    mine = torch.where(gone, 0.0, tokens(9)[1]) if own else None
    operator = Attention(heads=2, key_size=3, causal=causal, integral=Exact(materialised))
    if own and not causal:  # own masses are read by causal rows alone
        mine = None
    held_against_the_formula(operator, dtype, (points, masses, positions), mine, weigh=False)


@causal_or_not
@both_paths
@pytest.mark.parametrize("own", [False, True], ids=["columns", "own"])
def test_gradients_at_absent_tokens_are_zero_and_not_nan(causal, materialised, own):
    points, mass, positions = tokens()
    gone = torch.tensor([[0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)
    x = torch.where(gone.unsqueeze(-1), torch.nan, points).requires_grad_()
    w = torch.where(gone, 0.0, mass).requires_grad_()
    o = torch.where(gone, 0.0, mass).requires_grad_() if own else None
    operator = Attention(heads=2, key_size=3, causal=causal, integral=Exact(materialised))
    theta = map_leaves(lambda t: leaf(t, torch.float64), theta_of(operator))
    found = operator.velocity(theta, Cloud(x, w, positions, o))
    inputs = [x, w, *(value for _, value in leaves(theta))] + ([o] if o is not None and causal else [])
    parts = gradients(found[~gone], inputs)
    assert all(bool(torch.isfinite(part).all()) for part in parts)
    assert bool((parts[0][gone] == 0).all()) and bool((parts[1][gone] == 0).all())
    assert bool((parts[1][~gone] != 0).any())


@both_dtypes
@both_paths
@causal_or_not
def test_queries_of_another_cloud(dtype, materialised, causal):
    """Cross-attention by position; the first query of sequence 0 comes before all tokens and sees nothing."""
    x, w, t = tokens()
    y, _, s = tokens(4, 4)
    s[0, 0] = t[0, 0] - 1.0
    s[1, 3] = t[1, 2]  # a query at the time of a token sees it
    s = s.sort(-1).values
    operator = Attention(heads=2, key_size=3, causal=causal, integral=Exact(materialised))
    results = []
    for kind in (dtype, torch.float64):
        theta = map_leaves(lambda leaf_, kind=kind: leaf(leaf_, kind), theta_of(operator, (0.4, 0.6)))
        points, mass, queries = (leaf(part, kind) for part in (x, w, y))
        times, asked = t.to(kind), s.to(kind)
        if not results:
            found = operator.velocity(theta, Cloud(queries, positions=asked), Cloud(points, mass, times))
        else:
            rows = measure_of_queries(mass, causal, asked, times)
            found = written_out_attention(theta, queries, points, rows, operator.inverse_temperature)
        if causal:
            torch.testing.assert_close(found[0, 0], theta.bo)
        inputs = [points, mass, queries, *(value for _, value in leaves(theta))]
        results.append([found, *gradients(found, inputs)])
    close(*results)


def test_causal_queries_of_another_cloud_need_times():
    x, w, t = tokens()
    operator = Attention(heads=2, key_size=3, causal=True)
    theta = theta_of(operator)
    message = r"positions = None: a causal query needs its time.* Give both clouds positions"
    for memory, queries in ((Cloud(x, w), Cloud(x, w, t)), (Cloud(x, w, t), Cloud(x, w))):
        with pytest.raises(ValueError, match=message):
            operator.velocity(theta, queries, memory)
    with pytest.raises(ValueError, match=r"own = 'given': .*BackwardRectangle"):
        operator.velocity(theta, Cloud(x, w, t), Cloud(x, w, t, w))


@causal_or_not
@pytest.mark.parametrize("own", [False, True], ids=["columns", "own"])
def test_numerical_derivatives_of_both_paths(causal, own):
    points, mass, positions = (part[:1, :4] for part in tokens())
    mine = [tokens(9)[1][:1, :4].clone().requires_grad_()] if own and causal else []
    inputs = [points.clone().requires_grad_(), mass.clone().requires_grad_(), *mine]
    for integral in (Exact(), Exact(materialised=True)):
        operator = Attention(heads=2, key_size=3, causal=causal, integral=integral)
        theta = theta_of(operator)

        def asked(x, w, *o, operator=operator, theta=theta):
            return operator.velocity(theta, Cloud(x, w, positions, *o))

        assert torch.autograd.gradcheck(asked, inputs)
        if integral.materialised:
            assert torch.autograd.gradgradcheck(asked, inputs)


def test_second_derivatives_are_refused_by_the_fused_path_alone():
    """Why `second_derivatives` exists; the day torch differentiates its fused kernel twice, it can go."""
    points, mass, _ = tokens()
    x = points.requires_grad_()
    operator = Attention(heads=2, key_size=3)
    found = operator.velocity(theta_of(operator), Cloud(x, mass))
    (slope,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
        torch.autograd.grad(slope.sum(), x)
