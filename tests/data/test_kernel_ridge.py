"""The reference for classes against scikit-learn's kernel ridge, with what it says of series that are left out."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeClassifierCV
from sklearn.neighbors import KNeighborsClassifier

from continua.data.kernel_ridge import KernelRidgeReference, nearest_answers, ridge_answers, view


def labelled(count=24, classes=3, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    series = [(np.arange(12.0), random.normal(size=(12, 2)) + 0.5 * label) for label in labels]
    return series, labels


def kernel(left, right, widths):
    """Written apart from the reference: one pair at a time."""
    found = np.zeros((len(left[0]), len(right[0])))
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            gaps = [
                np.linalg.norm(a[i] - b[j]) / np.sqrt(width) for a, b, width in zip(left, right, widths, strict=True)
            ]
            found[i, j] = 100.0 + np.mean(np.exp(-np.array(gaps)))
    return found


@pytest.mark.parametrize("classes", [2, 3])
def test_the_reference_is_scikit_learns_kernel_ridge_with_its_leave_one_out_errors(classes):
    series, labels = labelled(classes=classes)
    reference = KernelRidgeReference.fit(series, labels.tolist(), classes)
    new, _ = labelled(7, classes, seed=1)
    y = np.eye(classes)[labels] * 2.0 - 1.0
    gram, across = (kernel(view(each, 12), reference.views, reference.widths) for each in (series, new))

    def left_out(penalty):
        found = []
        for i in range(len(y)):
            others = np.delete(np.arange(len(y)), i)
            ridge = KernelRidge(alpha=penalty, kernel="precomputed").fit(gram[np.ix_(others, others)], y[others])
            found.append(ridge.predict(gram[i : i + 1, others])[0])
        return np.array(found)

    penalty = min((10.0**k for k in range(-4, 2)), key=lambda p: float(((left_out(p) - y) ** 2).mean()))
    expected = KernelRidge(alpha=penalty, kernel="precomputed").fit(gram, y).predict(across)
    heat = float((reference.logits(new) / expected).mean())
    np.testing.assert_allclose(reference.logits(new), heat * expected, rtol=1e-5, atol=1e-7)
    for own in (0, 5):  # whatever is asked, as by a ridge that never saw the series
        others = np.delete(np.arange(len(y)), own)
        ridge = KernelRidge(alpha=penalty, kernel="precomputed").fit(gram[np.ix_(others, others)], y[others])
        without = reference.logits_without(new, [own] * len(new))
        np.testing.assert_allclose(without, heat * ridge.predict(across[:, others]), rtol=1e-5, atol=1e-6)
    again = reference.logits_without(series, range(len(series)))
    np.testing.assert_allclose(again, reference.held, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(reference.logits_without(new, [-1] * len(new)), reference.logits(new), rtol=1e-12)
    np.testing.assert_allclose(reference.held, heat * left_out(penalty), rtol=1e-5, atol=1e-7)


def test_views_are_values_differences_and_spectra_of_the_stretched_series():
    values = np.sin(2.0 * np.pi * np.arange(16) / 4.0)[:, None]
    level, slope, spectrum = view([(np.arange(16.0), values)], 16)
    np.testing.assert_allclose(level[0], values[:, 0])
    np.testing.assert_allclose(slope[0], np.diff(values[:, 0]))
    assert spectrum[0].argmax() == 3 and spectrum[0, 3] == pytest.approx(np.log(0.01 + 8.0 / 4.0))  # four periods
    shifted = view([(np.arange(16.0), np.roll(values, 3, axis=0))], 16)
    np.testing.assert_allclose(shifted[2], spectrum, atol=1e-9)  # when it begins does not matter


def test_of_very_many_series_those_that_are_spared_have_the_reference_without_them(monkeypatch):
    series, labels = labelled(40)
    monkeypatch.setattr("continua.data.kernel_ridge._MOST", 20)
    reference = KernelRidgeReference.fit(series, labels.tolist(), 3)
    assert len(reference.views[0]) == 20 and reference.held.shape == (40, 3)
    chosen = np.linspace(0, 39, 20).round().astype(int)
    others = np.delete(np.arange(40), chosen)
    np.testing.assert_allclose(reference.held[others], reference.logits([series[i] for i in others]))
    assert not np.allclose(reference.held[chosen], reference.logits([series[i] for i in chosen]))


def test_references_are_scikit_learns():
    series, labels = labelled(60)
    new, _ = labelled(40, seed=1)
    known, asked = view(series, 12)[0], view(new, 12)[0]
    neighbour = KNeighborsClassifier(1).fit(known, labels)
    assert nearest_answers(known, labels.tolist(), asked).tolist() == neighbour.predict(asked).tolist()
    size = float(((known - known.mean(0)) ** 2).sum(1).mean())
    ridge = RidgeClassifierCV([size * 10.0**k for k in range(-4, 2)]).fit(known, labels)
    assert (ridge_answers(known, labels.tolist(), 3, asked) == ridge.predict(asked)).mean() > 0.9  # up to the bias


def test_copies_and_series_of_one_sample_have_a_reference():
    once = [(np.zeros(1), np.array([[float(i % 2)]])) for i in range(8)]
    reference = KernelRidgeReference.fit(once, [i % 2 for i in range(8)], 2)
    assert reference.logits(once).argmax(1).tolist() == [i % 2 for i in range(8)]
