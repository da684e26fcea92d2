"""The recipe: every parameter of every model is assigned once, and all are updated as one."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn

from continua.fields import Constant, ContinuousHeads, Expansion, Hypernetwork, PiecewiseConstant
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, Layers, MeanReadout, Part, load, save
from continua.operators import Attention, Convolution, Dense, FeedForward, LayerNorm, PreNorm, Spectral
from continua.optim import (
    BlockwiseAdamW,
    Composite,
    DualAveraging,
    Frobenius,
    MirrorAdam,
    ModalAdamW,
    Recipe,
    RiemannianAdam,
    use,
)
from continua.solve import Euler, Fixed, Solver
from continua.spaces import Axis, Cloud, Cosine, FlatSpace, GeneratedSpace, SimplexSpace, SpectralSpace, StiefelSpace
from registries import all_presets

WIDTH = 6
AXIS = Axis(3, 2)
HEADS = PreNorm(LayerNorm(), Attention(heads=4, key_size=3, head_masses=True))


def model_of_all_spaces() -> ContinuousTransformer:
    """Continuous heads, a unitary filter, orthonormal layers, a spectral kernel, a hypernetwork."""
    torch.manual_seed(0)
    parts = [
        Part(HEADS, ContinuousHeads(HEADS.spec(WIDTH))),
        *(
            Part(f, field(f.spec(WIDTH)))
            for f, field in (
                (FeedForward(2, kernel=Convolution(AXIS, 1, unitary=True)), Constant),
                (FeedForward(8, kernel=Dense(orthonormal=True)), lambda spec: PiecewiseConstant(spec, (0.0, 0.5, 1.0))),
                (FeedForward(3, kernel=Spectral(AXIS, Cosine(2))), Constant),
                (FeedForward(5), lambda spec: Hypernetwork(spec, hidden=4)),
            )
        ),
    ]
    solver = Solver(Euler(), Fixed(2))
    return ContinuousTransformer(CloudEmbedding(WIDTH), Flow(parts), MeanReadout(WIDTH, 2), solver)


def batch():
    generator = torch.Generator().manual_seed(1)
    return Cloud(torch.randn(4, 5, WIDTH, generator=generator)), torch.randn(4, 2, generator=generator)


def train(model, optimiser, steps):
    cloud, target = batch()
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (model(cloud) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", all_presets)
def test_every_preset_answers_for_every_parameter(name):
    model = all_presets[name](Layers(2, width=8, heads=2, hidden=12))
    spaces = model.parameter_spaces()
    assert spaces.keys() == dict(model.named_parameters()).keys()
    optimiser = Recipe().build(model)
    assigned = list(itertools.chain.from_iterable(g["param_names"] for g in optimiser.param_groups))
    assert sorted(assigned) == sorted(spaces) and len(assigned) == len(set(assigned))


def test_each_space_has_its_optimiser():
    model = model_of_all_spaces()
    spaces, optimiser = model.parameter_spaces(), Recipe().build(model)
    found = {name: optimiser.members[g["member"]] for g in optimiser.param_groups for name in g["param_names"]}
    kinds = {type(spaces[name]): type(found[name]) for name in found if spaces[name] != FlatSpace(1)}
    assert found.keys() == dict(model.named_parameters()).keys()
    assert kinds[SimplexSpace] is MirrorAdam and kinds[StiefelSpace] is RiemannianAdam
    assert kinds[FlatSpace] is kinds[GeneratedSpace] is BlockwiseAdamW and kinds[SpectralSpace] is ModalAdamW
    decays = {
        spaces[n].axes: g["weight_decay"]
        for g in optimiser.param_groups
        for n in g["param_names"]
        if isinstance(spaces[n], FlatSpace | GeneratedSpace)
    }
    assert decays == {2: 1e-2, 1: 0.0}  # biases and gains do not decay


def test_all_spaces_train_as_one_and_stay_what_they_are():
    model = model_of_all_spaces()
    losses = train(model, Recipe().build(model), 40)
    assert losses[-1] < 0.6 * losses[0]
    for name, space in model.parameter_spaces().items():
        assert float(space.defect(model.get_parameter(name).detach())) < 2e-6, name
    for z in (0.0, 0.5, 1.0):
        p = model.flow.parts[0].field.masses(z).detach()
        assert float(p.min()) > 0.0 and float(p.sum()) == pytest.approx(1.0, abs=1e-6)
    kernel, w = model.flow.parts[1].operator.kernel, model.flow.parts[1].field(0.0).w1.detach()
    x = kernel.axis.synthesis(Cosine(1)).repeat(1, 2).flatten().float().view(1, 1, -1)  # constant: within the band
    torch.testing.assert_close(kernel.apply(w, None, x).norm(), x.norm(), rtol=1e-5, atol=0)  # keeps its energy


def test_the_composite_equals_its_members_alone():
    together, apart = (model_of_all_spaces() for _ in range(2))
    composite, members = Recipe().build(together), Recipe().build(apart).members
    cloud, target = batch()
    for _ in range(5):
        for model in (together, apart):
            model.zero_grad()
            (model(cloud) - target).square().mean().backward()
        composite.step()
        for member in members.values():
            member.step()
    for p, q in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_composite_resumes_and_copies():
    whole, half = (model_of_all_spaces() for _ in range(2))
    train(whole, Recipe().build(whole), 8)
    optimiser = Recipe().build(half)
    train(half, optimiser, 3)
    file = io.BytesIO()
    torch.save({"model": half.state_dict(), "optimiser": optimiser.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = model_of_all_spaces()
    resumed.load_state_dict(saved["model"])
    second = Recipe().build(resumed)
    second.load_state_dict(saved["optimiser"])
    third = copy.deepcopy({"model": resumed, "optimiser": second})
    train(resumed, second, 5)
    train(third["model"], third["optimiser"], 5)
    for p, q, r in zip(whole.parameters(), resumed.parameters(), third["model"].parameters(), strict=True):
        assert torch.equal(p, q) and torch.equal(p, r)


def test_spaces_survive_saving(tmp_path):
    model = model_of_all_spaces()
    other = load(save(model, tmp_path))
    assert other.parameter_spaces() == model.parameter_spaces()
    cloud, _ = batch()
    assert torch.equal(other(cloud), model(cloud))


def test_schedulers_see_every_group():
    model = model_of_all_spaces()
    optimiser = Recipe().build(model)
    rates = [g["lr"] for g in optimiser.param_groups]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5**k)
    train(model, optimiser, 1)
    schedule.step()
    assert [g["lr"] for g in optimiser.param_groups] == [0.5 * r for r in rates] and len(set(rates)) > 2


def test_names_come_before_spaces():
    model = model_of_all_spaces()
    recipe = Recipe(
        flat=use(BlockwiseAdamW, lr=2e-3, block=Frobenius()),
        simplex=use(DualAveraging),
        named=(("readout.linear.*", use(BlockwiseAdamW, lr=7e-4)), ("readout.*", use(BlockwiseAdamW, lr=1e-5))),
    )
    rates = {n: g["lr"] for g in recipe.build(model).param_groups for n in g["param_names"]}
    assert rates["readout.linear.weight"] == 7e-4 and rates["readout.normalised.theta.values.gain"] == 1e-5
    with pytest.raises(ValueError, match=r"named = 'reedout.*': no parameter has such a name"):
        Recipe(named=(("reedout.*", use(BlockwiseAdamW)),)).build(model)


class _Odd(nn.Module):
    """Answers as it is told to."""

    def __init__(self, answer):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
        self.again = self.a
        self.answer = answer

    def parameter_spaces(self):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"a": FlatSpace(2)}, r"\['b'\]: these parameters have no space"),
        ({"a": FlatSpace(2), "b": FlatSpace(1), "c": FlatSpace(1)}, r"\['c'\]: .* no parameter"),
        ({"a": FlatSpace(2), "again": FlatSpace(2), "b": FlatSpace(1)}, r"\['again'\]: .* a second time"),
        ({"a": "flat", "b": FlatSpace(1)}, "a = 'flat': the recipe has no optimiser"),
        ({"a": StiefelSpace(), "b": FlatSpace(1)}, r"a = .*U\^H U = I .* is violated"),
    ],
)
def test_answers_that_cannot_be_are_refused(answer, words, unchecked):
    with pytest.raises(ValueError, match=words):
        Recipe().build(_Odd(answer))


def test_any_torch_module_is_served():
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), Constant(FeedForward(5).spec(4)))
    names = [n for g in Recipe().build(module).param_groups for n in g["param_names"]]
    assert sorted(names) == sorted(n for n, _ in module.named_parameters())


def test_a_state_of_another_recipe_is_refused():
    model = model_of_all_spaces()
    saved = Recipe().build(model).state_dict()
    with pytest.raises(ValueError, match="state_dict"):
        Recipe(simplex=use(DualAveraging)).build(model).load_state_dict(saved)


def test_groups_without_a_member_are_refused():
    composite = Composite({"all": BlockwiseAdamW([nn.Parameter(torch.zeros(2))])})
    with pytest.raises(ValueError, match="does not say which member"):
        composite.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    composite.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "member": "all"})
    assert composite.param_groups[1]["lr"] == 1e-3
    with pytest.raises(ValueError, match="members"):
        Composite({})


# --- fields that cannot stay where they should


def test_masses_in_a_basis_of_splines_remain_masses():
    from continua.spaces import BSpline

    field = Expansion(HEADS.spec(WIDTH), BSpline(5))
    assert field.parameter_spaces()["coefficients.inner_p"] == SimplexSpace()
    p = field.coefficients["inner_p"]
    optimiser = MirrorAdam([p], lr=0.3)
    for step in range(20):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
        optimiser.step()
    for z in (0.0, 0.31, 0.77, 1.0):
        masses = field(z).inner.p.detach()
        assert float(masses.min()) > 0 and float(masses.sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("field", [lambda s: Expansion(s, Cosine(3)), Hypernetwork], ids=["Cosine", "Hypernetwork"])
def test_masses_in_any_field_remain_masses_under_the_recipe(field):
    made = field(HEADS.spec(WIDTH))
    optimiser = Recipe().build(made)
    for step in range(30):
        for parameter in made.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        optimiser.step()
    for z in (0.0, 0.31, 0.77, 1.0):
        masses = made(z).inner.p.detach()
        assert float(masses.min()) > 0 and float(masses.sum()) == pytest.approx(1.0, abs=1e-6)
        assert float(masses.std()) > 0.0


def test_orthonormal_kernels_need_fields_that_keep_them():
    operator = Attention(heads=4, key_size=3, head_masses=True, kernel=Dense(orthonormal=True))
    with pytest.raises(ValueError, match=r"q = StiefelSpace.*Expansion or ContinuousHeads"):
        Hypernetwork(operator.spec(WIDTH))


def test_a_density_trained_by_the_mirror_runs_at_other_nodes():
    field = ContinuousHeads(HEADS.spec(WIDTH))
    c = field.coefficients["inner_p"]
    assert field.parameter_spaces()["coefficients.inner_p"] == SimplexSpace(-2)
    optimiser = MirrorAdam([c], lr=0.2, space=SimplexSpace(-2))
    for _ in range(60):
        optimiser.zero_grad()
        field.masses(0.3)[0].neg().backward()
        optimiser.step()
    for heads in (4, 7, 12):
        p = field.at_nodes(heads).masses(0.3).detach()
        assert float(p.sum()) == pytest.approx(1.0, abs=1e-6) and float(p.min()) >= 0.0
    assert field.effective_heads(0.3) < 3.5


def test_schedules_of_torch_that_ask_for_betas_are_served():
    model = model_of_all_spaces()
    optimiser = Recipe().build(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=10)
    firsts = {group["betas"][0] for group in optimiser.param_groups}
    assert firsts == {0.95} and all(group["lr"] == pytest.approx(4e-4) for group in optimiser.param_groups)
    train(model, optimiser, 1)
    schedule.step()
    assert "betas" not in Recipe(simplex=use(DualAveraging)).build(model).defaults


def test_a_group_that_the_composite_refuses_stays_nowhere():
    p, q = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    composite = Composite({"a": BlockwiseAdamW([p]), "b": BlockwiseAdamW([q])})
    with pytest.raises(ValueError, match="more than one parameter group"):
        composite.add_param_group({"params": [p], "member": "b"})
    assert len(composite.members["b"].param_groups) == 1 and len(composite.param_groups) == 2


def test_a_compiled_module_is_its_module():
    model = model_of_all_spaces()
    compiled = torch.compile(model, backend="eager")
    names = [[n for g in Recipe().build(m).param_groups for n in g["param_names"]] for m in (model, compiled)]
    assert names[0] == names[1] and Recipe().whole(compiled) == Recipe().whole(model)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: use(torch.optim.AdamW), "kind = .*AdamW.*BlockwiseAdamW"),
        (lambda: use("AdamW"), "kind = 'AdamW'"),
        (lambda: use(BlockwiseAdamW, block={}), "block = {}"),
        (lambda: Recipe(flat=BlockwiseAdamW), r"flat = .*use\("),
        (lambda: Recipe(named=(("a", BlockwiseAdamW),)), r"named = .*use\("),
        (lambda: Recipe(named=("a", use(BlockwiseAdamW))), r"named = .*use\("),
    ],
)
def test_what_is_no_use_is_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_lists_among_the_options_become_tuples():
    chosen = use(BlockwiseAdamW, betas=[0.9, 0.99])
    assert chosen == use(BlockwiseAdamW, betas=(0.9, 0.99))
    assert {g["betas"] for g in Recipe(flat=chosen, vectors=chosen).build(nn.Linear(2, 2)).param_groups} == {
        (0.9, 0.99)
    }
