"""Kernels along the embedding axis, at any resolution."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch

from continua import operators
from continua.core.slopes import fitted_slope
from continua.operators import (
    AbstractKernel,
    Attention,
    Convolution,
    Dense,
    FeedForward,
    LayerNorm,
    NormTheta,
    PreNorm,
    RMSNorm,
    Rotary,
    Spectral,
    Sum,
    draw_theta,
    map_leaves,
    with_nodes,
)
from continua.operators.kernels import by_transforms
from continua.spaces import Axis, ClenshawCurtis, Cloud, Cosine, Fourier, GaussLegendre, Legendre, MidpointRule
from registries import all_kernels

each_kernel = pytest.mark.parametrize("kernel", all_kernels, ids=repr)
FUNCTIONAL = [
    Spectral(Axis(9, 2), Cosine(5)),
    Spectral(Axis(9, 2), Fourier(5)),
    Spectral(Axis(9, 2, GaussLegendre()), Legendre(5)),
    Convolution(Axis(9, 2), 2),
]
each_function = pytest.mark.parametrize("kernel", FUNCTIONAL, ids=repr)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weight(kernel: AbstractKernel, inputs: int = 2, outputs: int = 3) -> torch.Tensor:
    return normal(*kernel.shape(inputs, outputs), seed=1)


def test_the_registry_is_complete():
    classes = {c for c in vars(operators).values() if inspect.isclass(c) and issubclass(c, AbstractKernel)}
    assert {type(kernel) for kernel in all_kernels} == {c for c in classes if not inspect.isabstract(c)}


# --- one kernel


@each_kernel
def test_a_kernel_is_linear_and_its_bias_a_function_along_the_axis(kernel):
    channels = kernel.channels(6)
    w, b, x = weight(kernel, channels), normal(*kernel.bias(3).shape, seed=2), normal(2, 4, 6)
    y = kernel.apply(w, None, x)
    assert y.shape == (2, 4, 3 * kernel.nodes)
    torch.testing.assert_close(kernel.apply(w, None, 2 * x + x.flip(1)), 2 * y + y.flip(1))
    at_nodes = b if kernel.axis is None else (kernel.axis.synthesis(kernel.basis) @ b).flatten()
    torch.testing.assert_close(kernel.apply(w, b, x), y + at_nodes)


@each_function
def test_one_matrix_equals_the_transforms(kernel):
    heads, key = 3, 2
    w, b, x = weight(kernel, 2, heads * key), normal(*kernel.bias(heads * key).shape, seed=2), normal(4, 7, 18)
    found = kernel.apply(w, b, x, to_heads=heads)
    back = kernel.apply(w.mT, None, found, from_heads=heads)
    with by_transforms():
        torch.testing.assert_close(kernel.apply(w, b, x, to_heads=heads), found)
        torch.testing.assert_close(kernel.apply(w.mT, None, found, from_heads=heads), back)
        y = kernel.apply(w, b, x)
        torch.testing.assert_close(found.unflatten(-1, (heads, 9, key)).transpose(2, 3).flatten(2), y)
        torch.testing.assert_close(kernel.apply(w.mT, None, y), back)


@each_kernel
def test_one_weight_for_each_sequence(kernel):
    channels = kernel.channels(6)
    w, x = normal(2, *kernel.shape(channels, 3)), normal(2, 4, 6)
    b = normal(2, *kernel.bias(3).shape, seed=4)
    together = kernel.apply(w, b, x)
    for row in range(2):
        torch.testing.assert_close(together[row : row + 1], kernel.apply(w[row], b[row], x[row : row + 1]))


# Forward mode in torch compiles its own decompositions with a deprecated call, once.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@each_kernel
def test_gradients(kernel):
    w, x = weight(kernel, kernel.channels(6)).requires_grad_(), normal(1, 2, 6).requires_grad_()
    b = normal(*kernel.bias(3).shape, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(kernel.apply, (w, b, x), fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(kernel.apply, (w, b, x), fast_mode=True)


@each_kernel
def test_initial_weights_keep_the_size_of_a_state(kernel):
    kernel = kernel if isinstance(kernel, Dense) else dataclasses.replace(kernel, axis=kernel.axis.at(5))
    inputs = outputs = 200
    w = normal(*kernel.shape(inputs, outputs)) / math.sqrt(kernel.fan_in(inputs))
    x = normal(1, 1, inputs * kernel.nodes)
    if not isinstance(kernel, Dense):  # a state within the band of the kernel
        smooth = normal(*kernel.shape(1, 1)[:-2], 1, 1)
        x = kernel.apply(torch.eye(inputs) * smooth, None, x)
    ratio = float(kernel.apply(w, None, x).square().mean() / x.square().mean())
    assert 0.5 < ratio < 2.0


def test_dense_is_a_linear_layer():
    w, b, x = normal(3, 6), normal(3), normal(2, 4, 6)
    torch.testing.assert_close(Dense().apply(w, b, x), torch.nn.functional.linear(x, w, b), rtol=0, atol=0)


@each_function
def test_a_kernel_is_an_integral(kernel):
    """(W X)(d_a) = sum_b v_b W(d_a, d_b) X(d_b), the kernel written out."""
    w, axis, x = weight(kernel), kernel.axis, normal(1, 1, 18)
    d, e = axis.points()[:, None].expand(9, 9), axis.points()[None].expand(9, 9)
    if isinstance(kernel, Spectral):
        phi = kernel.basis.evaluate(axis.points())
        W = torch.einsum("ai,bj,ijoc->aboc", phi, phi, w)
    else:
        W = w[0, 0].expand(9, 9, 3, 2).clone()
        for m in range(1, kernel.modes + 1):
            angle = (2 * math.pi * m * (d - e))[..., None, None]
            W = W + 2 * (w[m, 0] * torch.cos(angle) - w[m, 1] * torch.sin(angle))
    expected = torch.einsum("b,aboc,bc->ao", axis.weights(), W, x.view(9, 2)).reshape(1, 1, -1)
    torch.testing.assert_close(kernel.apply(w, None, x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nodes", [5, 6, 7, 8, 31, 32])
def test_multipliers_are_exact_on_band_limited_functions(nodes):
    """No aliasing at even or odd sizes: e^{2 pi i m d} comes out multiplied by R(m), frequencies above not at all."""
    kernel, R = Convolution(Axis(nodes, 1), 2), normal(3, 2, 1, 1)
    d = kernel.axis.points()
    for m in range(nodes // 2 if nodes % 2 == 0 else nodes // 2 + 1):
        real = complex(R[m, 0], R[m, 1] if m else 0.0) if m <= 2 else 0.0
        expected = np.real(real * np.exp(2j * np.pi * m * (d.numpy() + 0.1)))
        found = kernel.apply(R, None, torch.cos(2 * math.pi * m * (d + 0.1)).view(1, 1, -1))
        np.testing.assert_allclose(found.numpy().ravel(), expected, rtol=0, atol=1e-13)


# --- resolution


def function(d: torch.Tensor, shift: float, periodic: bool) -> torch.Tensor:
    """Two channels of a smooth function, (nodes, 2)."""
    if periodic:
        channels = (torch.exp(torch.sin(2 * math.pi * (d + shift))), torch.cos(2 * math.pi * d + 0.3))
    else:
        channels = (torch.exp(-d * (1 + shift)), torch.sin(2.0 * d + shift))
    return torch.stack(channels, -1)


def block(kernel: AbstractKernel, norm: bool = True) -> Sum:
    normed = LayerNorm(axis=kernel.axis)
    attention, feedforward = Attention(3, 2, kernel=kernel), FeedForward(4, kernel=kernel)
    return Sum((PreNorm(normed, attention), PreNorm(normed, feedforward))) if norm else Sum((attention, feedforward))


def velocity(kernel, nodes: int, periodic: bool) -> tuple[Axis, torch.Tensor]:
    """The block at a resolution, on three functions: (3, nodes, 2)."""
    operator = block(kernel)
    theta = map_leaves(
        lambda t: t.double() + 0.1, draw_theta(operator.spec(kernel.axis.width), torch.Generator().manual_seed(1))
    )
    axis = kernel.axis.at(nodes)
    x = torch.stack([function(axis.points(), s, periodic).flatten() for s in (0.0, 0.1, 0.25)])[None]
    found = with_nodes(operator, nodes).velocity(theta, Cloud(x))
    return axis, found[0].unflatten(-1, (nodes, 2))


def coefficients(axis: Axis, values: torch.Tensor) -> torch.Tensor:
    """Integrals of the velocity against the first functions of its rule's own kind."""
    tests = torch.stack([torch.cos(2 * math.pi * k * axis.points()) for k in range(3)])
    return torch.einsum("a,ka,tac->tkc", axis.weights(), tests, values)


