"""Running costs of states that are functions: they belong to the function, and not to its nodes."""

import pytest
import torch

from continua.control import (
    L2,
    Batch,
    JacobianFrobenius,
    JacobianSpectral,
    KineticEnergy,
    MeanSquaredError,
    Objective,
    PathLength,
    Sobolev,
)
from continua.fields import Expansion
from continua.model import (
    AnalysisReadout,
    ContinuousTransformer,
    Flow,
    MeanReadout,
    Part,
    SynthesisEmbedding,
    VectorEmbedding,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Spectral
from continua.solve import Direct, DormandPrince, Fixed, Solver
from continua.spaces import Axis, Cosine, GaussLegendre, Legendre, MidpointRule

pytestmark = pytest.mark.usefixtures("unchecked")
VALUES = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BATCH = Batch((VALUES,), torch.zeros(2, 1, dtype=torch.float64))


def build(rule=GaussLegendre(), basis=Legendre(3), nodes: int = 8) -> ContinuousTransformer:
    torch.manual_seed(0)
    axis, width = Axis(nodes, 2, rule), 2 * basis.size
    kernel, norm = Spectral(axis, basis), LayerNorm(axis=axis)
    operators = [PreNorm(norm, Attention(2, 2, kernel=kernel)), PreNorm(norm, FeedForward(4, kernel=kernel))]
    flow = Flow([Part(f, Expansion(f.spec(axis.width), Legendre(2))) for f in operators])
    embedding, readout = VectorEmbedding(2, width), MeanReadout(width, 1)
    parts = (SynthesisEmbedding(embedding, axis, basis), flow, AnalysisReadout(readout, axis, basis))
    return ContinuousTransformer(*parts, Solver(DormandPrince(), Fixed(2)), Direct()).double().eval()


def cost_of(cost, model) -> float:
    objective = Objective(MeanSquaredError(), (cost,), (1.0,))
    with torch.no_grad():
        terms = objective(model, BATCH, torch.Generator().manual_seed(0))
    return float(terms.running[cost.name])


@pytest.mark.parametrize("cost", [KineticEnergy(), PathLength()], ids=repr)
def test_they_converge_as_nodes_are_added(cost):
    found = [cost_of(cost, build().at(axis_nodes=nodes)) for nodes in (8, 16, 32)]
    assert abs(found[1] / found[2] - 1) < 1e-4 and abs(found[0] / found[2] - 1) < 1e-2, found


def test_the_spectral_norm_is_that_of_the_map_between_functions():
    found = []
    for nodes in (8, 16, 32):
        model = build().at(axis_nodes=nodes)
        with torch.no_grad():
            setting = model(VALUES[:1], full=True).setting
            points = setting.cloud.points
            found.append(float(JacobianSpectral(100).bind(setting, 0)(0.4, points, points)))
    assert abs(found[1] / found[2] - 1) < 1e-4 and abs(found[0] / found[2] - 1) < 1e-2, found


@pytest.mark.parametrize("nodes", [8, 12])
def test_the_axis_is_that_of_the_model(nodes):
    model, axis = build().at(axis_nodes=nodes), Axis(nodes, 2, GaussLegendre())
    costs = [(KineticEnergy(), KineticEnergy(L2(axis))), (JacobianFrobenius(), JacobianFrobenius(axis))]
    for default, explicit in (*costs, (JacobianSpectral(), JacobianSpectral(axis=axis))):
        assert cost_of(default, model) == cost_of(explicit, model)


def test_derivatives_along_the_embedding_need_no_axis_of_their_own():
    """Of order 0 it is the plain norm of the function, and of order 1 more."""
    model = build(MidpointRule(), Cosine(3))
    plain, smooth = cost_of(KineticEnergy(), model), cost_of(KineticEnergy(Sobolev(0, 1.0)), model)
    assert cost_of(KineticEnergy(Sobolev(0, 1e-9)), model) == pytest.approx(plain, rel=1e-6)
    assert smooth > 1.5 * plain
