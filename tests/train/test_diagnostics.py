"""Diagnostics show what the model does: its grid, its states, its weights, its heads, its costates."""

import copy
import math

import numpy as np
import pytest
import torch

import continua
from continua.control import CrossEntropy, MeanSquaredError, Objective
from continua.core.batch import Batch
from continua.data import Spirals, Split
from continua.fields import ContinuousHeads, Expansion
from continua.model import CloudEmbedding, EncoderDecoder, Flow, MeanReadout, NormReadout, Part, VectorEmbedding
from continua.operators import Attention, Cross, FeedForward, LayerNorm, PreNorm
from continua.report import report_page
from continua.runs import Run
from continua.solve import Adaptive, Euler, Fixed, Solver, State
from continua.spaces import Cloud, Legendre
from continua.train import Preset, build_continuous, diagnose, keep_diagnostics, objective_of, resolution_section
from continua.train.diagnostics import heads_section


def batch_of(tokens: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(4, tokens, generator=generator).sort(-1).values
    present = torch.arange(tokens) < torch.tensor([tokens - 2, tokens, tokens, tokens])[:, None]
    values = torch.sin(9 * times).unsqueeze(-1)
    return Batch((values, times, present), torch.tensor([0, 1, 2, 0]))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    attention = PreNorm(LayerNorm(), Attention(4, 4, head_masses=True))
    feedforward = PreNorm(LayerNorm(), FeedForward(32))
    parts = [
        Part(attention, ContinuousHeads(attention.spec(16))),
        Part(feedforward, Expansion(feedforward.spec(16), Legendre(3))),
    ]
    return continua.ContinuousTransformer(VectorEmbedding(1, 16), Flow(parts), MeanReadout(16, 3)).at(steps=5)


@pytest.fixture(scope="module")
def sections(model):
    return {s.heading: s for s in diagnose(model, batch_of(), Objective(CrossEntropy()), source="ours")}


def test_it_has_everything_the_model_has_and_leaves_it_as_it_was(model, sections):
    assert list(sections) == ["Depth", "Tokens", "Attention", "Heads", "Optimal control"]
    assert model.training and all(p.grad is None for p in model.parameters())
    assert {section.source for section in sections.values()} == {"ours"}


def test_steps_are_those_of_the_solve(model, sections):
    steps, table = sections["Depth"].figures
    own = steps.curves[0]
    np.testing.assert_allclose(own.x, np.linspace(0, 1, 6))
    np.testing.assert_allclose(own.y[:-1], 0.2)
    with torch.no_grad():
        stats = model.at().eval()(*batch_of().inputs, full=True).solution.stats
    assert [row[1] for row in table.rows[:3]] == [stats.evaluations, 5, 0]


def test_tokens_are_the_states_up_to_a_rotation_and_padding_is_left_out(model, sections):
    (paths,) = sections["Tokens"].figures
    assert paths.points.shape == (33, 8, 2)  # of ten tokens two are padding
    with torch.no_grad():
        cloud = model.embedding(*(x[:1] for x in batch_of().inputs))
        states = model.at().eval()(cloud, save_at=paths.depths.tolist()).solution.xs[:, 0, :8].double().numpy()
    flat = states.reshape(-1, 16) - states.reshape(-1, 16).mean(0)
    values, vectors = np.linalg.eigh(flat.T @ flat)
    plane = flat @ vectors[:, [-1, -2]]
    np.testing.assert_allclose(np.abs(paths.points.reshape(-1, 2)), np.abs(plane), atol=1e-6)
    assert f"{values[-2:].sum() / values.sum():.0%}" in paths.caption


def test_kernels_are_softmax_rows_at_every_depth(sections):
    (heat,) = sections["Attention"].figures
    assert heat.panels[0] == "mean of the heads" and heat.values.shape == (5, 13, 8, 8)
    np.testing.assert_allclose(heat.values.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(heat.values[0], heat.values[1:].mean(0), rtol=1e-6)
    assert heat.frames[0] == 0.0 and heat.frames[-1] == 1.0


def test_the_head_density_has_mean_one_and_even_heads_count_fully(model, sections):
    (density,) = sections["Heads"].figures  # an untrained density is even, and a flat curve says nothing
    assert "stays within 2 %" in sections["Heads"].prose[1]
    om = model.flow.parts[0].field.rule.nodes(4)[1].numpy()
    np.testing.assert_allclose(np.einsum("h,hz->z", om, density.values[0, 0]), 1.0, rtol=1e-6)
    other = copy.deepcopy(model)
    field = other.flow.parts[0].field
    with torch.no_grad():
        (logits,) = (p for name, p in field.named_parameters() if name.endswith("_p"))
        logits.copy_(3.0 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)))
    _, count = heads_section(other).figures
    np.testing.assert_allclose(count.curves[0].y, [field.effective_heads(float(z)) for z in count.curves[0].x])
    assert count.curves[0].y.min() < 3.5


