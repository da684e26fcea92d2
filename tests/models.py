"""Models that several tests share."""

from continua import (
    Checkpointed,
    ContinuousTransformer,
    Depth,
    DormandPrince,
    Legendre,
    SinusoidalPositions,
    TokenTime,
    transformer,
)


def adaptive_model(
    width: int,
    outputs: int,
    vocabulary: int | None = None,
    features: int | None = None,
    heads: int = 4,
    modes: int = 4,
    causal: bool = False,
) -> ContinuousTransformer:
    """Counted heads and vectors, weights in Legendre modes of depth, Dormand-Prince at 1e-4, checkpointed gradient."""
    code = SinusoidalPositions(width, fastest=1.0 if vocabulary else 64.0, slowest=1e-4 if vocabulary else 0.5)
    depth = Depth(1.0, Legendre(modes), rtol=1e-4, stepper=DormandPrince(), gradient=Checkpointed())
    sizes = {"vocabulary": vocabulary, "features": features, "causal": causal, "heads": heads}
    return transformer(width, outputs, **sizes, axis=1, time=TokenTime(positions=code, stem=None), depth=depth)
