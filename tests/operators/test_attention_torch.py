"""On counting measures attention is torch's own: the function and the module, weights and gradients alike."""

import pytest
import torch
import torch.nn.functional as F

from continua.operators import Attention, AttentionTheta, Exact, KeyValues, leaves
from continua.spaces import Cloud, Measure
from references import gradients

BATCH, TOKENS, WIDTH, HEADS = 3, 7, 12, 4
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
both_paths = pytest.mark.parametrize("materialised", [False, True], ids=["fused", "materialised"])


def close(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        tolerance = 1e-5 if other.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def drawn_points(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def module_and_theta(dtype: torch.dtype) -> tuple[torch.nn.MultiheadAttention, AttentionTheta]:
    """torch's module with random biases, and its parameters in our form: theta holds views of them."""
    generator, key = torch.Generator().manual_seed(1), WIDTH // HEADS
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    assert module.in_proj_weight is not None and module.in_proj_bias is not None
    q, k, v = module.in_proj_weight.view(3, HEADS, key, WIDTH)
    bq, bk, bv = module.in_proj_bias.view(3, HEADS, key)
    o = module.out_proj.weight.T.reshape(HEADS, key, WIDTH)
    return module, AttentionTheta(q, k, v, o, bq, bk, bv, module.out_proj.bias)


def future(tokens: int) -> torch.Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


@both_dtypes
@causal_or_not
@both_paths
def test_token_integral_equals_torch(dtype, causal, materialised):
    q, k, v = (drawn_points(dtype, seed).view(BATCH, TOKENS, HEADS, 3).transpose(1, 2) for seed in range(3))
    q, k, v = (part.clone().requires_grad_() for part in (q, k, v))
    measure = Measure.of((BATCH, TOKENS), q)
    found = Exact(materialised).means(q, measure, KeyValues(k, v, measure), 3**-0.5, causal)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    close(found, expected)
    close(gradients(found, [q, k, v]), gradients(expected, [q, k, v]))


@both_dtypes
@causal_or_not
@both_paths
@pytest.mark.parametrize("mass", [None, 1.0, 0.3])
def test_equals_multihead_attention(dtype, causal, materialised, mass):
    module, theta = module_and_theta(dtype)
    x = drawn_points(dtype).requires_grad_()
    cloud = Cloud(x, None if mass is None else torch.full((BATCH, TOKENS), mass, dtype=dtype))
    operator = Attention(HEADS, WIDTH // HEADS, causal=causal, integral=Exact(materialised))
    found = operator.velocity(theta, cloud)
    mask = future(TOKENS) if causal else None
    expected, _ = module(x, x, x, need_weights=False, attn_mask=mask, is_causal=causal)
    close(found, expected)
    inputs = [x, *module.parameters()]
    close(gradients(found, inputs), gradients(expected, inputs))


@both_dtypes
@causal_or_not
@both_paths
def test_ragged_batches_equal_the_key_padding_mask(dtype, causal, materialised):
    module, theta = module_and_theta(dtype)
    x, lengths = drawn_points(dtype).requires_grad_(), torch.tensor([TOKENS, 4, 1])
    present = torch.arange(TOKENS) < lengths[:, None]
    operator = Attention(HEADS, WIDTH // HEADS, causal=causal, integral=Exact(materialised))
    found = operator.velocity(theta, Cloud(x, present.to(dtype)))
    mask = future(TOKENS) if causal else None
    expected, _ = module(x, x, x, need_weights=False, attn_mask=mask, key_padding_mask=~present)
    close(found[present], expected[present])
    inputs = [x, *module.parameters()]
    close(gradients(found[present], inputs), gradients(expected[present], inputs))


@both_dtypes
def test_cross_attention_equals_multihead_attention(dtype):
    module, theta = module_and_theta(dtype)
    x, y = drawn_points(dtype).requires_grad_(), drawn_points(dtype, 5)[:, :4].clone().requires_grad_()
    present = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] + [False] * 3])
    operator = Attention(HEADS, WIDTH // HEADS)
    found = operator.velocity(theta, Cloud(x), Cloud(y, present.to(dtype)))
    expected, _ = module(x, y, y, need_weights=False, key_padding_mask=~present)
    close(found, expected)
    close(gradients(found, [x, y]), gradients(expected, [x, y]))


def test_sizes_and_names_of_the_parameters():
    spec = dict(leaves(Attention(heads=4, key_size=3, value_size=5).spec(12)))
    shapes = {name: leaf.shape for name, leaf in spec.items()}
    weights = {"q": (4, 3, 12), "k": (4, 3, 12), "v": (4, 5, 12), "o": (4, 5, 12)}
    assert shapes == weights | {"bq": (4, 3), "bk": (4, 3), "bv": (4, 5), "bo": (12,)}
    assert set(dict(leaves(Attention(heads=4, key_size=3, biased=False).spec(12)))) == set("qkvo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 0, "key_size": 3}, r"heads = 0: .*at least 1\. Pass heads >= 1"),
        ({"heads": 2, "key_size": -1}, r"key_size = -1: .*Pass key_size >= 1"),
        ({"heads": 2, "key_size": 3, "value_size": 0}, r"value_size = 0: .*Pass value_size >= 1"),
        ({"heads": 2, "key_size": 3, "beta": float("inf")}, r"beta = inf: .*must be finite\. Pass a finite beta"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Attention(**arguments)