def test_the_hamiltonian_is_the_costate_times_the_velocity(model, sections):
    hamiltonian, sizes, table = sections["Optimal control"].figures
    batch, seen = batch_of(), []
    cloud = model.embedding(*batch.inputs)
    watch = continua.Observer(cotangent=lambda z, x, a: seen.append((float(z), x.clone(), a.clone())))
    ours = model.at()
    ours.training = False
    loss = torch.nn.functional.cross_entropy(ours(cloud, observers=[watch]), batch.targets)
    torch.autograd.grad(loss, list(model.flow.parameters()))
    bound = model.flow.bind(cloud, random=False)
    z, x, a = seen[-1]
    with torch.no_grad():
        H = 4 * (a * bound(z, State(x)).x).sum((-1, -2))
    assert z == 0.0 and hamiltonian.curves[0].y[0] == pytest.approx(float(H.quantile(0.5)), rel=1e-4, abs=1e-7)
    assert {row[0]: row[1] for row in table.rows}["objective J"] == pytest.approx(loss.item(), rel=1e-5)
    assert len(sizes.curves) == 2 and sections["Optimal control"].verdict.holds


def test_kept_diagnostics_are_reported_without_the_model(model, sections, tmp_path):
    run = Run.begin(tmp_path / "run", "train", {"task": "waves"})
    keep_diagnostics(run, "ours / 1", list(sections.values()))
    run.note(papers=[paper.plain() for paper in continua.citation(model)])
    page = report_page([run.folder])
    assert [section.heading for section in page.sections] == list(sections)
    assert {"chen2018", "vaswani2017"} <= {paper.key for paper in page.papers}
    assert "Neural ordinary differential equations" in page.html()


def test_a_model_of_layers_on_plain_tokens_has_diagnostics(unchecked):
    torch.manual_seed(0)
    embedding = continua.TokenEmbedding(11, 16, continua.LearnedPositions(80, 16))
    gpt = continua.gpt(continua.Layers(3, width=16, heads=2, hidden=32), embedding, continua.TokenReadout(16, 11))
    tokens = torch.randint(11, (2, 70))
    found = {s.heading: s for s in diagnose(gpt, Batch((tokens,), None))}
    assert list(found) == ["Depth", "Tokens", "Attention"]
    assert [note.at for note in found["Depth"].figures[0].notes] == [1.0, 2.0]
    heat = found["Attention"].figures[0]
    assert heat.values.shape[-2:] == (64, 64)  # long sequences are thinned out
    assert np.all(np.triu(heat.values[0, 0], 1) == 0.0)  # causal
    assert math.isclose(gpt.flow.depth, 3.0) and isinstance(gpt.solver, Solver)


def test_a_resolution_report_becomes_a_table():
    plain = {
        "own": {"tokens": 40, "head_nodes": 6, "steps": 4}, "solver_error": 1e-3,
        "reference_solver": "DormandPrince at 1e-6",
        "rows": [{"continuum": "t", "unit": "tokens", "resolution": 20, "change": 0.1, "loss": 0.5, "loss_change": 0.2},
                 {"continuum": "z", "unit": "rtol", "resolution": 1e-3, "change": 0.01, "loss": None,
                  "loss_change": None}],
        "left_out": [{"continuum": "d", "unit": "axis_nodes", "resolution": None, "reason": "states are vectors"}],
    }  # fmt: skip
    section = resolution_section(plain)
    assert section.figures[0].rows == (
        ("token time", "20 tokens", 0.1, 0.5, 0.2),
        ("depth", "tolerance 1e-03", 0.01, None, None),
    )
    assert section.figures[0].caption.startswith("The model as it is: 40 tokens, 6 head nodes, 4 steps.")
    assert "states are vectors" in section.prose[1] and "1.0e-03" in section.verdict.text
    assert (
        "DormandPrince at 1e-6 could not be solved" in resolution_section({**plain, "solver_error": None}).verdict.text
    )


PAID = Preset().replace(width=8, head_nodes=2, hidden=8, axis_nodes=2, depth_modes=2, depth_steps=2)


def test_costates_of_asked_times_are_those_of_the_asking_objective():
    """The derivative of J by the tokens at depth 0, by autograd through the objective itself."""
    torch.manual_seed(0)
    task = Spirals(examples=10, tokens=8, queries=2)
    model = build_continuous(task.form, PAID).double()
    batch = task.batch(Split.TEST, torch.arange(3)).to(dtype=torch.float64)
    asking = objective_of(task.form, model, PAID)
    sections = {section.heading: section for section in diagnose(model, batch, asking)}
    table = {row[0]: row[1] for row in sections["Optimal control"].figures[-1].rows}
    total = asking(model, batch).total
    total.backward()
    squares = sum(float(p.grad.square().sum()) for p in model.flow.parameters())
    assert table["objective J"] == pytest.approx(total.item(), rel=1e-12)
    assert table["projected |dJ/dφ|"] == pytest.approx(math.sqrt(squares), rel=1e-9)
    assert table["terminal mismatch"] < 1e-12


