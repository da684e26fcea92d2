"""Asynchronous sensors: cells as tokens, and an interpolant for each sensor."""

import numpy as np
import pytest
import torch

from continua.model import CellEmbedding, InterpolatedStem, Stem, TokenTime, transformer
from continua.model.stem import interpolate_channels


def cells(times, channels, values):
    """Samples (1, tokens, 1 + channels) with their times."""
    hot = torch.nn.functional.one_hot(torch.tensor(channels), 2)
    return torch.cat([torch.tensor(values)[:, None], hot], -1).float()[None], torch.tensor(times).float()[None]


SAMPLES, TIMES = cells([0.0, 0.1, 0.1, 0.4, 0.7, 1.0], [0, 0, 1, 1, 0, 0], [1.0, 2.0, 5.0, 8.0, -1.0, 0.0])


def test_each_sensor_is_interpolated_by_itself_as_numpy_does():
    cloud = CellEmbedding(2)(SAMPLES, TIMES)
    where = torch.linspace(-0.2, 1.2, 15)[None]
    seen, distance = interpolate_channels(cloud, TIMES, where, None, 2)
    known = [([0.0, 0.1, 0.7, 1.0], [1.0, 2.0, -1.0, 0.0]), ([0.1, 0.4], [5.0, 8.0])]
    for channel, (times, values) in enumerate(known):
        np.testing.assert_allclose(seen[0, :, channel], np.interp(where[0], times, values), atol=1e-5)
        nearest = np.abs(where[0].numpy()[:, None] - np.array(times)).min(1)
        inside = (where[0].numpy() >= times[0]) & (where[0].numpy() <= times[-1])
        np.testing.assert_allclose(distance[0, inside, channel], nearest[inside], atol=1e-5)


def test_a_sensor_without_samples_is_zero_and_far_away():
    alone, times = cells([0.0, 0.5, 1.0], [0, 0, 0], [1.0, 2.0, 3.0])
    stem = InterpolatedStem(4, 0.3, 5, outputs=6, gaps=True, channels=2)
    cloud = CellEmbedding(2)(alone, times)
    assert stem.coefficients.shape == (5, 4, 6) and bool(stem(cloud).isfinite().all())
    seen, distance = interpolate_channels(cloud, times, times, None, 2)
    assert float(seen[..., 1].abs().max()) == 0.0 and bool(distance[..., 1].isinf().all())


def test_tokens_of_one_time_share_its_mass():
    cloud = CellEmbedding(2)(SAMPLES, TIMES)
    assert torch.allclose(cloud.mass.sum(), torch.tensor(1.0)) and cloud.mass[0, 1] == cloud.mass[0, 2]
    assert cloud.points[0, 2].tolist() == [0.0, 5.0, 0.0, 1.0]


def test_a_model_of_sensors_answers_where_nobody_reported():
    torch.manual_seed(0)
    time = TokenTime(spacing=0.1, stem=Stem(3.0, 5, gaps=True), queries=True, channels=2)
    model = transformer(16, 2, features=4, per_token=True, time=time, axis=2, heads=2).eval()
    static = torch.cat([SAMPLES, torch.full((1, 6, 1), 0.7)], -1)
    asked = torch.tensor([[0.1, 0.55, 1.3]])
    answer = model(static, TIMES, query_times=asked)
    assert answer.shape == (1, 3, 2)
    order = torch.tensor([0, 2, 1, 3, 4, 5])  # simultaneous tokens in another order are the same cloud
    torch.testing.assert_close(model(static[:, order], TIMES, query_times=asked), answer, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="the channel of a token is not a single 1 among 0s"):
        model(2.0 * static, TIMES, query_times=asked)
    for code in ([0.0, 0.0], [1.0, 1.0]):
        wrong = static.clone()
        wrong[0, 2, 1:3] = torch.tensor(code)
        with pytest.raises(ValueError, match="not a single 1 among 0s"):
            model(wrong, TIMES, query_times=asked)
    padded, there = torch.cat([static, torch.full((1, 1, 4), torch.nan)], 1), torch.arange(7)[None] < 6
    again = model(padded, torch.cat([TIMES, TIMES[:, -1:]], 1), there, query_times=asked)
    torch.testing.assert_close(again, answer, rtol=1e-4, atol=1e-5)
    lost = static.clone()
    lost[0, 2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"values\[0, 2, 0\] = nan: a cell is not finite\. Leave the cell out"):
        model(lost, TIMES, query_times=asked)
    with pytest.raises(ValueError, match="times = None: cells of one row share a time"):
        model(static, query_times=asked)
