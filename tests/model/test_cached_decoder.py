"""Reading token after token, with kept keys and values: the outputs of the whole sequence, to rounding."""

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.fields import Constant, Expansion
from continua.fields.field import MemoisedField
from continua.model import (
    CachedDecoder,
    ContinuousTransformer,
    Flow,
    Layers,
    LearnedPositions,
    MeanReadout,
    NormedEmbedding,
    Part,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
    encoder,
    gpt,
    macaron,
    parallel,
    sphere,
    why_not_cacheable,
)
from continua.operators import (
    Attention,
    Binding,
    CachedIntegral,
    Convolution,
    Cross,
    Damping,
    Exact,
    FeedForward,
    KVCache,
    LayerNorm,
    PostNorm,
    PreNorm,
    Rotary,
    Subset,
    Sum,
)
from continua.solve import RK4, Adaptive, DormandPrince, Euler, Fixed, Given, LieTrotter, Midpoint, Solver, Strang
from continua.spaces import Axis, BackwardRectangle, BSpline, Cloud, Legendre

WIDTH, VOCABULARY, TOKENS = 12, 7, 11
METHODS = [LieTrotter(Euler()), Euler(), Midpoint(), RK4(), Strang(Midpoint()), DormandPrince()]


def attention(**options):
    return Attention(2, 6, **{"causal": True, "rotary": Rotary(2.5, 0.05), **options})


def flowing(*operators, solver=None, basis=Legendre(3), embedding=None, readout=None):
    torch.manual_seed(0)
    chosen = operators or (PreNorm(LayerNorm(), attention()), PreNorm(LayerNorm(), FeedForward(16)))
    parts = [Part(f, Expansion(f.spec(WIDTH), basis, 2.0)) for f in chosen]
    given = embedding or NormedEmbedding(TokenEmbedding(VOCABULARY, WIDTH))
    read = readout or TokenReadout(WIDTH, VOCABULARY)
    return ContinuousTransformer(given, Flow(parts, 2.0), read, solver or Solver(Midpoint(), Fixed(3))).double()


def tokens(batch=2, count=TOKENS):
    return torch.randint(VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(1))


def pieces_agree(model, sizes=(3, 1, 4, 1, 2)):
    """Reads in pieces, one or several tokens each, and compares with the model on everything at once."""
    read, decoder = tokens(), CachedDecoder(model)
    model.eval()
    with torch.no_grad():
        whole = model(read)
    decoder.decode(read[:, :2])
    decoder.reset()  # the sequence finds nothing of what was read before
    output = torch.cat([decoder.decode(piece) for piece in read.split(sizes, 1)], 1)
    assert decoder.length == TOKENS
    assert output.shape == whole.shape and float((output - whole).abs().max()) < 1e-12


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}")
def test_every_method_reads_in_pieces(method):
    pieces_agree(flowing(solver=Solver(method, Fixed(3))))


def test_a_given_grid_and_fields_that_jump():
    pieces_agree(flowing(solver=Solver(RK4(), Given((0.0, 0.3, 1.7, 2.0)))))
    pieces_agree(flowing(basis=BSpline(4, 0), solver=Solver(Midpoint(), Fixed(2))))


@pytest.mark.parametrize(
    "operator",
    [
        Sum((attention(), FeedForward(8), Damping(0.1))),
        PostNorm(LayerNorm(), attention(rotary=None)),
        PreNorm(LayerNorm(), Sum((attention(integral=Exact(materialised=True)), attention(value_size=3, beta=-0.7)))),
        Attention(2, 2, causal=True, rotary=Rotary(), kernel=Convolution(Axis(4, 3), 1)),
    ],
    ids=["sum", "post-norm", "two attentions", "channels on nodes"],
)
def test_operators_made_of_operators(operator):
    pieces_agree(flowing(operator))


@pytest.mark.parametrize("network", [gpt, parallel, macaron, sphere])
def test_the_standard_networks_with_learned_positions(network):
    torch.manual_seed(0)
    embedding = TokenEmbedding(VOCABULARY, WIDTH, LearnedPositions(TOKENS, WIDTH))
    options = {} if network is gpt else {"causal": True}
    layers = Layers(2, WIDTH, 2, dropout=0.2)  # which is for training alone
    model = network(layers, embedding, TokenReadout(WIDTH, VOCABULARY), **options).double()
    assert model.training
    pieces_agree(model)


