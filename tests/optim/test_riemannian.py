"""Riemannian Adam: unitary to rounding for ever, and along the gradient of the manifold."""

import itertools
import math

import pytest
import scipy.linalg
import torch
from torch import nn

from continua.optim import RiemannianAdam, cayley_retraction, polar_retraction
from continua.spaces import StiefelSpace

RETRACTIONS = [polar_retraction, cayley_retraction]
each_retraction = pytest.mark.parametrize("retraction", RETRACTIONS, ids=lambda r: r.__name__)
KINDS = {
    "square": (StiefelSpace(), (3, 4, 4), torch.float32),
    "tall": (StiefelSpace(), (6, 3), torch.float32),
    "wide": (StiefelSpace(), (3, 6), torch.float32),
    "complex": (StiefelSpace(), (2, 5, 3), torch.complex64),
    "pair": (StiefelSpace(paired=True), (3, 2, 4, 4), torch.float32),
    "wide pair": (StiefelSpace(paired=True), (2, 2, 3, 5), torch.float32),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def points(space, shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return space.project(torch.randn(shape, generator=generator, dtype=DOUBLE[dtype])).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize(
    ("retraction", "updates"), [(polar_retraction, 10_000), (cayley_retraction, 2_000)], ids=["polar", "Cayley"]
)
def test_thousands_of_updates_leave_the_manifold_to_rounding(dtype, retraction, updates, unchecked):
    space = StiefelSpace()
    p = nn.Parameter(points(space, (4, 4), dtype))
    optimiser = RiemannianAdam([p], lr=3e-2, retraction=retraction)
    generator = torch.Generator().manual_seed(1)
    grads = torch.randn(100, 4, 4, generator=generator, dtype=dtype)
    start, worst = p.detach().clone(), 0.0
    for step in range(updates):
        p.grad = grads[step % 100] * (1.0 + step % 7)
        optimiser.step()
        if step % 100 == 0 or step > updates - 10:
            worst = max(worst, float(space.defect(p.detach())))
    assert worst < 2e-6
    assert float((p.detach() - start).abs().max()) > 0.1  # and it did move


@each_kind
@each_retraction
def test_every_kind_stays_on_the_manifold_and_descends(kind, retraction):
    space, shape, dtype = kind
    p, target = nn.Parameter(points(space, shape, dtype)), points(space, shape, dtype, seed=3)
    optimiser = RiemannianAdam([p], lr=3e-2, retraction=retraction, space=space)
    losses = []
    for _ in range(500):
        optimiser.zero_grad()
        loss = (p - target).abs().square().sum()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        assert p.dtype == dtype
    assert float(space.defect(p.detach())) < 2e-6
    real_square = shape[-1] == shape[-2] and not (space.paired or dtype.is_complex)
    # O(n) has two components: a target on the other one is out of reach
    assert losses[-1] < (0.9 if real_square else 1e-2) * losses[0]


@pytest.mark.parametrize("reach", [1e-3, 0.1, 1.0, 30.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_polar_is_the_polar_factor_of_scipy(reach, dtype):
    generator = torch.Generator().manual_seed(2)
    space = StiefelSpace()
    u = space.project(torch.randn(5, 3, generator=generator, dtype=dtype))
    xi = space.tangent(u, torch.randn(5, 3, generator=generator, dtype=dtype))
    xi *= min(reach, 100.0) / torch.linalg.vector_norm(xi)
    expected = torch.from_numpy(scipy.linalg.polar((u + xi).numpy())[0])
    torch.testing.assert_close(polar_retraction(u, xi, reach), expected, rtol=0, atol=1e-13)


@each_retraction
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_retractions_are_of_second_order(retraction, dtype):
    """Against the geodesic of the square case, U expm(t U^H xi): the error falls by 8 when t is halved."""
    generator = torch.Generator().manual_seed(4)
    space = StiefelSpace()
    u = space.project(torch.randn(4, 4, generator=generator, dtype=dtype))
    xi = space.tangent(u, torch.randn(4, 4, generator=generator, dtype=dtype))
    xi /= torch.linalg.vector_norm(xi)
    errors = []
    for t in (0.2, 0.1, 0.05, 0.025):
        geodesic = u @ torch.linalg.matrix_exp(t * (u.mH @ xi))
        errors.append(float((retraction(u, t * xi, t) - geodesic).abs().max()))
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(abs(slope - 3.0) < 0.2 for slope in slopes)


def test_the_first_update_follows_the_gradient_of_torchs_parametrisation():
    """The direction of steepest descent among rotations, as autograd finds it through `matrix_exp`."""
    generator = torch.Generator().manual_seed(7)
    start = StiefelSpace().project(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    target = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    a = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    (start @ torch.linalg.matrix_exp(a - a.T) - target).square().sum().backward()
    steepest = -start @ (a.grad - a.grad.T) / 2
    p = nn.Parameter(start.clone())
    (p - target).square().sum().backward()
    RiemannianAdam([p], lr=1e-5).step()
    moved = (p.detach() - start) / 1e-5
    cosine = (moved * steepest).sum() / (moved.norm() * steepest.norm())
    assert float(cosine) == pytest.approx(1.0, abs=1e-9)
    assert float(moved.norm()) == pytest.approx(
        1.0, abs=1e-4
    )  # one second moment a matrix: the first update has norm 1


def test_the_zero_frequency_stays_real():
    space = StiefelSpace(paired=True)
    x = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    x[1] = 0.0
    p = nn.Parameter(space.project(x))
    optimiser = RiemannianAdam([p], lr=0.1, space=space)
    for step in range(50):
        p.grad = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(step))
        p.grad[1] = 0.0
        optimiser.step()
    assert float(p.detach()[1].abs().max()) == 0.0 and float(space.defect(p.detach())) < 2e-6


def test_matrices_of_one_shape_are_updated_as_if_alone():
    space = StiefelSpace()
    together = [nn.Parameter(points(space, (4, 3), torch.float32, seed)) for seed in range(3)]
    alone = [nn.Parameter(p.detach().clone()) for p in together]
    both, each = RiemannianAdam(together), [RiemannianAdam([p]) for p in alone]
    for step in range(10):
        for place, (p, q) in enumerate(zip(together, alone, strict=True)):
            g = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + place))
            p.grad = q.grad = None if step == place else g
        both.step()
        for optimiser in each:
            optimiser.step()
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_a_start_off_the_manifold_is_refused():
    with pytest.raises(ValueError, match=r"is violated by .*project"):
        RiemannianAdam([nn.Parameter(torch.randn(3, 3))])
    with pytest.raises(ValueError, match="a point of StiefelSpace"):
        RiemannianAdam([nn.Parameter(torch.ones(3))])


def test_betas_that_change_on_the_way_do_not_leave_the_manifold(unchecked):
    """As a schedule of both numbers may have it: momentum of the old betas exceeds the bound of the new ones."""
    space, generator = StiefelSpace(), torch.Generator().manual_seed(2)
    start, *grads = torch.randn(41, 4, 4, generator=generator, dtype=torch.float64)
    p = nn.Parameter(space.project(start))
    optimiser = RiemannianAdam([p], lr=1e-3, betas=(0.0, 0.999))
    for k, g in enumerate(grads):
        if k == 20:
            optimiser.param_groups[0].update(lr=0.5, betas=(0.95, 0.999))
        p.grad = g if k == 19 else 1e-6 * g
        optimiser.step()
        assert float(space.defect(p.detach())) < 1e-13, k
