"""A trained continuous model as a standard network: plain torch modules with the same outputs."""

import dataclasses
from typing import Any

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields import PiecewiseConstant
from continua.model.flow import Flow, Part
from continua.model.readout import Normalised
from continua.model.transformer import ContinuousTransformer
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
    NormTheta,
    PostNorm,
    PreNorm,
    Unnormalised,
)

_ACTIVATIONS = {Activation.GELU: "gelu", Activation.RELU: "relu"}
_WHOLE = "Export flows of two parts, attention then feed-forward, both in PreNorm or both in PostNorm."


@torch.no_grad()
def to_torch(model: ContinuousTransformer, layers: int) -> nn.TransformerEncoder:
    """The flow, refined to `layers` layers, as `nn.TransformerEncoder(..., batch_first=True)`.

    Its outputs on embedded tokens are those of Lie-Trotter with one Euler step a layer, dz = Z/L:

        model.refined(layers).at(solver=Solver(LieTrotter(Euler()), Fixed(layers)))

    Pre-norm, x <- x + dz zeta f(norm x), the step and the depth profile zeta go into O, bo, W2 and b2. Post-norm,
    norm(x + f(x)) has no step to fold, so dz must be 1 and there is no profile. A readout `Normalised` becomes the
    encoder's last norm; any other stays with the model. torch takes padding and causality with each call:
    `src_key_padding_mask`, and `mask` with `is_causal`. The inverse of `from_torch`.
    """
    attending, feeding = _parts(model.flow)
    kind, norm = type(attending.operator), attending.operator.norm
    dz = model.flow.depth / layers if layers > 0 else 0.0
    if kind is PostNorm and (dz != 1.0 or model.flow.profile is not None):
        cure = f"Pass layers={model.flow.depth:g} and no profile, or build the model with PreNorm."
        reject("layers", layers, f"a post-norm layer takes a step of 1, not of {dz:g}", cure)
    refined = model.refined(layers)
    heads, hidden = attending.operator.inner, feeding.operator.inner
    stack = _stack(model, layers, heads, hidden, norm, norm_first=kind is PreNorm)
    fields = [part.field for part in refined.flow.parts if isinstance(part.field, PiecewiseConstant)]
    for index, layer in enumerate(stack.layers):
        z, middle = index * dz, (index + 0.5) * dz
        scale = dz if model.flow.profile is None else dz * float(model.flow.profile(z, middle))
        _fill(layer, fields[0](middle), fields[1](middle), scale if kind is PreNorm else 1.0)
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


def _stack(
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
    if not isinstance(readout, Normalised) or isinstance(readout.norm, Unnormalised):
        return None
    norm = readout.norm
    if not isinstance(norm, LayerNorm) or norm.axis is not None:
        cure = "Use Normalised(width, LayerNorm()) or Normalised(width, Unnormalised())."
        reject("readout", norm, "torch's encoder ends with a LayerNorm or with none", cure)
    affine = {**placed, "bias": norm.affine and norm.biased}
    last = nn.LayerNorm(readout.width, norm.eps, norm.affine, **affine)
    _copy_norm(last, readout.theta(0.0))
    return last


def _fill(layer: Any, attending: Any, feeding: Any, scale: float) -> None:
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
