"""Weights from torch's own layers: the same network, as a flow.

Masks are not part of a torch module but of each call. Here padding is zero mass of the cloud, and causality belongs to
the attention, so `from_torch` asks for it.
"""

from collections.abc import Sequence
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import nn

from continua.core.errors import reject
from continua.fields import Constant, PiecewiseConstant
from continua.model.embedding import Embedded
from continua.model.encoder_decoder import EncoderDecoder
from continua.model.flow import Part
from continua.model.layers import Layers
from continua.model.presets import decoder, encoder
from continua.model.readout import Normalised
from continua.model.transformer import ContinuousTransformer
from continua.operators import (
    AbstractNorm,
    Activation,
    AttentionTheta,
    FeedForwardTheta,
    LayerNorm,
    NormedTheta,
    NormTheta,
    Unnormalised,
)


def attention_theta(module: nn.MultiheadAttention) -> AttentionTheta:
    """Q, K, V, O of every head from the stacked matrices of torch: O_k^T is a block of columns of `out_proj`."""
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        cure = "Bring over modules without kdim, vdim, add_bias_kv and add_zero_attn."
        reject("module", type(module).__name__, "its keys or values are no linear maps of tokens of one width", cure)
    heads = module.num_heads
    q, k, v = (w.unflatten(0, (heads, -1)) for w in module.in_proj_weight.chunk(3))
    bq, bk, bv = (None, None, None)
    if module.in_proj_bias is not None:
        bq, bk, bv = (b.unflatten(0, (heads, -1)) for b in module.in_proj_bias.chunk(3))
    o = module.out_proj.weight.t().unflatten(0, (heads, -1))
    return AttentionTheta(q, k, v, o, bq, bk, bv, module.out_proj.bias)


def feedforward_theta(linear1: nn.Linear, linear2: nn.Linear) -> FeedForwardTheta:
    """Kernels and biases of linear2(activation(linear1(x)))."""
    return FeedForwardTheta(linear1.weight, linear2.weight, linear1.bias, linear2.bias)


def norm_theta(module: nn.LayerNorm) -> NormTheta:
    """Gain and bias of a norm over the embedding axis."""
    return NormTheta(module.weight, module.bias)


@overload
def from_torch(
    module: nn.TransformerEncoder | nn.TransformerDecoder, causal: bool = False
) -> ContinuousTransformer: ...
@overload
def from_torch(module: nn.Transformer, causal: bool = False) -> EncoderDecoder: ...
def from_torch(
    module: nn.TransformerEncoder | nn.TransformerDecoder | nn.Transformer, causal: bool = False
) -> ContinuousTransformer | EncoderDecoder:
    """The same network on clouds of embedded tokens, with a copy of the weights, in their dtype and on their device.

    `causal` is what a causal mask in every call is to torch; of a `nn.Transformer` it concerns the decoder.
    The rate of dropout is that of torch's residual branches; torch also drops attention weights and hidden units.
    """
    if isinstance(module, nn.Transformer):
        return EncoderDecoder(_stack(module.encoder, False), _stack(module.decoder, causal))
    return _stack(module, causal)


def _stack(module: nn.Module, causal: bool) -> ContinuousTransformer:
    """A torch encoder or decoder as a continuous Transformer."""
    if not isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        cure = "Pass nn.TransformerEncoder, nn.TransformerDecoder or nn.Transformer."
        reject("module", type(module).__name__, "it is no stack of torch", cure)
    layers = _checked_layers(module)
    make, norm, norm_first = _make(layers)
    last = Unnormalised() if module.norm is None else _norm(module.norm)
    build = encoder if isinstance(module, nn.TransformerEncoder) else decoder
    model = build(make, Embedded(make.width), Normalised(make.width, last), norm, norm_first, causal)
    model.to(device=layers[0].linear1.weight.device, dtype=layers[0].linear1.weight.dtype)
    branches = zip(*(_branches(layer) for layer in layers), strict=True)
    for part, thetas in zip(model.flow.parts, branches, strict=True):
        assert isinstance(part, Part) and isinstance(part.field, PiecewiseConstant)
        part.field.fill(thetas)
    if module.norm is not None:
        _fill(model.readout, norm_theta(_layer_norm(module.norm)))
    return model.train(module.training)