@pytest.fixture
def translator():
    """An encoder-decoder with weights smooth in depth, in double precision, and a batch for it."""
    torch.manual_seed(0)

    def flow(*operators):
        normed = [PreNorm(LayerNorm(), operator) for operator in operators]
        return Flow([Part(operator, Expansion(operator.spec(8), Legendre(2))) for operator in normed])

    attention, feedforward = Attention(2, 4), FeedForward(8)
    euler = Solver(Euler(), Fixed(4))
    reader = continua.ContinuousTransformer(CloudEmbedding(8), flow(attention, feedforward), NormReadout(8), euler)
    writer = continua.ContinuousTransformer(
        CloudEmbedding(8), flow(Attention(2, 4, causal=True), Cross(attention), feedforward), NormReadout(8), euler
    )
    source, target = (torch.randn(3, tokens, 8, dtype=torch.float64) for tokens in (5, 4))
    present = torch.arange(5) < torch.tensor([[3], [5], [5]])
    batch = Batch(((Cloud(source, present.double()),), (Cloud(target),)), torch.randn(3, 4, 8, dtype=torch.float64))
    return EncoderDecoder(reader, writer).double(), batch


def test_costates_of_a_decoder_are_those_of_autograd_through_its_steps(translator):
    """Euler's steps written out on the encoder's tokens, every state kept: autograd gives dJ/dX(z) at each of them."""
    both, batch = translator
    sections = [s for s in diagnose(both, batch, Objective(MeanSquaredError())) if s.heading == "Optimal control"]
    assert [section.source for section in sections] == ["decoder"]
    hamiltonian, sizes, table = sections[0].figures
    (source,), (target,) = batch.inputs
    flow = both.decoder.flow
    bound = flow.bind(target, encoded=both.eval().encode(source), random=False)
    states, velocities = [target.points.clone().requires_grad_()], []
    for k in range(4):
        velocities.append(bound(k / 4, State(states[-1])).x)
        states.append(states[-1] + velocities[-1] / 4)
    J = (both.decoder.readout(target.at(states[-1])) - batch.targets).square().mean()
    weights = list(flow.parameters())
    found = torch.autograd.grad(J, [*states, *weights])
    a, by_weights = found[:5], found[5:]
    own = [3 * g for g in a]  # J is a mean over three sequences: a costate belongs to the objective of its own
    np.testing.assert_allclose(
        sizes.curves[0].y, [float(g.square().sum((-1, -2)).mean().sqrt()) for g in own], rtol=1e-9
    )
    H = [3 * (g * f).sum((-1, -2)).median().item() for g, f in zip(a, velocities, strict=False)]
    np.testing.assert_allclose(hamiltonian.curves[0].y[:4], H, rtol=1e-9)
    numbers = {row[0]: row[1] for row in table.rows}
    assert numbers["objective J"] == pytest.approx(J.item(), rel=1e-12)
    assert numbers["projected |dJ/dφ|"] == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in by_weights)))
    assert numbers["terminal mismatch"] < 1e-12 and sections[0].verdict.holds


def test_an_encoder_and_a_decoder_are_portrayed_each_under_its_name(translator):
    both, batch = translator
    sections = diagnose(both, batch, source="ours")
    headings = ["Depth", "Tokens", "Attention"]
    assert [(s.source, s.heading) for s in sections] == [
        (f"ours, {word}", heading) for word in ("encoder", "decoder") for heading in headings
    ]
    own, across = sections[-1].figures
    assert own.values.shape == (3, 13, 4, 4) and np.all(np.triu(own.values[0, 0], 1) == 0.0)
    assert across.title.startswith("Cross-attention") and across.values.shape == (3, 13, 4, 3)  # two are padding
    for heat in (own, across):
        np.testing.assert_allclose(heat.values.sum(-1), 1.0, rtol=1e-12)
    with torch.no_grad():
        encoded = both.eval().encode(batch.inputs[0][0])
        end = both.decoder(batch.inputs[1][0], encoded=encoded, full=True).solution.x[0]
    paths = sections[-2].figures[0].points
    gaps = (end - end.mean(0)).norm(dim=-1).max()  # the plane shows no more than there is, and most of it
    assert 0.0 < np.linalg.norm(paths[-1] - paths[-1].mean(0), axis=-1).max() <= float(gaps) * (1 + 1e-9)
    with pytest.raises(ValueError, match="a tuple for the source and one for the target"):
        diagnose(both, Batch((batch.inputs[1][0],), None))


def test_a_flow_too_wild_for_an_adaptive_solve_keeps_its_other_figures(model, monkeypatch):
    monkeypatch.setattr("continua.train.diagnostics.Adaptive", lambda *_: Adaptive(1e-5, 1e-5, max_steps=1))
    first = diagnose(model, batch_of())[0]
    table = first.figures[-1]
    assert table.columns == ("", "as trained") and "was not possible" in table.caption