@pytest.mark.parametrize("kernel", [FUNCTIONAL[1], FUNCTIONAL[3]], ids=repr)
@pytest.mark.parametrize("sizes", [(9, 17, 33), (10, 18, 34)], ids=["odd", "even"])
def test_periodic_functions_converge_spectrally(kernel, sizes):
    exact = coefficients(*velocity(kernel, 128, periodic=True))
    errors = [float((coefficients(*velocity(kernel, n, periodic=True)) - exact).abs().max()) for n in sizes]
    assert errors[1] < errors[0] / 15 and errors[2] < errors[1] / 1000


@pytest.mark.parametrize("sizes", [(9, 17, 33), (10, 18, 34)], ids=["odd", "even"])
def test_gauss_nodes_converge_spectrally(sizes):
    kernel = FUNCTIONAL[2]
    exact = coefficients(*velocity(kernel, 96, periodic=False))
    errors = [float((coefficients(*velocity(kernel, n, periodic=False)) - exact).abs().max()) for n in sizes]
    assert errors[1] < errors[0] / 15 and errors[2] < errors[1] / 1000


@pytest.mark.parametrize("sizes", [(9, 17, 33, 65), (10, 20, 40, 80)], ids=["odd", "even"])
def test_midpoints_converge_at_their_order(sizes):
    kernel = FUNCTIONAL[0]
    exact = coefficients(*velocity(kernel, 2401, periodic=False))
    errors = [float((coefficients(*velocity(kernel, n, periodic=False)) - exact).abs().max()) for n in sizes]
    assert -fitted_slope([float(n) for n in sizes], errors) == pytest.approx(MidpointRule().order, abs=0.2)


