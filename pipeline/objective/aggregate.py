"""How token losses become the loss of one optimizer step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["response_mean", "token_mean"]


def token_weights(aggregation: Aggregation, response_lengths: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight of each token of response b: step loss = sum over all micro-batches of sum(weight * token loss).

    response_lengths: int64 [B], active tokens of every response of the whole optimizer step, over all micro-batches and ranks: the
    normalisers are the step's, so that no layout changes the loss. Returns [B]; a micro-batch takes its responses' entries at its
    tokens. response_mean: 1 / (T_b B), the mean of the responses' token means.  token_mean: 1 / sum T.  A response without active
    tokens counts in B and weighs nothing. Raises ValueError if no token is active: there is nothing to train on, skip the step.
    """
    lengths = response_lengths.to(torch.float64)
    total = float(lengths.sum())
    if total == 0:
        raise ValueError(f"none of the {len(lengths)} responses of this optimizer step has an active token; skip the step")
    if aggregation == "response_mean":
        weights = 1.0 / (lengths.clamp(min=1.0) * len(lengths))
    elif aggregation == "token_mean":
        weights = torch.full_like(lengths, 1.0 / total)
    else:
        raise ValueError(f"unknown aggregation {aggregation!r}; use response_mean or token_mean")
    return weights.masked_fill(response_lengths == 0, 0.0).to(dtype)
