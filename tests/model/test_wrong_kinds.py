"""Words, classes and bare tensors in the place of objects are met with the object to pass."""

import numpy as np
import pytest
import torch

import continua
from continua import ContinuousTransformer, Direct, DormandPrince, Fixed, Observer, integrate, transformer
from continua.model import standard
from continua.solve import Adaptive, PerSequence, Solver
from models import adaptive_model

pytestmark = pytest.mark.usefixtures("unchecked")
VALUES, TIMES = torch.zeros(2, 3, 1), torch.tensor([[0.0, 0.4, 1.0], [0.0, 0.5, 1.0]])


@pytest.fixture
def model() -> ContinuousTransformer:
    return adaptive_model(width=8, outputs=2, features=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"solver": "dopri5"}, "solver = 'dopri5': this is no Solver. Pass Solver"),
        ({"solver": Fixed(3)}, "solver = 'Fixed': this is no Solver"),
        ({"gradient": "direct"}, "gradient = 'direct': this is no Gradient. Pass an object"),
        ({"gradient": Direct}, "gradient = .*Direct.*: this is no Gradient. Pass an object"),
        ({"steps": 2.5}, "steps = 2.5: it must be a whole number"),
        ({"steps": True}, "steps = True: it must be a whole number"),
        ({"grid": 8}, r"grid = 8: these are no depths. Pass grid=\[0, .*; equal steps are model.at\(steps=8\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_at_takes_objects(model, changed, message):
    with pytest.raises(ValueError, match=message):
        model.at(**changed)


@pytest.mark.parametrize(
    ("values", "named"),
    [([[0.1]], "list"), (np.zeros((2, 3, 1)), "ndarray")],
    ids=["list", "array"],
)
def test_inputs_are_tensors(model, values, named):
    with pytest.raises(ValueError, match=f"values = '{named}': this is no plain tensor.*pad_sequence.*present"):
        model(values, TIMES)


def test_a_span_of_times_is_an_object():
    with pytest.raises(ValueError, match=r"time = 'tuple': this is no TokenTime.*TokenTime\(start, end\)"):
        transformer(8, 1, features=1, time=(0, 30))


def test_asked_depths_and_observers_come_as_lists(model):
    cloud = model.embedding(VALUES, TIMES)
    with pytest.raises(ValueError, match=r"save_at = 0.5: depths come as a list. Pass save_at=\[0.5\]"):
        model(cloud, save_at=0.5)
    with pytest.raises(ValueError, match="observers = 'Observer': this is no list"):
        model(cloud, observers=Observer())
    with pytest.raises(ValueError, match="observers = 'builtin_function_or_method': this is no Observer"):
        model(cloud, observers=[print])


def test_integrate_takes_tensors_and_states():
    assert integrate(lambda z, x: -x, VALUES, (0.0, 1.0)).x.shape == VALUES.shape
    with pytest.raises(ValueError, match=r"x0 = 'list': this is no Tensor. Pass a tensor of any shape"):
        integrate(lambda z, x: -x, VALUES.tolist(), (0.0, 1.0))


@pytest.mark.parametrize("control", [Adaptive(1e-8, 1e-8), PerSequence(1e-8, 1e-8)], ids=["Adaptive", "PerSequence"])
def test_a_tolerance_below_the_dtype_is_refused(model, control):
    with pytest.raises(
        ValueError, match=r"rtol = 1e-08: torch.float32 resolves no less than 4.8e-07.*model.double\(\)"
    ):
        model.at(solver=Solver(DormandPrince(), control))(VALUES, TIMES)
    precise = model.double().at(solver=Solver(DormandPrince(), control))
    assert torch.isfinite(precise(VALUES.double(), TIMES.double())).all()


def test_padding_without_a_mask_is_recognised(model):
    with pytest.raises(ValueError, match=r"times may not decrease.*if this is padding, mark it false in present"):
        model(VALUES, torch.tensor([[0.0, 0.4, 0.0], [0.0, 0.5, 1.0]]))


@pytest.mark.parametrize("name", ["gpt", "bert", "encoder", "parallel", "macaron", "sphere", "encoder_decoder"])
def test_a_preset_without_its_parts_says_which_to_build(name):
    with pytest.raises(TypeError, match=rf"{name}: missing a required argument: 'layers'.*Pass built parts: {name}\("):
        getattr(standard, name)()
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'depth'.*Pass built parts"):
        getattr(standard, name)(1, 2, 3, depth=4)
    with pytest.raises(TypeError, match=rf"{name}: layers = 3 is no part.*Pass built parts"):
        getattr(standard, name)(3, 48, 3)


def test_words_of_other_libraries_for_depth_and_windows_are_met_with_ours():
    with pytest.raises(TypeError, match=r"continua\.Depth has no argument 'n_layer'\. Pass Depth\(4\.0, field=4\)"):
        continua.Depth(n_layer=4)
    with pytest.raises(TypeError, match=r"no argument 'block_size'\. Pass nothing: a sequence may have any length"):
        continua.transformer(16, 5, vocabulary=5, causal=True, block_size=64)
    with pytest.raises(ValueError, match=r"head_nodes = 0"):
        continua.transformer(16, 5, features=1).at(head_nodes=0)
