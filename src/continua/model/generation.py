"""Generation: tokens drawn one after the other from a causal model, with a key-value cache on a fixed grid of depth."""

import dataclasses
from collections.abc import Iterator
from typing import final

import torch

from continua.core.arguments import advise
from continua.core.checks import at_least, is_a, not_negative
from continua.core.errors import reject
from continua.core.shapes import Float, Int, Tensor
from continua.fields.field import MemoisedField
from continua.model.embedding import AbstractEmbedding, NormedEmbedding, ProjectedEmbedding, TokenEmbedding
from continua.model.flow import Part
from continua.model.readout import SynthesisEmbedding
from continua.model.transformer import ContinuousTransformer
from continua.operators import CachedIntegral, KVCache, with_integral
from continua.operators import why_not_cacheable as why_not_operator
from continua.solve import AbstractGridController, Solver
from continua.spaces import Counting


@final
class CachedDecoder:
    """A causal model that reads a sequence piece by piece: `decode(tokens)` gives the outputs of the new tokens.

    On a fixed grid of depth every evaluation of the velocity at a token depends on that token and, by the keys and
    values of the same evaluation, on those before it. These are cached, so that a new token costs one solve of itself,
    O(tokens) where the whole sequence anew would cost O(tokens^2). The outputs equal `model(all tokens)` at the new
    places up to rounding, in evaluation mode and without a gradient. A model with adaptive steps is refused: its grid
    depends on all tokens, later ones too.
    """

    def __init__(self, model: ContinuousTransformer) -> None:
        why = why_not_cacheable(model)
        if why is not None:
            cure = "Call model(tokens) on the whole sequence, or freeze a grid: model.at(steps=8)."
            reject("model", type(model).__name__, why, cure)
        self._cache, self._fields = KVCache(), list[MemoisedField]()

        def with_cache(part: Part) -> Part:
            self._fields.append(MemoisedField(part.field))
            return Part(with_integral(part.operator, CachedIntegral(self._cache)), self._fields[-1])

        flow = model.flow.map_parts(with_cache)
        self._model = ContinuousTransformer(model.embedding, flow, model.readout, model.solver, model.gradient)
        self._model.training = False
        self._sequences = 0
        self.length = 0
        """How many tokens were read."""

    def reset(self) -> None:
        """Begins a new sequence, with the parameters that the model has now."""
        self._cache.clear()
        for field in self._fields:
            field.forget()
        self.length = 0

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """The outputs (batch, new, outputs) of the next tokens (batch, new), given all before them.

        A piece that cannot be read, as it holds no such token or its solve fails, ends the sequence: all is forgotten.
        """
        if self.length > 0 and tokens.shape[0] != self._sequences:
            cure = f"Pass tokens of shape ({self._sequences}, new), or begin anew with reset()."
            reject("tokens", tuple(tokens.shape), f"{self._sequences} sequences are being read", cure)
        times = torch.arange(self.length, self.length + tokens.shape[-1], device=tokens.device)
        self._cache.begin()
        try:
            output = self._model(tokens, times.expand(tokens.shape))
        except BaseException:  # an interrupt too would leave half of a piece behind
            self.reset()
            raise
        self.length, self._sequences = self.length + tokens.shape[-1], tokens.shape[0]
        return output


def _innermost(embedding: AbstractEmbedding) -> AbstractEmbedding:
    while isinstance(embedding, NormedEmbedding | ProjectedEmbedding | SynthesisEmbedding):
        embedding = embedding.inner
    return embedding


def why_not_cacheable(model: ContinuousTransformer) -> str | None:
    """Why a model cannot decode token after token with a cache; `None` where it can."""
    solver = model.solver
    if not (isinstance(solver, Solver) and isinstance(solver.controller, AbstractGridController)):
        return "its grid of depth is not fixed: later tokens change the steps of earlier ones"
    embedding = _innermost(model.embedding)
    if not (isinstance(embedding, TokenEmbedding) and isinstance(embedding.rule, Counting)):
        return "its embedding does not take whole numbers one by one, each counted once"
    if not model.readout.per_token:
        return "it has one output per sequence"
    return next((why for part in model.flow.parts if (why := why_not_operator(part.operator)) is not None), None)


