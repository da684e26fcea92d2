"""One sequence as the model sees it: its tokens along depth, and the attention between them."""

from collections.abc import Sequence

import numpy as np
import torch

from continua.model import ContinuousTransformer, Part
from continua.operators import attention_kernels
from continua.runs import Heat, Paths, Scale, Section
from continua.spaces import Cloud
from continua.train.portrait.sitter import Sitter

_MOST = 64
"""More tokens than this are thinned out evenly in a figure."""


def trajectory_section(sitter: Sitter, measured: str, frames: int = 33) -> Section:
    """X(z) of one sequence, in the plane of its two principal directions over all depths."""
    cloud, depths = sitter.cloud, _depths(sitter.model, frames)
    states = sitter.solve(save_at=depths).xs
    assert states is not None
    kept = _kept(cloud)
    tokens = states[:, 0, kept].double().cpu().numpy()
    plane, shares = _principal(tokens)
    figure = Paths(
        title="Tokens along depth",
        caption="Open circles are the embedded tokens X(0), full ones the tokens at the depth of the slider. "
        f"The plane holds {shares.sum():.0%} of their variance.",
        measured=measured + "; principal directions of the states of all depths together",
        x=Scale(f"first principal direction ({shares[0]:.0%})"),
        y=Scale(f"second principal direction ({shares[1]:.0%})"),
        depths=np.array(depths),
        points=plane,
        tokens=_times(cloud)[kept],
        hue=_hue(cloud),
    )
    return Section("Tokens", ("Every token of one sequence, from its embedding to the readout.",), figures=(figure,))


@torch.no_grad()
def attention_section(sitter: Sitter, measured: str, frames: int = 13) -> Section | None:
    """alpha(t, s) of one sequence at several depths, for every head and their mean; nothing without attention.

    Cross-attention has the tokens of the memory as its columns.
    """
    model, cloud, memory = sitter.model, sitter.cloud, sitter.memory
    depths = _depths(model, frames)
    states = sitter.solve(save_at=depths).xs
    assert states is not None
    parts = [part for part in model.flow.parts if isinstance(part, Part)]
    stacks: list[list[np.ndarray]] = []
    answering: list[Cloud] = []
    for z, points in zip(depths, states, strict=True):
        now = cloud.at(points)
        inside = min(z, model.flow.depth * (1.0 - 1e-9))  # a jump at the very end belongs to nobody
        found = [a for part in parts for a in attention_kernels(part.operator, part.field(inside), now, memory)]
        stacks.append([a.weights[0].double().cpu().numpy() for a in found])
        answering = [memory if memory is not None and a.answering is memory.measure else cloud for a in found]
    figures = tuple(
        _heat(
            [stack[i] for stack in stacks], f", part {i + 1}" if len(answering) > 1 else "", cloud, of, depths, measured
        )
        for i, of in enumerate(answering)
    )
    if not figures:
        return None
    prose = (
        "The weight that the token at time t gives to the token at time s, masses included; each row sums to one. "
        "Kernels change along depth with the tokens and with the weights of the network.",
    )
    formula = "alpha(t, s) = frac{w(s) e^{beta ⟨Q x(t), K x(s)⟩}}{int w(s') e^{beta ⟨Q x(t), K x(s')⟩} d s'}"
    return Section("Attention", prose, formula, figures)


def _heat(
    alphas: Sequence[np.ndarray], place: str, asking: Cloud, answering: Cloud, depths: Sequence[float], measured: str
) -> Heat:
    rows, columns = _kept(asking), _kept(answering)
    stack = np.stack(alphas, axis=1)[:, :, rows][..., columns]  # (heads, depths, queries, tokens)
    whole = np.concatenate([stack.mean(0, keepdims=True), stack]) if len(stack) > 1 else stack
    names = (*(["mean of the heads"] if len(stack) > 1 else []), *(f"head {k + 1}" for k in range(len(stack))))
    across = answering is not asking
    return Heat(
        title=("Cross-attention kernel" if across else "Attention kernel") + place,
        caption="Row: the token that asks. Column: the token that answers"
        f"{', one of the encoder' if across else ''}. Move the slider through depth.",
        measured=measured,
        x=Scale("answering token" if answering.positions is None else "answering s"),
        y=Scale("asking token" if asking.positions is None else "asking t"),
        columns=_times(answering)[columns],
        rows=_times(asking)[rows],
        values=whole,
        value="α",
        frames=np.array(depths),
        slider="depth z",
        panels=names,
    )


def _depths(model: ContinuousTransformer, frames: int) -> tuple[float, ...]:
    return tuple(model.flow.depth * k / (frames - 1) for k in range(frames))


def _kept(cloud: Cloud) -> np.ndarray:
    """Which tokens are shown: those that are there, thinned out where they are too many."""
    there = np.arange(cloud.points.shape[1]) if cloud.present is None else cloud.present[0].cpu().numpy().nonzero()[0]
    return there[np.unique(np.linspace(0, len(there) - 1, min(len(there), _MOST)).round().astype(int))]


def _times(cloud: Cloud) -> np.ndarray:
    if cloud.positions is None:
        return np.arange(cloud.points.shape[1], dtype=np.float64)
    return cloud.positions[0].double().cpu().numpy()


def _hue(cloud: Cloud) -> str:
    return "token" if cloud.positions is None else "token time t"


def _principal(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all depths in their two principal directions, and the share of variance of each."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((2, flat.shape[1]))
    plane[: len(directions[:2])] = directions[:2]
    powers = np.zeros(2)
    powers[: len(sizes[:2])] = sizes[:2] ** 2
    return (centred @ plane.T).reshape(*tokens.shape[:2], 2), powers / max(float((sizes**2).sum()), 1e-300)
