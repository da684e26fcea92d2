"""`from_torch` and the presets against `torch.nn.TransformerEncoder` and `torch.nn.Transformer`, weights shared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from continua.model import (
    Layers,
    LearnedPositions,
    NormReadout,
    TokenEmbedding,
    TokenReadout,
    activation_of,
    bert,
    encoder_decoder,
    from_torch,
    gpt,
    norm_theta,
)
from continua.operators import Activation, LayerNorm, Unnormalised
from continua.solve import Checkpointed, Direct
from continua.spaces import Cloud
from parity import assert_close, assert_same_gradients, tokens_and_padding

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, COUNT = 13, 9, 12, 3, 20, 3

precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["32", "64"]
)
gradients = pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=["direct", "checkpointed"])
norm_order = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
# torch says at construction that it will not use its own fast path; nobody here wants it.
no_fast_path = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def padded(pair):
    """(tokens, mask) as the embedding takes them; times are the index."""
    return pair[0], None, pair[1]


class TorchEncoder(nn.Module):
    """Tokens and positions in tables, then torch's own encoder, then (for GPT) logits."""

    def __init__(self, norm_first: bool, activation: str = "relu", last: bool = True, bias: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True, bias=bias
        )
        norm = nn.LayerNorm(WIDTH, bias=bias) if last else None
        self.stack = nn.TransformerEncoder(layer, COUNT, norm, enable_nested_tensor=False)
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens, present, causal):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = later(tokens.shape[1]) if causal else None
        return self.stack(x, mask, src_key_padding_mask=~present)


class TorchTransformer(nn.Module):
    """Both ends of torch's own Transformer on embedded tokens."""

    def __init__(self, norm_first: bool, activation: str = "relu") -> None:
        super().__init__()
        self.stack = nn.Transformer(
            WIDTH, HEADS, 2, COUNT, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True
        )
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, source, source_present, target, target_present):
        x, y = (self.tokens(t) + self.positions(torch.arange(t.shape[1])) for t in (source, target))
        return self.stack(
            x,
            y,
            tgt_mask=later(target.shape[1]),
            src_key_padding_mask=~source_present,
            tgt_key_padding_mask=~target_present,
            memory_key_padding_mask=~source_present,
        )


