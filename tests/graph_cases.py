"""Models with their inputs as one graph each; as a script, a training step of those that are named, compiled whole.

A process of its own, because a compiler does not see through the shape checker of the tests.
"""

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

import continua
from continua.solve import Checkpointed
from parity import assert_close, shaken

MACHINE_CODE = shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
BATCH, TOKENS = 3, 8
PRESENT = torch.arange(TOKENS) < torch.tensor([TOKENS, 5, 6])[:, None]


def signals(batch=BATCH, tokens=TOKENS):
    generator = torch.Generator().manual_seed(batch + tokens)
    times = torch.rand(batch, tokens, generator=generator).sort(-1).values
    return torch.randn(batch, tokens, 1, generator=generator), times


def words(batch=BATCH, tokens=TOKENS):
    return (torch.randint(9, (batch, tokens), generator=torch.Generator().manual_seed(tokens)),)


def signal_model(**named):
    torch.manual_seed(0)
    return shaken(continua.transformer(width=8, outputs=3, features=1, axis=2, depth=1.0, **named))


def text_model():
    torch.manual_seed(0)
    return shaken(continua.transformer(width=8, outputs=9, vocabulary=9, causal=True, axis=2, depth=1.0))


def cases():
    asked = {"query_times": torch.tensor([[0.2, 0.7]]).expand(BATCH, -1)}
    queries = signal_model(per_token=True, causal=True, time=continua.TokenTime(queries=True))
    return {
        "evenly spaced": (signal_model(), signals()[:1], {}),
        "padding": (signal_model().at(gradient=Checkpointed()), (*signals(), PRESENT), {}),
        "causal": (signal_model(causal=True, per_token=True), signals(), {}),
        "causal padding": (signal_model(causal=True, per_token=True), (*signals(), PRESENT), {}),
        "query times": (queries, signals(), asked),
        "text": (text_model(), words(), {}),
        "padded text": (text_model(), (*words(), None, PRESENT), {}),
    }


def outcome(call, model, inputs, named):
    model.zero_grad()
    output = call(*inputs, **named)
    output.square().mean().backward()
    return output.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def compile_whole(name):
    """What differs between a compiled step and an eager one; nothing where all is equal to rounding.

    `fullgraph` makes a break an error; masks and causal rows may take another path.
    """
    torch._dynamo.reset()
    model, inputs, named = cases()[name]
    model.train()
    expected = outcome(model, model, inputs, named)
    try:
        found = outcome(torch.compile(model, fullgraph=True, backend="aot_eager"), model, inputs, named)
        assert_close(found[0], expected[0], 1e-5)
        for a, b in zip(found[1], expected[1], strict=True):
            assert_close(a, b, 1e-5)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: compile_whole(name) for name in sys.argv[1:]}))
