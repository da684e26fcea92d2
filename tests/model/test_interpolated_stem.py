"""The stem on the interpolated signal: numpy's interpolation, scipy's integrals, and what must not change it."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.interpolate import BSpline as Reference

from continua.core.slopes import fitted_slope
from continua.model import InterpolatedStem, StemEmbedding, VectorEmbedding, interpolate, load, save
from continua.spaces import Cloud

pytestmark = pytest.mark.usefixtures("float64")


def cloud_of(batch=3, tokens=9, width=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(batch, tokens, generator=generator).sort(1).values
    return Cloud(torch.randn(batch, tokens, width, generator=generator), torch.ones(batch, tokens), times)


def kernel(stem: InterpolatedStem, u: float) -> np.ndarray:
    """kappa(u) by scipy's B-splines: those inside a clamped knot vector, without the three at either end."""
    low = 0.0 if stem.causal else -1.0
    inner = np.linspace(low, 1.0, stem.modes + 4)
    knots = np.concatenate([[low] * 3, inner, [1.0] * 3])
    values = [
        float(np.nan_to_num(Reference.basis_element(knots[m : m + 5], extrapolate=False)(u)))
        for m in range(3, 3 + stem.modes)
    ]
    return np.einsum("m,mcd->cd", np.array(values), stem.coefficients.detach().numpy())


def of_one_clock(cloud: Cloud) -> Cloud:
    """The same tokens, all sequences at the times of the first."""
    assert cloud.positions is not None
    return Cloud(cloud.points, cloud.mass, cloud.positions[:1].expand_as(cloud.positions))


@pytest.mark.parametrize("asked_at", ["one clock", "own times"])
@pytest.mark.parametrize("sampled_at", ["one clock", "own times"])
@pytest.mark.parametrize("missing", [[], [2, 3, 6], [0, 8]])
def test_the_interpolant_is_that_of_numpy(missing, sampled_at, asked_at):
    cloud = of_one_clock(cloud_of()) if sampled_at == "one clock" else cloud_of()
    mass = torch.ones(3, 9)
    mass[:, missing] = 0.0
    asked = torch.linspace(-0.2, 1.2, 60).repeat(3, 1)
    if asked_at == "own times":
        asked = asked + 0.1 * torch.arange(3.0).unsqueeze(-1)
    found, distance = interpolate(Cloud(cloud.points, mass, cloud.positions), cloud.positions, asked)
    for row in range(3):
        kept = mass[row].numpy() > 0
        for number in range(2):
            times, values = cloud.positions[row].numpy()[kept], cloud.points[row, :, number].numpy()[kept]
            assert np.allclose(found[row, :, number], np.interp(asked[row], times, values), atol=1e-14)
        nearest = np.abs(asked[row].numpy()[:, None] - cloud.positions[row].numpy()[kept]).min(1)
        assert np.allclose(distance[row], nearest, atol=1e-14)


@pytest.mark.parametrize("gaps", [False, True])
def test_sequences_of_one_clock_are_heard_as_each_alone(gaps):
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.3, outputs=3, gaps=gaps), of_one_clock(cloud_of())
    points = cloud.points.requires_grad_()
    together = stem(cloud)
    each = torch.cat(
        [stem(Cloud(points[i : i + 1], cloud.mass[i : i + 1], cloud.positions[i : i + 1])) for i in range(3)]
    )
    weights = torch.randn(together.shape)
    inputs = (points, stem.coefficients)
    one, other = (torch.autograd.grad((weights * y).sum(), inputs) for y in (together, each))
    assert torch.allclose(together, each, atol=1e-13)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(one, other, strict=True))
    # times that are trained are heard through their own path, to the same numbers
    trained = Cloud(points, cloud.mass, cloud.positions.clone().requires_grad_())
    assert torch.allclose(stem(trained), together, atol=1e-13)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("jvp", [torch.func.jvp, torch.autograd.functional.jvp], ids=["forward", "backward"])
