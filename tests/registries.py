"""What the library offers, one list for each kind: joining a list means facing every law tested on it."""

import dataclasses
from collections.abc import Callable

import torch

from continua.fields import (
    AbstractField,
    Constant,
    ContinuousHeads,
    Expansion,
    HeadHypernetwork,
    Hypernetwork,
    PiecewiseConstant,
)
from continua.model import (
    ContinuousTransformer,
    EncoderDecoder,
    Layers,
    LearnedPositions,
    NormedEmbedding,
    NormReadout,
    TokenEmbedding,
    TokenReadout,
    bert,
    encoder_decoder,
    gpt,
    macaron,
    parallel,
    sphere,
)
from continua.operators import (
    AbstractOperator,
    Activation,
    Attention,
    Convolution,
    Cross,
    Damping,
    Dense,
    Dropout,
    Exact,
    FeedForward,
    LayerNorm,
    PostNorm,
    PreNorm,
    RMSNorm,
    Rotary,
    Spectral,
    SpectrallyNormed,
    Sum,
    Theta,
    Unnormalised,
    draw_theta,
    map_leaves,
)
from continua.solve import (
    RK4,
    Adaptive,
    Backsolve,
    BogackiShampine,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    Heun,
    LieTrotter,
    PerSequence,
    Projected,
    Strang,
    Tsitouras,
)
from continua.solve import Midpoint as MidpointStep
from continua.spaces import (
    Axis,
    BackwardRectangle,
    BSpline,
    CausalTrapezoid,
    CentredSphere,
    Chebyshev,
    ClenshawCurtis,
    Cosine,
    Counting,
    FlatSpace,
    Fourier,
    GaussLegendre,
    GeneratedSpace,
    Legendre,
    MidpointRule,
    PlateauBasis,
    ScaledBasis,
    SimplexSpace,
    SpectralSpace,
    Sphere,
    StiefelSpace,
    Trapezoid,
    Uniform,
)

all_rules = [
    GaussLegendre(),
    ClenshawCurtis(),
    MidpointRule(),
    Trapezoid(),
    Uniform(),
    Counting(),
    BackwardRectangle(),
    CausalTrapezoid(),
]

all_manifolds = [
    Sphere(),
    Sphere(radius=2.5),
    CentredSphere(),
    CentredSphere(radius=0.7),
]

all_parameter_spaces = {
    FlatSpace(0): (3,),
    FlatSpace(1): (2, 3),
    FlatSpace(2): (2, 4, 3),
    SpectralSpace(): (2, 2, 3, 4),
    SpectralSpace(paired=True): (2, 2, 3, 4),
    GeneratedSpace(2): (4, 3),
    SimplexSpace(): (2, 5),
    SimplexSpace(-2): (5, 2),
    StiefelSpace(): (2, 5, 3),
    StiefelSpace(paired=True): (3, 2, 3, 4),
}
"""Where parameters live, with the shape of one."""

all_bases = [
    Legendre(1),
    Legendre(8),
    Chebyshev(1),
    Chebyshev(8),
    Cosine(1),
    Cosine(8),
    ScaledBasis(Legendre(5), 0.3),
    PlateauBasis(Cosine(5), 4),
    Fourier(1),
    Fourier(8),
    BSpline(1, 0),
    BSpline(5, 0),
    BSpline(5, 1),
    BSpline(4, 3),
    BSpline(8),
]

EVEN, GAUSS = Axis(3, 2), Axis(3, 2, GaussLegendre())
all_kernels = [
    Dense(),
    Spectral(EVEN, Cosine(2)),
    Spectral(EVEN, Fourier(3)),
    Spectral(GAUSS, Legendre(2)),
    Convolution(EVEN, 1),
    Convolution(EVEN, 1, unitary=True),
    Dense(orthonormal=True),
]
"""For states of width 6: plain vectors, or functions at three nodes with two channels."""


def _shortly(part: object) -> str:
    """The call that builds `part`, without the arguments left at their defaults."""
    if isinstance(part, tuple):
        return "(" + ", ".join(map(_shortly, part)) + ")"
    if not dataclasses.is_dataclass(part):
        return str(part)
    fields = [f for f in dataclasses.fields(part) if getattr(part, f.name) != f.default]
    return f"{type(part).__name__}({', '.join(f'{f.name}={_shortly(getattr(part, f.name))}' for f in fields)})"