@final
@dataclasses.dataclass(frozen=True)
class Decoding:
    """How a token is drawn from logits l: with probability softmax(l / temperature), among the `top_k` highest.

    Temperature 0 takes the highest; without `top_k` all tokens may be drawn.
    """

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        not_negative(temperature=self.temperature)
        at_least(1, top_k=self.top_k)

    def draw(self, logits: Float[Tensor, "batch outputs"], generator: torch.Generator | None) -> Int[Tensor, " batch"]:
        if self.temperature == 0.0:
            return logits.argmax(-1)
        logits = logits.double() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], -torch.inf)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


_DRAWS = {"top_p": "temperature= and top_k=: there is no top_p", "do_sample": "temperature=, 0 for the likeliest token"}
Decoding.__init__ = advise("continua.Decoding", _DRAWS)(Decoding.__init__)


@final
@dataclasses.dataclass(frozen=True)
class Window:
    """What a model sees of growing sequences: their last `context_length` tokens, counted from the window's start.

    When the window is full it moves on by `slide` tokens. With 1 every token is drawn from all `context_length` before
    it, and after a move all states are new, as each token has seen the one that left: one solve of the whole window for
    each token. With more, one such solve serves `slide` tokens, each drawn from `context_length - slide + 1` or more.
    """

    context_length: int
    slide: int = 1

    def __post_init__(self) -> None:
        at_least(1, context_length=self.context_length, slide=self.slide)
        if self.slide > self.context_length:
            cure = f"Pass a number from 1 to {self.context_length}, the size of the window."
            reject("slide", self.slide, "a full window moves on, and keeps its last token", cure)

    def start(self, before: int, length: int) -> int:
        """Where the window begins in sequences of this length, if it began at `before` so far."""
        return before if length - before <= self.context_length else length - self.context_length + self.slide - 1


_LENGTHS: dict[str, str] = dict.fromkeys(
    ("block_size", "max_seq_len", "max_length", "length", "size"), "context_length="
)
Window.__init__ = advise("continua.Window", _LENGTHS)(Window.__init__)

_ELSEWHERE = {
    **dict.fromkeys(("max_length", "max_tokens", "length"), "max_new_tokens=, the tokens behind the prompt"),
    **dict.fromkeys(("do_sample", "temperature"), "decoding=Decoding(temperature), whose 0 takes the likeliest token"),
    "top_k": "decoding=Decoding(temperature, top_k)",
    "top_p": "decoding=Decoding(temperature, top_k): there is no top_p",
    "num_return_sequences": "prompt.repeat(n, 1) for n continuations of one prompt",
    **dict.fromkeys(("input_ids", "inputs", "idx", "tokens", "text"), "prompt="),
    "seed": "generator=torch.Generator().manual_seed(seed)",
    **dict.fromkeys(("context_length", "block_size", "max_seq_len"), "window=Window(context_length)"),
    **dict.fromkeys(("present", "attention_mask"), "prompts of equal lengths, call by call: a prompt has no padding"),
    **dict.fromkeys(("eos_token_id", "stop"), "max_new_tokens=, and cut what comes after the token that ends a text"),
}
"""What other libraries call the arguments of `generate`."""