def test_times_that_are_equal_may_move_apart(jvp):
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.3, outputs=3), of_one_clock(cloud_of())

    def heard(times: torch.Tensor) -> torch.Tensor:
        return stem(Cloud(cloud.points, cloud.mass, times))

    times, direction, h = cloud.positions.clone(), torch.randn(3, 9), 1e-6
    slope = (heard(times + h * direction) - heard(times - h * direction)) / (2.0 * h)
    assert torch.allclose(jvp(heard, (times,), (direction,))[1], slope, atol=1e-6)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_integral_of_kernel_and_interpolant(causal, gaps):
    torch.manual_seed(0)
    stem = InterpolatedStem(2, radius=0.3, modes=3, causal=causal, outputs=3, gaps=gaps)
    cloud = cloud_of(1)
    found = stem(cloud)[0].detach().numpy()
    times, points = cloud.positions[0].numpy(), cloud.points[0].numpy()

    def integrand(u: float, at: float, output: int) -> float:
        place = at - stem.radius * u
        seen = np.array([np.interp(place, times, points[:, c]) for c in range(2)])
        if gaps:
            seen = np.append(seen, np.abs(place - times).min() / stem.radius)
        return float(seen @ kernel(stem, u)[:, output])

    for token in (0, 4):
        expected = [
            quad(integrand, 0.0 if causal else -1.0, 1.0, args=(times[token], d), limit=400, epsabs=1e-4)[0]
            for d in range(3)
        ]
        # the midpoint rule on fixed lags meets the kinks of the interpolant: a few per cent of the largest value
        assert np.abs(found[token] - expected).max() < 0.05 * np.abs(found).max()


def test_interpolated_samples_change_nothing():
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.25), cloud_of()
    middle = 0.5 * (cloud.positions[:, 1:] + cloud.positions[:, :-1])
    between = 0.5 * (cloud.points[:, 1:] + cloud.points[:, :-1])
    times, order = torch.cat([cloud.positions, middle], 1).sort(1)
    points = torch.cat([cloud.points, between], 1).take_along_dim(order.unsqueeze(-1), 1)
    fine = stem(Cloud(points, torch.ones(3, 17), times))
    where = order.argsort(1)[:, :9]
    assert torch.allclose(fine.take_along_dim(where.unsqueeze(-1), 1), stem(cloud), atol=1e-12)


def test_second_order_in_the_spacing():
    torch.manual_seed(0)
    stem = InterpolatedStem(1, radius=0.3, modes=3)

    def at_half(tokens: int) -> torch.Tensor:
        times = torch.linspace(0, 1, tokens)[None]
        return stem(Cloud(torch.sin(6 * times).unsqueeze(-1), torch.ones(1, tokens), times))[0, tokens // 2].detach()

    exact = at_half(8 * 1024 + 1)
    sizes = [16, 32, 64, 128, 256]
    errors = [float((at_half(n + 1) - exact).abs()) for n in sizes]
    assert abs(fitted_slope([1 / n for n in sizes], errors) - 2.0) < 0.2


def test_causal_stems_see_the_past_alone():
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.5, causal=True), cloud_of()
    changed = cloud.points.clone()
    changed[:, 5:] += 1.0
    moved = (stem(cloud.at(changed)) - stem(cloud)).abs().amax((0, 2))
    assert bool((moved[:5] == 0).all()) and bool((moved[5:] > 0).all())


def test_causal_stems_do_not_know_the_next_time():
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.5, causal=True, gaps=True), cloud_of()
    later = cloud.positions.clone()
    later[:, 5:] += 0.1
    moved = (stem(Cloud(cloud.points, cloud.mass, later)) - stem(cloud)).abs().amax((0, 2))
    assert bool((moved[:5] == 0).all()) and bool((moved[5:] > 0).all())


def test_padding_changes_nothing():
    torch.manual_seed(0)
    stem, cloud = InterpolatedStem(2, radius=0.3, gaps=True), cloud_of()
    pad = torch.full((3, 2, 2), 1e3)
    mass = torch.cat([torch.ones(3, 9), torch.zeros(3, 2)], 1)
    padded = Cloud(torch.cat([cloud.points, pad], 1), mass, torch.cat([cloud.positions, torch.zeros(3, 2)], 1))
    assert torch.allclose(stem(padded)[:, :9], stem(cloud), atol=1e-14)


def test_a_narrow_embedding_is_widened(tmp_path):
    torch.manual_seed(0)
    embedding = StemEmbedding(VectorEmbedding(1, 3), InterpolatedStem(3, 0.3, outputs=8))
    times = torch.linspace(0, 1, 12).repeat(2, 1)
    cloud = embedding(torch.sin(times).unsqueeze(-1), times)
    assert embedding.width == 8 and cloud.points.shape == (2, 12, 8)
    again = load(save(embedding, tmp_path))
    assert torch.equal(again(torch.sin(times).unsqueeze(-1), times).points, cloud.points)


@pytest.mark.parametrize("wrong", [{"radius": 0.0}, {"modes": 0}, {"outputs": 0}])
def test_wrong_sizes_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        InterpolatedStem(**{"width": 2, "radius": 0.1, **wrong})
