import math

import pytest
import torch
from torch.autograd.functional import jvp

from continua.core.slopes import fitted_slope
from continua.spaces import CentredSphere, Sphere
from references import manifold_defect
from registries import all_manifolds

each_manifold = pytest.mark.parametrize("manifold", all_manifolds, ids=repr)
width = 6


def random(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (3, 5, width)), dtype=torch.float64, generator=generator)


@each_manifold
def test_projection_lands_on_the_manifold_and_stays(manifold):
    x = manifold.project(random(0))
    assert manifold_defect(manifold, x) <= 1e-14
    torch.testing.assert_close(manifold.project(x), x, rtol=0, atol=1e-14)


@each_manifold
def test_projection_is_the_nearest_point(manifold):
    y = random(0)
    nearest = torch.linalg.vector_norm(manifold.project(y) - y, dim=-1)
    for seed in range(1, 20):
        near = manifold.project(manifold.project(y) + 0.1 * random(seed))
        assert bool((torch.linalg.vector_norm(near - y, dim=-1) >= nearest - 1e-12).all())


@each_manifold
def test_tangent_is_an_orthogonal_projection(manifold):
    x, u, v = manifold.project(random(0)), random(1), random(2)
    along = manifold.tangent(x, v)
    torch.testing.assert_close(manifold.tangent(x, along), along, rtol=0, atol=1e-14)
    left, right = (u * along).sum(-1), (manifold.tangent(x, u) * v).sum(-1)
    torch.testing.assert_close(left, right, rtol=0, atol=1e-14)


@each_manifold
def test_tangent_is_the_derivative_of_projecting(manifold):
    """At a point of the manifold the derivative of the nearest point is the tangent projection."""
    x, v = manifold.project(random(0)), random(1)
    derivative = jvp(manifold.project, x, v)[1]
    torch.testing.assert_close(derivative, manifold.tangent(x, v), rtol=0, atol=1e-14)


@each_manifold
def test_tangent_steps_leave_the_manifold_at_second_order(manifold):
    x = manifold.project(random(0))
    v = manifold.tangent(x, random(1))
    sizes = [2.0**-k for k in range(3, 9)]
    defects = [manifold_defect(manifold, x + h * v) for h in sizes]
    assert fitted_slope(sizes, defects) == pytest.approx(2.0, abs=0.2)


@each_manifold
def test_retraction_is_of_second_order(manifold):
    """c(s) = project(x + s v) has c(0) = x, c'(0) = v and, along the manifold, P_x c''(0) = 0."""
    x = manifold.project(random(0))
    v = manifold.tangent(x, random(1))
    s, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)

    def velocity(s: torch.Tensor):
        return jvp(lambda s: manifold.project(x + s * v), s, one, create_graph=True)[1]

    second = jvp(velocity, s, one)[1]
    torch.testing.assert_close(manifold.project(x), x, rtol=0, atol=1e-14)
    torch.testing.assert_close(velocity(s), v, rtol=0, atol=1e-14)
    # The acceleration is |v|^2/r, up to 12 here, and cancels to rounding.
    assert float(manifold.tangent(x, second).abs().max()) < 1e-13


@pytest.mark.parametrize("manifold", [Sphere(radius=2.5), CentredSphere()], ids=repr)
def test_retraction_follows_the_great_circle_to_third_order(manifold):
    x = manifold.project(random(0))
    v = manifold.tangent(x, random(1))
    radius = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    speed = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    sizes, errors = [2.0**-k for k in range(3, 9)], []
    for h in sizes:
        angle = h * speed / radius
        geodesic = x * torch.cos(angle) + radius * v / speed * torch.sin(angle)
        errors.append(float((manifold.project(x + h * v) - geodesic).abs().max()))
    assert fitted_slope(sizes, errors) == pytest.approx(3.0, abs=0.2)


def test_centred_sphere_is_the_image_of_layer_norm():
    x = random(0)
    expected = torch.nn.functional.layer_norm(x, (width,), eps=0.0)
    torch.testing.assert_close(CentredSphere().project(x), expected, rtol=0, atol=1e-14)


def test_sphere_is_the_image_of_normalize_and_of_rms_norm():
    x = random(0)
    expected = torch.nn.functional.normalize(x, dim=-1)
    torch.testing.assert_close(Sphere().project(x), expected, rtol=0, atol=1e-14)
    expected = torch.nn.functional.rms_norm(x, (width,), eps=0.0)
    torch.testing.assert_close(Sphere(radius=math.sqrt(width)).project(x), expected, rtol=0, atol=1e-14)


@each_manifold
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_without_direction_goes_to_zero_with_zero_gradient(manifold, dtype):
    x = torch.zeros(2, width, dtype=dtype, requires_grad=True)
    y = manifold.project(x)
    y.sum().backward()
    assert y.dtype == dtype
    assert torch.equal(y, torch.zeros_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros_like(x))
    v = torch.ones_like(x)
    assert bool(torch.isfinite(manifold.tangent(x.detach(), v)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3, 7, 100, 768, 4096])
def test_a_constant_vector_is_not_blown_up_from_rounding(size, dtype):
    x = torch.linspace(-3.0, 3.0, 50, dtype=dtype)[:, None].expand(-1, size)
    assert float(CentredSphere().project(x).abs().max()) == 0.0


@each_manifold
def test_nan_is_not_hidden(manifold):
    assert bool(torch.isnan(manifold.project(torch.full((width,), math.nan))).all())


def test_bad_input_is_named():
    for manifold in (Sphere, CentredSphere):
        with pytest.raises(ValueError, match=r"radius = -1\.0: .*positive and finite\. Pass radius > 0"):
            manifold(radius=-1.0)
    with pytest.raises(ValueError, match=r"x\.shape = \(3, 1\): .*Use a width of at least 2, or Sphere\(\)"):
        CentredSphere().project(torch.ones(3, 1))
