"""Laws that every operator obeys; joining `all_operators` means facing them all."""

import inspect
import math

import pytest
import torch

from continua import operators
from continua.operators import AbstractNorm, AbstractOperator, Binding, Dropout, PostNorm, PreNorm, Sum, leaves, rebuild
from continua.spaces import Cloud
from registries import OperatorCase, all_operators

WIDTH, BATCH, TOKENS = 6, 3, 5
each_operator = pytest.mark.parametrize("case", all_operators, ids=repr)
each_measure = pytest.mark.parametrize("weighted", [False, True], ids=["counting", "weighted"])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def tokens(seed: int, weighted: bool, count: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points, masses and strictly increasing positions."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(BATCH, count, WIDTH, generator=generator, dtype=torch.float64)
    mass = torch.rand(BATCH, count, generator=generator, dtype=torch.float64) + 0.1
    gaps = torch.rand(BATCH, count, generator=generator, dtype=torch.float64) + 0.1
    return points, mass if weighted else torch.ones_like(mass), gaps.cumsum(-1)


def another_cloud() -> Cloud:
    """What cross-attention reads; its times lie among those of `tokens`, or before them."""
    points, mass, positions = tokens(7, True, 4)
    return Cloud(points, mass, positions - 0.5)


def velocity(case: OperatorCase, cloud: Cloud, encoded: Cloud | None = None, seed: int | None = None) -> torch.Tensor:
    theta = case.theta(WIDTH, torch.Generator().manual_seed(1))
    encoded = another_cloud() if encoded is None else encoded
    return case.operator.bind(Binding(cloud, encoded, seed)).velocity(theta, cloud)


@each_operator
@each_measure
def test_tokens_without_order_are_permuted_with_their_velocities(case, weighted):
    points, mass, _ = tokens(0, weighted)
    order = torch.tensor([3, 0, 4, 2, 1])
    if case.causal:  # tokens at one time have no order
        positions = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0], dtype=torch.float64).expand(BATCH, -1).clone()
        order = torch.tensor([0, 3, 1, 2, 4])
    else:
        positions = torch.ones_like(mass)
    expected = velocity(case, Cloud(points, mass, positions))[:, order]
    close(velocity(case, Cloud(points[:, order], mass[:, order], positions)), expected)


@each_operator
def test_order_in_the_memory_does_not_matter(case):
    points, mass, positions = tokens(0, True)
    cloud, encoded = Cloud(points, mass, positions), another_cloud()
    order = torch.tensor([2, 0, 3, 1])
    assert encoded.mass is not None
    level = torch.full_like(encoded.mass, float(positions[:, 2].max()))
    turned = Cloud(encoded.points[:, order], encoded.mass[:, order], level)
    close(velocity(case, cloud, turned), velocity(case, cloud, Cloud(encoded.points, encoded.mass, level)))


@each_operator
@each_measure
def test_splitting_a_token_changes_nothing(case, weighted):
    points, mass, positions = tokens(0, weighted)
    whole, index = velocity(case, Cloud(points, mass, positions)), torch.tensor([0, 1, 2, 2, 3, 4])
    for share in (0.5, 0.1):
        parts = mass[:, index] * torch.tensor([1.0, 1.0, share, 1 - share, 1.0, 1.0], dtype=torch.float64)
        close(velocity(case, Cloud(points[:, index], parts, positions[:, index])), whole[:, index])


@each_operator
def test_splitting_a_token_of_the_memory_changes_nothing(case):
    points, mass, positions = tokens(0, True)
    cloud, encoded, index = Cloud(points, mass, positions), another_cloud(), torch.tensor([0, 0, 1, 2, 3])
    assert encoded.mass is not None and encoded.positions is not None
    parts = encoded.mass[:, index] * torch.tensor([0.5, 0.5, 1.0, 1.0, 1.0], dtype=torch.float64)
    split = Cloud(encoded.points[:, index], parts, encoded.positions[:, index])
    close(velocity(case, cloud, split), velocity(case, cloud, encoded))


@each_operator
@each_measure
@pytest.mark.parametrize("timed", [False, True], ids=["index", "times"])
def test_tokens_without_mass_are_absent(case, weighted, timed):
    """At the end, at the front and in the middle, in the middle and at the end."""
    # A causal query of another cloud needs its time; an index that turns queries and keys counts absent tokens.
    timed = timed or (case.causal and any(isinstance(part, operators.Cross) for part in parts_of(case.operator)))
    timed = timed or any(getattr(part, "rotary", None) is not None for part in parts_of(case.operator))
    points, mass, positions = tokens(0, weighted)
    alone = velocity(case, Cloud(points, mass, positions if timed else None))
    for places in ((5, 6), (0, 3), (2, 6)):
        here = torch.tensor([i for i in range(TOKENS + 2) if i not in places])
        wide = points.new_full((BATCH, TOKENS + 2, WIDTH), math.nan).index_copy(1, here, points)
        light = mass.new_zeros(BATCH, TOKENS + 2).index_copy(1, here, mass)
        times = positions.new_full((BATCH, TOKENS + 2), math.nan).index_copy(1, here, positions) if timed else None
        close(velocity(case, Cloud(wide, light, times))[:, here], alone)