def _checked_layers(module: nn.TransformerEncoder | nn.TransformerDecoder) -> list[Any]:
    kind = nn.TransformerEncoderLayer if isinstance(module, nn.TransformerEncoder) else nn.TransformerDecoderLayer
    layers = list(module.layers)
    if not layers or any(type(layer) is not kind for layer in layers):
        names = sorted({type(layer).__name__ for layer in layers})
        reject("module", names, f"its layers are not {kind.__name__}", "Bring others over with attention_theta.")
    return layers


def _fill(readout: nn.Module, theta: NormTheta) -> None:
    assert isinstance(readout, Normalised) and isinstance(readout.theta, Constant)
    readout.theta.fill(theta)


def _branches(layer: Any) -> list[NormedTheta]:
    """Norm and weights of the residual branches of a layer, in their order."""
    inner: list[Any] = [attention_theta(layer.self_attn)]
    if isinstance(layer, nn.TransformerDecoderLayer):
        inner.append(attention_theta(layer.multihead_attn))
    inner.append(feedforward_theta(layer.linear1, layer.linear2))
    return [NormedTheta(norm_theta(norm), theta) for norm, theta in zip(_norms(layer), inner, strict=True)]


def _norms(layer: Any) -> list[nn.LayerNorm]:
    """The norms of the residual branches of a layer, in their order."""
    norms = [layer.norm1, layer.norm2]
    return [_layer_norm(n) for n in ([*norms, layer.norm3] if isinstance(layer, nn.TransformerDecoderLayer) else norms)]


def _make(layers: Sequence[Any]) -> tuple[Layers, AbstractNorm, bool]:
    """Sizes and choices of torch layers, their norm and whether it comes first; in all layers they must agree."""
    makes = {
        Layers(
            count=len(layers),
            width=layer.linear1.in_features,
            heads=layer.self_attn.num_heads,
            hidden=layer.linear1.out_features,
            activation=activation_of(layer.activation),
            dropout=layer.dropout1.p,
            biased=layer.linear1.bias is not None,
        )
        for layer in layers
    }
    norms = {(_norm(norm), layer.norm_first) for layer in layers for norm in _norms(layer)}
    if len(makes) > 1 or len(norms) > 1:
        cure = "Fill a flow of your own with attention_theta, feedforward_theta and norm_theta."
        reject("module", [*makes, *norms], "its layers are of different make", cure)
    return makes.pop(), *norms.pop()


def _layer_norm(module: object) -> nn.LayerNorm:
    if not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) != 1:
        reject("norm", module, "it is no LayerNorm over the embedding axis", "Pass nn.LayerNorm(width).")
    return module


def _norm(module: object) -> AbstractNorm:
    known = _layer_norm(module)
    affine = known.elementwise_affine
    return LayerNorm(known.eps, affine, biased=affine and known.bias is not None)


def activation_of(function: object) -> Activation:
    """The activation that a function or module of torch is."""
    if isinstance(function, nn.GELU):
        return Activation.GELU_TANH if function.approximate == "tanh" else Activation.GELU
    for activation, known in _KNOWN.items():
        if function in known or isinstance(function, known[-1]):
            return activation
    names = ", ".join(activation.name for activation in Activation)
    reject("activation", function, "it is none of the library's", f"Use one of {names}.")


_KNOWN: dict[Activation, tuple[Any, ...]] = {
    Activation.GELU: (F.gelu, nn.GELU),
    Activation.RELU: (F.relu, torch.relu, nn.ReLU),
    Activation.SILU: (F.silu, nn.SiLU),
    Activation.TANH: (torch.tanh, F.tanh, nn.Tanh),
    Activation.IDENTITY: (nn.Identity,),
}
