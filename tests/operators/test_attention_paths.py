"""Which way attention is evaluated: fused wherever it can be, and without a detour where masses are constant."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from continua.operators import Attention, Binding, Exact, draw_theta
from continua.spaces import Cloud

BATCH, TOKENS, WIDTH, KEY = 2, 5, 6, 3
GAPS = [[0.5, 1.0, 0.3, 0.2, 0.9], [1.0, 1.0, 2.0, 0.1, 0.4]]


@pytest.fixture
def calls(monkeypatch):
    """The arguments of every call to torch's attention, which only its fused kernel may answer."""
    seen, real = [], F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, is_causal=False, scale=None):
        seen.append({"q": q, "k": k, "v": v, "mask": attn_mask, "causal": is_causal, "scale": scale})
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return real(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return seen


def ask(
    causal: bool, mass=None, positions=None, own=None, second_derivatives: bool = False, value: int | None = None
) -> None:
    generator = torch.Generator().manual_seed(0)
    operator = Attention(heads=2, key_size=KEY, value_size=value, causal=causal)
    cloud = Cloud(torch.randn(BATCH, TOKENS, WIDTH, generator=generator), mass, positions, own)
    bound = operator.bind(Binding(cloud, second_derivatives=second_derivatives))
    points = cloud.points.requires_grad_()
    bound.velocity(draw_theta(operator.spec(WIDTH), generator), cloud.at(points)).sum().backward()


def masses(requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(GAPS, requires_grad=requires_grad)


def present(*lengths: int) -> torch.Tensor:
    return (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).float()


constant = {
    "none": None,
    "ones": torch.ones(BATCH, TOKENS),
    "equal": torch.full((BATCH, TOKENS), 0.2),
    "equal within each sequence": torch.tensor([[0.2], [3.0]]).expand(BATCH, TOKENS),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mass", constant.values(), ids=constant.keys())
def test_constant_masses_take_no_detour(calls, causal, mass):
    ask(causal, mass)
    (call,) = calls
    assert call["mask"] is None and call["causal"] is causal
    assert call["q"].shape[-1] == call["k"].shape[-1] == call["v"].shape[-1] == KEY
    assert call["scale"] == pytest.approx(KEY**-0.5)


def test_times_alone_take_no_detour(calls):
    ask(True, positions=masses().cumsum(-1))
    (call,) = calls
    assert call["mask"] is None and call["causal"] and call["q"].shape[-1] == KEY


def test_padding_at_the_end_is_in_the_future_of_all(calls):
    ask(True, present(5, 2))
    (call,) = calls
    assert call["mask"] is None and call["causal"] and call["q"].shape[-1] == KEY


@pytest.mark.parametrize("mass", [present(5, 2), masses()], ids=["padding", "weights"])
def test_fixed_masses_are_a_mask_of_one_row(calls, mass):
    ask(False, mass)
    (call,) = calls
    assert call["mask"].shape == (BATCH, 1, 1, TOKENS) and call["q"].shape[-1] == KEY


@pytest.mark.parametrize("causal", [False, True])
def test_masses_with_gradients_are_folded(calls, causal):
    ask(causal, masses(True))
    (call,) = calls
    assert call["mask"] is None and call["causal"] is causal and call["q"].shape[-1] == KEY + 1


def test_own_masses_are_folded(calls):
    ask(True, masses(True), own=masses(True))
    (call,) = calls
    assert call["mask"] is None and call["causal"] and call["q"].shape == (BATCH, 2, TOKENS, KEY + 2)


@pytest.mark.parametrize("value", [1, 7])
def test_sizes_that_differ_stay_fused(calls, value):
    ask(True, masses(True), value=value)
    (call,) = calls
    assert call["q"].shape[-1] == call["v"].shape[-1] == max(KEY + 1, value)


def test_second_derivatives_and_ties_are_materialised(calls):
    ask(False, masses(), second_derivatives=True)
    ask(True, masses(), positions=torch.tensor([[0.0, 1.0, 1.0, 2.0, 3.0]] * 2))
    assert calls == []


def test_binding_changes_the_path_only_when_asked():
    operator = Attention(heads=2, key_size=KEY)
    cloud = Cloud(torch.zeros(1, 2, WIDTH))
    assert operator.bind(Binding(cloud)) is operator
    assert operator.bind(Binding(cloud, second_derivatives=True)).integral == Exact(materialised=True)


PEAKS = """
import multiprocessing, sys, torch
from continua.bench.memory import high_water
from continua.operators import Attention, Exact
from continua.operators import draw_theta, map_leaves
from continua.spaces import Cloud

def peak(case):
    kind, tokens = case.split(":")
    generator = torch.Generator().manual_seed(0)
    integral = Exact(materialised=kind == "materialised")
    operator = Attention(heads=4, key_size=32, causal=kind != "fixed masses", integral=integral)
    theta = map_leaves(lambda leaf: leaf.requires_grad_(), draw_theta(operator.spec(128), generator))
    points = torch.randn(1, int(tokens), 128, generator=generator, requires_grad=True)
    mass = torch.rand(1, int(tokens), generator=generator) + 0.5
    own = (mass / 2).requires_grad_() if kind == "own masses" else None
    mass.requires_grad_(kind != "fixed masses")
    start = high_water()
    velocity = operator.velocity(theta, Cloud(points, mass, own=own))
    velocity.square().sum().backward()
    wanted = [points] + [part for part in (mass, own) if part is not None and part.requires_grad]
    assert all(bool(torch.isfinite(part.grad).all()) for part in wanted)
    return high_water() - start

with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    print(*pool.map(peak, sys.argv[1:], chunksize=1))
"""
LIMITS = {
    "causal masses:4096": 128,
    "own masses:4096": 128,
    "fixed masses:4096": 64,  # one kernel of 4 heads alone would be 256
}
MATERIALISED = "materialised:2048"


@pytest.fixture(scope="module")
def peaks():
    """MiB above the start, each case in a process of its own, forked from one that has only imported."""
    cases = [*LIMITS, MATERIALISED]
    ran = subprocess.run([sys.executable, "-c", PEAKS, *cases], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return dict(zip(cases, map(float, ran.stdout.split()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", LIMITS)
def test_memory_grows_with_the_tokens_and_not_with_their_square(peaks, case):
    """Forward and backward, 4 heads of 32; one materialised kernel would be 256 MiB at 4,096 tokens."""
    assert peaks[case] < LIMITS[case]


def test_a_materialised_kernel_would_be_seen(peaks):
    """The measurement has teeth: 4 heads of 2,048 tokens squared are 64 MiB, several times over on the way back."""
    assert peaks[MATERIALISED] > 64
