"""Estimators in the manner of scikit-learn: its own checks, series with gaps, pipelines and cross-validation."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install -c constraints.txt -e '.[data]'")

from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import continua
from continua import ContinuousClassifier, ContinuousForecaster
from continua.train.fitting import fill_gaps, to_tokens

pytestmark = pytest.mark.usefixtures("unchecked")
TINY = {"width": 8, "heads": 2, "depth": 1.0}
EXCEPTIONS: dict[str, str] = {}
"""Checks of scikit-learn that may fail, with the reason; there is none."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        ContinuousClassifier(width=16, heads=2, depth=1.0, max_iter=20, learning_rate=5e-2),
        ContinuousForecaster(**TINY, max_iter=5),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_the_checks_of_scikit_learn_pass(estimator):
    """All of them run; those that need another library are skipped, with scikit-learn's own warning."""
    found = check_estimator(estimator, expected_failed_checks=EXCEPTIONS)
    assert len(found) > 40 and not [row for row in found if row["status"] not in ("passed", "skipped")]


def waves(samples=80, times=24, seed=0):
    """Slow and fast sines of random phase: two classes that no single column tells apart."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=samples)
    phase = generator.uniform(0.0, 2.0 * np.pi, (samples, 1))
    clock = np.linspace(0.0, 1.0, times)
    return np.sin(2.0 * np.pi * (1 + 2 * labels[:, None]) * clock + phase), np.array(["slow", "fast"])[labels]


@pytest.fixture(scope="module")
def fitted():
    return ContinuousClassifier(width=16, heads=2, depth=1.0, max_iter=120, learning_rate=2e-2, random_state=0).fit(
        *waves()
    )


def test_a_classifier_learns_what_no_column_tells(fitted):
    X, y = waves(seed=1)
    assert fitted.score(X, y) > 0.9 > 0.75 > RidgeCV().fit(X, y == "fast").score(X, y == "fast")
    odds = fitted.predict_proba(X)
    np.testing.assert_allclose(odds.sum(1), 1.0)
    assert (fitted.classes_[odds.argmax(1)] == fitted.predict(X)).all()


def test_gaps_lengths_and_channels_are_read_as_samples(fitted):
    """A table, the same with an axis for channels, and a list are one thing; NaN at the end is a shorter series."""
    X, _ = waves(seed=2)
    whole = fitted.predict_proba(X)
    np.testing.assert_allclose(fitted.predict_proba(X[..., None]), whole)
    short = X.copy()
    short[0, 18:] = np.nan
    ragged = [X[0, :18], *X[1:]]
    np.testing.assert_allclose(fitted.predict_proba(ragged), fitted.predict_proba(short))
    np.testing.assert_allclose(fitted.predict_proba(short)[1:], whole[1:])  # a gap does not reach its neighbours
    assert fitted.predict(X[:, :12, None]).shape == (80,), "series with channels may have other lengths"


def test_tokens_are_what_was_observed():
    series = np.array([[[1.0], [np.nan], [3.0]], [[np.nan], [np.nan], [5.0]]])
    values, times, present = to_tokens(series, 0.5)
    assert present.tolist() == [[True, True], [True, False]]
    assert values[present].flatten().tolist() == [1.0, 3.0, 5.0] and times[present].tolist() == [0.0, 1.0, 1.0]
    np.testing.assert_array_equal(fill_gaps(series)[..., 0], [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    with pytest.raises(ValueError, match=r"X\[0\] = 'all NaN': nothing of this series was observed"):
        to_tokens(np.full((1, 3, 1), np.nan), 0.5)


def test_a_seed_decides_and_global_randomness_is_left_alone():
    X, y = waves(40)
    before = torch.get_rng_state()
    models = [ContinuousClassifier(**TINY, max_iter=3, random_state=3).fit(X, y) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(models[0].predict_proba(X), models[1].predict_proba(X))
    again = pickle.loads(pickle.dumps(models[0]))
    np.testing.assert_array_equal(again.predict_proba(X), models[0].predict_proba(X))
    assert clone(models[0]).get_params() == models[0].get_params()


def test_it_runs_in_a_pipeline_and_in_cross_validation():
    estimator = make_pipeline(
        StandardScaler(),
        ContinuousClassifier(width=16, heads=2, depth=1.0, max_iter=40, learning_rate=2e-2, random_state=0),
    )
    assert cross_val_score(estimator, *waves(120), cv=2).mean() > 0.9


def trend(length=400, seed=0):
    """A rising line, a season and a square of it, which no linear reference knows."""
    clock = np.arange(length)
    season = np.sin(2 * np.pi * clock / 12)
    noise = 0.02 * np.random.default_rng(seed).standard_normal(length)
    return 10.0 + 0.05 * clock + season + 0.5 * np.sign(season) * season**2 + noise


def windows(series, size=24, horizon=3):
    rows = np.lib.stride_tricks.sliding_window_view(series, size + horizon)
    return rows[:, :size], rows[:, size:]


def test_a_forecast_leaves_the_range_of_training_with_the_trend():
    X, y = windows(trend())
    forecaster = ContinuousForecaster(**TINY, max_iter=60, random_state=0).fit(X[:260], y[:260])
    plain = ContinuousForecaster(network=False).fit(X[:260], y[:260])
    future, truth = X[290:], y[290:]
    assert truth.max() > y[:260].max() + 3.0
    errors = {
        name: np.abs(model.predict(future) - truth).mean() for name, model in (("ours", forecaster), ("ridge", plain))
    }
    assert errors["ours"] < 1.05 * errors["ridge"] < np.abs(truth - future[:, -1:]).mean()
    assert 0.0 <= forecaster.factor_ <= 1.0 and plain.factor_ == 0.0 and forecaster.predict(future).shape == truth.shape


def test_a_shift_and_a_unit_change_a_forecast_as_they_change_the_series():
    X, y = windows(trend(120))
    forecaster = ContinuousForecaster(**TINY, max_iter=5, random_state=0).fit(X, y[:, 0])
    expected = 1000.0 + 0.01 * forecaster.predict(X)
    np.testing.assert_allclose(forecaster.predict(1000.0 + 0.01 * X), expected, rtol=1e-7)


def test_what_cannot_be_is_said():
    X, y = waves(20)
    with pytest.raises(ValueError, match=r"y = \['slow'\]: all samples have one class"):
        ContinuousClassifier(**TINY).fit(X, np.full(20, "slow"))
    with pytest.raises(ValueError, match=r"X\[1\] = \(3, 2\): this is no series, or not one like X\[0\]"):
        ContinuousClassifier(**TINY).fit([X[0], np.zeros((3, 2))], y[:2])
    with pytest.raises(ValueError, match=r"target = 1: X has 1 channels"):
        ContinuousForecaster(**TINY, target=1).fit(X, X[:, 0])


def test_both_are_found_at_the_top():
    assert {"ContinuousClassifier", "ContinuousForecaster"} <= set(dir(continua))


def test_pairs_of_times_and_values_are_refused_with_three_cures():
    times = np.linspace(0, 1, 9)
    pairs = [(times, np.sin(k * times)) for k in range(6)]
    for kind in (ContinuousClassifier, ContinuousForecaster):
        with pytest.raises(
            ValueError, match=r"X\[0\] = .*tuple of two arrays.*equispaced.*NaN.*as a channel.*transformer"
        ):
            kind(max_iter=1).fit(pairs, [0, 1] * 3)


def test_epochs_are_met_with_what_is_counted_here():
    with pytest.raises(TypeError, match=r"ContinuousClassifier has no argument 'epochs'. Pass max_iter="):
        ContinuousClassifier(epochs=5)
    with pytest.raises(TypeError, match=r"ContinuousForecaster has no argument 'seed'. Pass random_state="):
        ContinuousForecaster(seed=5)


def test_who_was_fitted_to_lists_of_any_lengths_takes_lists_of_one_length():
    X, y = waves(40)
    ragged = [one[: 24 - i % 5] for i, one in enumerate(X)]
    model = ContinuousClassifier(**TINY, max_iter=3, random_state=0).fit(ragged, y)
    both = model.predict_proba([X[0, :10], X[1]])
    np.testing.assert_allclose(model.predict_proba([X[0, :10]]), both[:1])
    np.testing.assert_allclose(model.predict_proba(X[1:2]), both[1:])
