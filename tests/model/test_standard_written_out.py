"""GPT-2, parallel, Macaron and sphere-normalised networks against plain stacks with the same weights."""

import copy

import pytest
import torch
from torch import nn

from continua.model import (
    Layers,
    LearnedPositions,
    TokenEmbedding,
    TokenReadout,
    attention_theta,
    feedforward_theta,
    gpt,
    macaron,
    norm_theta,
    parallel,
    sphere,
)
from continua.operators import Activation, AttentionTheta, FeedForwardTheta, NormedTheta, NormTheta
from continua.solve import Checkpointed, Direct
from continua.spaces import CentredSphere, Sphere
from parity import assert_close, assert_same_gradients, tokens_and_padding
from plain import (
    GPT2,
    Layer,
    Network,
    parallel_apart,
    parallel_shared,
    sphere_in_turn,
    sphere_together,
    standardised,
    unit,
)
from plain import (
    macaron as macaron_block,
)

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, COUNT = 13, 9, 12, 3, 20, 3
LAYERS = Layers(COUNT, WIDTH, HEADS, HIDDEN)


def ends():
    embedding = TokenEmbedding(VOCABULARY, WIDTH, LearnedPositions(LENGTH, WIDTH))
    return embedding, TokenReadout(WIDTH, VOCABULARY)


def fill(model, fields, network):
    """The weights of a plain network in a model; `fields` are the thetas of every piece of every part."""
    model.to(network.head.weight.dtype)
    for part, thetas in zip(model.flow.parts, fields, strict=True):
        part.field.fill(thetas)
    embedding = getattr(model.embedding, "inner", model.embedding)
    with torch.no_grad():
        embedding.table.copy_(network.tokens.weight)
        embedding.code.table.copy_(network.positions.weight)
        model.readout.linear.weight.copy_(network.head.weight)
        model.readout.linear.bias.copy_(network.head.bias)
    model.readout.normalised.theta.fill(norm_theta(network.norm))
    return model


def branches(layer):
    """Attention, then the feed-forwards, without norms."""
    return attention_theta(layer.attention), *(feedforward_theta(f.linear1, f.linear2) for f in layer.feedforwards)


def as_parallel_shared(network):
    thetas = [NormedTheta(norm_theta(layer.norms[0]), branches(layer)) for layer in network.layers]
    return fill(parallel(LAYERS, *ends()), [thetas], network)


def as_parallel_apart(network):
    fields = [
        [NormedTheta(norm_theta(layer.norms[i]), branches(layer)[i]) for layer in network.layers] for i in range(2)
    ]
    return fill(parallel(LAYERS, *ends(), shared=False), fields, network)


def as_macaron(network):
    halves, wholes = [], []
    for layer in network.layers:
        a, f1, f2 = branches(layer)
        n1, n2, n3 = (norm_theta(n) for n in layer.norms)
        halves += [NormedTheta(n1, f1), NormedTheta(n3, f2)]
        wholes.append(NormedTheta(n2, a))
    return fill(macaron(LAYERS, *ends(), causal=network.causal), [halves, wholes], network)


def as_sphere(manifold, together):
    def build(network):
        fields = [[branches(layer)[i] for layer in network.layers] for i in range(2)]
        return fill(sphere(LAYERS, *ends(), manifold, together, network.causal), fields, network)

    return build


CASES = {
    "parallel, one norm": (parallel_shared, as_parallel_shared, 1, 1, True, None),
    "parallel, two norms": (parallel_apart, as_parallel_apart, 1, 2, True, None),
    "macaron": (macaron_block, as_macaron, 2, 3, False, None),
    "macaron, causal": (macaron_block, as_macaron, 2, 3, True, None),
    "sphere": (sphere_in_turn(unit), as_sphere(Sphere(), False), 1, 0, False, unit),
    "sphere, together": (sphere_together(unit), as_sphere(Sphere(), True), 1, 0, True, unit),
    "centred sphere": (sphere_in_turn(standardised), as_sphere(CentredSphere(), False), 1, 0, True, standardised),
}


def case_of(name, dtype):
    torch.manual_seed(3)
    block, build, feedforwards, norms, causal, start = CASES[name]
    layers = [Layer(WIDTH, HEADS, HIDDEN, feedforwards, norms) for _ in range(COUNT)]
    network = Network(VOCABULARY, LENGTH, layers, block, causal, start or (lambda x: x))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return network.to(dtype), build


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed(), Checkpointed(steps=1)], ids=repr)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["32", "64"])
@pytest.mark.parametrize("name", CASES)
def test_the_preset_is_the_written_out_network(name, dtype, tolerance, gradient):
    network, build = case_of(name, dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    model = build(network)
    output, expected = model.at(gradient=gradient)(tokens, present=present), network(tokens, present)
    assert_close(output[present], expected[present], tolerance)
    assert_same_gradients(model, network, output[present], expected[present], build, tolerance)


def as_gpt2(network):
    width, heads, layers = network.wte.shape[1], network.heads, len(network.h)
    make = Layers(layers, width, heads, activation=Activation.GELU_TANH)
    embedding = TokenEmbedding(VOCABULARY, width, LearnedPositions(LENGTH, width))
    model = gpt(make, embedding, TokenReadout.from_embedding(embedding)).to(network.wte.dtype)
    attentions, feedforwards = [], []
    for block in network.h:
        q, k, v = (w.T.unflatten(0, (heads, -1)) for w in block["attn_c_attn_w"].chunk(3, -1))
        bq, bk, bv = (b.unflatten(0, (heads, -1)) for b in block["attn_c_attn_b"].chunk(3))
        o = block["attn_c_proj_w"].unflatten(0, (heads, -1))
        theta = AttentionTheta(q, k, v, o, bq, bk, bv, block["attn_c_proj_b"])
        attentions.append(NormedTheta(NormTheta(block["ln_1_g"], block["ln_1_b"]), theta))
        w1, w2 = block["mlp_c_fc_w"].T, block["mlp_c_proj_w"].T
        theta = FeedForwardTheta(w1, w2, block["mlp_c_fc_b"], block["mlp_c_proj_b"])
        feedforwards.append(NormedTheta(NormTheta(block["ln_2_g"], block["ln_2_b"]), theta))
    model.flow.parts[0].field.fill(attentions)
    model.flow.parts[1].field.fill(feedforwards)
    model.readout.normalised.theta.fill(norm_theta(network.ln_f))
    with torch.no_grad():
        embedding.table.copy_(network.wte)
        embedding.code.table.copy_(network.wpe)
    return model


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["32", "64"])
def test_gpt_is_the_written_out_gpt2(dtype, tolerance, gradient):
    torch.manual_seed(5)
    network = GPT2(VOCABULARY, LENGTH, WIDTH, HEADS, COUNT).to(dtype)
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    model = as_gpt2(network)
    output, expected = model.at(gradient=gradient)(tokens, present=present), network(tokens, present)
    assert_close(output[present], expected[present], tolerance)
    assert_same_gradients(model, network, output[present], expected[present], as_gpt2, tolerance)


def test_macaron_reads_both_halves():
    """The two feed-forwards of a layer differ: exchanging them is another network."""
    network, build = case_of("macaron", torch.float64)
    exchanged = copy.deepcopy(network)
    for layer in exchanged.layers:
        layer.feedforwards = nn.ModuleList(reversed(layer.feedforwards))
    tokens, present = tokens_and_padding(VOCABULARY, LENGTH)
    assert (build(network)(tokens, present=present) - build(exchanged)(tokens, present=present)).abs().max() > 1e-2
