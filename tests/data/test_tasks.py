"""The laws of all tasks: batches that fit the form, training batches that depend on seed and update alone."""

import numpy as np
import pytest
import torch

from continua.data import (
    Burgers,
    Csv,
    Darcy,
    Digits,
    Form,
    Mnist1d,
    Question,
    Spirals,
    Split,
    Text,
    drop_samples,
    interpolate,
    roll,
)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "tale.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return file


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("csv") / "waves.csv"
    rows = [f"{i + 0.3 * np.sin(i)},{np.sin(0.3 * i)},{np.cos(0.2 * i)}" for i in range(200)]
    file.write_text("\n".join(["t,x,y", *rows]))
    return file


@pytest.fixture(params=["mnist1d", "digits", "spirals", "burgers", "darcy", "text", "csv"])
def task(request, text_file, csv_file):
    tasks = {
        "mnist1d": lambda: Mnist1d(missing=0.5),
        "digits": lambda: Digits(missing=0.5),
        "spirals": lambda: Spirals(examples=40),
        "burgers": lambda: Burgers(points=16, examples=40),
        "darcy": lambda: Darcy(points=8, examples=40),
        "text": lambda: Text(text_file, context_length=16),
        "csv": lambda: Csv(csv_file, window=16),
    }
    return tasks[request.param]()


def same(one, other):
    pairs = zip((*one.inputs, one.targets), (*other.inputs, other.targets), strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def test_batches_fit_the_form(task):
    form, batch = task.form, task.training_batch(6, 0, 0)
    first = batch.inputs[0]
    if form.vocabulary is not None:
        assert int(first.max()) < form.vocabulary and first.ndim == 2
    else:
        assert first.shape[-1] == form.features
    if form.ordered and form.vocabulary is None:
        times = batch.inputs[1]
        assert float(times.min()) >= 0.0 and float(times.max()) <= form.span + 1e-6
        present = torch.ones_like(times, dtype=torch.bool) if len(batch.inputs) < 3 else batch.inputs[2]
        assert bool((times.diff() >= 0)[present[:, 1:]].all())
    if form.question is Question.LABEL:
        assert batch.targets.shape == (6,) and int(batch.targets.max()) < form.outputs
    elif form.question is Question.TOKEN:
        assert batch.targets.shape == first.shape
    else:
        asked = batch.query_times.shape[1] if form.queries else first.shape[1]
        assert batch.targets.shape == (
            6,
            asked,
            form.outputs // 4 if form.question is Question.SERIES else form.outputs,
        )


def test_training_batches_are_functions_of_seed_and_update(task):
    assert same(task.training_batch(5, 3, 7), task.training_batch(5, 3, 7))
    assert not same(task.training_batch(5, 3, 7), task.training_batch(5, 4, 7))
    assert not same(task.training_batch(5, 3, 7), task.training_batch(5, 3, 8))


def test_a_split_is_read_once(task):
    count = task.count(Split.TEST)
    sizes = [len(batch.targets) for batch in task.batches(Split.TEST, 100)]
    assert sum(sizes) == count and max(sizes) <= 100


def test_a_pass_sees_every_sample_once():
    task, seen = Spirals(examples=20), []
    for update in range(4):
        seen += [tuple(row.flatten().tolist()) for row in task.training_batch(5, update, 0).targets]
    assert len(set(seen)) == 20


def test_metrics_are_per_sequence(task):
    batch = task.batch(Split.TEST, torch.arange(4))
    shape = batch.targets.shape[:2] if batch.targets.is_floating_point() else batch.targets.shape
    metrics = task.metrics(torch.zeros(*shape, task.form.outputs), batch)
    assert metrics and all(values.shape == (4,) for values in metrics.values())


def test_a_perfect_answer_is_measured_as_such(task):
    batch = task.batch(Split.TEST, torch.arange(4))
    whole = not batch.targets.is_floating_point()
    output = 50.0 * torch.nn.functional.one_hot(batch.targets, task.form.outputs).float() if whole else batch.targets
    if batch.reference is not None:
        left = ((batch.targets - batch.reference.values) / batch.reference.spread).nan_to_num(0.0)
        output = torch.cat([left, left, torch.zeros_like(left), torch.zeros_like(left)], -1)
    headline = next(iter(task.metrics(output, batch).values()))
    assert torch.allclose(
        headline, torch.ones(4) if task.form.question is Question.LABEL else torch.zeros(4), atol=1e-6
    )


def test_variants_ask_the_same_questions(task):
    for variant in task.variants().values():
        assert variant.count(Split.TEST) == task.count(Split.TEST)
        assert variant.form.outputs == task.form.outputs


def test_mnist1d_is_the_generators_own_split():
    from mnist1d.data import get_dataset_args, make_dataset

    data = make_dataset(get_dataset_args())
    task = Mnist1d()
    batch = task.batch(Split.TEST, torch.arange(1000))
    assert np.allclose(batch.inputs[0][..., 0].numpy(), data["x_test"], atol=1e-6)
    assert (batch.targets.numpy() == data["y_test"]).all() and task.count(Split.TRAIN) == 4000


def test_generating_leaves_the_global_states_alone():
    from continua.data.mnist1d import _generate

    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    _generate.cache_clear()
    _generate()
    assert np.random.rand() == expected


def test_a_dropped_test_sample_does_not_depend_on_its_batch():
    task = Mnist1d(test_missing=0.5)
    together, alone = task.batch(Split.TEST, torch.arange(3)), task.batch(Split.TEST, torch.tensor([2]))
    assert together.inputs[0].shape == (3, 20, 1)
    assert torch.equal(together.inputs[0][2:], alone.inputs[0]) and torch.equal(together.inputs[1][2:], alone.inputs[1])


def test_interpolation_is_that_of_numpy():
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(3, 9, generator=generator, dtype=torch.float64).sort(1).values
    values = torch.randn(3, 9, 2, generator=generator, dtype=torch.float64)
    found, at = interpolate(values, times, 25)
    for row in range(3):
        for feature in range(2):
            expected = np.interp(at[row], times[row], values[row, :, feature])
            assert np.allclose(found[row, :, feature], expected, atol=1e-12)


def test_thinning_keeps_samples_in_order_and_shifting_keeps_them_all():
    generator = torch.Generator().manual_seed(0)
    values = torch.arange(20.0).view(1, 20, 1).repeat(4, 1, 1)
    kept, at = drop_samples(values, values[..., 0], 0.5, generator)
    assert kept.shape == (4, 10, 1) and torch.equal(kept[..., 0], at) and bool((at.diff() > 0).all())
    turned = roll(values, generator)
    assert torch.equal(turned.sort(1).values, values) and not torch.equal(turned, values)


def test_a_form_decides_the_input():
    with pytest.raises(ValueError, match="not decided"):
        Form(1, Question.LABEL)
