"""Writing on: windows, draws, and the same text with kept keys and values as without."""

import itertools

import pytest
import torch

import continua
from continua.core.seeds import generator_of
from continua.data import Form, Question
from continua.model import (
    CachedDecoder,
    ContinuousTransformer,
    Decoding,
    TokenEmbedding,
    TokenReadout,
    Window,
    generate,
    stream_tokens,
)
from continua.solve import Adaptive, DormandPrince, Solver
from continua.train import Preset, build_baseline, build_continuous, count_parameters

FORM = Form(9, Question.TOKEN, vocabulary=9, causal=True, span=12.0, spacing=1.0)
PROMPT = torch.tensor([3, 1, 4])


def model_of(kind, stepping="midpoint"):
    torch.manual_seed(2)
    preset = Preset().replace(width=16, head_nodes=2, hidden=24, axis_nodes=4, depth_modes=3, stepper=stepping)
    model = build_continuous(FORM, preset)
    model = model if kind == "continuous" else build_baseline(FORM, preset, count_parameters(model))
    with torch.no_grad():
        getattr(model.readout, "inner", model.readout).linear.weight.mul_(4.0)  # draws that depend on what was read
    return model.double()


def written(model, count=40, sampling=Decoding(), window=Window(12), seed=5, prompt=PROMPT, **options):
    tokens = stream_tokens(model, prompt.unsqueeze(0), sampling, window, generator_of(seed), **options)
    return [int(token) for token in itertools.islice(tokens, count)]


@pytest.mark.parametrize(
    ("kind", "stepping", "slide"),
    [
        ("continuous", "midpoint", 1),
        ("continuous", "midpoint", 12),
        ("continuous", "lie", 5),
        ("continuous", "euler", 5),
        ("standard", "midpoint", 5),
    ],
)
def test_the_same_text_with_and_without_the_cache(kind, stepping, slide):
    """Far beyond the window, where it slides."""
    model = model_of(kind, stepping)
    cached, plain = (written(model, 26, window=Window(12, slide), cached=cached) for cached in (True, False))
    assert cached == plain and len(set(cached)) > 3


def test_every_character_is_drawn_from_the_last_of_them():
    """Written anew from its definition: the model on the last `context_length` tokens, one draw each."""
    model = model_of("continuous").eval()
    tokens, generator = PROMPT.tolist(), torch.Generator().manual_seed(5)
    for _ in range(20):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-12:]]))[0, -1]
        tokens.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
    assert written(model, 20) == tokens[3:]


def test_one_solve_of_the_window_serves_as_many_tokens_as_it_slides(monkeypatch):
    sizes, read = [], CachedDecoder.decode
    monkeypatch.setattr(
        CachedDecoder, "decode", lambda self, tokens: (sizes.append(tokens.shape[1]), read(self, tokens))[1]
    )
    written(model_of("continuous"), 21, window=Window(12, 4))
    assert sizes == [3] + [1] * 9 + [9] + [1] * 3 + [9] + [1] * 3 + [9, 1, 1]


def test_a_prompt_longer_than_the_window():
    model, long = model_of("continuous"), torch.arange(30) % 9
    for slide in (1, 3):
        window = Window(12, slide)
        shown = long[30 - 12 + slide - 1 :]
        assert written(model, 1, window=window, prompt=long) == written(model, 1, window=window, prompt=shown)


def test_adaptive_steps_are_solved_as_a_whole(monkeypatch):
    def refused(*_):
        raise AssertionError

    monkeypatch.setattr(CachedDecoder, "__init__", refused)
    model = model_of("continuous").at(solver=Solver(DormandPrince(), Adaptive(1e-3, 1e-3)))
    assert len(written(model, 3)) == 3
    assert isinstance(model, ContinuousTransformer)


def test_windows_move_when_they_are_full():
    starts, start = [], 0
    for length in range(1, 12):
        start = Window(4, 2).start(start, length)
        starts.append(start)
    assert starts == [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8]
    with pytest.raises(ValueError, match="slide = 5"):
        Window(4, 5)
    with pytest.raises(ValueError, match="slide = 0"):
        Window(4, 0)
    with pytest.raises(ValueError, match="context_length = 0"):
        Window(0)


def test_an_empty_prompt_is_refused_at_once():
    with pytest.raises(ValueError, match="nothing to go on from"):
        stream_tokens(model_of("continuous"), PROMPT[:0].unsqueeze(0), Decoding(), Window(12))


def test_outputs_beyond_the_vocabulary_are_refused_before_one_is_drawn():
    model = continua.transformer(width=8, outputs=7, vocabulary=5, causal=True, axis=1, heads=2, depth=1.0)
    for cached in (True, False):
        tokens = stream_tokens(model, torch.tensor([[0, 1]]), Decoding(0.0), Window(4), cached=cached)
        with pytest.raises(ValueError, match=r"outputs = 7: .* vocabulary of 5 .* with outputs=5\."):
            next(tokens)


