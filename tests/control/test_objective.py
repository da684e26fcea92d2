"""The objective tells its terms apart; running costs against closed forms; norms; what is refused."""

import math

import pytest
import torch

import continua
from continua.control import (
    L2,
    AbstractRunningCost,
    AtRandomDepth,
    Batch,
    CrossEntropy,
    DebiasedObjective,
    FieldSize,
    HeadNegentropy,
    JacobianFrobenius,
    JacobianSpectral,
    KineticEnergy,
    MeanSquaredError,
    NextToken,
    Objective,
    PathLength,
    Sobolev,
)
from continua.fields import Constant
from continua.model import (
    CloudEmbedding,
    ContinuousTransformer,
    Flow,
    Layers,
    NormReadout,
    Part,
    Setting,
    encoder_decoder,
)
from continua.operators import Binding, Damping, LayerNorm, Unnormalised
from continua.solve import Adaptive, DormandPrince, Fixed, LieTrotter, PerSequence, Solver, State
from continua.spaces import Axis, Cloud, Trapezoid
from objectives import all_losses, batch_of, model_of

GAMMA = 0.7


def damped(method=DormandPrince(), steps: int = 8) -> ContinuousTransformer:
    """dx/dz = -gamma x: x(z) = x e^(-gamma z), df/dx = -gamma I."""
    flow = Flow([Part(Damping(GAMMA), Constant(Damping(GAMMA).spec(3)))])
    return ContinuousTransformer(
        CloudEmbedding(3), flow, NormReadout(3, Unnormalised()), Solver(method, Fixed(steps))
    ).double()


