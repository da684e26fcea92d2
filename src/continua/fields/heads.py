"""Continuous heads: theta(h, z) and their density rho(h, z), read at the nodes of a quadrature rule over h."""

import copy
import dataclasses
import functools
import math
from typing import NamedTuple, final

import torch

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import DepthValue, Float, Tensor
from continua.fields.expansion import constant_coefficients, is_rigid, modal_spaces, modes_at, spread_of, turning_leaves
from continua.fields.field import AbstractField, generator_shape, parameter_dict, turn
from continua.operators import Filled, Role, Spec, Structure, Theta, leaves, map_leaves
from continua.spaces.axis import TensorTable
from continua.spaces.bases import AbstractBasis, BSpline, Legendre
from continua.spaces.parameter_spaces import AbstractParameterSpace, SimplexSpace
from continua.spaces.quadrature import AbstractNodalRule, GaussLegendre


class AbstractHeadField(AbstractField):
    """A field of heads as a measure: theta(h,z) at the nodes h_k of `rule`, with masses p_k = om_k rho(h_k,z).

        rho(h,z) = sum_a c_a(z) (n+1) B_a^n(h) ,   c(z) on the simplex

    in the Bernstein polynomials of degree n: not negative, and of integral one exactly under any rule that is exact
    for degree n, so that a model trained with 6 head nodes runs with 12 (`at_nodes`). Serves operators whose heads are
    a measure; leaves without a head axis are functions of z alone (docs/mathematics.md, section 1).
    """

    def __init__(self, spec: Theta, degree: int, rule: AbstractNodalRule, over_h: AbstractBasis) -> None:
        super().__init__(spec)
        at_least(0, degree=degree)
        self.degree, self.rule, self.over_h = degree, rule, over_h
        self.heads = _heads_of(self.structure)
        self._read_at(self.heads)

    @final
    def at_nodes(self, heads: int) -> "AbstractHeadField":
        """The same field, parameters shared, read at another number of head nodes."""
        other = copy.copy(self)
        other._read_at(heads)
        other._use(map_leaves(lambda leaf: _resize(leaf, heads), self.spec))
        return other

    @final
    def masses(self, z: float) -> Float[Tensor, " heads"]:
        """p_k(z)."""
        return head_masses(self, z)[0]

    @final
    def weights(self, like: Tensor) -> Float[Tensor, " heads"]:
        """om_k, the weights of the rule at the nodes, in the dtype and on the device of `like`."""
        return self._nodes(like).weights

    @final
    def effective_heads(self, z: float) -> float:
        """H exp(-sum_k p_k log(p_k/om_k)): H for a uniform density, fewer the more it collapses."""
        p = self.masses(z).detach()
        om = self.weights(p)
        return self.heads * math.exp(-float(torch.special.xlogy(p, p / om).sum()))

    @final
    def _read_at(self, heads: int) -> None:
        _check_rule(self.rule, heads, self.degree)
        self.heads = heads
        # made here, so that compiled code finds tensors and no recipe for them
        self._tables = _at_nodes(self.rule, heads, self.over_h, self.degree)

    @final
    def _nodes(self, like: Tensor) -> "_Nodes":
        theta, masses, weights = self._tables
        return _Nodes(theta.like(like), masses.like(like), weights.like(like))


@final
class ContinuousHeads(AbstractHeadField):
    """theta(h,z) = sum_ab C_ab phi_a(h) psi_b(z/Z), rho(h,z) = sum_ab c_ab (n+1) B_a^n(h) N_b(z/Z).

    phi_a and psi_b are any bases over h and z; N_b are the B-splines `density_over_z` (`over_z` itself where that is
    one), which are positive and sum to one, as each column c_.b does: c = softmax of free logits over a. Every step of
    every optimiser leaves rho a density. Kernels with orthonormal columns are W exp(S(h,z)), as in `Expansion`: S
    starts different from head to head, as equal heads would stay equal, and constant in z.
    """

    def __init__(
        self,
        spec: Theta,
        depth: float = 1.0,
        over_h: AbstractBasis = Legendre(4),
        over_z: AbstractBasis = BSpline(4),
        degree: int = 3,
        rule: AbstractNodalRule = GaussLegendre(),
        generator: torch.Generator | None = None,
        density_over_z: BSpline | None = None,
    ) -> None:
        super().__init__(spec, degree, rule, over_h)
        positive(depth=depth)
        self.over_z = over_z
        self.depth = self.reach = float(depth)
        own = over_z if isinstance(over_z, BSpline) else BSpline(4)
        self.density_over_z = own if density_over_z is None else density_over_z
        self.breaks = tuple(sorted({self.depth * b for basis in (over_z, self.density_over_z) for b in basis.breaks}))
        self._turning = turning_leaves(self.structure)
        keyed = self.structure.keyed
        self.coefficients = parameter_dict({key: self._initial(leaf, generator) for key, leaf in keyed})
        self.frames = parameter_dict(
            {key: leaf.law.draw(own_shape(leaf), generator) for key, leaf in keyed if is_rigid(leaf)}
        )

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        with torch.autocast(next(self.coefficients.parameters()).device.type, enabled=False):
            return self._read(z, inside)  # weights keep their own precision

    def _read(self, z: DepthValue, inside: DepthValue | None) -> Theta:
        coefficients = [*self.structure.read(self.coefficients)]
        like = coefficients[0]
        nodes = self._nodes(like)
        psi = modes_at(self.over_z, self.depth, z, inside, like)  # (size,) or (batch, size)
        # phi_a(h_k) psi_b(z) for all leaves at once: each is then one product with its coefficients
        both = (nodes.theta[:, :, None] * psi[..., None, None, :]).flatten(-2)  # (..., heads, modes)
        values = []
        for spec, C in zip(self.structure.specs, coefficients, strict=True):
            if spec.role is Role.HEAD_MASS:
                values.append(self._masses_of(C, z, inside))
            elif spec.role is Role.HEAD:
                values.append((both @ C.flatten(0, 1).flatten(1)).view(*both.shape[:-1], *C.shape[2:]))
            else:
                values.append((psi @ C.flatten(1)).view(*psi.shape[:-1], *C.shape[1:]))
        for i, key, space in self._turning:
            values[i] = turn(space, self.frames[key], values[i])
        return self.structure.unflatten(values)

    def _masses_of(self, C: Tensor, z: DepthValue, inside: DepthValue | None = None) -> Tensor:
        N = modes_at(self.density_over_z, self.depth, z, inside, C)
        return N @ torch.softmax(C, 0).mT @ self._tables[1].like(C).mT

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        # logits of the density's columns c_.b, whose degrees run along the axis before the last
        return modal_spaces(self.structure, SimplexSpace(-2))

    def _initial(self, spec: Spec, generator: torch.Generator | None) -> Tensor:
        if spec.role is Role.HEAD_MASS:
            return torch.zeros(self.degree + 1, self.density_over_z.size)
        # gains and biases start constant in depth, and generators of orthonormal kernels
        constant = isinstance(spec.law, Filled) or is_rigid(spec)
        over_z = constant_coefficients(self.over_z) if constant else spread_of(self.over_z)
        over_h = [head_factors(spec, self.over_h)] if spec.role is Role.HEAD else []
        return draw_modes(spec, own_shape(spec), [*over_h, over_z], generator)


