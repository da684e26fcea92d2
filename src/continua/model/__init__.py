"""Floor 3: the model - embedding, flow, readout, and the standard networks as special cases."""

from continua.model.citation import citation
from continua.model.embedding import AbstractEmbedding, Embedded, TokenEmbedding, VectorEmbedding
from continua.model.encoder_decoder import EncoderDecoder
from continua.model.export import to_torch
from continua.model.flow import BoundFlow, Flow, Part, Rate
from continua.model.functions import Analysed, Synthesised, axis_of
from continua.model.interpolated_stem import InterpolatedStem, interpolant
from continua.model.layers import Layers
from continua.model.lifted import AbstractLifted
from continua.model.literature import LITERATURE
from continua.model.normed_embedding import NormedEmbedding, ProjectedEmbedding
from continua.model.positions import AbstractPositionCode, FourierPositions, LearnedPositions, SinusoidalPositions
from continua.model.presets import bert, decoder, encoder, encoder_decoder, gpt, macaron, parallel, sphere
from continua.model.profile import AbstractProfile, BasisProfile, LinearProfile
from continua.model.reading import Reading, unreadable
from continua.model.readout import AbstractReadout, MeanReadout, Normalised, TokenReadout
from continua.model.stem import AbstractStem, LocalStem, Stemmed
from continua.model.storage import decode, encode, load, save
from continua.model.torch_layers import activation_of, attention_theta, feedforward_theta, from_torch, norm_theta
from continua.model.transformer import ContinuousTransformer

__all__ = [
    "AbstractEmbedding", "AbstractLifted", "AbstractPositionCode", "AbstractProfile", "AbstractReadout",
    "AbstractStem", "Analysed", "BasisProfile", "BoundFlow", "ContinuousTransformer", "Embedded", "EncoderDecoder",
    "Flow", "FourierPositions", "InterpolatedStem", "LITERATURE", "Layers", "LearnedPositions", "LinearProfile",
    "LocalStem", "MeanReadout", "Normalised", "NormedEmbedding", "Part", "ProjectedEmbedding", "Rate", "Reading",
    "SinusoidalPositions", "Stemmed", "Synthesised", "TokenEmbedding", "TokenReadout", "VectorEmbedding",
    "activation_of", "attention_theta", "axis_of", "bert", "citation", "decode", "decoder", "encode", "encoder",
    "encoder_decoder", "feedforward_theta", "from_torch", "gpt", "interpolant", "load", "macaron", "norm_theta",
    "parallel", "save", "sphere", "to_torch", "unreadable",
]  # fmt: skip
