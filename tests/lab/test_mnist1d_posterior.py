"""The exact posterior of MNIST-1D against scipy's densities, and against what the generator draws."""

import dataclasses

import numpy as np
import pytest
import torch
from mnist1d.data import get_dataset_args, get_templates
from mnist1d.transform import transform
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from continua.data import Mnist1d, Split, raw_mnist1d
from continua.lab.ceiling import Mnist1dPosterior


@pytest.fixture(scope="module")
def posterior():
    return Mnist1dPosterior.of_generator()


def test_signals_are_those_of_the_data_set_before_its_standardisation():
    signals, labels = raw_mnist1d()
    batch = Mnist1d().batch(Split.TEST, torch.arange(1000))
    standard = (signals - signals.mean()) / signals.std(correction=0)
    torch.testing.assert_close(standard[4000:].float(), batch.inputs[0][..., 0])
    assert torch.equal(labels[4000:], batch.targets)


def test_the_posterior_is_that_of_scipys_densities(posterior):
    places = [0, 700, 1150]
    scales = torch.linspace(0.8, 1.2, 161, dtype=torch.float64)
    few = dataclasses.replace(
        posterior, means=posterior.means[places], covariances=posterior.covariances[places], scales=scales
    )
    kept = torch.tensor([3, 4, 20, 27, 35, 39])
    values = 0.9 * few.means[1, 6][kept] - 0.2 * few.ramp[kept] + 0.03
    slopes, ramp = np.linspace(-0.375, 0.375, 401), few.ramp[kept].numpy()
    ends = np.where(np.abs(np.linspace(-1, 1, 401)) == 1, np.log(0.5), 0.0)
    sides = np.where(np.abs(np.linspace(-1, 1, 161)) == 1, np.log(0.5), 0.0)
    wanted = np.empty((3, 10))
    for place in range(3):
        law = multivariate_normal(np.zeros(6), few.covariances[place][kept][:, kept].numpy())
        for digit in range(10):
            means = scales.numpy()[:, None, None] * few.means[place, digit][kept].numpy()
            densities = law.logpdf(values.numpy() - means + slopes[:, None] * ramp)
            wanted[place, digit] = logsumexp(densities + ends + sides[:, None])
    found = few.log_probabilities(values, kept).exp().numpy()
    np.testing.assert_allclose(found, softmax(logsumexp(wanted, axis=0)), atol=2e-4)
    assert found.max() < 0.9999, "a sure answer would test nothing"


def test_more_scales_change_nothing(posterior):
    signals, _ = raw_mnist1d()
    finer = dataclasses.replace(posterior, scales=torch.linspace(0.8, 1.2, 97, dtype=torch.float64))
    kept = torch.arange(1, 40, 2)
    for row in signals[4000:4004]:
        found, wanted = (law.log_probabilities(row[kept], kept).exp() for law in (posterior, finer))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=3e-3)


def test_the_mixture_has_the_moments_of_what_the_generator_draws(posterior):
    arguments, templates = get_dataset_args(), get_templates()
    state = np.random.get_state()
    np.random.seed(3)
    try:
        drawn = np.stack([transform(templates["x"][5], templates["t"], arguments)[0] for _ in range(3000)])
    finally:
        np.random.set_state(state)
    means, ramp = posterior.means[:, 5].numpy(), posterior.ramp.numpy()
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert np.abs((drawn.mean(0) - means.mean(0)) / error).max() < 4.5
    # E s^2 = 1 + 0.4^2/12, E c^2 = 0.75^2/12
    second = (1 + 0.4**2 / 12) * (means**2).mean(0) + posterior.covariances.numpy().diagonal(axis1=1, axis2=2).mean(0)
    second = second + 0.75**2 / 12 * ramp**2
    spread = (drawn**2).std(0) / np.sqrt(len(drawn))
    assert np.abs(((drawn**2).mean(0) - second) / spread).max() < 4.5


def test_it_tells_whole_signals_and_is_as_often_right_as_it_is_sure(posterior):
    signals, labels = raw_mnist1d()
    every, half = torch.arange(40), torch.arange(0, 40, 2)
    for index in range(10):
        assert int(posterior.log_probabilities(signals[index], every).argmax()) == int(labels[index])
    logs = torch.stack([posterior.log_probabilities(row[half], half) for row in signals[:60]])
    right, sure = (logs.argmax(1) == labels[:60]).double(), logs.max(1).values.exp()
    error = float((sure * (1 - sure)).sum().sqrt()) / 60
    assert abs(float(right.mean() - sure.mean())) < 3.0 * error