def clouded(mass=None, positions=None, tokens: int = 4) -> Cloud:
    points = torch.randn(2, tokens, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Cloud(points, mass, positions)


def running(cost, model, cloud) -> float:
    terms = Objective(MeanSquaredError(), (cost,), (1.0,))(model, Batch((cloud,), torch.zeros_like(cloud.points)))
    torch.testing.assert_close(terms.total, terms.terminal + terms.running[cost.name])
    return terms.running[cost.name].item()


MASS = torch.tensor([[0.2, 0.5, 0.1, 0.2], [0.7, 0.1, 0.4, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("mass", [None, MASS], ids=["counting", "masses"])
def test_costs_of_a_damped_flow_are_known(mass):
    cloud, model = clouded(mass), damped()
    w = torch.ones(2, 4, dtype=torch.float64) if mass is None else mass
    squares = (w * cloud.points.square().sum(-1)).sum(-1)
    energy = GAMMA / 2 * (1 - math.exp(-2 * GAMMA))
    assert running(KineticEnergy(), model, cloud) == pytest.approx(energy * squares.mean().item(), rel=1e-8)
    length = (1 - math.exp(-GAMMA)) * squares.sqrt().mean().item()
    assert running(PathLength(), model, cloud) == pytest.approx(length, rel=1e-8)
    heavy = (w > 0).sum().item() * 3 / 2
    assert running(JacobianFrobenius(), model, cloud) == pytest.approx(GAMMA**2 * heavy, rel=1e-8)
    assert running(JacobianSpectral(1), model, cloud) == pytest.approx(GAMMA, rel=1e-8)


def test_split_steps_cost_the_square_of_their_length_by_dz():
    cloud, model = clouded(), damped(LieTrotter(), steps=5)
    shrink = 1 - GAMMA / 5
    steps = sum((shrink**k * (1 - shrink)) ** 2 / 0.2 for k in range(5))
    expected = steps * cloud.points.square().sum((-1, -2)).mean().item()
    assert running(KineticEnergy(), model, cloud) == pytest.approx(expected, rel=1e-12)


def test_hutchinson_is_unbiased_and_power_iterations_find_the_norm(unchecked):
    """Against the whole Jacobian of autograd, in the weighted inner product."""
    loss = all_losses[0]
    model, batch = model_of(loss).eval(), batch_of(loss)
    cloud = model.embedding(*batch.inputs)
    settings = [Setting(model.flow, cloud, None, seed, False) for seed in range(400)]
    bound = settings[0].bind(second_derivatives=True)
    w = cloud.mass[0].repeat_interleave(4).sqrt()
    whole = torch.autograd.functional.jacobian(lambda x: _velocity(bound, 0.3, cloud, x), cloud.points[0].detach())
    whole = w[:, None] * whole.reshape(16, 16) / w[None, :]
    velocity = cloud.points.detach()
    with torch.no_grad():
        drawn = [JacobianFrobenius().bind(s, 0)(0.3, velocity, velocity)[0].item() for s in settings]
        found = JacobianSpectral(60).bind(settings[0], 0)(0.3, velocity, velocity)[0].item()
    mean, deviation = torch.tensor(drawn).mean().item(), torch.tensor(drawn).std().item()
    assert abs(mean - whole.square().sum().item()) < 3 * deviation / 20
    assert found == pytest.approx(torch.linalg.matrix_norm(whole, 2).item(), rel=1e-6)


def _velocity(bound, z, cloud, x):
    return bound(z, State(torch.cat([x[None], cloud.points[1:].detach()]))).x[0]


def test_layer_norm_has_a_right_third_derivative_where_it_is_asked_for():
    """torch's own takes mean and variance for constants there."""
    x = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bound = LayerNorm(affine=False).bind(Binding(Cloud(x), second_derivatives=True))
    u, v = x.flip(-1), x.roll(1, -1).square()

    def twice(y):
        (g,) = torch.autograd.grad((bound.normalise(bound.spec(4), y) * v).sum(), y, create_graph=True)
        (h,) = torch.autograd.grad((g * u).sum(), y, create_graph=True)
        return h

    assert torch.autograd.gradcheck(twice, [x.requires_grad_(True)], atol=1e-6)


def test_sobolev_norms_are_those_of_known_functions():
    """x = sin(2 pi t): |x|^2 = 1/2, |x'|^2 = 2 pi^2, |x''|^2 = 8 pi^4; along d a cosine is an eigenfunction."""
    errors = []
    for count in (100, 200):
        t = torch.linspace(0.0, 1.0, count, dtype=torch.float64) ** 1.3
        cloud = Cloud(torch.sin(2 * math.pi * t).view(1, -1, 1), Trapezoid().mass(t[None]), t[None])
        pi2 = math.pi**2
        for time, expected in ((0, 0.5), (1, 0.5 + 2 * pi2), (2, 0.5 + 2 * pi2 + 8 * pi2**2)):
            found = Sobolev(time=time).squared_norm(cloud.points, cloud.measure).item()
            errors.append(abs(found / expected - 1.0))
    coarse, fine = errors[:3], errors[3:]
    assert max(fine) < 0.03 and all(b < 0.7 * a for a, b in zip(coarse, fine, strict=True)), errors
    axis = Axis(8, 1)
    wave = torch.cos(3 * math.pi * axis.points()).view(1, 1, 8)
    found = Sobolev(0, 1.5, axis).squared_norm(wave, Cloud(wave).measure).item()
    assert found == pytest.approx((1 + 9 * math.pi**2) ** 1.5 / 2, rel=1e-10)
    assert L2(axis).squared_norm(wave, Cloud(wave).measure).item() == pytest.approx(0.5, rel=1e-10)


def test_padding_changes_no_norm():
    t = torch.tensor([[0.0, 0.1, 0.5, 0.9]], dtype=torch.float64)
    x = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mass = torch.ones_like(t)
    padded = Cloud(
        torch.cat([x, x[:, :2]], 1), torch.cat([mass, 0 * mass[:, :2]], 1), torch.cat([t, t[:, -1:], t[:, -1:]], 1)
    )
    for norm in (L2(), L2(mean=True), Sobolev(1), Sobolev(2, mean=True)):
        alone = norm.squared_norm(x, Cloud(x, mass, t).measure)
        noisy = torch.cat([x, 7 * x[:, :2]], 1)
        torch.testing.assert_close(norm.squared_norm(noisy, padded.measure), alone)


@pytest.mark.parametrize("norm", [L2(), L2(mean=True), L2(Axis(2, 2), True), Sobolev(1), Sobolev(0, 1.0, Axis(2, 2))])
def test_a_distance_is_the_norm_of_the_difference_and_keeps_its_ends_alone(norm):
    t = torch.tensor([[0.0, 0.1, 0.5, 0.9]], dtype=torch.float64)
    generator, kept = torch.Generator().manual_seed(0), []
    x, y = (torch.randn(1, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
    measure = Cloud(x.detach(), 2.0 * torch.ones_like(t), t).measure
    with torch.autograd.graph.saved_tensors_hooks(lambda s: kept.append(s) or s, lambda s: s):
        found = norm.squared_distance(x, y, measure)
    expected = norm.squared_norm(x - y, measure)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found.sum(), (x, y)), torch.autograd.grad(expected.sum(), (x, y)), strict=True)
    for g, e in pairs:
        torch.testing.assert_close(g, e)
    if norm.time == 0 and norm.embedding == 0.0:
        states = [s.data_ptr() for s in kept if s.ndim == 3]  # of the size of a state; what is per token is small
        assert sorted(states) == sorted([x.data_ptr(), y.data_ptr()])


def test_a_mean_does_not_depend_on_length_and_width():
    x = torch.full((1, 5, 6), 3.0, dtype=torch.float64)
    for points in (x, x[:, :2], x[..., :4]):
        assert L2(mean=True).squared_norm(points, Cloud(points).measure).item() == pytest.approx(9.0)
        assert L2(Axis(2, points.shape[-1] // 2), True).squared_norm(
            points, Cloud(points).measure
        ).item() == pytest.approx(9.0)


def test_a_short_sequence_has_no_differences_of_its_length_and_above():
    t = torch.tensor([[0.0, 0.4]], dtype=torch.float64)
    x = torch.tensor([[[1.0], [3.0]]], dtype=torch.float64)
    for time in (1, 2, 5):
        found = Sobolev(time).squared_norm(x, Cloud(x, torch.ones_like(t), t).measure).item()
        assert found == pytest.approx(10.0 + 0.4 * 5.0**2)


def translator():
    both = (Layers(1, 4, 2, 8), Layers(1, 4, 2, 8))
    return encoder_decoder(both, (CloudEmbedding(4), CloudEmbedding(4)), NormReadout(4)).double().eval()


def test_two_solves_pay_together():
    torch.manual_seed(0)
    model = translator()
    source, target = clouded_of(4, 3), clouded_of(4, 2)
    objective = Objective(MeanSquaredError(), (KineticEnergy(),), (0.5,))
    terms = objective(model, Batch(((source,), (target,)), torch.zeros(2, 2, 4, dtype=torch.float64)))
    torch.testing.assert_close(terms.output, model((source,), (target,)))
    (bare,) = model.decoder(target, encoded=model.encode(source), costs=(KineticEnergy(),)).costs
    assert terms.running["kinetic_energy"] > bare.mean() > 0
    terms.total.backward()
    assert all(p.grad is not None for p in model.encoder.flow.parameters())


def clouded_of(width: int, tokens: int) -> Cloud:
    return Cloud(torch.randn(2, tokens, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


@pytest.mark.parametrize("model", [damped(steps=2), damped(LieTrotter(), steps=4)], ids=["stages", "steps"])
def test_a_random_stretch_of_depth_is_unbiased_for_all_of_it(model, unchecked):
    """To the solver's own quadrature of the whole cost, at a fraction of its evaluations."""
    batch, seen = Batch((clouded(),), torch.zeros(2, 4, 3, dtype=torch.float64)), []

    class Counted(AbstractRunningCost):
        def bind(self, setting, place):
            inner = KineticEnergy().bind(setting, place)
            return lambda z, points, velocity: seen.append(z) or inner(z, points, velocity)

    def drawn(cost, seed):
        with torch.no_grad():
            terms = Objective(MeanSquaredError(), (cost,), (1.0,))(model, batch, torch.Generator().manual_seed(seed))
        return terms.running[cost.name].item()

    exact, (whole, _) = drawn(Counted(), 0), (len(seen), seen.clear())
    values = torch.tensor([drawn(AtRandomDepth(Counted(), 0.25), seed) for seed in range(225)])
    assert abs(values.mean().item() - exact) < 3 * values.std().item() / 15 and values.std() > 0.1 * exact
    assert 0.2 < len(seen) / (225 * whole) < 0.3
    assert drawn(AtRandomDepth(KineticEnergy(), 1.0), 0) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("control", [Adaptive(1e-2, 1e-2), PerSequence(1e-2, 1e-2)], ids=["batch", "sequence"])
def test_a_dear_cost_at_a_random_stretch_is_differentiated(control, unchecked):
    loss = all_losses[0]
    model, batch = model_of(loss).at(solver=Solver(DormandPrince(), control)), batch_of(loss)
    cost, found = AtRandomDepth(JacobianSpectral(1), 0.1), []
    for seed in range(4):
        model.zero_grad()
        terms = Objective(loss, (cost,), (1.0,))(model, batch, torch.Generator().manual_seed(seed))
        terms.total.backward()
        assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        found.append(terms.running["jacobian_spectral"].item())
    assert max(found) > 0.0 and len(set(found)) > 1


def test_names_and_terms():
    objective = Objective(MeanSquaredError(), (KineticEnergy(), FieldSize(), KineticEnergy(Sobolev())), (1.0, 0.0, 2.0))
    assert objective.names == ("kinetic_energy", "field_size", "kinetic_energy_2")


def test_an_l2_term_meets_no_weight_decay(unchecked):
    model = model_of(all_losses[0])
    objective = Objective(all_losses[0], (FieldSize(),), (0.1,))
    decaying = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    with pytest.raises(ValueError, match=r"param_groups\[0\]\['weight_decay'\] = 0.01.*field_size"):
        objective.check(decaying)
    objective.check(torch.optim.AdamW(model.parameters(), weight_decay=0.0))
    Objective(all_losses[0]).check(decaying)
    groups = [
        {"params": list(model.flow.parameters()), "weight_decay": 0.0},
        {"params": list(model.readout.parameters()), "weight_decay": 0.01},
    ]
    objective.check(torch.optim.AdamW(groups), model)
    with pytest.raises(ValueError, match="weight_decay"):
        objective.check(torch.optim.AdamW(groups))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objective(CrossEntropy), "no Loss"),
        (lambda: Objective(CrossEntropy(), (KineticEnergy,), (1.0,)), "no RunningCost"),
        (lambda: Objective(CrossEntropy(), (KineticEnergy(),)), r"coefficients = \(\).*1 running costs"),
        (lambda: Objective(CrossEntropy(), (KineticEnergy(),), (math.nan,)), "paid, not earned"),
        (lambda: JacobianSpectral(0), "iterations = 0"),
        (lambda: Sobolev(-1), "time = -1"),
        (lambda: Sobolev(0.5), "time = 0.5"),
        (lambda: KineticEnergy(L2), "no Sobolev"),
        (lambda: PathLength(L2), "no Sobolev"),
        (
            lambda: Objective(CrossEntropy(), KineticEnergy(), 0.1),
            r"costs = 'KineticEnergy'.*costs=\(KineticEnergy\(\),\)",
        ),
        (lambda: Objective(CrossEntropy(), (KineticEnergy(),), 0.1), "coefficients = 'float'"),
        (lambda: Objective(CrossEntropy())(lambda x: x, Batch((1,), None)), "model = 'function'"),
        (lambda: Objective(CrossEntropy())(translator(), Batch((clouded_of(4, 3),), None)), "batch.inputs = .*source"),
        (lambda: DebiasedObjective(Objective(CrossEntropy()), m=2.5), "m = 2.5"),
        (lambda: DebiasedObjective(Objective(CrossEntropy()), 2, levels=1.5), "levels = 1.5"),
        (lambda: AtRandomDepth(KineticEnergy), "no RunningCost"),
        (lambda: AtRandomDepth(FieldSize()), "cheap at every depth"),
        (lambda: AtRandomDepth(KineticEnergy(), 0.0), "fraction = 0.0"),
        (lambda: running(KineticEnergy(Sobolev(0, 1.0)), damped(), clouded()), "axis = None"),
        (lambda: running(KineticEnergy(L2(Axis(2, 2))), damped(), clouded()), "its width is 4"),
        (
            lambda: running(KineticEnergy(Sobolev()), damped(), clouded(positions=torch.zeros(2, 4).double())),
            "same time",
        ),
        (lambda: running(KineticEnergy(Sobolev()), damped(), clouded(MASS.flip(-1))), "tokens without mass between"),
        (lambda: running(HeadNegentropy(), damped(), clouded()), "no head of this flow has a mass"),
        (lambda: Objective(CrossEntropy())(damped(), clouded()), "no Batch"),
        (lambda: Objective(CrossEntropy())(torch.nn.Linear(1, 1), Batch((1,), None)), "no ContinuousTransformer"),
    ],
)
def test_mistakes_are_named(make, message, unchecked):
    with pytest.raises(ValueError, match=message):
        make()


def test_ties_would_tell_the_next_token():
    model = continua.transformer(8, 5, vocabulary=5, causal=True, axis=1, heads=2)
    tokens, times = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0.0, 0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match=r"tokens of one time see each other.*times that differ"):
        Objective(NextToken())(model, Batch((tokens, times), tokens))
    Objective(NextToken())(model, Batch((tokens, times.cumsum(1) + torch.arange(4)), tokens))


@pytest.mark.parametrize("mask", [[1, 1, 1], [0.0, 1.0, 1.0]])
def test_a_mask_in_the_place_of_times_is_named(mask):
    model = continua.transformer(8, 5, vocabulary=5, causal=True, axis=1, heads=2)
    with pytest.raises(ValueError, match=r"this looks like a mask.*present=mask.bool\(\)"):
        model(torch.tensor([[0, 1, 2]]), torch.tensor([mask]))


def test_a_cost_at_random_depths_keeps_its_name():
    costs = tuple(AtRandomDepth(cost) for cost in (JacobianSpectral(), JacobianFrobenius()))
    assert Objective(all_losses[0], costs, (1.0, 1.0)).names == ("jacobian_spectral", "jacobian_frobenius")