@advise("continua.generate", _ELSEWHERE)
def generate(
    model: ContinuousTransformer,
    prompt: Int[Tensor, "batch tokens"],
    max_new_tokens: int,
    decoding: Decoding = Decoding(),
    window: Window | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch more"]:
    """The prompt of each sequence with `max_new_tokens` more, drawn one after the other.

    Prompts of one batch have equal lengths. The model sees all tokens, or those that a `window` shows. Keys and values
    are cached wherever the model allows it (`why_not_cacheable`). Reference implementation: the `generate` of Hugging
    Face's causal language models.
    """
    at_least(1, max_new_tokens=max_new_tokens)
    _check_prompt(prompt)
    shown = Window(prompt.shape[1] + max_new_tokens) if window is None else window
    tokens = stream_tokens(model, prompt, decoding, shown, generator)
    return torch.cat([prompt, *(next(tokens).unsqueeze(1) for _ in range(max_new_tokens))], 1)


def _check_prompt(prompt: object) -> None:
    if not isinstance(prompt, torch.Tensor):
        cure = "Pass a tensor (batch, tokens), such as torch.tensor([[3, 1, 4]]), made by the alphabet or tokeniser of "
        cure += 'the model; a run of `continua train text` takes text: continua.load(run).predict("To be").'
        why = "a model reads numbers of tokens, and knows no letters"
        if hasattr(prompt, "__array__"):
            reject("prompt", type(prompt).__name__, "this is no tensor", "Convert it with torch.as_tensor(prompt).")
        if isinstance(prompt, list | tuple) and not any(isinstance(one, str) for one in prompt):
            why = "prompts of one batch are one tensor, of equal lengths"
            cure = "Pass torch.tensor([[3, 1, 4]]), or torch.stack(prompts); call once per length."
        reject("prompt", prompt, why, cure)
    if prompt.ndim != 2 or prompt.numel() == 0:
        cure = "Pass a tensor (batch, tokens) with at least one token; one sequence is prompt.unsqueeze(0)."
        why = "there is nothing to go on from" if prompt.numel() == 0 else "prompts have two dimensions"
        reject("prompt", tuple(prompt.shape), why, cure)


def stream_tokens(
    model: ContinuousTransformer,
    prompt: Int[Tensor, "batch tokens"],
    decoding: Decoding,
    window: Window,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Iterator[Int[Tensor, " batch"]]:
    """One token per sequence after another, without end, each drawn after the prompt and what the window shows.

    Keys and values are cached (`CachedDecoder`) unless `cached=False` or `why_not_cacheable` gives a reason: a token
    then costs a solve of the whole window. Either way it is drawn from the model's output there, up to rounding.
    """
    _check_prompt(prompt)
    cure = "Pass a model; of a run that is continua.load(run).model, or call continua.load(run).predict(text)."
    if not hasattr(model, "flow"):  # what torch.compile wraps has one
        is_a(ContinuousTransformer, cure, model=model)
    if model.flow.reads_ahead:
        why = "its tokens attend to later ones, and while text is written there are none"
        reject("model", type(model).__name__, why, "Build it with causal=True, and train it so.")
    if not model.readout.per_token:
        cure = "Build it with per_token=True, and train it to predict the next token."
        reject("model", type(model).__name__, "it has one output per sequence", cure)
    if generator is not None:
        is_a(torch.Generator, "Pass torch.Generator().manual_seed(0).", generator=generator)
    is_a(Decoding, "Pass Decoding(temperature, top_k), such as Decoding(0.8).", decoding=decoding)
    is_a(Window, "Pass Window(context_length), such as Window(64).", window=window)
    model, known = model.in_eval_mode(), getattr(_innermost(model.embedding), "vocabulary", None)
    decoder = CachedDecoder(model) if cached and why_not_cacheable(model) is None else None

    def stream(tokens: Tensor) -> Iterator[Tensor]:
        start = 0
        while True:
            before, start = start, window.start(start, tokens.shape[1])
            if decoder is None:
                with torch.no_grad():
                    logits = model(tokens[:, start:])
            else:
                if start != before:
                    decoder.reset()
                logits = decoder.decode(tokens[:, start + decoder.length :])
            if known is not None and logits.shape[-1] > known:
                why = f"one of them may be drawn that the vocabulary of {known} does not have"
                reject("outputs", logits.shape[-1], why, f"Build and train the model with outputs={known}.")
            drawn = decoding.draw(logits[:, -1], generator)
            tokens = torch.cat([tokens, drawn.unsqueeze(1)], 1)
            yield drawn

    return stream(prompt)
