"""Terminal losses against torch's own on what is present, and what they refuse."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import trapezoid

from continua.control import Batch, CrossEntropy, MaskedToken, MeanSquaredError, NextToken, RelativeL2
from continua.spaces import Trapezoid

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 5, 7, generator=GENERATOR, dtype=torch.float64)
VALUES = torch.randn(3, 5, 7, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(7, (3, 5), generator=GENERATOR)
LENGTHS = (5, 3, 2)
PRESENT = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
TIMES = torch.rand(3, 5, generator=GENERATOR, dtype=torch.float64).sort(-1).values
NONSENSE = torch.where(PRESENT, LABELS, -100)


def batch(targets, **given) -> Batch:
    return Batch((LABELS,), targets, **given)


def test_classification_is_that_of_torch():
    labels = LABELS[:, 0]
    expected = F.cross_entropy(LOGITS[:, 0], labels, label_smoothing=0.1)
    torch.testing.assert_close(CrossEntropy(0.1)(LOGITS[:, 0], batch(labels)), expected)


def test_beside_a_reference_the_sum_is_judged_and_alone_the_network_as_well():
    labels, output, offset = LABELS[:, 0], LOGITS[:, 0].clone().requires_grad_(), VALUES[:, 0]
    both, own = F.cross_entropy(output + offset, labels), F.cross_entropy(output, labels)
    torch.testing.assert_close(CrossEntropy()(output, batch(labels, offset=offset)), both)
    torch.testing.assert_close(CrossEntropy(alone=True)(output, batch(labels, offset=offset)), 0.5 * (both + own))
    torch.testing.assert_close(CrossEntropy(alone=True)(output, batch(labels)), own)
    less = torch.cat([output, torch.full((3, 1), -0.75)], 1)  # an output more holds the factor of the reference
    quarter = F.cross_entropy(output + 0.25 * offset, labels)
    found = CrossEntropy(alone=True)(less, batch(labels, offset=offset))
    torch.testing.assert_close(found, 0.5 * (quarter + own))
    held = less.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(CrossEntropy(alone=True)(held, batch(labels, offset=offset)), held)
    assert bool(gradient[:, :-1].any()) and not bool(gradient[:, -1].any())  # it is set, and not trained


def test_tokens_that_are_moved_already_are_not_moved_again():
    window = torch.tensor([[0, 1, 2, 1, 0], [2, 2, 0, 1, 1]])
    output, batch = torch.randn(2, 4, 3), Batch((window[:, :-1],), window[:, 1:])
    with pytest.raises(ValueError, match=r"batch\.targets = \(2, 4\): .*moved again\. Pass NextToken\(shifted=True\)"):
        NextToken()(output, batch)
    expected = torch.nn.functional.cross_entropy(output.flatten(0, 1), window[:, 1:].flatten())
    torch.testing.assert_close(NextToken(shifted=True)(output, batch), expected)
    NextToken()(output, Batch((window[:, :-1],), window[:, :-1]))
    NextToken()(output, Batch((torch.ones_like(window[:, 1:]),), torch.ones_like(window[:, 1:])))  # both at once


def test_the_next_token_is_shifted_and_padding_does_not_count():
    pairs = [(LOGITS[b, i], LABELS[b, i + 1]) for b, n in enumerate(LENGTHS) for i in range(n - 1)]
    expected = F.cross_entropy(torch.stack([o for o, _ in pairs]), torch.stack([y for _, y in pairs]))
    torch.testing.assert_close(NextToken()(LOGITS, batch(NONSENSE, target_present=PRESENT)), expected)
    torch.testing.assert_close(NextToken()(LOGITS, Batch((NONSENSE,), None, target_present=PRESENT)), expected)
    shifted = torch.cat([NONSENSE[:, 1:], torch.full((3, 1), -100)], 1)
    there = torch.cat([PRESENT[:, 1:], torch.zeros(3, 1, dtype=torch.bool)], 1)
    torch.testing.assert_close(NextToken(shifted=True)(LOGITS, batch(shifted, mask=there)), expected)


def test_masked_tokens_alone_count():
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    counts = mask & PRESENT
    expected = F.cross_entropy(LOGITS[counts], LABELS[counts])
    torch.testing.assert_close(MaskedToken()(LOGITS, batch(NONSENSE, mask=mask, target_present=PRESENT)), expected)


def test_squares_over_what_is_present():
    broken = VALUES.masked_fill(~PRESENT[..., None], torch.nan)
    expected = F.mse_loss(LOGITS[PRESENT], VALUES[PRESENT])
    torch.testing.assert_close(MeanSquaredError()(LOGITS, batch(broken, target_present=PRESENT)), expected)
    torch.testing.assert_close(
        MeanSquaredError()(LOGITS[:, 0], batch(VALUES[:, 0])), F.mse_loss(LOGITS[:, 0], VALUES[:, 0])
    )


def test_relative_distances_are_integrals_over_time():
    """Against scipy's trapezoid on the present tokens of each sequence."""
    ratios = []
    for b, n in enumerate(LENGTHS):
        gap, size = (trapezoid((x[b, :n] ** 2).sum(-1), TIMES[b, :n]) for x in (LOGITS - VALUES, VALUES))
        ratios.append((gap / size) ** 0.5)
    expected = pytest.approx(sum(ratios) / 3, rel=1e-12)
    assert RelativeL2(Trapezoid())(LOGITS, batch(VALUES, target_present=PRESENT, target_times=TIMES)).item() == expected
    weights = Trapezoid().mass(TIMES, PRESENT)
    assert RelativeL2()(LOGITS, batch(VALUES, mass=weights)).item() == expected