def head_masses(field: AbstractField, z: DepthValue) -> list[Float[Tensor, "*batched heads"]]:
    """p_k(z) of every measure of heads in theta(z); of `ContinuousHeads` without the rest of theta."""
    if isinstance(field, ContinuousHeads):
        coefficients = [*field.structure.read(field.coefficients)]
        return [field._masses_of(coefficients[i], z) for i in field._masses]
    values = dict(leaves(field(z)))
    return [values[field.structure.names[i]] for i in field._masses]


def head_factors(spec: Spec, over_h: AbstractBasis) -> Tensor:
    """The sizes of the modes over h at the start: of a constant for gains and biases, of one size for all others."""
    return constant_coefficients(over_h) if isinstance(spec.law, Filled) else spread_of(over_h)


def draw_modes(spec: Spec, shape: tuple[int, ...], factors: list[Tensor], generator: torch.Generator | None) -> Tensor:
    """Initial coefficients of a leaf of this shape, one axis of modes for each of `factors`, the sizes of the modes.

    Of a kernel with orthonormal columns, those of its generator: angles of order one between heads, none in depth.
    """
    sizes = tuple(f.numel() for f in factors)
    if is_rigid(spec):
        own = generator_shape(shape)
        value = torch.zeros(*sizes, *own)
        if spec.role is Role.HEAD:
            value = torch.randn(sizes[0], *(1 for _ in sizes[1:]), *own, generator=generator) / math.sqrt(own[-1])
    else:
        value = spec.law.draw((*sizes, *shape), generator)
    for axis, f in enumerate(factors):
        value = value * f.to(value).view(*(-1 if i == axis else 1 for i in range(value.ndim)))
    return value


class _Nodes(NamedTuple):
    """What the bases over h are at the nodes h_k of the rule."""

    theta: Float[Tensor, "heads modes"]
    """phi_a(h_k)"""
    masses: Float[Tensor, "heads degrees"]
    """om_k (n+1) B_a^n(h_k)"""
    weights: Float[Tensor, " heads"]
    """om_k"""


# No inference tensors: what is kept serves training too, whoever asks first.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def _at_nodes(
    rule: AbstractNodalRule, heads: int, over_h: AbstractBasis, degree: int
) -> tuple[TensorTable, TensorTable, TensorTable]:
    """What `_Nodes` holds, in float64."""
    nodes, weights = rule.nodes(heads)
    bernstein = BSpline(degree + 1, degree).evaluate(nodes) * (degree + 1)
    return TensorTable(over_h.evaluate(nodes)), TensorTable(weights[:, None] * bernstein), TensorTable(weights)


def _heads_of(structure: Structure) -> int:
    """The number of heads that all leaves with heads agree on."""
    named = [(name, leaf) for name, leaf in structure.named if leaf.role is not Role.PLAIN]
    if not any(leaf.role is Role.HEAD_MASS for _, leaf in named):
        cure = "Build the operator with Attention(heads, key_size, head_masses=True)."
        reject("spec", list(structure.names), "no head has a mass, so the heads are no measure", cure)
    sizes = {name: leaf.shape[0] for name, leaf in named}
    if len(set(sizes.values())) > 1:
        reject("spec", sizes, "one field of heads has one number of nodes", "Give each attention a field of its own.")
    return next(iter(sizes.values()))


def own_shape(spec: Spec) -> tuple[int, ...]:
    """The shape of a leaf without its head axis."""
    return spec.shape if spec.role is Role.PLAIN else spec.shape[1:]


def _resize(spec: Spec, heads: int) -> Spec:
    return spec if spec.role is Role.PLAIN else dataclasses.replace(spec, shape=(heads, *spec.shape[1:]))


def _check_rule(rule: AbstractNodalRule, heads: int, degree: int) -> None:
    if heads < 1 or rule.degree(heads) < degree:
        enough = [n for n in range(1, degree + 2) if rule.degree(n) >= degree]
        cure = f"Pass {f'at least {enough[0]}' if enough else 'another rule'}, or a density of lower degree."
        reject("head_nodes", heads, f"{heads} nodes do not integrate a density of degree {degree} exactly", cure)
