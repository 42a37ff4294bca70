"""Detached token weights that correct for what the ratio does not."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.objective.ratios import token_log_ratio


@torch.no_grad()
def truncated_importance_weights(proximal_logprobs: Tensor, rollout_logprobs: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling: (w, truncated) with w = min(exp(proximal - rollout log-prob), cap), per token, no gradient.

    Both inputs [N]; w [N], truncated bool [N] (strictly above the cap). The weight corrects from the rollout engine's distribution
    to the trainer's at the start of the update, and multiplies the token's policy loss after the clip. Raises NotANumberError.
    """
    weight = token_log_ratio(proximal_logprobs, rollout_logprobs, "proximal_logprobs - rollout_logprobs").exp()
    return weight.clamp(max=cap), weight > cap