def later(length):
    """True where torch must not look."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def shaken(network, dtype):
    """Weights away from their special values: a gain of one or a bias of zero would hide mistakes."""
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return network.to(dtype)


def embedding_of(network):
    embedding = TokenEmbedding(VOCABULARY, WIDTH, LearnedPositions(LENGTH, WIDTH)).to(network.tokens.weight.dtype)
    embedding.table.data.copy_(network.tokens.weight)
    embedding.code.table.data.copy_(network.positions.weight)
    return embedding


def as_encoder(causal):
    """The torch encoder on tokens: weights from `from_torch`, the embedding in place of ready clouds."""

    def build(network):
        model = from_torch(network.stack, causal)
        model.embedding = embedding_of(network)
        return model

    return build


def as_transformer(network):
    model = from_torch(network.stack, causal=True)
    model.encoder.embedding = model.decoder.embedding = embedding_of(network)
    return model


@precisions
@gradients
@norm_order
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_encoder_is_that_of_torch(norm_first, activation, causal, gradient, dtype, tolerance):
    torch.manual_seed(1)
    network = shaken(TorchEncoder(norm_first, activation, last=norm_first), dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    model = as_encoder(causal)(network)
    output, expected = model.at(gradient=gradient)(tokens, present=present), network(tokens, present, causal)
    assert_close(output[present], expected[present], tolerance)
    assert_same_gradients(model, network, output[present], expected[present], as_encoder(causal), tolerance)


@precisions
@norm_order
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_absent_tokens_may_stand_anywhere(norm_first, causal, dtype, tolerance):
    torch.manual_seed(1)
    network = shaken(TorchEncoder(norm_first), dtype)
    tokens, _ = tokens_and_padding(VOCABULARY, LENGTH)
    present = torch.rand(tokens.shape) < 0.6
    present[:, 0] = True  # torch gives nan to a causal token that sees nobody
    model = as_encoder(causal)(network)
    assert_close(model(tokens, present=present)[present], network(tokens, present, causal)[present], tolerance)


@precisions
@norm_order
def test_encoder_without_biases(norm_first, dtype, tolerance):
    torch.manual_seed(2)
    network = shaken(TorchEncoder(norm_first, bias=False), dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    model, expected = as_encoder(False)(network), network(tokens, present, False)
    output = model(tokens, present=present)
    assert_close(output[present], expected[present], tolerance)
    assert_same_gradients(model, network, output[present], expected[present], as_encoder(False), tolerance)


@no_fast_path
@precisions
@gradients
@norm_order
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_is_that_of_torch(norm_first, activation, gradient, dtype, tolerance):
    torch.manual_seed(4)
    network = shaken(TorchTransformer(norm_first, activation), dtype)
    source, target = tokens_and_padding(VOCABULARY, LENGTH), tokens_and_padding(VOCABULARY, LENGTH - 2)
    model, seen = as_transformer(network), target[1]
    output, expected = model.at(gradient=gradient)(padded(source), padded(target)), network(*source, *target)
    assert_close(output[seen], expected[seen], tolerance)
    assert_same_gradients(model, network, output[seen], expected[seen], as_transformer, tolerance)


@precisions
@norm_order
def test_decoder_is_that_of_torch(norm_first, dtype, tolerance):
    torch.manual_seed(8)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, norm_first=norm_first, batch_first=True)
    network = shaken(nn.TransformerDecoder(layer, COUNT), dtype)
    encoded, points = torch.randn(3, 5, WIDTH, dtype=dtype), torch.randn(3, 7, WIDTH, dtype=dtype)
    present = torch.arange(5) < torch.tensor([[5], [1], [3]])
    model, cloud = from_torch(network, causal=True), Cloud(encoded, present.to(dtype))
    output = model(Cloud(points), encoded=cloud)
    expected = network(points, encoded, later(7), memory_key_padding_mask=~present)
    assert_close(output, expected, tolerance)
    assert_same_gradients(model, network, output, expected, lambda n: from_torch(n, causal=True), tolerance)


# --- the presets themselves, their weights taken from such a model


@precisions
def test_gpt_is_a_causal_pre_norm_encoder(dtype, tolerance):
    torch.manual_seed(5)
    network = shaken(TorchEncoder(norm_first=True, activation="gelu"), dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    readout = TokenReadout(WIDTH, VOCABULARY)
    model = gpt(Layers(COUNT, WIDTH, HEADS, HIDDEN), embedding_of(network), readout).to(dtype)
    model.flow.load_state_dict(from_torch(network.stack, causal=True).flow.state_dict())
    readout.normalised.theta.fill(norm_theta(network.stack.norm))
    expected = F.linear(network(tokens, present, True), readout.linear.weight, readout.linear.bias)
    assert_close(model(tokens, present=present)[present], expected[present], tolerance)


@precisions
def test_bert_is_a_post_norm_encoder(dtype, tolerance):
    torch.manual_seed(6)
    network = shaken(TorchEncoder(norm_first=False, activation="gelu", last=False), dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    whole = NormReadout(WIDTH, Unnormalised())
    model = bert(Layers(COUNT, WIDTH, HEADS, HIDDEN), embedding_of(network), whole).to(dtype)
    model.flow.load_state_dict(from_torch(network.stack).flow.state_dict())
    assert_close(model(tokens, present=present)[present], network(tokens, present, False)[present], tolerance)


@no_fast_path
@precisions
@norm_order
def test_encoder_decoder_is_the_transformer(norm_first, dtype, tolerance):
    torch.manual_seed(7)
    network = shaken(TorchTransformer(norm_first, "gelu"), dtype)
    source, target = tokens_and_padding(VOCABULARY, LENGTH), tokens_and_padding(VOCABULARY, LENGTH - 2)
    layers = Layers(2, WIDTH, HEADS, HIDDEN), Layers(COUNT, WIDTH, HEADS, HIDDEN)
    embeddings = embedding_of(network), embedding_of(network)
    model = encoder_decoder(layers, embeddings, NormReadout(WIDTH), norm_first=norm_first).to(dtype)
    model.load_state_dict(as_transformer(network).state_dict())
    assert_close(model(padded(source), padded(target))[target[1]], network(*source, *target)[target[1]], tolerance)


# --- what is brought over


@no_fast_path
def test_weights_are_copied_with_mode_rate_and_dtype():
    stack = nn.Transformer(WIDTH, HEADS, 1, 1, HIDDEN, 0.25, norm_first=True, dtype=torch.float64).eval()
    model = from_torch(stack)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert not model.encoder.training and not model.decoder.training
    dropped = [part.operator.inner.rate for part in (*model.encoder.flow.parts, *model.decoder.flow.parts)]
    assert dropped == [0.25] * 5
    cloud = Cloud(torch.randn(2, 5, WIDTH, dtype=torch.float64))
    before = model((cloud,), (cloud,))
    for parameter in stack.parameters():
        parameter.data.zero_()
    assert torch.equal(model((cloud,), (cloud,)), before)


def test_eps_and_missing_last_norm_are_kept():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, layer_norm_eps=1e-3, batch_first=True)
    model = from_torch(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    assert model.flow.parts[0].operator.norm == LayerNorm(1e-3)
    assert model.readout.norm == Unnormalised()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (F.relu, Activation.RELU),
        (nn.ReLU(), Activation.RELU),
        (F.gelu, Activation.GELU),
        (nn.GELU(), Activation.GELU),
        (nn.GELU(approximate="tanh"), Activation.GELU_TANH),
        (F.silu, Activation.SILU),
        (nn.SiLU(), Activation.SILU),
        (torch.tanh, Activation.TANH),
        (nn.Identity(), Activation.IDENTITY),
    ],
    ids=lambda x: getattr(x, "name", getattr(x, "__name__", repr(x))),
)
def test_activations_are_recognised(function, expected):
    assert activation_of(function) is expected
    x = torch.linspace(-3.0, 3.0, 31)
    assert torch.equal(expected(x), function(x))


def test_what_cannot_be_brought_over_is_refused():
    def stack(layer):
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, activation=F.softplus, batch_first=True)
    with pytest.raises(ValueError, match=r"activation = .*none of the library's.*Use one of GELU"):
        from_torch(stack(layer))
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True)
    layer.self_attn = nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    with pytest.raises(ValueError, match=r"module = .*add_bias_kv"):
        from_torch(stack(layer))
    mixed = stack(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True))
    mixed.layers[1].norm_first = True
    with pytest.raises(ValueError, match=r"module = .*different make.*attention_theta"):
        from_torch(mixed)
    mixed = stack(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True))
    mixed.norm = nn.RMSNorm(WIDTH)
    with pytest.raises(ValueError, match=r"norm = RMSNorm.*Pass nn.LayerNorm\(width\)"):
        from_torch(mixed)
    mixed.layers[0] = nn.Identity()
    with pytest.raises(ValueError, match=r"module = .*not TransformerEncoderLayer"):
        from_torch(mixed)
