"""Sums, cross-attention and dropout: what is fixed when they are bound."""

import pytest
import torch

from continua.core.seeds import branch_seed
from continua.operators import (
    AbstractOperator,
    Attention,
    Binding,
    Cross,
    Damping,
    Dropout,
    FeedForward,
    LayerNorm,
    NormedTheta,
    NormTheta,
    NoTheta,
    PreNorm,
    Sum,
)
from continua.spaces import Cloud
from registries import OperatorCase

WIDTH = 6


def cloud(tokens: int = 5, seed: int = 0, batch: int = 2) -> Cloud:
    generator = torch.Generator().manual_seed(seed)
    return Cloud(torch.randn(batch, tokens, WIDTH, generator=generator, dtype=torch.float64))


def ones(tokens: int = 5, batch: int = 2) -> Cloud:
    """Tokens on which `Damping(1)` is minus one everywhere: dropout over it shows its mask."""
    return Cloud(torch.ones(batch, tokens, WIDTH, dtype=torch.float64))


def mask_of(operator: AbstractOperator, theta=NoTheta(), binding: Binding | None = None) -> torch.Tensor:
    binding = Binding(ones(), seed=3) if binding is None else binding
    return -operator.bind(binding).velocity(theta, binding.cloud)


def test_a_sum_is_the_sum_of_its_terms():
    terms = (Attention(heads=2, key_size=3), FeedForward(hidden=4), Damping(gamma=0.2))
    theta = OperatorCase(Sum(terms)).theta(WIDTH, torch.Generator().manual_seed(1))
    expected = sum(term.velocity(part, cloud()) for term, part in zip(terms, theta, strict=True))
    torch.testing.assert_close(Sum(terms).velocity(theta, cloud()), expected)


def test_an_empty_sum_is_refused():
    with pytest.raises(ValueError, match=r"terms = \(\): .*Pass at least one operator"):
        Sum(())


def test_cross_attention_reads_the_memory_of_its_context():
    operator, inner = Cross(Attention(heads=2, key_size=3)), Attention(heads=2, key_size=3)
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1))
    source = cloud(3, seed=4)
    expected = inner.velocity(theta, cloud(), source)
    assert torch.equal(operator.bind(Binding(cloud(), source)).velocity(theta, cloud()), expected)


def test_bad_memory_is_named():
    operator = Cross(Attention(heads=2, key_size=3))
    theta = OperatorCase(operator).theta(WIDTH, torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=r"encoded = None: .*nothing to attend to\. Bind the flow with encoded=cloud"):
        operator.bind(Binding(cloud()))
    with pytest.raises(ValueError, match=r"encoded = \(3, 4, 6\): it holds 3 sequences, and 2 ask\. Give every"):
        operator.bind(Binding(cloud(), cloud(4, batch=3)))
    with pytest.raises(ValueError, match=r"source = None: the operator was not bound.*Call operator\.bind\(Binding"):
        operator.velocity(theta, cloud())


def test_the_mask_is_drawn_once_and_kept():
    bound = Dropout(Damping(1.0), rate=0.4).bind(Binding(ones(), seed=3))
    first = bound.velocity(NoTheta(), ones())
    assert torch.equal(first, bound.velocity(NoTheta(), ones()))
    moved = cloud().points
    torch.testing.assert_close(bound.velocity(NoTheta(), ones().at(moved)), first * moved)


def test_kept_components_are_scaled_and_others_dropped():
    mask = mask_of(Dropout(Damping(1.0), rate=0.25), binding=Binding(ones(50, batch=20), seed=3))
    assert set(mask.unique().tolist()) == {0.0, 1 / 0.75}
    # 6,000 independent draws: four standard deviations are 0.0224.
    assert float((mask == 0).double().mean()) == pytest.approx(0.25, abs=0.0224)


def test_dropout_scales_the_gradient_as_it_scales_the_value():
    bound = Dropout(Damping(1.0), rate=0.4).bind(Binding(ones(), seed=3))
    x = ones().points.clone().requires_grad_()
    bound.velocity(NoTheta(), ones().at(x)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, bound.velocity(NoTheta(), ones()))


def test_nothing_is_dropped_without_a_seed_or_a_rate():
    assert torch.equal(mask_of(Dropout(Damping(1.0), 0.5), binding=Binding(ones())), ones().points)
    assert torch.equal(mask_of(Dropout(Damping(1.0), 0.0)), ones().points)


def test_a_bound_operator_can_be_bound_again():
    operator = Dropout(Damping(1.0), 0.5)
    noisy = operator.bind(Binding(ones(), seed=3))
    assert torch.equal(mask_of(noisy, binding=Binding(ones())), ones().points)
    assert torch.equal(
        mask_of(noisy, binding=Binding(ones(), seed=8)), mask_of(operator, binding=Binding(ones(), seed=8))
    )
    assert operator.mask is None


def test_seeds_decide_the_mask():
    operator = Dropout(Damping(1.0), 0.5)
    masks = [mask_of(operator, binding=Binding(ones(), seed=seed)) for seed in (3, 3, 4)]
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


def test_masks_of_different_places_are_independent():
    """Neither terms of nested sums nor dropout inside dropout may share a mask."""
    noisy = Dropout(Damping(1.0), 0.5)
    nested = Sum((Sum((noisy, noisy)), Sum((noisy, noisy)), noisy)).bind(Binding(ones(), seed=3))
    assert isinstance(nested.terms[0], Sum) and isinstance(nested.terms[1], Sum)
    masks = [*nested.terms[0].terms, *nested.terms[1].terms, nested.terms[2]]
    drawn = [-mask.velocity(NoTheta(), ones()) for mask in masks]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    # A mask applied twice would be 0 or 4 with equal shares; two of them are 4 with a share of 1/4.
    twice = mask_of(Dropout(noisy, 0.5), binding=Binding(ones(50, batch=20), seed=3))
    assert float((twice == 4.0).double().mean()) == pytest.approx(0.25, abs=0.0224)


def test_norms_and_cross_attention_hand_the_seed_on():
    noisy = Dropout(Damping(1.0), 0.5)
    theta = NormedTheta(NormTheta(), NoTheta())
    binding = Binding(cloud(), cloud(3), seed=3)
    pre = PreNorm(LayerNorm(affine=False), noisy)
    assert bool((mask_of(pre, theta, binding) == 0).any())
    assert bool((mask_of(Cross(noisy), binding=binding) == 0).any())


def test_a_mask_serves_the_tokens_it_was_drawn_for():
    bound = Dropout(Damping(1.0), 0.5).bind(Binding(ones(), seed=3))
    with pytest.raises(ValueError, match=r"queries = \(2, 1, 6\): the mask was drawn for \(2, 5, 6\)\. .*seed=None"):
        bound.velocity(NoTheta(), ones(1))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_bad_rates_are_named(rate):
    with pytest.raises(ValueError, match=rf"rate = {rate}: .*Pass 0 <= rate < 1"):
        Dropout(Damping(1.0), rate)


def test_branched_seeds_differ_and_fit_a_generator():
    seeds = {branch_seed(seed, place) for seed in range(40) for place in range(40)}
    assert len(seeds) == 1600 and all(0 <= seed < 2**62 for seed in seeds)
    assert branch_seed(1, 2) == branch_seed(1, 2)
