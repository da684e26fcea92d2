"""Wrong input is refused with the name of the argument, its value and a cure."""

import math

import pytest
import torch

import continua
from continua.fields import Constant, PiecewiseConstant
from continua.model import (
    CloudEmbedding,
    ContinuousTransformer,
    EncoderDecoder,
    Flow,
    Layers,
    LearnedPositions,
    MeanReadout,
    NormReadout,
    Part,
    SinusoidalPositions,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
    bert,
    encoder,
    gpt,
)
from continua.operators import Attention, FeedForward
from continua.solve import Adaptive, DormandPrince, PerSequence, Solver
from continua.spaces import Cloud
from models import adaptive_model
from parity import run
from registries import LONGEST, VOCABULARY, all_presets

LAYERS = Layers(2, width=8, heads=2)


def default(**changed):
    sizes = {"width": 8, "outputs": 5, "vocabulary": VOCABULARY, "heads": 2} | changed
    return adaptive_model(**sizes)


@pytest.mark.parametrize("name", all_presets)
@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**6])
def test_unknown_tokens(name, token):
    tokens = torch.zeros(2, 4, dtype=torch.long)
    tokens[1, 2] = token
    with pytest.raises(ValueError, match=rf"tokens\[1, 2\] = {token}: there is no such.*from 0 to {VOCABULARY - 1}"):
        run(all_presets[name](LAYERS), tokens)


@pytest.mark.parametrize("name", all_presets)
def test_sequences_beyond_the_table_of_positions(name):
    tokens = torch.zeros(2, LONGEST + 1, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"positions\[0, {LONGEST}\] = {LONGEST}: .*from 0 to {LONGEST - 1}.*Shorten"):
        run(all_presets[name](LAYERS), tokens)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(4, dtype=torch.long), r"tokens = \(4,\): .*tokens.unsqueeze\(0\)"),
        (torch.zeros(2, 0, dtype=torch.long), r"tokens = \(2, 0\): "),
        (torch.zeros(2, 3, 4, dtype=torch.long), r"tokens = \(2, 3, 4\): "),
        (torch.zeros(2, 4), r"tokens = torch.float32: .*tokens.long\(\)"),
        (torch.zeros(2, 4, dtype=torch.bool), r"tokens = torch.bool: "),
    ],
    ids=str,
)
def test_tokens_of_another_shape_or_dtype(tokens, message):
    with pytest.raises(ValueError, match=message):
        default()(tokens)


