"""Floor 3: the model - the one builder, embedding, flow, readout, and the standard networks as special cases."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.model.budget import (
    Loss, Resolution, at_budget, call_loss, choosable_resolutions, fixed_steps, own_nodes, resolutions_of, steps_about,
    time_call,
)  # fmt: skip
from continua.model.builder import transformer
from continua.model.continuum import Depth, EmbeddingAxis, HeadMeasure, HypernetworkField, Stem, TokenTime
from continua.model.citation import LITERATURE, citation
from continua.model.embedding import (
    AbstractEmbedding, AbstractEmbeddingWrapper, CloudEmbedding, NormedEmbedding, ProjectedEmbedding, TokenEmbedding,
    VectorEmbedding,
)  # fmt: skip
from continua.model.flow import Flow, FlowVectorField, Part, Rate
from continua.model.generation import CachedDecoder, Decoding, Window, generate, stream_tokens, why_not_cacheable
from continua.model.positions import (
    AbstractPositionCode, Clock, FourierPositions, LearnedPositions, SinusoidalPositions,
)  # fmt: skip
from continua.model.profile import AbstractProfile, BasisProfile, LinearProfile
from continua.model.setting import Cost, Setting
from continua.model.standard import Layers, bert, decoder, encoder, encoder_decoder, gpt, macaron, parallel, sphere
from continua.model.readout import (
    AbstractLinearReadout, AbstractReadout, AnalysisReadout, MeanReadout, NormReadout, SynthesisEmbedding, TokenReadout,
    flatten_tokens,
)  # fmt: skip
from continua.model.embedding import CellEmbedding
from continua.model.stem import InterpolatedStem, StemEmbedding, interpolate
from continua.model.storage import decode, encode, load, model_files, save
from continua.model.torch_layers import (
    activation_of, attention_theta, feedforward_theta, from_torch, norm_theta, to_torch,
)  # fmt: skip
from continua.model.transformer import ContinuousTransformer, EncoderDecoder, Result, source_and_target

__all__ = [
    "AbstractEmbedding", "AbstractEmbeddingWrapper", "AbstractLinearReadout", "AbstractPositionCode", "AbstractProfile",
    "AbstractReadout", "AnalysisReadout", "BasisProfile", "CachedDecoder", "CellEmbedding", "Clock", "CloudEmbedding",
    "ContinuousTransformer", "Cost", "Decoding", "Depth", "EmbeddingAxis", "EncoderDecoder", "Flow", "FlowVectorField",
    "FourierPositions", "HeadMeasure", "HypernetworkField", "InterpolatedStem", "LITERATURE", "Layers",
    "LearnedPositions", "LinearProfile", "Loss", "MeanReadout", "NormReadout", "NormedEmbedding", "Part",
    "ProjectedEmbedding", "Rate", "Resolution", "Result", "Setting", "SinusoidalPositions", "Stem", "StemEmbedding",
    "SynthesisEmbedding", "TokenEmbedding", "TokenReadout", "TokenTime", "VectorEmbedding", "Window", "activation_of",
    "at_budget", "attention_theta", "bert", "call_loss", "choosable_resolutions", "citation", "decode", "decoder",
    "encode", "encoder", "encoder_decoder", "feedforward_theta", "fixed_steps", "flatten_tokens", "from_torch",
    "generate", "gpt", "interpolate", "load", "macaron", "model_files", "norm_theta", "own_nodes", "parallel",
    "resolutions_of", "save", "source_and_target", "sphere", "steps_about", "stream_tokens", "time_call", "to_torch",
    "transformer", "why_not_cacheable",
]  # fmt: skip