def test_absent_tokens_get_no_gradient_and_a_perfect_answer_a_finite_one():
    for loss in (NextToken(), MeanSquaredError(), RelativeL2()):
        output = LOGITS.clone().requires_grad_(True)
        targets = NONSENSE if isinstance(loss, NextToken) else VALUES
        (g,) = torch.autograd.grad(loss(output, batch(targets, target_present=PRESENT)), output)
        assert bool((g[~PRESENT] == 0).all()) and bool((g[PRESENT] != 0).any())
    output = VALUES.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(RelativeL2()(output, batch(VALUES)), output)
    assert bool(torch.isfinite(g).all())


@pytest.mark.parametrize(
    ("loss", "output", "targets", "given", "message"),
    [
        (CrossEntropy(), LOGITS[:, 0], torch.tensor([0, 7, 1]), {}, r"batch.targets\[1\] = 7.*there are 7 classes"),
        (CrossEntropy(), LOGITS[:, 0], torch.tensor([0, -1, 1]), {}, r"batch.targets\[1\] = -1"),
        (CrossEntropy(), LOGITS[:, 0], torch.tensor([0.0, torch.nan, 1.0]), {}, "labels are whole numbers"),
        (CrossEntropy(), LOGITS[:, 0], LABELS, {}, r"batch.targets = \(3, 5\)"),
        (CrossEntropy(), LOGITS, LABELS[:, 0], {}, "MeanReadout"),
        (CrossEntropy(), LOGITS[:, 0], None, {}, "compares with targets"),
        (NextToken(), LOGITS, NONSENSE, {}, r"batch.targets\[1, 3\] = -100"),
        (NextToken(), LOGITS[:, 0], LABELS, {}, "TokenReadout"),
        (NextToken(), LOGITS, LABELS, {"target_present": torch.zeros(3, 5, dtype=torch.bool)}, "no target counts"),
        (MaskedToken(), LOGITS, LABELS, {}, "batch.mask = None"),
        (MaskedToken(), LOGITS, LABELS, {"mask": torch.ones(3, 4, dtype=torch.bool)}, "no mask of the targets"),
        (MeanSquaredError(), LOGITS, VALUES * torch.nan, {}, "a target is not finite"),
        (MeanSquaredError(), LOGITS, VALUES[..., :1], {}, "broadcasting would hide"),
        (MeanSquaredError(), LOGITS, VALUES.float(), {}, "Convert with targets.to"),
        (MeanSquaredError(), LOGITS, VALUES, {"mass": -torch.ones(3, 5)}, "batch.mass"),
        (RelativeL2(), LOGITS, VALUES * 0.0, {}, r"norm of batch.targets\[0\] = 0.0: nothing is small"),
        (RelativeL2(Trapezoid()), LOGITS, VALUES, {}, "batch.target_times = None"),
    ],
)
def test_bad_targets_are_named(loss, output, targets, given, message, unchecked):
    with pytest.raises(ValueError, match=message):
        loss(output, batch(targets, **given))


def test_a_batch_moves_and_says_what_it_is_not(unchecked):
    moved = Batch((VALUES, (TIMES, LABELS)), LABELS, mask=PRESENT, mass=TIMES).to("cpu", torch.float32)
    assert moved.inputs[0].dtype == moved.inputs[1][0].dtype == moved.mass.dtype == torch.float32
    assert moved.inputs[1][1].dtype == moved.targets.dtype == torch.int64 and moved.mask.dtype == torch.bool
    assert dataclasses.is_dataclass(moved)
    with pytest.raises(ValueError, match="inputs = 'Tensor'"):
        Batch(VALUES, LABELS)
    with pytest.raises(ValueError, match="targets = 'list'"):
        Batch((VALUES,), [1, 2])
    with pytest.raises(ValueError, match="smoothing = 1"):
        CrossEntropy(1.0)


@pytest.mark.parametrize("loss", [CrossEntropy(), MeanSquaredError(), RelativeL2()], ids=repr)
def test_a_mask_leaves_out_whole_sequences(loss):
    """One output per sequence: those outside the mask are as if they were not in the batch, whatever stands there."""
    output = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([1, 9, 0, 9]) if isinstance(loss, CrossEntropy) else output.flip(0).clone() + 1.0
    if targets.is_floating_point():
        targets[1] = torch.nan
    mask, kept = torch.tensor([True, False, True, False]), [0, 2]
    found = loss(output, Batch((output,), targets, mask=mask))
    torch.testing.assert_close(found, loss(output[kept], Batch((output[kept],), targets[kept])))
    with pytest.raises(
        ValueError, match=r"batch.mask = .*no mask of the targets\. Pass a boolean tensor of shape \(4,\)"
    ):
        loss(output, Batch((output,), targets, mask=torch.ones(4, 10, dtype=torch.bool)))


def test_tokens_as_their_own_successors_are_refused():
    """Trained so a model would copy its input, with a loss that looks perfect."""
    tokens, output = torch.tensor([[0, 1, 2, 3]]), torch.zeros(1, 4, 5)
    with pytest.raises(ValueError, match=r"they are the tokens themselves, to be copied\. Pass NextToken\(\)"):
        NextToken(shifted=True)(output, Batch((tokens,), tokens))
    NextToken(shifted=True)(output, Batch((tokens,), (tokens + 1) % 5))
    same = torch.ones(1, 4, dtype=torch.long)
    for shifted in (False, True):  # one token repeated is its own successor
        NextToken(shifted=shifted)(output, Batch((same,), same))
