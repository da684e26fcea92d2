"""Two networks with the same weights: outputs and gradients to a given tolerance."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from continua.model import EncoderDecoder


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """The largest difference, in units of the largest entry where that is above 1."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    worst = float((found - expected).detach().abs().max()) / max(1.0, float(expected.detach().abs().max()))
    assert worst <= tolerance, f"differs by {worst:.3g}, more than {tolerance:.3g}"


def assert_same_gradients(
    model: nn.Module,
    network: nn.Module,
    output: Tensor,
    expected: Tensor,
    build: Callable[[nn.Module], nn.Module],
    tolerance: float,
) -> None:
    """Gradients of one random functional of both outputs agree for every parameter.

    `build` brings weights over and is linear, so what it makes of the network's gradients is what the model's
    should be.
    """
    torch.manual_seed(7)
    functional = torch.randn_like(expected)
    (output * functional).sum().backward()
    (expected * functional).sum().backward()
    slopes = copy.deepcopy(network)
    for (name, slope), parameter in zip(slopes.named_parameters(), network.parameters(), strict=True):
        assert parameter.grad is not None, f"{name} of the plain network has no gradient"
        slope.data.copy_(parameter.grad)
    for (name, parameter), slope in zip(model.named_parameters(), build(slopes).parameters(), strict=True):
        assert parameter.grad is not None, f"{name} has no gradient"
        assert_close(parameter.grad, slope.detach(), tolerance)


def tokens_and_padding(vocabulary: int, length: int, batch: int = 4) -> tuple[Tensor, Tensor]:
    """Random tokens of sequences that end at different places; the first fills the batch."""
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    return tokens, torch.arange(length) < lengths[:, None]


def run(model: nn.Module, tokens: Tensor, present: Tensor | None = None, **named: object) -> Tensor:
    """The output of any model on tokens; an encoder-decoder reads them at both ends."""
    if isinstance(model, EncoderDecoder):
        return model((tokens, None, present), (tokens, None, present), **named)
    return model(tokens, present=present, **named)


def shaken(model: nn.Module, deviation: float = 0.1) -> nn.Module:
    """Parameters moved away from their special values: a bias of zero, a gain of one would hide mistakes.

    Embeddings become of size one: from tokens near zero a pre-norm flow starts too steeply for short tests.
    """
    generator = torch.Generator().manual_seed(13)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            parameter.add_(noise if name.endswith("table") else deviation * noise)
    return model
