"""The standard networks, exactly: counting measures, fields constant on each layer, dz = 1 and Z = layers.

They are discretisations of flows (docs/mathematics.md, section 3), so each runs with other steps as well:
`model.at(...)` changes how depth is solved and leaves the parameters alone. Dropout acts on the residual branches, and
the gradient is plain autograd (`Direct`) until `at(gradient=...)` says otherwise.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, final

from continua.core.checks import at_least, divides, fraction
from continua.core.errors import reject
from continua.fields import PiecewiseConstant
from continua.model.embedding import AbstractEmbedding, ProjectedEmbedding
from continua.model.flow import Flow, Part
from continua.model.readout import AbstractReadout, NormReadout
from continua.model.transformer import ContinuousTransformer, EncoderDecoder
from continua.operators.attention import Attention
from continua.operators.compose import Cross, Dropout, Sum
from continua.operators.feedforward import Activation, FeedForward
from continua.operators.norms import AbstractNorm, LayerNorm, PostNorm, PreNorm
from continua.operators.operator import AbstractOperator
from continua.solve import AbstractStepper, Direct, Euler, Fixed, LieTrotter, Projected, Solver, Strang
from continua.spaces import AbstractManifold, CentredSphere


@final
@dataclasses.dataclass(frozen=True)
class Layers:
    """`count` layers of one make: the sizes and choices that every standard network has.

    - `width`, `heads`: heads of size width / heads, on the counting measure;
    - `hidden`: inner size of the feed-forward, 4 width by default;
    - `dropout`: rate at which components of a residual branch are dropped in training;
    - `biased`: whether attention and feed-forward have biases;
    - `norm`: of every residual branch, each with parameters of its own.
    """

    count: int
    width: int
    heads: int
    hidden: int | None = None
    activation: Activation = Activation.GELU
    dropout: float = 0.0
    biased: bool = True
    norm: AbstractNorm = LayerNorm()

    def __post_init__(self) -> None:
        at_least(1, count=self.count, width=self.width, heads=self.heads, hidden=self.hidden)
        divides(self.width, "the width", heads=self.heads)
        fraction(all=False, dropout=self.dropout)

    def attention(self, causal: bool = False) -> AbstractOperator:
        return self._with_dropout(Attention(self.heads, self.width // self.heads, causal=causal, biased=self.biased))

    def cross(self) -> AbstractOperator:
        """The attention of a decoder's layer to the encoder's tokens."""
        return self._with_dropout(Cross(Attention(self.heads, self.width // self.heads, biased=self.biased)))

    def feedforward(self) -> AbstractOperator:
        hidden = 4 * self.width if self.hidden is None else self.hidden
        return self._with_dropout(FeedForward(hidden, self.activation, biased=self.biased))

    def part(self, operator: AbstractOperator, pieces: int = 1) -> Part:
        """The operator with parameters of its own in every layer, or in each of `pieces` equal pieces of a layer."""
        edges = [piece / pieces for piece in range(self.count * pieces + 1)]
        return Part(operator, PiecewiseConstant(operator.spec(self.width), edges))

    def _with_dropout(self, operator: AbstractOperator) -> AbstractOperator:
        return Dropout(operator, self.dropout) if self.dropout > 0.0 else operator


_Arguments = ParamSpec("_Arguments")
_Made = TypeVar("_Made")


def _explain_parts(make: Callable[_Arguments, _Made]) -> Callable[_Arguments, _Made]:
    """A call without its parts, or with others, is met with the call as it should be."""
    name, signature = make.__name__, inspect.signature(make)
    built = "Layers(count, width, heads), TokenEmbedding(vocabulary, width), TokenReadout(width, vocabulary)"
    cure = f"Pass built parts: {name}({', '.join([*signature.parameters][:3])}), such as {built}."

    @functools.wraps(make)
    def call(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Made:
        try:
            bound = signature.bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}. {cure}") from None
        if numbers := [part for part, given in bound.items() if type(given) is int]:
            raise TypeError(f"{name}: {numbers[0]} = {bound[numbers[0]]} is no part. {cure}")
        return make(*given, **named)

    return call


@_explain_parts
def gpt(layers: Layers, embedding: AbstractEmbedding, readout: AbstractReadout) -> ContinuousTransformer:
    """Pre-norm, causal, attention before feed-forward: x <- x + A(norm1 x), x <- x + F(norm2 x).

    Lie-Trotter with Euler sub-steps. The readout has the last norm. GPT-2 itself (A. Radford et al., Language models
    are unsupervised multitask learners, 2019):

        layers = Layers(12, width=768, heads=12, activation=Activation.GELU_TANH, dropout=0.1)
        embedding = TokenEmbedding(50257, 768, LearnedPositions(1024, 768))
        model = gpt(layers, embedding, TokenReadout.from_embedding(embedding))
    """
    return encoder(layers, embedding, readout, norm_first=True, causal=True)


@_explain_parts
def bert(layers: Layers, embedding: AbstractEmbedding, readout: AbstractReadout) -> ContinuousTransformer:
    """Post-norm, every token sees every other: x <- norm1(x + A x), x <- norm2(x + F x).

    Lie-Trotter with Euler sub-steps of the parts norm(x + f(x)) - x. BERT itself (J. Devlin et al., 2018) also
    normalises its embedding: `NormedEmbedding(embedding, norm)`, with norm = LayerNorm(1e-12) here and in `Layers`.
    """
    return encoder(layers, embedding, readout, norm_first=False, causal=False)


@_explain_parts
def encoder(
    layers: Layers,
    embedding: AbstractEmbedding,
    readout: AbstractReadout,
    norm_first: bool = False,
    causal: bool = False,
) -> ContinuousTransformer:
    """A stack of attention and feed-forward, equal to `torch.nn.TransformerEncoder`; pre-norm it is that of ViT.

    The torch encoder's last norm is the readout's: `NormReadout(width, norm)`, or `Unnormalised()` for none.
    """
    branches = (layers.attention(causal), layers.feedforward())
    normed = PreNorm if norm_first else PostNorm
    parts = [layers.part(normed(layers.norm, branch)) for branch in branches]
    return _network(layers, embedding, parts, readout, LieTrotter(Euler()))


@_explain_parts
def parallel(
    layers: Layers, embedding: AbstractEmbedding, readout: AbstractReadout, shared: bool = True, causal: bool = True
) -> ContinuousTransformer:
    """Attention and feed-forward side by side: x <- x + A(norm x) + F(norm x), the Euler step of the sum.

    With `shared` both read one norm, as in GPT-J (B. Wang and A. Komatsuzaki, 2021) and PaLM (A. Chowdhery et al.,
    2022); otherwise each has its own, as in GPT-NeoX (S. Black et al., 2022).
    """
    branches = (layers.attention(causal), layers.feedforward())
    parts = [layers.part(PreNorm(layers.norm, f)) for f in ((Sum(branches),) if shared else branches)]
    return _network(layers, embedding, parts, readout, Euler())


@_explain_parts
def macaron(
    layers: Layers, embedding: AbstractEmbedding, readout: AbstractReadout, causal: bool = False
) -> ContinuousTransformer:
    """Attention between two halves: x <- x + F1(norm1 x)/2, x <- x + A(norm2 x), x <- x + F2(norm3 x)/2.

    Strang with Euler sub-steps; the feed-forward field has two pieces in each layer, one for each half-step. With the
    norms before the branches this is the network of Y. Lu et al., Understanding and improving Transformer from a
    multi-particle dynamic system point of view (2019).
    """
    halves = layers.part(PreNorm(layers.norm, layers.feedforward()), pieces=2)
    whole = layers.part(PreNorm(layers.norm, layers.attention(causal)))
    return _network(layers, embedding, [halves, whole], readout, Strang(Euler()))


@_explain_parts
def sphere(
    layers: Layers,
    embedding: AbstractEmbedding,
    readout: AbstractReadout,
    manifold: AbstractManifold = CentredSphere(),
    together: bool = False,
    causal: bool = False,
) -> ContinuousTransformer:
    """Tokens on a sphere P, from the embedding on: x <- P(x + A x), x <- P(x + F x).

    Lie-Trotter with projected Euler sub-steps; with `together`, one projected Euler step of the sum, P(x + A x + F x).
    On `CentredSphere()` it is the post-norm network with norms of gain 1. In the limit of small steps it is the flow of
    the tangential velocity, as in B. Geshkovski et al., A mathematical perspective on Transformers (2023).
    """
    step: AbstractStepper = Projected(Euler(), manifold)
    parts = [layers.part(branch) for branch in (layers.attention(causal), layers.feedforward())]
    start = ProjectedEmbedding(embedding, manifold)
    return _network(layers, start, parts, readout, step if together else LieTrotter(step))


@_explain_parts
def encoder_decoder(
    layers: tuple[Layers, Layers],
    embeddings: tuple[AbstractEmbedding, AbstractEmbedding],
    readout: AbstractReadout,
    norm_first: bool = False,
    causal: bool = True,
) -> EncoderDecoder:
    """The first Transformer, of `torch.nn.Transformer`: layers and embeddings of the encoder, then of the decoder.

    The decoder's layers have a branch between attention and feed-forward that attends to the encoder's tokens after
    their last norm (A. Vaswani et al., Attention is all you need, 2017).
    """
    output = NormReadout(layers[0].width, layers[0].norm)
    reader = encoder(layers[0], embeddings[0], output, norm_first)
    return EncoderDecoder(reader, decoder(layers[1], embeddings[1], readout, norm_first, causal))


@_explain_parts
def decoder(
    layers: Layers,
    embedding: AbstractEmbedding,
    readout: AbstractReadout,
    norm_first: bool = False,
    causal: bool = True,
) -> ContinuousTransformer:
    """A stack of attention, cross-attention and feed-forward, equal to `torch.nn.TransformerDecoder`."""
    branches = (layers.attention(causal), layers.cross(), layers.feedforward())
    normed = PreNorm if norm_first else PostNorm
    parts = [layers.part(normed(layers.norm, branch)) for branch in branches]
    return _network(layers, embedding, parts, readout, LieTrotter(Euler()))


def _network(
    layers: Layers, embedding: AbstractEmbedding, parts: list[Part], readout: AbstractReadout, stepper: AbstractStepper
) -> ContinuousTransformer:
    """Each layer has thickness 1 and one step of `stepper`, dz = 1."""
    if embedding.width != layers.width:
        cure = f"Build both with width={layers.width}."
        reject("embedding", embedding.width, f"its width is not that of the layers, {layers.width}", cure)
    flow, solver = Flow(parts, float(layers.count)), Solver(stepper, Fixed(layers.count))
    return ContinuousTransformer(embedding, flow, readout, solver, Direct())
