"""The standard networks are discretisations of flows: they converge, and sequences do not disturb each other."""

import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.model import ContinuousTransformer, Layers
from continua.solve import RK4, Adaptive, DormandPrince, Fixed, Projected, Solver
from continua.spaces import CentredSphere, Sphere
from models import adaptive_model
from parity import run, shaken, tokens_and_padding
from references import manifold_defect
from registries import LONGEST, VOCABULARY, all_presets

LAYERS = Layers(2, width=8, heads=2, hidden=12)

presets = pytest.mark.parametrize("name", all_presets)


@pytest.fixture
def built(float64):
    def build(name, layers=LAYERS):
        torch.manual_seed(1)
        return shaken(all_presets[name](layers)).eval()

    return build


def parts_of(model):
    return [model] if isinstance(model, ContinuousTransformer) else [model.encoder, model.decoder]


@presets
def test_every_layer_is_one_step(built, name):
    for model in parts_of(built(name)):
        tokens, present = tokens_and_padding(VOCABULARY, LONGEST)
        cloud = model.embedding(tokens, present=present)
        solution = model(cloud, encoded=cloud, full=True).solution
        count = model.solver.controller.steps
        assert solution.stats.grid == [float(layer) for layer in range(count + 1)]
        assert solution.stats.accepted == count


@presets
def test_finer_steps_converge_to_the_flow(built, name, unchecked):
    """Twice the steps is another network; many steps are the flow, with an error of order 1."""
    model, tokens = built(name), tokens_and_padding(VOCABULARY, 5, batch=2)
    with torch.no_grad():
        flow = run(model.at(solver=tight(name)), *tokens)
        assert (run(model.at(steps=6), *tokens) - run(model, *tokens)).abs().max() > 1e-3
        steps = [18, 36, 72, 144, 288]
        errors = [float((run(model.at(steps=n), *tokens) - flow)[tokens[1]].abs().max()) for n in steps]
    assert fitted_slope([1.0 / n for n in steps], errors) == pytest.approx(1.0, abs=0.2)


def tight(name):
    """A solve of the same flow whose error is far below that of the steps."""
    if name == "sphere":
        return Solver(Projected(RK4(), CentredSphere(), tangent=True), Fixed(100))
    if name == "sphere, together":
        return Solver(Projected(RK4(), Sphere(), tangent=True), Fixed(100))
    return Solver(DormandPrince(), Adaptive(1e-9, 1e-9))


@presets
def test_padding_is_not_heard(built, name):
    """A sequence alone, and with padding of any content beside longer ones."""
    model = built(name)
    tokens, present = tokens_and_padding(VOCABULARY, LONGEST)
    together = run(model, torch.where(present, tokens, -100), present)
    for row, length in enumerate(present.sum(-1).tolist()):
        alone = run(model, tokens[row : row + 1, :length])
        assert (together[row, :length] - alone[0]).abs().max() <= 1e-12
    assert torch.equal(together, run(model, torch.where(present, tokens, 7), present))


@pytest.mark.parametrize("kind", ["default", "gpt", "bert"])
def test_batch_mates_are_not_heard_on_a_frozen_grid(built, kind):
    tokens, _ = tokens_and_padding(VOCABULARY, LONGEST)
    sizes = {"width": 8, "outputs": 3, "vocabulary": VOCABULARY, "heads": 2}
    model = adaptive_model(**sizes) if kind == "default" else built(kind)
    grid = model(tokens, full=True).solution.stats.grid
    frozen = model.at(grid=grid)
    together = frozen(tokens)
    for row in range(len(tokens)):
        assert (frozen(tokens[row : row + 1]) - together[row]).abs().max() <= 1e-12


def test_adaptive_padding_does_not_change_the_grid(float64):
    model = adaptive_model(width=8, outputs=3, vocabulary=VOCABULARY, heads=2)
    tokens, present = tokens_and_padding(VOCABULARY, LONGEST, batch=1)
    padded = torch.cat([tokens, tokens[:, :0].new_zeros(1, 5)], 1)
    mask = torch.cat([present, torch.zeros(1, 5, dtype=torch.bool)], 1)
    grids = [model(t, present=p, full=True).solution.stats.grid for t, p in ((tokens, present), (padded, mask))]
    assert grids[0] == pytest.approx(grids[1], abs=1e-12)


@pytest.mark.parametrize("name", ["gpt", "parallel", "parallel, two norms"])
def test_causal_presets_do_not_look_ahead(built, name):
    model = built(name)
    tokens, _ = tokens_and_padding(VOCABULARY, LONGEST)
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 3) % VOCABULARY
    difference = (model(changed) - model(tokens)).abs().amax((0, 2))
    assert difference[:6].max() == 0.0 and difference[6:].min() > 1e-3


def test_tokens_of_the_sphere_stay_on_it(built):
    for name, manifold in (("sphere", CentredSphere()), ("sphere, together", Sphere())):
        model = built(name)
        tokens, present = tokens_and_padding(VOCABULARY, LONGEST)
        cloud = model.embedding(tokens, present=present)
        solution = model(cloud, save_at=(0.0, 1.0, 2.0)).solution
        for points in (cloud.points, *solution.xs):
            assert manifold_defect(manifold, points.detach()[cloud.present]) <= 1e-12