def test_masks_and_times_of_another_shape_or_dtype():
    model, tokens = default(), torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"present = \(2, 3\): .*shape \(2, 4\)"):
        model(tokens, present=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"present = torch.int64: .*present.bool\(\)"):
        model(tokens, present=torch.ones(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"times = torch.bool: this is a mask.*Pass the mask as present="):
        model(tokens, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"times = \(4,\): .*shape \(2, 4\)"):
        model(tokens, times=torch.arange(4.0))
    with pytest.raises(ValueError, match=r"times = torch.float64: the model works in torch.float32"):
        model(tokens, times=torch.arange(4.0, dtype=torch.float64).expand(2, 4))
    with pytest.raises(ValueError, match=r"times\[0, 1\] = 1.0: .*Sort.*times\.argsort"):
        model(tokens, times=torch.tensor([[2.0, 1.0, 3.0, 4.0]]).expand(2, 4))
    with pytest.raises(ValueError, match=r"present\[1\] = .*no observed token.*leave the sequence out"):
        model(tokens, present=torch.tensor([[True] * 4, [False] * 4]))
    learned = TokenEmbedding(5, 8, LearnedPositions(4, 8))
    with pytest.raises(ValueError, match=r"times\[0, 1\] = 0.5: .*whole numbers only. Use SinusoidalPositions"):
        learned(tokens, times=torch.tensor([[0.0, 0.5, 1.0, 2.0]]).expand(2, 4))
    with pytest.raises(ValueError, match=r"positions\[0, 0\] = -1: the table reaches from 0 to 3"):
        learned(tokens, times=torch.tensor([[-1.0, 0.0, 1.0, 2.0]]).expand(2, 4))


def test_signals_of_another_shape_or_dtype():
    model = default(vocabulary=None, features=3)
    with pytest.raises(ValueError, match=r"values = \(2, 5, 4\): .*\(batch, tokens, 3\)"):
        model(torch.randn(2, 5, 4))
    with pytest.raises(ValueError, match=r"values = \(5, 3\): .*\(batch, tokens, 3\).*values\.unsqueeze\(0\)"):
        model(torch.randn(5, 3))
    with pytest.raises(ValueError, match=r"values = \(2, 3, 5\): .*pass values\.transpose\(1, 2\)"):
        model(torch.randn(2, 3, 5))
    with pytest.raises(ValueError, match=r"values = \(2, 0, 3\): there are no tokens"):
        model(torch.randn(2, 0, 3))
    with pytest.raises(ValueError, match=r"values = \(2, 5\): .*\(batch, tokens, 1\).*values\.unsqueeze\(-1\)"):
        default(vocabulary=None, features=1)(torch.randn(2, 5))
    with pytest.raises(ValueError, match=r"values = torch.float64: .*values.to\(torch.float32\)"):
        model(torch.randn(2, 5, 3, dtype=torch.float64))
    values = torch.randn(2, 5, 3)
    values[1, 2, 0] = math.nan
    with pytest.raises(ValueError, match=r"values\[1, 2, 0\] = nan: .*Leave the sample out"):
        model(values)


def test_times_are_named_as_they_were_passed():
    """In the unit of the caller, whatever clock the model has, and by the word of the README."""
    model = continua.transformer(width=8, outputs=2, features=1, time=continua.TokenTime(1000.0, 2000.0))
    values, times = torch.randn(1, 3, 1), torch.tensor([[1000.0, 1500.0, 1200.0]])
    with pytest.raises(ValueError, match=r"times\[0, 2\] = 1200\.0: it comes after a token at 1500\.0.*Sort"):
        model(values, times=times)
    with pytest.raises(ValueError, match=r"times\[0, 0\] = nan: .*finite time.*false in present"):
        model(values, torch.nan * times)
    with pytest.raises(ValueError, match=r"times\[0\] = .*all tokens share one time"):
        model(values, 0 * times + 1100.0)
    with pytest.raises(ValueError, match=r"times = \(1, 2\): "):
        model(values, times[:, :2])


def test_clouds_of_another_width():
    model = encoder(LAYERS, CloudEmbedding(8), NormReadout(8))
    with pytest.raises(ValueError, match=r"cloud = \(2, 5, 7\): .*\(batch, tokens, 8\)"):
        model(Cloud(torch.randn(2, 5, 7)))
    with pytest.raises(ValueError, match=r"cloud = 'list': this is no Cloud. Pass Cloud"):
        model([[0.0]])
    points = torch.randn(2, 5, 8)
    assert torch.equal(model(points), model(Cloud(points)))  # plain points are a cloud on the counting measure


# --- models that do not fit together


def test_input_that_is_not_decided():
    with pytest.raises(
        ValueError, match=r"features = 3: with vocabulary = 11 the input is not decided.*one of the two"
    ):
        default(features=3)
    with pytest.raises(ValueError, match=r"features = None: with vocabulary = None"):
        default(vocabulary=None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, r"heads = 3: the width = 8 is not divisible by it. Pass one of 1, 2, 4, 8"),
        ({"heads": 0}, r"heads = 0: "),
        ({"width": 7}, r"width = 7: sines and cosines come in pairs.*Pass 6 or 8"),
        ({"width": 0}, r"width = 0: .*Pass width >= 2"),
        ({"outputs": 0}, r"outputs = 0: .*Pass outputs >= 1"),
        ({"vocabulary": 0}, r"vocabulary = 0: .*Pass vocabulary >= 1"),
        ({"vocabulary": None, "features": 0}, r"features = 0: .*Pass features >= 1"),
    ],
    ids=str,
)
def test_sizes_of_the_default_model(changed, message):
    with pytest.raises(ValueError, match=message):
        default(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, r"heads = 3: the width = 8 is not divisible by it. Pass one of 1, 2, 4, 8"),
        ({"heads": 0}, r"heads = 0: "),
        ({"count": 0}, r"count = 0: .*Pass count >= 1"),
        ({"width": -8}, r"width = -8: "),
        ({"hidden": 0}, r"hidden = 0: "),
        ({"dropout": 1.0}, r"dropout = 1.0: .*0 <= dropout < 1"),
        ({"dropout": -0.1}, r"dropout = -0.1: "),
    ],
    ids=str,
)
def test_sizes_of_layers(changed, message):
    with pytest.raises(ValueError, match=message):
        Layers(**({"count": 2, "width": 8, "heads": 2} | changed))


def test_parts_of_different_width():
    with pytest.raises(ValueError, match=r"embedding = 6: its width is not that of the layers, 8.*width=8"):
        gpt(LAYERS, CloudEmbedding(6), NormReadout(8))
    with pytest.raises(ValueError, match=r"readout = 6: the embedding has width 8.*width=8"):
        bert(LAYERS, CloudEmbedding(8), NormReadout(6))
    with pytest.raises(ValueError, match=r"code = 6: its width is not that of the tokens, 8"):
        TokenEmbedding(5, 8, LearnedPositions(4, 6))
    with pytest.raises(ValueError, match=r"code = 6: "):
        VectorEmbedding(5, 8, SinusoidalPositions(6))
    reader = encoder(LAYERS, CloudEmbedding(8), NormReadout(8))
    writer = encoder(Layers(2, width=4, heads=2), CloudEmbedding(4), NormReadout(4))
    with pytest.raises(ValueError, match=r"encoder = 8: the decoder's tokens have width 4"):
        EncoderDecoder(reader, writer)


