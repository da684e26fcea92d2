"""Laws that every parameter field obeys; joining `all_fields` means facing them all."""

import copy
import inspect

import pytest
import torch

from continua import fields
from continua.core.arguments import arguments_of
from continua.fields import AbstractField, Expansion
from continua.operators import Attention, Binding, Damping, FeedForward, LayerNorm, PreNorm, Role, Sum, leaves
from continua.spaces import Cloud
from registries import all_fields, all_head_fields, all_operators

WIDTH = 6
HEADS = PreNorm(LayerNorm(), Attention(heads=2, key_size=3, head_masses=True))
SPEC = Sum((PreNorm(LayerNorm(), FeedForward(hidden=3)), HEADS, Damping(0.1))).spec(WIDTH)
DEPTHS = [0.0, 0.25, 0.5, 1.3, 2.0, 2.9, 3.0]
BOTH = {**all_fields, **all_head_fields}
each_field = pytest.mark.parametrize("make", BOTH.values(), ids=BOTH.keys())


def built(make, spec=SPEC, seed: int = 0, stirred: bool = True) -> AbstractField:
    """A field in float64; stirred, so that no two pieces or modes are equal, gains and biases included."""
    generator = torch.Generator().manual_seed(seed)
    field = make(spec, generator).double()
    for parameter in field.parameters() if stirred else ():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return field


def values(theta) -> dict[str, torch.Tensor]:
    return dict(leaves(theta))