def test_a_model_that_reads_later_tokens_neither_learns_to_write_nor_writes():
    """It would read the very token that it is to predict; an encoder is read as a whole all the same."""
    model = continua.transformer(width=8, outputs=5, vocabulary=5, axis=1, heads=2, depth=1.0)
    tokens = torch.tensor([[0, 1, 2]])
    with pytest.raises(ValueError, match=r"reads the token it is to predict\. Build it with causal=True"):
        continua.Objective(continua.NextToken())(model, continua.Batch((tokens,), None))
    with pytest.raises(ValueError, match="Build it with causal=True, and train it so"):
        stream_tokens(model, tokens, Decoding(), Window(4))
    embeddings = TokenEmbedding(5, 8), TokenEmbedding(5, 8)
    both = continua.encoder_decoder(
        (continua.Layers(1, 8, 2), continua.Layers(1, 8, 2)), embeddings, TokenReadout(8, 5)
    )
    assert both.encoder.flow.reads_ahead and not both.decoder.flow.reads_ahead


def test_draws_follow_temperature_and_top():
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for sampling, exact in (
        (Decoding(), logits.softmax(0)),
        (Decoding(0.5), (2 * logits).softmax(0)),
        (Decoding(top_k=2), torch.tensor([0.0, 0.0, *logits[2:].softmax(0)])),
        (Decoding(temperature=0.0), torch.tensor([0.0, 0.0, 0.0, 1.0])),
    ):
        drawn = sampling.draw(logits.expand(2000, -1), generator)
        share = drawn.bincount(minlength=4).double() / 2000
        assert float((share - exact).abs().max()) < 0.04  # 3.6 deviations of the mean of 2,000 draws
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Decoding(**wrong)


def test_a_batch_is_generated_as_its_rows_are():
    model = model_of("continuous")
    prompt = torch.stack([PROMPT, PROMPT.flip(0)])
    both = generate(model, prompt, 6, Decoding(temperature=0.0))
    assert both.shape == (2, 9) and torch.equal(both[:, :3], prompt)
    for row in range(2):
        alone = generate(model, prompt[row : row + 1], 6, Decoding(temperature=0.0), Window(12))
        assert torch.equal(alone[0], both[row])


def test_prompts_and_words_of_other_libraries_are_met_with_what_to_pass(unchecked):
    model = model_of("continuous")
    with pytest.raises(ValueError, match=r"prompt = .*numbers of tokens.*torch.tensor.*continua.load\(run\)"):
        generate(model, "To be", 4)
    with pytest.raises(
        ValueError, match=r"prompts of one batch are one tensor, of equal lengths\..*call once per length"
    ):
        generate(model, [PROMPT, PROMPT[:2]], 4)
    for numbers in ([3, 1, 4], [[1, 2], [3]]):
        with pytest.raises(ValueError, match=r"prompt = .*of equal lengths\..*torch.tensor\(\[\[3, 1, 4\]\]\)"):
            generate(model, numbers, 4)
    for name, meant in (("max_length", "max_new_tokens="), ("do_sample", "Decoding"), ("top_p", "there is no top_p")):
        with pytest.raises(TypeError, match=rf"continua.generate has no argument '{name}'. Pass .*{meant}"):
            generate(model, PROMPT.unsqueeze(0), **{name: 1})
    with pytest.raises(
        ValueError, match=r"model = 'Linear': .*continua\.load\(run\)\.model, or call .*predict\(text\)"
    ):
        generate(torch.nn.Linear(2, 2), PROMPT.unsqueeze(0), 4)
    with pytest.raises(ValueError, match=r"prompt = 'ndarray'.*torch\.as_tensor"):
        generate(model, PROMPT.unsqueeze(0).numpy(), 4)
    with pytest.raises(ValueError, match=r"generator = 'int': .*torch\.Generator"):
        generate(model, PROMPT.unsqueeze(0), 4, generator=3)
    with pytest.raises(TypeError, match=r"continua\.Window has no argument 'block_size'. Pass context_length="):
        Window(block_size=8)
    sentence = continua.transformer(8, 2, vocabulary=5, causal=True, per_token=False, axis=1, heads=2, depth=1.0)
    with pytest.raises(ValueError, match="one output per sequence"):
        generate(sentence, torch.tensor([[1]]), 4)
    for name, value, meant in (("window", 48, r"Window\(64\)"), ("decoding", 0.8, r"Decoding\(0\.8\)")):
        with pytest.raises(ValueError, match=rf"{name} = '.*': this is no {name.title()}\. Pass .*{meant}"):
            generate(model, PROMPT.unsqueeze(0), 4, **{name: value})


def test_who_looks_for_generate_finds_it():
    with pytest.raises(ValueError, match=r"Call continua\.generate\(model, prompt, max_new_tokens\)"):
        model_of("continuous").generate(PROMPT.unsqueeze(0), 3)


def test_beyond_a_table_of_positions_a_window_is_the_cure():
    layers = continua.Layers(count=1, width=8, heads=2, hidden=8)
    model = continua.gpt(layers, TokenEmbedding(9, 8, continua.LearnedPositions(4, 8)), TokenReadout(8, 9))
    with pytest.raises(ValueError, match=r"reaches from 0 to 3\. .*generate with window=Window\(4\)"):
        generate(model, PROMPT.unsqueeze(0), 3)
    assert generate(model, PROMPT.unsqueeze(0), 3, window=Window(4)).shape == (1, 6)
