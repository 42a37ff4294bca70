"""Group-normalised advantages and the weights that turn token losses into a step loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.objective.advantages import group_advantages
from pipeline.objective.aggregate import token_weights


def test_advantages_are_the_normalised_rewards_of_each_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    expected = (rewards.numpy() - rewards.numpy().mean(1, keepdims=True)) / (rewards.numpy().std(1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(group_advantages(rewards), expected, atol=1e-15)
    assert group_advantages(rewards)[0, 0] == pytest.approx(0.75 / (0.5 + 1e-6), abs=1e-15)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_gets_exactly_zero(reward: float, dtype: torch.dtype) -> None:
    advantages = group_advantages(torch.full((3, 7), reward, dtype=dtype))
    assert torch.equal(advantages, torch.zeros(3, 7, dtype=dtype))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16))
def test_advantages_are_centred_bounded_and_ordered_as_the_rewards(rewards: list[float]) -> None:
    advantages = group_advantages(torch.tensor([rewards], dtype=torch.float64))[0]
    size = len(rewards)
    assert float(advantages.sum()) == pytest.approx(0.0, abs=1e-9)
    assert float(advantages.abs().max()) <= (size - 1) / math.sqrt(size)
    assert all((a > 0) == (r == 1.0) for a, r in zip(advantages, rewards, strict=True)) or min(rewards) == max(rewards)


@pytest.mark.parametrize(
    "rewards", [torch.zeros(4), torch.zeros(4, 1), torch.tensor([[0.0, math.nan]]), torch.tensor([[1.0, math.inf]])]
)
def test_impossible_rewards_are_refused(rewards: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="rewards must"):
        group_advantages(rewards)


def test_weights_carry_the_normalisers_of_the_whole_step() -> None:
    lengths = torch.tensor([1, 4, 0, 5])
    assert token_weights("response_mean", lengths, torch.float64).tolist() == [1 / 4, 1 / 16, 0.0, 1 / 20]
    assert token_weights("token_mean", lengths, torch.float64).tolist() == [0.1, 0.1, 0.0, 0.1]


def test_a_step_without_active_tokens_and_an_unknown_aggregation_are_refused() -> None:
    with pytest.raises(ValueError, match="skip the step"):
        token_weights("token_mean", torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="unknown aggregation 'sum'"):
        token_weights("sum", torch.tensor([1]))