def equal(one, other) -> bool:
    one, other = values(one), values(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", all_operators, ids=repr)
def test_any_field_serves_any_operator(case):
    """Every field, at one depth and at one for each sequence; a test for each pair would cost more than the pairs."""
    spec = case.operator.spec(WIDTH)
    points = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cloud = Cloud(points, positions=torch.arange(4.0, dtype=torch.float64).expand(2, -1).clone())
    bound = case.operator.bind(Binding(cloud, Cloud(points, None, cloud.positions)))
    masses = any(leaf.role is Role.HEAD_MASS for _, leaf in leaves(spec))
    for name, make in (BOTH if masses else all_fields).items():
        field = built(make, spec)
        parameters = list(field.parameters())
        for z in (0.7, torch.tensor([0.7, 2.3], dtype=torch.float64)):
            velocity = bound.velocity(field(z), cloud)
            assert velocity.shape == points.shape and bool(torch.isfinite(velocity).all()), name
            if parameters:
                found = torch.autograd.grad(velocity.square().sum(), parameters, allow_unused=True)
                reached = sum(g is not None for g in found)
                assert reached >= (1 if field.breaks else len(parameters)), name


@each_field
def test_theta_has_the_form_of_the_specification(make):
    field = built(make)
    for z in DEPTHS:
        shapes = {name: tuple(leaf.shape) for name, leaf in leaves(field(z))}
        assert shapes == {name: leaf.shape for name, leaf in leaves(SPEC)}


@each_field
def test_breaks_increase_and_the_field_is_smooth_between_them(make):
    field, step = built(make), 1e-7
    assert list(field.breaks) == sorted(set(field.breaks))
    for z in DEPTHS:
        if z not in field.breaks and 0 < z < 3:
            before, after = values(field(z - step)), values(field(z + step))
            assert all(float((after[name] - before[name]).detach().abs().max()) < 1e-4 for name in before)


@each_field
def test_inside_picks_the_side_of_a_jump(make):
    field = built(make)
    for z in (*field.breaks, 1.3):
        left, right = field(z, z - 0.1), field(z, z + 0.1)
        assert equal(right, field(z))
        if isinstance(field, Expansion) and getattr(field.basis, "degree", 0) == 1:  # a kink: both sides agree
            torch.testing.assert_close(values(left), values(right), rtol=0, atol=1e-12)
            continue
        assert equal(left, right) is (z not in field.breaks)
        nearly = values(field(z - 1e-9))
        torch.testing.assert_close(values(left), nearly, rtol=0, atol=1e-6)  # a slope of at most 1e3


@each_field
@pytest.mark.parametrize("shift", [None, -0.1, 0.1], ids=["anywhere", "from the left", "from the right"])
def test_depths_of_their_own_equal_a_loop(make, shift):
    field = built(make)
    z = torch.tensor(DEPTHS[1:-1], dtype=torch.float64)
    inside = None if shift is None else z + shift
    together = values(field(z, inside))
    for row, depth in enumerate(z.tolist()):
        alone = values(field(depth, None if shift is None else depth + shift))
        torch.testing.assert_close({n: v[row] for n, v in together.items()}, alone, rtol=1e-13, atol=1e-13)


@each_field
def test_gradients_to_the_parameters(make):
    field = built(make, Sum((FeedForward(hidden=2), Attention(heads=2, key_size=1, head_masses=True))).spec(2))
    names, parameters = zip(*field.named_parameters(), strict=True)

    def asked(z, *given):
        theta = torch.func.functional_call(field, dict(zip(names, given, strict=True)), (z,))
        return tuple(leaf for _, leaf in leaves(theta))

    for z in (0.7, torch.tensor([0.2, 2.6], dtype=torch.float64)):
        assert torch.autograd.gradcheck(asked, (z, *(p.detach().requires_grad_() for p in parameters)), fast_mode=True)


@each_field
def test_state_dict_and_recipe_rebuild_the_field(make):
    field, other = built(make), built(make, seed=1)
    if len(list(field.parameters())):
        assert not equal(field(1.3), other(1.3))
    other.load_state_dict(field.state_dict())
    again = type(field)(**arguments_of(field)).double()
    again.load_state_dict(field.state_dict())
    for z in DEPTHS:
        assert equal(field(z), other(z)) and equal(field(z), again(z))
    assert again.breaks == field.breaks


@each_field
def test_a_deep_copy_lives_on_its_own(make):
    field = built(make)
    twin, before = copy.deepcopy(field), {n: v.clone() for n, v in values(field(1.3)).items()}
    assert equal(field(1.3), twin(1.3))
    for parameter in twin.parameters():
        parameter.data += 1.0
    assert all(torch.equal(before[name], leaf) for name, leaf in leaves(field(1.3)))
    assert not equal(field(1.3), twin(1.3))


@each_field
def test_the_generator_decides_the_initial_values(make):
    first, same, other = (built(make, seed=seed, stirred=False) for seed in (0, 0, 1))
    assert equal(first(1.3), same(1.3)) and not equal(first(1.3), other(1.3))


@each_field
def test_gains_and_biases_start_as_constants(make):
    field = built(make, HEADS.spec(WIDTH), stirred=False)
    for z in DEPTHS:
        theta = field(z)
        # Their coefficients were made in float32.
        torch.testing.assert_close(theta.norm.gain, torch.ones(WIDTH, dtype=torch.float64), rtol=0, atol=1e-6)
        assert bool((theta.norm.bias == 0).all()) and bool((theta.inner.bo == 0).all())


@each_field
def test_dtype_follows_the_module(make):
    field = make(SPEC, torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        field = field.to(dtype)
        depths = torch.tensor([0.1, 2.0], dtype=torch.float64)
        for theta in (field(0.5), field(depths), field(depths.float()), field(depths, depths - 0.05)):
            assert all(leaf.dtype == dtype for _, leaf in leaves(theta))


@pytest.mark.parametrize("make", all_fields.values(), ids=all_fields.keys())
def test_an_operator_without_parameters_needs_no_field(make):
    spec = Damping(0.1).spec(WIDTH)
    field = built(make, spec)
    assert field(1.0) == spec == field(torch.tensor([0.5, 1.0]))
    assert list(field.parameters()) == []


@each_field
def test_masses_are_masses_whatever_the_parameters_are(make):
    field = built(make)
    for parameter in field.parameters():
        parameter.data *= 4.0
    names = [name for name, leaf in leaves(SPEC) if leaf.role is Role.HEAD_MASS]
    for z in (*DEPTHS, torch.tensor([0.2, 1.7], dtype=torch.float64)):
        for p in (values(field(z))[name].detach() for name in names):
            assert float(p.min()) > 0.0 and float((p.sum(-1) - 1.0).abs().max()) < 1e-14


@each_field
def test_a_structure_reads_parameters_that_were_exchanged(make):
    field = built(make)
    others = {name: parameter + 0.1 for name, parameter in field.named_parameters()}
    exchanged = torch.func.functional_call(field, others, (0.7,))
    assert not equal(exchanged, field(0.7))
    field.load_state_dict(others)
    assert equal(exchanged, field(0.7)) and equal(copy.deepcopy(field)(0.7), field(0.7))


def test_the_registry_is_complete():
    classes = {c for c in vars(fields).values() if inspect.isclass(c) and issubclass(c, AbstractField)}
    made = {type(make(SPEC, torch.Generator())) for make in BOTH.values()}
    own = (
        fields.ModuleField
    )  # holds a module of the user's, and no parameters of a spec: tests/fields/test_module_parts.py
    assert made == {c for c in classes if not inspect.isabstract(c)} - {own}
