"""Weights from and to torch's own layers: the same network, as a flow and back.

Masks are not part of a torch module but of each call. Here padding is zero mass of the cloud, and causality belongs to
the attention, so `from_torch` asks for it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields import Constant, PiecewiseConstant
from continua.model.embedding import CloudEmbedding
from continua.model.flow import Flow, Part
from continua.model.presets import Layers, decoder, encoder
from continua.model.readout import NormReadout
from continua.model.transformer import ContinuousTransformer, EncoderDecoder
from continua.operators import (
    AbstractNorm,
    Activation,
    Attention,
    AttentionTheta,
    Dense,
    Exact,
    FeedForward,
    FeedForwardTheta,
    LayerNorm,
    NormedTheta,
    NormTheta,
    PostNorm,
    PreNorm,
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
    layers = _same_layers(module)
    make, norm, norm_first = _make(layers)
    last = Unnormalised() if module.norm is None else _norm(module.norm)
    build = encoder if isinstance(module, nn.TransformerEncoder) else decoder
    model = build(make, CloudEmbedding(make.width), NormReadout(make.width, last), norm, norm_first, causal)
    model.to(device=layers[0].linear1.weight.device, dtype=layers[0].linear1.weight.dtype)
    branches = zip(*(_branches(layer) for layer in layers), strict=True)
    for part, thetas in zip(model.flow.parts, branches, strict=True):
        assert isinstance(part, Part) and isinstance(part.field, PiecewiseConstant)
        part.field.fill(thetas)
    if module.norm is not None:
        _fill(model.readout, norm_theta(_layer_norm(module.norm)))
    return model.train(module.training)


def _same_layers(module: nn.TransformerEncoder | nn.TransformerDecoder) -> list[Any]:
    kind = nn.TransformerEncoderLayer if isinstance(module, nn.TransformerEncoder) else nn.TransformerDecoderLayer
    layers = list(module.layers)
    if not layers or any(type(layer) is not kind for layer in layers):
        names = sorted({type(layer).__name__ for layer in layers})
        reject("module", names, f"its layers are not {kind.__name__}", "Bring others over with attention_theta.")
    return layers


def _fill(readout: nn.Module, theta: NormTheta) -> None:
    assert isinstance(readout, NormReadout) and isinstance(readout.theta, Constant)
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


_ACTIVATIONS = {Activation.GELU: "gelu", Activation.RELU: "relu"}
_WHOLE = "Export flows of two parts, attention then feed-forward, both in PreNorm or both in PostNorm."


@torch.no_grad()
def to_torch(model: ContinuousTransformer, layers: int) -> nn.TransformerEncoder:
    """The flow, refined to `layers` layers, as `nn.TransformerEncoder(..., batch_first=True)`.

    Its outputs on embedded tokens are those of Lie-Trotter with one Euler step a layer, dz = Z/L:

        model.to_layers(layers).at(solver=Solver(LieTrotter(Euler()), Fixed(layers)))

    Pre-norm, x <- x + dz zeta f(norm x), the step and the depth profile zeta go into O, bo, W2 and b2. Post-norm,
    norm(x + f(x)) has no step to fold, so dz must be 1 and there is no profile. A readout `NormReadout` becomes the
    encoder's last norm; any other stays with the model. torch takes padding and causality with each call:
    `src_key_padding_mask`, and `mask` with `is_causal`. The inverse of `from_torch`.
    """
    attending, feeding = _parts(model.flow)
    kind, norm = type(attending.operator), attending.operator.norm
    dz = model.flow.depth / layers if layers > 0 else 0.0
    if kind is PostNorm and (dz != 1.0 or model.flow.profile is not None):
        cure = f"Pass layers={model.flow.depth:g} and no profile, or build the model with PreNorm."
        reject("layers", layers, f"a post-norm layer takes a step of 1, not of {dz:g}", cure)
    layered = model.to_layers(layers)
    heads, hidden = attending.operator.inner, feeding.operator.inner
    stack = _torch_stack(model, layers, heads, hidden, norm, norm_first=kind is PreNorm)
    fields = [part.field for part in layered.flow.parts if isinstance(part.field, PiecewiseConstant)]
    for index, layer in enumerate(stack.layers):
        z, middle = index * dz, (index + 0.5) * dz
        scale = dz if model.flow.profile is None else dz * float(model.flow.profile(z, middle))
        _fill_layer(layer, fields[0](middle), fields[1](middle), scale if kind is PreNorm else 1.0)
    return stack.train(model.training)


def _parts(flow: Flow) -> tuple[Any, Any]:
    """The attention and the feed-forward of a flow that torch has a layer for."""
    parts = [part for part in flow.parts if isinstance(part, Part)]
    operators = [part.operator for part in parts]
    shapes = [(type(o).__name__, type(getattr(o, "inner", None)).__name__) for o in operators]
    known = len(parts) == 2 and shapes[0][0] == shapes[1][0] and shapes[0][0] in ("PreNorm", "PostNorm")
    if not known or [inner for _, inner in shapes] != ["Attention", "FeedForward"]:
        reject("model", shapes, "torch has no layer of this make", _WHOLE)
    first, second = parts
    assert isinstance(first.operator, PreNorm | PostNorm) and isinstance(second.operator, PreNorm | PostNorm)
    if first.operator.norm != second.operator.norm:
        reject("model", [o.norm for o in (first.operator, second.operator)], "its norms differ", _WHOLE)
    _check(first.operator.norm, first.operator.inner, second.operator.inner)
    return first, second


def _check(norm: AbstractNorm, attention: Any, feedforward: Any) -> None:
    """Refuses, one by one, what torch's layer does not have."""
    assert isinstance(attention, Attention) and isinstance(feedforward, FeedForward)
    if not isinstance(norm, LayerNorm) or norm != LayerNorm(norm.eps, biased=attention.biased):
        reject("norm", norm, "torch's layer has a LayerNorm with a gain, and biases everywhere or nowhere", _WHOLE)
    usual = Attention(attention.heads, attention.key, causal=attention.causal, biased=attention.biased)
    same = (attention.value or attention.key, attention.inverse_temperature) == (usual.key, usual.inverse_temperature)
    known = dataclasses.replace(attention, value=None, beta=None, integral=Exact())
    if not (same and isinstance(attention.integral, Exact) and known == usual):
        cure = "Export heads on the counting measure with beta = 1/sqrt(key), value = key, Exact, Dense, no rotary."
        reject("attention", attention, "torch's attention is another one", cure)
    if feedforward.phi1 not in _ACTIVATIONS or feedforward.phi2 is not Activation.IDENTITY:
        reject("feedforward", feedforward, "torch's layer has another activation", "Use GELU or RELU, then IDENTITY.")
    if feedforward.kernel != Dense() or feedforward.biased != attention.biased:
        cure = "Use a Dense kernel, and biases in attention and feed-forward alike."
        reject("feedforward", feedforward, "torch's layer has one setting for all", cure)


