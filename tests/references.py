"""The mathematics written out a second time, slowly and plainly, for the fast paths to be held against."""

import math

import torch

from continua.operators import AttentionTheta, leaves
from continua.spaces import CentredSphere, Sphere


def manifold_defect(manifold: Sphere | CentredSphere, x: torch.Tensor) -> float:
    """The largest violation of |x| = r, and of mean(x) = 0 where the sphere is centred, as a length."""
    radius = math.sqrt(x.shape[-1]) if manifold.radius is None else manifold.radius
    off_sphere = (torch.linalg.vector_norm(x, dim=-1) - radius).abs()
    off_plane = math.sqrt(x.shape[-1]) * x.mean(dim=-1).abs() * isinstance(manifold, CentredSphere)
    return float(torch.maximum(off_plane, off_sphere).max())


def measure_of_queries(
    mass: torch.Tensor,
    causal: bool,
    asked: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    own: torch.Tensor | None = None,
) -> torch.Tensor:
    """Row i is the measure that query i integrates against, (batch, queries, tokens).

    `asked` are the times of the queries, by default the positions of the tokens, by default their index.
    """
    tokens = mass.shape[-1]
    times = torch.arange(tokens).expand(mass.shape) if positions is None else positions
    asked = times if asked is None else asked
    rows = mass.unsqueeze(-2).expand(-1, asked.shape[-1], -1)
    if not causal:
        return rows
    if own is not None:
        rows = torch.where(torch.eye(tokens, dtype=torch.bool), own.unsqueeze(-1), rows)
    return rows * (times.unsqueeze(-2) <= asked.unsqueeze(-1))


def written_out_attention(
    theta: AttentionTheta, queries: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor, beta: float
) -> torch.Tensor:
    """sum_k p_k O_k^T (int V_k y e^{beta <Q_k x, K_k y>} dmu / int e^{beta <Q_k x, K_k y>} dmu) + bo.

    Weights multiply exponentials, no logarithm of a mass is ever taken, and an empty measure gives zero.
    """
    out = torch.zeros_like(queries)
    for b in range(len(queries)):
        for h in range(len(theta.q)):
            q = queries[b] @ theta.q[h].T + (0.0 if theta.bq is None else theta.bq[h])
            k = tokens[b] @ theta.k[h].T + (0.0 if theta.bk is None else theta.bk[h])
            v = tokens[b] @ theta.v[h].T + (0.0 if theta.bv is None else theta.bv[h])
            logits = beta * (q @ k.T)
            # A token that weighs nothing may have a logit above the highest of those that do: keep exp finite.
            heard = torch.where(rows[b] > 0, logits, logits.detach().min())
            weighed = rows[b] * torch.exp(heard - heard.detach().amax(-1, keepdim=True))
            total = weighed.sum(-1, keepdim=True)
            mean = (weighed @ v) / torch.where(total > 0, total, 1.0)
            share = 1.0 if theta.p is None else theta.p[h]
            out[b] = out[b] + share * (mean @ theta.o[h])
    return out if theta.bo is None else out + theta.bo


def gradients(output: torch.Tensor, inputs: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    """Gradients of a random linear functional of `output`."""
    generator = torch.Generator().manual_seed(seed)
    functional = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
    return list(torch.autograd.grad((output * functional).sum(), inputs))


def count_numbers(spec) -> int:
    """How many numbers theta holds at one depth."""
    return sum(math.prod(leaf.shape) for _, leaf in leaves(spec))
