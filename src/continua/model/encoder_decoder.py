"""An encoder and a decoder that attends to its tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields import parameter_spaces
from continua.model.transformer import ContinuousTransformer
from continua.spaces import AbstractParameterSpace, Cloud


class EncoderDecoder(nn.Module):
    """Two continuous Transformers: the decoder's cross-attention reads the encoder's tokens at its end.

    With piecewise-constant fields and unit steps it is `torch.nn.Transformer`, exactly.
    """

    def __init__(self, encoder: ContinuousTransformer, decoder: ContinuousTransformer) -> None:
        super().__init__()
        if not encoder.readout.per_token:
            why = "it gives one output a sequence, and the decoder reads tokens"
            reject("encoder", type(encoder.readout).__name__, why, "Give the encoder a readout Normalised(width).")
        if encoder.readout.outputs != decoder.embedding.width:
            why = f"the decoder's tokens have width {decoder.embedding.width}"
            cure = "Give the encoder a readout with as many outputs, such as Normalised(width)."
            reject("encoder", encoder.readout.outputs, why, cure)
        self.encoder = encoder
        self.decoder = decoder

    def remember(self, *inputs: Any, generator: torch.Generator | None = None, **named: Any) -> Cloud:
        """The encoder's tokens, read out, on their measure: the memory of the decoder."""
        cloud = self.encoder.embedding(*inputs, **named)
        end = self.encoder.solve(cloud, generator=generator).x
        return cloud.at(self.encoder.readout(cloud.at(end)))

    def forward(self, source: Sequence[Any], target: Sequence[Any], generator: torch.Generator | None = None) -> Tensor:
        """Output for the target, given the source; both are the arguments of their embeddings.

        `model((tokens, None, present), (tokens,))` reads a source with padding, at times that are the index, and a
        target without padding.
        """
        memory = self.remember(*source, generator=generator)
        return self.decoder(*target, memory=memory, generator=generator)

    def at(self, **changed: Any) -> "EncoderDecoder":
        """The same model, parameters shared, with both solves changed: the arguments of `ContinuousTransformer.at`."""
        other = EncoderDecoder(self.encoder.at(**changed), self.decoder.at(**changed))
        other.training = self.training
        return other

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def arguments(self) -> dict[str, Any]:
        """The arguments that build this model anew (its values apart)."""
        return {"encoder": self.encoder, "decoder": self.decoder}
