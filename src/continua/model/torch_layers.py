"""Parameters from and to torch's own layers: the same network, as a flow and back.

Masks are not part of a torch module but of each call. Here padding is zero mass of the cloud, and causality belongs to
the attention, so `from_torch` asks for it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import nn

from continua.core.checks import at_least
from continua.core.errors import reject
from continua.fields import PiecewiseConstant
from continua.model.embedding import CloudEmbedding
from continua.model.readout import NormReadout
from continua.model.standard import Layers, decoder, encoder
from continua.model.transformer import ContinuousTransformer, EncoderDecoder
from continua.operators.attention import Attention, AttentionTheta
from continua.operators.feedforward import Activation, FeedForward, FeedForwardTheta
from continua.operators.integral import Exact
from continua.operators.norms import AbstractNorm, LayerNorm, NormedTheta, NormTheta, PostNorm, PreNorm, Unnormalised
from continua.operators.operator import Theta, leaves


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
    """The same network on clouds of embedded tokens, with a copy of the parameters, in their dtype and on their device.

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
    encodes = isinstance(module, nn.TransformerEncoder)
    kind = nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer
    layers: list[Any] = list(module.layers)
    if not layers or any(type(layer) is not kind for layer in layers):
        names = sorted({type(layer).__name__ for layer in layers})
        reject("module", names, f"its layers are not {kind.__name__}", "Bring others over with attention_theta.")
    make, norm_first = _make(layers)
    readout = NormReadout(make.width, Unnormalised() if module.norm is None else _norm(module.norm))
    build = encoder if encodes else decoder
    model = build(make, CloudEmbedding(make.width), readout, norm_first, causal)
    model.to(device=layers[0].linear1.weight.device, dtype=layers[0].linear1.weight.dtype)
    branches = zip(*(_branches(layer) for layer in layers), strict=True)
    for part, thetas in zip(model.flow.parts, branches, strict=True):
        assert isinstance(part.field, PiecewiseConstant)
        part.field.fill(thetas)
    if isinstance(module.norm, nn.LayerNorm):
        readout.theta.fill(norm_theta(module.norm))
    return model.train(module.training)


def _branches(layer: Any) -> list[NormedTheta]:
    """Norm and parameters of the residual branches of a layer, in their order: views of torch's own tensors."""
    inner: list[Any] = [attention_theta(layer.self_attn), feedforward_theta(layer.linear1, layer.linear2)]
    if isinstance(layer, nn.TransformerDecoderLayer):
        inner.insert(1, attention_theta(layer.multihead_attn))
    return [NormedTheta(norm_theta(norm), theta) for norm, theta in zip(_norms(layer), inner, strict=True)]


def _norms(layer: Any) -> list[Any]:
    """The norms of the residual branches of a layer, in their order."""
    return [layer.norm1, layer.norm2, *([layer.norm3] if isinstance(layer, nn.TransformerDecoderLayer) else [])]


def _make(layers: Sequence[Any]) -> tuple[Layers, bool]:
    """Sizes and choices of torch layers, and whether norms come first; in all layers they must agree."""
    makes = {
        (
            Layers(
                count=len(layers),
                width=layer.linear1.in_features,
                heads=layer.self_attn.num_heads,
                hidden=layer.linear1.out_features,
                activation=activation_of(layer.activation),
                dropout=layer.dropout1.p,
                biased=layer.linear1.bias is not None,
                norm=_norm(norm),
            ),
            bool(layer.norm_first),
        )
        for layer in layers
        for norm in _norms(layer)
    }
    if len(makes) > 1:
        cure = "Fill a flow of your own with attention_theta, feedforward_theta and norm_theta."
        reject("module", [*makes], "its layers are of different make", cure)
    return makes.pop()


def _norm(module: object) -> AbstractNorm:
    if not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) != 1:
        reject("norm", module, "it is no LayerNorm over the embedding axis", "Pass nn.LayerNorm(width).")
    affine = module.elementwise_affine
    return LayerNorm(module.eps, affine, biased=affine and module.bias is not None)


def activation_of(function: Any) -> Activation:
    """The activation that a function or module of torch is, told by its values."""
    x = torch.linspace(-10.0, 10.0, 81)
    for activation in Activation:
        if torch.equal(function(x.clone()), activation(x)):
            return activation
    names = ", ".join(activation.name for activation in Activation)
    reject("activation", function, "it is none of the library's", f"Use one of {names}.")


_ACTIVATIONS = {Activation.GELU: "gelu", Activation.RELU: "relu"}
_WHOLE = "Export flows of two parts, attention then feed-forward, both in PreNorm or both in PostNorm."


