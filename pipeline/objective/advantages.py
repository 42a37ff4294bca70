"""From the rewards of a group of responses to the advantages that the loss multiplies with."""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL_REWARDS = 1e-6  # a group whose rewards spread by no more than this carries no signal


def group_advantages(rewards: Tensor) -> Tensor:
    """Group-normalised advantages (R - mean) / (std + 1e-6) with the unbiased std (GRPO; arXiv 2607.18722, Sec. 3).

    rewards: float [num_groups, group_size], one row per prompt. Returns the same shape; multiply-broadcast to tokens by the caller.
    A group of equal rewards gets exactly 0, with no residue of rounding divided by 1e-6. |A| < (n - 1) / sqrt(n) for groups of n.
    Raises ValueError for another shape, groups of one, or a reward that is not finite.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have shape [num_groups, group_size >= 2], got {list(rewards.shape)}")
    finite = torch.isfinite(rewards)
    if not finite.all():
        raise ValueError(f"rewards must be finite, got {rewards[~finite].tolist()}; grade every response before training")
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centred / (rewards.std(dim=1, keepdim=True) + 1e-6)
    spread = rewards.amax(dim=1, keepdim=True) - rewards.amin(dim=1, keepdim=True)
    return advantages.masked_fill(spread <= EQUAL_REWARDS, 0.0)
