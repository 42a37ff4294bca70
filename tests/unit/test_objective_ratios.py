"""Log-ratios at both granularities, the reference KL, and truncated importance weights."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.objective.parts.tis import Tis, TisSettings
from pipeline.objective.ratios import NotANumberError, at_granularity, response_means, token_log_ratio
from pipeline.objective.reference_kl import reference_k3
from pipeline.objective.terms import Scores, Tokens


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_sequence_ratio_is_the_length_normalised_one_at_every_token() -> None:
    d, index = double(0.1, -0.3, 0.5, 0.2, 0.4), torch.tensor([1, 0, 1, 0, 1])
    expected = double(1 / 3, -0.05, 1 / 3, -0.05, 1 / 3)
    torch.testing.assert_close(at_granularity(d, "sequence", index, 2), expected, rtol=0, atol=1e-15)
    assert torch.equal(at_granularity(d, "token", index, 2), d)


def test_the_limit_comes_after_the_mean() -> None:
    assert at_granularity(double(30.0, -30.0), "sequence", torch.tensor([0, 0]), 1).exp().tolist() == [1.0, 1.0]
    assert at_granularity(double(30.0, -30.0), "token", torch.tensor([0, 0]), 1).tolist() == [20.0, -20.0]


def test_every_token_carries_the_gradient_of_its_sequence() -> None:
    d = double(0.1, -0.3, 0.5).requires_grad_()
    at_granularity(d, "sequence", torch.tensor([0, 1, 0]), 2).backward(double(1.0, 10.0, 100.0))
    assert d.grad.tolist() == [50.5, 10.0, 50.5]


def test_a_response_without_tokens_has_mean_zero() -> None:
    assert response_means(double(1.0, 3.0), torch.tensor([2, 2]), 3).tolist() == [0.0, 0.0, 2.0]


def test_nan_is_refused_by_name_and_infinities_are_not_mistaken_for_it() -> None:
    with pytest.raises(NotANumberError, match="rollout_logprobs is NaN for 1 of 2 tokens, first at token 1"):
        token_log_ratio(double(0.0, 0.0), double(0.0, math.nan), "trainer_logprobs - rollout_logprobs")
    difference = token_log_ratio(double(0.0, -math.inf), double(-math.inf, 0.0), "trainer_logprobs - rollout_logprobs")
    assert difference.tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("x", "value", "slope"), [(0.0, 0.0, 0.0), (1.0, math.e - 2, 1 - math.e), (-1.0, 1 / math.e, 1 - 1 / math.e)]
)
def test_k3_and_its_gradient(x: float, value: float, slope: float) -> None:
    trainer = double(-2.0).requires_grad_()
    k3 = reference_k3(trainer, trainer.detach() + x, "token", torch.tensor([0]), 1)
    k3.backward()
    assert k3.item() == pytest.approx(value, abs=1e-15)
    assert trainer.grad.item() == pytest.approx(slope, abs=1e-15)


@pytest.mark.parametrize("x", [3.0, 21.0, 1e4, -12.0, -1e4])
@pytest.mark.parametrize("granularity", ["token", "sequence"])
def test_k3_is_limited_to_ten_with_gradient_zero(x: float, granularity: str) -> None:
    trainer = torch.zeros(2, requires_grad=True)
    k3 = reference_k3(trainer, torch.full((2,), x), granularity, torch.tensor([0, 0]), 1)
    k3.sum().backward()
    assert k3.tolist() == [10.0, 10.0] and trainer.grad.tolist() == [0.0, 0.0]


def test_sequence_k3_is_that_of_the_mean_difference() -> None:
    trainer = double(0.0, 0.0, 0.0).requires_grad_()
    k3 = reference_k3(trainer, double(0.2, 0.6, 1.0), "sequence", torch.tensor([0, 0, 1]), 2)
    k3.sum().backward()
    of_mean = math.exp(0.4) - 1.4
    torch.testing.assert_close(k3.detach(), double(of_mean, of_mean, math.e - 2), rtol=0, atol=1e-15)
    torch.testing.assert_close(trainer.grad, double(1 - math.exp(0.4), 1 - math.exp(0.4), 1 - math.e), rtol=0, atol=1e-15)


def truncated(proximal: torch.Tensor, cap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of TIS and which of them are cut off, where every rollout log-prob is 0."""
    zeros, count = torch.zeros_like(proximal), len(proximal)
    tokens = Tokens(zeros, zeros, torch.zeros(count, dtype=torch.int64), 1, zeros, proximal_logprobs=proximal)
    factor = Tis(TisSettings(cap=cap)).factor(Scores(tokens, zeros, zeros))
    return factor.value, factor.terms["truncated"]


def test_importance_weights_are_pinned_and_truncated_strictly_above_the_cap() -> None:
    weight, cut = truncated(double(math.log(1.5), math.log(0.25), math.log(2.5), 1e4, 0.0), 2.0)
    torch.testing.assert_close(weight, double(1.5, 0.25, 2.0, 2.0, 1.0), rtol=0, atol=1e-15)
    assert cut.tolist() == [False, False, True, True, False]
    assert not truncated(double(0.0), 1.0)[1].any()


def test_the_proximal_policy_is_the_trainers_own_without_gradient_where_none_is_given() -> None:
    tokens = Tokens(double(-1.0), double(1.0), torch.tensor([0]), 1, double(1.0))
    scores = Scores(tokens, double(-0.5).requires_grad_(), double(0.5))
    assert scores.proximal_log_ratio().tolist() == [0.5] and not scores.proximal_log_ratio().requires_grad
