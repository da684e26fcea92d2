"""Continuous heads: theta(h, z) and their density rho(h, z), read at the nodes of a quadrature rule over h."""

import copy
import dataclasses
import functools
import math
from typing import Any, NamedTuple, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Tensor
from continua.fields.expansion import constant_coefficients, modes_at, spread_of
from continua.fields.field import AbstractField, check_depth, check_loaded, check_simplex, key, refuse_orthonormal
from continua.operators import Filled, Role, Spec, Theta, leaves, map_leaves, rebuild
from continua.spaces import (
    AbstractBasis,
    AbstractNodalRule,
    AbstractParameterSpace,
    BSpline,
    GaussLegendre,
    Legendre,
    SimplexSpace,
)


@final
class ContinuousHeads(AbstractField):
    """theta(h,z) = sum_ab C_ab phi_a(h) N_b(z/Z), rho(h,z) = sum_ab c_ab (n+1) B_a^n(h) N_b(z/Z).

    Read at the nodes h_k of a rule with weights om_k: theta_k = theta(h_k,z), p_k = om_k rho(h_k,z). phi_a is any basis
    over h, N_b the B-splines of depth, B_a^n the Bernstein polynomials of degree n. Each column c_.b is on the simplex,
    so rho is not negative and its integral over h is one, exactly so under any rule that is exact for degree n: a model
    trained with 6 head nodes runs with 12 (`at_nodes`). Serves operators whose heads are a measure; parameters without
    a head axis are expanded in z alone (docs/mathematics.md, section 1).
    """

    def __init__(
        self,
        spec: Theta,
        depth: float = 1.0,
        over_h: AbstractBasis = Legendre(4),
        over_z: BSpline = BSpline(4),
        degree: int = 3,
        rule: AbstractNodalRule = GaussLegendre(),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_depth(depth)
        if degree < 0:
            reject("degree", degree, "a density is a polynomial over h", "Pass degree >= 0.")
        refuse_orthonormal(spec, "a sum over modes of such kernels is not one")
        self.spec, self.depth, self.over_h, self.over_z = spec, float(depth), over_h, over_z
        self.degree, self.rule = degree, rule
        self.heads = _heads_of(spec)
        _check_rule(rule, self.heads, degree)
        made = {name: self._initial(leaf, generator) for name, leaf in leaves(spec)}
        self.coefficients = nn.ParameterDict({key(name): nn.Parameter(value) for name, value in made.items()})
        self.register_load_state_dict_pre_hook(_check_loaded)

    def at_nodes(self, heads: int) -> "ContinuousHeads":
        """The same field, parameters shared, read at another number of head nodes."""
        _check_rule(self.rule, heads, self.degree)
        other = copy.copy(self)
        other.heads, other.spec = heads, map_leaves(lambda leaf: _resize(leaf, heads), self.spec)
        return other

    @property
    def breaks(self) -> tuple[float, ...]:
        return tuple(self.depth * b for b in self.over_z.breaks)

    @property
    def reach(self) -> float:
        return self.depth

    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        like = next(iter(self.coefficients.values()))
        N = modes_at(self.over_z, self.depth, z, inside, like)  # (size,) or (batch, size)
        values = {name: self._leaf(leaf, self.coefficients[key(name)], N) for name, leaf in leaves(self.spec)}
        return rebuild(self.spec, values)

    def masses(self, z: float) -> Float[Tensor, " heads"]:
        """p_k(z)."""
        name = next(name for name, leaf in leaves(self.spec) if leaf.role is Role.HEAD_MASS)
        return dict(leaves(self(z)))[name]

    def weights(self, like: Tensor) -> Float[Tensor, " heads"]:
        """om_k, the weights of the rule at the nodes, in the dtype and on the device of `like`."""
        return self._nodes(like).weights

    def effective_heads(self, z: float) -> float:
        """H exp(-sum_k p_k log(p_k/om_k)): H for an even density, fewer the more it collapses."""
        p = self.masses(z).detach()
        om = self.weights(p)
        return self.heads * math.exp(-float(torch.special.xlogy(p, p / om).sum()))

    def check(self) -> None:
        """Refuses densities whose coefficients left the simplex, as an optimiser of another geometry would have it."""
        for name, leaf in leaves(self.spec):
            if leaf.role is Role.HEAD_MASS:
                check_simplex(name, self.coefficients[key(name)])

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Columns c_.b of the density on the simplex, one for each mode over depth; all else as the leaves themselves.

        Their degrees run along the axis before the last. A mirror step keeps them there, and rho a density.
        """
        homes = {key(name): leaf.home for name, leaf in leaves(self.spec)}
        spaces = {name: SimplexSpace(-2) if isinstance(home, SimplexSpace) else home for name, home in homes.items()}
        return {f"coefficients.{name}": space for name, space in spaces.items()}

    def arguments(self) -> dict[str, Any]:
        names = ("spec", "depth", "over_h", "over_z", "degree", "rule")
        return {name: getattr(self, name) for name in names}

    def _initial(self, spec: Spec, generator: torch.Generator | None) -> Tensor:
        if spec.role is Role.HEAD_MASS:
            return torch.full((self.degree + 1, self.over_z.size), 1.0 / (self.degree + 1))
        modes = [self.over_z] if spec.role is Role.PLAIN else [self.over_h, self.over_z]
        own = spec.shape if spec.role is Role.PLAIN else spec.shape[1:]
        shape = (*(basis.size for basis in modes), *own)
        filled = isinstance(spec.law, Filled)
        value = spec.law.draw(shape, generator)
        for axis, basis in enumerate(modes):
            factors = constant_coefficients(basis) if filled else spread_of(basis)
            value = value * factors.to(value).view(*(-1 if i == axis else 1 for i in range(value.ndim)))
        return value

    def _leaf(self, spec: Spec, C: Tensor, N: Tensor) -> Tensor:
        if spec.role is Role.PLAIN:
            return (N @ C.flatten(1)).view(*N.shape[:-1], *spec.shape)
        nodes = self._nodes(C)
        rows = nodes.theta if spec.role is Role.HEAD else nodes.masses
        at_depth = torch.einsum("...b,abx->...ax", N, C.flatten(2) if C.ndim > 2 else C.unsqueeze(2))
        return torch.einsum("ka,...ax->...kx", rows, at_depth).reshape(*N.shape[:-1], *spec.shape)

    def _nodes(self, like: Tensor) -> "_Nodes":
        return _at_nodes(self.rule, self.heads, self.over_h, self.degree, like.dtype, like.device)


class _Nodes(NamedTuple):
    """What the bases over h are at the nodes h_k of the rule."""

    theta: Float[Tensor, "heads modes"]
    """phi_a(h_k)"""
    masses: Float[Tensor, "heads degrees"]
    """om_k (n+1) B_a^n(h_k)"""
    weights: Float[Tensor, " heads"]
    """om_k"""


# Computed in float64 for every dtype, and no inference tensors: what is kept serves training too, whoever asks first.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def _at_nodes(
    rule: AbstractNodalRule,
    heads: int,
    over_h: AbstractBasis,
    degree: int,
    dtype: torch.dtype,
    device: torch.device,
) -> _Nodes:
    nodes, weights = rule.nodes(heads)
    bernstein = BSpline(degree + 1, degree).evaluate(nodes) * (degree + 1)
    return _Nodes(*(x.to(device, dtype) for x in (over_h.evaluate(nodes), weights[:, None] * bernstein, weights)))


def _heads_of(spec: Theta) -> int:
    """The number of heads that all leaves with heads agree on."""
    named = [(name, leaf) for name, leaf in leaves(spec) if leaf.role is not Role.PLAIN]
    if not any(leaf.role is Role.HEAD_MASS for _, leaf in named):
        cure = "Build the operator with Attention(heads, key, measured=True)."
        reject("spec", [name for name, _ in leaves(spec)], "no head has a mass, so the heads are no measure", cure)
    sizes = {name: leaf.shape[0] for name, leaf in named}
    if len(set(sizes.values())) > 1:
        reject("spec", sizes, "one field of heads has one number of nodes", "Give each attention a field of its own.")
    return next(iter(sizes.values()))


def _resize(spec: Spec, heads: int) -> Spec:
    return spec if spec.role is Role.PLAIN else dataclasses.replace(spec, shape=(heads, *spec.shape[1:]))


def _check_rule(rule: AbstractNodalRule, heads: int, degree: int) -> None:
    if heads < 1 or rule.degree(heads) < degree:
        cure = "Use more head nodes, or a density of lower degree."
        reject("heads", heads, f"{heads} nodes do not integrate a density of degree {degree} exactly", cure)


def _check_loaded(field: ContinuousHeads, state: dict[str, Any], prefix: str, *_: Any) -> None:
    check_loaded(((f"{prefix}coefficients.{key(name)}", leaf) for name, leaf in leaves(field.spec)), state)