def test_reading_changes_nothing_of_the_model():
    model = flowing().train()
    decoder = CachedDecoder(model)
    decoder.decode(tokens())
    assert model.training and model.flow.training
    assert isinstance(model.flow.parts[0].operator.inner.integral, Exact)
    assert isinstance(model.flow.parts[0].field, Expansion)


def test_a_piece_that_cannot_be_read():
    decoder = CachedDecoder(flowing())
    decoder.decode(tokens())
    with pytest.raises(ValueError, match="2 sequences are being read"):
        decoder.decode(tokens(batch=3))
    assert decoder.length == TOKENS  # what was read is still there
    with pytest.raises(ValueError, match="no such entry"):
        decoder.decode(tokens() + VOCABULARY)
    assert decoder.length == 0


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (flowing(solver=Solver(DormandPrince(), Adaptive())), "grid of depth is not fixed"),
        (flowing(attention(causal=False)), "not causal"),
        (flowing(attention(integral=Subset(4))), "an estimate, Subset"),
        (flowing(Sum((FeedForward(8), Cross(attention(causal=False))))), "Cross keeps no keys"),
        (flowing(readout=MeanReadout(WIDTH, 2)), "one output per sequence"),
        (flowing(embedding=TokenEmbedding(VOCABULARY, WIDTH, rule=BackwardRectangle(-1.0))), "each counted once"),
        (flowing(embedding=VectorEmbedding(1, WIDTH)), "whole numbers"),
    ],
    ids=["adaptive", "not causal", "estimate", "cross", "mean", "masses", "signals"],
)
def test_what_cannot_be_kept_is_refused_with_its_reason(model, why):
    assert why in why_not_cacheable(model)
    with pytest.raises(ValueError, match=why) as raised:
        CachedDecoder(model)
    assert "model.at(steps=8)" in str(raised.value)


def test_an_interrupt_forgets_the_piece_that_was_half_read(monkeypatch):
    model, read = flowing(), tokens()
    decoder = CachedDecoder(model)
    decoder.decode(read[:, :4])
    kernel = model.readout.forward
    monkeypatch.setattr(model.readout, "forward", lambda cloud: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        decoder.decode(read[:, 4:6])
    monkeypatch.setattr(model.readout, "forward", kernel)
    assert decoder.length == 0
    with torch.no_grad():
        torch.testing.assert_close(decoder.decode(read), model.eval()(read), rtol=1e-12, atol=1e-12)


def test_a_new_sequence_reads_the_weights_of_its_time():
    model, read = flowing(), tokens()
    decoder = CachedDecoder(model)
    decoder.decode(read)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
        decoder.reset()
        torch.testing.assert_close(decoder.decode(read), model.eval()(read), rtol=1e-12, atol=1e-12)


def test_a_frozen_grid_is_the_cure():
    assert why_not_cacheable(flowing(solver=Solver(DormandPrince(), Adaptive())).at(steps=8)) is None
    layers = Layers(1, WIDTH, 2)
    assert "not causal" in why_not_cacheable(encoder(layers, TokenEmbedding(3, WIDTH), TokenReadout(WIDTH, 3)))


def test_pieces_need_times_and_equal_masses():
    points, integral = torch.zeros(1, 2, WIDTH), CachedIntegral(KVCache())
    for cloud in (Cloud(points), Cloud(points, torch.ones(1, 2), torch.arange(2.0)[None])):
        with pytest.raises(ValueError, match="weigh alike"):
            attention(integral=integral).bind(Binding(cloud))
    cloud, forth = Cloud(points, positions=torch.arange(2.0)[None]), attention(integral=integral, causal=False)
    theta = Constant(forth.spec(WIDTH))(0.0)
    with pytest.raises(ValueError, match="see later ones"):
        forth.bind(Binding(cloud)).velocity(theta, cloud)


def test_a_kept_field_is_evaluated_once_at_each_depth():
    asked = []
    inner = Expansion(FeedForward(4).spec(3), Legendre(2))
    inner.register_forward_hook(lambda module, inputs, output: asked.append(inputs[0]))
    field = MemoisedField(inner)
    for z in (0.25, 0.5, 0.25, 0.5):
        assert torch.equal(field(z).w1, inner(z).w1)
    assert asked == [0.25, 0.25, 0.5, 0.5, 0.25, 0.5] and field(0.25) is field(0.25)
    assert field.breaks == inner.breaks and field.reach == inner.reach and not field(0.5).w1.requires_grad
    assert field(torch.tensor([0.25, 0.5])).w1.shape[0] == 2
    assert field.parameter_spaces().keys() == dict(field.named_parameters()).keys()
    assert arguments_of(field) == {"inner": inner}
