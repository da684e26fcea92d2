"""Few frames between a call and torch's attention, few Python calls in an update, one call of the model per update."""

import sys

import pytest
import torch
import torch.nn.functional as F

from continua.control import Batch, CrossEntropy, KineticEnergy, Objective
from continua.data import Mnist1d
from continua.model import transformer
from continua.optim import adamw
from continua.train import PRESETS, Learner, Plan, TrainingGrids, build_continuous, objective_of

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def learner():
    """What `make demo` trains."""
    torch.manual_seed(0)
    task = Mnist1d()
    preset = PRESETS[task.name]["demo"]
    model = build_continuous(task.form, preset)
    optimiser = adamw(model, 1e-3, 0.05, (0.9, 0.98))
    objective = objective_of(task.form, model, preset)
    return task, Learner("demo", model, objective, optimiser, grids=TrainingGrids(preset.depth.jitter))


def is_own(frame) -> bool:
    return "/continua/" in frame.f_code.co_filename


def test_few_frames_lie_between_the_model_and_the_attention_of_torch(learner, monkeypatch):
    task, trained = learner
    attention, depths = F.scaled_dot_product_attention, []

    def counted(*args, **named):
        frame, own = sys._getframe(1), 0
        while frame is not None:
            own, frame = own + is_own(frame), frame.f_back
        depths.append(own)
        return attention(*args, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    trained.model(*task.training_batch(4, 0, 0).inputs)
    assert depths and max(depths) <= 12


def test_an_update_of_four_evaluations_takes_few_calls(learner):
    task, trained = learner
    plan, calls = Plan(10, 8), []
    batch = task.training_batch(8, 0, 0)
    trained.update(batch, 0, plan)  # what is made once is made here
    sys.setprofile(lambda frame, event, _: calls.append(1) if event == "call" and is_own(frame) else None)
    try:
        row = trained.update(batch, 1, plan)
    finally:
        sys.setprofile(None)
    assert row.evaluations == 4 and 100 < len(calls) <= 800


def test_a_forward_hook_fires_once_per_update(learner):
    task, trained = learner
    seen = []
    trained.model.register_forward_hook(lambda *_: seen.append(1))
    for update in range(3):
        trained.update(task.training_batch(4, update, 0), update, Plan(10, 4))
    assert len(seen) == 3


# torch's own, where it goes on after a check of the input that it does not compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_trains_to_the_same_losses():
    times = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)).sort(-1).values
    batch = Batch((torch.sin(9 * times).unsqueeze(-1), times), torch.arange(4) % 3)
    objective = Objective(CrossEntropy(), (KineticEnergy(),), (0.01,))

    def losses(wrap):
        torch.manual_seed(1)
        model = transformer(8, 3, features=1, hidden=8, axis=1, depth=1.0)
        optimiser, called = torch.optim.AdamW(model.parameters(), lr=1e-2), wrap(model)
        for _ in range(3):
            optimiser.zero_grad()
            total = objective(called, batch).total
            total.backward()
            optimiser.step()
            yield total.item()

    plain = list(losses(lambda model: model))
    compiled = list(losses(lambda model: torch.compile(model, backend="aot_eager")))
    torch._dynamo.reset()
    assert compiled == pytest.approx(plain, abs=1e-6) and plain[-1] != plain[0]
