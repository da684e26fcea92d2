"""Steady flow through a porous medium on the unit square, by finite volumes."""

import math

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor

_MOST = 500
"""Iterations after which a solve is given up."""


def darcy_solution(
    conductivity: Float[Tensor, "batch nodes nodes"],
    source: Float[Tensor, "batch inner inner"],
    tolerance: float = 1e-10,
) -> Float[Tensor, "batch nodes nodes"]:
    """u with -div(a grad u) = f on the unit square and u = 0 on its border, at the nodes of an equispaced grid.

    `conductivity` a is given at all nodes, `source` f at the inner ones. The flux between neighbours i and j is
    a_ij (u_i - u_j)/h with the harmonic mean a_ij = 2 a_i a_j/(a_i + a_j); its error is O(h^2) where a is smooth.

    Solved for all of the batch at once by conjugate gradients until |r| <= tolerance |f|, preconditioned by
    a^{-1/2} L^{-1} a^{-1/2}, L the operator for a = 1, which sine transforms invert: the number of iterations hardly
    depends on the grid. After P. Concus and G. H. Golub, Use of fast direct methods for the efficient numerical
    solution of nonseparable elliptic equations (1973).
    """
    _check(conductivity, source)
    a = conductivity
    intervals = a.shape[-1] - 1
    root = a[:, 1:-1, 1:-1].sqrt()
    sines, spectrum = _sines(intervals, a.dtype)

    def preconditioned(r: Tensor) -> Tensor:
        return sines @ (sines @ (r / root) @ sines / spectrum) @ sines / root

    u = torch.zeros_like(source)
    r = source.clone()
    z = preconditioned(r)
    p, product = z, _inner(r, z)
    goal = tolerance * _inner(source, source).sqrt()
    for _ in range(_MOST):
        if bool((_inner(r, r).sqrt() <= goal).all()):
            return torch.nn.functional.pad(u, (1, 1, 1, 1))
        image = _applied(a, p)
        step = product / _inner(p, image).clamp_min(torch.finfo(a.dtype).tiny)
        u, r = u + step * p, r - step * image
        z = preconditioned(r)
        before, product = product, _inner(r, z)
        p = z + product / before.clamp_min(torch.finfo(a.dtype).tiny) * p
    contrast = float(a.max() / a.min())
    reject("conductivity", f"contrast {contrast:.3g}", f"{_MOST} iterations were too few", "Pass a smaller contrast.")


def _applied(a: Float[Tensor, "batch nodes nodes"], u: Float[Tensor, "batch inner inner"]) -> Tensor:
    """The sum of the fluxes out of each inner node's cell, over its area."""
    u = torch.nn.functional.pad(u, (1, 1, 1, 1))
    total = torch.zeros_like(u[:, 1:-1, 1:-1])
    for axis in (1, 2):
        size = a.shape[axis] - 1
        left, right = a.narrow(axis, 0, size), a.narrow(axis, 1, size)
        flux = 2 * left * right / (left + right) * u.diff(dim=axis)
        total -= flux.diff(dim=axis).narrow(3 - axis, 1, size - 1)
    return total * (a.shape[-1] - 1) ** 2


def _sines(intervals: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The orthonormal symmetric matrix of sine waves, and the eigenvalues of L on their products."""
    k = torch.arange(1, intervals, dtype=dtype)
    sines = math.sqrt(2.0 / intervals) * torch.sin(math.pi * k[:, None] * k / intervals)
    once = (2 * intervals * torch.sin(math.pi * k / (2 * intervals))) ** 2
    return sines, once[:, None] + once


def _inner(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum((1, 2), keepdim=True)


def _check(conductivity: Tensor, source: Tensor) -> None:
    nodes = conductivity.shape[-1]
    if conductivity.dtype != torch.float64 or source.dtype != torch.float64:
        reject(
            "conductivity", conductivity.dtype, "rounding would stop the solve early", "Convert both with .double()."
        )
    if source.shape[-1] != nodes - 2 or nodes < 3:
        cure = "Pass the conductivity at n >= 3 nodes a side, and the source at the n - 2 inner ones."
        reject("source", tuple(source.shape), f"the conductivity has {nodes} nodes a side", cure)
    if not bool((conductivity.isfinite() & (conductivity > 0)).all()):
        low = float(conductivity.min())
        reject("conductivity", f"minimum {low}", "it must be positive and finite", "Pass the exponential of a field.")
