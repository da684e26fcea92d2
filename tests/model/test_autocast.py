"""Half precision by autocast: states and weights stay whole; a processor that cannot is asked before it must."""

import pytest
import safetensors.torch
import torch

import continua
from continua.core import processor
from continua.solve import Checkpointed

pytestmark = pytest.mark.usefixtures("unchecked")
PRESENT = torch.arange(9) < torch.tensor([9, 6])[:, None]


def signals():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 9, 1, generator=generator), torch.rand(2, 9, generator=generator).sort(-1).values


def model(**named):
    torch.manual_seed(0)
    return continua.transformer(**{"width": 8, "outputs": 3, "features": 1, "axis": 2, "depth": 2.0, **named})


@pytest.fixture
def half():
    if not processor.multiplies(torch.float16):
        pytest.skip("this processor cannot multiply matrices of float16")
    return torch.autocast("cpu", dtype=torch.float16)


@pytest.mark.parametrize("gradient", [continua.Direct(), Checkpointed()], ids=["direct", "checkpointed"])
@pytest.mark.parametrize("named", [{}, {"causal": True, "per_token": True}], ids=["plain", "causal"])
def test_a_model_trains_in_half_precision(half, named, gradient):
    """2^-11 is the rounding of float16; a dozen products lie between values and output."""
    made, (values, times) = model(**named).at(gradient=gradient), signals()
    whole = made(values, times, PRESENT)
    with half:
        found = made(values, times, PRESENT)
        loss = found.float().square().mean()
    loss.backward()
    scale = float(whole.detach().abs().max())
    assert float((found.float() - whole).detach().abs().max()) < 12 * 2**-11 * max(1.0, scale)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in made.parameters())
    assert found.dtype == torch.float16 or not named.get("per_token")


def test_integrate_keeps_the_precision_of_its_state(half):
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    with half:
        end = continua.integrate(lambda z, x: layer(x), x, (0, 1), continua.RK4(), steps=2).x
    assert end.dtype == torch.float32
    torch.testing.assert_close(
        end, continua.integrate(lambda z, x: layer(x), x, (0, 1), continua.RK4(), steps=2).x, rtol=1e-2, atol=1e-2
    )


def test_a_processor_that_would_end_the_process_is_met_with_a_message(half, monkeypatch):
    """The probe ends as one does that meets an illegal instruction."""
    monkeypatch.setattr(processor, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    processor.multiplies.cache_clear()
    with half, pytest.raises(ValueError, match=r"autocast = torch\.float16: this processor cannot multiply"):
        model()(*signals())
    processor.multiplies.cache_clear()


def test_a_dtype_without_products_is_found_out():
    assert not processor.multiplies(torch.float8_e5m2)


def test_weights_of_half_precision_are_refused():
    values, times = signals()
    with pytest.raises(ValueError, match=r"model = torch\.float16: states are float32 or float64\. .*torch\.autocast"):
        model().half()(values.half(), times.half())


def test_weights_pass_through_safetensors(tmp_path):
    made, other = model(causal=True, per_token=True), model(causal=True, per_token=True)
    for parameter in other.parameters():
        parameter.data.zero_()
    safetensors.torch.save_file(made.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(other(*signals()), made(*signals()))