@each_function
def test_resolutions_agree_on_common_nodes(kernel):
    """The midpoints of D cells are among those of 3 D; Gauss nodes share the middle."""
    if isinstance(kernel.axis.rule, GaussLegendre):
        coarse, fine = velocity(kernel, 33, False)[1][:, 16], velocity(kernel, 99, False)[1][:, 49]
        torch.testing.assert_close(coarse, fine, rtol=0, atol=1e-6)
        return
    gaps = []
    periodic = not isinstance(getattr(kernel, "basis", None), Cosine)
    for nodes in (9, 27):
        coarse, fine = velocity(kernel, nodes, periodic)[1], velocity(kernel, 3 * nodes, periodic)[1][:, 1::3]
        gaps.append(float((coarse - fine).abs().max()))
    assert gaps[1] < gaps[0] / (100 if periodic else 8)


@each_function
def test_band_limited_states_do_not_depend_on_the_resolution(kernel):
    """A linear map of functions within the band: the same function at every resolution, to rounding."""
    w = weight(kernel)
    basis = kernel.basis if isinstance(kernel, Spectral) else Fourier(5)
    c = normal(5, 2)
    for nodes in (5, 6, 8, 15, 32):
        here = kernel.at(nodes)
        y = here.apply(w, None, (here.axis.synthesis(basis) @ c).reshape(1, 1, -1)).view(nodes, 3)
        found = here.axis.analysis(basis) @ y
        y9 = kernel.apply(w, None, (kernel.axis.synthesis(basis) @ c).reshape(1, 1, -1)).view(9, 3)
        torch.testing.assert_close(found, kernel.axis.analysis(basis) @ y9, rtol=0, atol=1e-12)


@each_function
def test_queries_are_read_at_as_few_nodes_as_tell_them_apart(kernel):
    """To these nodes and back is the whole kernel; inner products there are those of the coefficients."""
    w, b, c = weight(kernel), normal(*kernel.bias(3).shape, seed=2), normal(2, 5, 2)
    x = (kernel.axis.synthesis(kernel.basis) @ c).flatten(1).unsqueeze(0)
    q = kernel.to_fewest_nodes().apply(w, b, x)
    few = kernel.from_fewest_nodes().axis
    assert few.nodes == 5 and q.shape == (1, 2, 5 * 3)
    found = few.analysis(kernel.basis) @ q.view(2, 5, 3)
    whole = kernel.axis.analysis(kernel.basis) @ kernel.apply(w, b, x).view(2, 9, 3)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    weighed = few.weights()[:, None] * q.view(2, 5, 3)
    torch.testing.assert_close(
        torch.einsum("iac,jac->ij", weighed, q.view(2, 5, 3)), torch.einsum("iac,jac->ij", whole, whole)
    )
    back = kernel.from_fewest_nodes().apply(w.mT, None, q)
    torch.testing.assert_close(back, kernel.apply(w.mT, None, kernel.apply(w, b, x)), rtol=0, atol=1e-12)
    with by_transforms():
        torch.testing.assert_close(kernel.to_fewest_nodes().apply(w, b, x), q)
        torch.testing.assert_close(kernel.from_fewest_nodes().apply(w.mT, None, q), back)


def test_nodes_that_cannot_be_fewer_stay():
    """Cosines are orthonormal at so many midpoints as there are, not at so many Gauss nodes."""
    kernel = Spectral(Axis(24, 2, GaussLegendre()), Cosine(5))
    assert kernel.to_fewest_nodes() is kernel and kernel.from_fewest_nodes() is kernel
    assert Spectral(Axis(5, 2), Cosine(5)).to_fewest_nodes().to is None


