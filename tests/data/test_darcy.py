"""Darcy flow against a manufactured solution, a series and a dense solve, and the task at several resolutions."""

import math

import numpy as np
import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.data import Darcy, Split, darcy_solution, fourier_features
from continua.data.darcy import _HIGHEST, _solutions, log_conductivities


def manufactured(intervals):
    """a = exp(x + sin(2 y)), u = sin(pi x) sin(2 pi y), and f = -div(a grad u) by hand."""
    x = torch.linspace(0, 1, intervals + 1, dtype=torch.float64)
    x, y = torch.meshgrid(x, x, indexing="ij")
    a = torch.exp(x + torch.sin(2 * y))
    u = torch.sin(math.pi * x) * torch.sin(2 * math.pi * y)
    ux = math.pi * torch.cos(math.pi * x) * torch.sin(2 * math.pi * y)
    uy = 2 * math.pi * torch.sin(math.pi * x) * torch.cos(2 * math.pi * y)
    f = -a * (ux + 2 * torch.cos(2 * y) * uy - 5 * math.pi**2 * u)
    return a[None], f[None, 1:-1, 1:-1], u[None]


def dense(a, f):
    """The equations of all cells one by one, solved by numpy."""
    n = a.shape[0] - 1
    number = {(i, j): (i - 1) * (n - 1) + j - 1 for i in range(1, n) for j in range(1, n)}
    matrix, right = np.zeros((len(number), len(number))), np.zeros(len(number))
    for (i, j), here in number.items():
        right[here] = f[i - 1, j - 1] / n**2
        for other in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            face = 2.0 / (1.0 / a[i, j] + 1.0 / a[other])
            matrix[here, here] += face
            if other in number:
                matrix[here, number[other]] -= face
    return np.linalg.solve(matrix, right).reshape(n - 1, n - 1)


def test_the_order_is_two():
    sizes, errors = [8, 16, 32, 64, 128], []
    for n in sizes:
        a, f, u = manufactured(n)
        errors.append(float((darcy_solution(a, f) - u).abs().max()))
    assert abs(fitted_slope([1 / n for n in sizes], errors) - 2.0) < 0.2
    assert errors[-1] < 1e-3


def test_it_is_the_solution_of_the_dense_system():
    generator = torch.Generator().manual_seed(0)
    a = torch.exp(torch.randn(3, 11, 11, generator=generator, dtype=torch.float64))  # rough: contrast of hundreds
    f = torch.randn(3, 9, 9, generator=generator, dtype=torch.float64)
    found = darcy_solution(a, f, tolerance=1e-13)
    for row in range(3):
        expected = dense(a[row].numpy(), f[row].numpy())
        assert np.abs(found[row, 1:-1, 1:-1].numpy() - expected).max() < 1e-10 * np.abs(expected).max()
    assert float(found[:, 0].abs().max()) == 0.0 and float(found[..., -1].abs().max()) == 0.0


def test_the_unit_is_the_highest_pressure_of_the_even_medium():
    odd = range(1, 400, 2)  # the double sine series of Poisson's equation, at the centre
    series = 16 / math.pi**4 * sum(
        (-1) ** ((k + m) // 2 - 1) / (k * m * (k**2 + m**2)) for k in odd for m in odd
    )  # fmt: skip
    assert abs(series - _HIGHEST) < 1e-7
    u = darcy_solution(torch.ones(1, 65, 65, dtype=torch.float64), torch.ones(1, 63, 63, dtype=torch.float64))
    assert abs(float(u.max()) - series) < 1e-4


def test_fields_have_the_stated_variance():
    fields = log_conductivities(400, torch.Generator().manual_seed(3))
    assert abs(float(fields[:, :-1, :-1].square().mean()) - 1.0) < 0.1 and abs(float(fields.mean())) < 0.03


@pytest.mark.parametrize("points", [16, 32])
def test_resolutions_show_the_same_functions(points):
    coarse, fine = (Darcy(points=n, examples=12).batch(Split.TEST, torch.arange(8)) for n in (points, 2 * points))
    assert coarse.inputs[0].shape == (8, points**2, 19) and fine.inputs[0].shape == (8, 4 * points**2, 19)
    for one, other in ((coarse.inputs[0][..., :3], fine.inputs[0][..., :3]), (coarse.targets, fine.targets)):
        parts = other.unflatten(1, (points, 2, points, 2)).mean((2, 4)).flatten(1, 2)  # the four parts of a cell
        assert float((one - parts).norm() / one.norm()) < 0.01


def test_waves_of_a_place_are_those_of_the_unit_interval():
    place = torch.tensor([[0.0, 0.5], [1.0, 0.25]], dtype=torch.float64)
    half = math.sqrt(0.5)
    expected = torch.tensor([[1, 0, 1, 0, 0, 1, -1, 0], [-1, 0, 1, 0, half, half, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(fourier_features(place, 2), expected, rtol=0.0, atol=1e-12)
    with pytest.raises(ValueError, match=r"places = '-1 to 1': the waves are those of \[0, 1\]"):
        fourier_features(2 * place - 1, 2)
    with pytest.raises(ValueError, match="places = 'nan to nan'"):
        fourier_features(place * math.nan, 2)


def test_tokens_are_values_at_their_places():
    task = Darcy(points=8, examples=12)
    batch = task.batch(Split.TEST, torch.arange(2))
    medium, pressure = _solutions(8, task.deviation, Split.TEST, 64)
    node = ((batch.inputs[0][0, :, 1:3] + 1) / 2 * 64).round().long()
    assert torch.equal(batch.inputs[0][..., 0], medium[:2, node[:, 0], node[:, 1]])
    assert torch.equal(batch.targets[..., 0], pressure[:2, node[:, 0], node[:, 1]])


def test_turned_and_moved_training_batches_are_still_solutions():
    task = Darcy(points=16, examples=12)
    plain = task.batch(Split.TRAIN, torch.zeros(128, dtype=torch.long))
    turned = task.augment(plain, torch.Generator().manual_seed(0))
    node = ((turned.inputs[0][..., 1:3] + 1) / 2 * 64).round().long()
    moves = node - ((plain.inputs[0][..., 1:3] + 1) / 2 * 64).round().long()
    assert torch.equal(moves, moves[:, :1].expand_as(moves)), "all points of a medium move alike"
    assert {tuple(move) for move in moves[:, 0].tolist()} == {(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}
    fields = torch.stack([field[0] for field in _solutions(12, task.deviation, Split.TRAIN, 64)], -1)
    kinds = [torch.rot90(each, quarter) for each in (fields, fields.transpose(0, 1)) for quarter in range(4)]
    seen = torch.cat([turned.inputs[0][..., :1], turned.targets], -1)
    found = [[torch.equal(kind[x, y], one) for kind in kinds] for (x, y), one in zip(node.mT, seen, strict=True)]
    assert {row.index(True) for row in found} == set(range(8))


@pytest.mark.parametrize("wrong", [{"points": 12}, {"examples": 2}, {"deviation": 0.0}])
def test_what_cannot_be_solved_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Darcy(**wrong)


def test_media_that_are_none_are_refused():
    ones = torch.ones(1, 5, 5, dtype=torch.float64)
    for a, f, told in (
        (ones - 1.0, ones[:, 1:-1, 1:-1], "positive"),
        (ones * torch.nan, ones[:, 1:-1, 1:-1], "positive"),
        (ones.float(), ones[:, 1:-1, 1:-1], "double"),
    ):
        with pytest.raises(ValueError, match=told):
            darcy_solution(a, f)