def test_fields_for_another_operator_or_width():
    operator = FeedForward(6)
    narrow = Flow([Part(operator, Constant(operator.spec(4)))])
    message = r"flow.parts\[0\].w1 = \(6, 4\): on tokens of width 8 .*\(6, 8\).*operator.spec\(8\)"
    with pytest.raises(ValueError, match=message):
        ContinuousTransformer(CloudEmbedding(8), narrow, NormReadout(8))
    other = Flow([Part(operator, Constant(Attention(2, 4).spec(8)))])
    with pytest.raises(ValueError, match=r"flow.parts\[0\].w1 = None: "):
        ContinuousTransformer(CloudEmbedding(8), other, NormReadout(8))


def test_flows_that_are_none():
    operator = FeedForward(6)
    with pytest.raises(ValueError, match=r"parts = \[\]: a flow needs at least one part"):
        Flow([])
    with pytest.raises(ValueError, match=r"depth = 0.0: .*Pass depth > 0"):
        Flow([Part(operator, Constant(operator.spec(8)))], 0.0)
    with pytest.raises(ValueError, match=r"parts\[0\].field.breaks = \(1.0, 2.0\): it jumps outside \(0, 1.5\)"):
        Flow([Part(operator, PiecewiseConstant.layers(operator.spec(8), 3))], 1.5)


def test_readouts_and_embeddings_of_no_size():
    for build in (TokenReadout, MeanReadout):
        with pytest.raises(ValueError, match=r"outputs = 0: "):
            build(8, 0)
    with pytest.raises(ValueError, match=r"length = 0: "):
        LearnedPositions(0, 8)
    with pytest.raises(ValueError, match=r"slowest = 2.0: .*0 < slowest <= fastest"):
        SinusoidalPositions(8, fastest=1.0, slowest=2.0)


# --- solves that do not fit the flow


def test_a_decoder_without_memory():
    decoder = all_presets["encoder_decoder"](LAYERS).decoder
    with pytest.raises(ValueError, match=r"encoded = None: .*encoded=cloud"):
        decoder(torch.zeros(2, 4, dtype=torch.long))


def test_a_grid_that_ends_elsewhere():
    with pytest.raises(ValueError, match=r"depths = \(0.0, 0.7\): .*from 0.0 to 1.0"):
        default().at(grid=[0.0, 0.7])(torch.zeros(2, 4, dtype=torch.long))


def test_splitting_has_no_error_to_adapt_to():
    model = gpt(LAYERS, CloudEmbedding(8), NormReadout(8))
    with pytest.raises(ValueError, match=r"stepper = .*no error estimate"):
        model.at(solver=Solver(model.solver.stepper, Adaptive()))


def test_masks_of_layers_need_one_depth_for_all_sequences():
    layers = Layers(2, width=8, heads=2, dropout=0.1)
    model = gpt(layers, CloudEmbedding(8), NormReadout(8)).at(solver=Solver(DormandPrince(), PerSequence()))
    cloud = Cloud(torch.randn(2, 4, 8))
    assert model.eval()(cloud).shape == (2, 4, 8)
    with pytest.raises(ValueError, match=r"controller = 'PerSequence': .*Use Adaptive\(\) or Fixed"):
        model.train()(cloud)
    assert model.at(solver=Solver(DormandPrince(), Adaptive()))(cloud).shape == (2, 4, 8)


def test_an_encoder_whose_outputs_do_not_fit_the_decoder_is_refused():
    def with_readout(readout):
        operator = FeedForward(4)
        return ContinuousTransformer(CloudEmbedding(8), Flow([Part(operator, Constant(operator.spec(8)))]), readout)

    decoder = with_readout(TokenReadout(8, 3))
    with pytest.raises(ValueError, match=r"encoder = 3: the decoder's tokens have width 8\. .*NormReadout\(width\)"):
        EncoderDecoder(with_readout(TokenReadout(8, 3)), decoder)
    with pytest.raises(ValueError, match=r"encoder = 'MeanReadout': it gives one output per sequence"):
        EncoderDecoder(with_readout(MeanReadout(8, 8)), decoder)
    EncoderDecoder(with_readout(TokenReadout(8, 8)), decoder)


def test_times_that_all_sequences_share_are_met_with_the_way_to_share_them():
    model = continua.transformer(width=8, outputs=2, features=1, axis=1, heads=2, depth=1.0)
    values, times = torch.randn(3, 5, 1), torch.linspace(0.0, 1.0, 5)
    with pytest.raises(ValueError, match=r"shape \(3, 5\), times\.expand\(3, -1\) if all sequences share them\."):
        model(values, times)
    result = model(values, times.expand(3, -1), full=True)
    assert repr(result).startswith("Result(output of shape (3, 2), Solution(x of shape (3, 5, 8)")