@each_function
def test_attention_to_band_limited_states_does_not_depend_on_the_resolution(kernel):
    """With positions and a bias: softmax, rotation and inner products see the same numbers at every resolution."""
    basis, times = kernel.basis, torch.linspace(0.0, 1.0, 6, dtype=torch.float64).square().expand(3, -1)
    c, found = normal(3, 6, 5, 2), []
    theta = None
    for nodes in (5, 9, 17, 40):
        operator = Attention(2, 4, rotary=Rotary(fastest=30.0, slowest=3.0), kernel=kernel.at(nodes))
        theta = draw_theta(operator.spec(2 * nodes), torch.Generator().manual_seed(5)) if theta is None else theta
        axis = operator.kernel.axis
        cloud = Cloud((axis.synthesis(basis) @ c).flatten(2), positions=times)
        y = operator.velocity(map_leaves(lambda leaf: leaf.double() + 0.1, theta), cloud)
        found.append(axis.analysis(basis) @ y.unflatten(-1, (nodes, 2)))
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_norms_weigh_the_nodes(norm):
    axis, basis = Axis(7, 2, GaussLegendre()), Legendre(3)
    x, theta = normal(1, 2, 14), NormTheta(normal(3, 2, seed=3), normal(3, 2, seed=4) if norm is LayerNorm else None)
    found = norm(axis=axis, basis=basis).normalise(theta, x).view(1, 2, 7, 2)
    v, X = axis.weights()[:, None] / 2, x.view(1, 2, 7, 2)
    mean = (v * X).sum((-1, -2), keepdim=True) if norm is LayerNorm else 0.0
    size = (v * (X - mean) ** 2).sum((-1, -2), keepdim=True)
    phi = axis.synthesis(basis)  # gain and bias are functions along the axis
    expected = (X - mean) / torch.sqrt(size + norm().eps) * (phi @ theta.gain)
    torch.testing.assert_close(found, expected if theta.bias is None else expected + phi @ theta.bias)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_on_even_nodes_norms_are_the_usual_ones(norm):
    x, axis = normal(1, 2, 14), Axis(7, 2)
    spread = NormTheta(torch.ones(14).double(), torch.zeros(14).double() if norm is LayerNorm else None)
    along = norm(axis=axis, basis=Cosine(4))
    own = map_leaves(lambda t: t.double(), draw_theta(along.spec(14)))  # as drawn: gain 1, no bias
    torch.testing.assert_close(along.normalise(own, x), norm().normalise(spread, x))


@pytest.mark.parametrize("kernel", [Spectral(Axis(1, 6), Cosine(1)), Convolution(Axis(1, 6), 0)], ids=repr)
def test_one_node_is_a_vector(kernel):
    """A kernel on a single node is a dense one."""
    one, dense = Attention(2, 3, kernel=kernel), Attention(2, 3)
    theta = map_leaves(lambda t: t.double() + 0.1, draw_theta(one.spec(6), torch.Generator().manual_seed(0)))
    plain = theta._replace(**{name: getattr(theta, name)[:, 0, 0] for name in "qkvo"})
    plain = plain._replace(**{name: getattr(theta, name)[..., 0, :] for name in ("bq", "bk", "bv", "bo")})
    cloud = Cloud(normal(2, 4, 6))
    torch.testing.assert_close(one.velocity(theta, cloud), dense.velocity(plain, cloud))


def test_bad_kernels_are_named():
    with pytest.raises(ValueError, match=r"nodes = 4: the axis is below the band limit of 2 modes\. Use at least 5"):
        Convolution(Axis(4, 2), 2)
    with pytest.raises(ValueError, match=r"modes = -1: "):
        Convolution(Axis(4, 2), -1)
    for rule, nodes in ((GaussLegendre(), 2), (GaussLegendre(), 5), (ClenshawCurtis(), 5)):
        with pytest.raises(ValueError, match=r"axis = .*the FFT needs equispaced nodes"):
            Convolution(Axis(nodes, 2, rule), 0)
    for kernel in FUNCTIONAL:
        with pytest.raises(ValueError, match=r"nodes = 4: "):
            kernel.at(4)
        with pytest.raises(ValueError, match=r"nodes = 4: "):
            with_nodes(block(kernel), 4)
        with pytest.raises(
            ValueError, match=r"width = 20: it does not split over 9 nodes\. Choose a width divisible by 9"
        ):
            kernel.channels(20)
    with pytest.raises(ValueError, match=r"nodes = 8: a dense kernel knows one resolution.*Spectral or Convolution"):
        with_nodes(FeedForward(4), 8)