@dataclasses.dataclass(frozen=True)
class OperatorCase:
    """An operator with what a law must know of it; `p` are masses of its heads, where they are not all one."""

    operator: AbstractOperator
    p: tuple[float, ...] | None = None
    causal: bool = False

    def __repr__(self) -> str:
        return _shortly(self.operator) + ("" if self.p is None else f", p={self.p}")

    def theta(self, width: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Theta:
        """Parameters from the operator's own law, moved a little: a bias of zero, a gain of one would hide mistakes."""
        theta = map_leaves(
            lambda leaf: leaf.to(dtype) + 0.2 * torch.randn(leaf.shape, generator=generator, dtype=dtype),
            draw_theta(self.operator.spec(width), generator),
        )
        return theta if self.p is None else theta._replace(p=torch.tensor(self.p, dtype=dtype))


all_operators = [
    OperatorCase(Attention(heads=2, key_size=3)),
    OperatorCase(Attention(heads=2, key_size=3, causal=True), causal=True),
    OperatorCase(Attention(heads=2, key_size=3, biased=False)),
    OperatorCase(Attention(heads=2, key_size=3, value_size=5)),
    OperatorCase(Attention(heads=2, key_size=5, value_size=2, causal=True), causal=True),
    OperatorCase(Attention(heads=2, key_size=3, beta=2.5)),
    OperatorCase(Attention(heads=2, key_size=3, beta=-1.5, causal=True), causal=True),
    OperatorCase(Attention(heads=3, key_size=2), p=(0.5, 0.2, 0.3)),
    OperatorCase(Attention(heads=2, key_size=3, integral=Exact(materialised=True))),
    OperatorCase(Attention(heads=2, key_size=4, rotary=Rotary())),
    OperatorCase(Attention(heads=2, key_size=4, causal=True, rotary=Rotary(3.0, 0.1)), causal=True),
    OperatorCase(Attention(heads=3, key_size=2, head_masses=True)),
    OperatorCase(Attention(heads=2, key_size=3, value_size=2, head_masses=True, kernel=Spectral(EVEN, Cosine(2)))),
    OperatorCase(Attention(heads=2, key_size=3, causal=True, kernel=Spectral(GAUSS, Legendre(2))), causal=True),
    OperatorCase(Attention(heads=2, key_size=3, biased=False, kernel=Spectral(EVEN, Fourier(3)))),
    OperatorCase(Attention(heads=2, key_size=2, value_size=3, kernel=Convolution(EVEN, 1))),
    OperatorCase(FeedForward(hidden=7)),
    OperatorCase(FeedForward(hidden=4, kernel=Spectral(GAUSS, Legendre(2)))),
    OperatorCase(FeedForward(hidden=4, biased=False, kernel=Convolution(EVEN, 1))),
    OperatorCase(FeedForward(hidden=7, phi1=Activation.TANH, phi2=Activation.SILU, biased=False)),
    OperatorCase(Damping(gamma=0.7)),
    OperatorCase(SpectrallyNormed(PreNorm(LayerNorm(), Attention(heads=2, key_size=3)), limit=0.5)),
    OperatorCase(SpectrallyNormed(FeedForward(hidden=4, kernel=Spectral(GAUSS, Legendre(2))), limit=0.7)),
    OperatorCase(PreNorm(LayerNorm(), Attention(heads=2, key_size=3))),
    OperatorCase(PreNorm(LayerNorm(biased=False), Attention(heads=2, key_size=3, causal=True)), causal=True),
    OperatorCase(PreNorm(LayerNorm(affine=False), FeedForward(hidden=7))),
    OperatorCase(PreNorm(RMSNorm(), FeedForward(hidden=7))),
    OperatorCase(PreNorm(RMSNorm(affine=False), Attention(heads=2, key_size=3))),
    OperatorCase(PreNorm(LayerNorm(axis=GAUSS), FeedForward(hidden=4, kernel=Spectral(GAUSS, Legendre(2))))),
    OperatorCase(PostNorm(RMSNorm(axis=GAUSS), Attention(heads=2, key_size=3, kernel=Spectral(GAUSS, Legendre(2))))),
    OperatorCase(PreNorm(Unnormalised(), FeedForward(hidden=7))),
    OperatorCase(PostNorm(LayerNorm(), Attention(heads=2, key_size=3))),
    OperatorCase(PostNorm(RMSNorm(), FeedForward(hidden=7))),
    OperatorCase(Sum((Attention(heads=2, key_size=3), FeedForward(hidden=7), Damping(gamma=0.1)))),
    OperatorCase(Cross(Attention(heads=2, key_size=3))),
    OperatorCase(Cross(Attention(heads=2, key_size=3, causal=True)), causal=True),
    OperatorCase(PreNorm(LayerNorm(), Cross(Attention(heads=2, key_size=3)))),
    OperatorCase(Dropout(Attention(heads=2, key_size=3), rate=0.3)),
    OperatorCase(PostNorm(LayerNorm(), Dropout(FeedForward(hidden=7), rate=0.3))),
]

FieldMaker = Callable[[Theta, torch.Generator], AbstractField]
"""A field from the specification of any operator, on depths in [0, 3]."""

all_fields: dict[str, FieldMaker] = {
    "Constant": Constant,
    "PiecewiseConstant": lambda spec, generator: PiecewiseConstant(spec, (0.0, 0.5, 2.0, 3.0), generator),
    "PiecewiseConstant.layers": lambda spec, generator: PiecewiseConstant.layers(spec, 3, generator),
    "Expansion(Legendre)": lambda spec, generator: Expansion(spec, Legendre(4), 3.0, generator),
    "Expansion(Chebyshev)": lambda spec, generator: Expansion(spec, Chebyshev(3), 3.0, generator),
    "Expansion(Cosine)": lambda spec, generator: Expansion(spec, Cosine(5), 3.0, generator),
    "Expansion(Fourier)": lambda spec, generator: Expansion(spec, Fourier(5), 3.0, generator),
    "Expansion(BSpline, steps)": lambda spec, generator: Expansion(spec, BSpline(4, 0), 3.0, generator),
    "Expansion(BSpline, linear)": lambda spec, generator: Expansion(spec, BSpline(4, 1), 3.0, generator),
    "Expansion(BSpline, cubic)": lambda spec, generator: Expansion(spec, BSpline(6), 3.0, generator),
    "Hypernetwork": lambda spec, generator: Hypernetwork(spec, 3.0, 2, 6, generator=generator),
    "Hypernetwork(rank=1)": lambda spec, generator: Hypernetwork(spec, 3.0, 2, 6, rank=1, generator=generator),
}

all_head_fields: dict[str, FieldMaker] = {
    "ContinuousHeads": lambda spec, generator: ContinuousHeads(spec, 3.0, generator=generator),
    "ContinuousHeads(steps)": lambda spec, generator: ContinuousHeads(
        spec, 3.0, over_z=BSpline(3, 0), degree=1, generator=generator
    ),
    "ContinuousHeads(Cosine)": lambda spec, generator: ContinuousHeads(
        spec, 3.0, over_z=Cosine(3), density_over_z=BSpline(3, 0), generator=generator
    ),
    "HeadHypernetwork": lambda spec, generator: HeadHypernetwork(spec, 3.0, 2, 6, generator=generator),
    "HeadHypernetwork(rank=1)": lambda spec, generator: HeadHypernetwork(spec, 3.0, 2, 6, 1, generator=generator),
}
"""Fields for operators whose heads are a measure, and no others."""

VOCABULARY, LONGEST = 11, 12
PresetMaker = Callable[[Layers], ContinuousTransformer | EncoderDecoder]
"""A standard network that reads up to `LONGEST` tokens of a `VOCABULARY`."""


def _embedding(layers: Layers) -> TokenEmbedding:
    return TokenEmbedding(VOCABULARY, layers.width, LearnedPositions(LONGEST, layers.width))


def _readout(layers: Layers) -> TokenReadout:
    return TokenReadout(layers.width, VOCABULARY)


def _gpt_tied(layers: Layers) -> ContinuousTransformer:
    embedding = _embedding(layers)
    return gpt(layers, embedding, TokenReadout.from_embedding(embedding))


def _both(layers: Layers, norm_first: bool) -> EncoderDecoder:
    longer = dataclasses.replace(layers, count=layers.count + 1)
    embeddings = _embedding(layers), _embedding(layers)
    return encoder_decoder((layers, longer), embeddings, _readout(layers), norm_first=norm_first)


all_presets: dict[str, PresetMaker] = {
    "gpt": lambda layers: gpt(layers, _embedding(layers), _readout(layers)),
    "gpt, tied": _gpt_tied,
    "gpt, RMSNorm": lambda layers: gpt(
        dataclasses.replace(layers, norm=RMSNorm()), _embedding(layers), _readout(layers)
    ),
    "bert": lambda layers: bert(layers, NormedEmbedding(_embedding(layers)), NormReadout(layers.width, Unnormalised())),
    "parallel": lambda layers: parallel(layers, _embedding(layers), _readout(layers)),
    "parallel, two norms": lambda layers: parallel(layers, _embedding(layers), _readout(layers), shared=False),
    "macaron": lambda layers: macaron(layers, _embedding(layers), _readout(layers)),
    "sphere": lambda layers: sphere(layers, _embedding(layers), _readout(layers)),
    "sphere, together": lambda layers: sphere(layers, _embedding(layers), _readout(layers), Sphere(), together=True),
    "encoder_decoder": lambda layers: _both(layers, norm_first=False),
    "encoder_decoder, pre-norm": lambda layers: _both(layers, norm_first=True),
}

all_methods = [
    Euler(),
    MidpointStep(),
    Heun(),
    RK4(),
    BogackiShampine(),
    DormandPrince(),
    Tsitouras(),
    LieTrotter(),
    LieTrotter(RK4()),
    Strang(),
    Strang(Euler()),
    Projected(Euler(), Sphere()),
    Projected(RK4(), Sphere()),
    Projected(RK4(), Sphere(), tangent=True),
    Projected(DormandPrince(), Sphere(), tangent=True),
    Projected(Strang(), Sphere(), tangent=True),
]

all_controls = [
    Fixed(5),
    Given((0.0, 0.15, 0.5, 1.0)),
    Adaptive(1e-6, 1e-6),
    PerSequence(1e-6, 1e-6),
]

all_gradients = [
    Checkpointed(),
    Checkpointed(segment=1.0, steps=3),
    Direct(),
    Direct(second_derivatives=True),
    Backsolve(),
]
