"""Every tool of control goes through calls of the model, which is what hooks and wrappers see."""

import pytest
import torch
import torch.nn.functional as F

from continua.control import (
    CrossEntropy,
    DebiasedObjective,
    FieldSize,
    KineticEnergy,
    Objective,
    Resolutions,
    SuccessiveApproximations,
    pontryagin,
    resolution_report,
    trace_costates,
)
from continua.fields import Constant
from continua.model import ContinuousTransformer, Flow, MeanReadout, Part, VectorEmbedding
from continua.operators import Attention, FeedForward
from continua.solve import Direct, Euler, Fixed, Solver
from objectives import CLASSES, WIDTH, batch_of

LOSS = CrossEntropy()
PRICED = Objective(LOSS, (KineticEnergy(),), (0.1,))


def build() -> ContinuousTransformer:
    torch.manual_seed(0)
    parts = [Part(f, Constant(f.spec(WIDTH))) for f in (Attention(2, 2), FeedForward(6))]
    embedding, readout = VectorEmbedding(2, WIDTH), MeanReadout(WIDTH, CLASSES)
    return ContinuousTransformer(embedding, Flow(parts), readout, Solver(Euler(), Fixed(2)), Direct()).double()


def report(model, batch, objective):
    small = Resolutions(strides=(2,), factors=(2,), steps=(1, 4), rtols=())
    return resolution_report(model, batch.inputs, batch.targets, F.cross_entropy, small)


def debiased(model, batch, objective):
    return DebiasedObjective(objective, 2, 1)(model, batch).backward()


def counting(forward, kind, calls):
    def count(self, *inputs, **named):
        calls[kind] += 1
        return forward(self, *inputs, **named)

    return count


TOOLS = {
    "objective": lambda model, batch, objective: objective(model, batch),
    "trace_costates": trace_costates,
    "report": pontryagin,
    "successive": SuccessiveApproximations(iterations=2, inner=2),
    "resolution": report,
    "debiased": debiased,
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_nothing_reads_a_model_but_its_call(tool, monkeypatch, unchecked):
    """As often as parts of the model act, the model itself was called: nobody opens it to use them apart."""
    model, batch = build(), batch_of(LOSS)
    calls = {ContinuousTransformer: 0, MeanReadout: 0}
    for kind in calls:
        monkeypatch.setattr(kind, "forward", counting(kind.forward, kind, calls))
    tool(model, batch, PRICED)
    assert calls[ContinuousTransformer] == calls[MeanReadout] > 0


@pytest.mark.parametrize(("name", "times"), [("objective", 1), ("trace_costates", 2), ("report", 2), ("debiased", 3)])
def test_hooks_of_the_model_fire(name, times, unchecked):
    """Once per call of it: an extremal takes one to find its grid and one on it, a difference of level 1 three."""
    model, seen = build(), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(module))
    TOOLS[name](model, batch_of(LOSS), PRICED)
    assert len(seen) == times


class Wrapper(torch.nn.Module):
    """As `DistributedDataParallel` wraps a module."""

    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, *inputs, **named):
        self.calls += 1
        return self.module(*inputs, **named)


def test_what_wraps_a_model_is_called_in_its_place(unchecked):
    model, batch = build(), batch_of(LOSS)
    wrapped, sized = Wrapper(model), Objective(LOSS, (FieldSize(),), (0.1,))
    assert torch.equal(PRICED(wrapped, batch).total, PRICED(model, batch).total) and wrapped.calls == 1
    with pytest.raises(ValueError, match="weight_decay"):
        sized.check(torch.optim.AdamW(model.parameters(), weight_decay=0.1), wrapped)
    with pytest.raises(ValueError, match="model = 'Linear': this is no ContinuousTransformer"):
        PRICED(Wrapper(torch.nn.Linear(1, 1)), batch)
