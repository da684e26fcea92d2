"""Reading token after token: a causal model on a fixed grid of depth, its keys and values kept."""

from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.fields.field import MemoisedField
from continua.model.embedding import AbstractEmbedding, TokenEmbedding
from continua.model.flow import Part
from continua.model.lifted import AbstractLifted
from continua.model.normed_embedding import NormedEmbedding, ProjectedEmbedding
from continua.model.transformer import ContinuousTransformer
from continua.operators import CachedIntegral, KVCache, why_not_cacheable, with_integral
from continua.solve import AbstractGridController, Solver
from continua.spaces import Counting


@final
class Reading:
    """A causal model that reads a sequence piece by piece: `read(tokens)` gives the outputs of the new tokens.

    On a fixed grid of depth every evaluation of the velocity at a token depends on that token and, by the keys and
    values of the same evaluation, on those before it. These are kept, so that a new token costs one solve of itself,
    O(tokens) where the whole sequence anew would cost O(tokens^2). The outputs equal `model(all tokens)` at the new
    places up to rounding, in evaluation mode and without a gradient. A model with adaptive steps is refused: its grid
    depends on all tokens, later ones too.
    """

    def __init__(self, model: ContinuousTransformer) -> None:
        why = unreadable(model)
        if why is not None:
            cure = "Call model(tokens) on the whole sequence, or freeze a grid: model.at(steps=8)."
            reject("model", type(model).__name__, why, cure)
        self._past, self._fields = KVCache(), list[MemoisedField]()
        flow = model.flow.changed(self._remembering)
        self._model = ContinuousTransformer(model.embedding, flow, model.readout, model.solver, model.gradient)
        self._model.training = False
        self._length = self._sequences = 0

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return self._length

    def _remembering(self, part: Part) -> Part:
        self._fields.append(MemoisedField(part.field))
        return Part(with_integral(part.operator, CachedIntegral(self._past)), self._fields[-1])

    def forget(self) -> None:
        """Begins a new sequence, with the weights that the model has now."""
        self._past.clear()
        for field in self._fields:
            field.forget()
        self._length = 0

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """The outputs (batch, new, outputs) of the next tokens (batch, new), given all before them.

        A piece that cannot be read, as it holds no such token or its solve fails, ends the sequence: all is forgotten.
        """
        if self._length > 0 and tokens.shape[0] != self._sequences:
            cure = f"Pass tokens of shape ({self._sequences}, new), or begin anew with forget()."
            reject("tokens", tuple(tokens.shape), f"{self._sequences} sequences are being read", cure)
        times = torch.arange(self._length, self._length + tokens.shape[-1], device=tokens.device)
        self._past.begin()
        try:
            output = self._model(tokens, times.expand(tokens.shape))
        except BaseException:  # an interrupt too would leave half of a piece behind
            self.forget()
            raise
        self._length, self._sequences = self._length + tokens.shape[-1], tokens.shape[0]
        return output


def unreadable(model: ContinuousTransformer) -> str | None:
    """Why a model cannot read token after token with what it keeps; `None` where it can."""
    solver = model.solver
    if not (isinstance(solver, Solver) and isinstance(solver.controller, AbstractGridController)):
        return "its grid of depth is not fixed: later tokens change the steps of earlier ones"
    if not _token_by_token(model.embedding):
        return "its embedding does not take whole numbers one by one, each counted once"
    if not model.readout.per_token:
        return "it has one output a sequence"
    operators = (part.operator for part in model.flow.parts if isinstance(part, Part))
    return next((why for operator in operators if (why := why_not_cacheable(operator)) is not None), None)


def _token_by_token(embedding: AbstractEmbedding) -> bool:
    if isinstance(embedding, AbstractLifted):
        return isinstance(embedding, NormedEmbedding | ProjectedEmbedding) and _token_by_token(embedding.inner)
    return isinstance(embedding, TokenEmbedding) and isinstance(embedding.rule, Counting)
