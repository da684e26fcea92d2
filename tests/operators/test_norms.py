import pytest
import torch

from continua.operators import (
    Attention,
    Binding,
    Cross,
    Damping,
    FeedForward,
    LayerNorm,
    NormedTheta,
    NormTheta,
    NoTheta,
    PostNorm,
    PreNorm,
    RMSNorm,
    Unnormalised,
    draw_theta,
)
from continua.spaces import Cloud
from references import gradients
from registries import OperatorCase

WIDTH = 6
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@both_dtypes
@pytest.mark.parametrize("biased", [False, True], ids=["gain", "gain and bias"])
def test_layer_norm_equals_torch(dtype, biased):
    module = torch.nn.LayerNorm(WIDTH, eps=1e-3, bias=biased, dtype=dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = normal(WIDTH, seed=seed, dtype=dtype)
    x = normal(2, 3, WIDTH, seed=5, dtype=dtype).requires_grad_()
    theta = NormTheta(module.weight, module.bias if biased else None)
    found, inputs = LayerNorm(eps=1e-3, biased=biased).normalise(theta, x), [x, *module.parameters()]
    torch.testing.assert_close(found, module(x))
    torch.testing.assert_close(gradients(found, inputs), gradients(module(x), inputs))
    assert LayerNorm().eps == torch.nn.LayerNorm(WIDTH).eps


@both_dtypes
def test_rms_norm_equals_torch(dtype):
    module = torch.nn.RMSNorm(WIDTH, eps=1e-3, dtype=dtype)
    module.weight.data = normal(WIDTH, dtype=dtype)
    x = normal(2, 3, WIDTH, seed=5, dtype=dtype).requires_grad_()
    found, inputs = RMSNorm(eps=1e-3).normalise(NormTheta(module.weight), x), [x, module.weight]
    torch.testing.assert_close(found, module(x))
    torch.testing.assert_close(gradients(found, inputs), gradients(module(x), inputs))


@both_dtypes
def test_norms_of_gain_one(dtype):
    x = normal(2, 3, WIDTH, dtype=dtype)
    plain = torch.nn.LayerNorm(WIDTH, elementwise_affine=False)
    torch.testing.assert_close(LayerNorm(affine=False).normalise(NormTheta(), x), plain(x))
    plain = torch.nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False)
    torch.testing.assert_close(RMSNorm(affine=False).normalise(NormTheta(), x), plain(x))
    assert Unnormalised().normalise(NoTheta(), x) is x


def test_initial_norms_are_of_gain_one():
    x = normal(2, 3, WIDTH, dtype=torch.float32)
    for norm in (LayerNorm(), LayerNorm(biased=False), RMSNorm()):
        plain = type(norm)(affine=False)
        expected = plain.normalise(NormTheta(), x)
        torch.testing.assert_close(norm.normalise(draw_theta(norm.spec(WIDTH)), x), expected)


def test_pre_norm_is_the_operator_of_the_normalised_tokens():
    operator = PreNorm(LayerNorm(), FeedForward(hidden=5))
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1))
    cloud = Cloud(normal(2, 3, WIDTH))
    expected = operator.inner.velocity(theta.inner, Cloud(operator.norm.normalise(theta.norm, cloud.points)))
    assert torch.equal(operator.velocity(theta, cloud), expected)


def test_pre_norm_normalises_once_for_tokens_that_ask_themselves(monkeypatch):
    calls, real = [], torch.nn.functional.layer_norm
    monkeypatch.setattr(torch.nn.functional, "layer_norm", lambda *a, **k: calls.append(1) or real(*a, **k))
    operator = PreNorm(LayerNorm(), Attention(heads=2, key_size=3))
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1))
    cloud = Cloud(normal(2, 3, WIDTH))
    operator.velocity(theta, cloud)
    assert len(calls) == 1
    operator.velocity(theta, Cloud(normal(2, 1, WIDTH)), cloud)
    assert len(calls) == 3


def test_pre_norm_leaves_the_memory_of_cross_attention_as_it_is():
    """As the decoder of torch: queries are normalised, what the encoder sent is not."""
    operator = PreNorm(LayerNorm(), Cross(Attention(heads=2, key_size=3)))
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1))
    cloud, source = Cloud(normal(2, 3, WIDTH)), Cloud(normal(2, 4, WIDTH, seed=1))
    attention = Attention(heads=2, key_size=3)
    queries = Cloud(LayerNorm().normalise(theta.norm, cloud.points))
    expected = attention.velocity(theta.inner, queries, source)
    torch.testing.assert_close(operator.bind(Binding(cloud, source)).velocity(theta, cloud), expected)


@both_dtypes
def test_an_euler_step_of_post_norm_is_the_residual_step(dtype):
    operator = PostNorm(LayerNorm(), FeedForward(hidden=5))
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1), dtype)
    cloud = Cloud(normal(2, 3, WIDTH, dtype=dtype))
    x = cloud.points
    expected = LayerNorm().normalise(theta.norm, x + operator.inner.velocity(theta.inner, cloud))
    torch.testing.assert_close(x + operator.velocity(theta, cloud), expected)


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()], ids=repr)
@pytest.mark.parametrize("kind", [PreNorm, PostNorm])
def test_a_token_at_the_origin_has_a_finite_gradient(norm, kind):
    operator = kind(norm, Damping(gamma=1.0))
    x = torch.zeros(1, 2, WIDTH, requires_grad=True)
    operator.velocity(NormedTheta(draw_theta(norm.spec(WIDTH)), NoTheta()), Cloud(x)).sum().backward()
    assert x.grad is not None and bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_width_in_place_of_eps_is_named(norm):
    """torch's own norms take their width first."""
    with pytest.raises(ValueError, match=rf"eps = 8.0: .*the width is that of the tokens\. Pass {norm.__name__}\(\)"):
        norm(8.0)
