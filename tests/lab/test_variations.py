"""Actions on the sphere: residuals, boundary problems against scipy, conjugate points, and paths from files."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_bvp

import continua
from continua.cli.main import main
from continua.lab.clusters.particles import angular_velocity, random_tokens
from continua.lab.variations.action import SPHERE, Chart, PathAction, hessian, minimise, tangential
from continua.lab.variations.cells import Extensions, euler_lagrange, flow_path, sphere_flow

pytestmark = pytest.mark.usefixtures("unchecked")


def test_the_residual_is_the_slope_of_the_action_along_the_sphere():
    action = PathAction(0.25, tangential(sphere_flow(2, 1.0)))
    path = SPHERE.project(torch.randn(5, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    v = SPHERE.tangent(path, random_tokens(5, 3, 3, 1)[:, None])
    v[0] = v[-1] = 0.0
    ahead, behind = (action.value(SPHERE.project(path + s * v)) for s in (1e-5, -1e-5))
    wanted = float(ahead - behind) / 2e-5
    assert float((action.h * action.residuals(path) * v[1:-1]).sum()) == pytest.approx(wanted, rel=1e-7)


def test_the_equation_of_a_lagrangian_is_the_limit_of_residuals():
    G, h = tangential(sphere_flow(2, 1.0)), 1e-3
    x, aside = random_tokens(1, 3, 3, 1), random_tokens(2, 3, 3, 2)
    v, bent = (SPHERE.tangent(x, one[None]) for one in aside)
    t = torch.tensor([-h, 0.0, h], dtype=torch.float64)[:, None, None, None]
    residual = PathAction(h, G).residuals(SPHERE.project(x + t * v + 0.5 * t**2 * bent))[0]
    bent = bent - x * v.square().sum(-1, keepdim=True)
    whole = euler_lagrange(lambda x, v: 0.5 * (v - G(t[1, 0, 0], x[None])[0]).square().sum(), x, v, bent)
    torch.testing.assert_close(-SPHERE.tangent(x, whole), residual, rtol=1e-5, atol=1e-5)


def test_lagrangians_that_differ_on_the_bundle_have_other_equations(monkeypatch):
    assert Extensions(3, 2).measure()["apart"] < 1e-13
    plain = SPHERE.tangent
    monkeypatch.setattr(type(SPHERE), "tangent", lambda sphere, x, v: plain(x, v) + 0.01 * v)  # no projection any more
    assert Extensions(3, 2).measure()["apart"] > 1e-3


def test_the_hessian_on_the_sphere_is_that_of_geodesics():
    action = PathAction(0.25, tangential(sphere_flow(2, 1.0)))
    chart = Chart(SPHERE.project(random_tokens(4, 2, 3, 5)[:, None] + 1.0), True)
    xi = torch.randn(chart.origin().shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v = torch.einsum("...wl,...l->...w", chart.bases(), xi.view(2, 1, 2, 2))

    def along(s):  # every token on its great circle
        speed = v.norm(dim=-1, keepdim=True)
        moved = (s * speed).cos() * chart.free() + (s * speed).sin() * v / speed
        return float(action.value(torch.cat([chart.path[:1], moved, chart.path[-1:]])))

    wanted = (along(1e-3) - 2.0 * along(0.0) + along(-1e-3)) / 1e-6
    assert float(xi @ hessian(action.value, chart) @ xi) == pytest.approx(wanted, rel=1e-5)


def test_extremals_between_two_ends_are_those_of_scipy():
    beta, start, end = 2.0, np.array([0.0, 1.0]), np.array([0.9, 0.4])

    def slopes(t, both):
        angles = torch.tensor(both[:2].T, requires_grad=True)
        g = angular_velocity(angles, beta)
        (pulled,) = torch.autograd.grad(g, angles, torch.tensor(both[2:].T))
        return np.concatenate([(g.detach() + torch.tensor(both[2:].T)).numpy().T, -pulled.numpy().T])

    def ends(a, b):
        return np.concatenate([a[:2] - start, b[:2] - end])

    t = np.linspace(0, 1, 17)
    guess = np.concatenate([start[:, None] + t * (end - start)[:, None], np.zeros((2, 17))])
    exact = solve_bvp(slopes, ends, t, guess, tol=1e-8).sol(t)[:2]
    angles = torch.tensor(guess[:2].T)
    path = torch.stack([angles.cos(), angles.sin()], -1)[:, None]
    flow = sphere_flow(0, beta, width=2)
    gaps = []
    for stride in (2, 1):
        found = minimise(PathAction(stride / 16, tangential(flow)).value, path[::stride], pinned=True)[:, 0]
        gaps.append(float(np.abs(torch.atan2(found[..., 1], found[..., 0]).numpy().T - exact[:, ::stride]).max()))
    assert gaps[1] < 1e-3 and gaps[0] / gaps[1] == pytest.approx(4.0, abs=0.3)


def ask(capsys, *words):
    code = main(["lab", "run", "euler-lagrange", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_a_path_of_an_attention_flow_is_recognised_and_its_temperature_found(tmp_path, capsys):
    path = 2.5 * flow_path(sphere_flow(0, 3.0), random_tokens(1, 5, 3, 1), 24)[:, 0].numpy()
    padded = np.concatenate([path, np.full((25, 1, 3), 7.0)], 1)
    np.savez(tmp_path / "path.npz", states=padded, mask=[1, 1, 1, 1, 1, 0])
    code, found = ask(capsys, "--trajectory", str(tmp_path / "path.npz"))
    assert code == 0 and found["verdict"] == "holds"
    assert found["measured"]["beta"] == pytest.approx(3.0, abs=1e-3)
    assert found["measured"]["norms"] == pytest.approx([2.5] * 3)
    code, found = ask(capsys, "--trajectory", str(tmp_path / "path.npz"), "--beta", "1")
    assert code == 1 and found["measured"]["full of kinetic"] > 0.5


def test_the_path_of_a_saved_model_is_held_against_its_own_flow(tmp_path, capsys):
    torch.manual_seed(0)
    depth = continua.Depth(4.0, continua.ScaledBasis(continua.Cosine(4), 0.8), stagger=False)  # two derivatives
    model = continua.transformer(width=8, outputs=4, features=2, depth=depth).double().eval()
    values, times = torch.randn(1, 6, 2, dtype=torch.float64), torch.linspace(0, 1, 6, dtype=torch.float64)[None]
    depths = [model.flow.depth * k / 64 for k in range(65)]
    with torch.no_grad():
        read = model.at(rtol=1e-9)(values, times, save_at=depths, full=True)
    measure = read.cloud.measure
    continua.save(model, tmp_path / "model")
    given = {"mass": measure.weights()[0].numpy(), "positions": measure.positions[0].numpy()}
    np.savez(tmp_path / "path.npz", states=read.solution.xs[:, 0].numpy(), **given)
    words = ("--trajectory", str(tmp_path / "path.npz"), "--model", str(tmp_path / "model"))
    code, found = ask(capsys, *words)
    assert code == 0 and found["measured"]["full of kinetic"] < 0.02
    continua.save(continua.transformer(width=8, outputs=4, features=2), tmp_path / "model")
    assert main(["lab", "run", "euler-lagrange", *words]) == 2 and "its flow is staggered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--beta", "2"], "--trajectory"),
        (["--trajectory", "missing.npz"], "missing.npz"),
        (["--trajectory", "a.npz", "--model", "m", "--beta", "2"], "--beta"),
        (["--trajectory", "a.npz", "--tokens", "2"], "--tokens"),
    ],
)
def test_questions_about_paths_that_cannot_be_answered(words, named, capsys):
    assert main(["lab", "run", "euler-lagrange", *words]) != 0
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arrays",
    [
        {"other": np.ones(3)},
        {"states": np.ones((2, 3, 4))},
        {"states": np.zeros((4, 3, 4))},
        {"states": np.ones((4, 3, 4)), "mask": np.ones(2)},
        {"states": np.ones((4, 3, 4)), "mask": np.zeros(3)},
    ],
)
def test_files_that_hold_no_path_are_refused(arrays, tmp_path, capsys):
    np.savez(tmp_path / "path.npz", **arrays)
    assert main(["lab", "run", "euler-lagrange", "--trajectory", str(tmp_path / "path.npz")]) != 0
    assert "states" in capsys.readouterr().err


def test_great_circles_have_their_conjugate_point_at_pi():
    t = torch.linspace(0, 1.2 * math.pi, 31, dtype=torch.float64)[:, None, None, None]
    a, b = torch.eye(3, dtype=torch.float64)[:2, None, None]
    circle, action = t.cos() * a + t.sin() * b, PathAction(1 / 30)
    signs = [float(torch.linalg.eigvalsh(hessian(action.value, Chart(circle[:k], True)))[0]) > 0 for k in (25, 28)]
    assert signs == [True, False]  # at 0.96 pi and at 1.08 pi