def _torch_stack(
    model: ContinuousTransformer,
    layers: int,
    attention: Attention,
    feedforward: FeedForward,
    norm: LayerNorm,
    norm_first: bool,
) -> nn.TransformerEncoder:
    width = model.embedding.width
    if attention.heads * attention.key != width:
        cure = f"Build the model with key = {width} / heads."
        reject("attention", (attention.heads, attention.key), f"torch's heads share the width {width}", cure)
    like = next(model.flow.parameters())
    placed = {"dtype": like.dtype, "device": like.device, "bias": attention.biased}
    made = {
        "dropout": 0.0,
        "activation": _ACTIVATIONS[feedforward.phi1],
        "layer_norm_eps": norm.eps,
        "batch_first": True,
    }
    layer = nn.TransformerEncoderLayer(
        width, attention.heads, feedforward.hidden, norm_first=norm_first, **made, **placed
    )
    return nn.TransformerEncoder(layer, layers, _last(model, placed), enable_nested_tensor=False)


def _last(model: ContinuousTransformer, placed: dict[str, Any]) -> nn.LayerNorm | None:
    """The encoder's last norm, where the readout is one."""
    readout = model.readout
    if not isinstance(readout, NormReadout) or isinstance(readout.norm, Unnormalised):
        return None
    norm = readout.norm
    if not isinstance(norm, LayerNorm) or norm.axis is not None:
        cure = "Use NormReadout(width, LayerNorm()) or NormReadout(width, Unnormalised())."
        reject("readout", norm, "torch's encoder ends with a LayerNorm or with none", cure)
    affine = {**placed, "bias": norm.affine and norm.biased}
    last = nn.LayerNorm(readout.width, norm.eps, norm.affine, **affine)
    _copy_norm(last, readout.theta(0.0))
    return last


def _fill_layer(layer: Any, attending: Any, feeding: Any, scale: float) -> None:
    a: AttentionTheta = attending.inner
    f: FeedForwardTheta = feeding.inner
    _copy(layer.self_attn.in_proj_weight, torch.cat([w.flatten(0, 1) for w in (a.q, a.k, a.v)]))
    _copy(layer.self_attn.out_proj.weight, scale * a.o.flatten(0, 1).t())
    _copy(layer.linear1.weight, f.w1)
    _copy(layer.linear2.weight, scale * f.w2)
    if a.bq is not None and a.bk is not None and a.bv is not None and a.bo is not None:
        _copy(layer.self_attn.in_proj_bias, torch.cat([b.flatten() for b in (a.bq, a.bk, a.bv)]))
        _copy(layer.self_attn.out_proj.bias, scale * a.bo)
    if f.b1 is not None and f.b2 is not None:
        _copy(layer.linear1.bias, f.b1)
        _copy(layer.linear2.bias, scale * f.b2)
    _copy_norm(layer.norm1, attending.norm)
    _copy_norm(layer.norm2, feeding.norm)


def _copy_norm(module: nn.LayerNorm, theta: NormTheta) -> None:
    for held, given in ((module.weight, theta.gain), (module.bias, theta.bias)):
        if given is not None:
            _copy(held, given)


def _copy(held: Tensor, given: Tensor) -> None:
    assert held.shape == given.shape, "checked before"
    held.copy_(given)
