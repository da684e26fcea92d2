"""The linear reference: its features against numpy's interpolant, its weights against scikit-learn's ridge."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from continua.data import ChannelSamples, LagFeatures, LinearReference
from continua.data.linear_reference import FOLDS, Asked, _Normal, _Table

RANDOM = np.random.default_rng(0)
STATE = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers():
    """Every test draws the same numbers, whichever ran before it."""
    RANDOM.bit_generator.state = STATE


def walks(count, rows=20, seen=15, channels=2):
    """Windows of random walks whose steps go on as they were, on a regular grid of spacing 1."""
    found = []
    for _ in range(count):
        values = np.zeros((rows, channels))
        for row in range(1, rows):
            step = 0.5 * RANDOM.normal(size=channels) + 0.8 * (values[row - 1] - values[row - 2] if row > 1 else 0.0)
            values[row] = values[row - 1] + step
        times = np.arange(rows, dtype=float)
        samples = ChannelSamples.of(times[:seen], values[:seen])
        found.append(Asked(samples, times[seen:], values[seen:]))
    return found


def test_the_interpolant_is_numpys_and_cells_may_be_missing():
    values = np.array([[1.0, np.nan], [np.nan, 2.0], [3.0, np.nan], [np.nan, 4.0]])
    samples = ChannelSamples.of(np.array([0.0, 1.0, 2.0, 5.0]), values)
    where = np.linspace(-1.0, 6.0, 15)
    np.testing.assert_allclose(samples.along(0, where), np.interp(where, [0.0, 2.0], [1.0, 3.0]))
    np.testing.assert_allclose(samples.along(1, where), np.interp(where, [1.0, 5.0], [2.0, 4.0]))
    features = LagFeatures(2, 1.0, 4, 2)
    cells = features.cells(samples, np.array([1.0, 3.0]), 0, np.ones(2))
    assert (
        cells.ahead.tolist() == [False, True]
        and cells.last.tolist() == [2.0, 3.0]
        and cells.line.tolist() == [2.0, 4.0]
    )
    assert len(cells.before) == features.size(True) and cells.around.shape == (2, features.size(False))


def test_features_do_not_change_with_the_level_and_the_scale_of_a_channel():
    samples = walks(1)[0].samples
    moved = ChannelSamples(samples.times, [3.0 * values + 100.0 for values in samples.values])
    features, times, usual = LagFeatures(2, 1.0, 15, 5), np.array([3.4, 15.0, 17.5]), np.ones(2)
    for channel in range(2):
        one = features.cells(samples, times, channel, samples.scales(1.0, usual))
        two = features.cells(moved, times, channel, moved.scales(1.0, 3.0 * usual))
        np.testing.assert_allclose(one.before, two.before)
        np.testing.assert_allclose(one.around, two.around, atol=1e-9)
        np.testing.assert_allclose(3.0 * one.line + 100.0, two.line)


def test_weights_ahead_are_those_of_scikit_learns_ridge_for_each_horizon():
    features, train = LagFeatures(1, 1.0, 15, 5), walks(60, channels=1)
    scales = [each.samples.scales(1.0, np.ones(1)) for each in train]
    cells = [features.cells(each.samples, each.times, 0, own) for each, own in zip(train, scales, strict=True)]
    sizes = [float(own[0]) for own in scales]
    table = _Table.of(cells, train, sizes, np.zeros(60, dtype=int), 0, True, features)
    normal = table.normal(0, 6)
    weights, _ = normal.solve(0.1)
    diagonal = np.diagonal(normal.diagonal, axis1=1, axis2=2)
    penalty = 0.1 * diagonal[diagonal > 0].mean()
    for horizon in range(1, 6):
        own = np.isclose(table.nodes, horizon)
        ridge = Ridge(alpha=penalty, fit_intercept=False).fit(table.features[own], table.from_last[own])
        np.testing.assert_allclose(weights[horizon], ridge.coef_, atol=1e-8)


def test_nodes_that_share_rows_are_solved_together_as_numpy_solves_the_whole_matrix():
    count, kinds, size = 300, 5, 3
    features, nodes = RANDOM.normal(size=(count, size)), RANDOM.uniform(0.0, kinds - 1.0, count)
    last, line = RANDOM.normal(size=(2, count))
    table = _Table(features, last, line, nodes, np.zeros(count, dtype=int), True)
    normal = table.normal(0, kinds)
    hats = np.maximum(0.0, 1.0 - np.abs(nodes[:, None] - np.arange(kinds)))
    rows = (hats[:, :, None] * features[:, None]).reshape(count, -1)
    gram = rows.T @ rows
    penalty = 0.1 * np.diag(gram).mean() * np.eye(len(gram))
    expected = np.linalg.solve(gram + penalty, rows.T @ np.stack([last, line], 1)).reshape(kinds, size, 2)
    np.testing.assert_allclose(normal.solve(0.1), expected.transpose(2, 0, 1), atol=1e-10)
    assert isinstance(normal.minus(normal), _Normal) and not normal.minus(normal).right.any()


def test_the_reference_beats_the_naive_ones_where_there_is_something_linear_to_learn():
    train, validation, test = walks(60), walks(20), walks(40)
    reference = LinearReference.fit(LagFeatures(2, 1.0, 15, 5), train, validation)
    said = [reference.answer(each.samples, each.times) for each in test]
    errors = {
        name: np.mean([(getattr(own, name) - each.values) ** 2 for own, each in zip(said, test, strict=True)])
        for name in ("last", "line", "ridge", "values")
    }
    assert errors["values"] < 0.8 * errors["last"] and errors["values"] < 0.8 * errors["line"]
    left = np.concatenate([(own.values - each.values) / own.spread for own, each in zip(said, test, strict=True)])
    assert 0.85 < np.sqrt((left**2).mean()) < 1.2  # the spread is that of the errors


def test_without_anything_to_learn_the_naive_reference_stands_alone():
    def steps(count):
        return [
            each._replace(values=each.samples.values[0][-1] + RANDOM.normal(size=each.values.shape) * 3.0)
            for each in walks(count, channels=1)
        ]

    reference = LinearReference.fit(LagFeatures(1, 1.0, 15, 5), steps(12), steps(200))
    for asked in steps(3):
        said = reference.answer(asked.samples, asked.times)
        assert np.abs(said.values - said.last).max() < 0.5


def test_training_windows_have_a_reference_that_has_not_seen_them():
    train = walks(16, channels=1)
    reference = LinearReference.fit(LagFeatures(1, 1.0, 15, 5), train, walks(30, channels=1))
    own, others = ([], [])
    for number, each in enumerate(train):
        fold = FOLDS * number // len(train)
        own.append((reference.answer(each.samples, each.times).values - each.values) ** 2)
        others.append((reference.answer(each.samples, each.times, fold).values - each.values) ** 2)
    assert np.mean(others) > np.mean(own)  # what it was fitted to flatters it


def test_rows_beyond_the_horizon_do_not_spoil_its_last_coefficients():
    """Where rows are missing a window reaches farther than its horizon, at other phases of a season."""

    def windows(count):
        for _ in range(count):
            times = np.sort(RANDOM.choice(40, 30, replace=False)).astype(float)
            values = np.sin(2 * np.pi * (times + RANDOM.uniform(0, 7)) / 7)[:, None]
            yield Asked(ChannelSamples.of(times[:22], values[:22]), times[22:], values[22:])

    reference = LinearReference.fit(LagFeatures(1, 1.0, 22, 8), list(windows(200)), list(windows(50)))
    clock = np.arange(30.0)
    wave = np.sin(2 * np.pi * clock / 7)[:, None]
    errors = np.abs(reference.answer(ChannelSamples.of(clock[:22], wave[:22]), clock[22:]).values[:, 0] - wave[22:, 0])
    assert errors[-1] < 2.0 * errors[:-1].max()