@each_operator
def test_memory_without_mass_is_absent(case):
    points, mass, positions = tokens(0, True)
    cloud, encoded, here = Cloud(points, mass, positions), another_cloud(), torch.tensor([1, 2, 4, 5])
    assert encoded.mass is not None and encoded.positions is not None
    wide = points.new_full((BATCH, 7, WIDTH), math.nan).index_copy(1, here, encoded.points)
    light = mass.new_zeros(BATCH, 7).index_copy(1, here, encoded.mass)
    times = positions.new_full((BATCH, 7), math.nan).index_copy(1, here, encoded.positions)
    close(velocity(case, cloud, Cloud(wide, light, times)), velocity(case, cloud, encoded))


@each_operator
def test_ragged_sequences_are_as_if_alone(case):
    points, mass, positions = tokens(0, True)
    lengths = [5, 2, 1]
    cut = [[row[:n] for row, n in zip(part, lengths, strict=True)] for part in (points, mass, positions)]
    together = velocity(case, Cloud.from_ragged(*cut))
    theta = case.theta(WIDTH, torch.Generator().manual_seed(1))
    encoded = another_cloud()
    assert encoded.mass is not None and encoded.positions is not None
    for row, length in enumerate(lengths):
        cloud = Cloud(*(part[row][None] for part in cut))
        source = Cloud(*(part[row : row + 1] for part in (encoded.points, encoded.mass, encoded.positions)))
        alone = case.operator.bind(Binding(cloud, source)).velocity(theta, cloud)
        close(together[row : row + 1, :length], alone)


@each_operator
def test_one_theta_for_each_sequence(case):
    points, mass, positions = tokens(0, True)
    encoded, generator = another_cloud(), torch.Generator().manual_seed(2)
    thetas = [case.theta(WIDTH, generator) for _ in range(BATCH)]
    named = [dict(leaves(theta)) for theta in thetas]
    stacked = rebuild(thetas[0], {name: torch.stack([each[name] for each in named]) for name in named[0]})
    cloud = Cloud(points, mass, positions)
    together = case.operator.bind(Binding(cloud, encoded)).velocity(stacked, cloud)
    assert encoded.mass is not None and encoded.positions is not None
    for row, theta in enumerate(thetas):
        cloud = Cloud(*(part[row : row + 1] for part in (points, mass, positions)))
        source = Cloud(*(part[row : row + 1] for part in (encoded.points, encoded.mass, encoded.positions)))
        close(together[row : row + 1], case.operator.bind(Binding(cloud, source)).velocity(theta, cloud))


@each_operator
@pytest.mark.parametrize("seed", [None, 5])
def test_a_bound_operator_is_deterministic(case, seed):
    cloud, theta = Cloud(*tokens(0, True)), case.theta(WIDTH, torch.Generator().manual_seed(1))
    binding = Binding(cloud, another_cloud(), seed)
    bound = case.operator.bind(binding)
    first = bound.velocity(theta, cloud)
    assert torch.equal(first, bound.velocity(theta, cloud))
    assert torch.equal(first, case.operator.bind(binding).velocity(theta, cloud))


@each_operator
def test_tokens_are_their_own_source_in_both_dtypes(case):
    parts, generator = tokens(0, True), torch.Generator().manual_seed(1)
    source = another_cloud()
    assert source.mass is not None and source.positions is not None
    for dtype in (torch.float32, torch.float64):
        cloud, theta = Cloud(*(part.to(dtype) for part in parts)), case.theta(WIDTH, generator, dtype)
        encoded = Cloud(*(part.to(dtype) for part in (source.points, source.mass, source.positions)))
        bound = case.operator.bind(Binding(cloud, encoded))
        found = bound.velocity(theta, cloud)
        assert found.shape == cloud.points.shape and found.dtype == dtype
        # Other objects, same tokens: nothing may hang on which object asks.
        again = Cloud.on(cloud.points, cloud.measure)
        assert torch.equal(bound.velocity(theta, again, cloud), found)


# Forward mode in torch compiles its own decompositions with a deprecated call, once.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@each_operator
def test_first_and_second_derivatives(case):
    points, mass, positions = (part[:1, :3] for part in tokens(0, True))
    theta, encoded = case.theta(WIDTH, torch.Generator().manual_seed(1)), another_cloud()
    assert encoded.mass is not None and encoded.positions is not None
    source = Cloud(*(part[:1, :2] for part in (encoded.points, encoded.mass, encoded.positions)))

    def asked(points, mass, second_derivatives):
        cloud = Cloud(points, mass, positions)
        return case.operator.bind(Binding(cloud, source, second_derivatives=second_derivatives)).velocity(theta, cloud)

    inputs = (points.clone().requires_grad_(), mass.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda x, w: asked(x, w, False), inputs, fast_mode=True)
    assert torch.autograd.gradcheck(lambda x, w: asked(x, w, True), inputs, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: asked(x, w, True), inputs, fast_mode=True)


def parts_of(operator: AbstractOperator) -> list[AbstractOperator]:
    inner = [*operator.terms] if isinstance(operator, Sum) else [getattr(operator, "inner", None)]
    return [operator, *(part for one in inner if one is not None for part in parts_of(one))]


def test_the_registry_is_complete():
    used = [part for case in all_operators for part in parts_of(case.operator)]
    norms = {type(part.norm) for part in used if isinstance(part, PreNorm | PostNorm)}
    for base, found in ((AbstractOperator, {type(part) for part in used}), (AbstractNorm, norms)):
        classes = {c for c in vars(operators).values() if inspect.isclass(c) and issubclass(c, base)}
        assert found == {c for c in classes if not inspect.isabstract(c)}
    assert any(isinstance(part, Dropout) for part in used)