@torch.no_grad()
def to_torch(model: ContinuousTransformer, layers: int) -> nn.TransformerEncoder:
    """The flow, refined to `layers` layers, as `nn.TransformerEncoder(..., batch_first=True)`.

    Its outputs on embedded tokens are those of Lie-Trotter with one Euler step per layer, dz = Z/L:

        model.to_layers(layers).at(solver=Solver(LieTrotter(Euler()), Fixed(layers)))

    Pre-norm, x <- x + dz zeta f(norm x), the step and the depth profile zeta go into O, bo, W2 and b2. Post-norm,
    norm(x + f(x)) has no step to fold, so dz must be 1 and there is no profile. A readout `NormReadout` becomes the
    encoder's last norm; any other stays with the model. torch takes padding and causality with each call:
    `src_key_padding_mask`, and `mask` with `is_causal`. The inverse of `from_torch`.
    """
    at_least(1, layers=layers)
    kind, norm, attention, feedforward = _torch_layer(model)
    dz, profile = model.flow.depth / layers, model.flow.profile
    if kind is PostNorm and (dz != 1.0 or profile is not None):
        cure = f"Pass layers={model.flow.depth:g} and no profile, or build the model with PreNorm."
        reject("layers", layers, f"a post-norm layer takes a step of 1, not of {dz:g}", cure)
    like = next(model.flow.parameters())
    placed = {"dtype": like.dtype, "device": like.device, "bias": attention.biased}
    made = {"dropout": 0.0, "activation": _ACTIVATIONS[feedforward.phi1], "layer_norm_eps": norm.eps, **placed}
    sizes = model.embedding.width, attention.heads, feedforward.hidden
    layer = nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=kind is PreNorm, **made)
    stack = nn.TransformerEncoder(layer, layers, _last(model, placed), enable_nested_tensor=False)
    fields = model.to_layers(layers).flow.fields
    for index, filled in enumerate(stack.layers):
        middle = (index + 0.5) * dz
        scale = dz if profile is None else dz * float(profile(middle, middle))
        for held, field in zip(_branches(filled), fields, strict=True):
            _copy(held, field(middle), scale)
    return stack.train(model.training)


def _torch_layer(model: ContinuousTransformer) -> tuple[type, LayerNorm, Attention, FeedForward]:
    """PreNorm or PostNorm, norm, attention and feed-forward of a flow; what torch's layer does not have is refused."""
    operators: list[Any] = [part.operator for part in model.flow.parts]
    shapes = [(type(o).__name__, type(getattr(o, "inner", None)).__name__) for o in operators]
    if shapes not in ([(kind, "Attention"), (kind, "FeedForward")] for kind in ("PreNorm", "PostNorm")):
        reject("model", shapes, "torch has no layer of this make", _WHOLE)
    norm, attention, feedforward = operators[0].norm, operators[0].inner, operators[1].inner
    heads, key, biased, width = attention.heads, attention.key_size, attention.biased, model.embedding.width
    if norm != operators[1].norm or not isinstance(norm, LayerNorm) or norm != LayerNorm(norm.eps, biased=biased):
        reject("norm", norm, "torch's layer has a LayerNorm with a gain, and biases everywhere or nowhere", _WHOLE)
    usual = Attention(heads, key, causal=attention.causal, biased=biased)
    same = (attention.value_size or key, attention.inverse_temperature) == (key, usual.inverse_temperature)
    known = dataclasses.replace(attention, value_size=None, beta=None, integral=Exact())
    if not (same and isinstance(attention.integral, Exact) and known == usual):
        cure = "Export counted heads with beta = 1/sqrt(key_size), value_size = key_size, Exact, Dense, no rotary."
        reject("attention", attention, "torch's attention is another one", cure)
    if heads * key != width:
        cure = f"Build the model with key_size = {width} / heads."
        reject("attention", (heads, key), f"torch's heads share the width {width}", cure)
    if feedforward.phi1 not in _ACTIVATIONS or feedforward != FeedForward(
        feedforward.hidden, feedforward.phi1, biased=biased
    ):
        cure = "Use GELU or RELU, then IDENTITY, a Dense kernel, and biases in attention and feed-forward alike."
        reject("feedforward", feedforward, "torch's layer has another one", cure)
    return type(operators[0]), norm, attention, feedforward


def _last(model: ContinuousTransformer, placed: dict[str, Any]) -> nn.LayerNorm | None:
    """The encoder's last norm, where the readout is one."""
    readout = model.readout
    if not isinstance(readout, NormReadout) or isinstance(readout.norm, Unnormalised):
        return None
    norm = readout.norm
    if not isinstance(norm, LayerNorm) or norm.axis is not None:
        cure = "Use NormReadout(width, LayerNorm()) or NormReadout(width, Unnormalised())."
        reject("readout", norm, "torch's encoder ends with a LayerNorm or with none", cure)
    last = nn.LayerNorm(readout.width, norm.eps, norm.affine, **{**placed, "bias": norm.affine and norm.biased})
    _copy(norm_theta(last), readout.theta(0.0))
    return last


def _copy(held: Theta, given: Theta, step: float = 1.0) -> None:
    """Into views of torch's tensors; the step goes into what a branch adds to the residual."""
    for (name, into), (_, leaf) in zip(leaves(held), leaves(given), strict=True):
        into.copy_(step * leaf if name in ("inner.o", "inner.bo", "inner.w2", "inner.b2") else leaf)
