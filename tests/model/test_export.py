"""A continuous model as a network of layers, run by plain torch modules."""

import dataclasses

import pytest
import torch
from torch import nn

from continua.fields import ContinuousHeads, Expansion, Hypernetwork, PiecewiseConstant
from continua.model import (
    BasisProfile,
    CloudEmbedding,
    ContinuousTransformer,
    Flow,
    Layers,
    LinearProfile,
    MeanReadout,
    NormReadout,
    Part,
    from_torch,
    gpt,
    to_torch,
)
from continua.operators import (
    Activation,
    Attention,
    Damping,
    FeedForward,
    LayerNorm,
    PostNorm,
    PreNorm,
    RMSNorm,
    Unnormalised,
)
from continua.solve import Euler, Fixed, LieTrotter, Solver
from continua.spaces import Chebyshev, Cloud, Legendre

WIDTH, DEPTH = 8, 3.0
ATTENTION, FEEDFORWARD = Attention(2, 4), FeedForward(12)


def model(kind=PreNorm, norm=LayerNorm(), readout=None, profile=None, parts=(ATTENTION, FEEDFORWARD)):
    torch.manual_seed(0)
    operators = [kind(norm, part) for part in parts]
    fields = [Expansion(operators[0].spec(WIDTH), Chebyshev(4), DEPTH)]
    fields += [Hypernetwork(operator.spec(WIDTH), DEPTH) for operator in operators[1:]]
    flow = Flow([Part(o, f) for o, f in zip(operators, fields, strict=True)], DEPTH, profile)
    made = ContinuousTransformer(CloudEmbedding(WIDTH), flow, NormReadout(WIDTH, norm) if readout is None else readout)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return made.eval()


def stepped(made: ContinuousTransformer, layers: int) -> ContinuousTransformer:
    return made.to_layers(layers).at(solver=Solver(LieTrotter(Euler()), Fixed(layers)))


def tokens(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    present = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    return torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype), present


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["32", "64"])
@pytest.mark.parametrize("layers", [1, 3, 8])
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"readout": NormReadout(WIDTH, Unnormalised())},
        {"readout": MeanReadout(WIDTH, 3)},
        {"profile": LinearProfile(1.0, 0.2, DEPTH)},
        {"profile": BasisProfile(Legendre(3), DEPTH)},
        {
            "norm": LayerNorm(1e-3, biased=False),
            "parts": (dataclasses.replace(ATTENTION, biased=False), FeedForward(12, Activation.RELU, biased=False)),
        },
    ],
    ids=["last norm", "no norm", "readout apart", "linear profile", "trained profile", "unbiased relu"],
)
def test_a_refined_model_is_a_torch_encoder(case, layers, dtype, close):
    made = model(**case).to(dtype)
    exported, (points, present) = to_torch(made, layers), tokens(dtype)
    assert type(exported) is nn.TransformerEncoder and len(exported.layers) == layers
    cloud = Cloud(points, present.to(dtype))
    network = stepped(made, layers)
    end = network(cloud, full=True).solution.x if isinstance(made.readout, MeanReadout) else network(cloud)
    found = exported(points, src_key_padding_mask=~present)
    torch.testing.assert_close(found[present], end[present], rtol=close, atol=close * float(end.detach().abs().max()))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["32", "64"])
def test_a_post_norm_model_is_exported_with_unit_steps(dtype, close):
    made = model(PostNorm).to(dtype)
    points, _ = tokens(dtype)
    torch.testing.assert_close(
        to_torch(made, 3)(points), stepped(made, 3)(Cloud(points)), rtol=10 * close, atol=10 * close
    )
    with pytest.raises(
        ValueError, match=r"layers = 4: a post-norm layer takes a step of 1, not of 0\.75\. Pass layers=3"
    ):
        to_torch(made, 4)
    with pytest.raises(ValueError, match=r"layers = 3: .*no profile"):
        to_torch(model(PostNorm, profile=LinearProfile(1.0, 0.0, DEPTH)), 3)


def test_a_causal_model_is_exported_for_a_causal_mask():
    made = model(parts=(dataclasses.replace(ATTENTION, causal=True), FEEDFORWARD)).double()
    points, _ = tokens(torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    found = to_torch(made, 3)(points, mask=mask, is_causal=True)
    torch.testing.assert_close(found, stepped(made, 3)(Cloud(points)), rtol=1e-12, atol=1e-12)


def test_there_and_back():
    made, (points, _) = model().double(), tokens(torch.float64)
    back = from_torch(to_torch(made, 4))
    assert all(isinstance(part.field, PiecewiseConstant) for part in back.flow.parts)
    torch.testing.assert_close(back(Cloud(points)), stepped(made, 4)(Cloud(points)), rtol=1e-12, atol=1e-12)


def test_more_layers_come_nearer_to_the_flow():
    made, (points, _) = model().double(), tokens(torch.float64)
    flow = made.at(steps=24)(Cloud(points)).detach()
    errors = [float((to_torch(made, n)(points).detach() - flow).abs().max()) for n in (8, 16, 32)]
    assert errors[1] < 0.65 * errors[0] and errors[2] < 0.65 * errors[1]


def refused() -> dict[str, tuple[ContinuousTransformer, str]]:
    measured = PreNorm(LayerNorm(), Attention(2, 4, head_masses=True))
    heads = Part(measured, ContinuousHeads(measured.spec(WIDTH), DEPTH))
    rest = PreNorm(LayerNorm(), FEEDFORWARD)
    parts = [heads, Part(rest, Expansion(rest.spec(WIDTH), Legendre(2), DEPTH))]
    measured_model = ContinuousTransformer(CloudEmbedding(WIDTH), Flow(parts, DEPTH), NormReadout(WIDTH))
    wide = NormReadout(WIDTH, RMSNorm())
    return {
        "order": (model(parts=(FEEDFORWARD, ATTENTION)), r"model = .*no layer of this make"),
        "damping": (model(parts=(ATTENTION, FEEDFORWARD, Damping(0.1))), r"model = .*no layer of this make"),
        "dropout": (
            gpt(Layers(2, 8, 2, dropout=0.1), CloudEmbedding(8), NormReadout(8)),
            r"Dropout.*no layer of this make",
        ),
        "norm": (model(norm=RMSNorm()), r"norm = RMSNorm.*LayerNorm with a gain"),
        "last norm": (model(readout=wide), r"readout = RMSNorm.*ends with a LayerNorm or with none"),
        "beta": (model(parts=(Attention(2, 4, beta=1.0), FEEDFORWARD)), r"attention = .*beta = 1/sqrt\(key_size\)"),
        "value": (model(parts=(Attention(2, 4, value_size=3), FEEDFORWARD)), r"attention = .*value_size = key_size"),
        "heads": (
            model(parts=(Attention(2, 3), FEEDFORWARD)),
            r"attention = \(2, 3\): torch's heads share the width 8",
        ),
        "masses": (measured_model, r"attention = .*counted heads"),
        "activation": (model(parts=(ATTENTION, FeedForward(12, Activation.TANH))), r"feedforward = .*GELU or RELU"),
        "biases": (model(parts=(ATTENTION, FeedForward(12, biased=False))), r"feedforward = .*biases in attention and"),
    }


@pytest.mark.parametrize("name", refused())
def test_what_torch_has_no_layer_for_is_refused(name):
    made, message = refused()[name]
    with pytest.raises(ValueError, match=message):
        to_torch(made, 3)


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match=r"layers = 0: .*Pass layers >= 1"):
        to_torch(model(), 0)
